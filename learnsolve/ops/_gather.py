"""Values picked out of others and put among zeros: what indexing, triangles and their gradients are made of.

Both go by positions that differ from one another, found once by whoever plans an operation. Each is the
other's adjoint: nothing is added up, so gradients are exact and deterministic, of any order.
"""

from torch import Tensor

from learnsolve.ops._autograd import Multilinear, dispatch


def take(values: Tensor, at: Tensor) -> Tensor:
    """values[..., at] for int64 positions that differ from one another."""
    return dispatch(_Take, (values,), at)


def place(values: Tensor, at: Tensor, size: int) -> Tensor:
    """Zeros (..., size) with values at int64 positions that differ from one another."""
    return dispatch(_Place, (values,), at, size)


class _Take(Multilinear):
    generate_vmap_rule = True

    @staticmethod
    def forward(values, at):
        return values.index_select(-1, at)

    @staticmethod
    def setup_context(ctx, inputs, output):
        values, *ctx.constants = inputs
        ctx.size = values.shape[-1]

    @staticmethod
    def backward(ctx, g):
        return place(g, *ctx.constants, ctx.size), None


class _Place(Multilinear):
    generate_vmap_rule = True

    @staticmethod
    def forward(values, at, size):
        return values.new_zeros((*values.shape[:-1], size)).index_copy(-1, at, values)

    @staticmethod
    def backward(ctx, g):
        return take(g, ctx.constants[0]), None, None
