r"""Small submatrix systems of a sparse matrix, one per column of a pattern, for sparse approximate inverses.

For a symmetric K and each column j of a pattern S, with rows J_j,

    K[J_j, J_j] y_j = g_j,            g, y: values on S.

For the matrices Y, G on S, the derivatives are again such solves and sparse products:

    dY = solve(dG - (dK Y) on S),     Gbar = W = solve(Ybar),     Kbar = -W Y^T on the pattern of K.

Blocks are extracted, scaled to unit diagonal and factored by Cholesky, all blocks of one size together, a
bounded number at a time.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.ops.core.autograd import LinearSolve, dispatch
from learnsolve.ops.spgemm import spgemm
from learnsolve.ops.structure import transpose

_CHUNK = 2**20  # entries of blocks in memory at a time, and positions searched for at a time


class NotPositive(ValueError):
    """A block is not (numerically) positive definite."""

    def __init__(self, column: int):
        super().__init__(f"the block of column {column} is not positive definite")
        self.column = column


class Group(NamedTuple):
    """Columns with s entries each."""

    columns: Tensor  # (c,)
    entries: Tensor  # (c, s) positions in S
    blocks: Tensor  # (c, s, s) positions in K's values; nnz of K: no entry, a zero


def local_solve(K: CSR, G: CSR) -> CSR:
    """The values y on the pattern of G. Raises `NotPositive`. K is assumed to be symmetric; batch axes
    broadcast."""
    batch = torch.broadcast_shapes(K.batch_shape, G.batch_shape)
    values, g = (t.values.expand((*batch, t.nnz)) for t in (K, G))
    return CSR(_solve(values, g, K.pattern, G.pattern), G.pattern)


def _plan(K: SparsityPattern, S: SparsityPattern) -> tuple[Group, ...]:
    """4 s^2 bytes for a column with s entries."""
    n = S.shape[1]
    key = as_numpy(K.row_indices).astype(np.int64) * n + as_numpy(K.col_indices)
    key = np.append(key, np.iinfo(np.int64).max)
    narrow = np.int32 if K.nnz < np.iinfo(np.int32).max else np.int64
    starts, rows, places = (
        as_numpy(t).astype(np.int64) for t in (S.T.crow_indices, S.T.col_indices, S.transpose_permutation)
    )
    sizes = np.diff(starts)
    groups = []
    for s in np.unique(sizes[sizes > 0]):
        columns = np.flatnonzero(sizes == s)
        at = starts[columns, None] + np.arange(s)
        blocks = np.empty((len(columns), s, s), dtype=narrow)
        step = max(1, _CHUNK // s**2)
        for i in range(0, len(columns), step):
            J = rows[at[i : i + step]]
            wanted = J[:, :, None] * n + J[:, None, :]
            found = np.searchsorted(key, wanted)
            blocks[i : i + step] = np.where(key[found] == wanted, found, K.nnz)
        groups.append(Group(K._tensor(columns), K._tensor(places[at]), K._tensor(blocks)))
    return tuple(groups)


def _solve(values: Tensor, g: Tensor, K: SparsityPattern, S: SparsityPattern) -> Tensor:
    return dispatch(_LocalSolve, (values, g), K, S)


def _solved(values: Tensor, g: Tensor, K: SparsityPattern, S: SparsityPattern) -> Tensor:
    lead = g.shape[:-1]
    values = torch.cat((values, values.new_zeros((*lead, 1))), -1)
    y = torch.empty_like(g, memory_format=torch.contiguous_format)
    bad: list[int] = []
    for group in K._planned(_plan, S):
        s = group.entries.shape[1]
        step = max(1, _CHUNK // (s**2 * max(lead.numel(), 1)))
        for i in range(0, len(group.columns), step):
            entries, places = group.entries[i : i + step], group.blocks[i : i + step]
            B = values.index_select(-1, places.flatten()).unflatten(-1, places.shape)
            right = g.index_select(-1, entries.flatten()).unflatten(-1, entries.shape)
            found, good = _solve_blocks(B, right)
            if not bool(good.all()):
                bad.append(int(group.columns[i + (~good).nonzero()[:, -1].min()]))
            y.index_copy_(-1, entries.flatten(), found.flatten(-2))
    if bad:
        raise NotPositive(min(bad))
    return y


def _solve_blocks(B: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Solutions, and which blocks are positive definite: with a unit diagonal, a pivot is one minus the part
    explained by the other columns, and is at rounding level if the block is singular."""
    scale = B.diagonal(dim1=-2, dim2=-1).rsqrt()
    good = scale.isfinite().all(-1) & (scale > 0).all(-1)
    scale = torch.where(good.unsqueeze(-1), scale, 1)
    C, info = torch.linalg.cholesky_ex(scale.unsqueeze(-1) * B * scale.unsqueeze(-2))
    pivots = C.diagonal(dim1=-2, dim2=-1).square()
    least = 4 * B.shape[-1] * torch.finfo(B.dtype).eps
    good &= (info == 0) & (pivots > least).all(-1)
    y = torch.cholesky_solve((scale * g).unsqueeze(-1), C).squeeze(-1)
    return scale * y, good


class _LocalSolve(LinearSolve):
    forward = staticmethod(_solved)

    @staticmethod
    def times(values, y, K, S):
        return spgemm(CSR(values, K), CSR(y, S), mask=S).values

    @staticmethod
    def backward(ctx, g):
        values, y = ctx.saved_tensors
        K, S = ctx.constants
        W = _solve(values, g, K, S)
        k = None
        if ctx.needs_input_grad[0]:
            k = -spgemm(CSR(W, S), transpose(CSR(y, S)), mask=K).values
        return k, W, None, None

    @staticmethod
    def vmap(info, in_dims, values, g, K, S):
        values, g = (
            t.expand((info.batch_size, *t.shape)) if d is None else t.movedim(d, 0)
            for t, d in zip((values, g), in_dims[:2], strict=True)
        )
        return _solve(values, g, K, S), 0
