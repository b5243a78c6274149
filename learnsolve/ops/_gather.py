"""Values picked out of others and put among zeros: what indexing, triangles and their gradients are made of.

Both go by positions that differ from one another, found once by whoever plans an operation. Each is the
other's adjoint: nothing is added up, so gradients are exact and deterministic, of any order.
"""

import torch
from torch import Tensor

from learnsolve.ops._autograd import Eager, dispatch


def take(values: Tensor, at: Tensor) -> Tensor:
    """values[..., at] for int64 positions that differ from one another."""
    return dispatch(_Take, _TakeForwardMode, (values,), at)


def place(values: Tensor, at: Tensor, size: int) -> Tensor:
    """Zeros (..., size) with values at int64 positions that differ from one another."""
    return dispatch(_Place, _PlaceForwardMode, (values,), at, size)


class _Take(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(values, at):
        return values.index_select(-1, at)

    @staticmethod
    def setup_context(ctx, inputs, output):
        values, at = inputs
        ctx.size = values.shape[-1]
        ctx.save_for_backward(at)
        ctx.save_for_forward(at)

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return place(g, ctx.saved_tensors[0], ctx.size), None


class _TakeForwardMode(Eager, _Take):
    @staticmethod
    def jvp(ctx, t, _):  # type: ignore[override]
        return take(t, ctx.saved_tensors[0])


class _Place(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(values, at, size):
        return values.new_zeros((*values.shape[:-1], size)).index_copy(-1, at, values)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, at, ctx.size = inputs
        ctx.save_for_backward(at)
        ctx.save_for_forward(at)

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return take(g, ctx.saved_tensors[0]), None, None


class _PlaceForwardMode(Eager, _Place):
    @staticmethod
    def jvp(ctx, t, *_):  # type: ignore[override]
        return place(t, ctx.saved_tensors[0], ctx.size)
