"""Scaled Richardson sweeps, x <- x + s o (b - A x), any number of them as one differentiable operation.

With s = w / diag(A) this is weighted Jacobi. Forward and adjoint are one compiled call each (the adjoint's
recursion stands in csrc/kernels/richardson.h). Second derivatives, forward mode and unusual batches go
through `_unfused`, the same sweeps as a composition of public operations.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.ops._autograd import Eager, keep_for_forward_mode, pullback, tracked, vmapped
from learnsolve.ops._product import product
from learnsolve.pattern import SparsityPattern

_raw = torch.ops.learnsolve.csr_richardson.default
_raw_backward = torch.ops.learnsolve.csr_richardson_backward.default


def richardson_sweeps(
    values: Tensor,
    scale: Tensor,
    b: Tensor,
    x0: Tensor,
    pattern: SparsityPattern,
    iterations: int,
    checkpointed: bool = False,
) -> tuple[Tensor, Tensor]:
    """x after `iterations` sweeps and the residual norm before each of them. Arguments are not checked.

    Parameters
    ----------
    values : (nnz,) or (B, nnz)
    scale : (n,), (1 or iterations, n) or (B, 1 or iterations, n)
    b, x0 : (n,), (n, k) or (B, n, k), of one shape; B only if one of the above has it or for itself
    checkpointed : keep O(sqrt(iterations)) iterates for the backward, and repeat the sweeps between them

    Returns
    -------
    x, of b's shape, and norms, (iterations,), (iterations, k) or (B, iterations, k)
    """
    stride = max(1, round(iterations**0.5)) if checkpointed else 1
    if torch.compiler.is_dynamo_compiling():
        learns = values.requires_grad or scale.requires_grad or b.requires_grad or x0.requires_grad
        args = (values, scale, b, x0, pattern, iterations, stride if learns else 0)
        return _Richardson.apply(*args)[:2]  # type: ignore[return-value]
    args = (values, scale, b, x0, pattern, iterations, stride)
    if tracked(values, scale, b, x0):
        return _RichardsonForwardMode.apply(*args)[:2]  # type: ignore[return-value]
    return _Richardson.forward(values, scale, b, x0, pattern, iterations, 0)[:2]


def residual_norm(r: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """||r|| along `dim`. Its derivatives at zero are zero, where the second of `vector_norm` is NaN."""
    square = (r * r).sum(dim, keepdim)
    zero = square == 0
    return torch.where(zero, 0, torch.where(zero, 1, square).sqrt())


def _unfused(
    values: Tensor, scale: Tensor, b: Tensor, x0: Tensor, pattern: SparsityPattern, iterations: int
) -> tuple[Tensor, Tensor]:
    vector = b.dim() == 1
    scale = scale.unsqueeze(0) if scale.dim() == 1 else scale
    x, norms = x0, []
    for sweep in range(iterations):
        r = b - product(values, x, pattern, False)
        norms.append(residual_norm(r, 0 if vector else -2))
        s = scale[..., sweep if scale.shape[-2] > 1 else 0, :]
        x = x + (s if vector else s.unsqueeze(-1)) * r
    shape = (*b.shape[:-2], 0, *b.shape[max(b.dim() - 1, 1) :])
    return x, torch.stack(norms, dim=0 if vector else -2) if norms else b.new_empty(shape)


def _tangent(
    primals: tuple[Tensor, ...], tangents: tuple[Tensor, ...], pattern: SparsityPattern, iterations: int
) -> tuple[Tensor, Tensor]:
    """Forward mode: the sweeps and their derivative side by side."""
    (values, scale, b, x), (tvalues, tscale, tb, tx) = primals, tangents
    vector = b.dim() == 1
    axis = 0 if vector else -2
    if scale.dim() == 1:
        scale, tscale = scale.unsqueeze(0), tscale.unsqueeze(0)
    norms = []
    for sweep in range(iterations):
        r = b - product(values, x, pattern, False)
        tr = tb - product(tvalues, x, pattern, False) - product(values, tx, pattern, False)
        norm = residual_norm(r, axis)
        norms.append(torch.where(norm == 0, 0, (r * tr).sum(axis) / torch.where(norm == 0, 1, norm)))
        row = sweep if scale.shape[-2] > 1 else 0
        s, ts = scale[..., row, :], tscale[..., row, :]
        if not vector:
            s, ts = s.unsqueeze(-1), ts.unsqueeze(-1)
        x, tx = x + s * r, tx + ts * r + s * tr
    shape = (*b.shape[:-2], 0, *b.shape[max(b.dim() - 1, 1) :])
    return tx, torch.stack(norms, dim=axis) if norms else b.new_empty(shape)


def _zeros_for_none(primals, tangents):
    return tuple(
        torch.zeros_like(p) if t is None else t
        for p, t in zip(primals, tangents[: len(primals)], strict=True)
    )


def _unfused_adjoint(pattern: SparsityPattern, iterations: int) -> Callable:
    """(values, scale, b, x0, gx, gnorms) -> gradients for the first four, differentiable."""

    def adjoint(values, scale, b, x0, gx, gnorms):
        _, pull = pullback(lambda v, s, c, y: _unfused(v, s, c, y, pattern, iterations), values, scale, b, x0)
        return pull((gx, gnorms))

    return adjoint


class _Richardson(torch.autograd.Function):
    @staticmethod
    def forward(values, scale, b, x0, pattern, iterations, stride):
        ptr, idx, _, blocks = pattern._structure(False)
        return _raw(ptr, idx, blocks, values, scale, b, x0, iterations, stride)

    @staticmethod
    def setup_context(ctx, inputs, output):
        values, scale, b, x0, ctx.pattern, ctx.iterations, ctx.stride = inputs
        _, norms, iterates = output
        ctx.mark_non_differentiable(iterates)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(values, scale, b, x0, norms, iterates)

    @staticmethod
    def backward(ctx, gx, gnorms, _):  # type: ignore[override]
        values, scale, b, x0, norms, iterates = ctx.saved_tensors
        if gx is None:
            if gnorms is None:
                return (None,) * 7
            gx = torch.zeros_like(b)
        needs = ctx.needs_input_grad[:4]
        if not torch.compiler.is_dynamo_compiling() and tracked(values, scale, b, x0, gx):
            gnorms = torch.zeros_like(norms) if gnorms is None else gnorms
            grads = _RichardsonAdjointForwardMode.apply(
                values, scale, b, x0, norms, iterates, gx, gnorms, ctx.pattern, ctx.iterations, ctx.stride
            )
        else:
            grads = _adjoint(
                values, scale, b, norms, iterates, gx, gnorms, ctx.pattern, ctx.iterations, ctx.stride, needs
            )
        wanted = [g if needed else None for g, needed in zip(grads, ctx.needs_input_grad[:4], strict=True)]
        return (*wanted, None, None, None)

    @staticmethod
    def vmap(info, in_dims, values, scale, b, x0, pattern, iterations, stride):
        def front(t, dim):
            return t if dim is None else t.movedim(dim, 0)

        inner = [t.dim() - (d is not None) for t, d in zip((values, scale, b, x0), in_dims[:4], strict=True)]
        if inner[0] > 1 or inner[1] > 2 or inner[2] > 2:
            # A batch within the map: two batch axes are more than the kernel has.
            unfused = lambda v, s, c, y: _unfused(v, s, c, y, pattern, iterations)  # noqa: E731
            (x, norms), dims = vmapped(unfused, in_dims[:4], (values, scale, b, x0))
            return (x, norms, x.new_empty(0)), (*dims, None)
        vector = inner[2] == 1
        n = info.batch_size
        b, x0 = (
            t if d is not None else t.expand((n, *t.shape))
            for t, d in zip((front(b, in_dims[2]), front(x0, in_dims[3])), in_dims[2:4], strict=True)
        )
        scale = front(scale, in_dims[1])
        if in_dims[1] is not None and inner[1] == 1:
            scale = scale.unsqueeze(1)
        if vector:
            b, x0 = b.unsqueeze(-1), x0.unsqueeze(-1)
        x, norms = richardson_sweeps(front(values, in_dims[0]), scale, b, x0, pattern, iterations, stride > 1)
        if vector:
            x, norms = x.squeeze(-1), norms.squeeze(-1)
        return (x, norms, x.new_empty(0)), (0, 0, None)


class _RichardsonForwardMode(Eager, _Richardson):
    @staticmethod
    def setup_context(ctx, inputs, output):
        _Richardson.setup_context(ctx, inputs, output)
        keep_for_forward_mode(ctx, *inputs[:4])

    @staticmethod
    def jvp(ctx, *tangents):  # type: ignore[override]
        primals = ctx.saved_tensors[:4]
        return (*_tangent(primals, _zeros_for_none(primals, tangents), ctx.pattern, ctx.iterations), None)


def _adjoint(values, scale, b, norms, iterates, gx, gnorms, pattern, iterations, stride, needs):
    ptr, idx, _, blocks = pattern._structure(False)
    adjoint = pattern._structure(True)
    return _raw_backward(
        ptr, idx, blocks, *adjoint, values, scale, b, iterates, norms, gx, gnorms, iterations, stride, *needs
    )


class _RichardsonAdjoint(torch.autograd.Function):
    """Gradients for (values, scale, b, x0), as an operation that has derivatives itself."""

    @staticmethod
    def forward(values, scale, b, x0, norms, iterates, gx, gnorms, pattern, iterations, stride):
        return _adjoint(
            values, scale, b, norms, iterates, gx, gnorms, pattern, iterations, stride, (True,) * 4
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        values, scale, b, x0, _, _, gx, gnorms, ctx.pattern, ctx.iterations, _ = inputs
        ctx.save_for_backward(values, scale, b, x0, gx, gnorms)

    @staticmethod
    def backward(ctx, *cotangents):  # type: ignore[override]
        _, pull = pullback(_unfused_adjoint(ctx.pattern, ctx.iterations), *ctx.saved_tensors)
        gv, gs, gb, gx0, ggx, ggnorms = pull(cotangents)
        return gv, gs, gb, gx0, None, None, ggx, ggnorms, None, None, None

    @staticmethod
    def vmap(info, in_dims, values, scale, b, x0, norms, iterates, gx, gnorms, pattern, iterations, stride):
        return vmapped(
            _unfused_adjoint(pattern, iterations),
            in_dims[:4] + in_dims[6:8],
            (values, scale, b, x0, gx, gnorms),
        )


class _RichardsonAdjointForwardMode(Eager, _RichardsonAdjoint):
    @staticmethod
    def setup_context(ctx, inputs, output):
        _RichardsonAdjoint.setup_context(ctx, inputs, output)
        keep_for_forward_mode(ctx, *inputs[:4], *inputs[6:8])

    @staticmethod
    def jvp(ctx, *tangents):  # type: ignore[override]
        primals = ctx.saved_tensors
        tangents = _zeros_for_none(primals, tangents[:4] + tangents[6:8])
        # torch does not nest forward modes. The transpose of the transpose is the tangent map itself.
        out, pull = pullback(_unfused_adjoint(ctx.pattern, ctx.iterations), *primals)
        _, push = pullback(pull, tuple(torch.zeros_like(o) for o in out))
        return push(tangents)[0]
