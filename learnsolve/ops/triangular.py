"""Lower and upper triangles and their solves, differentiable to any order.

T(v) is the triangle of the matrix with values v, or its transpose; x = T^-1 b and, for the cotangent g of x,

    y = T^-T g,    gradient for b: y,    for entry (i, j) of T: -y_i x_j,

zero for the entries that are not read. One operator computes both gradients (csrc/kernels/sptrsv.h). Products
with T, in the derivatives of these, are products with masked values.

Source: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation", arXiv
2212.05159, table 1.
"""

import re
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve import (
    _analysis,
    _library,  # noqa: F401  (registers torch.ops.learnsolve)
)
from learnsolve.arguments import Offset
from learnsolve.matrix import checks, device_analysis
from learnsolve.matrix.checks import AnyMatrix
from learnsolve.matrix.convert import conjugate
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops import complex_values
from learnsolve.ops.arithmetic import plain_values
from learnsolve.ops.autograd import LinearSolve, Operation, add, apply_vmap, dispatch, one_batch_axis
from learnsolve.ops.indexing import (
    Selection,
    SortedPattern,
    apply_selection,
    construct_pattern,
    reorder_values,
    sort_by_row,
)
from learnsolve.ops.products import _product, _values_gradient, sddmm_values


def tril(A: AnyMatrix, k: Offset = 0) -> CSR:
    """The entries (i, j) of A with j <= i + k, on a pattern that is the same in every call.

    Planned once, then a gather of values. The gradient is scattered back, with zeros elsewhere. Explicit
    zeros are kept. Returns A itself if all its entries are there.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    k : int, the last diagonal that is included, below the main one if negative

    Returns
    -------
    CSR

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.ops.tril(ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))).to_dense()
    tensor([[1., 0.],
            [3., 4.]])
    """
    return apply_selection(A, _selection(A.pattern, "lower", k))


def triu(A: AnyMatrix, k: Offset = 0) -> CSR:
    """The entries (i, j) of A with j >= i + k, on a pattern that is the same in every call. See `tril`.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    k : int, the first diagonal that is included

    Returns
    -------
    CSR

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.ops.triu(ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [3.0, 4.0]])), 1).to_dense()
    tensor([[0., 2.],
            [0., 0.]])
    """
    return apply_selection(A, _selection(A.pattern, "upper", k))


def triangle_pattern(P: SparsityPattern, side: str) -> SparsityPattern:
    """The pattern of `tril` or `triu`, side "lower" or "upper": one object for all callers, so that its plans
    are computed once. P itself if all its entries are there."""
    return _selection(P, side, 0).pattern or P


def _selection(P: SparsityPattern, side: str, k: int) -> Selection:
    # With k = 0 the plan is kept as long as P, regardless of plan_cache_bytes.
    return P._plan_once(_plan_triangle, side, k) if k else P._plan_once(_plan_triangle, side)


def _plan_triangle(P: SparsityPattern, side: str, k: int = 0) -> Selection:
    part = _analysis.triangle(to_numpy(P.crow_indices), to_numpy(P.col_indices), None, side == "upper", k)
    if part is None:
        return Selection(None, None)
    crow, col, at = part
    return Selection(construct_pattern(P, crow, col, P.shape), P._tensor(at.astype(crow.dtype, copy=False)))


# The real form of a complex matrix with real and imaginary parts interleaved: each entry a + i b becomes
# the block [[a, -b], [b, a]], so that triangles, bands and blocks are preserved. That of A^H is its
# transpose.


def interleave(values: Tensor, P: SparsityPattern) -> tuple[Tensor, SparsityPattern]:
    """Values (..., 4 nnz) and the pattern, (2 m, 2 n), of the real form; planned once, differentiable."""
    plan = P._plan_once(_plan)
    re, im = complex_values.parts(values).unbind(-1)
    upper, lower = torch.stack((re, -im), -1), torch.stack((im, re), -1)
    return reorder_values(torch.cat((upper.flatten(-2), lower.flatten(-2)), -1), plan), plan.pattern


def real_matrix(A: CSR) -> CSR:
    return CSR(*interleave(A.values, A.pattern))


def real_pattern(P: SparsityPattern) -> SparsityPattern:
    return P._plan_once(_plan).pattern


def _plan(P: SparsityPattern) -> SortedPattern:
    rows, columns = (2 * np.repeat(to_numpy(t).astype(np.int64), 2) for t in (P.row_indices, P.col_indices))
    columns[1::2] += 1
    return sort_by_row(
        P, np.concatenate((rows, rows + 1)), np.tile(columns, 2), (2 * P.shape[0], 2 * P.shape[1])
    )


