"""Argument checks of incomplete factorizations."""

from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.operands import broadcasts_to, plain_values


def check(function: str, A: CSR, on_breakdown: str) -> None:
    checks.matrix(function, "A", A)
    checks.dtype(function, "A.values", A.values)
    checks.one_of(function, "on_breakdown", on_breakdown, ("raise", "shift"))
    checks.square(function, "A", A.shape)


def check_pattern(function: str, A: CSR, pattern: SparsityPattern) -> None:
    if not isinstance(pattern, SparsityPattern):
        raise TypeError(
            f"{function}: pattern must be a SparsityPattern, got {type(pattern).__name__}; of a CSR take its "
            ".pattern"
        )
    if pattern.shape != A.shape:
        raise ValueError(f"{function}: the pattern must have A's shape {A.shape}, got {pattern.shape}")
    if pattern.device != A.device:
        raise TypeError(
            f"{function}: the pattern is on {pattern.device}, A on {A.device}; move one with .to()"
        )


def missing_diagonal(function: str, pattern: SparsityPattern, name: str) -> None:
    row = pattern._missing_diagonal
    if row >= 0:
        zero = " (an explicit zero will do)" if name == "A" else ""
        raise ValueError(
            f"{function}: {name} must have an entry on its diagonal in every row, row {row} has none; "
            f"permute the rows, or add the entry{zero}"
        )


def as_shift(function: str, shift: float | Tensor, values: Tensor) -> Tensor:
    """`shift` for each matrix of the batch."""
    return _for_each(function, "shift", shift, values, lambda t: t < float("inf"), "finite and not negative")


def as_omega(function: str, omega: float | Tensor, values: Tensor) -> Tensor:
    """`omega` for each matrix of the batch."""
    return _for_each(function, "omega", omega, values, lambda t: t <= 1, "between 0 and 1")


def _for_each(
    function: str, name: str, given: float | Tensor, values: Tensor, at_most: Callable[[Any], Any], rule: str
) -> Tensor:
    """A nonnegative scalar per matrix of the batch."""
    if isinstance(given, Tensor):
        checks.same_kind(function, name, given, values)
        batch = values.shape[:-1]
        if not broadcasts_to(given.shape, batch):
            raise ValueError(
                f"{function}: {name} must broadcast to the batch axes {tuple(batch)} of A, got shape "
                f"{tuple(given.shape)}"
            )
        if not torch.compiler.is_dynamo_compiling() and given.is_cpu:
            plain = plain_values(given)
            if not (good := (plain >= 0) & at_most(plain)).all():
                raise ValueError(f"{function}: {name} must be {rule}, got {float(plain[~good][0])}")
        return given.expand(batch)
    if isinstance(given, bool) or not isinstance(given, Real):  # includes NumPy scalars
        raise TypeError(f"{function}: {name} must be a number or a torch.Tensor, got {type(given).__name__}")
    if not (given >= 0 and at_most(given)):
        raise ValueError(f"{function}: {name} must be {rule}, got {given}")
    return torch.full(values.shape[:-1], float(given), dtype=values.dtype, device=values.device)
