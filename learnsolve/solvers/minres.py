"""MINRES, for symmetric matrices that may be indefinite.

Sources: Paige and Saunders, "Solution of sparse indefinite systems of linear equations", SIAM J. Numer. Anal. 12
(1975) 617-629; Elman, Silvester and Wathen, "Finite Elements and Fast Iterative Solvers" (2014), algorithm 4.1.
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
    v_old: Tensor  # Lanczos vectors, not normalised
    v: Tensor
    z: Tensor  # M v
    gamma_old: Tensor  # their lengths in the norm of M
    gamma: Tensor
    w_older: Tensor  # directions of x
    w_old: Tensor
    Aw_older: Tensor  # and of r
    Aw_old: Tensor
    c_old: Tensor  # Givens rotations
    c: Tensor
    s_old: Tensor
    s: Tensor
    eta: Tensor  # what is left of the residual in the norm of M


def _root(t: Tensor) -> Tensor:
    """Its derivative at zero is zero."""
    positive = t > 0
    return torch.where(positive, torch.where(positive, t, 1).sqrt(), 0)


class MinimalResidual:
    """Lanczos with M, and the QR factorisation of its tridiagonal matrix by rotations."""

    name = "minres"

    def start(self, A: Operator, M: Any, b: Tensor, x: Tensor, r: Tensor, running: Tensor) -> State:
        z = r if M is None else M(r)
        gamma = _root(dot(r, z))
        none, one, zero = torch.zeros_like(r), torch.ones_like(gamma), torch.zeros_like(gamma)
        # A negative <r, M r> is kept, for the first step to find.
        gamma = torch.where(dot(r, z) < 0, -one, gamma)
        return State(x, r, none, r, z, one, gamma, none, none, none, none, one, one, zero, zero, gamma)

    def step(self, A: Operator, M: Any, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        q = state
        z = divide(q.z, q.gamma, running & (q.gamma > 0))
        Az = A(z)
        delta = dot(Az, z)
        v = Az - divide(delta, q.gamma, running) * q.v - divide(q.gamma, q.gamma_old, running) * q.v_old
        z_next = v if M is None else M(v)
        square = dot(v, z_next)
        gamma = _root(square)
        a0 = q.c * delta - q.c_old * q.s * q.gamma
        a1 = _root(a0 * a0 + gamma * gamma)
        a2 = q.s * delta + q.c_old * q.c * q.gamma
        a3 = q.s_old * q.gamma
        c, s = divide(a0, a1, running), divide(gamma, a1, running)
        w = divide(z - a3 * q.w_older - a2 * q.w_old, a1, running)
        Aw = divide(Az - a3 * q.Aw_older - a2 * q.Aw_old, a1, running)
        length = c * q.eta
        x, r = q.x + length * w, q.r - length * Aw
        # Rounding alone makes <v, M v> a little negative.
        slack = torch.finfo(v.dtype).eps * (v.detach() * z_next.detach()).abs().sum(-2, keepdim=True)
        indefinite = (q.gamma < 0) | (square < -10 * slack)
        trouble = torch.where(a1 == 0, CODE[Status.BREAKDOWN], 0)
        trouble = torch.where(indefinite, CODE[Status.INDEFINITE], trouble)
        new = State(
            x, r, q.v, v, z_next, q.gamma, gamma, q.w_old, w, q.Aw_old, Aw, q.c, c, q.s, s, -s * q.eta
        )  # fmt: skip
        return new, trouble
