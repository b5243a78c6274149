"""Gauss-Newton and Levenberg-Marquardt, with the normal equations, or with LSMR.

Sources: Marquardt, "An algorithm for least-squares estimation of nonlinear parameters", J. SIAM 11 (1963)
431-441; Nielsen, "Damping parameter in Marquardt's method", IMM-REP-1999-05 (1999).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.nonlinear._implicit import Ended
from learnsolve.nonlinear._linear import INNER, LINEAR, Systems, column, norm, over
from learnsolve.nonlinear._newton import Progress, Settings
from learnsolve.nonlinear._residual import Residual
from learnsolve.solvers.core.report import quiet
from learnsolve.solvers.lsqr import lsmr
from learnsolve.solvers.solution import Status

_FIRST = 1e-3  # damping, relative to the largest diagonal entry of J^T J
_LARGEST = 1e12  # relative damping at which the method gives up
_DECREASE = 1e-4  # of ||r||^2, relative to that of the model


class Normal(Systems):
    """(J^T J + shift) d = b, for J of any shape."""

    by_products = "cg"
    methods = (*LINEAR, "lsmr")
    r: Any = None  # b = -J^T r, for "lsmr"

    def check(self, n: int) -> None:
        if self.J.shape[1] != n:
            raise ValueError(
                f"{self.residual.name}: jacobian(u, *args) must have {n} columns, as u has {n} entries, "
                f"got shape {self.J.shape}"
            )

    def of(self, J: Any) -> Any:
        return J.T @ J if isinstance(J, CSR) and self.how != "lsmr" else Squared(J)

    def shift(self, shift: Tensor | None) -> None:
        self.mu = shift
        super().shift(shift)

    def solve(self, b: Tensor, rtol: float, maxiter: int | None = None, transpose: bool = False) -> Ended:
        """With "lsmr": min ||J d + r||^2 + shift ||d||^2, until its gradient reaches the tolerance."""
        if self.how != "lsmr":
            return super().solve(b, rtol, maxiter, transpose)
        if self.residual.levels:
            raise NotImplementedError(
                f'{self.residual.name}: linear="lsmr" takes one system, under vmap use linear="cg"'
            )
        J, size = self.J, norm(b, 0)
        largest = norm(J.values, 0) if isinstance(J, CSR) else self.scale(b).sqrt()
        tolerance = rtol * float(size / (largest * norm(self.r, 0)).clamp(min=torch.finfo(b.dtype).tiny))
        options: dict[str, Any] = {} if isinstance(J, CSR) else {"transpose": J.T}
        options |= {"damp": 0.0 if self.mu is None else float(self.mu) ** 0.5, "maxiter": maxiter}
        with quiet():
            solution = lsmr(J, -self.r, atol=tolerance, btol=0.0, conlim=0.0, **options)
        left, codes = solution.normal_residual_norm, solution._codes
        assert left is not None
        assert codes is not None
        norms = torch.stack((size, left.reshape(())))
        return Ended(solution.x.reshape(b.shape), norms, codes.reshape(()), solution.note)

    def inverse(self) -> Any:
        return None if self.how == "lsmr" else super().inverse()

    def gradient(self, r: Tensor) -> Tensor:
        """J^T r."""
        self.r = y = column(r, self.residual.levels)
        return (self.J.T @ y if isinstance(self.J, CSR) else self.J.T(y)).reshape(self.u.shape)

    def magnitude(self, y: Tensor) -> Tensor:
        """About |J|^T y for y >= 0; if only products are known, by some of them."""
        v = column(y, self.residual.levels)
        if isinstance(self.J, CSR):
            return (self.J.with_values(self.J.values.abs()).T @ v).reshape(self.u.shape)
        generator, largest = torch.Generator().manual_seed(0), torch.zeros_like(self.u)
        for _ in range(8):
            signs = 2 * torch.randint(0, 2, v.shape, generator=generator).to(v) - 1
            largest = torch.maximum(largest, self.J.T(signs * v).reshape(self.u.shape).abs())
        return largest

    def scale(self, g: Tensor) -> Tensor:
        """The largest diagonal entry of J^T J, or, if only products are known, ||J g||^2 / ||g||^2."""
        levels = self.residual.levels
        if isinstance(self.matrix, CSR):
            return self.matrix.diagonal().amax(-1)
        v = column(g, levels)
        return (
            norm(self.J @ v if isinstance(self.J, CSR) else self.J(v), levels) ** 2
            / norm(v, levels).clamp(min=torch.finfo(g.dtype).tiny) ** 2
        )


class Squared:
    """v -> J^T J v."""

    def __init__(self, J: Any):
        self.J, self.Jt = J, J.T

    def __call__(self, v: Tensor) -> Tensor:
        return self.Jt(self.J(v))

    @property
    def T(self) -> Squared:
        return self


def levenberg_marquardt(
    f: Residual, systems: Systems, direction: Any, u: Tensor, p: tuple[Tensor, ...], r: Tensor, o: Settings
) -> Ended:
    """Steps d with (J^T J + mu) d = -J^T r. mu falls if the linear model predicted the decrease, and grows
    otherwise. Converged: ||r||, or with o.normal ||J^T r||, reached the tolerance."""
    size, levels = norm(r, f.levels), f.levels
    systems = systems if isinstance(systems, Normal) else Normal(f, systems.linear, systems.M)
    systems.update(u, p)
    g = systems.gradient(r)
    steep = first = norm(g, levels)
    progress = Progress(o, r, size, steep if o.normal else size)

    def rest(which: Tensor, stuck: bool) -> None:
        of: Any = {"measured": g, "through": systems.magnitude} if o.normal else {}
        progress.rest(which, f, u, p, r, stuck=stuck, **of)

    if o.rtol > 0:
        rest(progress.running, False)
    start = systems.scale(g)
    start = torch.where(start > 0, start, 1)
    mu, nu = (0 if o.gauss_newton else _FIRST) * start, torch.full_like(size, 2.0)
    eps = torch.finfo(u.dtype).eps
    while len(progress.norms) <= o.maxiter and bool((running := progress.running).any()):
        systems.shift(mu)
        eta = (
            float((steep / first.clamp(min=torch.finfo(u.dtype).tiny)).max())
            if o.forcing is None
            else o.forcing
        )
        solved = systems.solve(torch.where(over(running, g), -g, 0), min(max(eta, 10 * eps), 1e-2), INNER)
        lost = ~torch.isfinite(norm(solved.x, levels))
        d = torch.where(over(lost, u), 0, solved.x)
        u_next = u + d
        r_next = f(u_next, *p)
        size_next = norm(r_next, levels)
        model = (d * (over(mu, d) * d - g)).flatten(levels).sum(-1) / 2
        gain = (size - size_next) * (size + size_next) / 2 / torch.where(model > 0, model, 1)
        noise = model <= 10 * eps * size**2  # no decrease is measurable
        good = (
            running
            & ~lost
            & (model > 0)
            & torch.where(noise, size_next <= size * (1 + 10 * eps), gain > _DECREASE)
        )
        mu = torch.where(
            good,
            mu * (1 - (2 * gain.clamp(0, 1) - 1) ** 3).clamp(min=1 / 3),
            torch.where(mu > 0, mu, _FIRST * start) * nu,
        )
        nu = torch.where(good, 2.0, 2 * nu)
        moved = over(good, u)
        u, r = torch.where(moved, u_next, u), torch.where(over(good, r), r_next, r)
        size, before = torch.where(good, size_next, size), steep
        if bool(good.any()):
            systems.update(u, p)
            g = systems.gradient(r)
            steep = norm(g, levels)
        progress.step(u, r, size, steep if o.normal else size)
        ended = noise & ((steep > before / 2) | ~good)
        rest(ended, True)
        progress.stop(ended & o.normal, Status.STAGNATED)
        progress.stop(
            ended | (mu > _LARGEST * start) & ~good,
            Status.LINE_SEARCH_FAILED if o.normal else Status.SINGULAR_JACOBIAN,
        )
    return progress.ended(u)._replace(normal=steep)
