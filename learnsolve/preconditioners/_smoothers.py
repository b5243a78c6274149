"""Smoothers of multigrid: one sweep is x <- x + S (b - A x), with S here.

Each has two halves, S before the coarse correction and its twin after it, which is its transpose where A is
symmetric: the cycle is symmetric then. `second` selects the half, `transpose` the transpose of that half.

Source: Adams, Brezina, Hu, Tuminaro, "Parallel multigrid smoothing: polynomial versus Gauss-Seidel", J.
Comput. Phys. 188 (2003), doi:10.1016/S0021-9991(03)00194-3; Saad, "Iterative Methods for Sparse Linear
Systems" (2003), algorithm 12.1 (Chebyshev) and section 12.4 (multicolouring).
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops._product import product
from learnsolve.ops.structure import shared_inverse_diagonal
from learnsolve.preconditioners._relaxation import Sweep


class Jacobi:
    """S = w D^-1, w a number or one a row."""

    def __init__(self, function: str, A: CSR, weight: float | Tensor):
        self.scale = (weight * shared_inverse_diagonal(A, function)).unsqueeze(-1)

    def __call__(self, r: Tensor, second: bool, transpose: bool) -> Tensor:
        return self.scale * r


class Chebyshev:
    """S = p(D^-1 A) D^-1: `degree` steps of the Chebyshev iteration from zero, for eigenvalues of D^-1 A
    between rho / 30 and 1.1 rho."""

    def __init__(self, function: str, A: CSR, radius: float, degree: int):
        self.A, self.degree = A, degree
        self.inverse = shared_inverse_diagonal(A, function).unsqueeze(-1)
        low, high = radius / 30, 1.1 * radius
        self.centre, self.half_width = (high + low) / 2, (high - low) / 2

    def __call__(self, r: Tensor, second: bool, transpose: bool) -> Tensor:
        # With the transpose p(D^-1 A^T) D^-1 = (p(D^-1 A) D^-1)^T: D^-1 A^T D^-1 is that of D^-1 A D^-1.
        sigma = self.centre / self.half_width
        x = d = self.inverse * r / self.centre
        rho = 1 / sigma
        for _ in range(self.degree - 1):
            r = r - product(self.A.values, d, self.A.pattern, transpose)
            rho_old, rho = rho, 1 / (2 * sigma - rho)
            d = rho * rho_old * d + (2 * rho / self.half_width) * (self.inverse * r)
            x = x + d
        return x


class GaussSeidel:
    """S = (D + L)^-1, and (D + U)^-1 for the second half, of the matrix whose rows are ordered by colour.

    Rows of a colour are not coupled, so each triangular solve has as many levels as there are colours.
    """

    halves = Sweep("forward", True), Sweep("backward", True)

    def __init__(self, function: str, A: CSR):
        shared_inverse_diagonal(A, function)  # for its errors
        self.T, self.pattern, self.function = self.halves[0].system(A, 1.0), A.pattern, function

    def __call__(self, r: Tensor, second: bool, transpose: bool) -> Tensor:
        try:
            # int: torch.compile before torch 2.12 refuses a bool as an index
            return self.halves[int(second)].apply(self.T, self.pattern, 1.0, r, transpose)
        except ValueError as error:
            raise ValueError(re.sub("^sptrsv", self.function, str(error))) from error


Weight = float | Tensor


def jacobi_weights(weight: Any, sizes: Sequence[int], A: CSR) -> list[Weight] | None:
    """Checked: one for each of the levels of these sizes, all but the coarsest; None if none is given."""
    if weight is None:
        return None
    count = max(len(sizes) - 1, 0)
    several = isinstance(weight, (list, tuple))
    weights = list(weight) if several else [weight] * max(count, 1)  # checked on a single level too
    if several and len(weights) != count:
        raise ValueError(
            f"AMG: weight must be one, or one for each of the {count} levels but the coarsest, got "
            f"{len(weights)}"
        )
    for level, w in enumerate(weights):
        if not isinstance(w, Tensor):
            if not 0 < _check.number("AMG", "weight", w) < float("inf"):
                raise _not_positive(level, w)
            continue
        _check.same_kind("AMG", "weight", w, A.values)
        n = (*sizes, A.shape[0])[level]
        if w.shape not in ((), (n,)):
            raise ValueError(
                f"AMG: weight on level {level} must have shape () or ({n},), got {tuple(w.shape)}"
            )
        if isinstance(w, torch.nn.Parameter) or type(w) is not Tensor or is_functorch_wrapped_tensor(w):
            continue  # training may move a parameter anywhere
        good = (w.detach() > 0) & w.detach().isfinite()
        if not torch.compiler.is_dynamo_compiling() and not good.all():
            raise _not_positive(level, float(w.detach()[~good].reshape(-1)[0]))
    return weights[:count]


def _not_positive(level: int, value: Any) -> ValueError:
    return ValueError(
        f"AMG: weight on level {level} must be positive and finite, got {value}; give 2/3, or leave it out"
    )
