"""From a method to a solver: checks, units, the three kinds of gradient, the `Solution`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from learnsolve import _device_analysis
from learnsolve._conversion import TensorLike
from learnsolve._inputs import operands
from learnsolve._plain import outside_of_graphs
from learnsolve.ops import _across
from learnsolve.ops._autograd import tracked
from learnsolve.ops.block_batch import Layout
from learnsolve.solvers import _units
from learnsolve.solvers._blocks import Blocks, joined, systems_of
from learnsolve.solvers._compiled_cg import Form, compiled_cg, fitting_form
from learnsolve.solvers._criterion import Criterion, ResidualNorm
from learnsolve.solvers._implicit import Found, Implicit, transformed
from learnsolve.solvers._in_graphs import traced_solve
from learnsolve.solvers._loop import Method, Outcome, iterate, runs_unattended
from learnsolve.solvers._null_space import NullSpace, null_space
from learnsolve.solvers._operator import Matrix, Operator, as_operator, as_preconditioner
from learnsolve.solvers._options import (
    Options,
    check_b,
    check_not_exported,
    check_operands,
    check_options,
    check_symmetric,
    check_x0,
    refuse_what_has_no_implicit_gradient,
)
from learnsolve.solvers._report import report, without_solution
from learnsolve.solvers._steps import fitting_steps
from learnsolve.solvers._vectors import size
from learnsolve.solvers.base import CODE, OP_BY_OP, Iteration, Report, Solution, SolverError, Status


def solve(
    name: str,
    method: Method,
    A: Any,
    b: TensorLike,
    x0: TensorLike | None,
    options: Options,
    symmetric: bool = False,
    transposed_M: bool = True,
) -> Solution:
    """Check, run, differentiate as `options.gradient` says.

    `symmetric`: A and M are their own transposes. `transposed_M`: the adjoint solve needs a transpose of M,
    or else runs without one.
    """
    if torch.compiler.is_dynamo_compiling():
        traced = traced_solve(name, A, b, x0, options, symmetric, getattr(method, "restart", 0))
        if traced is not None:
            return traced
    else:
        check_not_exported(name)
    return _solve(name, method, A, b, x0, options, symmetric, transposed_M)


def _solve(
    name: str,
    method: Method,
    A: Any,
    b: TensorLike,
    x0: TensorLike | None,
    options: Options,
    symmetric: bool,
    transposed_M: bool,
) -> Solution:
    """`solve`, in Python, and its time."""
    start = time.perf_counter()
    solution = _checked_and_run(name, method, A, b, x0, options, symmetric, transposed_M)
    if solution.x.is_cpu:  # a device would have to be waited for
        solution.seconds = time.perf_counter() - start
    return solution


def _checked_and_run(
    name: str,
    method: Method,
    A: Any,
    b: TensorLike,
    x0: TensorLike | None,
    options: Options,
    symmetric: bool,
    transposed_M: bool,
) -> Solution:
    A, b, x0 = operands(name, A, b, x0)
    check_b(name, b)
    check_options(name, options)
    vector = b.dim() == 1
    operator = as_operator(name, A, b, options.transpose, tuple(options.parameters), symmetric, blocks=True)
    layout = operator.layout if isinstance(operator, Blocks) else None
    batch = check_operands(name, A, b)
    check_x0(name, x0, b)
    B = columns(b, vector, batch)
    X0 = None if x0 is None else columns(x0, vector, batch)
    systems = systems_of(name, options, B if batch else b, layout)
    for its, _ in systems:
        if symmetric and not getattr(method, "flexible", False):
            check_symmetric(name, its.M)
    Ms = [as_preconditioner(name, "M", its.M, part) for its, part in systems]
    for its, part in systems:
        if isinstance(its.adjoint_M, type):  # else it is checked when it is needed
            as_preconditioner(name, "adjoint_M", its.adjoint_M, part)
    if layout is not None:
        B, X0 = layout.padded(B), None if X0 is None else layout.padded(X0)
    rtol, shared = options.rtol, _across.of(operator)
    n = B.shape[-2] if shared is None else shared.rows
    recorded, form = options.gradient != "implicit", None
    fixed = recorded and rtol == 0 and options.atol == 0 and options.maxiter is not None
    if getattr(method, "compiled", False) and options.callback is None and recorded == fixed:
        form = fitting_form(operator, options.M, B, fixed, method.flexible)  # type: ignore[attr-defined]
    reads = B.is_cpu or rtol != 0 or options.atol != 0  # else nothing waits for the device
    solver = Solver(
        name,
        method,
        operator,
        joined(layout, Ms),
        lambda unit: ResidualNorm(rtol, _units.number(options.atol, unit) if _asked(options.atol) else 0.0),
        10 * n if options.maxiter is None else options.maxiter,
        vector,
        options.throw,
        options.callback,
        form=form,
        atol=options.atol,
        layout=layout,
        null=null_space(name, options.null_space, operator, B, layout, symmetric, reads),
    )
    if recorded:
        return solver.unrolled(B, X0, options.gradient == "checkpointed")
    for i, (its, _) in enumerate(systems):
        Ms[i] = refuse_what_has_no_implicit_gradient(name, operator, its.M, Ms[i], x0, its.adjoint_M)
    solver.M = joined(layout, Ms)

    def adjoint_M() -> Any:
        turned = [
            _adjoint_preconditioner(name, its, M, part, symmetric, transposed_M)
            for (its, part), M in zip(systems, Ms, strict=True)
        ]
        return joined(layout, turned)

    adjoint_rtol = rtol if options.adjoint_rtol is None else options.adjoint_rtol
    linear = replace(
        solver,
        callback=None,
        # A right-hand side of any size is solved for relative to itself: no atol.
        criterion=lambda unit: ResidualNorm(adjoint_rtol, 0.0),
        atol=0.0,
        maxiter=solver.maxiter if options.adjoint_maxiter is None else options.adjoint_maxiter,
        turned_M=adjoint_M,
    )
    return solver.implicit(B, X0, linear)


_solve = outside_of_graphs(
    _solve,
    "a solve is part of a graph (fullgraph=True, torch.export) only with a CSR as A, M none or one that "
    "solvers.cg has a compiled form of, no callback, gradient='implicit', or, for a fixed "
    "number of iterations (rtol=0, maxiter=), 'unrolled': docs/solvers.md, 'torch.compile and torch.export'",
)


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
    form: Form | None = None  # where the compiled loop of conjugate gradients takes the system
    atol: float = 0.0  # below it nothing matters
    advice: str = ""  # of a warning that it did not converge
    ran: str = OP_BY_OP  # the last iterations: `Solution.loop`
    layout: Layout | None = None  # of the blocks of a BlockBatch, which the columns are then padded to
    null: NullSpace | None = None  # of a singular A

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Solver:
        return replace(self, A=self.A.with_parameters(parameters))

    def iterate(self, b: Tensor, x0: Tensor | None, segments: bool = False) -> tuple[Outcome, str]:
        """`regular`, of a singular A on its range."""
        if self.null is None:
            return self.regular(b, x0, segments)
        right = self.null.consistent(b)
        out, note = self.regular(right, x0, segments)
        return out._replace(x=self.null.shortest(out.x)), self.null.note(b, right) + note

    def regular(self, b: Tensor, x0: Tensor | None, segments: bool) -> tuple[Outcome, str]:
        """By the compiled loop of conjugate gradients where it takes the system, else by the general loop; in
        units where sizes are extraordinary. And how far a solve came that did not converge."""
        with _across.over(_across.of(self.A)):
            return self._iterate(b, x0, segments)

    def _iterate(self, b: Tensor, x0: Tensor | None, segments: bool) -> tuple[Outcome, str]:
        form, criterion = self.form, self.criterion(1)
        size_A = self.A.size()
        if form is not None and form.fixed and _device_analysis.here(b):
            units = _units.of_right_hand_side(b)
        else:
            unseen = form is None and runs_unattended(b, criterion, self.callback)
            units = _units.choose(size_A, b, self.atol, unseen)
        A, M, of_x, of_b = self.A, self.M, 1, 1
        if units is not None:
            of_x, of_b = units.of_x, units.of_b
            b, x0, criterion = b / of_b, None if x0 is None else units.into(x0), self.criterion(of_b)
            A, M, form = _units.operator(A, units), _units.preconditioner(M, units), units.form(form)
        out = None
        if form is not None:
            matrix = self.A if units is None else _units.matrix(self.A, units)
            out = compiled_cg(form, self.method, matrix, M, b, x0, criterion, self.maxiter, segments)
        self.ran = OP_BY_OP if form is None or out is None else form.loop
        if out is None:
            call = None if self.callback is None else self._told(of_x, of_b)
            steps = None if call is not None else fitting_steps(self.method, A, M, b, x0, criterion)
            self.ran = OP_BY_OP if steps is None else steps.loop
            out = iterate(
                self.method, A, M, b, x0, criterion, self.maxiter, call, self.name if segments else "", steps
            )
        x, norms, codes, note = out.x, out.norms, out.codes, ""
        if units is not None:
            x, norms = units.out_of(x), norms * of_b
        if criterion.asked:
            with torch.no_grad():
                codes, note = self._judged(A, b.detach(), x.detach(), out, criterion, units)
        if b.is_cpu and _across.everywhere(_finite(x)) and (size_A is None or _finite(size_A)):
            return Outcome(x, norms, codes), note
        # A NaN that no product has met: in x where a column of A is empty, in A where b is zero. And what a
        # method took for something else, such as an infinite curvature.
        lost = _across.anywhere(~torch.isfinite(x.detach()).all(dim=-2))
        if size_A is not None:
            lost = lost | ~torch.isfinite(size_A).squeeze(-2)
        return Outcome(x, norms, torch.where(lost, CODE[Status.NON_FINITE], codes)), note

    def _judged(
        self, A: Any, b: Tensor, x: Tensor, out: Outcome, criterion: Criterion, units: _units.Units | None
    ) -> tuple[Tensor, str]:
        """Codes of the x that the user gets, and what to say of those that did not converge."""
        codes = out.codes
        if units is not None:
            x = units.into(x)
            lost = (codes == CODE[Status.CONVERGED]) & _across.anywhere((x != out.x).any(dim=-2))
            if bool(lost.any()):  # digits, below the dtype's range
                r = b - A(x)
                holds = criterion.begin(A, b, x, r, size(r)).squeeze(-2)
                codes = torch.where(lost & ~holds, CODE[Status.STAGNATED], codes)
        failed = codes > CODE[Status.CONVERGED]
        if not bool(failed.any()):
            return codes, ""
        # Whatever the method took it for, as an infinite curvature for a breakdown.
        broken = failed & _across.anywhere(~torch.isfinite(b - A(x)).all(dim=-2))
        codes = torch.where(broken, CODE[Status.NON_FINITE], codes)
        if bool((broken == failed).all()):
            return codes, ""
        why = ""
        if criterion.square:
            codes, why = without_solution(A, b, x, codes)
        return codes, why + criterion.accuracy(A, b, x, codes)

    def _told(self, of_x: Any, of_b: Any) -> Callable[[Iteration], Any]:
        """The callback, in the user's own units, with a vector if b is one."""

        def call(at: Iteration) -> Any:
            assert self.callback is not None
            x, norm, converged = (
                at.x * of_x,
                (at.residual_norm.unsqueeze(-2) * of_b).squeeze(-2),
                at.converged,
            )
            if self.null is not None:
                x = self.null.shortest(x)
            if self.layout is not None:
                x = self.layout.joined(x)
            if self.vector:
                x, norm, converged = x.squeeze(-1), norm.squeeze(-1), converged.squeeze(-1)
            return self.callback(Iteration(at.iteration, x, norm, converged))

        return call

    def solution(self, out: Outcome, note: str = "", report: Report | None = None) -> Solution:
        (x, norms, codes), axis = out, -2
        iterations = norms.shape[-2] - 1
        if self.layout is not None:
            x = self.layout.joined(x)
        if self.vector and x.dim() == 2:
            x, norms, codes, axis = x.squeeze(-1), norms.squeeze(-1), codes.squeeze(-1), -1
        found = Solution(x, iterations, norms, axis, codes=codes, adjoint=report, note=note, loop=self.ran)
        found.products = getattr(self.method, "products", int)(iterations)
        return found

    def unrolled(self, b: Tensor, x0: Tensor | None, segments: bool) -> Solution:
        if _mapped(b) or any(_mapped(p) for p in self.A.parameters):
            raise NotImplementedError(
                f'{self.name}: vmap needs gradient="implicit", since the number of iterations depends on the '
                "data; or give the mapped axis to b, or A.values, as a batch axis"
            )
        out, note = self.iterate(b, x0, segments)
        if (shared := _across.of(self.A)) is not None:
            out = out._replace(norms=shared.shown(out.norms))
        solution = self.solution(out, note)
        if solution.iterations == 0:
            solution.x = with_zero_gradient(solution.x, b, *self.A.parameters)
        self.report(solution)
        return solution

    def report(self, solution: Solution) -> None:
        report(self.name, solution, self.throw, self.criterion(1).asked or bool(self.advice), self.advice)

    def loop(self, b: Tensor, x0: Tensor | None, report: Report) -> Outcome:
        """`iterate` for tensors without a graph; the report gets the plain solution."""
        out, note = self.iterate(b, x0)
        report.solution = self.solution(out, note)
        self.report(report.solution)
        return out

    def found(self, b: Tensor, x0: Tensor | None, report: Report) -> Outcome:
        """`loop`, a constant for autograd and for any transformation."""
        if transformed():
            return Found.apply(self, report, b, x0, *self.A.parameters)  # type: ignore[return-value]
        with torch.no_grad():
            return self.loop(b, x0, report)

    def implicit(self, b: Tensor, x0: Tensor | None, linear: Solver) -> Solution:
        plain, report = Report(), Report()
        x, norms, codes = self.found(b, x0, plain)
        if tracked(b, *self.A.parameters):
            x = Implicit.apply(linear, report, x, b, *self.A.parameters)
        found = self.solution(Outcome(x, norms, codes), report=report)  # type: ignore[arg-type]
        if plain.solution is not None:
            found.note, found.loop = plain.solution.note, plain.solution.loop
        return found

    def linear(self, b: Tensor, what: str, report: Report) -> Tensor:
        """A^-1 b for a derivative, itself differentiable; a failure is reported as that of a solve."""
        advice = ", so the derivative is not exact (see adjoint_rtol, adjoint_maxiter)"
        named = replace(self, name=f"{self.name}, {what}", advice=advice)
        try:
            x, _, _ = named.found(b, None, report)
        except SolverError as error:
            report.solution = error.solution
            raise
        if tracked(b, *self.A.parameters):
            return Implicit.apply(self, Report(), x, b, *self.A.parameters)  # type: ignore[return-value]
        return x

    def adjoint(self) -> Solver:
        """The solver of the transposed system, whose own adjoint is this one."""
        M = None if self.turned_M is None else self.turned_M()
        null = None if self.null is None else self.null.T
        return replace(self, A=self.A.T, M=M, turned_M=lambda: self.M, null=null)


def with_zero_gradient(x: Tensor, *others: Tensor) -> Tensor:
    """x, with zero gradients for those of `others` that require grad: a backward works even if no iteration
    ran."""
    for t in others:
        if tracked(t):
            x = x + torch.where(torch.zeros_like(t, dtype=torch.bool), t, 0).sum()
    return x


def _finite(t: Tensor) -> bool:
    """Surely finite, all of it, at the cost of a pass: a sum of finite numbers may overflow."""
    return math.isfinite((t if t.numel() == 1 else t.detach().sum()).item())


def _asked(atol: float | Tensor) -> bool:
    return isinstance(atol, Tensor) or atol > 0


def columns(t: Tensor, vector: bool, batch: torch.Size) -> Tensor:
    """(..., n, k), with the batch axes of A."""
    t = t.unsqueeze(-1) if vector else t
    if not batch:
        return t
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
