"""The loops: Newton's method with a line search, Gauss-Newton and Levenberg-Marquardt, Anderson
acceleration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix.checks import full_precision
from learnsolve.matrix.csr import CSR
from learnsolve.nonlinear._linear import (
    INNER,
    LINEAR,
    NOT_FINITE,
    LoopResult,
    Residual,
    Systems,
    broadcast_scalar,
    column,
    norm,
)
from learnsolve.ops.operators import wrap_operator
from learnsolve.solvers.core.loop import quiet
from learnsolve.solvers.least_squares import lsmr
from learnsolve.solvers.solution import CODE, Iteration, Status

# The rounding floor of a residual: what rounding its arguments changes.
#
# A residual below it cannot be told from zero, so that a tolerance relative to the first residual is met
# there, however small that is: for a start at the solution it is rounding errors only.


_UNITS = 16  # rounding units by which arguments are changed at most
_TRIALS = 8  # so that no entry of f happens to change little in all of them
_FAR = 64  # times the change in the first trial: no rounding error


@torch.no_grad()
def rounding(
    f: Residual,
    u: Tensor,
    p: tuple[Tensor, ...],
    r: Tensor,
    measured: Tensor | None = None,
    through: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The floor of each entry of r = f(u), by calls of f, or with `through`, a linear map without signs, of
    the entries of `measured`, through(r). 0 if one call shows that no system is near it."""
    u, r, p = u.detach(), r.detach(), tuple(t.detach() for t in p)
    measured = r if measured is None else measured
    unit = _UNITS * torch.finfo(u.dtype).eps
    generator = torch.Generator().manual_seed(0)

    def rounded(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        # Equal changes would cancel.
        change = torch.rand(t.shape, dtype=torch.float64, generator=generator, device="cpu")
        return t * (1 + unit * (2 * change - 1).to(t))

    floor = torch.zeros_like(r)
    for trial in range(_TRIALS):
        floor = torch.maximum(floor, (f(rounded(u), *map(rounded, p)) - r).abs())
        if trial == 0:
            near = norm(measured, f.levels) <= _FAR * norm(_map_floor(through, floor, r, unit), f.levels)
            if not bool(near.any()):
                return torch.zeros_like(measured)
    return _map_floor(through, floor, r, unit)


def _map_floor(through: Callable[[Tensor], Tensor] | None, floor: Tensor, r: Tensor, unit: float) -> Tensor:
    """The derivatives in the map are rounded too, by a unit."""
    return floor if through is None else through(floor + unit * r.abs())


def is_rounding(r: Tensor, floor: Tensor, levels: int) -> Tensor:
    """Which systems have no entry above the floor, of whatever size the others are."""
    return (r.detach().abs() <= floor).flatten(levels).all(-1)


# Newton's method with a line search, for systems of the same shape that stop independently.
#
# Sources: Dennis and Schnabel, "Numerical Methods for Unconstrained Optimization and Nonlinear Equations"
# (1983), chapter 6; Eisenstat and Walker, "Choosing the forcing terms in an inexact Newton method", SIAM J.
# Sci. Comput. 17 (1996) 16-32, choice 2; Kelley and Keyes, "Convergence analysis of pseudo-transient
# continuation", SIAM J. Numer. Anal. 35 (1998) 508-523.


_NEWTON_DECREASE = 1e-4  # of Armijo's rule
_SMALLEST = 1e-10  # step
_SLOW = 0.5  # a chord step that reduces the residual by less requests a new Jacobian
_FORCING, _LEAST = 0.1, 1e-2  # tolerance of the loosest linear solve, and of the first


@dataclass(eq=False)
class Settings:
    """Settings shared by the loops."""

    rtol: float
    atol: float
    maxiter: int
    callback: Callable[[Iteration], object] | None
    line_search: object = "backtracking"
    pseudo_transient: float | None = None
    forcing: float | None = None
    chord: bool = False
    memory: int = 5
    damping: Any = 1.0
    normal: bool = False  # the criterion is J^T r
    gauss_newton: bool = False
    relative_to_u: bool = False  # also accept ||r|| <= 10 eps ||u||


def live(r: Tensor, size: Tensor) -> Tensor:
    """||r||, with a graph if r has one."""
    if not (torch.is_grad_enabled() and r.requires_grad):
        return size
    return torch.linalg.vector_norm(r.flatten(size.dim()), dim=-1)


class Progress:
    """Norms, codes and messages of the systems while a loop runs."""

    def __init__(
        self,
        settings: Settings,
        r: Tensor,
        first: Tensor,
        measured: Tensor | None = None,
        floor: float | Tensor = 0.0,
    ):
        """`measured`: the quantity that must become small (default: the residual norm), at least `floor`."""
        measured = first if measured is None else measured
        self.settings, self.norms = settings, [live(r, first)]
        self.target = (settings.rtol * measured).clamp(min=settings.atol).clamp(min=floor)
        self.limit = first / torch.finfo(first.dtype).eps
        self.codes = torch.zeros(first.shape, dtype=torch.long, device=first.device)
        self._judge(first, measured)

    @property
    def running(self) -> Tensor:
        return self.codes == 0

    def stop(self, which: Tensor, status: Status) -> None:
        self.codes = torch.where(which & self.running, CODE[status], self.codes)

    def _judge(self, size: Tensor, measured: Tensor) -> None:
        self.stop(~torch.isfinite(size + measured), Status.NON_FINITE)
        self.stop(measured <= self.target, Status.CONVERGED)
        self.stop(size > self.limit, Status.DIVERGED)

    def rest(
        self,
        which: Tensor,
        f: Residual,
        u: Tensor,
        p: tuple[Tensor, ...],
        r: Tensor,
        *,
        measured: Tensor | None = None,
        through: Callable[[Tensor], Tensor] | None = None,
        stuck: bool = True,
    ) -> None:
        """Stop those of `which` where all that is `measured` is rounding errors: this meets a tolerance that
        is relative to a first residual. If they are `stuck`, rounding errors of the largest entries do."""
        which = which & self.running
        if not bool(which.any()):
            return
        measured = r if measured is None else measured
        floor = rounding(f, u, p, r, measured, through)
        if self.settings.rtol > 0:
            self.stop(which & is_rounding(measured, floor, f.levels), Status.CONVERGED)
        if stuck:
            self.stop(which & (norm(measured, f.levels) <= norm(floor, f.levels)), Status.STAGNATED)

    def step(self, u: Tensor, r: Tensor, size: Tensor, measured: Tensor | None = None) -> None:
        """After an iteration, with the residual r and its norm."""
        self.norms.append(live(r, size))
        self._judge(size, size if measured is None else measured)
        if self.settings.callback is not None:
            reached = self.codes == CODE[Status.CONVERGED]
            iteration = Iteration(len(self.norms) - 1, u.detach(), size, reached)
            if self.settings.callback(iteration):
                self.stop(self.running, Status.STOPPED_BY_CALLBACK)

    def finish(self, u: Tensor, note: str = "") -> LoopResult:
        self.stop(self.running, Status.MAX_ITERATIONS)
        return LoopResult(u, torch.stack(self.norms, -1), self.codes, note)


def newton(
    f: Residual,
    systems: Systems,
    direction: Callable[..., LoopResult],
    u: Tensor,
    p: tuple[Tensor, ...],
    r: Tensor,
    o: Settings,
) -> LoopResult:
    """Newton's method from u, with r = f(u). `direction`(u, b, eta, shift) solves (J(u) + shift) d = b to eta
    ||b||, with the matrix in `systems`."""
    size = norm(r, f.levels)
    floor = 10 * torch.finfo(size.dtype).eps * norm(u, f.levels) if o.relative_to_u else 0.0
    progress = Progress(o, r, size, floor=floor)
    tau = None if o.pseudo_transient is None else torch.full_like(size, o.pseudo_transient)
    note = ""
    eta, fresh, slow, base, shift = _LEAST if o.forcing is None else o.forcing, False, True, u, None
    while len(progress.norms) <= o.maxiter and bool((running := progress.running).any()):
        if slow or not o.chord:
            base, shift, fresh = u, None if tau is None else 1 / tau, True
            systems.update(u, p, shift)
        solved = direction(base, torch.where(broadcast_scalar(running, r), -r, 0), eta, shift)
        lost = ~torch.isfinite(norm(solved.x, f.levels))
        d = torch.where(broadcast_scalar(lost, u), 0, solved.x)
        u_next, r_next, size_next, good = _step(
            f, u, p, d, r, size, eta, running & ~lost, len(progress.norms), o
        )
        failed = running & ~good
        if bool(failed.any()) and not fresh:
            slow = True  # retry with the Jacobian of this u
            continue
        if tau is not None and o.pseudo_transient is not None:
            tau = torch.where(good, tau * size / size_next, tau / 10)
            failed = failed & (tau < _SMALLEST * o.pseudo_transient)
        if bool(failed.any()):
            progress.rest(failed, f, u, p, r)
            _explain(progress, failed, solved.codes)
            lost = systems.lost is not None and bool((systems.lost & failed).any())
            note = NOT_FINITE if lost else ""
        moved = running & good
        if not bool(moved.all()):
            u_next, r_next = (
                torch.where(broadcast_scalar(moved, a), a, b) for a, b in ((u_next, u), (r_next, r))
            )
            size_next = torch.where(moved, size_next, size)
        ratio = torch.where(moved, size_next / size, 0)
        poor = moved & (ratio > _SLOW)
        u, r, size, slow, fresh = u_next, r_next, size_next, bool(poor.any()), False
        del solved, d, u_next, r_next  # the next Jacobian needs memory
        progress.step(u, r, size)
        progress.rest(poor, f, u, p, r)
        if o.forcing is None:
            eta = _forcing(eta, float(ratio.max()), progress, size)
    return progress.finish(u, note)


def _step(
    f: Residual,
    u: Tensor,
    p: tuple[Tensor, ...],
    d: Tensor,
    r: Tensor,
    size: Tensor,
    eta: float,
    running: Tensor,
    number: int,
    o: Settings,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The next u, f(u) and its norm, and for which systems the step is accepted."""
    rule: object = o.line_search
    if rule != "backtracking" or o.pseudo_transient is not None:
        t: Any = rule(number, u, d, r) if callable(rule) else rule
        u_next = u + d if t is None or isinstance(t, str) else u + t * d
        r_next = f(u_next, *p)
        size_next = norm(r_next, f.levels)
        good = running if o.pseudo_transient is None else running & torch.isfinite(size_next)
        return u_next, r_next, size_next, good
    t = torch.ones_like(size)
    while True:
        u_next = u + broadcast_scalar(t, u) * d
        r_next = f(u_next, *p)
        size_next = norm(r_next, f.levels)
        good = running & (size_next <= size * (1 - 2 * _NEWTON_DECREASE * (1 - eta) * t).sqrt())
        left = running & ~good
        if not bool(left.any()):
            break
        # The minimum of the parabola through 1/2 |f|^2 at both ends, with the slope -|f|^2.
        factor = t / ((size_next / size) ** 2 - 1 + 2 * t)
        t = torch.where(left, t * torch.nan_to_num(factor, 0.1).clamp(0.1, 0.5), t)
        if bool((left & (t < _SMALLEST)).any()):
            break
    return u_next, r_next, size_next, good


def _forcing(eta: float, ratio: float, progress: Progress, size: Tensor) -> float:
    """The tolerance of the next linear solve, by Eisenstat and Walker, no tighter than needed."""
    next_eta = 0.9 * ratio * ratio  # ** raises on overflow
    if 0.9 * eta**2 > 0.1:
        next_eta = max(next_eta, 0.9 * eta**2)
    needed = torch.where(progress.running, 0.5 * progress.target / size, torch.inf).min()
    least = max(float(needed), 10 * torch.finfo(size.dtype).eps)
    return min(max(next_eta, least), _FORCING)


def _explain(progress: Progress, failed: Tensor, codes: Tensor) -> None:
    """The reason why no step was accepted."""
    for status in (Status.SINGULAR_JACOBIAN, Status.BREAKDOWN, Status.INCONSISTENT):
        progress.stop(failed & (codes == CODE[status]), Status.SINGULAR_JACOBIAN)
    for status in (Status.NON_FINITE, Status.INDEFINITE):
        progress.stop(failed & (codes == CODE[status]), status)
    progress.stop(failed, Status.LINE_SEARCH_FAILED)


# Gauss-Newton and Levenberg-Marquardt, with the normal equations, or with LSMR.
#
# Sources: Marquardt, "An algorithm for least-squares estimation of nonlinear parameters", J. SIAM 11 (1963)
# 431-441; Nielsen, "Damping parameter in Marquardt's method", IMM-REP-1999-05 (1999).


_FIRST = 1e-3  # damping, relative to the largest diagonal entry of J^T J
_LARGEST = 1e12  # relative damping at which the method gives up
_LEVENBERG_DECREASE = 1e-4  # of ||r||^2, relative to that of the model


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
        J = wrap_operator(J) if self.how == "lsmr" else J
        return J.T @ J

    def shift(self, shift: Tensor | None) -> None:
        self.mu = shift
        super().shift(shift)

    def solve(
        self, b: Tensor, rtol: float, maxiter: int | None = None, transpose: bool = False
    ) -> LoopResult:
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
        damp = 0.0 if self.mu is None else float(self.mu) ** 0.5
        with quiet():
            solution = lsmr(J, -self.r, damp=damp, maxiter=maxiter, atol=tolerance, btol=0.0, conlim=0.0)
        left, codes = solution.normal_residual_norm, solution._codes
        assert left is not None
        assert codes is not None
        norms = torch.stack((size, left.reshape(())))
        return LoopResult(solution.x.reshape(b.shape), norms, codes.reshape(()), solution.note)

    def inverse(self) -> Any:
        return None if self.how == "lsmr" else super().inverse()

    def gradient(self, r: Tensor) -> Tensor:
        """J^T r."""
        self.r = y = column(r, self.residual.levels)
        return (self.J.T @ y).reshape(self.u.shape)

    def magnitude(self, y: Tensor) -> Tensor:
        """About |J|^T y for y >= 0, estimated by some products if only products are known."""
        v = column(y, self.residual.levels)
        if isinstance(self.J, CSR):
            return (self.J.with_values(self.J.values.abs()).T @ v).reshape(self.u.shape)
        generator, largest = torch.Generator().manual_seed(0), torch.zeros_like(self.u)
        for _ in range(8):
            signs = 2 * torch.randint(0, 2, v.shape, generator=generator, device="cpu").to(v) - 1
            largest = torch.maximum(largest, self.J.T(signs * v).reshape(self.u.shape).abs())
        return largest

    def scale(self, g: Tensor) -> Tensor:
        """The largest diagonal entry of J^T J, or, if only products are known, ||J g||^2 / ||g||^2."""
        levels = self.residual.levels
        if isinstance(self.matrix, CSR):
            return self.matrix.diagonal().amax(-1)
        v = column(g, levels)
        return norm(self.J @ v, levels) ** 2 / norm(v, levels).clamp(min=torch.finfo(g.dtype).tiny) ** 2


def levenberg_marquardt(
    f: Residual, systems: Systems, direction: object, u: Tensor, p: tuple[Tensor, ...], r: Tensor, o: Settings
) -> LoopResult:
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
        solved = systems.solve(
            torch.where(broadcast_scalar(running, g), -g, 0), min(max(eta, 10 * eps), 1e-2), INNER
        )
        lost = ~torch.isfinite(norm(solved.x, levels))
        d = torch.where(broadcast_scalar(lost, u), 0, solved.x)
        u_next = u + d
        r_next = f(u_next, *p)
        size_next = norm(r_next, levels)
        model = (d * (broadcast_scalar(mu, d) * d - g)).flatten(levels).sum(-1) / 2
        gain = (size - size_next) * (size + size_next) / 2 / torch.where(model > 0, model, 1)
        noise = model <= 10 * eps * size**2  # no decrease is measurable
        good = (
            running
            & ~lost
            & (model > 0)
            & torch.where(noise, size_next <= size * (1 + 10 * eps), gain > _LEVENBERG_DECREASE)
        )
        mu = torch.where(
            good,
            mu * (1 - (2 * gain.clamp(0, 1) - 1) ** 3).clamp(min=1 / 3),
            torch.where(mu > 0, mu, _FIRST * start) * nu,
        )
        nu = torch.where(good, 2.0, 2 * nu)
        moved = broadcast_scalar(good, u)
        u, r = torch.where(moved, u_next, u), torch.where(broadcast_scalar(good, r), r_next, r)
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
    return progress.finish(u)._replace(normal=steep)


# Anderson acceleration of x <- x - damping F(x).
#
# Sources: Anderson, "Iterative procedures for nonlinear integral equations", J. ACM 12 (1965) 547-560;
# Walker and Ni, "Anderson acceleration for fixed-point iterations", SIAM J. Numer. Anal. 49 (2011)
# 1715-1735.


_RIDGE = 1e3  # in rounding units, for differences of norm one


def anderson(
    f: Residual, systems: Systems, direction: object, x: Tensor, p: tuple[Tensor, ...], r: Tensor, o: Settings
) -> LoopResult:
    """x_{k+1} = x_k - d F_k - sum_j gamma_j (Dx_j - d DF_j), with the damping d, where gamma minimizes
    ||F_k - sum_j gamma_j DF_j|| over the last `memory` differences."""
    size = norm(r, f.levels)
    progress = Progress(o, r, size)
    due = 0  # the number of norms from which an increase is looked at
    steps: list[Tensor] = []
    changes: list[Tensor] = []
    while len(progress.norms) <= o.maxiter and bool((running := progress.running).any()):
        x_next = x - o.damping * r
        if changes:
            dF, dx = (torch.stack([t.flatten(f.levels) for t in some], -1) for some in (changes, steps))
            x_next = x_next - _mix(dF, dx - o.damping * dF, r.flatten(f.levels)).reshape(x.shape)
        x_next = x_next if bool(running.all()) else torch.where(broadcast_scalar(running, x), x_next, x)
        r_next = f(x_next, *p)
        steps, changes = [*steps, x_next - x][-o.memory :], [*changes, r_next - r][-o.memory :]
        if o.memory == 0:
            steps, changes = [], []
        before, size = size, norm(r_next, f.levels)
        x, r = x_next, r_next
        progress.step(x, r, size)
        if o.rtol > 0 and len(progress.norms) >= due and bool((rising := running & (size >= before)).any()):
            progress.rest(rising, f, x, p, r, stuck=False)
            due = 2 * len(progress.norms)
    return progress.finish(x)


@full_precision
def _mix(D: Tensor, steps: Tensor, r: Tensor) -> Tensor:
    """steps @ gamma, where gamma minimizes ||r - D gamma||, for D (..., n, m). Zero columns of D, of systems
    that have stopped, get zero."""
    length = torch.linalg.vector_norm(D.detach(), dim=-2, keepdim=True)
    unit = D / torch.where(length > 0, length, 1)
    gram = unit.mT @ unit
    ridge = _RIDGE * torch.finfo(r.dtype).eps * torch.eye(D.shape[-1], dtype=r.dtype, device=r.device)
    gram = torch.where(torch.isfinite(gram), gram, 0) + ridge
    wanted = (unit.mT @ r.unsqueeze(-1)).nan_to_num(0)
    inverse = torch.linalg.inv(gram)  # forward mode in forward mode is wrong for torch.linalg.solve
    gamma = inverse @ wanted
    gamma = gamma + inverse @ (wanted - gram @ gamma)
    return (steps @ (gamma / torch.where(length > 0, length, 1).mT)).squeeze(-1)
