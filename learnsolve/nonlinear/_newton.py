"""Newton's method with a line search, for systems of the same shape that stop independently.

Sources: Dennis and Schnabel, "Numerical Methods for Unconstrained Optimization and Nonlinear Equations"
(1983), chapter 6; Eisenstat and Walker, "Choosing the forcing terms in an inexact Newton method", SIAM J.
Sci. Comput. 17 (1996) 16-32, choice 2; Kelley and Keyes, "Convergence analysis of pseudo-transient
continuation", SIAM J. Numer. Anal. 35 (1998) 508-523.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learnsolve.nonlinear._implicit import Ended
from learnsolve.nonlinear._linear import NOT_FINITE, Systems, norm, over
from learnsolve.nonlinear._residual import Residual
from learnsolve.nonlinear._rounding import explained, rounding
from learnsolve.solvers.solution import CODE, Iteration, Status

_DECREASE = 1e-4  # of Armijo's rule
_SMALLEST = 1e-10  # step
_SLOW = 0.5  # a chord step that reduces the residual by less requests a new Jacobian
_FORCING, _LEAST = 0.1, 1e-2  # tolerance of the loosest linear solve, and of the first


@dataclass(eq=False)
class Settings:
    """Settings shared by the loops."""

    rtol: float
    atol: float
    maxiter: int
    callback: Callable[[Iteration], Any] | None
    line_search: Any = "backtracking"
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
            self.stop(which & explained(measured, floor, f.levels), Status.CONVERGED)
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

    def ended(self, u: Tensor, note: str = "") -> Ended:
        self.stop(self.running, Status.MAX_ITERATIONS)
        return Ended(u, torch.stack(self.norms, -1), self.codes, note)


def newton(
    f: Residual,
    systems: Systems,
    direction: Callable[..., Ended],
    u: Tensor,
    p: tuple[Tensor, ...],
    r: Tensor,
    o: Settings,
) -> Ended:
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
        solved = direction(base, torch.where(over(running, r), -r, 0), eta, shift)
        lost = ~torch.isfinite(norm(solved.x, f.levels))
        d = torch.where(over(lost, u), 0, solved.x)
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
            u_next, r_next = (torch.where(over(moved, a), a, b) for a, b in ((u_next, u), (r_next, r)))
            size_next = torch.where(moved, size_next, size)
        ratio = torch.where(moved, size_next / size, 0)
        poor = moved & (ratio > _SLOW)
        u, r, size, slow, fresh = u_next, r_next, size_next, bool(poor.any()), False
        del solved, d, u_next, r_next  # the next Jacobian needs memory
        progress.step(u, r, size)
        progress.rest(poor, f, u, p, r)
        if o.forcing is None:
            eta = _forcing(eta, float(ratio.max()), progress, size)
    return progress.ended(u, note)


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
    rule: Any = o.line_search
    if rule != "backtracking" or o.pseudo_transient is not None:
        t: Any = rule(number, u, d, r) if callable(rule) else rule
        u_next = u + d if t is None or isinstance(t, str) else u + t * d
        r_next = f(u_next, *p)
        size_next = norm(r_next, f.levels)
        good = running if o.pseudo_transient is None else running & torch.isfinite(size_next)
        return u_next, r_next, size_next, good
    t = torch.ones_like(size)
    while True:
        u_next = u + over(t, u) * d
        r_next = f(u_next, *p)
        size_next = norm(r_next, f.levels)
        good = running & (size_next <= size * (1 - 2 * _DECREASE * (1 - eta) * t).sqrt())
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
