"""Complete factors of a permuted matrix: their patterns, the values that they are computed from, and the
error messages if they do not exist. Used by `cholesky`, `ldlt`, `lu`, `logdet`, `slogdet` and
`selected_inverse`."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.ops.core import incomplete
from learnsolve.ops.core.autograd import dispatch, tracked
from learnsolve.ops.core.gather import permuted, place, take
from learnsolve.ops.core.selection import find, on_diagonal, trusted
from learnsolve.ops.triangle import triangle_of
from learnsolve.ordering import minimum_degree

ORDERINGS = ("minimum_degree", "natural")


class Fill(NamedTuple):
    """The fill of P A P^T, whose row i is row permutation[i] of A."""

    pattern: SparsityPattern  # of L, or of L and U
    at: Tensor  # the positions of A's values that are read, in the lower triangle if it holds them all
    where: Tensor
    permutation: Tensor


class Factored(NamedTuple):
    """values: of L and, for LU, of U after them, (size) or (B, size) for any batch axes."""

    values: Tensor
    fill: Fill
    kind: str
    batch: torch.Size

    def factors(self) -> list[CSR]:
        P, f = self.fill.pattern, self.values
        sides = ("lower",) if _is_cholesky(self.kind) else ("lower", "upper")
        parts = [triangle_of(P, side) for side in sides]
        values = f.reshape(*self.batch, f.shape[-1]).split([part.nnz for part in parts], -1)
        return [CSR(v, part) for v, part in zip(values, parts, strict=True)]

    def pivots(self) -> Tensor:
        """The diagonal of L of L L^T, or of U."""
        return self.values.index_select(-1, self._places)

    def inverse(self) -> Tensor:
        """The entries of A^-T on the pattern, permuted; those off the diagonal twice for L L^T. This is the
        gradient of log |det A|, by the adjoint of the factorization, Takahashi's recurrence."""
        if not torch.compiler.is_dynamo_compiling() and not tracked(self.values):
            nothing = self.values[..., :0]  # in place of the gradient with respect to the factors
            return incomplete._Adjoint.forward(self.values, nothing, self.fill.pattern, self.kind)
        weight = 2.0 if _is_cholesky(self.kind) else 1.0
        g = place(weight / self.pivots(), self._places, self.values.shape[-1])
        return dispatch(incomplete._Adjoint, (self.values, g), self.fill.pattern, self.kind)

    @property
    def _places(self) -> Tensor:
        return self.fill.pattern._planned(_plan_pivots, self.kind.rpartition("/")[2])[0]


def factored(A: CSR, kind: str, ordering: str | Tensor, *, symmetric: bool = False) -> Factored:
    """`kind` as in core/incomplete.py, such as "cholesky/complete". `symmetric`: for L U of the matrix whose
    half is A's lower triangle."""
    function = kind.partition("/")[0]
    checks.matrix(function, "A", A)
    checks.dtype(function, "A.values", A.values)
    checks.square(function, "A", A.shape)
    lower = symmetric or _is_cholesky(kind)
    fill = complete_fill(function, A.pattern, ordering, lower, not _is_cholesky(kind))
    batch, P = A.batch_shape, fill.pattern
    values = A.values if len(batch) < 2 else A.values.reshape(batch.numel(), A.nnz)
    a = place(take(values, fill.at), fill.where, P.nnz)
    if symmetric:
        a = torch.where(on_diagonal(P), a, a + transposed(a, P))
    try:
        f = incomplete.factor(a, P, kind)
    except incomplete.Breakdown as breakdown:
        raise ValueError(_message(function, fill, _is_cholesky(kind), *breakdown.args)) from None
    return Factored(f, fill, kind, batch)


def transposed(a: Tensor, P: SparsityPattern) -> Tensor:
    """The values of the transpose on a symmetric pattern."""
    return permuted(a, P.transpose_permutation, P._inverse_permutation)


def _is_cholesky(kind: str) -> bool:
    return kind.endswith("/complete")


def _plan_pivots(P: SparsityPattern, factors: str) -> tuple[Tensor]:
    lower = triangle_of(P, "lower")
    if factors == "complete":
        return (lower.diagonal_positions.long(),)
    return (triangle_of(P, "upper").diagonal_positions.long() + lower.nnz,)


_REMEDIES = {
    "cholesky": "take ops.ldlt or ops.lu",
    "logdet": "take ops.slogdet",
    "selected_inverse": 'pass kind="lu"',
}


