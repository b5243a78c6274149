"""Scaled Richardson sweeps, any number of them as one differentiable operation,

    x_{k+1} = x_k + s_k o (b - A x_k) + m_k (x_k - x_{k-1}),   x_{-1} = x_0.

With s = w / diag(A) and no momentum m this is weighted Jacobi, with constants the heavy ball, and Chebyshev's
semi-iteration has this form too. Forward and adjoint are one compiled call each (the adjoint's recursion
stands in csrc/kernels/richardson.h), cut into several where they would run for long, so that Python hears an
interrupt in between. Second derivatives, forward mode and unusual batches go through `_unfused`, the same
sweeps as a composition of public operations.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.ops._autograd import Eager, keep_for_forward_mode, pullback, tracked, vmapped
from learnsolve.ops._calls import WORK, iterations_of_a_call
from learnsolve.ops._product import product
from learnsolve.ops._steps import residual_norm, stationary_steps  # noqa: F401
from learnsolve.pattern import SparsityPattern

_raw = torch.ops.learnsolve.csr_richardson.default
_raw_backward = torch.ops.learnsolve.csr_richardson_backward.default

_WORK = WORK  # of one call

_NONE = {dtype: torch.empty(0, dtype=dtype) for dtype in (torch.float32, torch.float64)}


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
    b, x0 : (n,), (n, k) or (B, n, k), of one shape; B only if one of the others has it or for itself
    checkpointed : keep O(sqrt(iterations)) iterates for the backward, and repeat the sweeps between them
    momentum : (1 or iterations,) or (B, 1 or iterations); None or empty: none

    Returns
    -------
    x, of b's shape, and norms, (iterations,), (iterations, k) or (B, iterations, k)

    Notes
    -----
    A column whose cotangents are all exactly zero costs nothing in the backward but a look at them.
    """
    m = _NONE.get(values.dtype) if momentum is None else momentum
    if m is None or m.device != values.device:
        m = values.new_empty(0)
    if torch.compiler.is_dynamo_compiling():
        learns = False
        for t in (values, scale, m, b, x0):
            learns = learns or t.requires_grad
        return _Richardson.apply(values, scale, m, b, x0, pattern, iterations, checkpointed, learns)[:2]  # type: ignore[return-value]
    if tracked(values, scale, m, b, x0):
        return _RichardsonForwardMode.apply(values, scale, m, b, x0, pattern, iterations, checkpointed, True)[
            :2
        ]  # type: ignore[return-value]
    return _Richardson.forward(values, scale, m, b, x0, pattern, iterations, checkpointed, False)[:2]


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


def _zeros_for_none(primals, tangents):
    return tuple(
        torch.zeros_like(p) if t is None else t
        for p, t in zip(primals, tangents[: len(primals)], strict=True)
    )


def _unfused_adjoint(pattern: SparsityPattern, iterations: int) -> Callable:
    """(values, scale, momentum, b, x0, gx, gnorms) -> gradients for the first five, differentiable."""

    def adjoint(*args):
        _, pull = pullback(lambda v, s, m, c, y: _unfused(v, s, m, c, y, pattern, iterations), *args[:5])
        return pull(args[5:])

    return adjoint


def _calls(
    values: Tensor, b: Tensor, iterations: int, checkpointed: bool, heavy: bool = True
) -> list[list[int]]:
    """Iterations of each call, and of each segment that is repeated by itself in the backward."""
    columns = b.numel() // max(b.shape[max(b.dim() - 2, 0)], 1)
    length = iterations_of_a_call(values, values.shape[-1] * columns + 6 * b.numel() + 1, _WORK)
    if iterations <= length:
        return [[iterations]]
    segment = max(1, round(iterations**0.5)) if checkpointed else iterations
    if checkpointed and not heavy and segment <= length:
        length -= (
            length % segment
        )  # each call keeps some of its iterates: there is nothing else to go on from
        return [[min(length, iterations - i) for i in range(0, iterations, length)]]
    out = []
    for first in range(0, iterations, segment):
        end = min(first + segment, iterations)
        out.append([min(length, end - i) for i in range(first, end, length)])
    return out


def _stride(calls: list[list[int]], iterations: int, checkpointed: bool, learns: bool) -> int:
    """Which iterates a call of the forward keeps. A single call can repeat sweeps by itself."""
    if not learns or (checkpointed and len(calls) > 1):
        return 0
    return max(1, round(iterations**0.5)) if checkpointed else 1


def _of(t: Tensor, axis: int, first: int, count: int) -> Tensor:
    """What sweeps first ... first + count of a call use of scale or momentum, one for all or one for each."""
    return t.narrow(axis, first, count) if t.dim() >= -axis and t.shape[axis] > 1 else t


