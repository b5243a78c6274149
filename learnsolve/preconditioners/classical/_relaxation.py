"""Sweeps through the unknowns as triangular solves: the core of SOR and SSOR, as preconditioners and as
solvers.

For A = L + D + U and T = A with its diagonal divided by omega, a sweep adds M r to x, with

    forward     M = (D / omega + L)^-1
    backward    M = (D / omega + U)^-1
    symmetric   M = (2 - omega) (D / omega + U)^-1 (D / omega) (D / omega + L)^-1

where the symmetric sweep is a forward and then a backward sweep. A triangular solve reads only one triangle
of T.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), sections 4.1, 10.2 and 12.4.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.dots import over, scaled
from learnsolve.ops.core.gather import permuted
from learnsolve.ops.core.operands import in_open_interval, inside
from learnsolve.ops.core.selection import on_diagonal
from learnsolve.ops.diagonal import diagonal, shared_inverse_diagonal
from learnsolve.ops.indexing import _plan_permutation
from learnsolve.ops.sptrsv import sptrsv
from learnsolve.ordering import greedy_coloring

DIRECTIONS = ("forward", "backward", "symmetric")


class Sweep(NamedTuple):
    """One of the three M, for r in the order of the unknowns or, `multicolor`, color by color."""

    direction: str
    multicolor: bool

    def system(self, A: CSR, omega: float | Tensor) -> CSR:
        """T, in the order of the sweep."""
        values = _with_diagonal_divided(A, omega)
        if self.multicolor:
            return A.pattern._planned(color_order).matrix(CSR(values, A.pattern))
        return CSR(values, A.pattern)

    def copied_system(self, A: CSR, omega: float | Tensor) -> CSR:
        """T, unaffected by in-place changes of A's values."""
        T = self.system(A, omega)
        return T.clone() if T.values is A.values else T

    def pattern(self, original: SparsityPattern) -> SparsityPattern:
        """The pattern of T."""
        return original._planned(color_order).pattern if self.multicolor else original

    def apply(
        self, T: CSR, original: SparsityPattern, omega: float | Tensor, R: Tensor, transpose: bool
    ) -> Tensor:
        """M R or M^T R for blocks of columns R (..., n, k), for the matrix on the pattern `original`."""
        if self.multicolor:
            order = original._planned(color_order)
            return order.back(self._in_order(T, omega, order.there(R), transpose))
        return self._in_order(T, omega, R, transpose)

    def _in_order(self, T: CSR, omega: float | Tensor, R: Tensor, transpose: bool) -> Tensor:
        if self.direction != "symmetric":
            return sptrsv(T, R, lower=self.direction == "forward", transpose=transpose)
        # M^T = (2 - omega) (D / omega + L)^-T (D / omega) (D / omega + U)^-T: the upper triangle first.
        z = sptrsv(T, R, lower=not transpose, transpose=transpose)
        factor = 2 - (omega[..., None, None] if isinstance(omega, Tensor) else omega)
        z = scaled(factor, diagonal(T).unsqueeze(-1)) * z
        return sptrsv(T, z, lower=transpose, transpose=transpose)


_RANGE: tuple[float, str, tuple[str, str]] = (
    2,
    "lie in 0 < omega < 2",
    ("; 1 is Gauss-Seidel", "; to train it, use 2 sigmoid(t) with a parameter t"),
)


def check_relaxation(function: str, A: Any, omega: Any, multicolor: Any) -> float | Tensor:
    """Check the arguments of a sweep; returns omega as a float or tensor."""
    check_sweep(function, A, multicolor)
    return in_open_interval(function, "omega", omega, A.values, *_RANGE)


def check_omega(function: str, omega: float | Tensor) -> None:
    inside(function, "omega", omega, *_RANGE)


def check_sweep(function: str, A: Any, multicolor: Any) -> None:
    checks.matrix(function, "A", A)
    checks.dtype(function, "A.values", A.values)
    checks.flag(function, "multicolor", multicolor)
    with torch.no_grad():  # for its errors: the diagonal must not have zeros
        shared_inverse_diagonal(A, function)


def _with_diagonal_divided(A: CSR, omega: float | Tensor) -> Tensor:
    if not isinstance(omega, Tensor):
        if omega == 1:
            return A.values
    elif omega.dim():
        omega = omega.unsqueeze(-1)
    return torch.where(on_diagonal(A.pattern), over(A.values, omega), A.values)


def _reordered(R: Tensor, order: Tensor, back: Tensor) -> Tensor:
    """R[..., order, :]"""
    if R.shape[-1] == 1:  # torch copies rows one by one, but single elements faster
        return permuted(R.squeeze(-1), order, back).unsqueeze(-1)
    return permuted(R, order, back, -2)


class _Order(NamedTuple):
    """The order of the unknowns by color."""

    pattern: SparsityPattern  # of the matrix, unknowns color by color
    at: Tensor  # position of each entry in the original pattern
    inverse: Tensor
    rows: Tensor  # unknowns color by color
    places: Tensor  # position of each unknown in this order

    def matrix(self, A: CSR) -> CSR:
        return CSR(permuted(A.values, self.at, self.inverse), self.pattern)

    def there(self, R: Tensor) -> Tensor:
        """Reorder blocks of columns from the order of the unknowns."""
        return _reordered(R, self.rows, self.places)

    def back(self, R: Tensor) -> Tensor:
        return _reordered(R, self.places, self.rows)


def color_order(P: SparsityPattern) -> _Order:
    rows = greedy_coloring(P).rows.long()
    plan, inverse = _plan_permutation(P, rows, rows)
    places = torch.empty_like(rows)
    places[rows] = torch.arange(len(rows), device=rows.device)
    assert plan.pattern is not None
    assert plan.at is not None
    return _Order(plan.pattern, plan.at, inverse, rows, places)
