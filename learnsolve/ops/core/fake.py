"""Shapes of the raw operators' results, for `torch.compile` and meta tensors (csrc/ops/schema.cpp), if
several files use an operator; the others are next to their operation."""

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)


def _batch(values: Tensor, x: Tensor) -> int:
    batch = values.shape[0] if values.dim() == 2 else 1
    return x.shape[0] if x.dim() == 3 and batch == 1 else batch


@torch.library.register_fake("learnsolve::csr_spmm")
def _(ptr, idx, perm, blocks, values, x, sum_batch=False, conjugate=False):
    m = ptr.shape[0] - 1
    if x.dim() == 1 and values.dim() == 1:
        return values.new_empty(m)
    k = 1 if x.dim() == 1 else x.shape[-1]
    if sum_batch or (x.dim() < 3 and values.dim() == 1):
        return values.new_empty(m, k)
    return values.new_empty(_batch(values, x), m, k)


@torch.library.register_fake("learnsolve::csr_sddmm")
def _(ptr, idx, blocks, u, v, sum_batch=False, conjugate=0):
    nnz = idx.shape[0]
    if sum_batch or (u.dim() < 3 and v.dim() < 3):
        return u.new_empty(nnz)
    u_batch = u.shape[0] if u.dim() == 3 else 1
    return u.new_empty(v.shape[0] if v.dim() == 3 and u_batch == 1 else u_batch, nnz)


@torch.library.register_fake("learnsolve::csr_spmm_backward")
def _(ptr, idx, perm, blocks, crow, col, row_blocks, values, g, x):
    return values.new_empty(values.shape), values.new_empty(x.shape)


@torch.library.register_fake("learnsolve::csr_spmv_scatter_backward")
def _(ptr, idx, blocks, values, g, x, need_values, need_x):
    return values.new_empty(values.shape if need_values else (0,)), x.new_empty(x.shape if need_x else (0,))


@torch.library.register_fake("learnsolve::csr_richardson")
def _(A, values, scale, momentum, b, x0, before, iterations, stride):
    saved = -(-iterations // stride) if stride > 0 else 0
    if momentum is not None and stride > 1:
        saved *= 2
    batch, k = b.shape[: b.dim() - 2] if b.dim() == 3 else b.shape[:0], b.shape[-1:] if b.dim() > 1 else ()
    n = b.shape[-2] if b.dim() > 1 else b.shape[0]
    return (
        b.new_empty(b.shape),
        b.new_empty((*batch, iterations, *k)),
        b.new_empty((*batch, saved, n, *k)),
        b.new_empty(b.shape if momentum is not None and stride == 0 else (0,)),
    )


@torch.library.register_fake("learnsolve::csr_richardson_backward")
def _(A, At, values, scale, momentum, b, before, kept, cotangents, iterations, stride, needs):
    def like(t, needed):
        return values.new_empty(t.shape if needed and t is not None else (0,))

    need_values, need_scale, need_momentum, need_b, need_x0 = needs
    return (
        like(values, need_values),
        like(scale, need_scale),
        like(momentum, need_momentum),
        like(b, need_b),
        b.new_empty(b.shape),
        like(before, need_x0 and momentum is not None),
    )


def _factor_entries(plan: list[Tensor], cholesky: bool) -> int:
    if len(plan) == 6:  # complete fill
        return plan[1].shape[0] * (1 if cholesky else 2)
    order, units = plan[0], plan[5]
    return order.shape[0] + units.shape[0]


@torch.library.register_fake("learnsolve::csr_incomplete_factor")
def _(plan, cholesky, crow, values, check):
    batch = values.shape[:-1]
    return values.new_empty(*batch, _factor_entries(plan, cholesky)), values.new_empty(
        *batch, 2, dtype=torch.float64
    )


@torch.library.register_fake("learnsolve::csr_incomplete_tangent")
@torch.library.register_fake("learnsolve::csr_incomplete_product_adjoint")
def _(plan, cholesky, x, w):
    return x.new_empty(*x.shape[:-1], _factor_entries(plan, cholesky))


@torch.library.register_fake("learnsolve::csr_incomplete_adjoint")
@torch.library.register_fake("learnsolve::csr_incomplete_product")
def _(plan, cholesky, x, z, nnz):
    return x.new_empty(*x.shape[:-1], nnz)


def _contraction(u: Tensor, v: Tensor, nnz: int, sum_batch: bool) -> Tensor:
    if sum_batch or (u.dim() == 1 and v.dim() == 1):
        return u.new_empty(nnz)
    batch = u.shape[0] if u.dim() == 2 else 1
    return u.new_empty(v.shape[0] if v.dim() == 2 and batch == 1 else batch, nnz)


@torch.library.register_fake("learnsolve::csr_spgemm")
def _(plan, masked, columns, a, b, sum_batch=False):
    return _contraction(a, b, plan[6].shape[0], sum_batch)


@torch.library.register_fake("learnsolve::csr_spgemm_left")
def _(plan, masked, columns, g, b, sum_batch=False):
    return _contraction(g, b, plan[1].shape[0], sum_batch)


@torch.library.register_fake("learnsolve::csr_spgemm_right")
def _(plan, masked, a, g, sum_batch=False):
    return _contraction(a, g, plan[4].shape[0], sum_batch)


@torch.library.register_fake("learnsolve::csr_spgemm_backward")
def _(plan, masked, a, b, g):
    return a.new_empty(a.shape), b.new_empty(b.shape)


@torch.library.register_fake("learnsolve::csr_sptrsv")
def _(triangle, upper, unit, values, b):
    return b.new_empty(b.shape)


@torch.library.register_fake("learnsolve::csr_sptrsv_backward")
def _(triangle, upper, unit, rows, transpose, values, g, x):
    return values.new_empty(values.shape), g.new_empty(g.shape)


@torch.library.register_fake("learnsolve::csr_pcg")
def _(A, values, kind, M, x, r, state, target, first, iterations, store):
    begins = len(state) == 0
    batch, k = (r.shape[0] if r.dim() == 3 else 1), (r.shape[-1] if r.dim() > 1 else 1)
    n, saved = r.shape[max(r.dim() - 2, 0)], iterations if store else 0
    columns = r.shape[-1:] if r.dim() > 1 else ()
    return (
        r.new_empty(r.shape),
        r.new_empty(r.shape),
        r.new_empty(r.shape),
        r.new_empty((0,) if store else r.shape),
        r.new_empty((batch, 6, k)),
        r.new_empty((*r.shape[: max(r.dim() - 2, 0)], iterations + begins, *columns)),
        r.new_empty((batch, iterations, 3, k)),
        r.new_empty((batch, saved, n, k)),
        r.new_empty((batch, saved, n, k)),
    )


@torch.library.register_fake("learnsolve::csr_pcg_backward")
def _(A, transpose, values, kind, M, x0, forward, gx, gnorms, sums, needs):
    _, _, last, scalars, _, *before = forward
    batch, k = scalars.shape[0], scalars.shape[-1]
    return (
        last.new_empty(last.shape),
        last.new_empty(last.shape),
        last.new_empty((batch, 3, k)),
        values.new_empty(values.shape if needs[0] else (0,)),
        values.new_empty(M[0].shape if needs[1] and M else (0,)),
        last.new_empty(last.shape if needs[2] and not before else (0,)),
    )
