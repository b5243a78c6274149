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
from learnsolve.ops._autograd import Multilinear, dispatch

_raw = torch.ops.learnsolve.stencil.default
_raw_products = torch.ops.learnsolve.stencil_products.default


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
    return dispatch(_Stencil, (c, x), where, transpose, shared)


def _products(u: Tensor, w: Tensor, where: Neighbours, constant: bool, shared: bool) -> Tensor:
    """u_i w_{i + o_k}, summed over the grid if `constant`, over the batch if `shared`."""
    return dispatch(_Products, (u, w), where, constant, shared)


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


class _Stencil(Multilinear):
    operands = 2

    @staticmethod
    def forward(c, x, where, transpose, shared):
        return _raw(c, x, *where, transpose, shared)

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        c, x = ctx.saved_tensors
        where, transpose, _ = ctx.constants
        gc = gx = None
        if ctx.needs_input_grad[0]:
            gc = _coefficients_gradient(g, x, where, transpose, c)
        if ctx.needs_input_grad[1]:
            gx = _field_gradient(c, g, where, not transpose, x)
        return gc, gx, None, None, None

    @staticmethod
    def vmap(info, in_dims, c, x, where, transpose, shared):
        d = len(where.periodic)
        C, c_batched = _for_map(c, in_dims[0], d + 1)
        X, x_batched = _for_map(x, in_dims[1], d)
        batch = torch.broadcast_shapes(C.shape[:2], X.shape[:2])
        y = _stencil(_one_batch_axis(C, batch, d + 1), _one_batch_axis(X, batch, d), where, transpose, False)
        return _map(y.reshape(batch + y.shape[-d:]), c_batched or x_batched, shared, info.batch_size)


class _Products(Multilinear):
    operands = 2

    @staticmethod
    def forward(u, w, where, constant, shared):
        return _raw_products(u, w, *where, constant, shared)

    @staticmethod
    def backward(ctx, h):  # type: ignore[override]
        u, w = ctx.saved_tensors
        where = ctx.constants[0]
        gu = _field_gradient(h, w, where, False, u) if ctx.needs_input_grad[0] else None
        gw = _field_gradient(h, u, where, True, w) if ctx.needs_input_grad[1] else None
        return gu, gw, None, None, None

    @staticmethod
    def vmap(info, in_dims, u, w, where, constant, shared):
        d = len(where.periodic)
        U, u_batched = _for_map(u, in_dims[0], d)
        W, w_batched = _for_map(w, in_dims[1], d)
        batch = torch.broadcast_shapes(U.shape[:2], W.shape[:2])
        q = _products(_one_batch_axis(U, batch, d), _one_batch_axis(W, batch, d), where, constant, False)
        return _map(q.reshape(batch + q.shape[-d - 1 :]), u_batched or w_batched, shared, info.batch_size)
