"""Elementwise arithmetic between matrices and with scalars."""

from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.inputs import sparse_matrix
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.add import added, union_plan
from learnsolve.ops.core.dots import over, times
from learnsolve.ops.core.gather import take
from learnsolve.ops.core.operands import factor, fit, one_shape


def add_values(function: str, A: CSR, B: Any, negate: bool = False) -> CSR:
    """A + B or A - B; B may be a sparse matrix of another library."""
    B = sparse_matrix(B)
    checks.matrix(
        *(function, "B", B),
        ": adding a number to a sparse matrix would fill it; add to A.values to shift the stored entries",
    )
    if A.pattern is B.pattern:
        fit(function, A, B)
        return A.with_values(A.values - B.values if negate else A.values + B.values)
    return added(function, A, B, 1, -1 if negate else 1)


def multiply(function: str, A: CSR, B: Any) -> CSR:
    """A * B: entry by entry on the intersection of the patterns for two matrices; otherwise by a scalar."""
    if not isinstance(B, CSR):
        return A.with_values(times(A.values, factor(function, "s", A, B)))
    P, Q = A.pattern, B.pattern
    one_shape(function, A, B)
    fit(function, A, B)
    if P is Q:
        return A.with_values(A.values * B.values)
    plan = P._planned(_plan_intersection, Q)
    a = A.values if plan.in_a is None else take(A.values, plan.in_a)
    b = B.values if plan.in_b is None else take(B.values, plan.in_b)
    pattern = P if plan.in_a is None else Q if plan.in_b is None else plan.pattern
    return CSR(a * b, pattern)  # type: ignore[arg-type]


class _IntersectionPlan(NamedTuple):
    in_a: Tensor | None  # positions of the common entries; None if all are common
    in_b: Tensor | None
    pattern: SparsityPattern | None  # if it is neither A's nor B's


def _plan_intersection(P: SparsityPattern, Q: SparsityPattern) -> _IntersectionPlan:
    plan = union_plan(P, Q)
    if plan.lies == "both":
        return _IntersectionPlan(None, None, None)
    places = plan.places()
    at_a, at_b = places[:, (places >= 0).all(0)].long()
    if len(at_a) == P.nnz or len(at_b) == Q.nnz:
        return _IntersectionPlan(
            None if len(at_a) == P.nnz else at_a.clone(), None if len(at_b) == Q.nnz else at_b.clone(), None
        )
    index = P.dtype if P.dtype == Q.dtype else torch.int64
    crow = torch.searchsorted(at_a, P.crow_indices.long())
    pattern = SparsityPattern._trusted(crow.to(index), P.col_indices[at_a].to(index), P.shape)
    return _IntersectionPlan(at_a, at_b, pattern)


def divide(A: CSR, s: Any) -> CSR:
    """A / s."""
    if isinstance(s, CSR):
        raise TypeError("A / s: s must be a scalar, got a CSR; divide A.values where entries are not zero")
    return A.with_values(over(A.values, factor("A / s", "s", A, s)))


def absolute(A: CSR) -> CSR:
    """|A|, entry by entry. The derivative at zero is zero."""
    return A.with_values(A.values.abs())


def power(A: CSR, exponent: Any) -> CSR:
    """A ** e, entry by entry, for a float e > 0, so that missing entries stay zero."""
    if not isinstance(exponent, Real) or isinstance(exponent, bool) or not float(exponent) > 0:
        raise ValueError(
            f"A ** exponent: exponent must be a positive number, got {exponent!r}, or what is not stored "
            "would not stay zero; use A.with_values(A.values ** exponent) for the stored ones"
        )
    return A.with_values(A.values ** float(exponent))
