"""The loop of every iterative method: stopping, the history of residuals, columns that stop on their own.

A method is two functions on blocks of columns (..., n, k):

    start(A, M, x, r, running) -> state             r = b - A x
    step(A, M, b, state, running) -> state, trouble    one iteration

A state is a NamedTuple of tensors with the column last, whose first two are x and r. `running`, (..., 1, k),
tells which columns still count: the others are computed along and thrown away, so a division that may fail in
them must be guarded with it (`divide`). `trouble`, (..., 1, k), is 0 or the code of a Status for a column
that cannot go on: it keeps x and r from before the step.

A method whose recurrences say too little has two more:

    doubts(state, running) -> doubt                  may rounding errors have outgrown r? (..., 1, k)
    mended(A, M, b, old, new, doubt) -> state, trouble       what to do about it; may look at the numbers

When to stop is the business of a `Criterion`; `ResidualNorm` is that of systems. The host looks at the
columns after every iteration on a CPU, and from time to time on a device (_looks.py): between two looks a
column that seems done stands still, and is judged at the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from learnsolve.ops.richardson import residual_norm
from learnsolve.solvers import _looks
from learnsolve.solvers._vectors import size
from learnsolve.solvers.base import STATUSES, Iteration, Status

CODE = {status: 1 + i for i, status in enumerate(STATUSES)}
_WAITING = -1  # the code of a column that seems done


class Method(Protocol):
    """See above."""

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> Any: ...
    def step(self, A: Any, M: Any, b: Tensor, state: Any, running: Tensor) -> tuple[Any, Tensor]: ...


class Criterion(Protocol):
    """Whether a column is done. All answers are (..., 1, k); `norm` is ||r||."""

    never: bool  # asks for nothing that a column could meet: all iterations are to run
    reads: tuple[str, ...]  # what `holds` reads of a state, beside x and r

    def begin(self, A: Any, b: Tensor, x: Tensor, r: Tensor, norm: Tensor) -> Tensor:
        """Is x a solution before the first iteration? Called once, before the others."""
        ...

    def looks(self, state: Any, norm: Tensor) -> Tensor:
        """Is it worth a look at the true residual, by what the method knows?"""
        ...

    def holds(self, A: Any, state: Any, r: Tensor, norm: Tensor) -> Tensor:
        """Is it done, by the true residual r?"""
        ...

    def fails(self, state: Any, norm: Tensor) -> Tensor:
        """The code of a Status for a column that is lost, 0 for others."""
        ...


class ResidualNorm:
    """||b - A x|| <= max(rtol ||b||, atol), with atol a number or one a column."""

    reads: tuple[str, ...] = ()

    def __init__(self, rtol: float, atol: float | Tensor):
        self.rtol, self.atol = rtol, atol
        self.never = rtol == 0 and not isinstance(atol, Tensor) and atol == 0

    def begin(self, A: Any, b: Tensor, x: Tensor, r: Tensor, norm: Tensor) -> Tensor:
        eps = torch.finfo(b.dtype).eps
        length = size(b)
        self.target = self.rtol * length
        if isinstance(self.atol, Tensor):
            self.target = torch.maximum(self.target, self.atol.to(b))
        else:
            self.target = self.target.clamp(min=self.atol)
        # A recurrence for r says nothing below the rounding level of what it began with.
        self.floor = eps * norm
        self.limit = torch.maximum(norm, length) / eps
        return norm <= self.target

    def looks(self, state: Any, norm: Tensor) -> Tensor:
        return norm <= torch.maximum(self.target, self.floor)

    def holds(self, A: Any, state: Any, r: Tensor, norm: Tensor) -> Tensor:
        return norm <= self.target

    def fails(self, state: Any, norm: Tensor) -> Tensor:
        return torch.where(norm > self.limit, CODE[Status.DIVERGED], 0)


class Outcome(NamedTuple):
    x: Tensor
    norms: Tensor  # (..., iterations + 1, k)
    codes: Tensor  # (..., k), of the Status that each column ended with


class _Progress(NamedTuple):
    """All that changes from one iteration to the next."""

    state: Any
    codes: Tensor  # (..., 1, k), 0 while a column runs
    norm: Tensor  # (..., 1, k)


def iterate(
    method: Method,
    A: Any,
    M: Any,
    b: Tensor,
    x0: Tensor | None,
    criterion: Criterion,
    maxiter: int,
    callback: Callable[[Iteration], Any] | None = None,
    segments: bool = False,
) -> Outcome:
    """Run `method` until every column has stopped. With `segments` for a backward in O(sqrt(iterations))
    memory: the graph keeps the state between segments of 1, 2, 3, ... iterations, and repeats what is
    inside.

    On a CUDA device, with a criterion that asks for nothing and no callback, the host never waits for it: a
    column that comes to rounding level stops there, where on the CPU it is started again."""
    loop = _Loop(method, A, M, b, criterion, callback, runs_unattended(b, criterion, callback))
    nothing = size(b) == 0
    if x0 is None:
        x, r = torch.zeros_like(b), b
    else:
        x = torch.where(nothing, 0, x0)  # A x = 0 is solved by zero, wherever one starts
        r = torch.where(nothing, 0, b - A(x))
    norm = residual_norm(r, -2, keepdim=True)
    codes = torch.zeros(norm.shape, dtype=torch.int64, device=norm.device)
    codes = torch.where(criterion.begin(A, b, x, r, norm.detach()) | nothing, CODE[Status.CONVERGED], codes)
    codes = torch.where(torch.isfinite(norm.detach()), codes, CODE[Status.NON_FINITE])
    norms = [norm]
    progress = _Progress(method.start(A, M, x, r, codes == 0), codes, norm)
    if segments:
        progress, norms = _in_segments(loop, progress, norms, maxiter)
    else:
        progress, history = loop.run(maxiter, 0, progress)
        norms += history
    codes = torch.where(progress.codes == 0, CODE[Status.MAX_ITERATIONS], progress.codes)
    return Outcome(progress.state.x, torch.cat(norms, dim=-2), codes.squeeze(-2))


def runs_unattended(b: Tensor, criterion: Criterion, callback: Any) -> bool:
    return b.is_cuda and criterion.never and callback is None


class _Loop:
    """Iterations, and the looks at them."""

    def __init__(self, method, A, M, b, criterion, callback, unattended):
        self.method, self.A, self.M, self.b = method, A, M, b
        self.criterion, self.callback, self.unattended = criterion, callback, unattended
        self.doubts = getattr(method, "doubts", None)
        # A callback is told of every iteration. A backward that repeats a segment finds the same looks.
        self.gap = _looks.gaps() if b.is_cuda and callback is None else lambda done: 1

    def runs(self, progress: _Progress) -> bool:
        return self.unattended or bool((progress.codes == 0).any())

    def run(
        self, count: int, done: int, progress: _Progress, replay: bool = False
    ) -> tuple[_Progress, list[Tensor]]:
        """Up to `count` iterations from the one with number `done`, of which the last is looked at."""
        history: list[Tensor] = []
        if self.unattended:
            for _ in range(count):
                progress = self.advance(progress, False)
                history.append(progress.norm)
            return progress, history
        runs = self.runs(progress)
        while len(history) < count and runs:
            window = min(self.gap(done + len(history)), count - len(history))
            codes, norms = [], []
            for i in range(window):
                progress = self.advance(progress, i == window - 1)
                codes.append(progress.codes)
                norms.append(progress.norm)
            progress, norms, runs = self.look(progress, codes, norms)
            history += norms
            if self.callback is not None and not replay:
                progress = self.tell(self.callback, done + len(history), progress)
                runs = self.runs(progress)
        return progress, history

    def advance(self, progress: _Progress, looks: bool) -> _Progress:
        """One iteration, the last before a look if `looks`."""
        state, codes, norm = progress
        running = codes == 0
        new, trouble = self.method.step(self.A, self.M, self.b, state, running)
        if self.doubts is not None:
            doubt = self.doubts(new, running)
            if self.unattended:
                trouble = torch.where(doubt & (trouble == 0), CODE[Status.MAX_ITERATIONS], trouble)
            elif looks and doubt.any():
                new, more = self.method.mended(self.A, self.M, self.b, state, new, doubt)
                trouble = torch.where(trouble == 0, more, trouble)
        codes = torch.where(running, trouble, codes)
        new_norm = residual_norm(new.r, -2, keepdim=True)
        known = new_norm.detach()
        codes = torch.where((codes == 0) & ~torch.isfinite(known), CODE[Status.NON_FINITE], codes)
        moved = codes == 0
        if self.b.is_cuda or not moved.all():  # a device is not asked, but told
            # What else a state holds is of no use to a column that has stopped.
            kept = {"x": new.x, "r": new.r, **{name: getattr(new, name) for name in self.criterion.reads}}
            new = new._replace(**{k: torch.where(moved, t, getattr(state, k)) for k, t in kept.items()})
            new_norm = torch.where(moved, new_norm, norm)
        close = moved & self.criterion.looks(new, known)
        codes = torch.where(close, CODE[Status.MAX_ITERATIONS] if self.unattended else _WAITING, codes)
        lost = self.criterion.fails(new, new_norm.detach())
        return _Progress(new, torch.where(moved & ~close, lost, codes), new_norm)

    def look(
        self, progress: _Progress, codes_of: list[Tensor], norms: list[Tensor]
    ) -> tuple[_Progress, list[Tensor], bool]:
        """Judge the columns that wait for it, after iterations that ended with these codes and norms. The
        norms of those that some column took part in; whether columns run on."""
        state, codes, norm = progress
        close = codes == _WAITING
        if self.b.is_cuda:  # one read for all
            ran = [(ended == 0).any() for ended in codes_of]
            *ran, waiting = torch.stack((*ran, close.any())).tolist()
            norms, running = norms[: 1 + sum(ran)], ran[-1]
        else:
            waiting, running = close.any(), bool((codes == 0).any())
        if not waiting:
            return progress, norms, running
        # The recurrence for r may have drifted from b - A x: nothing is called converged on its word.
        r = self.b - self.A(state.x)
        true = residual_norm(r, -2, keepdim=True)
        done = self.criterion.holds(self.A, state, r.detach(), true.detach())
        lost = torch.where(done, CODE[Status.CONVERGED], self.criterion.fails(state, true.detach()))
        lost = torch.where(torch.isfinite(true.detach()), lost, CODE[Status.NON_FINITE])
        codes = torch.where(close, lost, codes)
        norms = [torch.where(old == _WAITING, true, row) for old, row in zip(codes_of, norms, strict=False)]
        again = close & (codes == 0)
        if again.any():
            # All columns start again: a state may be of another size than a fresh one.
            r = torch.where(again, r, state.r)
            state = self.method.start(self.A, self.M, state.x, r, codes == 0)
        return _Progress(state, codes, torch.where(close, true, norm)), norms, bool((codes == 0).any())

    def tell(self, callback: Callable, iteration: int, progress: _Progress) -> _Progress:
        state, codes, norm = progress
        converged = (codes == CODE[Status.CONVERGED]).squeeze(-2)
        if callback(Iteration(iteration, state.x.detach(), norm.detach().squeeze(-2), converged)) is not True:
            return progress
        return progress._replace(codes=torch.where(codes == 0, CODE[Status.STOPPED_BY_CALLBACK], codes))


def _in_segments(loop: _Loop, progress: _Progress, norms: list[Tensor], maxiter: int):
    done, length = 0, 1
    make = type(progress.state)
    while done < maxiter and loop.runs(progress):
        segment = _segment(loop, make, min(length, maxiter - done), done)
        codes, norm, history, *state = checkpoint(
            segment, progress.codes, progress.norm, *progress.state, use_reentrant=False
        )
        progress = _Progress(make(*state), codes, norm)
        norms = [*norms, history]
        done += history.shape[-2]
        length += 1
    return progress, norms


def _segment(loop: _Loop, make: type, count: int, done: int) -> Callable[..., tuple[Tensor, ...]]:
    ran = 0  # iterations of the first run, which a callback may have ended: a replay asks it nothing

    def segment(codes: Tensor, norm: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        nonlocal ran
        length = ran if ran and loop.callback is not None else count
        ended, history = loop.run(length, done, _Progress(make(*state), codes, norm), replay=ran > 0)
        ran = len(history)
        return (ended.codes, ended.norm, torch.cat(history, dim=-2), *ended.state)

    return segment
