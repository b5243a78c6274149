"""Conjugate gradients, preconditioned.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), algorithm 9.1; Notay, "Flexible conjugate
gradients", SIAM J. Sci. Comput. 22 (2000), for the flexible variant with truncation after one direction.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.solvers._loop import CODE, divide, dot
from learnsolve.solvers._operator import Operator
from learnsolve.solvers._solve import Options, solve
from learnsolve.solvers.base import Solution, Status


class State(NamedTuple):
    x: Tensor
    r: Tensor
    p: Tensor
    rho: Tensor  # <r, M r>


class ConjugateGradients:
    """p the direction, q = A p: x += alpha p, r -= alpha q with alpha = rho / <p, q>."""

    def __init__(self, name: str, flexible: bool):
        self.name, self.flexible = name, flexible

    def start(self, A: Operator, M: Any, b: Tensor, x: Tensor, r: Tensor, running: Tensor) -> State:
        z = r if M is None else M(r)
        return State(x, r, z, dot(r, z))

    def step(self, A: Operator, M: Any, b: Tensor, s: State, running: Tensor) -> tuple[State, Tensor]:
        q = A(s.p)
        curvature = dot(s.p, q)
        wrong = (curvature <= 0) | (s.rho <= 0)
        good = running & ~wrong
        alpha = divide(s.rho, curvature, good)
        x, r = s.x + alpha * s.p, s.r - alpha * q
        z = r if M is None else M(r)
        rho = dot(r, z)
        # Polak-Ribiere's form keeps p conjugate to the last direction when M changes from step to step.
        beta = divide(rho - dot(s.r, z) if self.flexible else rho, s.rho, good)
        return State(x, r, z + beta * s.p, rho), torch.where(wrong, CODE[Status.INDEFINITE], 0)


def cg(A: Any, b: Tensor, x0: Tensor | None = None, **options: Any) -> Solution:
    """Conjugate gradients."""
    return solve(ConjugateGradients("cg", False), A, b, x0, Options(**options), symmetric=True)
