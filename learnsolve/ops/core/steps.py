"""Stationary steps by public operations, x' = x + s o M (b - A x) + m (x - before), where `before` is the
iterate before x: defined only here.

The compiled sweeps of richardson.py do the same for a CSR matrix and a diagonal M. These steps provide their
forward mode and second derivatives, and support any other A and M. Steps to a tolerance add momentum by the
same function (both are used in solvers/core/stationary.py).
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.ops.core import complex
from learnsolve.ops.core.dots import dots, scaled


def residual_norm(r: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """||r|| along `dim`, the second to last axis, or the last for vectors. Its derivatives at zero are zero;
    the second derivative of `vector_norm` is NaN there."""
    if r.is_complex():
        r = complex.flat(r) if dim == -1 or r.dim() == 1 else complex.tall(r)
    if dim == -1 or r.dim() == 1:
        square = dots(r.unsqueeze(-1), r.unsqueeze(-1))
        square = square if keepdim else square.squeeze(-1)
    else:
        square = dots(r, r, keepdim)
    if not torch.is_grad_enabled():
        return square.sqrt()
    zero = square == 0
    return torch.where(zero, 0, torch.where(zero, 1, square).sqrt())


def with_momentum(y: Tensor, momentum: Tensor | float | None, x: Tensor, before: Tensor) -> Tensor:
    """y + momentum (x - before)"""
    return y if momentum is None else y + scaled(momentum, x - before)


def stationary_steps(
    A: Callable[[Tensor], Tensor],
    M: Callable[[Tensor], Tensor] | Sequence[Callable[[Tensor], Tensor]] | None,
    scale: Tensor | None,
    momentum: Tensor | None,
    b: Tensor,
    x: Tensor,
    before: Tensor,
    numbers: Iterable[int],
    r: Tensor | None = None,
    stops: Callable[[int, Tensor, Tensor], bool] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the steps: x, the previous iterate, and the residual norm before each step.

    Parameters
    ----------
    M : r -> M r, or a sequence of one per step; None: the identity
    scale : s, shape (..., 1 or steps, 1 or n); None: 1
    momentum : m, shape (..., 1 or steps); None: 0
    b, x, before : (n,) or (..., n, k)
    r : b - A x for the given x, if known
    stops : called with (number, x, residual norm) before each step; True ends the steps
    """
    axis, norms = 0 if b.dim() == 1 else -2, []
    for number in numbers:
        r = b - A(x) if r is None else r
        norm = residual_norm(r, axis, keepdim=True)
        if stops is not None and stops(number, x, norm):
            break
        norms.append(norm)
        z = r if M is None else M(r) if callable(M) else M[number](r)
        if scale is not None:
            s = scale[..., number if scale.shape[-2] > 1 else 0, :]
            z = scaled(s if b.dim() == 1 else s.unsqueeze(-1), z)
        m = None
        if momentum is not None:
            m = momentum[..., number if momentum.shape[-1] > 1 else 0]
            m = m.unsqueeze(-1).unsqueeze(-1) if m.dim() else m
        x, before, r = x + with_momentum(z, m, x, before), x, None
    return x, before, torch.cat(norms, axis) if norms else b.new_empty(b.narrow(axis, 0, 0).shape)


krylov_steps = torch.ops.learnsolve.csr_krylov.default

GMRES = 2  # `method` of csrc/ops/schema.cpp


@torch.library.register_fake("learnsolve::csr_krylov")
def _(A, values, method, diagonal, b, vectors, scalars, level, limit, iterations, restart):
    rows, numbers = ((9, 10), (5, 3), (0, 0))[method]
    if method == GMRES:
        room = min(restart, iterations + (len(vectors[3]) if len(vectors) > 2 else 0))
        rows, numbers = 4 if len(vectors) == 5 else 3 + 2 * room, 2 + 2 * room
    counts = b.new_empty(2, dtype=torch.int64)
    return b.new_empty(rows, len(b)), b.new_empty(numbers), b.new_empty(iterations), counts
