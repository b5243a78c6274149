"""The entry of all solvers: arguments are checked here, once, and become a problem of blocks of columns,
which is solved with the requested gradient."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.inputs import operands
from learnsolve.matrix.plain import outside_of_graphs
from learnsolve.ops.core import across
from learnsolve.solvers.core.arguments import (
    check_not_exported,
    check_symmetric,
    check_system,
    check_x0,
    refuse_what_has_no_implicit_gradient,
)
from learnsolve.solvers.core.complex_values import complex_solution, real_system
from learnsolve.solvers.core.criterion import ResidualNorm
from learnsolve.solvers.core.gradient import implicit, unrolled
from learnsolve.solvers.core.graph import traced_solve
from learnsolve.solvers.core.loop import Method
from learnsolve.solvers.core.operators import Blocks, Matrix, as_preconditioner, joined, systems_of
from learnsolve.solvers.core.problem import Problem
from learnsolve.solvers.core.projected import checked_null_space
from learnsolve.solvers.core.system import Columns
from learnsolve.solvers.options import Options
from learnsolve.solvers.solution import Solution


def solve(
    name: str,
    method: Method,
    A: Any,
    b: TensorLike,
    x0: TensorLike | None,
    options: Options,
    symmetric: bool = False,
    needs_transposed_M: bool = True,
) -> Solution:
    """Check the arguments, run the method, differentiate according to `options.gradient`.

    `symmetric`: A and M are their own transposes. `needs_transposed_M`: the adjoint solve needs a transpose
    of M, or else runs without one.
    """
    if torch.compiler.is_dynamo_compiling():
        if _needs_real_form(method, b):
            return _by_real_form(name, method, A, b, x0, options, symmetric)
        traced = traced_solve(name, method, A, b, x0, options, symmetric)
        if traced is None:
            return _outside(name, method, A, b, x0, options, symmetric, needs_transposed_M)
        return traced
    check_not_exported(name)
    start = time.perf_counter()
    A, b, x0 = operands(name, A, b, x0)
    if _needs_real_form(method, b):
        return _by_real_form(name, method, A, b, x0, options, symmetric)
    operator, batch = check_system(name, A, b, x0, options, symmetric)
    layout = operator.layout if isinstance(operator, Blocks) else None
    columns = Columns(b.dim() == 1, batch, layout)
    B, X0 = columns.into(b), None if x0 is None else columns.into(x0)
    systems = systems_of(name, options, columns._replace(layout=None).into(b) if batch else b, layout)
    for part_options, _ in systems:
        if symmetric and not getattr(method, "flexible", False):
            check_symmetric(name, part_options.M)
    Ms = [as_preconditioner(name, "M", part_options.M, part) for part_options, part in systems]
    for part_options, part in systems:
        as_preconditioner(name, "adjoint_M", part_options.adjoint_M, part)
    shared, criterion = across.of(operator), ResidualNorm(options.rtol, options.atol)
    rows = B.shape[-2] if shared is None else shared.rows
    reads = B.is_cpu or criterion.has_tolerance  # otherwise do not synchronize the device
    recorded = options.gradient != "implicit"
    if not recorded:
        for i, (part_options, part) in enumerate(systems):
            Ms[i] = refuse_what_has_no_implicit_gradient(
                name, operator, part_options.M, Ms[i], x0, part, part_options.adjoint_M
            )
    problem = Problem(
        name,
        method,
        operator,
        joined(layout, Ms),
        criterion,
        10 * rows if options.maxiter is None else options.maxiter,
        columns,
        options.throw,
        options.gradient,
        options.callback,
        checked_null_space(name, options.null_space, operator, B, layout, symmetric, reads),
    )

    def adjoint_M() -> Any:
        turned = [
            _adjoint_preconditioner(name, part_options, M, part, symmetric, needs_transposed_M)
            for (part_options, part), M in zip(systems, Ms, strict=True)
        ]
        return joined(layout, turned)

    if not recorded and torch.is_grad_enabled() and any(t.requires_grad for t in (B, *operator.parameters)):
        adjoint_M()  # refuses now what a backward would refuse after the solve

    def derived() -> tuple[Problem, Tensor]:
        maxiter = problem.maxiter if options.adjoint_maxiter is None else options.adjoint_maxiter
        rtol = options.rtol if options.adjoint_rtol is None else options.adjoint_rtol
        criterion = ResidualNorm(rtol, 0.0)  # no atol, since the right-hand side may have any size
        same = replace(problem, criterion=criterion, maxiter=maxiter, callback=None, transposed_M=adjoint_M)
        if problem.null is not None:
            same.null = problem.null.of_derivatives
        return same, B

    solution = unrolled(problem, B, X0) if recorded else implicit(problem, B, X0, derived)
    if solution.x.is_cpu:  # would synchronize a device
        solution.seconds = time.perf_counter() - start
    return solution


def _needs_real_form(method: Method, b: Any) -> bool:
    return isinstance(b, Tensor) and b.is_complex() and not hasattr(method, "takes_complex")


def _by_real_form(
    name: str, method: Method, A: Any, b: Any, x0: Any, options: Options, symmetric: bool
) -> Solution:
    if options.M is not None and not getattr(method, "flexible", False):
        check_symmetric(name, options.M)
    if isinstance(A, CSR):
        checks.square(name, "A", A.shape)
    if x0 is not None:
        check_x0(name, x0, b)
    A, b, x0, options = real_system(name, A, b, x0, options)
    return complex_solution(solve(name, method, A, b, x0, options, symmetric))


_outside = outside_of_graphs(
    lambda *arguments: solve(*arguments),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    "a solve is part of a graph (fullgraph=True, torch.export) only with a CSR as A, no M or an M with a "
    "compiled form for solvers.cg, no callback, gradient='implicit', or, for a fixed "
    "number of iterations (rtol=0, maxiter=), 'unrolled': docs/solvers.md, 'torch.compile and torch.export'",
)


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
            "attribute T, or pass adjoint_M=; if no gradient is wanted, solve under torch.no_grad()"
        )
    return as_preconditioner(name, "M.T", T, b)
