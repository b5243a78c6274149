"""A fixed number of scaled Richardson sweeps as one differentiable operation,

    x_{k+1} = x_k + s_k o (b - A x_k) + m_k (x_k - x_{k-1}),   x_{-1} = x_0.

With s = w / diag(A) and no momentum m this is weighted Jacobi; with constants the heavy ball; Chebyshev's
semi-iteration also has this form. Forward and adjoint are one compiled call each (sweep_calls.py; the
recursion of the adjoint is in csrc/kernels/sweeps.h). Second derivatives, forward mode and unusual
batches use `_unfused`, the same sweeps composed of public operations.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core import sweep_calls
from learnsolve.ops.core.autograd import Operation, pullback, pushforward, tracked, vmapped
from learnsolve.ops.core.product import product
from learnsolve.ops.core.steps import residual_norm, stationary_steps

__all__ = ["residual_norm", "richardson_sweeps"]

_APART = 8  # sweeps that are worth two changes of the layout


def richardson_sweeps(
    values: Tensor,
    scale: Tensor,
    b: Tensor,
    x0: Tensor,
    pattern: SparsityPattern,
    iterations: int,
    checkpointed: bool = False,
    momentum: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x after `iterations` sweeps and the residual norm before each of them. Arguments are not checked.

    Parameters
    ----------
    values : (nnz,) or (B, nnz)
    scale : (n,), (1 or iterations, n) or (B, 1 or iterations, n)
    b, x0 : (n,), (n, k) or (B, n, k), of the same shape
    checkpointed : keep O(sqrt(iterations)) iterates for the backward, and repeat the sweeps between them
    momentum : (1 or iterations,) or (B, 1 or iterations); None or empty: none

    Returns
    -------
    x, of b's shape, and norms, (iterations,), (iterations, k) or (B, iterations, k)

    Notes
    -----
    For a column whose cotangents are all exactly zero, the backward only reads them.
    """
    m = sweep_calls.empty(values) if momentum is None else momentum
    constants = (pattern, iterations, checkpointed)
    if torch.compiler.is_dynamo_compiling():
        learns = False
        for t in (values, scale, m, b, x0):
            learns = learns or t.requires_grad
        return _Richardson.traced.apply(values, scale, m, b, x0, *constants, learns)[:2]
    if tracked(values, scale, m, b, x0):
        return _Richardson.eager.apply(values, scale, m, b, x0, *constants, True)[:2]
    if iterations < _APART or values.dim() > 1 or b.dim() != 2 or not sweep_calls.separate(b):
        return sweep_calls.forward(values, scale, m, b, x0, *constants, False)[:2]  # type: ignore[return-value]
    # All sweeps of a column before the next begins, as many columns in one call as interrupts allow.
    one, none = b[:, :1], torch.Size()
    width = max(sweep_calls.length(values, one) // iterations, 1)
    x, norms = b.new_empty(b.shape), b.new_empty((iterations, b.shape[1]))
    for i in range(0, b.shape[1], width):
        columns = slice(i, i + width)
        B, X = (sweep_calls.apart(t[:, columns]) for t in (b, x0))
        out = sweep_calls.forward(values, scale, m, B, X, *constants, False)[:2]
        x[:, columns], norms[:, columns] = (sweep_calls.together(t, none) for t in out)
    return x, norms


def _unfused(
    values: Tensor,
    scale: Tensor,
    momentum: Tensor,
    b: Tensor,
    x0: Tensor,
    pattern: SparsityPattern,
    iterations: int,
) -> tuple[Tensor, Tensor]:
    """The same sweeps by public operations."""
    A = lambda x: product(values, x, pattern, False)  # noqa: E731
    scale = scale.unsqueeze(0) if scale.dim() == 1 else scale
    m = momentum if momentum.numel() > 0 else None
    x, _, norms = stationary_steps(A, None, scale, m, b, x0, x0, range(iterations))
    return x, norms


def _unfused_adjoint(pattern: SparsityPattern, iterations: int) -> Callable:
    """(values, scale, momentum, b, x0, gx, gnorms) -> gradients for the first five, differentiable."""

    def adjoint(*args):
        _, pull = pullback(lambda v, s, m, b, x: _unfused(v, s, m, b, x, pattern, iterations), *args[:5])
        return pull(args[5:])

    return adjoint


class _Richardson(Operation):
    forward = staticmethod(sweep_calls.forward)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *operands, ctx.pattern, ctx.iterations, ctx.checkpointed, _ = inputs
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.outputs = len(output)
        ctx.save_for_backward(*operands, *output[1:])

    @staticmethod
    def backward(ctx, gx, gnorms, *_):
        values, scale, momentum, b, x0, norms, *saved = ctx.saved_tensors
        operands = (values, scale, momentum, b, x0)
        rest = (None,) * 4
        if gx is None:
            if gnorms is None:
                return (None,) * 5 + rest
            gx = torch.zeros_like(b)
        needs = ctx.needs_input_grad[:5]
        fixed = (ctx.pattern, ctx.iterations, ctx.checkpointed)
        if not torch.compiler.is_dynamo_compiling() and tracked(*operands, gx):
            gnorms = torch.zeros_like(norms) if gnorms is None else gnorms
            grads = _RichardsonAdjoint.eager.apply(*operands, gx, gnorms, norms, fixed, *saved)
        else:
            grads = sweep_calls.adjoint(operands, gx, gnorms, norms, fixed, saved, needs)
        return (*(g if needed else None for g, needed in zip(grads, needs, strict=True)), *rest)

    @staticmethod
    def jvp(ctx, *tangents):
        sweeps = lambda v, s, m, b, x: _unfused(v, s, m, b, x, ctx.pattern, ctx.iterations)  # noqa: E731
        out = pushforward(sweeps, ctx.saved_tensors[:5], tangents[:5])
        return (*out, *(None,) * (ctx.outputs - 2))

    @staticmethod
    def vmap(info, in_dims, values, scale, momentum, b, x0, pattern, iterations, checkpointed, learns):
        def front(t, dim):
            return t if dim is None else t.movedim(dim, 0)

        tensors = (values, scale, momentum, b, x0)
        inner = [t.dim() - (d is not None) for t, d in zip(tensors, in_dims[:5], strict=True)]
        if inner[0] > 1 or inner[1] > 2 or inner[2] > 1 or inner[3] > 2:
            # A batch within the map: the kernel supports only one batch axis.
            unfused = lambda v, s, m, c, y: _unfused(v, s, m, c, y, pattern, iterations)  # noqa: E731
            return vmapped(unfused, in_dims[:5], tensors)
        vector = inner[3] == 1
        n = info.batch_size
        b, x0 = (
            t if d is not None else t.expand((n, *t.shape))
            for t, d in zip((front(b, in_dims[3]), front(x0, in_dims[4])), in_dims[3:5], strict=True)
        )
        scale = front(scale, in_dims[1])
        if in_dims[1] is not None and inner[1] == 1:
            scale = scale.unsqueeze(1)
        if vector:
            b, x0 = b.unsqueeze(-1), x0.unsqueeze(-1)
        out = richardson_sweeps(
            front(values, in_dims[0]), scale, b, x0, pattern, iterations, checkpointed,
            front(momentum, in_dims[2]),
        )  # fmt: skip
        return tuple(t.squeeze(-1) for t in out) if vector else out, (0, 0)


class _RichardsonAdjoint(Operation):
    """Gradients for (values, scale, momentum, b, x0), as a differentiable operation."""

    @staticmethod
    def forward(values, scale, momentum, b, x0, gx, gnorms, norms, fixed, *saved):
        operands = (values, scale, momentum, b, x0)
        return sweep_calls.adjoint(operands, gx, gnorms, norms, fixed, saved, (True,) * 5)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.fixed, ctx.inputs = inputs[8][:2], len(inputs)
        ctx.save_for_backward(*inputs[:7])

    @staticmethod
    def backward(ctx, *cotangents):
        _, pull = pullback(_unfused_adjoint(*ctx.fixed), *ctx.saved_tensors)
        return (*pull(cotangents), *(None,) * (ctx.inputs - 7))

    @staticmethod
    def vmap(info, in_dims, *args):
        return vmapped(_unfused_adjoint(*args[8][:2]), in_dims[:7], args[:7])

    @staticmethod
    def jvp(ctx, *tangents):
        return pushforward(_unfused_adjoint(*ctx.fixed), ctx.saved_tensors, tangents[:7])
