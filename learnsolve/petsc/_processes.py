"""Sums over processes, differentiable to any order.

A scalar that all processes share is of one of two kinds. *In common*: each has it, with its full cotangent.
*A copy*: each has one, and the cotangents of all copies add up to the scalar's, as for an operand that is
used in several places.
Sum : copies -> in common and Copies : in common -> copies are adjoints of each other,

    (Sum c) = sum_p c_p,    (Copies s)_p = s,    <g, Sum c> = sum_p <(Copies g)_p, c_p>,

so each is the other's derivative, and the set is closed. Loops work with copies (ops/core/across.py):
their sums are Copies(Sum(.)). Callers get values in common, also from `dot` and `norm`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve.ops.core.autograd import Nestable
from learnsolve.petsc._engine import engine


class Processes:
    """The processes of PETSC_COMM_WORLD. All get the same bits: each sums all parts in the same order."""

    def __init__(self) -> None:
        comm = engine().COMM_WORLD
        self.rank, self.size = comm.rank, comm.size
        self._gathers: dict[int, tuple[Any, Any, Any]] = {}

    def gathered(self, t: Tensor) -> Tensor:
        """Every process's t, (processes, *t.shape), float64; by one scatter of PETSc (an MPI_Allgather)."""
        t, count = t.detach(), t.numel()
        if self.size == 1 or count == 0:
            return t.expand(self.size, *t.shape).clone()
        if count not in self._gathers:
            own = engine().Vec().createMPI((count, count * self.size))
            scatter, whole = engine().Scatter.toAll(own)
            if count > 4096:  # only scatters for the sums of loops are cached
                return self._gather(own, scatter, whole, t, destroy=True)
            self._gathers[count] = own, scatter, whole
        own, scatter, whole = self._gathers[count]
        return self._gather(own, scatter, whole, t)

    def _gather(self, own: Any, scatter: Any, whole: Any, t: Tensor, destroy: bool = False) -> Tensor:
        own.array_w[:] = t.reshape(-1).numpy()
        scatter.scatter(own, whole)
        found = torch.from_numpy(np.array(whole.array_r)).reshape(self.size, *t.shape)
        if destroy:
            for each in (scatter, whole, own):
                each.destroy()
        return found

    def concatenated(self, t: Tensor) -> Tensor:
        """The vectors of all processes, of any lengths, concatenated."""
        if self.size == 1:
            return t.detach().clone()
        own = engine().Vec().createMPI((t.numel(), engine().DECIDE))
        scatter, whole = engine().Scatter.toAll(own)
        own.array_w[:] = t.detach().numpy()
        scatter.scatter(own, whole)
        found = torch.from_numpy(np.array(whole.array_r))
        for each in (scatter, whole, own):
            each.destroy()
        return found

    def sum(self, t: Tensor) -> Tensor:
        """The sum of local values, in common."""
        return _Sum.apply(t, self)  # type: ignore[return-value]

    def copies(self, t: Tensor) -> Tensor:
        return _Copies.apply(t, self)  # type: ignore[return-value]

    def shown(self, t: Tensor) -> Tensor:
        return _Shown.apply(t, self)  # type: ignore[return-value]

    def total(self, t: Tensor) -> Tensor:
        return self.copies(self.sum(t))

    def largest(self, t: Tensor) -> Tensor:
        return self.gathered(t).amax(0)


@cache
def processes() -> Processes:
    return Processes()


class _Linear(Nestable):
    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.processes = inputs


class _Sum(_Linear):
    @staticmethod
    def forward(t, processes):
        return processes.gathered(t).sum(0)

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return ctx.processes.copies(g), None

    @staticmethod
    def jvp(ctx, t, _):  # type: ignore[override]
        return ctx.processes.sum(t)


class _Copies(_Linear):
    @staticmethod
    def forward(t, processes):
        return t.clone()

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return ctx.processes.sum(g), None

    @staticmethod
    def jvp(ctx, t, _):  # type: ignore[override]
        return ctx.processes.copies(t)


class _Shown(_Linear):
    """The value of equal copies, as their mean: the identity, with the derivative Copies(.) / P."""

    @staticmethod
    def forward(t, processes):
        return t.clone()

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return ctx.processes.copies(g) / ctx.processes.size, None

    @staticmethod
    def jvp(ctx, t, _):  # type: ignore[override]
        return ctx.processes.shown(t)
