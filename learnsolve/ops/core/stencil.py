"""The stencil and its products, differentiable to any order: the core of `ops.stencil`.

They are the derivatives of one trilinear form,

    Phi(c, x, g) = sum_b <g_b, S(c_b) x_b>,      (S(c) x)_i = sum_k c_k(i) x_{i + o_k},

where each of c, x, g has a batch axis b or is shared by the batch: dPhi/dg = S(c) x is the stencil, dPhi/dx
:= S(c)^T g its transpose, dPhi/dc_k(i) = g_i x_{i + o_k} the products, summed over the grid if c_k is
constant over the grid. The derivative for a shared operand is summed over the batch.

Here c is (K, *grid) or (K, 1, ..., 1), x and g are (*grid), each optionally with a leading batch axis.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.ops.core import complex
from learnsolve.ops.core.autograd import dispatch
from learnsolve.ops.core.trilinear import Derivative, broadcast, gradients

_raw = torch.ops.learnsolve.stencil.default
_raw_products = torch.ops.learnsolve.stencil_products.default

# The operands c, x, g of Phi.
_COEFFICIENTS, _X, _G = 0, 1, 2


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


class Neighbors(NamedTuple):
    """K offsets of d integers, concatenated, and 1 or 0 for each of the d axes: periodic or not."""

    offsets: tuple[int, ...]
    periodic: tuple[int, ...]


def apply(c: Tensor, x: Tensor, where: Neighbors, transpose: bool = False) -> Tensor:
    """S(c) x or S(c)^T x, unchecked: merges any batch axes into the one axis of the kernels."""
    d, role = len(where.periodic), _X if transpose else _G
    if complex.either(c, x):
        return complex.bilinear(lambda c, x: apply(c, x, where, transpose), c, x, (d + 1, d))
    constant = c.shape[-d:].numel() == 1
    both = c.dim() == d + 2 and x.dim() == d + 1
    if c.dim() <= d + 2 and x.dim() <= d + 1 and not (both and len(c) != len(x)):
        return dispatch(_Stencil, (c, x), role, False, where, constant)
    return broadcast(_Stencil, role, c, x, where, constant)


def products(y: Tensor, x: Tensor, where: Neighbors, like: Tensor) -> Tensor:
    """The gradient of <y, S(c) x> for the coefficients c, in the shape of `like`; the last axis before the
    grid is an axis of columns, which share the coefficients."""
    d = len(where.periodic)
    batch = torch.broadcast_shapes(y.shape[:-d], x.shape[:-d])
    u, w = (t.expand(batch + t.shape[-d:]).reshape((batch.numel(), *t.shape[-d:])) for t in (y, x))
    constant, shared = like.shape[-d:].numel() == 1, like.dim() == d + 1
    q = dispatch(_Stencil, (w, u), _COEFFICIENTS, shared, where, constant)
    if shared:
        return q.reshape(like.shape)
    return q.reshape(batch + q.shape[-d - 1 :]).sum(-d - 2).sum_to_size(like.shape)


class _Stencil(Derivative):
    """dPhi/dg, dPhi/dx and dPhi/dc; `constant`: c is constant over the grid."""

    @staticmethod
    def axes(role, where, constant):
        return len(where.periodic) + (role == _COEFFICIENTS)

    @staticmethod
    def forward(c, x, role, shared, where, constant):
        if role == _COEFFICIENTS:
            u, w = x, c
            return _raw_products(u, w, *where, constant, shared)
        return _raw(c, x, *where, role == _X, shared)

    @staticmethod
    def backward(ctx, g):
        return gradients(_Stencil, ctx, g)
