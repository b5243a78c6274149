"""A fixed number of scaled Richardson sweeps as one differentiable operation,

    x_{k+1} = x_k + s_k o (b - A x_k) + m_k (x_k - x_{k-1}),   x_{-1} = x_0.

With s = w / diag(A) and no momentum m this is weighted Jacobi, with constants the heavy ball. Chebyshev's
semi-iteration also has this form. Forward and adjoint are one compiled call each (the recursion of the
adjoint is in csrc/kernels/richardson.h). Second derivatives, forward mode and unusual batches use
`_reference_sweeps`, the same sweeps composed of public operations.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops import complex_values
from learnsolve.ops.autograd import Operation, apply_vmap, distinct, needs_graph, pullback, pushforward
from learnsolve.ops.products import dots, multiply_columns, product

# Python handles an interrupt only between calls, so a long call is split into several.


_raw = torch.ops.learnsolve.csr_richardson.default
_raw_backward = torch.ops.learnsolve.csr_richardson_backward.default

# Elements that one call may process, so that no call, including adjoints, delays an interrupt for too long.
WORK = 100_000_000
_WORK = WORK  # of one call of sweeps
# A CUDA device may process this many times as many elements (not measured), and the host does not wait for
# it; the second value limits the iterations that the host launches in one call.
_DEVICE_FACTOR, _DEVICE_ITERATIONS = 100, 10_000


_EMPTY = {dtype: torch.empty(0, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64)}


def placeholder(like: Tensor) -> Tensor:
    """An empty tensor as a placeholder."""
    t = _EMPTY.get(like.dtype)
    return like.new_empty(0) if t is None or t.device != like.device else t


def iterations_of_a_call(values: Tensor, numbers: int, work: int) -> int:
    """Maximum number of iterations per call, given the work of one iteration (`numbers`) and the device."""
    if values.is_cuda:
        return max(1, min(_DEVICE_FACTOR * work // numbers, _DEVICE_ITERATIONS))
    return max(1, work // numbers)


def separate(b: Tensor) -> bool:
    """Whether a CPU works on the columns of b one by one. Several share the loads of a matrix, but fewer than
    a vector register holds are slow, and vectors of many do not fit the cache. Sizes alone decide, because
    rounding errors of a column depend on it."""
    n, k = b.shape[-2:]
    return b.is_cpu and k > 1 and (k < 4 or n * k >= (2**12 if k < 8 else 2**18))


def separate_columns(t: Tensor) -> Tensor:
    """A block of columns (..., n, k) as a batch of single ones."""
    return t.mT.reshape(-1, t.shape[-2], 1)


def together(t: Tensor, lead: torch.Size) -> Tensor:
    """The reverse, without a copy."""
    return t.reshape(*lead, -1, t.shape[-2]).mT


def length(values: Tensor, b: Tensor) -> int:
    """The maximum number of iterations of one call."""
    count = b.numel()
    columns = count // max(b.shape[max(b.dim() - 2, 0)], 1)
    return iterations_of_a_call(values, values.shape[-1] * columns + 6 * count + 1, _WORK)


def _calls(
    values: Tensor, b: Tensor, iterations: int, checkpointed: bool, heavy: bool = True
) -> list[list[int]]:
    """Iterations of each call, and of each segment that the backward pass repeats separately."""
    most = length(values, b)
    if iterations <= most:
        return [[iterations]]
    segment = max(1, round(iterations**0.5)) if checkpointed else iterations
    if checkpointed and not heavy and segment <= most:
        most -= most % segment  # each call stores some of its iterates: the next continues from one
        return [[min(most, iterations - i) for i in range(0, iterations, most)]]
    out = []
    for first in range(0, iterations, segment):
        end = min(first + segment, iterations)
        out.append([min(most, end - i) for i in range(first, end, most)])
    return out


def _stride(iterations: int, checkpointed: bool) -> int:
    """The distance of the stored iterates of a call that repeats the sweeps in between."""
    return max(1, round(iterations**0.5)) if checkpointed else 1


def _slice_sweeps(t: Tensor, axis: int, first: int, count: int) -> Tensor:
    """The part of scale or momentum (shared or per sweep) for the sweeps first ... first + count."""
    return t.narrow(axis, first, count) if t.dim() >= -axis and t.shape[axis] > 1 else t


class _Sweeps:
    """The raw operator for some of the sweeps."""

    def __init__(self, values, scale, momentum, b, pattern):
        self.scale, self.momentum, self.b = scale, momentum, b
        self.structure, self.values = pattern._structure(False), values
        self.heavy = momentum.shape[-1] > 0

    def operands(self, first: int, count: int) -> tuple:
        m = _slice_sweeps(self.momentum, -1, first, count) if self.heavy else None
        return self.values, _slice_sweeps(self.scale, -2, first, count), m, self.b

    def __call__(self, x, before, first, count, stride):
        """x, the previous iterate, norms, saved tensors."""
        operands = self.operands(first, count)
        x, norms, kept, last = _raw(self.structure, *operands, x, before, count, stride)
        if stride == 1 and self.heavy and count > 0:
            last = self.last(kept)
        return x, last if self.heavy else None, norms, kept

    def last(self, kept: Tensor) -> Tensor:
        return kept.select(max(self.b.dim() - 2, 0), -1)


def forward_sweeps(
    values: Tensor,
    scale: Tensor,
    momentum: Tensor,
    b: Tensor,
    x0: Tensor,
    pattern: SparsityPattern,
    iterations: int,
    checkpointed: bool,
    learns: bool,
) -> tuple[Tensor, ...]:
    """x, norms, and, if it `learns`, the tensors that the adjoint needs."""
    stride = _stride(iterations, checkpointed) if learns else 0
    if iterations <= length(values, b):  # skip work that would dominate for small systems
        m = momentum if momentum.shape[-1] else None
        return _raw(pattern._structure(False), values, scale, m, b, x0, None, iterations, stride)[:3]
    calls = _calls(values, b, iterations, checkpointed, momentum.shape[-1] > 0)
    if checkpointed and len(calls) > 1:
        stride = 0
    sweeps = _Sweeps(values, scale, momentum, b, pattern)
    x, before, first, norms, saved = x0, None, 0, [], []
    for segment in calls:
        if first and learns and checkpointed:
            saved += [x, before]
        for count in segment:
            x, before, history, kept = sweeps(x, before, first, count, stride)
            norms.append(history)
            first += count
            if stride:
                saved.append(kept)
    norm = norms[0] if len(norms) == 1 else torch.cat(norms, 0 if b.dim() == 1 else -2)
    return x, norm, *(x.new_empty(0) if t is None else t for t in saved)


def adjoint_sweeps(
    operands: tuple[Tensor, ...],
    gx: Tensor,
    gnorms: Tensor | None,
    norms: Tensor,
    fixed: tuple[SparsityPattern, int, bool],
    saved: Any,
    needs: tuple[bool, ...],
) -> tuple[Any, ...]:
    """Gradients for the operands (values, scale, momentum, b, x0) that are needed."""
    values, scale, momentum, b, x0 = operands
    pattern, iterations, checkpointed = fixed
    A, At = pattern._structure(False), pattern._structure(True)
    none = A[2]
    if iterations <= length(values, b):
        m = momentum if momentum.shape[-1] else None
        cotangents = (gx, none if gnorms is None else gnorms, none)
        gv, gs, gm, gb, gx0, _ = _raw_backward(
            A, At, values, scale, m, b, None, (saved[0], norms), cotangents,
            iterations, _stride(iterations, checkpointed), needs,
        )  # fmt: skip
        return gv, gs, gm if m is not None or not needs[2] else torch.zeros_like(momentum), gb, gx0
    sweeps = _Sweeps(values, scale, momentum, b, pattern)
    calls = _calls(values, b, iterations, checkpointed, sweeps.heavy)
    repeated = checkpointed and len(calls) > 1
    stride = 1 if repeated else _stride(iterations, checkpointed)
    axis = 0 if b.dim() == 1 else -2
    gbefore, end, total = None, iterations, None
    for j, segment in reversed(list(enumerate(calls))):
        x, start = saved[2 * j - 2 : 2 * j] if repeated and j else (x0, None)
        start = start if sweeps.heavy else None
        kept = [] if repeated else saved
        if repeated:
            before, first = start, end - sum(segment)
            for count in segment:
                x, before, _, iterates = sweeps(x, before, first, count, 1)
                kept.append(iterates)
                first += count
        for i, count in reversed(list(enumerate(segment))):
            first = end - count
            before = start if i == 0 or not sweeps.heavy else sweeps.last(kept[i - 1])
            history = norms.narrow(axis, first, count)
            bars = none if gnorms is None else gnorms.narrow(axis, first, count)
            *part, gx, gbefore = _raw_backward(
                A, At, *sweeps.operands(first, count), before, (kept[i], history),
                (gx, bars, none if gbefore is None else gbefore),
                count, stride, (*needs[:2], needs[2] and sweeps.heavy, needs[3], needs[4] or first > 0),
            )  # fmt: skip
            gbefore = gbefore if before is not None else None
            total = part if total is None else _together(part, total, scale, momentum)
            end = first
    assert total is not None
    gv, gs, gm, gb = total
    return gv, gs, gm if sweeps.heavy else torch.zeros_like(momentum), gb, gx


def _together(part: list, total: list, scale: Tensor, momentum: Tensor) -> list:
    """Add the gradients for (values, scale, momentum, b) of a call to those of all later calls."""

    def rows(i, t, axis):
        several = part[i].dim() >= -axis and t.shape[axis] > 1
        return torch.cat((part[i], total[i]), axis) if several else part[i] + total[i]

    return [part[0] + total[0], rows(1, scale, -2), rows(2, momentum, -1), part[3] + total[3]]


# Stationary steps by public operations, x' = x + s o M (b - A x) + m (x - before), where `before` is the
# iterate before x: defined only here. They support any A and M. Steps to a tolerance add momentum by the
# same function (solvers/core/stationary.py).


def residual_norm(r: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """||r|| along `dim`, the second to last axis, or the last for vectors. Its derivatives at zero are zero.
    The second derivative of `vector_norm` is NaN there."""
    if r.is_complex():
        r = complex_values.flat(r) if dim == -1 or r.dim() == 1 else complex_values.tall(r)
    if dim == -1 or r.dim() == 1:
        square = dots(r.unsqueeze(-1), r.unsqueeze(-1))
        square = square if keepdim else square.squeeze(-1)
    else:
        square = dots(r, r, keepdim)
    if not torch.is_grad_enabled():
        return square.sqrt()
    zero = square == 0
    return torch.where(zero, 0, torch.where(zero, 1, square).sqrt())


def add_momentum(y: Tensor, momentum: Tensor | float | None, x: Tensor, before: Tensor) -> Tensor:
    """y + momentum (x - before)"""
    return y if momentum is None else y + multiply_columns(momentum, x - before)


def stationary_steps(
    A: Callable[[Tensor], Tensor],
    M: Callable[[Tensor], Tensor] | Sequence[Callable[[Tensor], Tensor]] | None,
    scale: Tensor | None,
    momentum: Tensor | None,
    b: Tensor,
    x: Tensor,
    before: Tensor,
    numbers: Iterable[int],
    r: Tensor | None = None,
    stops: Callable[[int, Tensor, Tensor], bool] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the steps: x, the previous iterate, and the residual norm before each step.

    Parameters
    ----------
    M : r -> M r, or a sequence of one per step. None: the identity
    scale : s, shape (..., 1 or steps, 1 or n). None: 1
    momentum : m, shape (..., 1 or steps). None: 0
    b, x, before : (n,) or (..., n, k)
    r : b - A x for the given x, if known
    stops : called with (number, x, residual norm) before each step; True ends the steps
    """
    axis, norms = 0 if b.dim() == 1 else -2, []
    for number in numbers:
        r = b - A(x) if r is None else r
        norm = residual_norm(r, axis, keepdim=True)
        if stops is not None and stops(number, x, norm):
            break
        norms.append(norm)
        z = r if M is None else M(r) if callable(M) else M[number](r)
        if scale is not None:
            s = scale[..., number if scale.shape[-2] > 1 else 0, :]
            z = multiply_columns(s if b.dim() == 1 else s.unsqueeze(-1), z)
        m = None
        if momentum is not None:
            m = momentum[..., number if momentum.shape[-1] > 1 else 0]
            m = m.unsqueeze(-1).unsqueeze(-1) if m.dim() else m
        x, before, r = x + add_momentum(z, m, x, before), x, None
    return x, before, torch.cat(norms, axis) if norms else b.new_empty(b.narrow(axis, 0, 0).shape)


