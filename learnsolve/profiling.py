"""The cost of a function's forward and backward passes."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.profiler import ProfilerActivity

from learnsolve._clock import time_call, wait
from learnsolve.arguments import Count, Function
from learnsolve.matrix.checks import check_arguments
from learnsolve.matrix.csr import CSR
from learnsolve.ops.blocks import BlockBatch
from learnsolve.ops.limits import without_buffer_pool
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.solvers.solution import Solution


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass, forward or backward.

    Attributes
    ----------
    seconds : median time of the pass, without a profiler
    calls : number of operators that ran, including those called by other operators
    operators : name -> (calls, seconds), from the profiler; seconds of the operator itself, without operators
        that it called. On a CUDA device these are the seconds of its kernels
    peak_bytes : peak of the memory allocated by torch during the pass, above the level before it, or None if
        unknown
    """

    seconds: float
    calls: int
    operators: dict[str, tuple[int, float]]
    peak_bytes: int | None


@dataclasses.dataclass(frozen=True)
class Profile:
    """The result of `profile`. Printing it compares forward and backward."""

    forward: Pass
    backward: Pass
    top: int = 10

    @property
    def ratio(self) -> float:
        """Time of the backward pass over the time of the forward pass."""
        return self.backward.seconds / self.forward.seconds

    def __str__(self) -> str:
        passes = (self.forward, self.backward)
        lines = [
            ("", "forward", "backward"),
            ("time", *(_time(p.seconds) for p in passes)),
            ("backward / forward", "", f"{self.ratio:.2f}"),
            ("memory, peak", *(_memory(p.peak_bytes) for p in passes)),
            ("calls", *(str(p.calls) for p in passes)),
        ]
        names = {name: 0.0 for p in passes for name in p.operators}
        for p in passes:
            for name, (_, seconds) in p.operators.items():
                names[name] += seconds
        listed = sorted(names, key=lambda name: -names[name])
        for name in listed[: self.top]:
            each = [p.operators.get(name) for p in passes]
            lines.append((f"  {name}", *("-" if o is None else f"{o[0]} x, {_time(o[1])}" for o in each)))
        if len(listed) > self.top:
            lines.append((f"  and {len(listed) - self.top} more", "", ""))
        widths = [max(len(line[i]) for line in lines) for i in range(3)]
        return "\n".join(f"{a:{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}".rstrip() for a, b, c in lines)


@check_arguments
def profile(fn: Function, *args: object, repeats: Count = 10, warmup: Count = 2, top: Count = 10) -> Profile:
    r"""Calls and time of fn(\*args) and of its backward pass.

    The backward pass starts at all outputs of fn that require grad, with cotangents of ones, and computes the
    gradients of all tensors that require grad: arguments, and tensors that fn uses from elsewhere. It stops
    at the arguments and at tensors computed before the call (unless their graph leads to another leaf that fn
    uses), does not change `.grad`, frees no graph of the caller, and builds none for second derivatives.

    Parameters
    ----------
    fn : callable that returns a tensor, a CSR, a `Solution`, a Preconditioner, or lists, tuples, dictionaries
        or dataclasses of them. Called warmup + repeats + 1 times: in-place changes persist from call to call
    args : arguments of fn
    repeats, warmup : timed calls (the median is reported), and calls before them, which create plans
    top : number of operators to print

    Returns
    -------
    Profile, with `forward` and `backward` (seconds, calls, operators, peak_bytes) and `ratio`

    Raises
    ------
    ValueError
        if no output of fn requires grad, or an output depends on an autograd graph that has been freed.

    Notes
    -----
    On a CUDA device the clock is read when the device has finished. Times come from calls without a profiler.
    The operators come from one more call, in which small ones take longer. Memory on the CPU is that of
    torch's allocator. KINETO_LOG_LEVEL=6 in the environment suppresses the output of torch 2.13's profiler.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((30, 30)).requires_grad_()
    >>> ls.profile(ls.ops.spmm, A, torch.ones(900).double()).forward.operators["learnsolve::csr_spmm"][0]
    1
    """
    arguments = list(_tensors(args))
    devices: set[torch.device] = set()
    border = _Border(arguments)
    with torch.enable_grad():
        for _ in range(warmup):
            outputs = _outputs(fn(*args))
            devices = {t.device for t in (*arguments, *outputs) if t.is_cuda}
            border.backward(outputs)()
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(repeats):
            forward, outputs = time_call(lambda: _outputs(fn(*args)), devices)
            backward, _ = time_call(border.backward(outputs), devices)
            times[0].append(forward)
            times[1].append(backward)
            del outputs, _  # free the graph before the next forward
        outputs, first = _profile_call(lambda: _outputs(fn(*args)), devices)
        _, second = _profile_call(border.backward(outputs), devices)
    passes = [Pass(statistics.median(t), *seen) for t, seen in zip(times, (first, second), strict=True)]
    return Profile(passes[0], passes[1], top)


