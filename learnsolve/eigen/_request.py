"""A call of `eigsh` for one matrix, and the choice of its method."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.product import product

DENSE = 256  # up to this n all pairs of the dense matrix take milliseconds


@dataclass
class Request:
    """A call of `eigsh` for one matrix, checked; A and B without a graph."""

    name: str
    A: CSR
    B: CSR | None
    k: int
    which: str | float
    M: Any
    method: str
    rtol: float | None
    maxiter: int | None
    throw: bool

    @property
    def methods(self) -> dict[str, Callable[[Request], Any]]:
        """Methods of its own."""
        return {}

    def choice(self) -> tuple[str, str]:
        """The method and the reason."""
        if isinstance(self.which, str) and self.method != "dense" and self.norm == 0:
            return "lobpcg", "A is zero"  # of which Lanczos's method makes no second vector
        if self.method != "auto":
            return self.method, "as requested"
        if self.M is not None:
            return "lobpcg", "for M"
        n = self.A.shape[0]
        if n <= DENSE:
            return "dense", f"n is at most {DENSE}"
        if 3 * self.k > n:
            return "dense", "3 k > n"
        if not self.A.values.is_cpu and isinstance(self.which, str):
            return "lobpcg", "on a device"
        return "arpack", "on the host"

    def times_A(self, X: Tensor) -> Tensor:
        return product(self.A.values, X, self.A.pattern, False)

    def times_B(self, X: Tensor) -> Tensor:
        return X if self.B is None else product(self.B.values, X, self.B.pattern, False)

    def in_double(self) -> Request:
        """The request on the host in float64."""

        def moved(A: CSR) -> CSR:
            return A.to("cpu", torch.float64)

        B = None if self.B is None else moved(self.B)
        return replace(self, A=moved(self.A), B=B)

    def sizes(self, values: Tensor, U: Tensor) -> Tensor:
        """The norms of |A| |u| + (|lambda| + s) |B| |u|, with s the smallest size of a row of A: rounding
        errors in A u - lambda B u, and in u, are a few units of roundoff of these. A huge entry in a row
        where u is tiny does not count, as it would in a norm of A; s does where lambda is zero."""
        X = U.abs()
        BX = X if self.B is None else product(self.B.values.abs(), X, self.B.pattern, False)
        scale = values.abs() + self._size(self.quotients)
        return (product(self.A.values.abs(), X, self.A.pattern, False) + scale * BX).norm(dim=0)

    @functools.cached_property
    def quotients(self) -> Tensor:
        """|a_ii| / b_ii, in ascending order."""
        quotients = self.A.diagonal().abs()
        return (quotients if self.B is None else quotients / self.B.diagonal()).sort().values

    def _size(self, quotients: Tensor) -> float:
        """The first of them that is not zero."""
        positive = quotients[quotients > 0]
        return float(positive[0]) if len(positive) else self.norm

    @functools.cached_property
    def sought(self) -> float:
        """The size of the k smallest values, if A is positive semidefinite: of the k-th smallest quotient
        a_ii / b_ii, or the next that is not zero. Of the k largest: of the k-th largest, or one before."""
        return self._size(self.quotients[-self.k if self.which == "largest" else self.k - 1 :])

    @functools.cached_property
    def norm(self) -> float:
        """The size of A in the maximum norm, in units of eigenvalues."""
        ones = self.A.values.new_ones(self.A.shape[1])
        largest = float(product(self.A.values.abs(), ones, self.A.pattern, False).max())
        return largest if self.B is None else largest / max(float(self.B.diagonal().mean()), 1e-300)
