"""Parts of a pattern and their values."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.ops.core.gather import added_up, permuted, place, take


class Selection(NamedTuple):
    """Another pattern and the position of the value of each of its entries; None: the pattern itself."""

    pattern: SparsityPattern | None
    at: Tensor | None
    repeats: SparsityPattern | None = None  # if values repeat: the 0/1 matrix that distributes them


def selected(A: CSR, plan: Selection) -> CSR:
    if plan.pattern is None or plan.at is None:
        return A
    if plan.repeats is None:
        return CSR(take(A.values, plan.at), plan.pattern)
    return CSR(handed_out(A.values, plan.repeats), plan.pattern)


def handed_out(values: Tensor, places: SparsityPattern) -> Tensor:
    """Row i of `places` has the position of value i of the result, or no entry for a zero."""
    checks.dtype("A[...]", "A.values", values, or_complex=True)
    return added_up(values, places)


def places(P: SparsityPattern, at: np.ndarray) -> SparsityPattern:
    """The 0/1 matrix for `handed_out`; at = -1: a zero."""
    crow = np.concatenate(([0], np.cumsum(at >= 0)))
    return trusted(P, crow, at[at >= 0], (len(at), P.nnz))


def used_columns(P: SparsityPattern) -> SparsityPattern:
    """P, or P without its empty columns if most are empty: for results that do not depend on column indices,
    such as row sums, in O(nnz + rows)."""
    return P._planned(_plan_used_columns) if P.shape[1] > P.nnz + P.shape[0] else P


def _plan_used_columns(P: SparsityPattern) -> SparsityPattern:
    used, col = np.unique(as_numpy(P.col_indices), return_inverse=True)
    return trusted(P, as_numpy(P.crow_indices), col, (P.shape[0], len(used)))


def find(P: SparsityPattern, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Positions of the entries, -1 for missing ones: all binary searches in parallel."""
    crow, col = as_numpy(P.crow_indices), as_numpy(P.col_indices)
    low, high = crow[rows].astype(np.int64), crow[rows + 1].astype(np.int64)
    end = high.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        left = open_ & (col[np.where(open_, middle, 0)] < columns)
        low, high = np.where(left, middle + 1, low), np.where(open_ & ~left, middle, high)
    there = low < end
    there[there] = col[low[there]] == columns[there]
    return np.where(there, low, -1)


def onto(A: CSR, Q: SparsityPattern) -> CSR:
    """A's entries on the pattern Q, zeros where A has none; entries of A outside Q are dropped."""
    if A.pattern is Q:
        return A
    at, where = A.pattern._planned(_plan_onto, Q)
    return CSR(place(take(A.values, at), where, Q.nnz), Q)


def _plan_onto(P: SparsityPattern, Q: SparsityPattern) -> tuple[Tensor, Tensor]:
    arrays = [as_numpy(t) for t in (P.crow_indices, P.col_indices, Q.crow_indices, Q.col_indices)]
    if P.dtype != Q.dtype:
        arrays = [a.astype(np.int64, copy=False) for a in arrays]
    at, where = _analysis.common_positions(*arrays)
    return P._tensor(at), P._tensor(where)


def on_diagonal(P: SparsityPattern) -> Tensor:
    """For each entry, whether it is on the diagonal."""
    return P._planned(_plan_on_diagonal)[0]


def _plan_on_diagonal(P: SparsityPattern) -> tuple[Tensor]:
    return (P.row_indices == P.col_indices,)


class Sorted(NamedTuple):
    """A pattern, the order of its entries among the original ones, and the inverse; None: unchanged."""

    pattern: SparsityPattern
    forward: Tensor | None = None
    backward: Tensor | None = None


def sorted_by_row(like: SparsityPattern, rows: np.ndarray, columns: np.ndarray, shape: tuple) -> Sorted:
    """For distinct entries that are sorted by column within each row."""
    crow = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=shape[0]))))
    if len(rows) < 2 or (np.diff(rows) >= 0).all():
        return Sorted(trusted(like, crow, columns, shape))
    order = np.argsort(rows, kind="stable")
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return Sorted(trusted(like, crow, columns[order], shape), like._tensor(order), like._tensor(inverse))


def reordered(values: Tensor, plan: Sorted) -> Tensor:
    if plan.forward is None or plan.backward is None:
        return values
    return permuted(values, plan.forward, plan.backward)


def first_of_each(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The first index of each distinct position among sorted ones that may repeat."""
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
    return np.flatnonzero(new)


def trusted(like: SparsityPattern, crow: np.ndarray, col: np.ndarray, shape: tuple) -> SparsityPattern:
    """A valid pattern with the index type of `like`, unless that is too narrow."""
    wide = max(*shape, len(col)) > torch.iinfo(torch.int32).max
    dtype = torch.int64 if wide else like.dtype
    rows, columns = (int(s) for s in shape)
    return SparsityPattern._trusted(
        like._tensor(np.ascontiguousarray(crow)).to(dtype),
        like._tensor(np.ascontiguousarray(col)).to(dtype),
        (rows, columns),
    )
