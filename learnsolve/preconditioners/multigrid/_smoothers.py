"""Smoothers of multigrid: one sweep is x <- x + S (b - A x), with S here.

S is symmetric if A is, and the same before and after the coarse correction, so that the cycle is symmetric.
`transpose` selects the sweep for A^T, with S^T. Each smoother has

    first(b, transpose)      x = S b, the sweep from zero, and b - A x
    again(x, b, transpose)   x + S (b - A x)

Source: Adams, Brezina, Hu, Tuminaro, "Parallel multigrid smoothing: polynomial versus Gauss-Seidel", J.
Comput. Phys. 188 (2003), doi:10.1016/S0021-9991(03)00194-3; Saad, "Iterative Methods for Sparse Linear
Systems" (2003), algorithm 12.1 (Chebyshev) and sections 4.1 and 12.4 (Gauss-Seidel, multicoloring).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from learnsolve.matrix import checks, device_analysis
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.plain import readable
from learnsolve.ops.core.dots import times
from learnsolve.ops.core.linear_steps import product, scaled_rows
from learnsolve.ops.core.triangular import Side, solve
from learnsolve.ops.diagonal import diagonal, shared_inverse_diagonal
from learnsolve.ops.structure import scale_rows
from learnsolve.ops.triangle import tril, triu
from learnsolve.preconditioners.classical._relaxation import color_order


class _Explicit:
    """A smoother given as a function r -> S r of the residual."""

    A: CSR

    def step(self, r: Tensor, transpose: bool) -> Tensor:
        raise NotImplementedError

    def first(self, b: Tensor, transpose: bool) -> tuple[Tensor, Tensor]:
        x = self.step(b, transpose)
        return x, b - product(self.A.values, x, self.A.pattern, transpose)

    def again(self, x: Tensor, b: Tensor, transpose: bool) -> Tensor:
        return x + self.step(b - product(self.A.values, x, self.A.pattern, transpose), transpose)


class Jacobi(_Explicit):
    """S = w D^-1, w a scalar or one per row."""

    def __init__(self, function: str, A: CSR, weight: float | Tensor):
        self.A, self.scale = A, times(shared_inverse_diagonal(A, function), weight).unsqueeze(-1)

    def step(self, r: Tensor, transpose: bool) -> Tensor:
        return scaled_rows(self.scale, r)


class Chebyshev(_Explicit):
    """S = p(D^-1 A) D^-1: `degree` steps of the Chebyshev iteration from zero, for eigenvalues of D^-1 A in
    [rho / 30, 1.1 rho]."""

    def __init__(self, function: str, A: CSR, radius: float, degree: int):
        self.A, self.degree = A, degree
        self.inverse = shared_inverse_diagonal(A, function).unsqueeze(-1)
        low, high = radius / 30, 1.1 * radius
        self.center, self.half_width = (high + low) / 2, (high - low) / 2

    def step(self, r: Tensor, transpose: bool) -> Tensor:
        # With the transpose p(D^-1 A^T) D^-1 = (p(D^-1 A) D^-1)^T, since D^-1 A^T D^-1 = (D^-1 A D^-1)^T.
        sigma = self.center / self.half_width
        x = d = self.inverse * r / self.center
        rho = 1 / sigma
        for _ in range(self.degree - 1):
            r = r - product(self.A.values, d, self.A.pattern, transpose)
            rho_old, rho = rho, 1 / (2 * sigma - rho)
            d = rho * rho_old * d + (2 * rho / self.half_width) * (self.inverse * r)
            x = x + d
        return x


class GaussSeidel:
    """S = (D + U)^-1 D (D + L)^-1, a forward and a backward sweep; on a device color by color, so that each
    triangular solve has as many levels as there are colors.

    With F = (D + L)^-1, V = D^-1 U and B = (I + V)^-1, S is B F, and no sweep needs a product with all of A:

        first   z = F b, x = B z, b - A x = L (z - x)            since (D + U) x = D z and (D + L) z = b
        again   y = F (b - D V x), x' = B (y + V x)              since L y = b - D V x - D y

    and for A^T

        first   z = B^T b, x = F^T z, b - A^T x = V^T (z - D x)
        again   y = B^T (b - L^T x), x' = F^T (y + L^T x)

    Both cost 3/2 times the products and solves of a cycle with one Jacobi step on each side.
    """

    def __init__(self, function: str, A: CSR):
        inverse = shared_inverse_diagonal(A, function)
        if readable(inverse) and inverse.isinf().any():
            row = int(inverse.detach().isinf().nonzero()[0, -1])
            raise ValueError(
                f"{function}: A must have a diagonal whose reciprocal does not overflow, row {row} has "
                f"{float(diagonal(A)[..., row].detach().abs().min())}; scale A"
            )
        self.order = A.pattern._planned(color_order) if device_analysis.here(A.values) else None
        if self.order is not None:
            A, inverse = self.order.matrix(A), self.order.there(inverse.unsqueeze(-1)).squeeze(-1)
        self.A, self.d = A, diagonal(A).unsqueeze(-1)
        self.L, self.V = tril(A, -1), scale_rows(triu(A, 1), inverse)

    def first(self, b: Tensor, transpose: bool) -> tuple[Tensor, Tensor]:
        b = self._there(b)
        if transpose:
            z = self._B(b, True)
            x = self._F(z, True)
            r = product(self.V.values, z - self.d * x, self.V.pattern, True)
        else:
            z = self._F(b, False)
            x = self._B(z, False)
            r = product(self.L.values, z - x, self.L.pattern, False)
        return self._back(x), self._back(r)

    def again(self, x: Tensor, b: Tensor, transpose: bool) -> Tensor:
        x, b = self._there(x), self._there(b)
        if transpose:
            t = product(self.L.values, x, self.L.pattern, True)
            x = self._F(t + self._B(b - t, True), True)
        else:
            t = product(self.V.values, x, self.V.pattern, False)
            x = self._B(t + self._F(torch.addcmul(b, self.d, t, value=-1), False), False)
        return self._back(x)

    def _F(self, b: Tensor, transpose: bool) -> Tensor:
        return solve(self.A.values, b, self.A.pattern, Side(True, False, transpose))

    def _B(self, b: Tensor, transpose: bool) -> Tensor:
        return solve(self.V.values, b, self.V.pattern, Side(False, True, transpose))

    def _there(self, b: Tensor) -> Tensor:
        return b if self.order is None else self.order.there(b)

    def _back(self, x: Tensor) -> Tensor:
        return x if self.order is None else self.order.back(x)


Weight = float | Tensor


def jacobi_weights(weight: Any, sizes: Sequence[int], A: CSR) -> list[Weight] | None:
    """The checked weights, one per level of these sizes except the coarsest; None if none is given."""
    if weight is None:
        return None
    count = max(len(sizes) - 1, 0)
    several = isinstance(weight, (list, tuple))
    weights = list(weight) if several else [weight] * max(count, 1)  # checked even on a single level
    if several and len(weights) != count:
        raise ValueError(
            f"AMG: weight must be one, or one for each of the {count} levels but the coarsest, got "
            f"{len(weights)}"
        )
    for level, w in enumerate(weights):
        if not isinstance(w, Tensor):
            if not 0 < checks.number("AMG", "weight", w) < float("inf"):
                raise _not_positive(level, w)
            continue
        checks.same_kind("AMG", "weight", w, A.values)
        n = (*sizes, A.shape[0])[level]
        if w.dim() and w.shape[-1] != n:
            raise ValueError(
                f"AMG: weight on level {level} must have shape () or (..., {n}), got {tuple(w.shape)}"
            )
        if torch.compiler.is_dynamo_compiling() or isinstance(w, torch.nn.Parameter):
            continue  # training may move a parameter anywhere
        if type(w) is not Tensor or is_functorch_wrapped_tensor(w):
            continue
        good = (w.detach() > 0) & w.detach().isfinite()
        if not good.all():
            raise _not_positive(level, float(w.detach()[~good].reshape(-1)[0]))
    return weights[:count]


def _not_positive(level: int, value: Any) -> ValueError:
    return ValueError(
        f"AMG: weight on level {level} must be positive and finite, got {value}; give 2/3, or leave it out"
    )
