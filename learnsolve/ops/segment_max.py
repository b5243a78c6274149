"""The maximum over the entries of each row or column of a pattern."""

from typing import Any

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core import segments
from learnsolve.ops.core.autograd import Multilinear, Operation, dispatch

_raw_max = torch.ops.learnsolve.csr_segment_max.default
_raw_place = torch.ops.learnsolve.csr_segment_place.default


def segment_max(E: Tensor, pattern: SparsityPattern, by: str = "row") -> Tensor:
    r"""Maximum of the features over all entries of a row, :math:`x_i = \max_j e_{ij}`, or of a column, for
    each feature separately.

    Parameters
    ----------
    E : Tensor, shape (nnz,) or (..., nnz, f), float32 or float64: features of the entries
    pattern : SparsityPattern, shape (m, n)
    by : "row" or "column", the segments

    Returns
    -------
    Tensor, shape (m,) or (..., m, f) by rows, (n,) or (..., n, f) by columns; 0 for a segment without
    entries, NaN for one with a NaN. For the minimum use ``-segment_max(-E, ...)``.

    Raises
    ------
    ValueError
        if the shape is wrong, or `by` is invalid.
    TypeError
        if dtypes or devices do not match.

    Notes
    -----
    Gradient: passed to the first of the largest entries of the segment (in the order of the pattern), zero
    elsewhere, like `torch.max` along a dimension and torch-scatter's ``scatter_max``; torch's
    ``scatter_reduce`` with "amax" instead divides it among equal entries. Any order; forward mode, vmap,
    `torch.compile`.

    Cost: reads nnz f values once and writes the position of each maximum; backward: writes nnz f values.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [0.0, 1.0]])).pattern
    >>> e = torch.tensor([3.0, 2.0, 4.0])
    >>> ls.ops.segment_max(e, P, "row"), ls.ops.segment_max(e, P, "column")
    (tensor([3., 4.]), tensor([3., 4.]))
    """
    segments.check("segment_max", "E", E, pattern, by, entries=True)
    if E.dim() == 1:
        return segment_max(E.unsqueeze(-1), pattern, by).squeeze(-1)
    return dispatch(_Max, (E,), pattern, by == "column")[0]


def _take(e: Tensor, at: Tensor) -> Tensor:
    """e[..., at[..., i, c], c], 0 for at = -1."""
    if e.shape[-2] == 0:
        return e.new_zeros((*e.shape[:-2], *at.shape[-2:]))
    at = at.long()
    return torch.where(at < 0, 0, torch.gather(e, -2, at.clamp(min=0)))


class _Max(Operation):
    """(maximum, its position)"""

    @staticmethod
    def forward(e, pattern, columns):
        top, at = _raw_max(pattern._structure(columns), segments.flat(e))
        shape = (*e.shape[:-2], *top.shape[-2:])
        return top.reshape(shape), at.reshape(shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])
        ctx.constants = inputs[1:]

    @staticmethod
    def backward(ctx, g, _):
        (at,) = ctx.saved_tensors
        return None if g is None else dispatch(_Place, (g, at), *ctx.constants), None, None

    @staticmethod
    def jvp(ctx, t, *_):
        (at,) = ctx.saved_tensors
        return dispatch(_Take, (t, at), *ctx.constants), None

    @classmethod
    def vmap(cls, info, in_dims, e, *constants):
        return segments.mapped(cls, info, in_dims, (e,), *constants)


class _Linear(Multilinear):
    """Linear in its first operand, for positions `at`."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.constants = inputs[2:]

    @classmethod
    def jvp(cls, ctx, t, *_):
        return dispatch(cls, (t, *ctx.saved_tensors), *ctx.constants)

    @classmethod
    def vmap(cls, info, in_dims, t, at, *constants):
        return segments.mapped(cls, info, in_dims, (t, at), *constants)


class _Take(_Linear):
    """The entries at these positions."""

    @staticmethod
    def forward(e, at, pattern, columns):
        return _take(e, at)

    @staticmethod
    def backward(ctx, g):
        return dispatch(_Place, (g, *ctx.saved_tensors), *ctx.constants), None, None, None


class _Place(_Linear):
    """The adjoint of `_Take`: g at these positions, zeros elsewhere."""

    @staticmethod
    def forward(g, at, pattern, columns):
        out = _raw_place(pattern._structure(columns), segments.flat(at), segments.flat(g))
        return out.reshape((*g.shape[:-2], *out.shape[-2:]))

    @staticmethod
    def backward(ctx, g):
        return dispatch(_Take, (g, *ctx.saved_tensors), *ctx.constants), None, None, None


@torch.library.register_fake("learnsolve::csr_segment_max")
def _(S, e):
    size = (*e.shape[:-2], S[0].shape[0] - 1, e.shape[-1])
    return e.new_empty(size), e.new_empty(size, dtype=S[1].dtype)


@torch.library.register_fake("learnsolve::csr_segment_place")
def _(S, at, g):
    return g.new_empty((*g.shape[:-2], S[1].shape[0], g.shape[-1]))