_raw = torch.ops.learnsolve.csr_sptrsv.default
_raw_backward = torch.ops.learnsolve.csr_sptrsv_backward.default

# Mean number of entries and rows per level from which levels are distributed over threads, with a barrier
# each.
_LEVEL_WORK = 16384

# On a CUDA device: rows from which a bidiagonal system is scanned; entries of a row per thread; rows per
# level below which one block takes all of them. Not measured.
_SCANNED_ROWS = 16
_SHORT_ROW = 32
_NARROW_LEVELS = 64
# That block's shared memory: csrc/kernels/tuning.h.
_CHUNK_ROWS = 512
_CHUNK_ENTRIES = 2048


class Side(NamedTuple):
    """The part of a square matrix that forms the system."""

    lower: bool
    unit: bool
    transpose: bool

    @property
    def adjoint(self) -> "Side":
        return Side(self.lower, self.unit, not self.transpose)


class _Triangle(NamedTuple):
    """Arguments of the raw operators (csrc/ops/schema.cpp)."""

    tensors: tuple[Tensor, ...]  # ptr, idx, perm, blocks, order, levels
    upper: bool
    unit: bool


class _Rows(NamedTuple):
    """The entries by rows of the matrix, for the raw backward."""

    structure: tuple[Tensor, ...]


class _Schedule(NamedTuple):
    order: Tensor
    levels: Tensor


class _Mask(NamedTuple):
    read: Tensor | None  # whether each entry is read; None: all are


def _schedule(pattern: SparsityPattern, lower: bool) -> _Schedule:
    """Rows by level, if levels are wide: in reverse order for the transpose of the lower triangle and for the
    upper triangle itself."""
    ptr, idx = to_numpy(pattern.crow_indices), to_numpy(pattern.col_indices)
    order, levels = _analysis.level_schedule(ptr, idx, not lower)
    if device_analysis.here(pattern.crow_indices):
        # On the host: the level of a row depends on the levels of the rows before it.
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return _Schedule(pattern._tensor(np.append(order, place)), pattern._tensor(levels))
    if pattern.nnz + pattern.shape[0] < _LEVEL_WORK * (len(levels) - 1):
        order, levels = order[:0].copy(), levels[:0].copy()
    return _Schedule(pattern._tensor(order), pattern._tensor(levels))


def _solve_plan(pattern: SparsityPattern, lower: bool, unit: bool, transpose: bool) -> _Triangle:
    upper = lower == transpose
    crow, col, perm, _ = pattern._structure(transpose)
    ptr, idx, at = to_numpy(crow), to_numpy(col), to_numpy(perm) if len(perm) else None
    diagonal = (1 if upper else -1) if unit else 0
    part = _analysis.triangle(ptr, idx, at, upper, diagonal)
    if part is not None:
        ptr, idx, at = part
        crow, col, perm = (pattern._tensor(a) for a in (ptr, idx, at))
    if device_analysis.here(crow):
        if _uses_scan(ptr, idx, unit):
            scan = torch.zeros(1, dtype=torch.int64, device="cpu")
            return _Triangle((crow, col, perm, col[:0], col[:0], scan), upper, unit)
        order, bounds = pattern._plan_once(_schedule, lower)
        table, plan = _sweep(ptr, to_numpy(bounds), upper)
        blocks, on_host = pattern._tensor(table.astype(ptr.dtype)), torch.tensor(plan, device="cpu")
        return _Triangle((crow, col, perm, blocks, order, on_host), upper, unit)
    blocks = pattern._tensor(_analysis.triangle_blocks(ptr, idx, at))
    schedule = pattern._plan_once(_schedule, lower)
    return _Triangle((crow, col, perm, blocks, *schedule), upper, unit)


