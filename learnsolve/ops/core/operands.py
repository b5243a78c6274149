"""Checks that operands match: two matrices, or a scalar and a matrix."""

from numbers import Complex, Real
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR


def fit(function: str, A: CSR, B: CSR, first: str = "A", second: str = "B") -> None:
    """The matrices must have the same precision and device, and batch axes that broadcast; real or
    complex."""
    checks.dtype(function, f"{first}.values", A.values, or_complex=True)
    checks.same_kind(function, f"{second}.values", B.values, A.values, or_complex=True)
    checks.batches(function, A.batch_shape, B.batch_shape, f"{first}.values and {second}.values")


def one_shape(function: str, A: CSR, B: CSR, names: str = "A and B") -> None:
    if A.shape != B.shape:
        raise ValueError(f"{function}: {names} must have one shape, got {A.shape} and {B.shape}")


def in_open_interval(
    function: str,
    name: str,
    value: Any,
    values: Tensor,
    high: float,
    rule: str,
    remedies: tuple[str, str] = ("", ""),
) -> float | Tensor:
    """`value`: a float between 0 and `high`, or a tensor of them, one per matrix of the batch of `values`;
    `remedies`: for a float, for a tensor."""
    if not isinstance(value, Tensor):
        value = checks.number(function, name, value)
        inside(function, name, value, high, rule, remedies)
        return value
    checks.same_kind(function, name, value, values)
    batch = values.shape[:-1]
    if not broadcasts_to(value.shape, batch):
        raise ValueError(
            f"{function}: {name} must be one number, or one for each matrix of the batch {tuple(batch)}, got "
            f"shape {tuple(value.shape)}"
        )
    inside(function, name, value, high, rule, remedies)
    return value


def inside(
    function: str,
    name: str,
    value: float | Tensor,
    high: float,
    rule: str,
    remedies: tuple[str, str] = ("", ""),
) -> None:
    """0 < value < high, for a float or all elements of a tensor (checked only on the CPU)."""
    if not isinstance(value, Tensor):
        if not 0 < value < high:
            raise ValueError(f"{function}: {name} must {rule}, got {value}{remedies[0]}")
    elif value.is_cpu and not torch.compiler.is_dynamo_compiling():
        plain = plain_values(value)
        if not (good := (plain > 0) & (plain < high)).all():
            raise ValueError(f"{function}: {name} must {rule}, got {float(plain[~good][0])}{remedies[1]}")


def broadcasts_to(shape: torch.Size, batch: torch.Size) -> bool:
    ends = zip(reversed(shape), reversed(batch), strict=False)
    return len(shape) <= len(batch) and all(s in (1, b) for s, b in ends)


def plain_values(t: Tensor) -> Tensor:
    """The values of a tensor under `torch.func` transformations, without a graph."""
    while is_functorch_wrapped_tensor(t):
        t = get_unwrapped(t)
    return t.detach()


def factor(function: str, name: str, A: CSR, s: Any) -> Any:
    """A scalar as a float or tensor that broadcasts with (..., nnz)."""
    rule = f"{name} must be a number or a tensor with one element (or one per matrix, shape (..., 1))"
    if isinstance(s, Tensor):
        # A scalar takes the matrix's precision, as with torch tensors; an array would change it.
        if s.dim() > 1 and s.dtype != A.dtype and not checks.one_precision(s.dtype, A.dtype):
            raise TypeError(
                f"{function}: {name} has dtype {s.dtype}, the matrix {A.dtype}; convert one with .to()"
            )
        if s.numel() == 1 and s.dim() <= 1:
            return s.reshape(())
        if s.dim() > 1 and s.shape[-1] == 1:
            checks.batches(function, A.batch_shape, s.shape[:-1], f"A.values and {name}")
            return s
        raise TypeError(
            f"{function}: {rule}, got shape {tuple(s.shape)}; use scale_rows or scale_columns for a vector"
        )
    if isinstance(s, Real):  # includes NumPy scalars
        return float(s)
    if isinstance(s, Complex):
        return complex(s)
    raise TypeError(f"{function}: {rule}, got {type(s).__name__}")
