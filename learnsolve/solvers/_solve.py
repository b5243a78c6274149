"""From a method to a solver: checks, the three kinds of gradient, the `Solution`.

Implicit differentiation of A x = b, for any method that finds x: with lambda = A^-T xbar,

    bbar = lambda,    Abar = -lambda x^T on the pattern (for a callable A: the gradient of -<lambda, A x>).

lambda is found by the same method on the transpose, itself differentiable by the same rule, so that derivatives
of any order exist. In forward mode, dx = A^-1 (db - dA x).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops._autograd import tracked
from learnsolve.solvers._loop import Method, Stopping, iterate
from learnsolve.solvers._operator import Matrix, Operator, as_operator, as_preconditioner
from learnsolve.solvers.base import Solution, SolverError

GRADIENTS = ("implicit", "unrolled", "checkpointed")


@dataclass(frozen=True)
class Options:
    """The keywords that all solvers share."""

    rtol: float = 1e-5
    atol: float = 0.0
    maxiter: int | None = None
    M: Any = None
    callback: Callable | None = None
    gradient: str = "implicit"
    throw: bool = False
    adjoint_rtol: float | None = None
    adjoint_maxiter: int | None = None
    adjoint_M: Any = None
    transpose: Callable | None = None
    parameters: tuple[Tensor, ...] = ()


def solve(
    method: Method, A: Any, b: Tensor, x0: Tensor | None, options: Options, symmetric: bool
) -> Solution:
    """Check, run, differentiate as `options.gradient` says."""
    name = method.name
    _check.tensor(name, "b", b)
    if b.dim() == 0:
        raise ValueError(f"{name}: b must have shape (n,) or (..., n, k), got a scalar")
    vector = b.dim() == 1
    operator = as_operator(name, A, options.transpose, tuple(options.parameters), symmetric, vector)
    _check_operands(name, A, b, x0)
    _check_numbers(name, options)
    batch = torch.Size() if not isinstance(A, CSR) else A.batch_shape
    B = b.unsqueeze(-1) if vector else b
    B = B.expand(torch.broadcast_shapes(batch, B.shape[:-2]) + B.shape[-2:])
    X0 = None if x0 is None else (x0.unsqueeze(-1) if vector else x0).expand(B.shape)
    n = B.shape[-2]
    maxiter = 10 * n if options.maxiter is None else options.maxiter
    stop = Stopping(options.rtol, options.atol, maxiter, options.callback, vector)
    M = as_preconditioner(name, options.M, vector)
    solver = _Solver(method, operator, M, options, stop, symmetric)
    if options.gradient == "implicit":
        _refuse_what_has_no_implicit_gradient(name, options.M, M, x0, B)
        return solver.implicit(B, X0)
    return solver.unrolled(B, X0, options.gradient == "checkpointed")


@dataclass
class _Solver:
    method: Method
    A: Operator
    M: Any
    options: Options
    stop: Stopping
    symmetric: bool

    def run(self, b: Tensor, x0: Tensor | None, segments: bool = False) -> Solution:
        out = iterate(self.method, self.A, self.M, b, x0, self.stop, segments)
        x, norms, codes = out.x, out.norms, out.codes
        if self.stop.vector:
            x, norms, codes = x.squeeze(-1), norms.squeeze(-1), codes.squeeze(-1)
        return Solution(x, out.iterations, norms, -1 if self.stop.vector else -2, codes=codes)

    def unrolled(self, b: Tensor, x0: Tensor | None, segments: bool) -> Solution:
        solution = self.run(b, x0, segments)
        if self.options.throw and not solution.converged:
            raise SolverError(self.method.name, solution)
        return solution

    def implicit(self, b: Tensor, x0: Tensor | None) -> Solution:
        with torch.no_grad():
            solution = self.run(b, x0)
        if self.options.throw and not solution.converged:
            raise SolverError(self.method.name, solution)
        if tracked(b, *self.A.parameters):
            x = solution.x.unsqueeze(-1) if self.stop.vector else solution.x
            attached = _Implicit.apply(self, solution, x, b, *self.A.parameters)
            solution.x = attached.squeeze(-1) if self.stop.vector else attached  # type: ignore[union-attr]
        return solution

    def adjoint(self, A: Operator) -> _Solver:
        """The solver of the transposed system."""
        options = self.options
        rtol = options.rtol if options.adjoint_rtol is None else options.adjoint_rtol
        maxiter = self.stop.maxiter if options.adjoint_maxiter is None else options.adjoint_maxiter
        # A cotangent of any size is solved for relative to itself: no atol, no callback of the forward.
        stop = replace_stop(self.stop, rtol, maxiter)
        M, other = self.adjoint_preconditioner(), options.M
        turned = replace(options, M=options.adjoint_M, adjoint_M=other)
        return _Solver(self.method, A.T, M, turned, stop, self.symmetric)

    def adjoint_preconditioner(self) -> Any:
        name, vector, M = self.method.name, self.stop.vector, self.options.M
        if self.options.adjoint_M is not None:
            return as_preconditioner(name, self.options.adjoint_M, vector)
        if self.M is None or self.symmetric:
            return self.M
        if isinstance(self.M, Matrix):
            return self.M.T
        if hasattr(M, "T"):
            return as_preconditioner(name, M.T, vector)
        raise ValueError(
            f"{name}: the implicit gradient solves with the transpose of A and needs that of M; give M an "
            "attribute T, or pass adjoint_M="
        )

    def solve_adjoint(self, A: Operator, g: Tensor, forward: Solution) -> Tensor:
        solver = self.adjoint(A)
        try:
            solution = solver.implicit(g, None)
        except SolverError as error:
            forward.adjoint = error.solution
            raise SolverError(f"{self.method.name}, adjoint solve", error.solution) from None
        forward.adjoint = solution
        if not solution.converged:
            warnings.warn(
                f"{self.method.name}: the adjoint solve of the backward did not converge, so its gradient is "
                f"not exact: {solution.summary()} See adjoint_rtol, adjoint_maxiter.",
                stacklevel=2,
            )
        return solution.x.unsqueeze(-1) if self.stop.vector else solution.x


def replace_stop(stop: Stopping, rtol: float, maxiter: int) -> Stopping:
    return stop._replace(rtol=rtol, atol=0.0, maxiter=maxiter, callback=None)


class _Implicit(torch.autograd.Function):
    """x, found already, with the derivatives of A^-1 b."""

    @staticmethod
    def forward(solver, solution, x, b, *parameters):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.solver, ctx.solution, _, b, *parameters = inputs
        ctx.save_for_backward(output, *parameters)
        ctx.save_for_forward(output, b, *parameters)

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        x, *parameters = ctx.saved_tensors
        solver: _Solver = ctx.solver
        A = solver.A.with_parameters(tuple(parameters)) if isinstance(solver.A, Matrix) else solver.A
        y = solver.solve_adjoint(A, g, ctx.solution)
        need = ctx.needs_input_grad[4:]
        grads = A.pullback(-y, x) if any(need) else (None,) * len(parameters)
        return None, None, None, y if ctx.needs_input_grad[3] else None, *grads

    @staticmethod
    def jvp(ctx, _s, _t, _x, tb, *tangents):  # type: ignore[override]
        x, b, *parameters = ctx.saved_tensors
        solver: _Solver = ctx.solver
        right = torch.zeros_like(b) if tb is None else tb
        if any(t is not None for t in tangents):
            zeros = tuple(
                torch.zeros_like(p) if t is None else t for p, t in zip(parameters, tangents, strict=True)
            )
            right = right - solver.A.with_parameters(zeros)(x)
        A = solver.A.with_parameters(tuple(parameters))
        stop = replace_stop(solver.stop, solver.stop.rtol, solver.stop.maxiter)
        tangent = _Solver(solver.method, A, solver.M, solver.options, stop, solver.symmetric).implicit(
            right, None
        )
        return tangent.x.unsqueeze(-1) if stop.vector else tangent.x


def _check_operands(name: str, A: Any, b: Tensor, x0: Tensor | None) -> None:
    if isinstance(A, CSR):
        _check.same_kind(name, "b", b, A.values)
        n = A.shape[0]
        if b.shape[0 if b.dim() == 1 else -2] != n:
            raise ValueError(f"{name}: b must have A.shape[0] = {n} rows, got shape {tuple(b.shape)}")
        _check.batches(name, A.batch_shape, b.shape[:-2], "A.values and b")
        if b.dim() == 1 and A.batch_shape:
            raise ValueError(
                f"{name}: for a batch of matrices b must have shape (..., n, k), got {tuple(b.shape)}; "
                "b.unsqueeze(-1) is one column for all"
            )
    else:
        _check.dtype(name, "b", b)
    if x0 is not None:
        _check.same_kind(name, "x0", x0, b)
        if x0.shape != b.shape:
            raise ValueError(f"{name}: x0 must have b's shape {tuple(b.shape)}, got {tuple(x0.shape)}")


def _check_numbers(name: str, options: Options) -> None:
    _check.one_of(name, "gradient", options.gradient, GRADIENTS)
    for key in ("rtol", "atol", "adjoint_rtol"):
        value = getattr(options, key)
        if value is not None and not value >= 0:
            raise ValueError(f"{name}: {key} must not be negative, got {value}")
    for key in ("maxiter", "adjoint_maxiter"):
        value = getattr(options, key)
        if value is not None:
            _check.integer(name, key, value, 0)
    if options.gradient != "implicit":
        for key in ("adjoint_rtol", "adjoint_maxiter", "adjoint_M"):
            if getattr(options, key) is not None:
                raise ValueError(f'{name}: {key} belongs to gradient="implicit", got {options.gradient!r}')


def _refuse_what_has_no_implicit_gradient(
    name: str, given: Any, M: Any, x0: Tensor | None, b: Tensor
) -> None:
    if not torch.is_grad_enabled():
        return
    learns = None
    if x0 is not None and x0.requires_grad:
        learns = "x0"
    elif isinstance(given, CSR):
        learns = "M" if given.requires_grad else None
    elif isinstance(given, torch.nn.Module):
        learns = "M" if any(p.requires_grad for p in given.parameters()) else None
    elif M is not None and M(b.detach()).requires_grad:
        learns = "M"
    if learns:
        raise ValueError(
            f'{name}: {learns} learns, but a converged solution does not depend on it: gradient="implicit" '
            'would give it no gradient. Use gradient="unrolled" or "checkpointed"'
        )
