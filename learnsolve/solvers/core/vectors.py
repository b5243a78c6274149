"""Arithmetic on blocks of columns (..., n, k), whose derivatives are finite wherever a column has stopped."""

import cmath

import torch
from torch import Tensor

from learnsolve.matrix.convert import conjugate
from learnsolve.ops.core import complex
from learnsolve.ops.core.across import across
from learnsolve.ops.core.autograd import tracked
from learnsolve.ops.core.dots import SPLIT, dots, scaled


def dot(u: Tensor, v: Tensor) -> Tensor:
    """<u, v> of each column, (..., 1, k); of complex ones with u conjugated."""
    if not u.is_complex():
        return dots(u, v, True)
    if u.numel() < SPLIT:
        return dots(u.conj(), v, True)
    return conjugate(dots(u, conjugate(v), True))  # of v, where u may be many


def square(u: Tensor) -> Tensor:
    """<u, u> of each column, a real number."""
    if u.is_complex():
        u = complex.tall(u)
    return dots(u, u, True)


def divide(a: Tensor, b: Tensor, where: Tensor) -> Tensor:
    """a / b where `where` holds and b is not zero, else 0; its derivatives there are 0 too, not NaN."""
    good = where & (b != 0)
    if a.numel() >= SPLIT and a.numel() > b.numel():  # the gradient for b is then a dot
        return scaled(torch.where(good, 1, 0) / torch.where(good, b, 1), torch.where(good, a, 0))
    return torch.where(good, a, 0) / torch.where(good, b, 1)


def add_scaled(u: Tensor, a: Tensor, v: Tensor) -> Tensor:
    """u + a o v; of complex numbers, which no compiled loop takes, in one pass."""
    if u.is_complex() and not tracked(u, a, v):
        return torch.addcmul(u, a.to(u.dtype), v)
    return u + scaled(a, v)


def root(t: Tensor) -> Tensor:
    """The square root of what is positive, else 0, where its derivatives are 0 too. NaN stays NaN."""
    if not torch.is_grad_enabled():
        return t.clamp(min=0).sqrt()
    good = ~(t <= 0)
    return torch.where(good, torch.where(good, t, 1).sqrt(), 0)


def safe_size(u: Tensor) -> Tensor:
    """`size` of vectors whose squares may leave the range of the dtype."""
    if u.shape[-2] == 0 and across() is None:
        return size(u)
    unit = largest(u, -2)
    unit = torch.where((unit > 0) & torch.isfinite(unit), unit, 1)
    return unit * size(u / unit)


def surely_finite(t: Tensor) -> bool:
    """All of it, at the cost of a pass: a sum of finite numbers may overflow."""
    return cmath.isfinite((t if t.numel() == 1 else t.detach().sum()).item())


def largest(u: Tensor, dim: int) -> Tensor:
    """The largest modulus along an axis that stays, a constant; a tenth of the time of an infinity norm."""
    processes = across()
    if processes is None:
        return u.detach().abs().amax(dim, keepdim=True)
    return processes.largest(u.detach().abs().amax(dim, True) if u.shape[dim] else u.detach().sum(dim, True))


def size(u: Tensor) -> Tensor:
    """||u|| of each column, (..., 1, k), a constant."""
    u = u.detach()
    if u.numel() < SPLIT and across() is None and not u.is_complex():  # of which the norm is slow
        return torch.linalg.vector_norm(u, dim=-2, keepdim=True)
    return square(u).sqrt()


def extended(vectors: Tensor, j: int, v: Tensor, most: int) -> Tensor:
    """The vectors with v as number j. Copies of all are made where autograd records, else when room ends."""
    if torch.is_grad_enabled():
        return torch.cat((vectors, v.unsqueeze(0)))
    if len(vectors) == j:
        room = 32 if v.is_cpu else min(j, 32)  # what is not written takes no memory of a CPU
        vectors = torch.cat((vectors, vectors.new_empty((max(min(most - j, room), 1), *v.shape))))
    vectors[j] = v
    return vectors
