"""Implicit differentiation of A x = b, for any method that finds x: with lambda = A^-T xbar,

    bbar = lambda,    Abar = -lambda x^T on the pattern (for a callable A: the gradient of -<lambda, A x>).

lambda is found by the same method on the transpose, itself differentiable by the same rule, so that
derivatives of any order exist. In forward mode, dx = A^-1 (db - dA x).

Two functions of autograd: `Found` runs the loop, a constant for autograd, on the plain tensors that it
receives where a transformation of torch.func is on; `Implicit` gives its x the derivatives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from learnsolve._autocast import full_precision
from learnsolve.ops._autograd import keep_for_forward_mode
from learnsolve.solvers._function import Function
from learnsolve.solvers.base import Report

if TYPE_CHECKING:
    from learnsolve.solvers._solve import Solver


def transformed() -> bool:
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


class Found(torch.autograd.Function):
    """x, norms and codes of a solve."""

    @staticmethod
    def forward(solver: Solver, report: Report, b: Tensor, x0: Tensor | None, *parameters: Tensor):
        return solver.with_parameters(parameters).loop(b, x0, report)

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
    def vmap(info, in_dims, solver, report, b, x0, *parameters):
        b, x0 = _dense_first(b, in_dims[2], info.batch_size), _dense_first(x0, in_dims[3], info.batch_size)
        parameters = _values_first(solver, b, parameters, in_dims[4:])
        return Found.apply(solver, report, b, x0, *parameters), (0, 0, 0)


class Implicit(torch.autograd.Function):
    """x = A^-1 b, found already, with its derivatives."""

    @staticmethod
    def forward(solver: Solver, report: Report, x: Tensor, b: Tensor, *parameters: Tensor):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.solver, ctx.report, _, b, *parameters = inputs
        ctx.save_for_backward(output, *parameters)
        keep_for_forward_mode(ctx, output, b, *parameters)

    @staticmethod
    @full_precision
    def backward(ctx, g):  # type: ignore[override]
        x, *parameters = ctx.saved_tensors
        solver: Solver = ctx.solver.with_parameters(tuple(parameters))
        y = solver.adjoint().linear(g, "adjoint solve of the backward", ctx.report)
        need = ctx.needs_input_grad[4:]
        grads = solver.A.pullback(-y, x) if any(need) else (None,) * len(parameters)
        return None, None, None, y if ctx.needs_input_grad[3] else None, *grads

    @staticmethod
    def jvp(ctx, _s, _r, _x, tb, *tangents):  # type: ignore[override]
        x, b, *parameters = ctx.saved_tensors
        solver: Solver = ctx.solver.with_parameters(tuple(parameters))
        right = torch.zeros_like(b) if tb is None else tb
        if any(t is not None for t in tangents):
            right = right - solver.A.pushforward(x, tangents)
        return solver.linear(right, "solve for the tangent", ctx.report)

    @staticmethod
    def vmap(info, in_dims, solver, report, x, b, *parameters):
        x, b = _dense_first(x, in_dims[2], info.batch_size), _dense_first(b, in_dims[3], info.batch_size)
        parameters = _values_first(solver, b, parameters, in_dims[4:])
        return Implicit.apply(solver, report, x, b, *parameters), 0


def _dense_first(t: Any, axis: int | None, n: int) -> Any:
    """The mapped axis as the first batch axis."""
    if t is None:
        return None
    return t.expand((n, *t.shape)) if axis is None else t.movedim(axis, 0)


def _values_first(
    solver: Solver, b: Tensor, parameters: tuple[Tensor, ...], axes: tuple
) -> tuple[Tensor, ...]:
    if not any(axis is not None for axis in axes):
        return parameters
    if isinstance(solver.A, Function):
        raise NotImplementedError(
            f"{solver.name}: vmap over what A is made of needs A as a CSR or a StencilOperator; loop over "
            "the systems instead"
        )
    (values,), (axis,) = parameters, axes
    values = values.movedim(axis, 0)
    missing = b.dim() - 2 - (values.dim() - solver.A.core())  # batch axes of b that A lacks
    return (values.reshape(values.shape[0], *[1] * missing, *values.shape[1:]),)