def _tensors(value: object) -> Iterator[Tensor]:
    """The tensors in an argument or a result."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _tensors([getattr(value, field.name) for field in dataclasses.fields(value)])
    elif isinstance(value, (CSR, BlockBatch)):
        yield (value if isinstance(value, CSR) else value.matrix).values
    elif isinstance(value, Solution):
        yield value.x
    elif isinstance(value, Preconditioner):  # tensors computed in its set-up, or trainable
        yield from _tensors(vars(value))


def _outputs(result: object) -> list[Tensor]:
    outputs = [t for t in _tensors(result) if t.requires_grad]
    if not outputs:
        raise ValueError(
            f"profile: an output of fn must have a gradient, got {type(result).__name__} without one. Use an "
            "input that requires grad, and return a tensor that is not detached, a CSR, a Solution, a "
            "Preconditioner, or a list, tuple, dictionary or dataclass of them"
        )
    return outputs


class _Border:
    """The end of the backward pass: arguments, leaves, and nodes of the graph that existed before fn was
    called, which are the nodes that two calls have in common."""

    def __init__(self, arguments: list[Tensor]):
        self.ends: dict[object, list[Tensor]] = {}
        for t in arguments:
            self.ends.setdefault(t.grad_fn, []).append(t)
        self.first: set[Any] | None = None  # nodes of the first call, until the second
        self.before: set[Any] = set()

    def backward(self, outputs: list[Tensor]) -> Callable[[], Any]:
        """Call this after each call of fn, with its outputs."""
        inputs, nodes = self._inputs(outputs)
        unknown = self.first is None
        if unknown:
            self.first = nodes  # compared with the next call
        elif self.first:
            self.before, self.first = self.first & nodes, set()
            inputs, _ = self._inputs(outputs)
        # The pass may go through the caller's graph, to a leaf that fn also uses directly.
        shared = unknown or bool(self.before) or any(node is not None for node in self.ends)
        targets: Any = inputs
        ones = [torch.ones_like(t, memory_format=torch.contiguous_format) for t in outputs]

        def run() -> Any:
            try:
                return torch.autograd.grad(outputs, targets, ones, retain_graph=shared, allow_unused=True)
            except RuntimeError as error:
                if "backward through the graph a second time" not in str(error):
                    raise
                raise ValueError(
                    "profile: the backward pass reaches an autograd graph that has been freed. Compute "
                    "inside fn what it differentiates, or pass detached tensors to fn"
                ) from error

        return run

    def _inputs(self, outputs: list[Tensor]) -> tuple[list[Tensor | GradientEdge], set[Any]]:
        """The edges at which a backward pass from the outputs ends, and the nodes that it visits."""
        leaves = {id(t): t for t in outputs if t.is_leaf}
        edges: dict[tuple, GradientEdge] = {}
        todo = [(t.grad_fn, t.output_nr) for t in outputs if t.grad_fn is not None]
        nodes: set[Any] = set()
        while todo:
            node, number = todo.pop()
            leaf = getattr(node, "variable", None)
            stop = self.ends.get(node, []) if leaf is None else [leaf]
            if stop:
                leaves |= {id(t): t for t in stop}
            elif node in self.before:
                edges[node, number] = GradientEdge(node, number)
            elif node not in nodes:
                nodes.add(node)
                todo += [(n, i) for n, i in node.next_functions if n is not None]
        return [*leaves.values(), *edges.values()], nodes


def _profile_call(run: Callable[[], object], devices: set[torch.device]) -> tuple[Any, tuple]:
    """The result, and (calls, operators, peak_bytes)."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if devices else [])]
    before = {}
    wait(devices)
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
        before[device] = torch.cuda.memory_allocated(device)
    profile = torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True)
    with without_buffer_pool(), profile as profiler:
        result = run()
        wait(devices)
    operators: dict[str, tuple[int, float]] = {}
    for event in profiler.events() or ():
        # Skip kernels and autograd nodes: operators do their work.
        if event.device_type.name != "CPU" or "::" not in event.name:
            continue
        if event.name.startswith("autograd::"):
            continue
        own = event.self_device_time_total if devices else event.self_cpu_time_total
        calls, seconds = operators.get(event.name, (0, 0.0))
        operators[event.name] = calls + 1, seconds + own * 1e-6
    calls = sum(count for count, _ in operators.values())
    if devices:
        peak = max(torch.cuda.max_memory_allocated(d) - before[d] for d in devices)
    else:
        peak = _cpu_peak(profiler)
    return result, (calls, operators, peak)


def _cpu_peak(profiler: torch.profiler.profile) -> int | None:
    """Peak of the running sum of allocations and releases."""
    kineto = getattr(profiler.profiler, "kineto_results", None)
    if kineto is None:
        return None
    moves = [(e.start_ns(), e.nbytes()) for e in kineto.events() if e.name() == "[memory]"]
    held = peak = 0
    for _, size in sorted(moves, key=lambda move: move[0]):
        held += size
        peak = max(peak, held)
    return peak


def _time(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"


def _memory(size: int | None) -> str:
    if size is None:
        return "unknown"
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"
