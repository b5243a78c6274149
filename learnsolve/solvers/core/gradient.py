"""Derivatives of a solve: of the solution ("implicit"), or of the iterations that ran ("unrolled", and
"checkpointed" in less memory). They differentiate `Problem.run` for every method.

Implicit, for any method that finds x: with lambda = A^-T xbar,

    bbar = lambda,    Abar = -lambda x^T on the pattern (for a callable A: the gradient of -<lambda, A x>).

Complex values follow torch's convention: the transpose becomes the conjugate transpose, with
conj(lambda) = A^-T conj(xbar), and x^T becomes x^H.

lambda is found by the same method on the transpose, itself differentiable by the same rule, so that
derivatives of any order exist. In forward mode, dx = A^-1 (db - dA x).

Unrolled gradients need no code here: autograd records the loop, or `ops.pcg` has its own adjoint.

Two autograd functions: `Solve` solves the system, as a constant, on the plain tensors that it receives under
a torch.func transformation. `Implicit` adds the derivatives to its x.

Checkpointed: the graph holds the initial state of each segment of iterations, and none of the intermediate
values. If the repetition in a backward pass reads other values than the forward pass did, the gradient would
belong to neither, so that is an error. It is detected from

    versions         of all tensors that autograd saves, as without checkpoints, where torch checks the
    arguments residual norms   on the CPU, to sqrt(eps): detects changes without a new version, and functions
    that
                     return something else when called again
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointError, checkpoint, set_checkpoint_early_stop

from learnsolve.matrix.cache import run_as_operation, version, vmap_active
from learnsolve.matrix.checks import full_precision
from learnsolve.ops import across
from learnsolve.ops.autograd import Nestable, keep_for_forward_mode, needs_graph
from learnsolve.solvers.core.operators import Function, Outcome
from learnsolve.solvers.solution import Report, Solution

if TYPE_CHECKING:
    from learnsolve.solvers.core.problem import Problem


def unroll(problem: Problem, b: Tensor, x0: Tensor | None) -> Solution:
    if any(vmap_active(t) for t in (b, x0, *problem.A.parameters) if t is not None):
        raise NotImplementedError(
            f'{problem.name}: vmap needs gradient="implicit", since the number of iterations depends on the '
            "data. Or make the mapped axis a batch axis of b or A.values"
        )
    out = problem.run(b, x0)
    if (shared := across.find_processes(problem.A)) is not None:
        out = out._replace(norms=shared.shown(out.norms))
    if out.norms.shape[-2] == 1:
        out = out._replace(x=attach_zero_gradient(out.x, b, *problem.A.parameters))
    return problem.reported(out)


def implicit(
    problem: Problem, b: Tensor, x0: Tensor | None, derived: Callable[[], tuple[Problem, Tensor]]
) -> Solution:
    """`derived`() returns the problem that derivatives solve, and its right-hand side."""
    report, parameters = Report(), problem.A.parameters
    if transforms_active():
        ended = Report()
        out = Outcome(*Solve.apply(problem, ended, b, x0, *parameters))  # type: ignore[misc]
        if (plain := ended.solution) is not None:
            out = out._replace(note=plain.note, backend=plain.backend)
    else:
        with torch.set_grad_enabled(False):  # half the time of no_grad()
            out = problem.run(b, x0)
        plain = problem.reported(out)
        if not needs_graph(b, *parameters):
            return plain
    if needs_graph(b, *parameters):
        again, right = derived()
        if x0 is None or not again.keeps_b:
            x = Implicit.apply(again, report, out.x, right, *parameters)
        else:  # x = x0 + A^+ (b - A x0), and 0 where b = 0
            start = torch.where((b == 0).all(-2, keepdim=True), 0, x0)
            d = out.x - start
            # out.x to the last bit, with the derivatives of d.
            x = out.x + (Implicit.apply(again, report, d, right - again.A(start), *parameters) - d)
        out = out._replace(x=x)
    return problem.solution(out, report)


def attach_zero_gradient(x: Tensor, *others: Tensor) -> Tensor:
    """x, with zero gradients for the `others` that require grad, so that backward works even if no iteration
    ran."""
    for t in others:
        if needs_graph(t):
            x = x + torch.where(torch.zeros_like(t, dtype=torch.bool), t, 0).sum()
    return x


def transforms_active() -> bool:
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


class Solve(Nestable):
    """x, norms and codes of a solve."""

    @staticmethod
    def forward(problem: Problem, ended: Report, b: Tensor, x0: Tensor | None, *parameters: Tensor):
        def run() -> Any:
            out = problem.with_parameters(parameters).run(b, x0)
            ended.solution = problem.reported(out)
            return out[:3]

        return run_as_operation(run, (b, *parameters), (-2,))

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
        problem, parameters = _batch_problem(problem, b, parameters, in_dims[4:])
        return Solve.apply(problem, report, b, x0, *parameters), (0, 0, 0)


class Implicit(Nestable):
    """The derivatives of a known solution x = A^-1 b."""

    @staticmethod
    def forward(problem: Problem, report: Report, x: Tensor, b: Tensor, *parameters: Tensor):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.problem, ctx.report, _, b, *parameters = inputs
        ctx.save_for_backward(output, b if ctx.problem.keeps_b else None, *parameters)
        keep_for_forward_mode(ctx, output, b, *parameters)

    @staticmethod
    @full_precision
    def backward(ctx, g):  # type: ignore[override]
        x, b, *parameters = ctx.saved_tensors
        problem: Problem = ctx.problem.with_parameters(tuple(parameters))
        of_b, grads = problem.pullback(g, x, b, any(ctx.needs_input_grad[4:]), ctx.report)
        return None, None, None, of_b if ctx.needs_input_grad[3] else None, *grads

    @staticmethod
    def jvp(ctx, _s, _r, _x, tb, *tangents):  # type: ignore[override]
        x, b, *parameters = ctx.saved_tensors
        problem: Problem = ctx.problem.with_parameters(tuple(parameters))
        return problem.tangent(x, b, tb, tangents, ctx.report)

    @staticmethod
    def vmap(info, in_dims, problem, report, x, b, *parameters):
        x, b = _dense_first(x, in_dims[2], info.batch_size), _dense_first(b, in_dims[3], info.batch_size)
        problem, parameters = _batch_problem(problem, b, parameters, in_dims[4:])
        return Implicit.apply(problem, report, x, b, *parameters), 0


def _dense_first(t: Any, axis: int | None, n: int) -> Any:
    """The mapped axis as the first batch axis."""
    if t is None:
        return None
    return t.expand((n, *t.shape)) if axis is None else t.movedim(axis, 0)


def _batch_problem(
    problem: Problem, b: Tensor, parameters: tuple[Tensor, ...], axes: tuple
) -> tuple[Problem, tuple[Tensor, ...]]:
    """The problem of all systems, and the parameters that it takes."""
    if not any(axis is not None for axis in axes):
        return problem, parameters
    if isinstance(problem.A, Function):
        raise NotImplementedError(
            f"{problem.name}: vmap over the tensors of A needs A as a CSR or a LinearOperator. Loop over "
            "the systems instead"
        )
    core = problem.A.core()
    if core is None:
        return replace(problem, A=problem.A.add_batch_axis(axes)), parameters
    (values,), (axis,) = parameters, axes
    values = values.movedim(axis, 0)
    missing = b.dim() - 2 - (values.dim() - core)  # batch axes of b that A lacks
    return problem, (values.reshape(values.shape[0], *[1] * missing, *values.shape[1:]),)


def run_segments(loop: Any, progress: Any, maxiter: int) -> tuple[Any, list[Tensor]]:
    """Up to `maxiter` iterations of a `_Loop` (loop.py), in segments of 1, 2, 3, ... of them; their norms."""
    done, length, norms = 0, 1, []
    kind, make = type(progress), type(progress.state)
    runs, _ = loop.runs(progress)
    while done < maxiter and runs:
        segment = _Segment(loop, kind, make, min(length, maxiter - done), done)
        state, *rest = progress
        *ended, history = checkpoint_run(loop.system.name, segment, loop.b, *rest, *state)
        progress, runs = kind(make(*ended[4:]), *ended[:4]), segment.runs
        norms.append(history)
        done += history.shape[-2]
        length += 1
    return progress, norms


class _Segment:
    """`count` iterations as a function of tensors, repeated by the backward pass."""

    def __init__(self, loop: Any, kind: type, make: type, count: int, done: int):
        self.loop, self.kind, self.make, self.count, self.done = loop, kind, make, count, done
        self.first, self.runs = True, True
        self.across = across.across()  # the backward pass repeats this outside the solve

    def __call__(self, _: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        rest, state = tensors[:4], tensors[4:]
        progress = self.kind(self.make(*state), *rest)
        with across.include_processes(self.across):
            ended, history, self.runs = self.loop.run(self.count, self.done, progress, replay=not self.first)
        if self.first and self.loop.callback is not None:
            self.count = len(history)  # a callback may have stopped it; the repetition does not call it
        self.first = False
        return (*ended[1:], *ended.state, torch.cat(history, dim=-2))


def checkpoint_run(function: str, run: Callable[..., tuple], *tensors: Tensor | None) -> Any:
    """run(*tensors), whose last result is the residual norms, (..., iterations, k). The backward pass repeats
    it, and an error names `function`."""
    if torch.compiler.is_dynamo_compiling() or not torch.is_grad_enabled():
        return checkpoint(run, *tensors, use_reentrant=False)
    # The repetition runs to the end, so that its last norms are compared too.
    with set_checkpoint_early_stop(False):
        return checkpoint(_Recomputation(function, run), *tensors, use_reentrant=False)


class _Recomputation:
    def __init__(self, function: str, run: Callable[..., tuple]):
        self.function, self.run = function, run
        self.versions: list[int] = []
        self.norms: Tensor | None = None  # of the forward

    def __call__(self, *tensors: Tensor | None) -> tuple:
        if self.norms is None:
            with _watch_saved_tensors(lambda t: self.versions.append(version(t))):
                results = self.run(*tensors)
            self.norms = results[-1].detach()
            return results
        known = iter(self.versions)

        def compare(t: Tensor) -> None:
            if version(t) != next(known, None):
                raise self.error()

        try:
            with _watch_saved_tensors(compare):
                results = self.run(*tensors)
        except CheckpointError:
            raise self.error() from None
        if next(known, None) is not None or not _alike(results[-1].detach(), self.norms):
            raise self.error()
        return results

    def error(self) -> RuntimeError:
        return RuntimeError(
            f'{self.function}: gradient="checkpointed" repeats iterations in the backward pass, and they '
            "returned something else there: A, b, x0, M or parameters were changed in place after the "
            "solve, or a function among them returns other values when it is called again. Call backward "
            "before such "
            'changes, solve with clones, or use gradient="unrolled"'
        )


@contextmanager
def _watch_saved_tensors(call: Callable[[Tensor], None]) -> Iterator[None]:
    """Calls `call` with every tensor that autograd saves, before the hooks of the checkpoint."""
    hooks = _top_saved_tensors_default_hooks(True)
    assert hooks is not None
    pack, unpack = hooks

    def pack_and_watch(t: Tensor) -> Any:
        call(t)
        return pack(t)

    with saved_tensors_hooks(pack_and_watch, unpack):
        yield


def _alike(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not a.is_cpu:  # a comparison would synchronize the device
        return True
    rtol = torch.finfo(a.dtype).eps ** 0.5
    return torch.allclose(a, b, rtol=rtol, atol=0.0, equal_nan=True)
