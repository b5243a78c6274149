"""A distributed matrix as an operator for the solver loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from learnsolve.ops.core.product import sampled

if TYPE_CHECKING:
    from learnsolve.petsc.matrix import Matrix


class Operator:
    """A `petsc.Matrix` or its transpose, for blocks of columns (n, k) with the local rows; see `Operator` of
    solvers/core/system.py."""

    def __init__(self, A: Matrix, transpose: bool = False):
        self.A, self.transpose, self.across = A, transpose, A.across
        self.parameters = (A.values,)

    def _apply(self, values: Tensor, x: Tensor) -> Tensor:
        return self.A._structure.product(values, x, self.transpose)

    def __call__(self, x: Tensor) -> Tensor:
        return self._apply(self.A.values, x)

    @property
    def T(self) -> Operator:
        return Operator(self.A, not self.transpose)

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Operator:
        return Operator(self.A.with_values(parameters[0]), self.transpose)

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        u, w = (x, y) if self.transpose else (y, x)
        structure = self.A._structure
        return (sampled(u, structure.extended(w), structure.local),)

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        assert tangents[0] is not None
        return self._apply(tangents[0], x)

    def size(self) -> Tensor | None:
        values = self.A.values.detach().abs()
        largest = values.amax() if len(values) else values.sum()
        return self.across.largest(largest.reshape(1, 1))

    def magnitude(self, x: Tensor) -> Tensor | None:
        return self._apply(self.A.values.detach().abs(), x.abs())

    def frobenius(self) -> Any:
        return None

    def core(self) -> int:
        return 1