def _sweep(ptr: np.ndarray, bounds: np.ndarray, upper: bool) -> tuple[np.ndarray, tuple[int, int, int]]:
    """How a CUDA device goes through the levels (csrc/ops/triangular.cuh): the table of chunks; lanes of a
    row, levels and rows of a chunk."""
    n, levels, lanes = len(ptr) - 1, len(bounds) - 1, _lanes(ptr)
    if lanes > 1 or n >= _NARROW_LEVELS * levels:
        return bounds[:0], (lanes, levels, 0)
    rows = min(_CHUNK_ROWS, _CHUNK_ENTRIES // max(1, int(np.diff(ptr).max())))
    cuts = np.minimum(np.arange(0, n + rows, rows), n)
    pieces = np.union1d(n - bounds if upper else bounds, cuts)
    return np.append(np.searchsorted(pieces, cuts), pieces), (lanes, levels, rows)


def _uses_scan(ptr: np.ndarray, idx: np.ndarray, unit: bool) -> bool:
    """Whether a CUDA device scans this triangle: each row has exactly the entry next to its diagonal."""
    n = len(ptr) - 1
    if n < _SCANNED_ROWS or len(idx) != (1 if unit else 2) * n - 1:
        return False
    return bool((np.abs(np.repeat(np.arange(n), np.diff(ptr)) - idx) <= 1).all())


def _lanes(ptr: np.ndarray) -> int:
    """The number of lanes that solve a row on a CUDA device."""
    longest = int(np.diff(ptr).max(initial=0))
    return 1 if longest <= _SHORT_ROW else 8 if longest <= 16 * _SHORT_ROW else 32


def _rows(pattern: SparsityPattern, lower: bool, unit: bool) -> _Rows:
    ptr, idx, perm, blocks, *_ = _system(pattern, Side(lower, unit, False)).tensors
    if not device_analysis.here(ptr):
        return _Rows((ptr, idx, perm, blocks))
    whole = ptr is pattern.crow_indices
    rows = pattern.row_indices if whole else device_analysis.row_indices(ptr, len(idx))
    return _Rows((ptr, idx, perm, rows))


def _mask(pattern: SparsityPattern, lower: bool, unit: bool) -> _Mask:
    rows, columns = pattern.row_indices, pattern.col_indices
    read = columns <= rows if lower else columns >= rows
    if unit:
        read &= columns != rows
    return _Mask(None if bool(read.all()) else read)


def _system(pattern: SparsityPattern, side: Side) -> _Triangle:
    return pattern._plan_once(_solve_plan, side.lower, side.unit, side.transpose)


def _adjoint_system(pattern: SparsityPattern, side: Side) -> tuple:
    """Arguments of the raw backward: T^T, and the entries by rows of the matrix."""
    rows = pattern._plan_once(_rows, side.lower, side.unit)
    return (*_system(pattern, side.adjoint), rows.structure, side.transpose)


def _only_read(t: Tensor, pattern: SparsityPattern, side: Side) -> Tensor:
    """Entries `t` of the pattern, with zeros where the solve does not read."""
    read = pattern._plan_once(_mask, side.lower, side.unit).read
    return t if read is None else torch.where(read, t, 0)


def solve(values: Tensor, b: Tensor, pattern: SparsityPattern, side: Side) -> Tensor:
    """Solve T x = b, unchecked: merges any batch axes into the one axis of the kernels."""
    if values.is_complex() or b.is_complex():
        return _complex_solve(values, b, pattern, side)
    if values.dim() == 1 and b.dim() <= 3:
        return _solve(values, b, pattern, side)
    if b.dim() == 1:
        return solve(values, b.unsqueeze(-1), pattern, side).squeeze(-1)
    batch = torch.broadcast_shapes(values.shape[:-1], b.shape[:-2])
    v = one_batch_axis(values, batch, 1)
    B = b.expand(batch + b.shape[-2:]).reshape(batch.numel(), *b.shape[-2:])
    return _solve(v, B, pattern, side).reshape(batch + b.shape[-2:])


def _complex_solve(values: Tensor, b: Tensor, pattern: SparsityPattern, side: Side) -> Tensor:
    """T = D U with the diagonal D: U has a unit diagonal, so its interleaved real form is triangular."""
    if not values.is_complex():
        return complex_values.columns(lambda b: solve(values, b, pattern, side), b)
    if b.dim() == 1:
        return _complex_solve(values, b.unsqueeze(-1), pattern, side).squeeze(-1)
    b, inverse = b.to(values.dtype), None
    values, diagonal = _only_read(values, pattern, side._replace(unit=True)), values
    if not side.unit:
        inverse = _inverse(diagonal.index_select(-1, pattern.diagonal_positions)).unsqueeze(-1)
        ones = torch.ones(pattern.shape[1], 1, dtype=values.dtype, device=values.device)
        values = values * sddmm_values(inverse, ones, pattern)
        b = b if side.transpose else inverse * b
    # The transpose of the real form belongs to T^H: T^T x = b is T^H conj(x) = conj(b).
    b = conjugate(b) if side.transpose else b
    real, Q = interleave(values, pattern)
    x = complex_values.untall(solve(real, complex_values.tall(b), Q, side._replace(unit=True)))
    x = conjugate(x) if side.transpose else x
    return inverse * x if side.transpose and inverse is not None else x


def _inverse(d: Tensor) -> Tensor:
    inverse = d.reciprocal()
    if d.is_cpu and not torch.compiler.is_dynamo_compiling():
        plain = plain_values(d)
        wrong = plain.isfinite() & ~plain_values(inverse).isfinite()
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            raise RuntimeError(f"cannot divide by the diagonal: row {at[-1]} has {plain[at].item()}")
    return inverse


def _solve(v: Tensor, b: Tensor, pattern: SparsityPattern, side: Side) -> Tensor:
    """x for v (nnz) and b (n), (n, k) or (B, n, k), or for v (B, nnz) and b (B, n, k)."""
    return dispatch(_Solve, (v, b), pattern, side)


def _times(v: Tensor, x: Tensor, pattern: SparsityPattern, side: Side) -> Tensor:
    """T(v) x without a unit diagonal: the derivative of T x with respect to T's values."""
    return _product(_only_read(v, pattern, side), x, pattern, side.transpose)


def _outer(y: Tensor, x: Tensor, pattern: SparsityPattern, side: Side, like: Tensor) -> Tensor:
    """y_i x_j on the entries (i, j) of T, in the shape of the values `like`: the adjoint of `_times`."""
    return _only_read(_values_gradient(y, x, pattern, side.transpose, like), pattern, side)


def _gradients(v: Tensor, g: Tensor, x: Tensor, pattern: SparsityPattern, side: Side):
    """(-y_i x_j on the pattern, y) for y = T^-T g."""
    return dispatch(_Backward, (v, g, x), pattern, side)


def _separate_gradients(v: Tensor, g: Tensor, x: Tensor, pattern: SparsityPattern, side: Side):
    """The same with differentiable operations, for any batch axes of all three."""
    y = solve(v, g, pattern, side.adjoint)
    return -_outer(y, x, pattern, side, v), y


class _Solve(LinearSolve):
    times = staticmethod(_times)

    @staticmethod
    def forward(values, b, pattern, side):
        return _raw(*_system(pattern, side), values, b)

    @staticmethod
    def backward(ctx, g):
        values, x = ctx.saved_tensors
        need_values, need_b = ctx.needs_input_grad[:2]
        gv = gb = None
        pattern, side = ctx.constants
        if need_values:
            gv, gb = _gradients(values, g, x, pattern, side)
        elif need_b:
            gb = _solve(values, g, pattern, side.adjoint)
        return gv, gb if need_b else None, None, None

    @staticmethod
    def vmap(info, in_dims, values, b, pattern, side):
        v_dim, b_dim = in_dims[:2]
        if v_dim is None and values.dim() == 1:
            if b.dim() == 2:  # a batch of vectors: the columns of a matrix, at no copy if it lies last
                return _solve(values, b.movedim(b_dim, 1), pattern, side), 1
            if b.dim() == 3:
                return _solve(values, b.movedim(b_dim, 0), pattern, side), 0
        n = info.batch_size
        v = values.expand(n, *values.shape) if v_dim is None else values.movedim(v_dim, 0)
        B = b.expand(n, *b.shape) if b_dim is None else b.movedim(b_dim, 0)
        vector = B.dim() == 2
        B = B.unsqueeze(-1) if vector else B
        v = v if v.dim() == B.dim() - 1 else v.unsqueeze(1)
        x = solve(v, B, pattern, side)
        return x.squeeze(-1) if vector else x, 0


class _Backward(Operation):
    """Both gradients in one call. Its derivatives, for cotangents (hv, hy) and the matrix H with values hv on
    T: the cotangent of y is c = hy - H x, which goes through y = T^-T g as in any solve."""

    @staticmethod
    def forward(v, g, x, pattern, side):
        return _raw_backward(*_adjoint_system(pattern, side), v, g, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        v, _, x, ctx.pattern, ctx.side = inputs
        ctx.save_for_backward(v, x, output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, hv, hy):
        v, x, y = ctx.saved_tensors
        need_v, need_g, need_x = ctx.needs_input_grad[:3]
        pattern, side = ctx.pattern, ctx.side
        rv = rg = rx = None
        if need_x and hv is not None:
            rx = -_times(hv, y, pattern, side.adjoint)
        c = add(hy, None if hv is None else -_times(hv, x, pattern, side))
        if c is not None and need_v:
            rv, rg = _gradients(v, c, y, pattern, side.adjoint)
        elif c is not None and need_g:
            rg = _solve(v, c, pattern, side)
        return rv, rg if need_g else None, rx, None, None

    @staticmethod
    def jvp(ctx, tv, tg, tx, *_):
        v, x, y = ctx.saved_tensors
        pattern, side = ctx.pattern, ctx.side
        by_values = None if tv is None else -_times(tv, y, pattern, side.adjoint)
        c = add(by_values, tg)
        ty = torch.zeros_like(y) if c is None else _solve(v, c, pattern, side.adjoint)
        outer = add(
            None if c is None else _outer(ty, x, pattern, side, v),
            None if tx is None else _outer(y, tx, pattern, side, v),
        )
        return torch.zeros_like(v) if outer is None else -outer, ty

    @staticmethod
    def vmap(info, in_dims, v, g, x, pattern, side):
        return apply_vmap(lambda v, g, x: _separate_gradients(v, g, x, pattern, side), in_dims[:3], (v, g, x))


def sptrsv(
    L: CSR, b: Tensor, *, lower: bool = True, unit_diagonal: bool = False, transpose: bool = False
) -> Tensor:
    r"""Solve a sparse triangular system, :math:`L x = b` or :math:`L^T x = b`.

    .. math:: x_i = \Bigl(b_i - \sum_{j<i} l_{ij} x_j\Bigr) / l_{ii}

    Parameters
    ----------
    L : CSR, shape (n, n), float32 or float64, or complex. Its values may have batch axes, (..., nnz). Only
        one triangle is read. The entries of the other are ignored, even NaN
    b : Tensor, shape (n,) or (..., n, k), of L's precision and device
    lower : use the lower triangle, otherwise the upper
    unit_diagonal : assume a unit diagonal. Stored diagonal entries are not read
    transpose : solve with the transpose of that triangle, which is not formed

    Returns
    -------
    Tensor, shape (..., n) for a vector, (..., n, k) for a matrix. Batch axes broadcast.

    Raises
    ------
    ValueError
        if a row has no diagonal entry or, on the CPU, a zero diagonal entry (or one so small that its
        reciprocal overflows). The message names the row. Or if shapes, dtypes or devices do not match.

    Notes
    -----
    Gradient: :math:`\bar b = L^{-T} \bar x` and :math:`\bar L = -\bar b x^T` on the entries that are read,
    exactly zero elsewhere: a solve and a pass over the values. Any order, forward mode, vmap,
    `torch.compile`. Cost: 2 nnz k flops. Bitwise identical on every run and for every number of threads.
    docs/operations.md describes the schedules on the CPU and on CUDA devices, where a row whose reciprocal is
    not finite becomes NaN instead of an error.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> L = ls.CSR.from_dense(torch.tensor([[2.0, 0.0], [1.0, 4.0]]))
    >>> ls.ops.sptrsv(L, torch.tensor([2.0, 9.0]))
    tensor([1., 2.])
    """
    checks.matrix("sptrsv", "L", L)
    values, pattern = L.values, L.pattern
    checks.dtype("sptrsv", "L.values", values, or_complex=True)
    checks.same_kind("sptrsv", "b", b, values, or_complex=True)
    checks.square("sptrsv", "L", pattern.shape)
    checks.rows("sptrsv", "b", b, "L", pattern.shape)
    checks.batches("sptrsv", values.shape[:-1], b.shape[:-2], "L.values and b")
    if not unit_diagonal and pattern._missing_diagonal >= 0:
        raise ValueError(
            f"sptrsv: L must have an entry on its diagonal in every row, row {pattern._missing_diagonal} has "
            "none. Add it, or pass unit_diagonal=True"
        )
    side = Side(lower, unit_diagonal, transpose)
    if torch.compiler.is_dynamo_compiling():
        return solve(values, b, pattern, side)
    try:
        return solve(values, b, pattern, side)
    except RuntimeError as error:
        found = re.search(r"cannot divide by the diagonal: row (\d+) has (\S+)", str(error))
        if found is None:
            raise
        row, value = int(found[1]), found[2]
        at = f"row {row}{_which_matrix(values, pattern, row)}"
        if complex(value) == 0:
            raise ValueError(
                f"sptrsv: L must not have zeros on its diagonal, {at} has {value}. Shift the diagonal, or "
                "pass unit_diagonal=True"
            ) from None
        raise ValueError(
            f"sptrsv: L must have a diagonal whose reciprocal does not overflow, {at} has {value}. Scale L, "
            "or pass unit_diagonal=True"
        ) from None


def _which_matrix(values: Tensor, pattern: SparsityPattern, row: int) -> str:
    """The first matrix of a batch with an invalid diagonal entry in this row, for the message."""
    plain = plain_values(values)
    if values.dim() == 1 or plain.shape != values.shape:  # one matrix, or a torch.func transformation
        return ""
    d = plain[..., int(pattern.diagonal_positions[row])].flatten()
    found = (d.isfinite() & ~d.reciprocal().isfinite()).nonzero()
    return (
        "" if len(found) == 0 else f" of matrix {int(found[0])} of the batch (counted through all its axes)"
    )