class _Sweeps:
    """The raw operator for some of the sweeps."""

    def __init__(self, values, scale, momentum, b, pattern):
        self.scale, self.momentum, self.b = scale, momentum, b
        self.structure, self.values = pattern._structure(False), values
        self.heavy = momentum.shape[-1] > 0

    def arguments(self, first: int, count: int) -> tuple:
        ptr, idx, _, blocks = self.structure
        m = _of(self.momentum, -1, first, count) if self.heavy else None
        return (ptr, idx, blocks), (self.values, _of(self.scale, -2, first, count), m, self.b)

    def __call__(self, x, before, first, count, stride):
        """x, the iterate before it, norms, what is kept."""
        structure, operands = self.arguments(first, count)
        x, norms, kept, last = _raw(*structure, *operands, x, before, count, stride)
        if stride == 1 and self.heavy and count > 0:
            last = self.last(kept)
        return x, last, norms, kept

    def last(self, kept: Tensor) -> Tensor:
        return kept.select(max(self.b.dim() - 2, 0), -1)


class _Richardson(torch.autograd.Function):
    @staticmethod
    def forward(values, scale, momentum, b, x0, pattern, iterations, checkpointed, learns):
        calls = _calls(values, b, iterations, checkpointed, momentum.shape[-1] > 0)
        stride = _stride(calls, iterations, checkpointed, learns)
        if calls == [[iterations]]:  # what small systems would notice is left out
            ptr, idx, _, blocks = pattern._structure(False)
            m = momentum if momentum.shape[-1] else None
            return _raw(ptr, idx, blocks, values, scale, m, b, x0, None, iterations, stride)[:3]
        sweeps = _Sweeps(values, scale, momentum, b, pattern)
        x, before, first, norms, saved = x0, None, 0, [], []
        for segment in calls:
            if first and learns and checkpointed:
                saved += [x, before]
            for count in segment:
                x, before, history, kept = sweeps(x, before, first, count, stride)
                before = before if sweeps.heavy else None
                norms.append(history)
                first += count
                if stride:
                    saved.append(kept)
        norm = norms[0] if len(norms) == 1 else torch.cat(norms, 0 if b.dim() == 1 else -2)
        return x, norm, *(x.new_empty(0) if t is None else t for t in saved)

    @staticmethod
    def setup_context(ctx, inputs, output):
        values, scale, momentum, b, x0, ctx.pattern, ctx.iterations, ctx.checkpointed, _ = inputs
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.outputs = len(output)
        ctx.save_for_backward(values, scale, momentum, b, x0, *output[1:])

    @staticmethod
    def backward(ctx, gx, gnorms, *_):  # type: ignore[override]
        values, scale, momentum, b, x0, norms, *saved = ctx.saved_tensors
        rest = (None,) * 4
        if gx is None:
            if gnorms is None:
                return (None,) * 5 + rest
            gx = torch.zeros_like(b)
        needs = ctx.needs_input_grad[:5]
        fixed = (ctx.pattern, ctx.iterations, ctx.checkpointed)
        if not torch.compiler.is_dynamo_compiling() and tracked(values, scale, momentum, b, x0, gx):
            gnorms = torch.zeros_like(norms) if gnorms is None else gnorms
            grads = _RichardsonAdjointForwardMode.apply(
                values, scale, momentum, b, x0, gx, gnorms, norms, fixed, *saved
            )
        else:
            grads = _adjoint(values, scale, momentum, b, x0, gx, gnorms, norms, fixed, saved, needs)
        return (*(g if needed else None for g, needed in zip(grads, needs, strict=True)), *rest)

    @staticmethod
    def vmap(info, in_dims, values, scale, momentum, b, x0, pattern, iterations, checkpointed, learns):
        def front(t, dim):
            return t if dim is None else t.movedim(dim, 0)

        tensors = (values, scale, momentum, b, x0)
        inner = [t.dim() - (d is not None) for t, d in zip(tensors, in_dims[:5], strict=True)]
        if inner[0] > 1 or inner[1] > 2 or inner[2] > 1 or inner[3] > 2:
            # A batch within the map: two batch axes are more than the kernel has.
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


class _RichardsonForwardMode(Eager, _Richardson):
    @staticmethod
    def setup_context(ctx, inputs, output):
        _Richardson.setup_context(ctx, inputs, output)
        keep_for_forward_mode(ctx, *inputs[:5])

    @staticmethod
    def jvp(ctx, *tangents):  # type: ignore[override]
        primals = ctx.saved_tensors[:5]
        sweeps = lambda *inputs: _unfused(*inputs, ctx.pattern, ctx.iterations)  # noqa: E731
        out = _pushforward(sweeps, primals, _zeros_for_none(primals, tangents))
        return (*out, *(None,) * (ctx.outputs - 2))


