"""The caller's vectors as blocks of columns, and a `BlockBatch` as the loops see it: one system for each
block, vectors padded with zeros to the largest.

With E the 0/1 matrix that pads, the operator is E A E^T and M is E M E^T: padding stays zero in every method,
and each number that a method computes for a column it computes for each block, (..., B, 1, k).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.ops.block_batch import BlockBatch, Layout
from learnsolve.ops.structure import transpose
from learnsolve.solvers.core.system import Operator
from learnsolve.solvers.solution import Iteration

if TYPE_CHECKING:
    from learnsolve.solvers.core.operators import Matrix
    from learnsolve.solvers.options import Options

Map = Callable[[Tensor], Tensor]


class Columns(NamedTuple):
    """The caller's b and x as blocks of columns (..., n, k), and back."""

    vector: bool = False  # b has no axis of columns
    batch: torch.Size = torch.Size()  # of A
    layout: Layout | None = None  # of the blocks of a BlockBatch

    def into(self, t: Tensor) -> Tensor:
        t = t.unsqueeze(-1) if self.vector else t
        if self.batch:
            t = t.expand(torch.broadcast_shapes(self.batch, t.shape[:-2]) + t.shape[-2:])
        return t if self.layout is None else self.layout.padded(t)

    def out_of(self, x: Tensor, *of_columns: Tensor) -> tuple[Any, ...]:
        """x, what each column has one of (..., k), and the axis of the rows in (..., rows, k)."""
        x = x if self.layout is None else self.layout.joined(x)
        if self.vector and x.dim() == 2:  # under vmap it has a batch axis
            return x.squeeze(-1), *(t.squeeze(-1) for t in of_columns), -1
        return x, *of_columns, -2

    def told(self, callback: Callable[[Iteration], Any] | None) -> Callable[[Iteration], Any] | None:
        """The callback for blocks of columns."""
        if callback is None or (self.layout is None and not self.vector):
            return callback
        return lambda at: callback(Iteration(at.iteration, *self.out_of(*at[1:])[:-1]))


class Blocks(Operator):
    """A `BlockBatch` on padded blocks of columns, (..., B, largest, k)."""

    def __init__(self, A: BlockBatch, inner: Matrix):
        self.batch, self.layout, self.inner = A, A._layout, inner
        self.parameters = inner.parameters

    def _with(self, inner: Matrix) -> Blocks:
        return Blocks(self.batch, inner)

    def __call__(self, x: Tensor) -> Tensor:
        return self.layout.padded(self.inner(self.layout.joined(x)))

    @property
    def T(self) -> Blocks:
        return self._with(self.inner.T)

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Blocks:
        return self._with(self.inner.with_parameters(parameters))

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        return self.inner.pullback(self.layout.joined(y), self.layout.joined(x))

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        return self.layout.padded(self.inner.pushforward(self.layout.joined(x), tangents))

    def size(self) -> Tensor | None:
        values = self.inner.A.values.detach()
        if values.shape[-1] == 0:
            return None
        values = torch.where(values.isnan(), torch.inf, values.abs())
        of = self._blocks_of_entries()
        largest = values.new_zeros((*values.shape[:-1], len(self.layout.sizes)))
        return largest.scatter_reduce(-1, of.expand(values.shape), values, "amax")[..., None, None]

    def magnitude(self, x: Tensor) -> Tensor | None:
        y = self.inner.magnitude(self.layout.joined(x))
        return None if y is None else self.layout.padded(y)

    def divided(self, unit: Tensor) -> Blocks:
        values = self.inner.A.values
        return self.with_parameters((values / unit.flatten()[self._blocks_of_entries()],))

    def parts(self) -> list[CSR]:
        """The matrix of each block."""
        parts = self.batch.split(self.inner.A)
        return [transpose(A) for A in parts] if self.inner.transpose else parts

    def _blocks_of_entries(self) -> Tensor:
        return self.layout.batch[self.inner.A.pattern.row_indices]

    def core(self) -> int:
        return 0  # values (..., nnz) of all blocks belong to x of (..., B, largest, k)


def systems_of(name: str, options: Options, b: Tensor, layout: Layout | None) -> list[tuple[Options, Tensor]]:
    """The options and the right-hand side that each M belongs to: one, or with a list of M one per block."""
    if layout is None or not isinstance(options.M, (list, tuple)):
        return [(options, b)]
    for key, given in (("M", options.M), ("adjoint_M", options.adjoint_M)):
        listed = isinstance(given, (list, tuple))
        if given is not None and (not listed or len(given) != len(layout.sizes)):
            count = len(given) if listed else type(given).__name__
            raise ValueError(
                f"{name}: {key} must be a list of one for each of {len(layout.sizes)} blocks, as M is, got "
                f"{count}"
            )
    adjoints = [None] * len(layout.sizes) if options.adjoint_M is None else options.adjoint_M
    parts = b.split(layout.sizes, 0 if b.dim() == 1 else -2)
    return [
        (replace(options, M=M, adjoint_M=T), part)
        for M, T, part in zip(options.M, adjoints, parts, strict=True)
    ]


def joined(layout: Layout | None, maps: Sequence[Map | None]) -> Map | None:
    """The M of a solve: the only one; with blocks, on padded columns."""
    if all(M is None for M in maps):
        return None
    return maps[0] if layout is None else Padded(layout, maps)


class Padded:
    """M of the whole block-diagonal matrix, or one for each block, on padded blocks of columns."""

    def __init__(self, layout: Layout, maps: Sequence[Map | None]):
        self.layout, self.maps = layout, maps

    def __call__(self, r: Tensor) -> Tensor:
        r = self.layout.joined(r)
        if len(self.maps) == 1 and self.maps[0] is not None:
            return self.layout.padded(self.maps[0](r))
        parts = zip(r.split(self.layout.sizes, -2), self.maps, strict=True)
        return self.layout.padded(torch.cat([s if M is None else M(s) for s, M in parts], -2))
