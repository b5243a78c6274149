"""Products of two sparse matrices, and small systems of submatrices, differentiable to any order.

The product C = A B and its gradients are the derivatives of one trilinear form over its products f,

    Phi(a, b, g) = sum_f a[i(f)] b[j(f)] g[t(f)],       a, b: the values of A and B, g: a cotangent of C.

Source: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation", arXiv
2212.05159, table 1.
"""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis, _library
from learnsolve.matrix import checks, device_analysis
from learnsolve.matrix.cache import plain_tensors, readable
from learnsolve.matrix.checks import Matrix
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops import complex_values
from learnsolve.ops.arithmetic import matrix_like
from learnsolve.ops.autograd import (
    Derivative,
    Gradients,
    LinearSolve,
    broadcast,
    dispatch,
    gradients,
    gradients_of_both,
    separate_gradients,
)
from learnsolve.ops.structure import transpose

_raw_product = torch.ops.learnsolve.csr_spgemm.default
_raw_left = torch.ops.learnsolve.csr_spgemm_left.default
_raw_right = torch.ops.learnsolve.csr_spgemm_right.default
_raw_backward = torch.ops.learnsolve.csr_spgemm_backward.default

# The operands a, b, g of Phi.
LEFT, RIGHT, PRODUCT = 0, 1, 2

# Products and entries of one block of rows, as in `SparsityPattern.row_blocks`.
_BLOCK_WEIGHT = 8192
_MOST = {t: torch.iinfo(t).max for t in (torch.int32, torch.int64)}  # largest index
_MOST_FUSED = 2**27  # products of a pass that cannot be interrupted
_spgemm_plan_limit = 2**30


def swap_plan_limit(bytes: int) -> int:
    """Set the largest size of the plan of one product, and return the previous one."""
    global _spgemm_plan_limit
    before, _spgemm_plan_limit = _spgemm_plan_limit, bytes
    return before


class _Plan(NamedTuple):
    positions: Tensor | None  # of each product in C; None: too many to store
    blocks: Tensor
    incomplete: bool  # some products are outside C


class _ColumnPlan(NamedTuple):
    starts: Tensor | None
    blocks: Tensor


def _result(A: SparsityPattern, B: SparsityPattern) -> SparsityPattern:
    """The pattern of A B."""
    shape = (A.shape[0], B.shape[1])
    if device_analysis.here(A.crow_indices):
        # Can all positions of C, with a value for each, be numbered?
        return SparsityPattern._construct(*_symbolic(A, B, shape[0] * shape[1] < 2**62), shape)
    return SparsityPattern._construct(*_analyze_product(A, B, torch.get_num_threads()), shape)