def _message(function: str, fill: Fill, positive: bool, row: int, pivot: float, matrix: int | None) -> str:
    batch = "" if matrix is None else f" of matrix {matrix} of the batch (counted through all its axes)"
    rule, remedy = "nonzero", "pass another ordering, or solve with spsolve, which exchanges rows"
    if positive:
        rule = "positive"
        remedy = f"A is not positive definite: {_REMEDIES[function]}, or add to its diagonal"
    if not math.isfinite(pivot):
        remedy = "values of A are not finite, or the factors leave the range of its dtype: scale A"
    return (
        f"{function}: every pivot must be {rule} and finite, that of row {int(fill.permutation[row])}{batch}"
        f", number {row} in the order of elimination, is {pivot:.6g}; {remedy}"
    )


class _TooMany(ValueError):
    pass


def complete_fill(function: str, P: SparsityPattern, ordering: Any, lower: bool, both: bool) -> Fill:
    """lower: only this triangle of A is read. both: the fill of L and U, otherwise only of L."""
    try:
        if isinstance(ordering, Tensor):
            return _fill_in_order(function, P, ordering, lower, both)
        if ordering not in ORDERINGS:
            rule = f"one of {ORDERINGS} or a permutation, a Tensor of shape (n,)"
            raise ValueError(f"{function}: ordering must be {rule}, got {ordering!r}")
        return P._planned(_plan_fill, ordering, lower, both)
    except _TooMany as too_many:
        raise ValueError(f"{function}: {too_many}") from None


@makes_plain_tensors
def _fill_in_order(function: str, P: SparsityPattern, ordering: Tensor, lower: bool, both: bool) -> Fill:
    """The fill for the last ordering is cached."""
    key = f"complete fill {lower} {both}"
    last: Fill | None = P._last(key)
    if last is not None and torch.equal(last.permutation, ordering.to(last.permutation)):
        return last
    n, order = P.shape[0], as_numpy(ordering)
    if (
        order.dtype.kind not in "iu"
        or order.shape != (n,)
        or not np.array_equal(np.sort(order), np.arange(n))
    ):
        raise ValueError(
            f"{function}: ordering must hold each of 0, ..., {n - 1} once, got {ordering.dtype} of shape "
            f"{tuple(ordering.shape)}{' that does not' if order.shape == (n,) else ''}; "
            "learnsolve.ordering has orders"
        )
    fill = _make_fill(P, order.astype(as_numpy(P.crow_indices).dtype), lower, both)
    P._keep_last(key, fill)
    return fill


def _plan_fill(P: SparsityPattern, ordering: str, lower: bool, both: bool) -> Fill:
    crow = as_numpy(P.crow_indices)
    natural = ordering == "natural"
    order = np.arange(P.shape[0], dtype=crow.dtype) if natural else as_numpy(minimum_degree(P))
    return _make_fill(P, order, lower, both)


def _make_fill(P: SparsityPattern, order: np.ndarray, lower: bool, both: bool) -> Fill:
    n = P.shape[0]
    part = triangle_of(P, "lower") if lower else P
    arrays = as_numpy(part.crow_indices), as_numpy(part.col_indices)
    most = incomplete.PLAN_LIMIT // (32 if both else 16)
    entries, crow, col = _analysis.complete_fill(*arrays, order, most)
    if entries > most:
        raise _TooMany(
            f"L would have {entries} entries, more than the {most} that "
            "learnsolve.ops.core.incomplete.PLAN_LIMIT allows; pass another ordering, take an incomplete "
            "factor and an iterative solver, or raise the limit"
        )
    Q = trusted(P, crow, col, P.shape)
    if both:
        T = Q.T
        up, above = as_numpy(T.crow_indices).astype(np.int64), as_numpy(T.col_indices)
        rows, columns = (as_numpy(t).astype(np.int64) for t in (Q.row_indices, T.row_indices))
        joined = np.empty(2 * entries - n, above.dtype)
        joined[np.arange(entries) + (up[:-1] - np.arange(n))[rows]] = col  # the diagonal is set again below
        joined[np.arange(entries) + (crow[1:] - np.arange(1, n + 1))[columns]] = above
        Q = trusted(P, crow + up - np.arange(n + 1), joined, P.shape)
    rows, columns = (as_numpy(t).astype(np.int64) for t in (P.row_indices, P.col_indices))
    at = np.flatnonzero(rows >= columns) if lower else np.arange(P.nnz)
    inverse = np.empty(n, np.int64)
    inverse[order] = np.arange(n)
    i, j = inverse[rows[at]], inverse[columns[at]]
    if lower:
        i, j = np.maximum(i, j), np.minimum(i, j)
    return Fill(Q, P._tensor(at), P._tensor(find(Q, i, j)), P._tensor(order))


def through_host(operation: Callable, A: CSR, **keywords: Any) -> Any:
    """For a matrix on a device: compute the result on the host and move it back."""
    out = operation(A.to("cpu"), **keywords)
    return type(out)(*(t.to(A.device) for t in out)) if isinstance(out, tuple) else out.to(A.device)
