"""Elementwise arithmetic between matrices on one pattern, and with scalars."""

from numbers import Real
from typing import Any

from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR

_SCALAR = "s must be a number or a tensor with one element (or one a matrix of the batch, shape (..., 1))"


def _one_pattern(function: str, A: CSR, B: CSR) -> None:
    P, Q = A.pattern, B.pattern
    if P is Q:
        return
    if P.shape != Q.shape:
        raise ValueError(f"{function}: the matrices must have one shape, got {P.shape} and {Q.shape}")
    raise NotImplementedError(
        f"{function}: the matrices must share one SparsityPattern object; give B the values of A's pattern "
        "with A.with_values(...)"
    )


def add_values(function: str, A: CSR, B: Any, negate: bool = False) -> CSR:
    """A + B or A - B."""
    if not isinstance(B, CSR):
        raise TypeError(
            f"{function}: B must be a CSR, got {type(B).__name__}: adding a number to a sparse matrix "
            "would fill it; add to A.values to shift the stored entries"
        )
    _one_pattern(function, A, B)
    return A.with_values(A.values - B.values if negate else A.values + B.values)


def _factor(function: str, A: CSR, s: Any) -> Any:
    """A scalar as something that broadcasts against (..., nnz)."""
    if isinstance(s, Tensor):
        if s.numel() == 1 and s.dim() <= 1:
            return s.reshape(())
        if s.dim() > 1 and s.shape[-1] == 1:
            _check.batches(function, A.batch_shape, s.shape[:-1], "A.values and s")
            return s
        raise TypeError(
            f"{function}: {_SCALAR}, got shape {tuple(s.shape)}; use scale_rows or scale_columns for a vector"
        )
    if isinstance(s, Real):  # NumPy's scalars too
        return float(s)
    raise TypeError(f"{function}: {_SCALAR}, got {type(s).__name__}")


def multiply(function: str, A: CSR, B: Any) -> CSR:
    """A * B: entry by entry for two matrices on one pattern, else by a scalar."""
    if isinstance(B, CSR):
        _one_pattern(function, A, B)
        return A.with_values(A.values * B.values)
    return A.with_values(A.values * _factor(function, A, B))


def divide(A: CSR, s: Any) -> CSR:
    """A / s."""
    if isinstance(s, CSR):
        raise TypeError("A / s: s must be a scalar, got a CSR; divide A.values where entries are not zero")
    return A.with_values(A.values / _factor("A / s", A, s))
