"""The softmax over the rows or columns of a pattern."""

from typing import Any

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core import segments
from learnsolve.ops.core.autograd import Operation, add, dispatch

_raw = torch.ops.learnsolve.csr_segment_softmax.default
_raw_backward = torch.ops.learnsolve.csr_segment_softmax_backward.default


def segment_softmax(E: Tensor, pattern: SparsityPattern, by: str = "row") -> Tensor:
    r"""Softmax over each row, :math:`a_{ij} = \exp(e_{ij}) / \sum_k \exp(e_{ik})`, or over each column, for
    each feature separately. The weights are positive and sum to 1 over every row that has an entry.

    Parameters
    ----------
    E : Tensor, shape (nnz,) or (..., nnz, f), float32 or float64: features of the entries
    pattern : SparsityPattern, shape (m, n)
    by : "row" or "column", the segments

    Returns
    -------
    Tensor of E's shape.

    Raises
    ------
    ValueError
        if the shape is wrong, or `by` is invalid.
    TypeError
        if dtypes or devices do not match.

    Notes
    -----
    The largest entry of a segment is subtracted first, so finite features never overflow. As with
    `torch.softmax`, a NaN or an infinity makes its whole segment NaN. An entry of -infinity has weight 0, but
    a segment with only such entries is NaN. Weights below 1e-307 (1e-37 in float32) are 0.

    Gradient: :math:`\bar e_{ij} = a_{ij} (\bar a_{ij} - \sum_k a_{ik} \bar a_{ik})`. Any order; forward mode,
    vmap, `torch.compile`.

    Cost: reads and writes nnz f values, and computes as many exponentials; the backward reads the weights
    and the incoming gradient once. Deterministic.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [0.0, 1.0]])).pattern
    >>> ls.ops.segment_softmax(torch.tensor([0.0, 0.0, 5.0]), P)
    tensor([0.5000, 0.5000, 1.0000])
    """
    segments.check("segment_softmax", "E", E, pattern, by, entries=True)
    if E.dim() == 1:
        return segment_softmax(E.unsqueeze(-1), pattern, by).squeeze(-1)
    return dispatch(_Softmax, (E,), pattern, by == "column")


class _Softmax(Operation):
    @staticmethod
    def forward(e, pattern, columns):
        return _raw(pattern._structure(columns), segments.flat(e)).reshape(e.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.save_for_backward(output)
        ctx.constants = inputs[1:]

    @staticmethod
    def backward(ctx, g):
        return dispatch(_Tangent, (*ctx.saved_tensors, g), *ctx.constants), None, None

    @staticmethod
    def jvp(ctx, t, *_):  # the derivative is symmetric
        return dispatch(_Tangent, (*ctx.saved_tensors, t), *ctx.constants)

    @classmethod
    def vmap(cls, info, in_dims, e, *constants):
        return segments.mapped(cls, info, in_dims, (e,), *constants)


class _Tangent(Operation):
    """T(y, g) = y (g - sum of y g over the segment): symmetric in g: <h, T(y, g)> = <g, T(y, h)>."""

    operands = 2

    @staticmethod
    def forward(y, g, pattern, columns):
        S = pattern._structure(columns)
        return _raw_backward(S, segments.flat(y), segments.flat(g)).reshape(y.shape)

    @staticmethod
    def backward(ctx, h):
        y, g = ctx.saved_tensors
        by_y = by_g = None
        if ctx.needs_input_grad[0]:
            # h (g - s(y g)) - g s(y h), with s the sum over the segment, at each of its entries.
            by_y = h * (g - _segment_sums(y * g, *ctx.constants)) - g * _segment_sums(y * h, *ctx.constants)
        if ctx.needs_input_grad[1]:
            by_g = dispatch(_Tangent, (y, h), *ctx.constants)
        return by_y, by_g, None, None

    @staticmethod
    def jvp(ctx, ty, tg, *_):
        y, g = ctx.saved_tensors
        by_y = by_g = None
        if ty is not None:
            sums = _segment_sums(y * g, *ctx.constants)
            by_y = ty * (g - sums) - y * _segment_sums(ty * g, *ctx.constants)
        if tg is not None:
            by_g = dispatch(_Tangent, (y, tg), *ctx.constants)
        return add(by_y, by_g)

    @classmethod
    def vmap(cls, info, in_dims, y, g, *constants):
        return segments.mapped(cls, info, in_dims, (y, g), *constants)


def _segment_sums(e: Tensor, pattern: SparsityPattern, columns: bool) -> Tensor:
    by = "column" if columns else "row"
    return segments.spread(segments.summed(e, pattern, by), pattern, by)


@torch.library.register_fake("learnsolve::csr_segment_softmax")
def _(S, e):
    return e.new_empty(e.shape)


@torch.library.register_fake("learnsolve::csr_segment_softmax_backward")
def _(S, y, g):
    return y.new_empty(y.shape)