gmres_steps = torch.ops.learnsolve.csr_gmres.default


@torch.library.register_fake("learnsolve::csr_gmres")
def _(A, values, diagonal, b, vectors, scalars, level, limit, iterations, restart):
    room = min(restart, iterations + (len(vectors[3]) if len(vectors) > 2 else 0))
    rows, numbers = 4 if len(vectors) == 5 else 3 + 2 * room, 2 + 2 * room
    counts = b.new_empty(2, dtype=torch.int64)
    return b.new_empty(rows, len(b)), b.new_empty(numbers), b.new_empty(iterations), counts


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
    checkpointed : keep O(sqrt(iterations)) iterates for the backward pass, and repeat the sweeps between them
    momentum : (1 or iterations,) or (B, 1 or iterations); None or empty: none

    Returns
    -------
    x, of b's shape, and norms, (iterations,), (iterations, k) or (B, iterations, k)

    Notes
    -----
    For a column whose cotangents are all exactly zero, the backward pass only reads them.
    """
    m = placeholder(values) if momentum is None else momentum
    constants = (pattern, iterations, checkpointed)
    if torch.compiler.is_dynamo_compiling():
        learns = False
        for t in (values, scale, m, b, x0):
            learns = learns or t.requires_grad
        return _Richardson.traced.apply(*distinct(values, scale, m, b, x0), *constants, learns)[:2]
    if needs_graph(values, scale, m, b, x0):
        return _Richardson.eager.apply(values, scale, m, b, x0, *constants, True)[:2]
    if iterations < _APART or values.dim() > 1 or b.dim() != 2 or not separate(b):
        return forward_sweeps(values, scale, m, b, x0, *constants, False)[:2]  # type: ignore[return-value]
    # All sweeps of a column before the next begins, as many columns in one call as interrupts allow.
    one, none = b[:, :1], torch.Size()
    width = max(length(values, one) // iterations, 1)
    x, norms = b.new_empty(b.shape), b.new_empty((iterations, b.shape[1]))
    for i in range(0, b.shape[1], width):
        columns = slice(i, i + width)
        B, X = (separate_columns(t[:, columns]) for t in (b, x0))
        out = forward_sweeps(values, scale, m, B, X, *constants, False)[:2]
        x[:, columns], norms[:, columns] = (together(t, none) for t in out)
    return x, norms


def _reference_sweeps(
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


def _reference_adjoint(pattern: SparsityPattern, iterations: int) -> Callable:
    """(values, scale, momentum, b, x0, gx, gnorms) -> gradients for the first five, differentiable."""

    def adjoint(*args):
        _, pull = pullback(
            lambda v, s, m, b, x: _reference_sweeps(v, s, m, b, x, pattern, iterations), *args[:5]
        )
        return pull(args[5:])

    return adjoint


class _Richardson(Operation):
    forward = staticmethod(forward_sweeps)

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
        if not torch.compiler.is_dynamo_compiling() and needs_graph(*operands, gx):
            gnorms = torch.zeros_like(norms) if gnorms is None else gnorms
            grads = _RichardsonAdjoint.eager.apply(*operands, gx, gnorms, norms, fixed, *saved)
        else:
            grads = adjoint_sweeps(operands, gx, gnorms, norms, fixed, saved, needs)
        return (*(g if needed else None for g, needed in zip(grads, needs, strict=True)), *rest)

    @staticmethod
    def jvp(ctx, *tangents):
        sweeps = lambda v, s, m, b, x: _reference_sweeps(v, s, m, b, x, ctx.pattern, ctx.iterations)  # noqa: E731
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
            unfused = lambda v, s, m, c, y: _reference_sweeps(v, s, m, c, y, pattern, iterations)  # noqa: E731
            return apply_vmap(unfused, in_dims[:5], tensors)
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
        return adjoint_sweeps(operands, gx, gnorms, norms, fixed, saved, (True,) * 5)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.fixed, ctx.inputs = inputs[8][:2], len(inputs)
        ctx.save_for_backward(*inputs[:7])

    @staticmethod
    def backward(ctx, *cotangents):
        _, pull = pullback(_reference_adjoint(*ctx.fixed), *ctx.saved_tensors)
        return (*pull(cotangents), *(None,) * (ctx.inputs - 7))

    @staticmethod
    def vmap(info, in_dims, *args):
        return apply_vmap(_reference_adjoint(*args[8][:2]), in_dims[:7], args[:7])

    @staticmethod
    def jvp(ctx, *tangents):
        return pushforward(_reference_adjoint(*ctx.fixed), ctx.saved_tensors, tangents[:7])
