"""The loop of every iterative method: stopping, the history of residuals, columns that stop on their own.

A method is two functions on blocks of columns (..., n, k):

    start(A, M, b, x, r, running) -> state             r = b - A x
    step(A, M, b, state, running) -> state, trouble    one iteration

A state is a NamedTuple of tensors with the column last, whose first two are x and r. `running`, (..., 1, k),
tells which columns still count: the others are computed along and thrown away, so a division that may fail in
them must be guarded with it (`divide`). `trouble`, (..., 1, k), is 0 or the code of a Status for a column that
cannot go on: it keeps x and r from before the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from learnsolve.ops.richardson import residual_norm
from learnsolve.solvers._operator import Operator
from learnsolve.solvers.base import STATUSES, Status

CODE = {status: 1 + i for i, status in enumerate(STATUSES)}


class Method(Protocol):
    name: str

    def start(self, A: Operator, M: Any, b: Tensor, x: Tensor, r: Tensor, running: Tensor) -> Any: ...
    def step(self, A: Operator, M: Any, b: Tensor, state: Any, running: Tensor) -> tuple[Any, Tensor]: ...


class Iteration(NamedTuple):
    """What a callback is given. It returns True to stop.

    x is the iterate, `residual_norm` ||b - A x|| a column, as the method knows it, `converged` whether a column
    has stopped by itself.
    """

    iteration: int
    x: Tensor
    residual_norm: Tensor
    converged: Tensor


class Stopping(NamedTuple):
    rtol: float
    atol: float
    maxiter: int
    callback: Callable[[Iteration], Any] | None
    vector: bool  # the user's b has no axis of columns


class Outcome(NamedTuple):
    x: Tensor
    norms: Tensor  # (..., iterations + 1, k)
    codes: Tensor  # (..., k), of the Status that each column ended with
    iterations: int


class _Progress(NamedTuple):
    """All that changes from one iteration to the next."""

    state: Any
    codes: Tensor  # (..., 1, k), 0 while a column runs
    norm: Tensor  # (..., 1, k)


def dot(u: Tensor, v: Tensor) -> Tensor:
    """<u, v> of each column, (..., 1, k)."""
    return (u * v).sum(-2, keepdim=True)


def divide(a: Tensor, b: Tensor, where: Tensor) -> Tensor:
    """a / b where `where` holds and b is not zero, else 0; its derivatives there are 0 too, not NaN."""
    good = where & (b != 0)
    return torch.where(good, a, 0) / torch.where(good, b, 1)


def iterate(
    method: Method, A: Operator, M: Any, b: Tensor, x0: Tensor | None, stop: Stopping, segments: bool = False
) -> Outcome:
    """Run `method` until every column has stopped. With `segments` for a backward in O(sqrt(iterations)) memory:
    the graph keeps the state between segments of 1, 2, 3, ... iterations, and repeats what is inside."""
    length = residual_norm(b.detach(), -2, keepdim=True)
    target = torch.clamp(stop.rtol * length, min=stop.atol)
    if x0 is None:
        x, r = torch.zeros_like(b), b
    else:
        x = torch.where(length == 0, 0, x0)  # A x = 0 is solved by zero, wherever one starts
        r = torch.where(length == 0, 0, b - A(x))
    norm = residual_norm(r, -2, keepdim=True)
    codes = torch.zeros(norm.shape, dtype=torch.int64, device=norm.device)
    codes = torch.where(norm.detach() <= target, CODE[Status.CONVERGED], codes)
    codes = torch.where(torch.isfinite(norm.detach()), codes, CODE[Status.NON_FINITE])
    limit = norm.detach() / torch.finfo(b.dtype).eps
    norms = [norm]

    def run(count: int, done: int, progress: _Progress, replay: bool) -> tuple[_Progress, list[Tensor]]:
        """Up to `count` iterations from the one with number `done`."""
        history = []
        for i in range(count):
            state, codes, norm = progress
            running = codes == 0
            if not running.any():
                break
            state, codes, norm = _advance(method, A, M, b, state, codes, norm, running, target, limit)
            history.append(norm)
            if (
                stop.callback is not None
                and not replay
                and _stopped(stop, done + i + 1, state.x, norm, codes)
            ):
                codes = torch.where(codes == 0, CODE[Status.STOPPED_BY_CALLBACK], codes)
            progress = _Progress(state, codes, norm)
        return progress, history

    progress = _Progress(method.start(A, M, b, x, r, codes == 0), codes, norm)
    if segments:
        progress, norms = _in_segments(run, progress, norms, stop.maxiter)
    else:
        progress, history = run(stop.maxiter, 0, progress, False)
        norms += history
    codes = torch.where(progress.codes == 0, CODE[Status.MAX_ITERATIONS], progress.codes)
    return Outcome(progress.state.x, torch.cat(norms, dim=-2), codes.squeeze(-2), len(norms) - 1)


def _advance(method, A, M, b, state, codes, norm, running, target, limit):
    """One iteration: the new state, codes and norm."""
    new, trouble = method.step(A, M, b, state, running)
    codes = torch.where(running, trouble, codes)
    running = codes == 0
    new_norm = residual_norm(new.r, -2, keepdim=True)
    size = new_norm.detach()
    codes = torch.where(running & (size > limit), CODE[Status.DIVERGED], codes)
    codes = torch.where(running & ~torch.isfinite(size), CODE[Status.NON_FINITE], codes)
    moved = running & (codes != CODE[Status.NON_FINITE])  # x stays at the last good iterate
    if not moved.all():
        new = _keep(moved, new, state)
        new_norm = torch.where(moved, new_norm, norm)
    close = (codes == 0) & (size <= target)
    if close.any():
        # The recurrence for r may have drifted from b - A x: nothing is called converged on its word.
        r = b - A(new.x)
        true = residual_norm(r, -2, keepdim=True)
        codes = torch.where(close & (true.detach() <= target), CODE[Status.CONVERGED], codes)
        new_norm = torch.where(close, true, new_norm)
        again = close & (codes == 0)
        if again.any():
            # All columns start again: a state may be of another size than a fresh one.
            new = method.start(A, M, b, new.x, torch.where(again, r, new.r), codes == 0)
    return new, codes, new_norm


def _keep(moved: Tensor, new: Any, old: Any) -> Any:
    """x and r of columns that have not moved. What else a state holds is of no use to a column that stopped."""
    return new._replace(x=torch.where(moved, new.x, old.x), r=torch.where(moved, new.r, old.r))


def _stopped(stop: Stopping, iteration: int, x: Tensor, norm: Tensor, codes: Tensor) -> bool:
    x, norm, converged = x.detach(), norm.detach().squeeze(-2), (codes == CODE[Status.CONVERGED]).squeeze(-2)
    if stop.vector:
        x, norm, converged = x.squeeze(-1), norm.squeeze(-1), converged.squeeze(-1)
    assert stop.callback is not None
    return stop.callback(Iteration(iteration, x, norm, converged)) is True


def _in_segments(run: Callable, progress: _Progress, norms: list[Tensor], maxiter: int):
    done, length = 0, 1
    make = type(progress.state)
    while done < maxiter and (progress.codes == 0).any():
        count = min(length, maxiter - done)
        first = True

        def segment(codes: Tensor, norm: Tensor, *state: Tensor, count: int = count, done: int = done):
            nonlocal first
            ended, history = run(count, done, _Progress(make(*state), codes, norm), not first)
            first = False
            return (ended.codes, ended.norm, torch.cat(history, dim=-2), *ended.state)

        codes, norm, history, *state = checkpoint(
            segment, progress.codes, progress.norm, *progress.state, use_reentrant=False
        )
        progress = _Progress(make(*state), codes, norm)
        norms = [*norms, history]
        done += history.shape[-2]
        length += 1
    return progress, norms
