"""When a column has converged or failed, and when that is checked, for the loop of all methods (loop.py).

`ResidualNorm` is the criterion for linear systems; least_squares.py has the criterion for least squares. A
column stops, with this `Status`, when

    the true residual norm is at or below the target     CONVERGED; a recurrence alone is not trusted
    the residual norm exceeds max(||r_0||, ||b||) / eps  DIVERGED
    the residual norm is infinite or NaN                  NON_FINITE; x is the last finite iterate
    rounding errors keep it from falling                  STAGNATED (`Schedule`)
    the method reports that it cannot continue            INDEFINITE, BREAKDOWN, ILL_CONDITIONED
    all iterations ran                                    MAX_ITERATIONS

Compiled code of `cg` has the same rules (csrc/kernels/pcg_column.cuh): there a column at or below the target,
or at the rounding level, waits until it is judged by its true residual.
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

STANDS = -1  # the code of a column that waits to be judged by its true residual


class Criterion(Protocol):
    """Whether a column has converged. All results are (..., 1, k); `norm` is ||r||."""

    fixed: bool  # no column can meet a tolerance: all iterations run
    has_tolerance: bool  # a tolerance, so that a column that does not meet it has failed
    square: bool  # requires A x = b, which may have no solution
    reads: tuple[str, ...]  # the fields of a state that `is_done` reads, other than x and r
    negligible: Any  # the size of b below which nothing matters

    def fresh(self) -> Criterion:
        """A copy for another run."""
        ...

    def in_units(self, of_b: Tensor) -> Criterion:
        """A copy for a scaled system with right-hand side b / of_b."""
        ...

    def begin(self, A: Any, b: Tensor, x: Tensor, r: Tensor, norm: Tensor, length: Tensor) -> Tensor:
        """Whether x is a solution before the first iteration. Called once, before the other methods."""
        ...

    def seems_done(self, state: Any, norm: Tensor) -> Tensor:
        """Whether to compute the true residual, judging by the norm of the method."""
        ...

    def is_done(self, A: Any, state: Any, r: Tensor, norm: Tensor) -> Tensor:
        """Whether the column has converged, judging by the true residual r."""
        ...

    def failure(self, state: Any, norm: Tensor) -> Tensor:
        """The code of a Status for a column that failed, 0 for others."""
        ...

    def reached(self, A: Any, b: Tensor, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """The quantity that must become small, from the true residual r, and its level of rounding errors."""
        ...

    def accuracy(self, A: Any, b: Tensor, x: Tensor, codes: Tensor) -> str:
        """The accuracy of the worst column and the requested accuracy, for a message."""
        ...


class ResidualNorm:
    """||b - A x|| <= max(rtol ||b||, atol), with one atol, or one per column."""

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
        """For b / of_b. A float divided by a tensor would be multiplied by its reciprocal, which is infinite
        for the smallest units."""
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
        """A recurrence for r is meaningless below the rounding level of its initial value."""
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
    """When a column stagnates: only rounding errors keep its residual from falling.

    After iterations 20, 40, 60, 80, 100, 125, 156, ... (each 1 / `share` of the previous number later, and at
    least `least` later) the true residual r = b - A x is measured. A column stops as STAGNATED if

        ||r|| <= 10 eps || |A| |x| + |b| ||      more accuracy cannot be expected, and
        ||r|| > the smallest one before, halved  no progress since then

    and this holds again after a restart from r, if the method's own residual had drifted away from it. For
    the reasons see "Stagnation" in docs/solvers.md.
    """

    least: int
    share: int

    def after(self, done: int) -> int:
        """The first scheduled iteration after `done`."""
        at = 0
        while at <= done:
            at += max(self.least, at // self.share)
        return at

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.after(number - 1) == number


LOOP_SCHEDULE = Schedule(20, 4)
# For the compiled loop of cg, where a measurement costs two iterations: 480, 960, 1920, ...
CG_SCHEDULE = Schedule(480, 1)


def rounding_level(A: Any, x: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """10 eps || |A| |x| + |b| ||, (..., 1, k)."""
    return 10 * torch.finfo(b.dtype).eps * size(terms(A, x, b, y))


def terms(A: Any, x: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """|A| |x| + |b|. If the entries of A are not known, its norm (..., 1, k) from ||A y|| / ||y||, a lower
    bound of ||A|| that is close, since rounding errors have components in all directions."""
    entries = A.magnitude(x)
    if entries is not None:
        return entries + b.abs()
    length = size(y)
    norm_A = size(A(y)) / torch.where(length == 0, 1, length)
    return norm_A * size(x) + size(b)


# When the host checks a solve to a tolerance on a device. A check waits for the device, which then waits for
# the host to launch the next iteration. Between two checks, columns that seem done do not move: a late check
# costs only the iterations after the last column stopped, which are not part of a graph.
_every: int | None = None  # None: see `_unhurried`
# A short solve may have a costly M; a long one must not be slowed down. Not measured.
_SHARE, _LONGEST = 8, 32


def set_check_every(iterations: int | None) -> int | None:
    """Set how often (in iterations) convergence is checked on a CUDA device, in solves to a tolerance.

    A check synchronizes the device. Columns that seemed done since the last check, and have not moved since,
    are then confirmed by their true residual: `x`, `iterations` and `residual_norms` are the same as with a
    check after every iteration, unless a recurrence was wrong and restarts (`minres` monitors its recurrence
    in every eighth iteration). Checking rarely wastes the iterations after the last column has stopped; M is
    called in these too.

    Parameters
    ----------
    iterations : int, at least 1; None, the initial setting: after an eighth of the iterations so far, at most
        32 (in the compiled loop of `cg`, where extra iterations cost next to nothing: 32, 64, 128, ...)

    Returns
    -------
    int or None, the previous setting. The new setting applies to solves that begin later, in all threads.
    Solves on a CPU or with a callback are checked after every iteration; gradient="checkpointed" also checks
    at the end of every segment, after 1, 3, 6, 10, ... iterations.

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
    """The number of iterations to the next check, as a function of the iterations so far."""
    every = _every
    return _unhurried if every is None else lambda done: every


def _unhurried(done: int) -> int:
    return min(max(1, done // _SHARE), _LONGEST)
