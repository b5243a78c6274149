"""The values of a matrix on a given pattern that contains its own: `CSR.from_*` with `pattern=`, so that a
set of matrices shares one pattern and its plans."""

from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks, interning
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.add import UnionPlan, added, union_plan

_REMEDY = "; use a pattern that has it, such as that of a sum of the matrices"


def check_pattern(function: str, pattern: Any, shape: tuple[int, int]) -> None:
    if not isinstance(pattern, SparsityPattern):
        raise TypeError(
            f"{function}: pattern must be a SparsityPattern, got {type(pattern).__name__}; that of a CSR is "
            "A.pattern"
        )
    if pattern.shape != shape:
        raise ValueError(f"{function}: the pattern must have the shape {shape}, got {pattern.shape}")


def on_pattern(function: str, A: CSR, pattern: SparsityPattern) -> CSR:
    """A on `pattern`, zeros where A has no entry: the sum with a matrix of zeros."""
    check_pattern(function, pattern, A.shape)
    if A.device != pattern.device:
        raise TypeError(
            f"{function}: the values are on {A.device}, the pattern on {pattern.device}; use pattern.to(...)"
        )
    if interning.equal(A.pattern, pattern):
        return CSR(A.values, pattern)
    checks.dtype(function, "the values", A.values, or_complex=True)
    plan = union_plan(pattern, A.pattern)
    if plan.lies not in ("A", "both"):
        raise _outside(function, A, plan)
    zeros = torch.zeros(pattern.nnz, dtype=A.dtype, device=A.device)
    return added(function, CSR(zeros, pattern), A, 1, 1)


def _outside(function: str, A: CSR, plan: UnionPlan) -> ValueError:
    given, own = plan.places()
    at = int(own[given < 0][0])
    row, column = int(A.pattern.row_indices[at]), int(A.col_indices[at])
    return _error(function, row, column, A.values[..., at], " (an explicit zero is one)")


def _error(function: str, row: int, column: int, value: Tensor, more: str = "") -> ValueError:
    number = f", {value.item():.6g}" if value.dim() == 0 else ""
    return ValueError(
        f"{function}: every entry{more} must lie on the pattern, but that of row {row}, column {column}"
        f"{number}, does not{_REMEDY}, or drop the entry first"
    )


def dense_on_pattern(D: Tensor, pattern: SparsityPattern) -> CSR:
    """D's values at the entries of the pattern, including zeros, all differentiable."""
    function = "CSR.from_dense"
    check_pattern(function, pattern, (D.shape[0], D.shape[1]))
    if D.device != pattern.device:
        raise TypeError(
            f"{function}: D is on {D.device}, the pattern on {pattern.device}; use pattern.to(...)"
        )
    rows, columns = pattern.row_indices.long(), pattern.col_indices.long()
    outside = D.detach() != 0
    outside[rows, columns] = False
    if bool(outside.any()):
        row, column = (int(i) for i in outside.nonzero()[0])
        raise _error(function, row, column, D[row, column].detach())
    return CSR(D[rows, columns], pattern)
