"""Smoothers of multigrid: one sweep is x <- x + S (b - A x), with S here.

Each has two halves, S before the coarse correction and its twin after it, which is its transpose where A is
symmetric: the cycle is symmetric then. `second` says which half, `transpose` asks for that half's transpose.

Source: Adams, Brezina, Hu, Tuminaro, "Parallel multigrid smoothing: polynomial versus Gauss-Seidel", J.
Comput. Phys. 188 (2003), doi:10.1016/S0021-9991(03)00194-3; Saad, "Iterative Methods for Sparse Linear
Systems" (2003), algorithm 12.1 (Chebyshev) and section 12.4 (multicolouring).
"""

import re
from typing import NamedTuple

import torch
from torch import Tensor

from learnsolve.csr import CSR
from learnsolve.ops._gather import permuted
from learnsolve.ops._product import product
from learnsolve.ops.indexing import _plan_permutation
from learnsolve.ops.sptrsv import sptrsv
from learnsolve.ops.structure import shared_inverse_diagonal
from learnsolve.ordering import greedy_colouring
from learnsolve.pattern import SparsityPattern


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
    """S = (D + L)^-1, and (D + U)^-1 for the second half, of the matrix whose rows stand colour by colour.

    Rows of a colour are not coupled, so each triangular solve has as many levels as there are colours.
    """

    def __init__(self, function: str, A: CSR):
        shared_inverse_diagonal(A, function)  # for its errors
        plan = A.pattern._planned(_plan_colours)
        self.A = CSR(permuted(A.values, plan.places, plan.places_back), plan.pattern)
        self.order, self.back = plan.order, plan.back
        self.function = function

    def __call__(self, r: Tensor, second: bool, transpose: bool) -> Tensor:
        r = permuted(r.mT, self.order, self.back).mT
        try:
            z = sptrsv(self.A, r, lower=not second, transpose=transpose)
        except ValueError as error:
            raise ValueError(re.sub("^sptrsv", self.function, str(error))) from error
        return permuted(z.mT, self.back, self.order).mT


class _Colours(NamedTuple):
    pattern: SparsityPattern  # rows and columns colour by colour
    places: Tensor  # of its entries among those of the original
    places_back: Tensor
    order: Tensor
    back: Tensor


def _plan_colours(P: SparsityPattern) -> _Colours:
    order = greedy_colouring(P).rows.long()
    plan, back = _plan_permutation(P, order, order)
    assert plan.pattern is not None
    assert plan.at is not None
    return _Colours(plan.pattern, plan.at, back, order, torch.argsort(order))
