"""The entry of nonlinear solves: checks arguments and runs a loop, with the requested gradient."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.inputs import _full as full
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import numbers, outside_of_graphs, plain_tensors
from learnsolve.nonlinear._implicit import Ended, Implicit, Linearized, Rule
from learnsolve.nonlinear._jacobian import as_pattern, errors
from learnsolve.nonlinear._jacobian import jacobian as sparse_jacobian
from learnsolve.nonlinear._linear import INNER, Systems, over
from learnsolve.nonlinear._newton import Settings
from learnsolve.nonlinear._pattern import random_like
from learnsolve.nonlinear._residual import Arguments, Assembled, Residual
from learnsolve.ops.core.autograd import pullback, tracked
from learnsolve.solvers.core.gradient import mapped, transformed
from learnsolve.solvers.core.report import report
from learnsolve.solvers.solution import CODE, Iteration, Report, Solution, Status

Loop = Callable[..., Ended]
P = ParamSpec("P")
T = TypeVar("T")
DENSE = 200  # unknowns up to which a dense Jacobian is used if no pattern is known
FULL = 0.1  # fraction of all entries above which a pattern is too full to be useful


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
    shift: Tensor | None = None  # for a direction of the unrolled loop
    square = True

    @property
    def levels(self) -> int:  # type: ignore[override]
        return self.f.levels

    def F(self, x: Tensor, *p: Tensor) -> Tensor:
        r = self.f(x, *p)
        return r if self.shift is None else r + over(self.shift, x) * x

    def find(self, x0: Tensor | None, *p: Tensor) -> Ended:
        assert x0 is not None
        return self.run(x0.clone(), p, self.f.first(x0.clone(), p, self.square))

    def run(self, u: Tensor, p: tuple[Tensor, ...], r: Tensor) -> Ended:
        def direction(u: Tensor, b: Tensor, eta: float, shift: Tensor | None) -> Ended:
            if not torch.is_grad_enabled():
                return self.systems.solve(b, eta, INNER)
            step = replace(self, systems=copy.copy(self.systems), shift=shift)
            return Ended(*Implicit.apply(Linearized(step, False), None, b, u, *p))  # type: ignore[misc]

        out = self.loop(self.f, self.systems, direction, u, p, r, self.settings)
        self.ended.solution = solution = self.solution(out)
        advice = f" ({out.note.rstrip('. ')})" if out.note else ""
        report(self.f.name, solution, self.throw, self.settings.rtol > 0 or self.settings.atol > 0, advice)
        return out

    def solve(self, x: Tensor, p: tuple[Tensor, ...], b: Tensor, transpose: bool) -> Ended:
        self.systems.at(x, p)
        out = self.systems.solve(b, *self.adjoint, transpose)
        out = self.systems.confirmed(out, b, *self.adjoint, transpose)
        if self.systems.transient:
            self.systems.release()
        return self.reported(out, transpose)

    def reported(self, out: Ended, transpose: bool) -> Ended:
        self.report.solution = solution = self.solution(out)
        what = "adjoint solve of the backward" if transpose else "linear solve of a step or tangent"
        advice = ", so the derivative is not exact (see adjoint_rtol, adjoint_maxiter)"
        report(f"{self.f.name}, {what}", solution, self.throw, True, advice)
        return out

    def release(self) -> None:
        self.systems.transient = True
        self.systems.release()

    def spared(self, g: Tensor, codes: Tensor, x: Tensor, p: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """A solved system takes the place of each that failed and whose cotangent is zero. It adds zero to
        the gradients of what systems share, not the NaN that zero times one of its derivatives may be."""
        solved = codes == CODE[Status.CONVERGED]
        gone = ~solved & (g == 0).flatten(self.levels).all(-1)
        if not bool(numbers(gone).any()):
            return x, p
        first = solved.flatten().int().argmax()
        at = []
        for n in reversed(codes.shape):
            at.insert(0, (first % n).reshape(1))
            first = first // n

        def spare(t: Tensor, levels: list[int]) -> Tensor:
            other, all_gone = t, gone
            for axis, level in enumerate(levels):
                other = other.index_select(axis, at[level])
            for level in reversed(range(self.levels)):
                all_gone = all_gone if level in levels else all_gone.all(level)
            return torch.where(over(all_gone, t), other, t)

        every = list(range(self.levels))
        return spare(x, every), [
            spare(t, [level for level in every if self.f.axes[level][i] is not None]) for i, t in enumerate(p)
        ]

    def mapped(self, dims: tuple[int | None, ...]) -> Root:
        systems = self.systems.mapped(dims)
        return replace(self, f=systems.residual, systems=systems)

    def solution(self, out: Ended, adjoint: Report | None = None) -> Solution:
        iterations = out.norms.shape[-1] - 1
        solution = Solution(out.x, iterations, out.norms, -1, codes=out.codes, adjoint=adjoint, note=out.note)
        solution.selected = self.systems.selected
        solution.normal_residual_norm = out.normal
        return solution


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
    residual: Callable[..., Any] | None = None,
    words: str = "f u",
    kind: Callable[..., Root] = Root,
    systems: type[Systems] = Systems,
    trusted: bool = False,
) -> Solution:
    """f is the user's function; `residual`, derived from it, must become zero."""
    start = time.perf_counter()
    checks.one_of(name, "gradient", gradient, ("implicit", "unrolled"))
    checks.flag(name, "throw", throw)
    if not callable(f):
        raise TypeError(f"{name}: {words[0]} must be a callable, got {type(f).__name__}")
    if not callable(linear):
        checks.one_of(name, "linear", linear, systems.methods)
    if M is not None and not callable(M):
        checks.one_of(name, "M", M, ("auto", None))
    if adjoint_rtol is not None:
        checks.tolerance(name, "adjoint_rtol", adjoint_rtol)
    if adjoint_maxiter is not None:
        checks.integer(name, "adjoint_maxiter", adjoint_maxiter, 0)
    arguments = Arguments(f, args)
    p, call = arguments.tensors, arguments.bind(f if residual is None else residual, name)
    r = Residual(name, call, _assembled(name, arguments, call, jacobian, u0), words=words)
    r.trusted = trusted
    rtol = (settings.rtol or torch.finfo(u0.dtype).eps ** 0.5) if adjoint_rtol is None else adjoint_rtol
    if transformed() and not trusted:
        r.alone(u0, p)
    rule = kind(r, systems(r, linear, M), loop, settings, (rtol, adjoint_maxiter), throw, Report(), Report())
    if gradient == "unrolled":
        if any(mapped(t) for t in (u0, *p)):
            raise NotImplementedError(
                f'{name}: vmap needs gradient="implicit", since the number of iterations depends on the data'
            )
        r.first(u0, p, rule.square)
        solution = rule.solution(rule.run(u0, p, r(u0, *p)))
    else:
        out = Ended(*Implicit.apply(rule, u0.detach(), *p))  # type: ignore[misc]
        if (ended := rule.ended.solution) is not None:
            out = out._replace(note=ended.note, normal=ended.normal_residual_norm)
        solution = rule.solution(out, rule.report if tracked(*p) else None)
    solution.seconds = time.perf_counter() - start if solution.x.is_cpu else None
    return solution


