"""A x = b for the loop (loop.py): blocks of columns and nothing else.

Other features are *views*: a view is a function that restates a system and returns, with it, the function
that maps the outcome back. `Problem.run` (problem.py) is the only place that names them:

    projected.py   a singular A, solved on its range
    units.py       entries near the limits of the dtype, in units in which they are of size one

Vectors, batch axes and blocks of a `BlockBatch` become blocks of columns on entry, outside the gradient
(`Columns`). Rows in several processes need no view: only sums over rows differ (ops/core/across.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.ops.block_batch import Layout
from learnsolve.solvers.core.vectors import size
from learnsolve.solvers.solution import EAGER, Iteration

Map = Callable[[Tensor], Tensor]  # of blocks of columns


class Operator:
    """A linear map of blocks of columns (..., n, k), which depends on `parameters`. Not a Protocol, whose
    `isinstance` takes as long as a small product."""

    parameters: tuple[Tensor, ...]

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    @property
    def T(self) -> Operator:
        raise NotImplementedError

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Operator:
        raise NotImplementedError

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of y^T A x for the parameters, differentiable: its conjugate derivative."""
        raise NotImplementedError

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        """dA x, for a change of the parameters."""
        raise NotImplementedError

    def size(self) -> Tensor | None:
        """The largest entry, (..., 1, 1), if it is known."""
        return None

    def magnitude(self, x: Tensor) -> Tensor | None:
        """|A| |x|, entry by entry, if the entries are known."""
        return None

    def frobenius(self) -> Tensor | None:
        """The Frobenius norm, (..., 1, 1), if it is known."""
        return None

    def core(self) -> int:
        """The number of axes of a parameter that are not batch axes."""
        return 1


@dataclass
class System:
    """A x = b for blocks of columns (..., n, k), and the criterion for each of them."""

    name: str  # of the solver, for messages
    A: Any  # Operator
    M: Callable[[Tensor], Tensor] | None
    b: Tensor
    x0: Tensor | None
    criterion: Any  # Criterion (criterion.py), of this run alone
    callback: Callable[[Iteration], Any] | None = None

    @cached_property
    def length(self) -> Tensor:
        """||b||, (..., 1, k)."""
        return size(self.b)

    @property
    def unattended(self) -> bool:
        """A device runs all iterations and the host does not wait for it."""
        return self.b.is_cuda and self.criterion.fixed and self.callback is None


class Outcome(NamedTuple):
    x: Tensor
    norms: Tensor  # (..., iterations + 1, k)
    codes: Tensor  # (..., k), of the final Status of each column
    note: str = ""  # on the accuracy of columns that did not converge
    execution: str = EAGER  # `Solution.execution`


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
        """x, the values per column (..., k), and the axis of the rows in (..., rows, k)."""
        x = x if self.layout is None else self.layout.joined(x)
        if self.vector and x.dim() == 2:  # under vmap it has a batch axis
            return x.squeeze(-1), *(t.squeeze(-1) for t in of_columns), -1
        return x, *of_columns, -2

    def callback(self, callback: Callable[[Iteration], Any] | None) -> Callable[[Iteration], Any] | None:
        """The callback for blocks of columns."""
        if callback is None or (self.layout is None and not self.vector):
            return callback
        return lambda at: callback(Iteration(at.iteration, *self.out_of(*at[1:])[:-1]))
