"""The derivatives of a solve: of the solution ("implicit"), or of the iterations that ran ("unrolled", and
"checkpointed" in less memory). They differentiate `Problem.run`, whatever the method.

Implicit, for any method that finds x: with lambda = A^-T xbar,

    bbar = lambda,    Abar = -lambda x^T on the pattern (for a callable A: the gradient of -<lambda, A x>).

lambda is found by the same method on the transpose, itself differentiable by the same rule, so that
derivatives of any order exist. In forward mode, dx = A^-1 (db - dA x).

Two functions of autograd: `Solve` solves, a constant for autograd, on the plain tensors that it receives
where a transformation of torch.func is on; `Implicit` gives its x the derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from learnsolve.matrix.autocast import full_precision
from learnsolve.ops.core import across
from learnsolve.ops.core.autograd import keep_for_forward_mode, tracked
from learnsolve.solvers.core.functions import Function
from learnsolve.solvers.core.system import Outcome
from learnsolve.solvers.solution import Report, Solution, SolverError

if TYPE_CHECKING:
    from learnsolve.solvers.core.problem import Problem


def unrolled(problem: Problem, b: Tensor, x0: Tensor | None) -> Solution:
    if mapped(b) or any(mapped(p) for p in problem.A.parameters):
        raise NotImplementedError(
            f'{problem.name}: vmap needs gradient="implicit", since the number of iterations depends on the '
            "data; or give the mapped axis to b, or A.values, as a batch axis"
        )
    out = problem.run(b, x0)
    if (shared := across.of(problem.A)) is not None:
        out = out._replace(norms=shared.shown(out.norms))
    if out.norms.shape[-2] == 1:
        out = out._replace(x=with_zero_gradient(out.x, b, *problem.A.parameters))
    return problem.reported(out)


def implicit(
    problem: Problem, b: Tensor, x0: Tensor | None, derived: Callable[[], tuple[Problem, Tensor]]
) -> Solution:
    """`derived`() is the problem as derivatives solve it, and its right-hand side."""
    report, parameters = Report(), problem.A.parameters
    if transformed():
        ended = Report()
        out = Outcome(*Solve.apply(problem, ended, b, x0, *parameters))  # type: ignore[misc]
        if (plain := ended.solution) is not None:
            out = out._replace(note=plain.note, execution=plain.execution)
    else:
        with torch.no_grad():
            out = problem.run(b, x0)
        plain = problem.reported(out)
        if not tracked(b, *parameters):
            return plain
    if tracked(b, *parameters):
        again, right = derived()
        x = Implicit.apply(again, report, out.x, right, *parameters)
        out = out._replace(x=x)
    return problem.solution(out, report)


def linear(problem: Problem, b: Tensor, what: str, ended: Report) -> Tensor:
    """A^-1 b for a derivative, itself differentiable; a failure is reported as that of a solve."""
    advice = ", so the derivative is not exact (see adjoint_rtol, adjoint_maxiter)"
    named = replace(problem, name=f"{problem.name}, {what}", advice=advice)
    try:
        if transformed():
            x, _, _ = Solve.apply(named, ended, b, None, *problem.A.parameters)  # type: ignore[misc]
        else:
            with torch.no_grad():
                out = named.run(b, None)
            x, ended.solution = out.x, named.reported(out)
    except SolverError as error:
        ended.solution = error.solution
        raise
    if tracked(b, *problem.A.parameters):
        return Implicit.apply(problem, Report(), x, b, *problem.A.parameters)  # type: ignore[return-value]
    return x


def with_zero_gradient(x: Tensor, *others: Tensor) -> Tensor:
    """x, with zero gradients for those of `others` that require grad: a backward works even if no iteration
    ran."""
    for t in others:
        if tracked(t):
            x = x + torch.where(torch.zeros_like(t, dtype=torch.bool), t, 0).sum()
    return x


def mapped(t: Tensor) -> bool:
    """Is a vmap at work on this tensor?"""
    functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
    while functorch.is_functorch_wrapped_tensor(t):
        if functorch.is_batchedtensor(t):
            return True
        t = functorch.get_unwrapped(t)
    return False


def transformed() -> bool:
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


class Solve(torch.autograd.Function):
    """x, norms and codes of a solve."""

    @staticmethod
    def forward(problem: Problem, ended: Report, b: Tensor, x0: Tensor | None, *parameters: Tensor):
        out = problem.with_parameters(parameters).run(b, x0)
        ended.solution = problem.reported(out)
        return out[:3]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(*output)
        ctx.inputs = len(inputs)

    @staticmethod
    def backward(ctx, *_):  # type: ignore[override]
        return (None,) * ctx.inputs

    @staticmethod
    def jvp(ctx, *_):  # type: ignore[override]
        return None, None, None

    @staticmethod
    def vmap(info, in_dims, problem, report, b, x0, *parameters):
        b, x0 = _dense_first(b, in_dims[2], info.batch_size), _dense_first(x0, in_dims[3], info.batch_size)
        parameters = _values_first(problem, b, parameters, in_dims[4:])
        return Solve.apply(problem, report, b, x0, *parameters), (0, 0, 0)


class Implicit(torch.autograd.Function):
    """x = A^-1 b, found already, with its derivatives."""

    @staticmethod
    def forward(problem: Problem, report: Report, x: Tensor, b: Tensor, *parameters: Tensor):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.problem, ctx.report, _, b, *parameters = inputs
        ctx.save_for_backward(output, *parameters)
        keep_for_forward_mode(ctx, output, b, *parameters)

    @staticmethod
    @full_precision
    def backward(ctx, g):  # type: ignore[override]
        x, *parameters = ctx.saved_tensors
        problem: Problem = ctx.problem.with_parameters(tuple(parameters))
        y = problem.adjoint().linear(g, "adjoint solve of the backward", ctx.report)
        need = ctx.needs_input_grad[4:]
        grads = problem.A.pullback(-y, x) if any(need) else (None,) * len(parameters)
        return None, None, None, y if ctx.needs_input_grad[3] else None, *grads

    @staticmethod
    def jvp(ctx, _s, _r, _x, tb, *tangents):  # type: ignore[override]
        x, b, *parameters = ctx.saved_tensors
        problem: Problem = ctx.problem.with_parameters(tuple(parameters))
        right = torch.zeros_like(b) if tb is None else tb
        if any(t is not None for t in tangents):
            right = right - problem.A.pushforward(x, tangents)
        return problem.linear(right, "solve for the tangent", ctx.report)

    @staticmethod
    def vmap(info, in_dims, problem, report, x, b, *parameters):
        x, b = _dense_first(x, in_dims[2], info.batch_size), _dense_first(b, in_dims[3], info.batch_size)
        parameters = _values_first(problem, b, parameters, in_dims[4:])
        return Implicit.apply(problem, report, x, b, *parameters), 0


def _dense_first(t: Any, axis: int | None, n: int) -> Any:
    """The mapped axis as the first batch axis."""
    if t is None:
        return None
    return t.expand((n, *t.shape)) if axis is None else t.movedim(axis, 0)


def _values_first(
    problem: Problem, b: Tensor, parameters: tuple[Tensor, ...], axes: tuple
) -> tuple[Tensor, ...]:
    if not any(axis is not None for axis in axes):
        return parameters
    if isinstance(problem.A, Function):
        raise NotImplementedError(
            f"{problem.name}: vmap over what A is made of needs A as a CSR or a StencilOperator; loop over "
            "the systems instead"
        )
    (values,), (axis,) = parameters, axes
    values = values.movedim(axis, 0)
    missing = b.dim() - 2 - (values.dim() - problem.A.core())  # batch axes of b that A lacks
    return (values.reshape(values.shape[0], *[1] * missing, *values.shape[1:]),)