def outside(function: Callable[P, T]) -> Callable[P, T]:
    """A public function, at which torch.compile breaks its graph."""
    return outside_of_graphs(
        function,
        "nonlinear solves end by the values of f, which are not known while a graph is traced "
        "(fullgraph=True, torch.export): call them outside of the graph",
    )


def _assembled(
    name: str, arguments: Arguments, call: Callable, jacobian: Any, u0: Tensor
) -> Assembled | None:
    """The Jacobian from a user's `jacobian`, or its pattern; None: only products are known."""
    if callable(jacobian) and not isinstance(jacobian, CSR):
        return Assembled(name, arguments.bind(jacobian, name), users=True)
    if jacobian is not None and not isinstance(jacobian, str):
        pattern = as_pattern(name, jacobian)
        if pattern.shape[1] != u0.numel():
            raise ValueError(
                f"{name}: jacobian must be a pattern with a column for each of the {u0.numel()} unknowns, "
                f"got shape {tuple(pattern.shape)}"
            )
        return Assembled(name, sparse_jacobian(call, pattern))
    checks.one_of(name, "jacobian", jacobian, ("auto", None))
    if jacobian is None:
        return None
    return Assembled(name, dense(call)) if u0.numel() <= DENSE else Assembled(name, None, _finder(call))


def _finder(call: Callable[..., Any]) -> Callable[..., Any]:
    """The Jacobian on the pattern of f's program, if it is sparse and can be determined."""

    def find(u: Tensor, *p: Tensor) -> Callable[..., CSR] | None:
        J = sparse_jacobian(call)
        try:
            pattern = J.analysis(u, *p).pattern
        except (ValueError, NotImplementedError):  # too many entries, or an operation without a derivative
            return None
        return J if pattern.nnz <= FULL * pattern.shape[0] * pattern.shape[1] else None

    return find


def dense(f: Callable[..., Tensor]) -> Callable[..., CSR]:
    """The Jacobian of f with all entries, row by row where torch's vmap cannot do it, or is wrong."""

    def jacobian(u: Tensor, *p: Tensor) -> CSR:
        r, pull = pullback(lambda u: f(u, *p), u)
        rows = torch.eye(r.numel(), dtype=r.dtype, device=r.device)
        pattern = _full(r.numel(), u.numel(), u.device)

        def row(v: Tensor) -> Tensor:
            return pull(v.reshape(r.shape))[0].reshape(-1)

        try:
            J = CSR(torch.vmap(row)(rows).reshape(-1), pattern)
            with torch.no_grad():
                slack = 100 * torch.finfo(u.dtype).eps
                wrong = errors(J.detach(), row, random_like(rows[0]), transpose=True, slack=slack)
        except RuntimeError:
            wrong = rows
        return CSR(torch.cat([row(e) for e in rows]), pattern) if bool(wrong.any()) else J

    return jacobian


@functools.lru_cache(16)
def _full(m: int, n: int, device: torch.device) -> SparsityPattern:
    with plain_tensors():
        return full(torch.empty(m, n, device=device))


def settings_of(
    name: str,
    start: str,
    u0: Any,
    rtol: float | None,
    atol: float,
    maxiter: int,
    callback: Callable[[Iteration], Any] | None,
    **others: Any,
) -> Settings:
    """Check the arguments."""
    checks.tensor(name, start, u0)
    checks.dtype(name, start, u0)
    if u0.numel() == 0:
        raise ValueError(f"{name}: {start} must have at least one entry, got shape {tuple(u0.shape)}")
    rtol = torch.finfo(u0.dtype).eps ** 0.5 if rtol is None else rtol
    for key, value in (("rtol", rtol), ("atol", atol)):
        checks.tolerance(name, key, value)
    checks.integer(name, "maxiter", maxiter, 0)
    if callback is not None and not callable(callback):
        raise TypeError(f"{name}: callback must be a callable, got {type(callback).__name__}")
    assert rtol is not None
    return Settings(float(rtol), float(atol), int(maxiter), callback, **others)
