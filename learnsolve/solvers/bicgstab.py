"""BiCGSTAB, for any square matrix, in short recurrences.

Source: van der Vorst, "Bi-CGSTAB", SIAM J. Sci. Stat. Comput. 13 (1992) 631-644; preconditioned from the right.
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
    shadow: Tensor  # the first residual
    p: Tensor
    v: Tensor  # A M p
    rho: Tensor
    alpha: Tensor
    omega: Tensor


class BiCGStab:
    name = "bicgstab"

    def start(self, A: Operator, M: Any, b: Tensor, x: Tensor, r: Tensor, running: Tensor) -> State:
        none, one = torch.zeros_like(r), torch.ones_like(r[..., :1, :])
        return State(x, r, r, none, none, one, one, one)

    def step(self, A: Operator, M: Any, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        q = state
        rho = dot(q.shadow, q.r)
        beta = divide(rho, q.rho, running) * divide(q.alpha, q.omega, running)
        p = q.r + beta * (q.p - q.omega * q.v)
        Mp = p if M is None else M(p)
        v = A(Mp)
        rv = dot(q.shadow, v)
        alpha = divide(rho, rv, running)
        s = q.r - alpha * v
        Ms = s if M is None else M(s)
        t = A(Ms)
        omega = divide(dot(t, s), dot(t, t), running)
        x, r = q.x + alpha * Mp + omega * Ms, s - omega * t
        # Relative to their factors: a product of vectors of size 1e-200 is no breakdown.
        size = _norms(q.shadow, q.r)
        stuck = (rho.detach().abs() <= torch.finfo(r.dtype).tiny * size) | (rv == 0) | (q.omega == 0)
        return State(x, r, q.shadow, p, v, rho, alpha, omega), torch.where(stuck, CODE[Status.BREAKDOWN], 0)


def _norms(u: Tensor, v: Tensor) -> Tensor:
    u, v = u.detach(), v.detach()
    return torch.linalg.vector_norm(u, dim=-2, keepdim=True) * torch.linalg.vector_norm(
        v, dim=-2, keepdim=True
    )
