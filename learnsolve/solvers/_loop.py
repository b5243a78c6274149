"""The loop of every iterative method: stopping, the history of residuals, columns that stop on their own.

A method is two functions on blocks of columns (..., n, k):

    start(A, M, x, r, running) -> state             r = b - A x
    step(A, M, b, state, running) -> state, trouble    one iteration

A state is a NamedTuple of tensors with the column last, whose first two are x and r. `running`, (..., 1, k),
tells which columns still count: the others are computed along and thrown away, so a division that may fail in
them must be guarded with it (`divide`). `trouble`, (..., 1, k), is 0 or the code of a Status for a column
that cannot go on: it keeps x and r from before the step.

When to stop is the business of a `Criterion`; `ResidualNorm` is that of systems.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from learnsolve.ops.richardson import residual_norm
from learnsolve.solvers._vectors import size
from learnsolve.solvers.base import STATUSES, Iteration, Status

CODE = {status: 1 + i for i, status in enumerate(STATUSES)}


class Method(Protocol):
    """See above."""

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> Any: ...
    def step(self, A: Any, M: Any, b: Tensor, state: Any, running: Tensor) -> tuple[Any, Tensor]: ...


class Criterion(Protocol):
    """Whether a column is done. All answers are (..., 1, k); `norm` is ||r||."""

    never: bool  # asks for nothing that a column could meet: all iterations are to run

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
    unattended = runs_unattended(b, criterion, callback)
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

    def run(count: int, done: int, progress: _Progress, replay: bool) -> tuple[_Progress, list[Tensor]]:
        """Up to `count` iterations from the one with number `done`."""
        history = []
        for i in range(count):
            running = progress.codes == 0
            if not unattended and not running.any():
                break
            state, codes, norm = _advance(method, A, M, b, criterion, progress, running, unattended)
            history.append(norm)
            if callback is not None and not replay and _stopped(callback, done + i + 1, state.x, norm, codes):
                codes = torch.where(codes == 0, CODE[Status.STOPPED_BY_CALLBACK], codes)
            progress = _Progress(state, codes, norm)
        return progress, history

    progress = _Progress(method.start(A, M, x, r, codes == 0), codes, norm)
    if segments:
        progress, norms = _in_segments(run, progress, norms, maxiter, unattended)
    else:
        progress, history = run(maxiter, 0, progress, False)
        norms += history
    codes = torch.where(progress.codes == 0, CODE[Status.MAX_ITERATIONS], progress.codes)
    return Outcome(progress.state.x, torch.cat(norms, dim=-2), codes.squeeze(-2))


def runs_unattended(b: Tensor, criterion: Criterion, callback: Any) -> bool:
    return b.is_cuda and criterion.never and callback is None


def _advance(method, A, M, b, criterion, progress: _Progress, running: Tensor, unattended: bool):
    """One iteration: the new state, codes and norm."""
    state, codes, norm = progress
    new, trouble = method.step(A, M, b, state, running)
    codes = torch.where(running, trouble, codes)
    new_norm = residual_norm(new.r, -2, keepdim=True)
    known = new_norm.detach()
    codes = torch.where((codes == 0) & ~torch.isfinite(known), CODE[Status.NON_FINITE], codes)
    moved = codes == 0
    if b.is_cuda or not moved.all():  # a device is not asked, but told
        # What else a state holds is of no use to a column that has stopped.
        new = new._replace(x=torch.where(moved, new.x, state.x), r=torch.where(moved, new.r, state.r))
        new_norm = torch.where(moved, new_norm, norm)
    close = moved & criterion.looks(new, known)
    if unattended:
        codes = torch.where(close, CODE[Status.MAX_ITERATIONS], codes)
        lost = criterion.fails(new, new_norm.detach())
        return new, torch.where(moved & (codes == 0), lost, codes), new_norm
    if close.any():
        # The recurrence for r may have drifted from b - A x: nothing is called converged on its word.
        r = b - A(new.x)
        true = residual_norm(r, -2, keepdim=True)
        done = close & criterion.holds(A, new, r.detach(), true.detach())
        codes = torch.where(done, CODE[Status.CONVERGED], codes)
        codes = torch.where(close & ~torch.isfinite(true.detach()), CODE[Status.NON_FINITE], codes)
        new_norm = torch.where(close, true, new_norm)
    lost = criterion.fails(new, new_norm.detach())
    codes = torch.where(moved & (codes == 0), lost, codes)
    again = close & (codes == 0)
    if again.any():
        # All columns start again: a state may be of another size than a fresh one.
        new = method.start(A, M, new.x, torch.where(again, r, new.r), codes == 0)
    return new, codes, new_norm


def _stopped(callback: Callable, iteration: int, x: Tensor, norm: Tensor, codes: Tensor) -> bool:
    converged = (codes == CODE[Status.CONVERGED]).squeeze(-2)
    return callback(Iteration(iteration, x.detach(), norm.detach().squeeze(-2), converged)) is True


def _in_segments(run: Callable, progress: _Progress, norms: list[Tensor], maxiter: int, unattended: bool):
    done, length = 0, 1
    make = type(progress.state)
    while done < maxiter and (unattended or (progress.codes == 0).any()):
        segment = _segment(run, make, min(length, maxiter - done), done)
        codes, norm, history, *state = checkpoint(
            segment, progress.codes, progress.norm, *progress.state, use_reentrant=False
        )
        progress = _Progress(make(*state), codes, norm)
        norms = [*norms, history]
        done += history.shape[-2]
        length += 1
    return progress, norms


def _segment(run: Callable, make: type, count: int, done: int) -> Callable[..., tuple[Tensor, ...]]:
    ran = 0  # iterations of the first run, which a callback may have ended: a replay asks it nothing

    def segment(codes: Tensor, norm: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        nonlocal ran
        ended, history = run(ran or count, done, _Progress(make(*state), codes, norm), ran > 0)
        ran = len(history)
        return (ended.codes, ended.norm, torch.cat(history, dim=-2), *ended.state)

    return segment
