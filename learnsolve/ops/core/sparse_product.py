"""The product of two sparse matrices, differentiable to any order: the core of `spgemm`.

The product and its gradients are the derivatives of one trilinear form over the products f of C = A B,

    Phi(a, b, g) = sum_f a[i(f)] b[j(f)] g[t(f)],       a, b: the values of A and B, g: a cotangent of C.

dPhi/dg is C, dPhi/da and dPhi/db are the gradients for A and B, so the derivatives of these three are again
of this form. Each of a, b, g has a batch axis or is shared by the batch; the derivative for a shared operand
is summed over the batch.

Source: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation",
arXiv 2212.05159, table 1.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis, _library
from learnsolve.matrix import checks, device_analysis
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.plain import plain_tensors, readable
from learnsolve.ops.core import complex
from learnsolve.ops.core.autograd import dispatch
from learnsolve.ops.core.trilinear import (
    Derivative,
    Gradients,
    apart,
    broadcast,
    gradients,
    gradients_of_both,
)

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


def set_spgemm_plan_limit(bytes: int) -> int:
    """Set the maximum size in bytes of the plan of one sparse product: 4 per multiply-add on the CPU; on a
    CUDA device 8 (int64 indices: 16) for the product, and as much again for each gradient.

    A larger product is computed without a plan, in O(nnz) memory: the positions of its products are
    recomputed in each pass. On a CUDA device that takes sorts, which take much longer than the pass and wait
    for the device: raise the limit there for a product that is repeated.

    Parameters
    ----------
    bytes : int, initially 1 GiB; 0: no plans. No plan is ever made for 2^31 or more multiply-adds.

    Returns
    -------
    int, the previous limit. The new limit applies to plans made from now on: for pairs of patterns without a
    plan, which is made in the second product or the first gradient, and again after it was dropped
    (`set_plan_cache_limit`, `SparsityPattern.drop_caches`).

    Raises
    ------
    TypeError
        if bytes is not an int.
    ValueError
        if bytes is negative.

    Examples
    --------
    >>> import learnsolve as ls
    >>> before = ls.ops.set_spgemm_plan_limit(0)
    >>> ls.ops.set_spgemm_plan_limit(before)
    0
    """
    global _spgemm_plan_limit
    checks.memory("set_spgemm_plan_limit", bytes)
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
        return SparsityPattern._trusted(*_symbolic(A, B, shape[0] * shape[1] < 2**62), shape)
    return SparsityPattern._trusted(*_analyzed(A, B, torch.get_num_threads()), shape)


def _plan(A: SparsityPattern, B: SparsityPattern, mask: SparsityPattern | None) -> _Plan:
    C, arrays = result_pattern(A, B, mask), _arrays(A, B)
    c_ptr, c_idx = as_numpy(C.crow_indices), as_numpy(C.col_indices)
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
    a_ptr, a_idx, b_ptr, b_idx = (as_numpy(t) for P in (A, B) for t in (P.crow_indices, P.col_indices))
    return a_ptr, a_idx, b_ptr, b_idx


def _analyzed(A: SparsityPattern, B: SparsityPattern, threads: int) -> tuple[Tensor, Tensor]:
    made = _analysis.product_pattern(*_arrays(A, B), B.shape[1], _MOST[A.dtype], threads)
    if made is None:
        raise _too_many(A.dtype)
    return A._tensor(made[0]), A._tensor(made[1])


def _symbolic(A: SparsityPattern, B: SparsityPattern, numbered: bool) -> tuple[Tensor, Tensor]:
    """The arrays of A B: by sorting on the device, or on the host if there are too many positions to number,
    which is possible only with 2^31 rows or columns."""
    if not numbered:
        return _analyzed(A, B, 1)
    first = device_analysis.first_products(A.col_indices, B.crow_indices)
    made = device_analysis.product_pattern(
        *(A.crow_indices, A.col_indices, B.crow_indices, B.col_indices, B.shape[1]), first, _MOST[A.dtype]
    )
    if made is None:
        raise _too_many(A.dtype)
    return made[0].to(A.dtype), made[1].to(A.dtype)


def _too_many(dtype: torch.dtype) -> ValueError:
    return ValueError(
        f"spgemm: the result has more entries than {dtype} can number; give A and B int64 indices, "
        "CSR(A.values, A.pattern.to(dtype=torch.int64))"
    )


def _column_plan(
    A: SparsityPattern, B: SparsityPattern, mask: SparsityPattern | None, positioned: bool
) -> _ColumnPlan:
    """For the pass over the rows of B: where the products of each entry of A^T begin. `positioned`: for a
    plan with positions, which a plan made again under another limit may lack."""
    t_ptr, _, permutation, _ = A._structure(True)
    positions = A._planned(_plan, B, mask).positions
    b_ptr, perm = as_numpy(B.crow_indices), as_numpy(permutation)
    starts = None
    if positions is not None:
        starts = _analysis.product_starts(as_numpy(A.col_indices), b_ptr, perm)
        positions = as_numpy(positions)
    blocks = _analysis.column_product_blocks(as_numpy(t_ptr), perm, b_ptr, positions, starts, _BLOCK_WEIGHT)
    return _ColumnPlan(None if starts is None else A._tensor(starts), A._tensor(blocks))


def result_pattern(A: SparsityPattern, B: SparsityPattern, mask: SparsityPattern | None) -> SparsityPattern:
    """The pattern of A B, or `mask`."""
    return A._planned(_result, B) if mask is None else mask


def _by_rows(A: SparsityPattern, B: SparsityPattern, mask: SparsityPattern | None) -> tuple:
    """The arguments before the values, for operators that traverse the rows of A."""
    C, plan, none = result_pattern(A, B, mask), A._planned(_plan, B, mask), A._none
    tensors = (
        *(A.crow_indices, A.col_indices, none),
        *(B.crow_indices, B.col_indices, C.crow_indices, C.col_indices),
        *(none if plan.positions is None else plan.positions, none, plan.blocks),
    )
    return tensors, plan.incomplete, B.shape[1]


def _by_columns(A: SparsityPattern, B: SparsityPattern, mask: SparsityPattern | None) -> tuple:
    """The same for operators that traverse the columns of A."""
    C, plan = result_pattern(A, B, mask), A._planned(_plan, B, mask)
    columns, none = A._planned(_column_plan, B, mask, plan.positions is not None), A._none
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


def _unplanned(
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


def _on_device(wanted: int, u: Tensor, v: Tensor, shared: bool, *patterns: Any) -> Tensor:
    A, B, mask = patterns
    C = result_pattern(A, B, mask)
    # For the numbers of their entries alone: no transpose.
    known = (A.crow_indices, A.col_indices, A._none)
    known += (B.crow_indices, B.col_indices, C.crow_indices, C.col_indices)
    total: Any = None
    for segment in A._planned(_segments, B, mask, wanted) or _unplanned(A, B, mask, wanted):
        plan = (*known, *segment)
        if wanted == PRODUCT:
            part = _raw_product(plan, False, B.shape[1], u, v, shared)
        elif wanted == LEFT:
            part = _raw_left(plan, False, B.shape[1], v, u, shared)
        else:
            part = _raw_right(plan, False, u, v, shared)
        total = part if total is None else total + part
    return total


def _fused(A: SparsityPattern, B: SparsityPattern, a: Tensor, b: Tensor) -> Tensor | None:
    """The values of A B, whose pattern is cached, in one pass over the products without a plan. None if this
    is not possible: the pattern is known, values have a batch axis or cannot be read, or arrays with room for
    each product would be too large."""
    if torch.compiler.is_dynamo_compiling() or A._has_planned(_result, B):
        return None
    if a.dim() > 1 or b.dim() > 1 or not (readable(a) and readable(b)):
        return None
    for P in (A, B):
        P._check_unchanged()
    arrays, shape = _arrays(A, B), (A.shape[0], B.shape[1])
    products = _analysis.count_products(arrays[1], arrays[2])
    if products > min(_MOST_FUSED, 16 * (A.nnz + B.nnz), _MOST[A.dtype]):
        return None
    a_values, b_values = as_numpy(a), as_numpy(b)
    c_ptr, c_idx = np.empty(len(arrays[0]), arrays[0].dtype), np.empty(products, arrays[1].dtype)
    c = np.empty(products, a_values.dtype)  # memory that is never written costs nothing
    if not _library.spgemm_fused(
        *A.shape, B.shape[1], products, *arrays, a_values, b_values, c_ptr, c_idx, c
    ):
        return None
    for t in (c_idx, c):
        t.resize(int(c_ptr[-1]), refcheck=False)  # in place
    with plain_tensors():
        C = SparsityPattern._trusted(torch.from_numpy(c_ptr), torch.from_numpy(c_idx), shape)
    A._keep_planned(C, _result, B)
    return torch.from_numpy(c)


def contraction(wanted: int, u: Tensor, v: Tensor, *patterns: Any) -> Tensor:
    """The derivative of Phi with respect to operand `wanted`, unchecked: merges batch axes into the one of
    the kernels. `patterns`: of A and of B, and the mask or None."""
    if complex.either(u, v):
        return complex.bilinear(lambda u, v: contraction(wanted, u, v, *patterns), u, v, (1, 1))
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
            return _on_device(wanted, u, v, shared, A, B, mask)
        if wanted == PRODUCT:
            if mask is None and (values := _fused(A, B, u, v)) is not None:
                return values
            return _raw_product(*_by_rows(A, B, mask), u, v, shared)
        if wanted == LEFT:
            b, g = u, v
            return _raw_left(*_by_rows(A, B, mask), g, b, shared)
        return _raw_right(*_by_columns(A, B, mask), u, v, shared)

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
            return apart(_Contraction, a, b, g, role, A, B, mask)
        return _raw_backward(*_by_columns(A, B, mask), a, b, g)

    @staticmethod
    def backward(ctx, ha, hb):
        return gradients_of_both(_Contraction, ctx, ha, hb)
