"""When a column is done, for the loop of all methods (loop.py): `ResidualNorm` for systems; that of least
squares is in least_squares.py.

A column stops, and this is its `Status`, when

    the true residual norm is at or below the target     CONVERGED; a recurrence alone is not trusted
    the residual norm exceeds max(||r_0||, ||b||) / eps  DIVERGED
    the residual norm is infinite or NaN                  NON_FINITE; x is the last finite iterate
    rounding errors keep it from falling                  STAGNATED (stagnation.py)
    the method reports that it cannot continue            INDEFINITE, BREAKDOWN, ILL_CONDITIONED
    all iterations ran                                    MAX_ITERATIONS

Compiled code of `cg` has the same rules (csrc/kernels/pcg_column.cuh): a column at or below the target, or
the rounding level, stands still there until it is judged by its true residual.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from learnsolve.solvers.core.stagnation import rounding_level
from learnsolve.solvers.core.vectors import size
from learnsolve.solvers.solution import CODE, Status


class Criterion(Protocol):
    """Whether a column is done. All answers are (..., 1, k); `norm` is ||r||."""

    never: bool  # no tolerance that a column could meet: all iterations run
    asked: bool  # a tolerance, so that a column that does not meet it has failed
    square: bool  # asks for A x = b, of which it may turn out that there is no solution
    reads: tuple[str, ...]  # what `holds` reads of a state, beside x and r
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

    def looks(self, state: Any, norm: Tensor) -> Tensor:
        """Should the true residual be computed, by the norm that the method has?"""
        ...

    def holds(self, A: Any, state: Any, r: Tensor, norm: Tensor) -> Tensor:
        """Is it done, by the true residual r?"""
        ...

    def fails(self, state: Any, norm: Tensor) -> Tensor:
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
        self.never = rtol == 0 and not isinstance(atol, Tensor) and atol == 0
        self.asked = not self.never
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
            return torch.maximum(relative, self.atol.to(b))
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

    def looks(self, state: Any, norm: Tensor) -> Tensor:
        return norm <= torch.maximum(self.target, self.floor)

    def holds(self, A: Any, state: Any, r: Tensor, norm: Tensor) -> Tensor:
        return norm <= self.target

    def fails(self, state: Any, norm: Tensor) -> Tensor:
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
        found, wanted = (t.expand_as(lost).flatten()[worst].item() for t in (reached, asked))
        return f"||b - A x|| / ||b|| is {found:.2g}, asked: {wanted:.2g}. "