def _product_plan(A: SparsityPattern, B: SparsityPattern, mask: SparsityPattern | None) -> _Plan:
    C, arrays = result_pattern(A, B, mask), _arrays(A, B)
    c_ptr, c_idx = to_numpy(C.crow_indices), to_numpy(C.col_indices)
    a_ptr, a_idx, b_ptr, _ = arrays
    products = _analysis.count_products(a_idx, b_ptr)
    positions, repeated, incomplete = None, None, False
    if max(products, C.nnz) <= min(_spgemm_plan_limit // 4, _MOST[torch.int32]):
        threads = torch.get_num_threads()
        found, repeated = _analysis.positions_of_products(
            *arrays, B.shape[1], c_ptr, c_idx, products, threads
        )
        positions, incomplete = A._tensor(found), mask is not None and bool((found < 0).any())
    blocks = _analysis.row_product_blocks(a_ptr, a_idx, b_ptr, c_ptr, repeated, _BLOCK_WEIGHT)
    return _Plan(positions, A._tensor(blocks), incomplete)


def _arrays(A: SparsityPattern, B: SparsityPattern) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    a_ptr, a_idx, b_ptr, b_idx = (to_numpy(t) for P in (A, B) for t in (P.crow_indices, P.col_indices))
    return a_ptr, a_idx, b_ptr, b_idx


def _analyze_product(A: SparsityPattern, B: SparsityPattern, threads: int) -> tuple[Tensor, Tensor]:
    made = _analysis.product_pattern(*_arrays(A, B), B.shape[1], _MOST[A.dtype], threads)
    if made is None:
        raise _too_many(A.dtype)
    return A._tensor(made[0]), A._tensor(made[1])


def _symbolic(A: SparsityPattern, B: SparsityPattern, numbered: bool) -> tuple[Tensor, Tensor]:
    """The arrays of A B: by sorting on the device, or on the host if there are too many positions to number,
    which is possible only with 2^31 rows or columns."""
    if not numbered:
        return _analyze_product(A, B, 1)
    first = device_analysis.first_products(A.col_indices, B.crow_indices)
    made = device_analysis.product_pattern(
        *(A.crow_indices, A.col_indices, B.crow_indices, B.col_indices, B.shape[1]), first, _MOST[A.dtype]
    )
    if made is None:
        raise _too_many(A.dtype)
    return made[0].to(A.dtype), made[1].to(A.dtype)


def _too_many(dtype: torch.dtype) -> ValueError:
    return ValueError(
        f"spgemm: the result has more entries than {dtype} can number. Convert A and B to int64 indices, "
        "CSR(A.values, A.pattern.to(dtype=torch.int64))"
    )


def _column_plan(
    A: SparsityPattern, B: SparsityPattern, mask: SparsityPattern | None, positioned: bool
) -> _ColumnPlan:
    """For the pass over the rows of B: where the products of each entry of A^T begin. `positioned`: for a
    plan with positions, which a plan made again under another limit may lack."""
    t_ptr, _, permutation, _ = A._structure(True)
    positions = A._plan_once(_product_plan, B, mask).positions
    b_ptr, perm = to_numpy(B.crow_indices), to_numpy(permutation)
    starts = None
    if positions is not None:
        starts = _analysis.product_starts(to_numpy(A.col_indices), b_ptr, perm)
        positions = to_numpy(positions)
    blocks = _analysis.column_product_blocks(to_numpy(t_ptr), perm, b_ptr, positions, starts, _BLOCK_WEIGHT)
    return _ColumnPlan(None if starts is None else A._tensor(starts), A._tensor(blocks))


def result_pattern(A: SparsityPattern, B: SparsityPattern, mask: SparsityPattern | None) -> SparsityPattern:
    """The pattern of A B, or `mask`."""
    return A._plan_once(_result, B) if mask is None else mask


def _row_arguments(A: SparsityPattern, B: SparsityPattern, mask: SparsityPattern | None) -> tuple:
    """The arguments before the values, for operators that traverse the rows of A."""
    C, plan, none = result_pattern(A, B, mask), A._plan_once(_product_plan, B, mask), A._none
    tensors = (
        *(A.crow_indices, A.col_indices, none),
        *(B.crow_indices, B.col_indices, C.crow_indices, C.col_indices),
        *(none if plan.positions is None else plan.positions, none, plan.blocks),
    )
    return tensors, plan.incomplete, B.shape[1]


def _column_arguments(A: SparsityPattern, B: SparsityPattern, mask: SparsityPattern | None) -> tuple:
    """The same for operators that traverse the columns of A."""
    C, plan = result_pattern(A, B, mask), A._plan_once(_product_plan, B, mask)
    columns, none = A._plan_once(_column_plan, B, mask, plan.positions is not None), A._none
    tensors = (
        *A._structure(True)[:3],
        *(B.crow_indices, B.col_indices, C.crow_indices, C.col_indices),
        *(none if t is None else t for t in (plan.positions, columns.starts)),
        columns.blocks,
    )
    return tensors, plan.incomplete


def _segment(
    A: SparsityPattern,
    B: SparsityPattern,
    mask: SparsityPattern | None,
    wanted: int,
    first: Tensor,
    stretch: tuple[int, int, int, int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums of the products of a stretch as a structure, like that of a matrix: one row for each entry of
    operand `wanted`."""
    C = result_pattern(A, B, mask)
    arrays = tuple(t for P in (A, B, C) for t in (P.crow_indices, P.col_indices))
    ptr, idx, perm = device_analysis.product_segments(arrays, first, wanted, stretch)
    return ptr, idx, perm, device_analysis.row_schedule(ptr, len(idx))


def _segments(A: SparsityPattern, B: SparsityPattern, mask: SparsityPattern | None, wanted: int) -> tuple:
    """The plan of a derivative on a CUDA device: all its products as one structure. None above the limit."""
    first = device_analysis.first_products(A.col_indices, B.crow_indices)
    products = int(first[-1])
    most = min(_spgemm_plan_limit // (2 * A.dtype.itemsize), _MOST[A.dtype], device_analysis.MOST_SORTED)
    return (_segment(A, B, mask, wanted, first, (0, A.nnz, 0, products)),) if products <= most else ()


def _iterate_segments(
    A: SparsityPattern, B: SparsityPattern, mask: SparsityPattern | None, wanted: int
) -> Iterator[tuple]:
    """The same in stretches, each made when it is needed."""
    with plain_tensors():
        first = device_analysis.first_products(A.col_indices, B.crow_indices)
        stretches = device_analysis.stretches(first)
    for stretch in stretches:
        with plain_tensors():
            segment = _segment(A, B, mask, wanted, first, stretch)
        yield segment


def _multiply_on_device(wanted: int, u: Tensor, v: Tensor, shared: bool, *patterns: Any) -> Tensor:
    A, B, mask = patterns
    C = result_pattern(A, B, mask)
    # For the numbers of their entries alone: no transpose.
    known = (A.crow_indices, A.col_indices, A._none)
    known += (B.crow_indices, B.col_indices, C.crow_indices, C.col_indices)
    total: Any = None
    for segment in A._plan_once(_segments, B, mask, wanted) or _iterate_segments(A, B, mask, wanted):
        plan = (*known, *segment)
        if wanted == PRODUCT:
            part = _raw_product(plan, False, B.shape[1], u, v, shared)
        elif wanted == LEFT:
            part = _raw_left(plan, False, B.shape[1], v, u, shared)
        else:
            part = _raw_right(plan, False, u, v, shared)
        total = part if total is None else total + part
    return total


def _fuse_product(A: SparsityPattern, B: SparsityPattern, a: Tensor, b: Tensor) -> Tensor | None:
    """The values of A B, whose pattern is cached, in one pass over the products without a plan. None if this
    is not possible: the pattern is known, values have a batch axis or cannot be read, or arrays with room for
    each product would be too large."""
    if torch.compiler.is_dynamo_compiling() or A._has_plan(_result, B):
        return None
    if a.dim() > 1 or b.dim() > 1 or not (readable(a) and readable(b)):
        return None
    for P in (A, B):
        P._check_current()
    arrays, shape = _arrays(A, B), (A.shape[0], B.shape[1])
    products = _analysis.count_products(arrays[1], arrays[2])
    if products > min(_MOST_FUSED, 16 * (A.nnz + B.nnz), _MOST[A.dtype]):
        return None
    a_values, b_values = to_numpy(a), to_numpy(b)
    c_ptr, c_idx = np.empty(len(arrays[0]), arrays[0].dtype), np.empty(products, arrays[1].dtype)
    c = np.empty(products, a_values.dtype)  # memory that is never written costs nothing
    if not _library.spgemm_fused(
        *A.shape, B.shape[1], products, *arrays, a_values, b_values, c_ptr, c_idx, c
    ):
        return None
    for t in (c_idx, c):
        t.resize(int(c_ptr[-1]), refcheck=False)  # in place
    with plain_tensors():
        C = SparsityPattern._construct(torch.from_numpy(c_ptr), torch.from_numpy(c_idx), shape)
    A._keep_plan(C, _result, B)
    return torch.from_numpy(c)


def contraction(wanted: int, u: Tensor, v: Tensor, *patterns: object) -> Tensor:
    """The derivative of Phi with respect to operand `wanted`, unchecked: merges batch axes into the one of
    the kernels. `patterns`: of A and of B, and the mask or None."""
    if complex_values.either(u, v):
        return complex_values.bilinear(lambda u, v: contraction(wanted, u, v, *patterns), u, v, (1, 1))
    if u.dim() == 1 and v.dim() == 1:
        return dispatch(_Contraction, (u, v), wanted, False, *patterns)
    return broadcast(_Contraction, wanted, u, v, *patterns)


class _Contraction(Derivative):
    @staticmethod
    def axes(role, A, B, mask):
        return 1

    @staticmethod
    def forward(u, v, wanted, shared, A, B, mask):
        if device_analysis.here(A.crow_indices):
            return _multiply_on_device(wanted, u, v, shared, A, B, mask)
        if wanted == PRODUCT:
            if mask is None and (values := _fuse_product(A, B, u, v)) is not None:
                return values
            return _raw_product(*_row_arguments(A, B, mask), u, v, shared)
        if wanted == LEFT:
            b, g = u, v
            return _raw_left(*_row_arguments(A, B, mask), g, b, shared)
        return _raw_right(*_column_arguments(A, B, mask), u, v, shared)

    @staticmethod
    def backward(ctx, h):
        wanted, _, *patterns = ctx.constants
        if wanted == PRODUCT and all(ctx.needs_input_grad[:2]):
            both = dispatch(_Gradients, (*ctx.saved_tensors, h), wanted, *patterns)
            return *both, None, None, None, None, None
        return gradients(_Contraction, ctx, h)


class _Gradients(Gradients):
    """dPhi/da and dPhi/db in one pass, in the shapes of a and b."""

    derivative = _Contraction

    @staticmethod
    def forward(a, b, g, role, A, B, mask):
        summed = g.dim() == 1 and (a.dim() == 2 or b.dim() == 2)  # the product was, over its batch
        if summed or device_analysis.here(A.crow_indices):
            return separate_gradients(_Contraction, a, b, g, role, A, B, mask)
        return _raw_backward(*_column_arguments(A, B, mask), a, b, g)

    @staticmethod
    def backward(ctx, ha, hb):
        return gradients_of_both(_Contraction, ctx, ha, hb)


_REMEDY = ". Make one with CSR.from_*, or multiply by a dense tensor with spmm"


def spgemm(
    A: Matrix, B: Annotated[CSR, matrix_like("A", remedy=_REMEDY)], *, mask: SparsityPattern | None = None
) -> CSR:
    r"""Sparse matrix times sparse matrix, :math:`C = A B`.

    Parameters
    ----------
    A : CSR, shape (m, n), float32 or float64, or complex. Its values may have batch axes, (..., nnz)
    B : CSR, shape (n, k), of A's precision and device. Its values may have batch axes
    mask : SparsityPattern, shape (m, k): the entries of A B to compute

    Returns
    -------
    CSR, shape (m, k). Batch axes broadcast. Without `mask` it has an entry for every product a_ij b_jl of
    entries, including zeros and sums that cancel, and its pattern is the same object in every call while the
    plan is cached. With `mask` it has that pattern: products outside are skipped, entries without products
    are zero.

    Raises
    ------
    ValueError
        if shapes do not match, or the result has more entries than the index type can represent.

    Notes
    -----
    Gradient: :math:`\bar A = \bar C B^T` on the pattern of A and :math:`\bar B = A^T \bar C` on the pattern
    of B, in one pass over the products, through the entries of C only. Any order, forward mode, vmap,
    `torch.compile`. Bitwise identical on every run and for every number of threads.

    Cost: 2 F flops for F products, 4 F for both gradients. The second call with two patterns, or the first
    gradient, plans the positions of the products, which takes 4 F bytes: docs/operations.md. Source: Nytko et
    al., arXiv 2212.05159, 2022.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((4,))
    >>> ls.ops.spgemm(A, A).to_dense()[1]
    tensor([-4.,  6., -4.,  1.], dtype=torch.float64)
    >>> ls.ops.spgemm(A, A, mask=A.pattern).to_dense()[1]
    tensor([-4.,  6., -4.,  0.], dtype=torch.float64)
    """
    if A.shape[1] != B.shape[0]:
        raise ValueError(
            f"spgemm: A.shape[1] must equal B.shape[0], got {A.shape} and {B.shape}. A transpose is A.T"
        )
    if mask is not None:
        checks.pattern("spgemm", "mask", mask, (A.shape[0], B.shape[1]), A)
    return _multiply(A, B, mask)


def galerkin(P: Matrix, A: Annotated[CSR, matrix_like("P")]) -> CSR:
    r"""The Galerkin product :math:`P^T A P`, the coarse operator of a multigrid method.

    Parameters
    ----------
    P : CSR, shape (n, k), the interpolation. Its values may have batch axes, (..., nnz)
    A : CSR, shape (n, n), of P's precision and device. Its values may have batch axes

    Returns
    -------
    CSR, shape (k, k), on its full pattern, as from `spgemm`. Batch axes broadcast.

    Notes
    -----
    Computed as :math:`P^T (A P)` by two calls of `spgemm`, whose plans are cached: for P^T and the second
    product with P's pattern, for A P with A's pattern. Differentiable in P and A, to any order.

    Cost: 2 flops per product in A P and P^T (A P); twice that for the gradients.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((3,))
    >>> P = ls.CSR.from_dense(torch.tensor([[0.5], [1.0], [0.5]], dtype=torch.float64))
    >>> ls.ops.galerkin(P, A).to_dense()
    tensor([[1.]], dtype=torch.float64)
    """
    if A.shape[0] != A.shape[1] or A.shape[1] != P.shape[0]:
        raise ValueError(
            "galerkin: A must be square with as many rows as P, got shapes "
            f"{A.shape} for A and {P.shape} for P"
        )
    return _multiply(transpose(P), _multiply(A, P, None), None)


def _multiply(A: CSR, B: CSR, mask: SparsityPattern | None) -> CSR:
    left, right, on = A.pattern, B.pattern, mask
    if not left.dtype == right.dtype == (left if on is None else on).dtype:
        left, right = left.to(dtype=torch.int64), right.to(dtype=torch.int64)
        on = None if on is None else on.to(dtype=torch.int64)
    values = contraction(PRODUCT, A.values, B.values, left, right, on)
    return CSR(values, result_pattern(left, right, None) if mask is None else mask)


# For a symmetric K and each column j of a pattern S with rows J_j: K[J_j, J_j] y_j = g_j, with y and g on
# S. As matrices Y, G on S: dY = solve(dG - (dK Y) on S), Gbar = W = solve(Ybar), Kbar = -W Y^T on K's
# pattern. Blocks have unit diagonal and are factored by Cholesky, those of one size together, a bounded
# number at a time.


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
    """The values y on the pattern of G. Raises `NotPositive`. K is assumed to be symmetric. Batch axes
    broadcast."""
    batch = torch.broadcast_shapes(K.batch_shape, G.batch_shape)
    values, g = (t.values.expand((*batch, t.nnz)) for t in (K, G))
    return CSR(_solve(values, g, K.pattern, G.pattern), G.pattern)


def _local_plan(K: SparsityPattern, S: SparsityPattern) -> tuple[Group, ...]:
    """4 s^2 bytes for a column with s entries."""
    n = S.shape[1]
    key = to_numpy(K.row_indices).astype(np.int64) * n + to_numpy(K.col_indices)
    key = np.append(key, np.iinfo(np.int64).max)
    narrow = np.int32 if K.nnz < np.iinfo(np.int32).max else np.int64
    starts, rows, places = (
        to_numpy(t).astype(np.int64) for t in (S.T.crow_indices, S.T.col_indices, S.transpose_permutation)
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


def _solve_local(values: Tensor, g: Tensor, K: SparsityPattern, S: SparsityPattern) -> Tensor:
    lead = g.shape[:-1]
    values = torch.cat((values, values.new_zeros((*lead, 1))), -1)
    y = torch.empty_like(g, memory_format=torch.contiguous_format)
    bad: list[int] = []
    for group in K._plan_once(_local_plan, S):
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
    forward = staticmethod(_solve_local)

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
