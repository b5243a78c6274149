"""The compiled sweeps and their adjoint. Python handles an interrupt only between calls, so a long call is
split into several; this file splits calls and combines their results.
"""

from typing import Any

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix.pattern import SparsityPattern

_raw = torch.ops.learnsolve.csr_richardson.default
_raw_backward = torch.ops.learnsolve.csr_richardson_backward.default

# Elements that one call may process, so that no call, including adjoints, delays an interrupt for too long.
WORK = 100_000_000
_WORK = WORK  # of one call of sweeps
# A CUDA device may process this many times as many elements (not measured), and the host does not wait for
# it; the second value limits the iterations that the host launches in one call.
_DEVICE_FACTOR, _DEVICE_ITERATIONS = 100, 10_000


_EMPTY = {dtype: torch.empty(0, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64)}


def empty(like: Tensor) -> Tensor:
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


def apart(t: Tensor) -> Tensor:
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
    """Iterations of each call, and of each segment that the backward repeats separately."""
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


def _of(t: Tensor, axis: int, first: int, count: int) -> Tensor:
    """The part of scale or momentum (shared or per sweep) for the sweeps first ... first + count."""
    return t.narrow(axis, first, count) if t.dim() >= -axis and t.shape[axis] > 1 else t


class _Sweeps:
    """The raw operator for some of the sweeps."""

    def __init__(self, values, scale, momentum, b, pattern):
        self.scale, self.momentum, self.b = scale, momentum, b
        self.structure, self.values = pattern._structure(False), values
        self.heavy = momentum.shape[-1] > 0

    def operands(self, first: int, count: int) -> tuple:
        m = _of(self.momentum, -1, first, count) if self.heavy else None
        return self.values, _of(self.scale, -2, first, count), m, self.b

    def __call__(self, x, before, first, count, stride):
        """x, the previous iterate, norms, saved tensors."""
        operands = self.operands(first, count)
        x, norms, kept, last = _raw(self.structure, *operands, x, before, count, stride)
        if stride == 1 and self.heavy and count > 0:
            last = self.last(kept)
        return x, last if self.heavy else None, norms, kept

    def last(self, kept: Tensor) -> Tensor:
        return kept.select(max(self.b.dim() - 2, 0), -1)


def forward(
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


def adjoint(
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
