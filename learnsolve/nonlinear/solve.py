"""The door of nonlinear solves: arguments are checked, and a loop runs with the gradient that was asked for."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.inputs import _full as full
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import plain_tensors
from learnsolve.nonlinear._jacobian import jacobian as sparse_jacobian
from learnsolve.nonlinear.implicit import Ended, Implicit, Linearized, Rule
from learnsolve.nonlinear.linear import Systems, over
from learnsolve.nonlinear.newton import Settings
from learnsolve.nonlinear.residual import Arguments, Assembled, Residual
from learnsolve.ops.core.autograd import tracked
from learnsolve.solvers.core.gradient import mapped
from learnsolve.solvers.core.report import report
from learnsolve.solvers.solution import Report, Solution

Loop = Callable[..., Ended]


@dataclass(frozen=True, eq=False)
class Root(Rule):
    """f(u, *p) = 0."""

    f: Residual
    systems: Systems
    loop: Loop
    settings: Settings
    adjoint: tuple[float, int | None]  # rtol and maxiter
    throw: bool
    ended: Report
    report: Report
    square: bool = True
    shift: Tensor | None = None  # of a direction of the unrolled loop

    def F(self, x: Tensor, *p: Tensor) -> Tensor:
        r = self.f(x, *p)
        return r if self.shift is None else r + over(self.shift, x) * x

    def find(self, x0: Tensor | None, *p: Tensor) -> Ended:
        assert x0 is not None
        r = self.f.first(x0, p, self.square, False)
        out = self.loop(self.f, self.systems, self._direction(p), x0.clone(), p, r, self.settings)
        self.ended.solution = solution = self.solution(out, None)
        requested = self.settings.rtol > 0 or self.settings.atol > 0
        report(self.f.name, solution, self.throw, requested)
        return out

    def _direction(self, p: tuple[Tensor, ...]) -> Callable[..., Ended]:
        def direction(u: Tensor, b: Tensor, eta: float, shift: Tensor | None) -> Ended:
            if not torch.is_grad_enabled():
                return self.systems.solve(b, eta, INNER)
            step = replace(self, systems=copy.copy(self.systems), adjoint=(eta, INNER), shift=shift)
            return Ended(*Implicit.apply(Linearized(step, False), None, b, u, *p))  # type: ignore[misc]

        return direction

    def solve(self, x: Tensor, p: tuple[Tensor, ...], b: Tensor, transpose: bool) -> Ended:
        self.systems.at(x, p)
        rtol, maxiter = self.adjoint
        out = self.systems.solve(b, rtol, maxiter, transpose)
        if maxiter != INNER:
            self.report.solution = solution = self.solution(out, None)
            what = "adjoint solve of the backward" if transpose else "solve for the tangent"
            advice = ", so the derivative is not exact (see adjoint_rtol, adjoint_maxiter)"
            report(f"{self.f.name}, {what}", solution, self.throw, True, advice)
        return out

    def mapped(self, dims: tuple[int | None, ...]) -> Root:
        systems = self.systems.mapped(dims)
        return replace(self, f=systems.residual, systems=systems)

    def solution(self, out: Ended, adjoint: Report | None) -> Solution:
        iterations = out.norms.shape[-1] - 1
        solution = Solution(out.x, iterations, out.norms, -1, codes=out.codes, adjoint=adjoint, note=out.note)
        solution.selected = self.systems.selected
        return solution


DENSE = 200  # unknowns: a Jacobian with all entries, where no pattern is known
INNER = 500  # iterations of the solve for a direction, at most


def solve(
    name: str,
    f: Callable[..., Tensor],
    u0: Tensor,
    args: tuple,
    loop: Loop,
    settings: Settings,
    *,
    jacobian: Any,
    linear: Any,
    M: Any,
    gradient: str,
    throw: bool,
    adjoint_rtol: float | None,
    adjoint_maxiter: int | None,
    square: bool = True,
) -> Solution:
    start = time.perf_counter()
    checks.one_of(name, "gradient", gradient, ("implicit", "unrolled"))
    checks.flag(name, "throw", throw)
    arguments = Arguments(f, args)
    assembled = None
    if jacobian is None or isinstance(jacobian, str):
        checks.one_of(name, "jacobian", jacobian, ("auto", None))
    elif not callable(jacobian):
        assembled = Assembled(name, sparse_jacobian(arguments.bind(f), jacobian))
    if callable(jacobian):
        assembled = Assembled(name, arguments.bind(jacobian))
    elif isinstance(jacobian, str) and u0.numel() <= DENSE:
        assembled = Assembled(name, dense(arguments.bind(f)))
    residual = Residual(name, arguments.bind(f), assembled)
    systems = Systems(residual, linear, M)
    rtol = (settings.rtol or 1e-8) if adjoint_rtol is None else adjoint_rtol
    rule = Root(
        residual, systems, loop, settings, (rtol, adjoint_maxiter), throw, Report(), Report(), square
    )
    p = arguments.tensors
    if gradient == "unrolled":
        if any(mapped(t) for t in (u0, *p)):
            raise NotImplementedError(
                f'{name}: vmap needs gradient="implicit", since the number of iterations depends on the data'
            )
        r = residual.first(u0, p, square, True)
        r = residual(u0, *p)
        out = loop(residual, systems, rule._direction(p), u0, p, r, settings)
        solution = rule.solution(out, None)
        report(name, solution, throw, settings.rtol > 0 or settings.atol > 0)
    else:
        u0 = u0.detach()
        out = Ended(*Implicit.apply(rule, u0, *p))  # type: ignore[misc]
        ended = rule.ended.solution
        solution = rule.solution(out._replace(note="" if ended is None else ended.note), rule.report if tracked(*p) else None)
    solution.seconds = time.perf_counter() - start if solution.x.is_cpu else None
    return solution


def dense(f: Callable[..., Tensor]) -> Callable[..., CSR]:
    """The Jacobian of f with all entries."""

    def jacobian(u: Tensor, *p: Tensor) -> CSR:
        J = torch.func.jacrev(f)(u, *p).reshape(-1)
        return CSR(J, _full(u.numel(), u.device))

    return jacobian


@functools.lru_cache(16)
def _full(n: int, device: torch.device) -> SparsityPattern:
    with plain_tensors():
        return full(torch.empty(n, n, device=device))


def settings_of(name: str, u0: Any, rtol: Any, atol: Any, maxiter: Any, callback: Any, **others: Any) -> Settings:
    """Checked."""
    checks.tensor(name, "u0", u0)
    checks.dtype(name, "u0", u0)
    if u0.numel() == 0:
        raise ValueError(f"{name}: u0 must have at least one entry, got shape {tuple(u0.shape)}")
    rtol = torch.finfo(u0.dtype).eps ** 0.5 if rtol is None else rtol
    for key, value in (("rtol", rtol), ("atol", atol)):
        checks.tolerance(name, key, value)
    checks.integer(name, "maxiter", maxiter, 0)
    if callback is not None and not callable(callback):
        raise TypeError(f"{name}: callback must be a callable, got {type(callback).__name__}")
    return Settings(float(rtol), float(atol), int(maxiter), callback, **others)
