"""The p-Laplacian on n x n cells of the unit square: energy, gradient, Newton's method."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from learnsolve.nonlinear import jacobian, root
from learnsolve.solvers.core.report import quiet
from learnsolve.solvers.solution import Solution

SMALL = 1e-4  # added to |grad u|^2: without it the Jacobian is singular where the gradient vanishes


def differences(u: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Differences of nodal values, (..., n - 1, n - 1), along the edges of the two triangles of n x n
    cells."""
    v = pad(u, (1, 1, 1, 1))
    a, b, c, d = v[..., :-1, :-1], v[..., :-1, 1:], v[..., 1:, :-1], v[..., 1:, 1:]
    return (c - a, b - a), (d - b, d - c)


def energy(u: Tensor, k: Tensor, p: float) -> Tensor:
    """E for u that is linear on each triangle."""
    h = 1 / k.shape[-1]
    both = sum(((x**2 + y**2) / h**2 + SMALL) ** (p / 2) for x, y in differences(u))
    return h**2 * ((k * both / (2 * p)).sum((-2, -1)) - u.sum((-2, -1)))


def gradient(u: Tensor, k: Tensor, p: float) -> Tensor:
    """The gradient of E at u."""
    h, both = 1 / k.shape[-1], differences(u)
    weights = (k / 2 * ((x**2 + y**2) / h**2 + SMALL) ** (p / 2 - 1) for x, y in both)
    (x, y), (s, t) = ((w * x, w * y) for w, (x, y) in zip(weights, both, strict=True))
    at_a, at_b, at_c, at_d = -x - y, y - s, x - t, s + t
    return at_a[1:, 1:] + at_b[1:, :-1] + at_c[:-1, 1:] + at_d[:-1, :-1] - h**2


class Problem:
    """grad E(u) = 0 for one p, on grids of any size."""

    def __init__(self, p: float):
        self.f = partial(gradient, p=p)
        self.J = jacobian(self.f)  # caches patterns and colors

    def solve(self, u: Tensor, k: Tensor, rtol: float, throw: bool = True) -> Solution:
        """Solve by Newton's method from u, to rtol relative to the residual of 0."""
        atol = rtol * float(self.f(torch.zeros_like(u), k).norm())
        options: Any = {"jacobian": self.J, "linear": "direct", "maxiter": 200, "throw": throw}
        with quiet():
            return root(self.f, u, k, rtol=0.0, atol=atol, **options)
