"""Checks of scalars beside a matrix."""

from numbers import Real
from typing import Any

from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR


def factor(function: str, name: str, A: CSR, s: Any) -> Any:
    """A scalar as something that broadcasts against (..., nnz): a float or a tensor."""
    rule = (
        f"{name} must be a number or a tensor with one element (or one a matrix of the batch, shape (..., 1))"
    )
    if isinstance(s, Tensor):
        # One number takes the matrix's precision, as with torch's tensors; an array would change it.
        if s.is_complex() or (s.dim() > 1 and s.dtype != A.dtype):
            raise TypeError(
                f"{function}: {name} has dtype {s.dtype}, the matrix {A.dtype}; convert one with .to()"
            )
        if s.numel() == 1 and s.dim() <= 1:
            return s.reshape(())
        if s.dim() > 1 and s.shape[-1] == 1:
            _check.batches(function, A.batch_shape, s.shape[:-1], f"A.values and {name}")
            return s
        raise TypeError(
            f"{function}: {rule}, got shape {tuple(s.shape)}; use scale_rows or scale_columns for a vector"
        )
    if isinstance(s, Real):  # NumPy's scalars too
        return float(s)
    raise TypeError(f"{function}: {rule}, got {type(s).__name__}")
