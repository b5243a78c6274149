"""Sums of the columns of dense blocks, with the same bits for any number of threads, differentiable to any
order.

They are the derivatives of one trilinear form (trilinear.py),

    Phi(a, u, v) = sum_b sum_c a_bc <u_bc, v_bc>,      c: a column,

dPhi/da the dots of columns, dPhi/du = a o v, and both summed over the batch for a shared operand.

torch splits a sum among its threads from `SPLIT` elements on. Shorter ones are left to it in `dots` and
`scaled`, with autograd's own derivatives, which have less overhead than a Function.
"""

from typing import Any

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix.convert import conjugate
from learnsolve.ops.core import across, complex
from learnsolve.ops.core.autograd import dispatch, tracked
from learnsolve.ops.core.trilinear import Derivative, broadcast, gradients

_raw_dots = torch.ops.learnsolve.column_dots.default
_raw_combination = torch.ops.learnsolve.column_combination.default

# The operands a, u, v of Phi.
_A, _U, _V = 0, 1, 2


SPLIT = 32768  # at::internal::GRAIN_SIZE


def dots(u: Tensor, v: Tensor, keepdim: bool = False) -> Tensor:
    """<u, v> of each column, (..., k), for u and v (..., n, k); of all rows, where processes share them.
    Nothing is conjugated."""
    if u.numel() < SPLIT and v.numel() < SPLIT:
        return across.total((u * v).sum(-2, keepdim))
    return across.total(ordered_dots(u, v).unsqueeze(-2) if keepdim else ordered_dots(u, v))


def ordered_dots(u: Tensor, v: Tensor) -> Tensor:
    """`dots` whose bits do not depend on the layout of memory either."""
    return _apply(_A, u, v)


def scaled(a: Tensor | float, v: Tensor) -> Tensor:
    """a o v for v (..., n, k) or (n,), and a coefficient of each column, (..., 1, k), or of all, whose
    gradient is a dot."""
    if v.numel() < SPLIT or not isinstance(a, Tensor) or not tracked(a):
        return a * v
    if v.dim() == 1:
        return scaled(a.reshape(1, 1), v.unsqueeze(-1)).squeeze(-1) if a.numel() == 1 else a * v
    if a.dim() > 1 and a.shape[-2] != 1:
        return a * v  # of each row
    if a.dim() < 2 or a.shape[-1] != v.shape[-1]:
        a = a.expand((*a.shape[:-2], 1, v.shape[-1]))
    return _apply(_U, a.squeeze(-2), v)


def times(v: Tensor, s: Any) -> Tensor:
    """v s for v (..., n) and s, a float or a tensor; the gradient of a scalar or (..., 1) is a sum."""
    if not _sums(v, s):
        return v * s
    s = s.to(torch.result_type(v, s))
    return scaled(s.unsqueeze(-1) if s.dim() else s, v.unsqueeze(-1)).squeeze(-1)


def over(v: Tensor, s: Any) -> Tensor:
    """v / s, likewise: by s times ones, which keeps the bits of the quotient."""
    return v / (times(v.new_ones(()).expand(v.shape), s) if _sums(v, s) else s)


def spread(s: Tensor, n: int) -> Tensor:
    """s (..., 1) as (..., n), likewise; one of (..., n) as it is."""
    rows = s.expand(*s.shape[:-1], n)
    ones = s.new_ones(()).expand(rows.shape)
    return times(ones, s) if _sums(ones, s) else rows


def _sums(v: Tensor, s: Any) -> bool:
    if not isinstance(s, Tensor) or v.numel() < SPLIT or s.device != v.device:
        return False
    return (s.dim() == 0 or s.shape[-1] == 1 < v.shape[-1]) and tracked(s)


def combination(a: Tensor, v: Tensor) -> Tensor:
    """sum_j a_j o v_j, (..., n, k), for a (j, ..., 1, k) and v (j, ..., n, k)."""
    if v.numel() < SPLIT:
        return (a * v).sum(0)
    if v.dim() == 3:
        a = a.to(v.dtype) if v.is_complex() else a
        return dispatch(_Columns, (a.squeeze(-2), v), _U, True)
    out = scaled(a[0], v[0])
    for i in range(1, len(a)):
        out = out + scaled(a[i], v[i])
    return out


def total(t: Tensor) -> Tensor:
    """The sum along the last axis."""
    if t.is_complex():
        return torch.complex(total(t.real), total(t.imag))
    if t.dtype not in (torch.float32, torch.float64):
        return t.sum(-1)
    column = t.unsqueeze(-1)
    return ordered_dots(column, torch.ones((), dtype=t.dtype, device=t.device).expand(column.shape)).squeeze(
        -1
    )


def _apply(role: int, u: Tensor, v: Tensor) -> Tensor:
    inner = 1 if role == _U else 2
    if u.is_complex() != v.is_complex():
        return complex.bilinear(lambda u, v: _apply(role, u, v), u, v, (inner, 2))
    if u.dim() <= inner + 1 and v.dim() <= 3 and (u.dim() == inner or v.dim() == 2 or len(u) == len(v)):
        return dispatch(_Columns, (u, v), role, False)
    return broadcast(_Columns, role, u, v)


class _Columns(Derivative):
    """The derivatives of Phi. Operands are a (k) or (B, k), and u and v (n, k) or (B, n, k)."""

    @staticmethod
    def axes(role):
        return 1 if role == _A else 2

    @staticmethod
    def forward(u, v, role, shared):
        if role == _A:
            return _raw_dots(u, v, shared)
        return _raw_combination(u, v) if shared else u.unsqueeze(-2) * v

    @staticmethod
    def backward(ctx, g):
        u, v = ctx.saved_tensors
        return gradients(_Columns, ctx, g, (conjugate(u), conjugate(v)))


@torch.library.register_fake("learnsolve::column_dots")
def _(u, v, sum_batch=False):
    k = v.shape[-1:]
    if sum_batch or (u.dim() == 2 and v.dim() == 2):
        return u.new_empty(k)
    u_batch = u.shape[0] if u.dim() == 3 else 1
    return u.new_empty((v.shape[0] if v.dim() == 3 and u_batch == 1 else u_batch, *k))


@torch.library.register_fake("learnsolve::column_combination")
def _(a, v):
    return v.new_empty(v.shape[-2:])
