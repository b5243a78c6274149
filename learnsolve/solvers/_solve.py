"""From a method to a solver: checks, units, the three kinds of gradient, the `Solution`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from learnsolve._plain import outside_of_graphs
from learnsolve.ops._autograd import tracked
from learnsolve.solvers import _units
from learnsolve.solvers._compiled_cg import compiled_cg, fitting_form
from learnsolve.solvers._criterion import Criterion, ResidualNorm
from learnsolve.solvers._implicit import Found, Implicit, transformed
from learnsolve.solvers._loop import Method, iterate, runs_unattended
from learnsolve.solvers._operator import Matrix, Operator, as_operator, as_preconditioner
from learnsolve.solvers._options import (
    Options,
    check_b,
    check_operands,
    check_options,
    check_symmetric,
    check_x0,
    refuse_what_has_no_implicit_gradient,
)
from learnsolve.solvers.base import CODE, Iteration, Report, Solution, SolverError, Status


@outside_of_graphs
def solve(
    name: str,
    method: Method,
    A: Any,
    b: Tensor,
    x0: Tensor | None,
    options: Options,
    symmetric: bool = False,
    transposed_M: bool = True,
) -> Solution:
    """Check, run, differentiate as `options.gradient` says.

    `symmetric`: A and M are their own transposes. `transposed_M`: the adjoint solve needs a transpose of M,
    or else goes without one.
    """
    check_b(name, b)
    check_options(name, options)
    vector = b.dim() == 1
    operator = as_operator(name, A, b, options.transpose, tuple(options.parameters), symmetric)
    batch = check_operands(name, A, b)
    check_x0(name, x0, b)
    B = columns(b, vector, batch)
    X0 = None if x0 is None else columns(x0, vector, batch)
    if symmetric and not getattr(method, "flexible", False):
        check_symmetric(name, options.M)
    M = as_preconditioner(name, "M", options.M, B if batch else b)
    rtol, n = options.rtol, B.shape[-2]
    solver = Solver(
        name,
        method,
        operator,
        M,
        lambda unit: ResidualNorm(rtol, options.atol / unit if _asked(options.atol) else 0.0),
        10 * n if options.maxiter is None else options.maxiter,
        vector,
        options.throw,
        options.callback,
    )
    if options.gradient != "implicit":
        return solver.unrolled(B, X0, options.gradient == "checkpointed")
    refuse_what_has_no_implicit_gradient(name, operator, options.M, M, x0, B)
    adjoint_M = lambda: _adjoint_preconditioner(name, options, M, b, symmetric, transposed_M)  # noqa: E731
    adjoint_rtol = rtol if options.adjoint_rtol is None else options.adjoint_rtol
    if getattr(method, "compiled", False) and options.callback is None:
        solver = replace(solver, form=fitting_form(operator, options.M, B))
    linear = replace(
        solver,
        callback=None,
        # A right-hand side of any size is solved for relative to itself: no atol.
        criterion=lambda unit: ResidualNorm(adjoint_rtol, 0.0),
        maxiter=solver.maxiter if options.adjoint_maxiter is None else options.adjoint_maxiter,
        turned_M=adjoint_M,
    )
    return solver.implicit(B, X0, linear)


@dataclass
class Solver:
    """A method with all that it needs but right-hand sides."""

    name: str
    method: Method
    A: Operator
    M: Callable[[Tensor], Tensor] | None
    criterion: Callable[[Any], Criterion]  # for a unit of b
    maxiter: int
    vector: bool  # the user's b has no axis of columns
    throw: bool
    callback: Callable | None = None
    turned_M: Callable[[], Any] | None = None  # makes the preconditioner of A^T
    form: tuple | None = None  # of M, where the compiled loop of conjugate gradients takes it

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Solver:
        return replace(self, A=self.A.with_parameters(parameters))

    def iterate(self, b: Tensor, x0: Tensor | None, segments: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """x, norms, codes; in units where sizes are extraordinary."""
        unattended = self.form is None and runs_unattended(b, self.criterion(1), self.callback)
        units = _units.choose(self.A, b, unattended)
        if units is None:
            if self.form is not None and not segments:
                found = compiled_cg(
                    self.method, self.A, self.M, self.form, b, x0, self.criterion(1), self.maxiter
                )
                if found is not None:
                    return found
            call = None if self.callback is None else self._told(1, 1)
            return iterate(
                self.method, self.A, self.M, b, x0, self.criterion(1), self.maxiter, call, segments
            )
        of_b, of_x = units.of_b, units.of_x
        b, x0 = b / of_b, None if x0 is None else x0 / of_x
        found = None
        if self.form is not None and self.form[0] == "none" and not segments:
            A = _units.matrix(self.A, units)  # another M would have to be scaled in its own form
            found = compiled_cg(self.method, A, None, self.form, b, x0, self.criterion(of_b), self.maxiter)
        x, norms, codes = found or iterate(
            self.method,
            _units.InUnits(self.A, units.of_A),
            _units.preconditioner(self.M, units),
            b,
            x0,
            self.criterion(of_b),
            self.maxiter,
            None if self.callback is None else self._told(of_x, of_b),
            segments,
        )
        x = x * of_x
        lost = ~torch.isfinite(x.detach()).all(dim=-2)
        return x, norms * of_b, torch.where(lost, CODE[Status.NON_FINITE], codes)

    def _told(self, of_x: Any, of_b: Any) -> Callable[[Iteration], Any]:
        """The callback, given what the user knows: his units, and a vector if b is one."""

        def call(at: Iteration) -> Any:
            assert self.callback is not None
            x, norm, converged = (
                at.x * of_x,
                (at.residual_norm.unsqueeze(-2) * of_b).squeeze(-2),
                at.converged,
            )
            if self.vector:
                x, norm, converged = x.squeeze(-1), norm.squeeze(-1), converged.squeeze(-1)
            return self.callback(Iteration(at.iteration, x, norm, converged))

        return call

    def solution(self, x: Tensor, norms: Tensor, codes: Tensor, report: Report | None = None) -> Solution:
        iterations = norms.shape[-2] - 1
        if self.vector and x.dim() == 2:
            x, norms, codes = x.squeeze(-1), norms.squeeze(-1), codes.squeeze(-1)
            return Solution(x, iterations, norms, -1, codes=codes, adjoint=report)
        return Solution(x, iterations, norms, -2, codes=codes, adjoint=report)

    def unrolled(self, b: Tensor, x0: Tensor | None, segments: bool) -> Solution:
        if _mapped(b) or any(_mapped(p) for p in self.A.parameters):
            raise NotImplementedError(
                f'{self.name}: vmap needs gradient="implicit", since the number of iterations depends on the '
                "data; or give the mapped axis to b, or A.values, as a batch axis"
            )
        solution = self.solution(*self.iterate(b, x0, segments))
        if solution.iterations == 0:
            solution.x = with_zero_gradient(solution.x, b, *self.A.parameters)
        if self.throw and not solution.converged:
            raise SolverError(self.name, solution)
        return solution

    def loop(self, b: Tensor, x0: Tensor | None, report: Report) -> tuple[Tensor, Tensor, Tensor]:
        """`iterate` for tensors without a graph; the report gets the plain solution."""
        out = self.iterate(b, x0)
        report.solution = self.solution(*out)
        if self.throw and not report.solution.converged:
            raise SolverError(self.name, report.solution)
        return out

    def found(self, b: Tensor, x0: Tensor | None, report: Report) -> tuple[Tensor, Tensor, Tensor]:
        """`loop`, a constant for autograd and for any transformation."""
        if transformed():
            return Found.apply(self, report, b, x0, *self.A.parameters)  # type: ignore[return-value]
        with torch.no_grad():
            return self.loop(b, x0, report)

    def implicit(self, b: Tensor, x0: Tensor | None, linear: Solver) -> Solution:
        x, norms, codes = self.found(b, x0, Report())
        report = Report()
        if tracked(b, *self.A.parameters):
            x = Implicit.apply(linear, report, x, b, *self.A.parameters)
        return self.solution(x, norms, codes, report)  # type: ignore[arg-type]

    def linear(self, b: Tensor, what: str, report: Report) -> Tensor:
        """A^-1 b for a derivative, itself differentiable; a failure is told as loudly as one of a solve."""
        told = replace(self, name=f"{self.name}, {what}")
        try:
            x, _, _ = told.found(b, None, report)
        except SolverError as error:
            report.solution = error.solution
            raise
        assert report.solution is not None
        if not report.solution.converged:
            warnings.warn(
                f"{told.name}: did not converge, so the derivative is not exact: {report.solution.summary()} "
                "See adjoint_rtol, adjoint_maxiter.",
                stacklevel=2,
            )
        if tracked(b, *self.A.parameters):
            return Implicit.apply(self, Report(), x, b, *self.A.parameters)  # type: ignore[return-value]
        return x

    def adjoint(self) -> Solver:
        """The solver of the transposed system, whose own adjoint is this one."""
        M = None if self.turned_M is None else self.turned_M()
        return replace(self, A=self.A.T, M=M, turned_M=lambda: self.M)


def with_zero_gradient(x: Tensor, *others: Tensor) -> Tensor:
    """x, zero gradients for `others` where they learn: a backward need not know that no iteration ran."""
    for t in others:
        if tracked(t):
            x = x + torch.where(torch.zeros_like(t, dtype=torch.bool), t, 0).sum()
    return x


def _asked(atol: float | Tensor) -> bool:
    return isinstance(atol, Tensor) or atol > 0


def columns(t: Tensor, vector: bool, batch: torch.Size) -> Tensor:
    """(..., n, k), with the batch axes of A."""
    t = t.unsqueeze(-1) if vector else t
    return t.expand(torch.broadcast_shapes(batch, t.shape[:-2]) + t.shape[-2:])


def _adjoint_preconditioner(
    name: str, options: Options, M: Any, b: Tensor, symmetric: bool, needed: bool
) -> Callable[[Tensor], Tensor] | None:
    if options.adjoint_M is not None:
        return as_preconditioner(name, "adjoint_M", options.adjoint_M, b)
    if M is None or symmetric:
        return M
    if isinstance(M, Matrix):
        return M.T
    T = getattr(options.M, "T", None) if getattr(options.M, "linear", True) else None
    if T is None and needed:
        raise ValueError(
            f"{name}: the implicit gradient solves with the transpose of A and needs that of M; give M an "
            "attribute T, or pass adjoint_M="
        )
    return as_preconditioner(name, "M.T", T, b)


def _mapped(t: Tensor) -> bool:
    """Is a vmap at work on this tensor?"""
    functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
    while functorch.is_functorch_wrapped_tensor(t):
        if functorch.is_batchedtensor(t):
            return True
        t = functorch.get_unwrapped(t)
    return False
