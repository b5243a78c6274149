"""The loop of every iterative method: stopping, the history of residuals, columns that stop on their own.

A method is two functions on blocks of columns (..., n, k):

    start(A, M, x, r, running) -> state             r = b - A x
    step(A, M, b, state, running) -> state, trouble    one iteration

A state is a NamedTuple of tensors with the column last, whose first two are x and r. `running`, (..., 1, k),
marks the columns that still count: the others are computed too and discarded, so a division that may fail in
them must be guarded with it (`divide`). `trouble`, (..., 1, k), is 0 or the code of a Status for a column
that cannot go on: it keeps x and r from before the step.

A method whose recurrences say too little has two more:

    doubts(state, running) -> doubt                          may rounding errors have outgrown r? (..., 1, k)
    mended(A, M, b, old, new, doubt) -> state, trouble       what to do about it

A `Criterion` decides when to stop (_criterion.py). The host checks the columns after every iteration on a
CPU, and from time to time on a device (_looks.py): between two checks a column that seems done stands still,
and is judged at the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from learnsolve.ops import _across
from learnsolve.ops.richardson import residual_norm
from learnsolve.solvers import _looks
from learnsolve.solvers._criterion import Criterion
from learnsolve.solvers._operator import Matrix
from learnsolve.solvers._repeated import repeated
from learnsolve.solvers._stagnation import is_due, next_due
from learnsolve.solvers._steps import Steps
from learnsolve.solvers._vectors import size
from learnsolve.solvers.base import CODE, Iteration, Status

_WAITING = -1  # the code of a column that seems done
# Iterations from one `mended` to the next on a device, which it costs as much as two steps.
_MENDED_EVERY = 8


class Method(Protocol):
    """See above."""

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> Any: ...
    def step(self, A: Any, M: Any, b: Tensor, state: Any, running: Tensor) -> tuple[Any, Tensor]: ...


class Outcome(NamedTuple):
    x: Tensor
    norms: Tensor  # (..., iterations + 1, k)
    codes: Tensor  # (..., k), of the Status that each column ended with


class _Progress(NamedTuple):
    """All that changes from one iteration to the next."""

    state: Any
    codes: Tensor  # (..., 1, k), 0 while a column runs
    norm: Tensor  # (..., 1, k)
    best: Tensor  # (..., 1, k), the least that the criterion has measured (_stagnation.py)
    again: Tensor  # (..., 1, k), has it started again for that?


def iterate(
    method: Method,
    A: Any,
    M: Any,
    b: Tensor,
    x0: Tensor | None,
    criterion: Criterion,
    maxiter: int,
    callback: Callable[[Iteration], Any] | None = None,
    segments: str = "",
    steps: Steps | None = None,
) -> Outcome:
    """Run `method` until every column has stopped. With `segments`, the function that errors name, for a
    backward in O(sqrt(iterations)) memory: the graph keeps the state between segments of 1, 2, 3, ...
    iterations, and repeats what is inside. `steps`: many iterations a call, where they fit (_steps.py).

    On a CUDA device, with a criterion without a tolerance and no callback, the host never waits for it: a
    column that comes to rounding level stops there, where on the CPU it is started again."""
    loop = _Loop(method, A, M, b, criterion, callback, steps)
    nothing = size(b) == 0
    if x0 is None:
        x, r = torch.zeros_like(b), b
    else:
        x = torch.where(nothing, 0, x0)  # the solution of A x = 0 is zero, whatever x0 is
        r = torch.where(nothing, 0, b - A(x))
    norm = residual_norm(r, -2, keepdim=True)
    codes = torch.zeros(norm.shape, dtype=torch.int64, device=norm.device)
    codes = torch.where(criterion.begin(A, b, x, r, norm.detach()) | nothing, CODE[Status.CONVERGED], codes)
    codes = torch.where(torch.isfinite(norm.detach()), codes, CODE[Status.NON_FINITE])
    norms = [norm]
    best = torch.full_like(norm, torch.inf).detach()
    progress = _Progress(loop.start(x, r, codes == 0), codes, norm, best, codes < 0)
    if segments:
        progress, norms = _in_segments(segments, loop, progress, norms, maxiter)
    elif loop.runs(progress):
        progress, history, _ = loop.run(maxiter, 0, progress)
        norms += history
    codes = torch.where(progress.codes == 0, CODE[Status.MAX_ITERATIONS], progress.codes)
    return Outcome(progress.state.x, torch.cat(norms, dim=-2), codes.squeeze(-2))


def runs_unattended(b: Tensor, criterion: Criterion, callback: Any) -> bool:
    return b.is_cuda and criterion.never and callback is None


class _Loop:
    """The iteration loop and its convergence checks."""

    def __init__(self, method, A, M, b, criterion, callback, steps):
        self.method, self.A, self.M, self.b = method, A, M, b
        self.criterion, self.callback, self.steps = criterion, callback, steps
        self.unattended = runs_unattended(b, criterion, callback)
        self.on_device = b.is_cuda
        # A callback is called after every iteration. A backward that repeats a segment repeats its checks.
        self.gap = _looks.gaps() if self.on_device and callback is None else lambda done: 1

    def runs(self, progress: _Progress) -> bool:
        return self.unattended or bool((progress.codes == 0).any())

    def start(self, x: Tensor, r: Tensor, running: Tensor) -> Any:
        return self.method.start(self.A, self.guarded(running), x, r, running)

    def guarded(self, running: Tensor) -> Any:
        """M for columns that run. For the others M might be applied to 0, where a nonlinear M need not have a
        derivative; they are replaced by a vector of length one, and their results by zeros."""
        if self.M is None or isinstance(self.M, Matrix) or not torch.is_grad_enabled():
            return self.M

        def M(r: Tensor) -> Tensor:
            z = self.M(torch.where(running, r, max(r.shape[-2], 1) ** -0.5))
            return torch.where(running, z, 0)

        return M

    def run(
        self, count: int, done: int, progress: _Progress, replay: bool = False
    ) -> tuple[_Progress, list[Tensor], bool]:
        """Up to `count` iterations from number `done` on, with a check after the last; their norms; whether
        columns run on, as some do before."""
        history: list[Tensor] = []
        runs = True
        while len(history) < count and runs:
            left = count - len(history)
            number = done + len(history)
            seen: list[_Progress] = []
            if self.steps is not None:
                progress, norms = self.stepped(self.steps, progress, number, left)
                history += norms[:-1]
                seen = [progress] if norms else []
            for i in range(0 if seen else left if self.unattended else min(self.gap(number), left)):
                progress = self.advance(progress, number + i + 1)
                if seen and (self.unattended or not progress.norm.requires_grad):
                    seen[-1] = seen[-1]._replace(state=None)  # not needed again
                seen.append(progress)
            if not self.unattended:
                progress, seen, runs = self.look(seen)
            history += [step.norm for step in seen]
            if self.callback is not None and not replay:
                progress, stops = self.tell(self.callback, done + len(history), progress)
                runs = runs and not stops
        return progress, history, runs

    def advance(self, progress: _Progress, number: int) -> _Progress:
        """One iteration; `number` is its count."""
        state, codes, norm, best, again = progress
        running = codes == 0
        M = self.guarded(running)
        new, trouble = self.method.step(self.A, M, self.b, state, running)
        doubts = getattr(self.method, "doubts", None)
        if doubts is not None and (not self.on_device or number % _MENDED_EVERY == 0):
            doubt = doubts(new, running)
            if self.on_device or doubt.any():
                new, more = self.method.mended(self.A, M, self.b, state, new, doubt)
                trouble = torch.where(trouble == 0, more, trouble)
        codes = torch.where(running, trouble, codes)
        new_norm = residual_norm(new.r, -2, keepdim=True)
        codes = torch.where((codes == 0) & ~torch.isfinite(new_norm.detach()), CODE[Status.NON_FINITE], codes)
        moved = codes == 0
        if self.on_device or not moved.all():  # without waiting for a device
            # A column that has stopped does not use the rest of the state.
            kept = {name: getattr(new, name) for name in ("x", "r", *self.criterion.reads)}
            new = new._replace(**{k: torch.where(moved, t, getattr(state, k)) for k, t in kept.items()})
            new_norm = torch.where(moved, new_norm, norm)
        return self.classified(_Progress(new, codes, new_norm, best, again), number)

    def stepped(
        self, steps: Steps, progress: _Progress, done: int, count: int
    ) -> tuple[_Progress, tuple[Tensor, ...]]:
        """Iterations in one call, to the next that `measured` follows on; perhaps none."""
        if not self.criterion.never:
            count = min(count, next_due(done) - done)
        state, norms = steps(progress.state, count)
        if not norms:
            return progress, norms
        return self.classified(progress._replace(state=state, norm=norms[-1]), done + len(norms)), norms

    def classified(self, progress: _Progress, number: int) -> _Progress:
        """Which columns seem done, and which are lost, after iteration `number`."""
        state, codes, norm, *_ = progress
        moved, known = codes == 0, norm.detach()
        close = moved & self.criterion.looks(state, known)
        codes = torch.where(close, CODE[Status.MAX_ITERATIONS] if self.unattended else _WAITING, codes)
        lost = self.criterion.fails(state, known)
        progress = progress._replace(codes=torch.where(moved & ~close, lost, codes))
        return self.measured(progress) if not self.criterion.never and is_due(number) else progress

    def measured(self, progress: _Progress) -> _Progress:
        """Stop the columns that stagnate (_stagnation.py); their norm is then the true one."""
        state, codes, norm, best, again = progress
        r = self.b - self.A(state.x)
        true = residual_norm(r, -2, keepdim=True)
        with torch.no_grad():
            reached, level = self.criterion.reached(self.A, self.b, state.x.detach(), r.detach())
            done = self.criterion.holds(self.A, state, r.detach(), true.detach())
        # What waits starts again from its true residual each time that it seems done, and is not.
        vain = (codes == 0) | ((codes == _WAITING) & ~done)
        vain = vain & (reached <= level) & (reached > 0.5 * best)
        fresh = vain & (codes == 0) & ~again & (norm.detach() < 0.5 * true.detach())
        if self.on_device:
            fresh = torch.zeros_like(fresh)  # to know of any would wait for the device
        elif fresh.any():
            state, fresh = _started(state, self.start(state.x, torch.where(fresh, r, state.r), fresh), fresh)
        stuck = vain & ~fresh
        codes = torch.where(stuck, CODE[Status.STAGNATED], codes)
        norm = torch.where(vain, true, norm)
        return _Progress(state, codes, norm, torch.minimum(best, reached), fresh)

    def look(self, seen: list[_Progress]) -> tuple[_Progress, list[_Progress], bool]:
        """Judge the columns that wait for it. What goes on, the iterations that some column took part in, and
        whether columns run on."""
        close = seen[-1].codes == _WAITING
        if self.on_device:  # one read for all
            ran = [(step.codes == 0).any() for step in seen]
            *ran, waiting = torch.stack((*ran, close.any())).tolist()
            running = ran[-1]
            # Later ones have changed no column, and must not be part of a graph.
            last, seen = seen[-1], seen[: 1 + sum(ran)]
            if seen[-1].state is None:
                seen[-1] = last
        else:
            waiting, running = close.any(), bool((seen[-1].codes == 0).any())
        state, codes, norm, best, again = seen[-1]
        if not waiting:
            return seen[-1], seen, running
        # The recurrence for r may have drifted from b - A x: it does not prove convergence.
        r = self.b - self.A(state.x)
        true = residual_norm(r, -2, keepdim=True)
        done = self.criterion.holds(self.A, state, r.detach(), true.detach())
        lost = torch.where(done, CODE[Status.CONVERGED], self.criterion.fails(state, true.detach()))
        lost = torch.where(torch.isfinite(true.detach()), lost, CODE[Status.NON_FINITE])
        seen = [step._replace(norm=torch.where(step.codes == _WAITING, true, step.norm)) for step in seen]
        codes = torch.where(close, lost, codes)
        again, runs = close & (codes == 0), codes == 0
        restart, running = torch.stack((again.any(), runs.any())).tolist()
        if restart:
            new = self.start(state.x, torch.where(again, r, state.r), runs)
            # All columns start again where a state is of another size than a fresh one.
            state, started = _started(state, new, again)
            state = state if bool(started.any()) else new
        return _Progress(state, codes, torch.where(close, true, norm), best, again), seen, running

    def tell(self, callback: Callable, iteration: int, progress: _Progress) -> tuple[_Progress, bool]:
        state, codes, norm, *_ = progress
        converged = (codes == CODE[Status.CONVERGED]).squeeze(-2)
        if callback(Iteration(iteration, state.x.detach(), norm.detach().squeeze(-2), converged)) is not True:
            return progress, False
        return progress._replace(codes=torch.where(codes == 0, CODE[Status.STOPPED_BY_CALLBACK], codes)), True


def _started(state: Any, new: Any, where: Tensor) -> tuple[Any, Tensor]:
    """`state`, with that of some columns replaced; none, if its size is another, or if it holds more than
    columns (a State of which `in_columns` is False)."""
    fits = all(t.shape == f.shape and t.dim() >= 2 for t, f in zip(state, new, strict=True))
    if not fits or not getattr(state, "in_columns", True):
        return state, torch.zeros_like(where)
    return type(state)(*(torch.where(where, f, t) for t, f in zip(state, new, strict=True))), where


def _in_segments(function: str, loop: _Loop, progress: _Progress, norms: list[Tensor], maxiter: int):
    done, length = 0, 1
    make = type(progress.state)
    runs = loop.runs(progress)
    while done < maxiter and runs:
        segment = _Segment(loop, make, min(length, maxiter - done), done)
        state, *known = progress
        codes, norm, best, again, *state, history = repeated(function, segment, loop.b, *known, *state)
        progress, runs = _Progress(make(*state), codes, norm, best, again), segment.runs
        norms = [*norms, history]
        done += history.shape[-2]
        length += 1
    return progress, norms


class _Segment:
    """`count` iterations as a function of tensors, which a backward repeats."""

    def __init__(self, loop: _Loop, make: type, count: int, done: int):
        self.loop, self.make, self.count, self.done = loop, make, count, done
        self.first, self.runs = True, True
        self.across = _across.across()  # a backward repeats this outside of the solve

    def __call__(self, _: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        known, state = tensors[:4], tensors[4:]
        progress = _Progress(self.make(*state), *known)
        with _across.over(self.across):
            ended, history, self.runs = self.loop.run(self.count, self.done, progress, replay=not self.first)
        if self.first and self.loop.callback is not None:
            self.count = len(history)  # a callback may have ended it; a repetition does not call it
        self.first = False
        return (*ended[1:], *ended.state, torch.cat(history, dim=-2))
