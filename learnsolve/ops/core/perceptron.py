"""Narrow perceptrons on the rows of a block, which may be the edges of a graph, differentiable to any order.

    h_p = W1 z_p + b1 (+ u_i + v_j for p = entry (i, j)),    y_p = W2 max(h_p, 0) + b2 (without W2: h_p)

The derivatives are those of the composition `composed`. The first is also an operator, which recomputes h
instead of storing it; higher derivatives are composed.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix.autocast import full_precision
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core import segments
from learnsolve.ops.core.autograd import Operation, dispatch, pullback, pushforward, tracked, vmapped

_raw = torch.ops.learnsolve.perceptron.default
_raw_backward = torch.ops.learnsolve.perceptron_backward.default


def perceptron(
    z: Tensor,
    first: tuple[Tensor, Tensor | None],
    second: tuple[Tensor, Tensor | None] | None = None,
    ends: Tensor | None = None,
    pattern: SparsityPattern | None = None,
) -> Tensor:
    """y (..., n, o) for z (..., n, k) on the CPU; `first` and `second` are (W, b).

    For the entries of a pattern, ends (..., 2m, f) holds u_i in row 2i and v_j in row 2j + 1; its batch axes
    match z.
    """
    none = z.new_empty(0)
    w1, b1 = first
    w2, b2 = (none, none) if second is None else second
    b1 = w1.new_zeros(len(w1)) if b1 is None else b1
    b2 = w2.new_zeros(len(w2)) if b2 is None else b2
    return dispatch(_Perceptron, (z, none if ends is None else ends, w1, b1, w2, b2), pattern)


def composed(pattern: SparsityPattern | None) -> Callable:
    """The same with torch operations: (z, ends, W1, b1, W2, b2) -> (y,)."""

    def forward(z, ends, w1, b1, w2, b2):
        h = torch.nn.functional.linear(z, w1, b1)
        if pattern is not None:
            h = h + segments.at_ends(ends, pattern)
        return (torch.nn.functional.linear(h.relu(), w2, b2) if w2.numel() else h,)

    return forward


def _composed_adjoint(pattern: SparsityPattern | None) -> Callable:
    """(z, ends, W1, b1, W2, b2, g) -> gradients for the first six, differentiable."""

    def adjoint(*args):
        _, pull = pullback(composed(pattern), *args[:6])
        return pull((args[6],))

    return adjoint


def _places(pattern: SparsityPattern | None) -> tuple[Tensor, ...]:
    return () if pattern is None else (pattern.row_indices, pattern.col_indices)


def _blocks(t: Tensor) -> Tensor:
    """(B, n, k)"""
    return t if t.dim() == 3 or t.dim() < 2 else t.reshape(t.shape[:-2].numel(), *t.shape[-2:])


class _Perceptron(Operation):
    operands = 6

    @staticmethod
    def forward(z, ends, w1, b1, w2, b2, pattern):
        y = _raw(_places(pattern), _blocks(z), _blocks(ends), w1, b1, w2, b2)
        return y.reshape(*z.shape[:-1], y.shape[-1])

    @staticmethod
    def backward(ctx, g):
        operands, (pattern,) = ctx.saved_tensors, ctx.constants
        needs = ctx.needs_input_grad[:6]
        every = tracked(*operands, g)  # its derivatives are for all operands
        grads = dispatch(
            _Adjoint, (*operands, g), pattern, every or needs[0], pattern is not None and (every or needs[1])
        )
        return (*(t if needed else None for t, needed in zip(grads, needs, strict=True)), None)

    @staticmethod
    def jvp(ctx, *tangents):
        return pushforward(composed(*ctx.constants), ctx.saved_tensors, tangents[:6])[0]

    @staticmethod
    def vmap(info, in_dims, *args):
        (y,), (dim,) = vmapped(composed(args[6]), in_dims[:6], args[:6])
        return y, dim


class _Adjoint(Operation):
    """The gradients for z, ends, W1, b1, W2 and b2; empty where those for z and ends are not needed."""

    operands = 7

    @staticmethod
    def forward(z, ends, w1, b1, w2, b2, g, pattern, need_z, need_ends):
        two = w2.numel() > 0
        given = (_places(pattern), _blocks(z), _blocks(ends), w1, b1, w2, b2, _blocks(g))
        gz, gh, *of_weights = _raw_backward(*given, need_z, need_ends and two)
        gends = ends.new_empty(0)
        if need_ends:
            sums = segments.sums_at_ends(gh if two else given[-1], pattern)
            gends = sums.reshape(ends.shape)
        return gz.reshape(z.shape) if need_z else gz, gends, *of_weights

    @staticmethod
    @full_precision
    def backward(ctx, *cotangents):
        _, pull = pullback(_composed_adjoint(ctx.constants[0]), *ctx.saved_tensors)
        return *pull(cotangents), None, None, None

    @staticmethod
    def jvp(ctx, *tangents):
        return pushforward(_composed_adjoint(ctx.constants[0]), ctx.saved_tensors, tangents[:7])

    @staticmethod
    def vmap(info, in_dims, *args):
        return vmapped(_composed_adjoint(args[7]), in_dims[:7], args[:7])


@torch.library.register_fake("learnsolve::perceptron")
def _(places, z, ends, w1, b1, w2, b2):
    return z.new_empty((*z.shape[:-1], w2.shape[0] if w2.dim() == 2 else w1.shape[0]))


@torch.library.register_fake("learnsolve::perceptron_backward")
def _(places, z, ends, w1, b1, w2, b2, g, need_z, need_h):
    gz = z.new_empty(z.shape if need_z else 0)
    gh = z.new_empty((*z.shape[:-1], w1.shape[0]) if need_h else 0)
    return gz, gh, *(t.new_empty(t.shape) for t in (w1, b1, w2, b2))
