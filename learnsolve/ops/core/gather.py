"""Gather, scatter, permute and sum values: the steps of indexing, triangles and their gradients.

Positions are planned once by the operation. The positions of `take` and `place` are distinct, and the two are
adjoints of each other: nothing is added up, so gradients are exact and deterministic, to any order.
"""

import torch
from torch import Tensor

from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.autograd import OfLastAxes, dispatch
from learnsolve.ops.core.product import product


def take(values: Tensor, at: Tensor, dim: int = -1) -> Tensor:
    """values[..., at] for distinct positions, or along another axis `dim` < 0."""
    return dispatch(_Take, (values,), at, dim)


def place(values: Tensor, at: Tensor, size: int, dim: int = -1) -> Tensor:
    """Zeros (..., size) with values at distinct positions, or along another axis."""
    return dispatch(_Place, (values,), at, size, dim)


def permuted(values: Tensor, forward: Tensor, backward: Tensor, dim: int = -1) -> Tensor:
    """values[..., forward], or along another axis `dim` < 0; `backward` is the inverse."""
    return dispatch(_Permute, (values,), forward, backward, dim)


def added_up(values: Tensor, places: SparsityPattern) -> Tensor:
    """Value i of the result is the sum of the `values` (..., n) at the columns of row i of `places`, a 0/1
    matrix, so that the gradient of a repeated value is a sum in a fixed order."""
    ones = torch.ones(places.nnz, dtype=values.dtype.to_real(), device=values.device)
    if values.dim() == 1:
        return product(ones, values, places, False)
    return product(ones, values.unsqueeze(-1), places, False).squeeze(-1)


class _Take(OfLastAxes):
    @staticmethod
    def forward(values, at, dim):
        return values.index_select(dim, at)

    @staticmethod
    def setup_context(ctx, inputs, output):
        values, *ctx.constants = inputs
        ctx.size = values.shape[inputs[2]]

    @staticmethod
    def backward(ctx, g):
        at, dim = ctx.constants
        return place(g, at, ctx.size, dim), None, None


class _Place(OfLastAxes):
    @staticmethod
    def forward(values, at, size, dim):
        shape = list(values.shape)
        shape[dim] = size
        return values.new_zeros(shape).index_copy(dim, at.long(), values)

    @staticmethod
    def backward(ctx, g):
        at, _, dim = ctx.constants
        return take(g, at, dim), None, None, None


class _Permute(OfLastAxes):
    """Its gradient is also a gather, whereas torch's would add into zeros."""

    @staticmethod
    def forward(values, forward, backward, dim):
        return values.index_select(dim, forward)

    @staticmethod
    def backward(ctx, g):
        forward, backward, dim = ctx.constants
        return permuted(g, backward, forward, dim), None, None, None
