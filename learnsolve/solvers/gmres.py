"""GMRES with restarts, and its flexible form, for any square matrix.

Sources: Saad and Schultz, "GMRES", SIAM J. Sci. Stat. Comput. 7 (1986) 856-869; Saad, "A flexible inner-outer
preconditioned GMRES algorithm", SIAM J. Sci. Comput. 14 (1993) 461-469. The iterate is brought up to date in every
iteration, with directions P = Z R^-1 (Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 6.5.8), so
that it can stop, and be looked at, at any time.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.solvers._loop import CODE, divide, dot
from learnsolve.solvers._operator import Operator
from learnsolve.solvers.base import Status


class State(NamedTuple):
    x: Tensor
    r: Tensor
    V: Tensor  # (j + 1, ..., n, k), the orthonormal basis
    P: Tensor  # (j, ..., n, k), directions of x
    c: Tensor  # (j, ..., 1, k), rotations
    s: Tensor
    eta: Tensor  # the last entry of the rotated right-hand side


class GeneralisedMinimalResidual:
    """Arnoldi, orthogonalised twice, preconditioned from the right."""

    def __init__(self, name: str, restart: int):
        self.name, self.restart = name, restart

    def start(self, A: Operator, M: Any, b: Tensor, x: Tensor, r: Tensor, running: Tensor) -> State:
        length = _root(dot(r, r))
        v = divide(r, length, running)
        empty = v.new_empty((0, *v.shape))
        scalars = length.new_empty((0, *length.shape))
        return State(x, r, v.unsqueeze(0), empty, scalars, scalars, length)

    def step(self, A: Operator, M: Any, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        x, r, V, P, c, s, eta = state
        if len(P) == self.restart:
            x, r, V, P, c, s, eta = self.start(A, M, b, x, b - A(x), running)
        z = V[-1] if M is None else M(V[-1])
        w = A(z)
        first = w
        h = dot(V, w)
        w = w - (h * V).sum(0)
        again = dot(V, w)
        w = w - (again * V).sum(0)
        h = h + again
        below = _root(dot(w, w))
        # What is left of A z may be rounding errors only: the basis is then complete.
        negligible = 10 * torch.finfo(w.dtype).eps * torch.linalg.vector_norm(first.detach(), dim=-2, keepdim=True)
        below = torch.where(below.detach() <= negligible, 0, below)
        column = list(h.unbind(0))
        for i in range(len(c)):
            up, down = column[i], column[i + 1]
            column[i], column[i + 1] = c[i] * up + s[i] * down, c[i] * down - s[i] * up
        diagonal = _root(column[-1] * column[-1] + below * below)
        new_c, new_s = divide(column[-1], diagonal, running), divide(below, diagonal, running)
        direction = z
        if len(P):
            direction = z - (torch.stack(column[:-1]) * P).sum(0)
        p = divide(direction, diagonal, running)
        v = divide(w, below, running)
        x = x + new_c * eta * p
        eta_next = -new_s * eta
        # r_j = s_j^2 r_{j-1} + c_j eta_{j+1} v_{j+1}
        r = new_s * new_s * r + new_c * eta_next * v
        new = State(
            x,
            r,
            torch.cat((V, v.unsqueeze(0))),
            torch.cat((P, p.unsqueeze(0))),
            torch.cat((c, new_c.unsqueeze(0))),
            torch.cat((s, new_s.unsqueeze(0))),
            eta_next,
        )
        return new, torch.where(diagonal == 0, CODE[Status.BREAKDOWN], 0)


def _root(t: Tensor) -> Tensor:
    positive = t > 0
    return torch.where(positive, torch.where(positive, t, 1).sqrt(), 0)
