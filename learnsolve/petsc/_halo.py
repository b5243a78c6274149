"""The entries of a distributed vector that other processes hold, and the adjoint: sums into these entries."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from learnsolve.ops.core.autograd import Nestable
from learnsolve.petsc._engine import engine
from learnsolve.petsc._rows import Rows

_KEPT = 4  # the number of column counts with cached scatters


class Halo:
    """Entries `columns`, sorted, of vectors with these rows, by a PETSc scatter.

    The only copies are into and out of PETSc's messages.
    """

    def __init__(self, rows: Rows, columns: np.ndarray):
        self.rows, self.columns = rows, columns
        self._scatters: dict[int, tuple[Any, Any, Any]] = {}

    def fetch(self, x: Tensor) -> Tensor:
        """x[columns], (halo, k), of x (rows here, k)."""
        return _Fetch.apply(x, self)  # type: ignore[return-value]

    def deliver(self, g: Tensor) -> Tensor:
        """(rows here, k): the sums over all processes of the entries of g (halo, k) for these rows."""
        return _Deliver.apply(g, self)  # type: ignore[return-value]

    def move(self, t: Tensor, back: bool) -> Tensor:
        k = t.shape[1]
        out = t.new_zeros((self.rows.count if back else len(self.columns), k))
        if k == 0:
            return out
        scatter, whole, halo = self._scatter(k)
        t = t.detach().contiguous()
        inner, outer = (out, t) if back else (t, out)
        whole.placeArray(inner.numpy().reshape(-1))
        halo.placeArray(outer.numpy().reshape(-1))
        try:
            if back:
                scatter.scatter(halo, whole, addv=True, mode="reverse")
            else:
                scatter.scatter(whole, halo)
        finally:
            whole.resetArray()
            halo.resetArray()
        return out

    def _scatter(self, k: int) -> tuple[Any, Any, Any]:
        if k in self._scatters:
            return self._scatters[k]
        PETSc, count = engine(), len(self.columns)
        most = np.iinfo(PETSc.IntType).max
        if self.rows.rows * k > most:
            raise ValueError(
                f"petsc: {self.rows.rows} rows of {k} columns are more than this PETSc can count, {most}; "
                f"use fewer "
                "columns, or a PETSc with 64-bit indices"
            )
        if len(self._scatters) >= _KEPT:
            for each in self._scatters.pop(next(iter(self._scatters))):
                each.destroy()
        whole = PETSc.Vec().create(comm=PETSc.COMM_WORLD)
        whole.setSizes((self.rows.count * k, self.rows.rows * k), bsize=k)
        whole.setType("mpi")
        halo = PETSc.Vec().createSeq(count * k, bsize=k, comm=PETSc.COMM_SELF)
        theirs = PETSc.IS().createBlock(k, self.columns.astype(PETSc.IntType), comm=PETSc.COMM_SELF)
        ours = PETSc.IS().createBlock(k, np.arange(count, dtype=PETSc.IntType), comm=PETSc.COMM_SELF)
        scatter = PETSc.Scatter().create(whole, theirs, halo, ours)
        theirs.destroy()
        ours.destroy()
        self._scatters[k] = scatter, whole, halo
        return self._scatters[k]


class _Fetch(Nestable):
    @staticmethod
    def forward(x, halo):
        return halo.move(x, False)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.halo = inputs

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return ctx.halo.deliver(g), None

    @staticmethod
    def jvp(ctx, t, _):  # type: ignore[override]
        return ctx.halo.fetch(t)


class _Deliver(Nestable):
    @staticmethod
    def forward(g, halo):
        return halo.move(g, True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.halo = inputs

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return ctx.halo.fetch(g), None

    @staticmethod
    def jvp(ctx, t, _):  # type: ignore[override]
        return ctx.halo.deliver(t)
