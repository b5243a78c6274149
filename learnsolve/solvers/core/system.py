"""A x = b as the loop (loop.py) sees it: blocks of columns and nothing else.

What a caller may ask for is a *view*: a function that restates a system, and returns with it the function
that restates the outcome. `Problem.run` (problem.py) is the only place that names them:

    projected.py   a singular A, solved on its range
    scaled.py      entries near the limits of the dtype, in units in which they are of size one

Vectors, batch axes and blocks of a `BlockBatch` become blocks of columns at the door, outside of the gradient
(blocks.py). Rows in several processes need no view: only sums over rows differ (ops/_across.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from learnsolve.solvers.solution import EAGER, Iteration


class Operator(Protocol):
    """A linear map of blocks of columns (..., n, k), made of `parameters`."""

    parameters: tuple[Tensor, ...]

    def __call__(self, x: Tensor) -> Tensor: ...
    @property
    def T(self) -> Operator: ...
    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Operator: ...
    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of <y, A x> for the parameters, differentiable."""
        ...

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        """dA x, for a change of the parameters."""
        ...

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
    """A x = b for blocks of columns (..., n, k), and when each of them is done."""

    name: str  # of the solver, for messages
    A: Any  # Operator
    M: Callable[[Tensor], Tensor] | None
    b: Tensor
    x0: Tensor | None
    criterion: Any  # Criterion (criterion.py), of this run alone
    callback: Callable[[Iteration], Any] | None = None

    @property
    def unattended(self) -> bool:
        """A device runs all iterations, and the host does not wait for it."""
        return self.b.is_cuda and self.criterion.never and self.callback is None


class Outcome(NamedTuple):
    x: Tensor
    norms: Tensor  # (..., iterations + 1, k)
    codes: Tensor  # (..., k), of the Status that each column ended with
    note: str = ""  # how far columns came that did not converge
    execution: str = EAGER  # `Solution.execution`