def _adjoint(values, scale, momentum, b, x0, gx, gnorms, norms, fixed, saved, needs):
    """Gradients for (values, scale, momentum, b, x0), of those that are needed."""
    pattern, iterations, checkpointed = fixed
    transposed = pattern._structure(True)
    calls = _calls(values, b, iterations, checkpointed, momentum.shape[-1] > 0)
    if calls == [[iterations]]:
        ptr, idx, _, blocks = pattern._structure(False)
        m = momentum if momentum.shape[-1] else None
        gv, gs, gm, gb, gx0, _ = _raw_backward(
            ptr, idx, blocks, *transposed, values, scale, m, b, None, saved[0], norms, gx, gnorms, None,
            iterations, _stride(calls, iterations, checkpointed, True), *needs,
        )  # fmt: skip
        return gv, gs, gm if m is not None or not needs[2] else torch.zeros_like(momentum), gb, gx0
    sweeps = _Sweeps(values, scale, momentum, b, pattern)
    repeated = checkpointed and len(calls) > 1
    stride = 1 if repeated else _stride(calls, iterations, checkpointed, True)
    axis = 0 if b.dim() == 1 else -2
    gbefore, end, total = None, iterations, None
    for j, segment in reversed(list(enumerate(calls))):
        x, start = saved[2 * j - 2 : 2 * j] if repeated and j else (x0, None)
        start = start if sweeps.heavy else None
        kept = [] if repeated else saved
        if repeated:
            before, first = start, end - sum(segment)
            for count in segment:
                x, before, _, iterates = sweeps(x, before if sweeps.heavy else None, first, count, 1)
                kept.append(iterates)
                first += count
        for i, count in reversed(list(enumerate(segment))):
            first = end - count
            before = start if i == 0 or not sweeps.heavy else sweeps.last(kept[i - 1])
            structure, operands = sweeps.arguments(first, count)
            history = norms.narrow(axis, first, count)
            bars = None if gnorms is None else gnorms.narrow(axis, first, count)
            *part, gx, gbefore = _raw_backward(
                *structure, *transposed, *operands, before, kept[i], history, gx, bars, gbefore,
                count, stride, needs[0], needs[1], needs[2] and sweeps.heavy, needs[3], needs[4] or first > 0,
            )  # fmt: skip
            gbefore = gbefore if before is not None else None
            total = part if total is None else _together(part, total, scale, momentum)
            end = first
    assert total is not None
    gv, gs, gm, gb = total
    return gv, gs, gm if sweeps.heavy else torch.zeros_like(momentum), gb, gx


def _together(part: list, total: list, scale: Tensor, momentum: Tensor) -> list:
    """Gradients for (values, scale, momentum, b) of a call, and of all calls after it."""

    def rows(i, t, axis):
        several = part[i].dim() >= -axis and t.shape[axis] > 1
        return torch.cat((part[i], total[i]), axis) if several else part[i] + total[i]

    return [part[0] + total[0], rows(1, scale, -2), rows(2, momentum, -1), part[3] + total[3]]


class _RichardsonAdjoint(torch.autograd.Function):
    """Gradients for (values, scale, momentum, b, x0), as an operation that has derivatives itself."""

    @staticmethod
    def forward(values, scale, momentum, b, x0, gx, gnorms, norms, fixed, *saved):
        return _adjoint(values, scale, momentum, b, x0, gx, gnorms, norms, fixed, saved, (True,) * 5)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.fixed, ctx.inputs = inputs[8][:2], len(inputs)
        ctx.save_for_backward(*inputs[:7])

    @staticmethod
    def backward(ctx, *cotangents):  # type: ignore[override]
        _, pull = pullback(_unfused_adjoint(*ctx.fixed), *ctx.saved_tensors)
        return (*pull(cotangents), *(None,) * (ctx.inputs - 7))

    @staticmethod
    def vmap(info, in_dims, *args):
        return vmapped(_unfused_adjoint(*args[8][:2]), in_dims[:7], args[:7])


class _RichardsonAdjointForwardMode(Eager, _RichardsonAdjoint):
    @staticmethod
    def setup_context(ctx, inputs, output):
        _RichardsonAdjoint.setup_context(ctx, inputs, output)
        keep_for_forward_mode(ctx, *inputs[:7])

    @staticmethod
    def jvp(ctx, *tangents):  # type: ignore[override]
        primals = ctx.saved_tensors
        tangents = _zeros_for_none(primals, tangents[:7])
        return _pushforward(_unfused_adjoint(*ctx.fixed), primals, tangents)


def _pushforward(function: Callable, primals: tuple[Tensor, ...], tangents: tuple[Tensor, ...]):
    """The tangent of function(*primals). torch does not nest forward modes: this is the transpose of the
    transpose."""
    out, pull = pullback(function, *primals)
    _, push = pullback(pull, tuple(torch.zeros_like(o) for o in out))
    return push(tangents)[0]
