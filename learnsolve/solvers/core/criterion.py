"""When a column is done, or lost, and when that is checked, for the loop of all methods (loop.py).

`ResidualNorm` is the criterion of systems; that of least squares is in least_squares.py. A column stops, and
this is its `Status`, when

    the true residual norm is at or below the target     CONVERGED; a recurrence alone is not trusted
    the residual norm exceeds max(||r_0||, ||b||) / eps  DIVERGED
    the residual norm is infinite or NaN                  NON_FINITE; x is the last finite iterate
    rounding errors keep it from falling                  STAGNATED (`Schedule`)
    the method reports that it cannot continue            INDEFINITE, BREAKDOWN, ILL_CONDITIONED
    all iterations ran                                    MAX_ITERATIONS

Compiled code of `cg` has the same rules (csrc/kernels/pcg_column.cuh): a column at or below the target, or
the rounding level, stands still there until it is judged by its true residual.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.solvers.core.vectors import size
from learnsolve.solvers.solution import CODE, Status

STANDS = -1  # the code of a column that stands still until it is judged by its true residual


class Criterion(Protocol):
    """Whether a column is done. All answers are (..., 1, k); `norm` is ||r||."""

    fixed: bool  # no tolerance that a column could meet: all iterations run
    has_tolerance: bool  # a tolerance, so that a column that does not meet it has failed
    square: bool  # asks for A x = b, of which it may turn out that there is no solution
    reads: tuple[str, ...]  # what `is_done` reads of a state, beside x and r
    negligible: Any  # the size of b below which nothing matters

    def fresh(self) -> Criterion:
        """The same for another run."""
        ...

    def in_units(self, of_b: Tensor) -> Criterion:
        """The same for a system in units, whose right-hand side is b / of_b."""
        ...

    def begin(self, A: Any, b: Tensor, x: Tensor, r: Tensor, norm: Tensor, length: Tensor) -> Tensor:
        """Is x a solution before the first iteration? Called once, before the others."""
        ...

    def seems_done(self, state: Any, norm: Tensor) -> Tensor:
        """Should the true residual be computed, by the norm that the method has?"""
        ...

    def is_done(self, A: Any, state: Any, r: Tensor, norm: Tensor) -> Tensor:
        """Is it done, by the true residual r?"""
        ...

    def failure(self, state: Any, norm: Tensor) -> Tensor:
        """The code of a Status for a column that is lost, 0 for others."""
        ...

    def reached(self, A: Any, b: Tensor, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """What has to become small, by the true residual r, and the level of rounding errors in it."""
        ...

    def accuracy(self, A: Any, b: Tensor, x: Tensor, codes: Tensor) -> str:
        """What the worst column reached and what was asked, for a message."""
        ...


class ResidualNorm:
    """||b - A x|| <= max(rtol ||b||, atol), with atol a number or one per column."""

    square = True
    reads: tuple[str, ...] = ()

    def __init__(self, rtol: float, atol: float | Tensor):
        self.rtol, self.atol = rtol, atol
        self.fixed = rtol == 0 and not isinstance(atol, Tensor) and atol == 0
        self.has_tolerance = not self.fixed
        self.negligible = atol

    def fresh(self) -> ResidualNorm:
        return ResidualNorm(self.rtol, self.atol)

    def in_units(self, of_b: Tensor) -> ResidualNorm:
        """For b / of_b. A number divided by a tensor would be multiplied with its reciprocal, infinity for
        the smallest units."""
        if not isinstance(self.atol, Tensor) and self.atol == 0:
            return ResidualNorm(self.rtol, 0.0)
        atol = self.atol if isinstance(self.atol, Tensor) else of_b.new_tensor(self.atol)
        return ResidualNorm(self.rtol, atol / of_b)

    def target_for(self, b: Tensor, length: Tensor) -> Tensor:
        relative = self.rtol * length
        if isinstance(self.atol, Tensor):
            return torch.maximum(relative, self.atol.to(length))
        return relative.clamp(min=self.atol) if self.atol else relative

    def begin(self, A: Any, b: Tensor, x: Tensor, r: Tensor, norm: Tensor, length: Tensor) -> Tensor:
        self.target, self.first = self.target_for(b, length), (norm, length)
        return norm <= self.target

    @cached_property
    def floor(self) -> Tensor:
        """A recurrence for r says nothing below the rounding level of what it began with."""
        norm, _ = self.first
        return torch.finfo(norm.dtype).eps * norm

    @cached_property
    def limit(self) -> Tensor:
        norm, length = self.first
        return torch.maximum(norm, length) / torch.finfo(norm.dtype).eps

    def seems_done(self, state: Any, norm: Tensor) -> Tensor:
        return norm <= torch.maximum(self.target, self.floor)

    def is_done(self, A: Any, state: Any, r: Tensor, norm: Tensor) -> Tensor:
        return norm <= self.target

    def failure(self, state: Any, norm: Tensor) -> Tensor:
        return (norm > self.limit) * CODE[Status.DIVERGED]

    def reached(self, A: Any, b: Tensor, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        return size(r), rounding_level(A, x, b, r)

    def accuracy(self, A: Any, b: Tensor, x: Tensor, codes: Tensor) -> str:
        length = size(b)
        length = torch.where(length == 0, 1, length)
        reached, asked = size(b - A(x)) / length, self.target_for(b, size(b)) / length
        lost = (codes.unsqueeze(-2) != CODE[Status.CONVERGED]) & torch.isfinite(reached)
        if not lost.any():
            return ""
        worst = torch.where(lost, reached / asked, -1).argmax()
        value, target = (t.expand_as(lost).flatten()[worst].item() for t in (reached, asked))
        return f"||b - A x|| / ||b|| is {value:.2g}, asked: {target:.2g}. "


class Schedule(NamedTuple):
    """When a column stagnates: rounding errors alone keep its residual from falling.

    After iterations 20, 40, 60, 80, 100, 125, 156, ... (each 1 / `share` of those before later than the last,
    and `least` at least) the true residual r = b - A x is measured. A column stops, as STAGNATED, if

        ||r|| <= 10 eps || |A| |x| + |b| ||      more accuracy cannot be expected, and
        ||r|| > the smallest one before, halved  none was gained since

    once more after it has started again from r, where the method's own residual had drifted away from it. Why
    these two: docs/solvers.md, "Stagnation".
    """

    least: int
    share: int

    def after(self, done: int) -> int:
        """The first one after number `done`."""
        at = 0
        while at <= done:
            at += max(self.least, at // self.share)
        return at

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.after(number - 1) == number


LOOP_SCHEDULE = Schedule(20, 4)
# Of the compiled loop of cg, to which a measurement costs two of its iterations: 480, 960, 1920, ...
CG_SCHEDULE = Schedule(480, 1)


def rounding_level(A: Any, x: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """10 eps || |A| |x| + |b| ||, (..., 1, k)."""
    return 10 * torch.finfo(b.dtype).eps * size(terms(A, x, b, y))


def terms(A: Any, x: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """|A| |x| + |b|. Where the entries of A are not known, its length, (..., 1, k), by ||A y|| / ||y||, a
    lower bound of ||A||, and a close one: rounding errors have components in all directions."""
    entries = A.magnitude(x)
    if entries is not None:
        return entries + b.abs()
    length = size(y)
    norm_A = size(A(y)) / torch.where(length == 0, 1, length)
    return norm_A * size(x) + size(b)


# When the host checks a solve to a tolerance on a device. A check waits for the device, which then waits for
# the host to launch the next iteration. Between two checks columns that seem done stand still: a late check
# costs the iterations after the last one stopped, which are not part of a graph.
_every: int | None = None  # None: as `_unhurried` says
# A short solve may have a costly M; a long one must not be slowed down. Not measured.
_SHARE, _LONGEST = 8, 32


def set_check_every(iterations: int | None) -> int | None:
    """Set how often (in iterations) convergence is checked on a CUDA device, in solves to a tolerance.

    A check waits for the device. Columns that seemed done since the last one, and stood still from there, are
    then confirmed by their true residual: `x`, `iterations` and `residual_norms` are those of checks after
    every iteration, unless a recurrence was wrong and starts again (`minres`, which watches its own, does so
    in every eighth iteration). Checking rarely wastes the iterations after the last column has stopped; M
    is called in these too.

    Parameters
    ----------
    iterations : int, at least 1; None, as at the start: after an eighth of those that ran, 32 at most (the
        compiled loop of `cg`, where iterations after the last cost next to nothing: 32, 64, 128, ...)

    Returns
    -------
    int or None, the previous setting. The new one holds for solves that begin later, in all threads. A CPU,
    and a solve with a callback, are checked after every iteration; gradient="checkpointed" also at the end of
    every segment, after 1, 3, 6, 10, ... iterations.

    Raises
    ------
    TypeError, ValueError
        if iterations is not an int, or less than 1.

    Examples
    --------
    >>> import learnsolve as ls
    >>> before = ls.solvers.set_check_every(10)
    >>> ls.solvers.set_check_every(before)
    10
    """
    global _every
    if iterations is not None:
        iterations = checks.integer("set_check_every", "iterations", iterations, 1)
    before, _every = _every, iterations
    return before


def check_every() -> int | None:
    return _every


def gaps() -> Callable[[int], int]:
    """The number of iterations to the next check, as a function of those that ran."""
    every = _every
    return _unhurried if every is None else lambda done: every


def _unhurried(done: int) -> int:
    return min(max(1, done // _SHARE), _LONGEST)
