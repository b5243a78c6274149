"""Checks of what incomplete factorizations are given."""

from numbers import Real

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
    if isinstance(shift, Tensor):
        checks.same_kind(function, "shift", shift, values)
        batch = values.shape[:-1]
        if not broadcasts_to(shift.shape, batch):
            raise ValueError(
                f"{function}: shift must broadcast to the batch axes {tuple(batch)} of A, got shape "
                f"{tuple(shift.shape)}"
            )
        if not torch.compiler.is_dynamo_compiling() and shift.is_cpu:
            given = plain_values(shift)
            if not (good := (given >= 0) & (given < float("inf"))).all():
                raise ValueError(
                    f"{function}: shift must be finite and not negative, got {float(given[~good][0])}"
                )
        return shift.expand(batch)
    if isinstance(shift, bool) or not isinstance(shift, Real):  # NumPy's scalars too
        raise TypeError(f"{function}: shift must be a number or a torch.Tensor, got {type(shift).__name__}")
    if not 0 <= shift < float("inf"):
        raise ValueError(f"{function}: shift must be finite and not negative, got {shift}")
    return torch.full(values.shape[:-1], float(shift), dtype=values.dtype, device=values.device)
