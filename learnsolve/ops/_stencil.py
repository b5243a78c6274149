"""The stencil and its products, differentiable to any order: what `ops.stencil` is made of.

They are the derivatives of one trilinear form,

    Phi(c, x, g) = sum_b <g_b, S(c_b) x_b>,      (S(c) x)_i = sum_k c_k(i) x_{i + o_k},

where each of c, x, g has a batch axis b or is shared by the batch: dPhi/dg = S(c) x is the stencil, dPhi/dx
= S(c)^T g its transpose, dPhi/dc_k(i) = g_i x_{i + o_k} the products, summed over the grid where c_k is one
number for all points. A derivative for a shared operand is summed over the batch.

Here c is (K, *grid) or (K, 1, ..., 1), x and g are (*grid), each perhaps with one batch axis in front.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.ops._autograd import Eager, add, dispatch, keep_for_forward_mode

_raw = torch.ops.learnsolve.stencil.default
_raw_products = torch.ops.learnsolve.stencil_products.default


@torch.library.register_fake("learnsolve::stencil")
def _(coefficients, x, offsets, periodic, transpose=False, sum_batch=False):
    d = len(periodic)
    grid = x.shape[x.dim() - d :]
    if sum_batch or (coefficients.dim() < d + 2 and x.dim() < d + 1):
        return x.new_empty(grid)
    batch = coefficients.shape[0] if coefficients.dim() == d + 2 else 1
    return x.new_empty(x.shape[0] if x.dim() == d + 1 and batch == 1 else batch, *grid)


@torch.library.register_fake("learnsolve::stencil_products")
def _(u, w, offsets, periodic, constant, sum_batch=False):
    d = len(periodic)
    tail = (len(offsets) // d, *((1,) * d if constant else u.shape[u.dim() - d :]))
    if sum_batch or (u.dim() == d and w.dim() == d):
        return u.new_empty(tail)
    batch = u.shape[0] if u.dim() == d + 1 else 1
    return u.new_empty(w.shape[0] if w.dim() == d + 1 and batch == 1 else batch, *tail)


class Neighbours(NamedTuple):
    """K offsets of d numbers, one after another; for each of the d axes whether it is periodic, 1 or 0."""

    offsets: tuple[int, ...]
    periodic: tuple[int, ...]


def apply(c: Tensor, x: Tensor, where: Neighbours, transpose: bool = False) -> Tensor:
    """S(c) x or S(c)^T x, unchecked: brings any batch axes to the one axis of the kernels."""
    d = len(where.periodic)
    if c.dim() <= d + 2 and x.dim() <= d + 1:
        return _stencil(c, x, where, transpose, False)
    batch = torch.broadcast_shapes(c.shape[: -d - 1], x.shape[:-d])
    y = _stencil(_one_batch_axis(c, batch, d + 1), _one_batch_axis(x, batch, d), where, transpose, False)
    return y.reshape(batch + y.shape[-d:])


def products(y: Tensor, x: Tensor, where: Neighbours, like: Tensor) -> Tensor:
    """The gradient of <y, S(c) x> for the coefficients c, in the shape of `like`; the last axis before the
    grid is one of columns, which all have these coefficients."""
    d = len(where.periodic)
    batch = torch.broadcast_shapes(y.shape[:-d], x.shape[:-d])
    u, w = (t.expand(batch + t.shape[-d:]).reshape((batch.numel(), *t.shape[-d:])) for t in (y, x))
    constant, shared = like.shape[-d:].numel() == 1, like.dim() == d + 1
    q = _products(u, w, where, constant, shared)
    if shared:
        return q.reshape(like.shape)
    return q.reshape(batch + q.shape[-d - 1 :]).sum(-d - 2).sum_to_size(like.shape)


def _one_batch_axis(t: Tensor, batch: torch.Size, inner: int) -> Tensor:
    """`t` without batch axes if it is shared by the whole batch, else with one."""
    tail = t.shape[t.dim() - inner :]
    if t.shape[: t.dim() - inner].numel() == 1 and batch.numel() != 1:
        return t.reshape(tail)
    return t.expand(batch + tail).reshape((batch.numel(), *tail))


def _stencil(c: Tensor, x: Tensor, where: Neighbours, transpose: bool, shared: bool) -> Tensor:
    """S(c) x or S(c)^T x; summed over the batch if `shared`."""
    return dispatch(_Stencil, _StencilForwardMode, (c, x), where, transpose, shared)


def _products(u: Tensor, w: Tensor, where: Neighbours, constant: bool, shared: bool) -> Tensor:
    """u_i w_{i + o_k}, summed over the grid if `constant`, over the batch if `shared`."""
    return dispatch(_Products, _ProductsForwardMode, (u, w), where, constant, shared)


def _field_gradient(c: Tensor, g: Tensor, where: Neighbours, transpose: bool, like: Tensor) -> Tensor:
    """dPhi/dx (`transpose` as in S^T g) or dPhi/dg, in the shape of `like`."""
    d = len(where.periodic)
    batched = c.dim() == d + 2 or g.dim() == d + 1
    y = _stencil(c, g, where, transpose, batched and like.dim() == d)
    return y if y.shape == like.shape else y.expand(like.shape)


def _coefficients_gradient(u: Tensor, w: Tensor, where: Neighbours, transpose: bool, like: Tensor) -> Tensor:
    """dPhi/dc for y-side u and x-side w, in the shape of `like`."""
    d = len(where.periodic)
    if transpose:
        u, w = w, u
    constant = like.shape[-d:].numel() == 1
    q = _products(u, w, where, constant, (u.dim() > d or w.dim() > d) and like.dim() == d + 1)
    return q if q.shape == like.shape else q.expand(like.shape)


def _for_map(t: Tensor, dim: int | None, inner: int) -> tuple[Tensor, bool]:
    """`t` with the axis of the map in front, then that of a batch (1 where there is none of either); whether
    there is one of a batch."""
    t = t.unsqueeze(0) if dim is None else t.movedim(dim, 0)
    batched = t.dim() == inner + 2
    return (t if batched else t.unsqueeze(1)), batched


def _map(out: Tensor, batched: bool, shared: bool, size: int) -> tuple[Tensor, int]:
    out = out.sum(1) if shared and batched else out if batched else out.squeeze(1)
    return out.expand((size, *out.shape[1:])), 0


class _Stencil(torch.autograd.Function):
    @staticmethod
    def forward(c, x, where, transpose, shared):
        return _raw(c, x, *where, transpose, shared)

    @staticmethod
    def setup_context(ctx, inputs, output):
        c, x, ctx.where, ctx.transpose, ctx.shared = inputs
        ctx.save_for_backward(c, x)

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        c, x = ctx.saved_tensors
        gc = gx = None
        if ctx.needs_input_grad[0]:
            gc = _coefficients_gradient(g, x, ctx.where, ctx.transpose, c)
        if ctx.needs_input_grad[1]:
            gx = _field_gradient(c, g, ctx.where, not ctx.transpose, x)
        return gc, gx, None, None, None

    @staticmethod
    def vmap(info, in_dims, c, x, where, transpose, shared):
        d = len(where.periodic)
        C, c_batched = _for_map(c, in_dims[0], d + 1)
        X, x_batched = _for_map(x, in_dims[1], d)
        batch = torch.broadcast_shapes(C.shape[:2], X.shape[:2])
        y = _stencil(_one_batch_axis(C, batch, d + 1), _one_batch_axis(X, batch, d), where, transpose, False)
        return _map(y.reshape(batch + y.shape[-d:]), c_batched or x_batched, shared, info.batch_size)


class _StencilForwardMode(Eager, _Stencil):
    @staticmethod
    def setup_context(ctx, inputs, output):
        _Stencil.setup_context(ctx, inputs, output)
        keep_for_forward_mode(ctx, *inputs[:2])

    @staticmethod
    def jvp(ctx, tc, tx, *_):  # type: ignore[override]
        c, x = ctx.saved_tensors
        by_c = None if tc is None else _stencil(tc, x, ctx.where, ctx.transpose, ctx.shared)
        by_x = None if tx is None else _stencil(c, tx, ctx.where, ctx.transpose, ctx.shared)
        return add(by_c, by_x)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(u, w, where, constant, shared):
        return _raw_products(u, w, *where, constant, shared)

    @staticmethod
    def setup_context(ctx, inputs, output):
        u, w, ctx.where, ctx.constant, ctx.shared = inputs
        ctx.save_for_backward(u, w)

    @staticmethod
    def backward(ctx, h):  # type: ignore[override]
        u, w = ctx.saved_tensors
        gu = _field_gradient(h, w, ctx.where, False, u) if ctx.needs_input_grad[0] else None
        gw = _field_gradient(h, u, ctx.where, True, w) if ctx.needs_input_grad[1] else None
        return gu, gw, None, None, None

    @staticmethod
    def vmap(info, in_dims, u, w, where, constant, shared):
        d = len(where.periodic)
        U, u_batched = _for_map(u, in_dims[0], d)
        W, w_batched = _for_map(w, in_dims[1], d)
        batch = torch.broadcast_shapes(U.shape[:2], W.shape[:2])
        q = _products(_one_batch_axis(U, batch, d), _one_batch_axis(W, batch, d), where, constant, False)
        return _map(q.reshape(batch + q.shape[-d - 1 :]), u_batched or w_batched, shared, info.batch_size)


class _ProductsForwardMode(Eager, _Products):
    @staticmethod
    def setup_context(ctx, inputs, output):
        _Products.setup_context(ctx, inputs, output)
        keep_for_forward_mode(ctx, *inputs[:2])

    @staticmethod
    def jvp(ctx, tu, tw, *_):  # type: ignore[override]
        u, w = ctx.saved_tensors
        by_u = None if tu is None else _products(tu, w, ctx.where, ctx.constant, ctx.shared)
        by_w = None if tw is None else _products(u, tw, ctx.where, ctx.constant, ctx.shared)
        return add(by_u, by_w)
