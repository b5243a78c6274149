"""A problem A x = b for any b, which gradients (gradient.py) solve for several right-hand sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from learnsolve.matrix.convert import conjugate
from learnsolve.ops.core import across
from learnsolve.solvers.core.criterion import Criterion
from learnsolve.solvers.core.gradient import linear
from learnsolve.solvers.core.loop import Method, iterate
from learnsolve.solvers.core.operators import Operator
from learnsolve.solvers.core.projected import NullSpace, projected
from learnsolve.solvers.core.report import report
from learnsolve.solvers.core.system import Columns, Outcome, System
from learnsolve.solvers.core.units import in_units
from learnsolve.solvers.solution import Iteration, Report, Solution

ADJOINT, TANGENT = "adjoint solve of the backward", "solve for the tangent"


class Solver:
    """What finds x = A^-1 b for any b, with the derivatives of x: an iteration here, or a KSP of PETSc."""

    A: Any
    keeps_b: ClassVar[bool] = False  # derivatives read b

    def adjoint(self) -> Solver:
        raise NotImplementedError

    def linear(self, b: Tensor, what: str, report: Report) -> Tensor:
        """A^-1 b for a derivative, itself differentiable."""
        raise NotImplementedError

    def pullback(
        self, g: Tensor, x: Tensor, b: Tensor | None, need: bool, report: Report
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """The gradients of <g, x>, x = A^-1 b, for b and, if there is a `need`, for the parameters."""
        y = self.adjoint().linear(conjugate(g), ADJOINT, report)
        return conjugate(y), self.A.pullback(-y, x) if need else (None,) * len(self.A.parameters)

    def tangent(
        self, x: Tensor, b: Tensor, tb: Tensor | None, tangents: tuple[Tensor | None, ...], report: Report
    ) -> Tensor:
        """dx for changes of b and the parameters."""
        right = torch.zeros_like(b) if tb is None else tb
        if any(t is not None for t in tangents):
            right = right - self.A.pushforward(x, tangents)
        return self.linear(right, TANGENT, report)


@dataclass(eq=False)
class Problem(Solver):
    name: str  # of the solver, for messages
    method: Method
    A: Operator
    M: Callable[[Tensor], Tensor] | None
    criterion: Criterion
    maxiter: int
    columns: Columns
    throw: bool
    gradient: str = "implicit"
    callback: Callable[[Iteration], Any] | None = None
    null: NullSpace | None = None  # of a singular A
    transposed_M: Callable[[], Any] | None = None  # makes the preconditioner of A^T
    advice: str = ""  # appended to the warning if it did not converge

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Problem:
        return replace(self, A=self.A.with_parameters(parameters))

    def adjoint(self) -> Problem:
        """The transposed problem, whose own adjoint is this one."""
        M = None if self.transposed_M is None else self.transposed_M()
        null = None if self.null is None else self.null.T
        return replace(self, A=self.A.T, M=M, transposed_M=lambda: self.M, null=null)

    def run(self, b: Tensor, x0: Tensor | None) -> Outcome:
        """Pass b through each view to the loop, and the outcome back through them in reverse."""
        system = System(
            self.name, self.A, self.M, b, x0, self.criterion.fresh(), self.columns.callback(self.callback)
        )
        system, from_range = projected(system, self.null)
        with across.over(across.of(self.A)):
            system, from_units = in_units(system, self.method)
            return from_range(from_units(iterate(self.method, system, self.maxiter, self.gradient)))

    def linear(self, b: Tensor, what: str, report: Report) -> Tensor:
        return linear(self, b, what, report)

    def solution(self, out: Outcome, adjoint: Report | None = None) -> Solution:
        iterations = out.norms.shape[-2] - 1
        x, norms, codes, axis = self.columns.out_of(out.x, out.norms, out.codes)
        solution = Solution(
            x, iterations, norms, axis, codes=codes, adjoint=adjoint, note=out.note, execution=out.execution
        )
        solution.products = getattr(self.method, "products", int)(iterations)
        return solution

    def reported(self, out: Outcome) -> Solution:
        """The solution; a failure warns or raises."""
        solution = self.solution(out)
        report(
            self.name, solution, self.throw, self.criterion.has_tolerance or bool(self.advice), self.advice
        )
        return solution
