"""The learned preconditioner: pattern, form and initial value of its factor L, and a guard that keeps it
definite."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from learnsolve.analysis import spectral_radius
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.ops.spmm import spmm
from learnsolve.ops.sptrsv import sptrsv
from learnsolve.preconditioners import FSAI, IC0, Factored, Trainable, lower_pattern
from learnsolve.recipes.harness.settings import SettingError

if TYPE_CHECKING:
    from learnsolve.recipes.pcg.settings import PcgSettings

DIAGONAL, BELOW = 2.0, 0.1  # section 4.3: L = 2 I + 0.1 S
DENSE_LIMIT = 256  # unknowns up to which all eigenvalues take less time than a step
HALVINGS = 20


def pattern_of(A: CSR, name: str) -> SparsityPattern:
    """The pattern of L: the diagonal and the one below, tril(A), or tril(A^2)."""
    if name == "bidiagonal":
        return Factored.bidiagonal(A.shape[0], dtype=A.dtype, device=A.device).L.pattern
    return lower_pattern(A, power=2 if name == "two_ring" else 1)


def build(A: CSR, settings: PcgSettings) -> Trainable:
    """The module, at its start; SettingError if the matrix does not allow this start."""
    pattern = pattern_of(A, settings.pattern)
    try:
        if settings.form == "product":
            if settings.start == "fsai":
                return Trainable(FSAI(A.detach(), pattern=pattern))
            return Trainable(Factored.from_pattern(pattern, DIAGONAL, BELOW, A.dtype))
        if settings.start == "ic0":
            return Trainable(IC0(_restricted(A, pattern)), positive="exp")
        L = Factored.from_pattern(pattern, DIAGONAL, BELOW, A.dtype).L
        return Trainable(Factored(L), positive="exp")
    except ValueError as error:
        raise SettingError(
            f"--start {settings.start}: {' '.join(str(error).split())}; take --start paper"
        ) from error


def factor_of(model: Trainable) -> CSR:
    """The current L."""
    return model.L()


def _restricted(A: CSR, pattern: SparsityPattern) -> CSR:
    """The entries of A on another pattern; zeros where A has none."""
    rows, columns = (np.array(as_numpy(t)) for t in (pattern.row_indices, pattern.col_indices))
    values = np.asarray(A.to_scipy()[rows, columns]).reshape(-1)
    return CSR(torch.from_numpy(values).to(A.values), pattern)


@torch.no_grad()
def definiteness(L: CSR) -> float:
    """Smallest eigenvalue of L L^T over its largest, L lower triangular; 0 if it is not definite.

    In float64; the value is the same for (L L^T)^-1. All eigenvalues for small matrices, Arnoldi's method on
    the matrix and on its inverse for large ones.
    """
    L = L.detach().to(device="cpu", dtype=torch.float64)
    if not bool(torch.isfinite(L.values).all()) or bool((L.diagonal() == 0).any()):
        return 0.0
    n = L.shape[0]
    if n <= DENSE_LIMIT:
        D = L.to_dense()
        eigenvalues = torch.linalg.eigvalsh(D @ D.T)
        return max(float(eigenvalues[0] / eigenvalues[-1]), 0.0)

    def multiply(X: Tensor) -> Tensor:
        return spmm(L, spmm(L, X, transpose=True))

    def solve(X: Tensor) -> Tensor:
        return sptrsv(L, sptrsv(L, X), transpose=True)

    largest, inverse = (float(spectral_radius(f, n, rtol=0.05).value) for f in (multiply, solve))
    return 1 / (largest * inverse)


class Guard:
    """Keeps L L^T positive definite: an optimizer step after which it is not is halved until it is.

    Parameters
    ----------
    parameters : the parameters of the optimizer
    factor : function that returns the current L
    floor : smallest `definiteness` allowed after a step; 0 accepts every step

    Attributes
    ----------
    shortened : number of steps halved so far. If 20 halvings do not suffice, the step is undone.
    """

    def __init__(self, parameters: Iterable[Tensor], factor: Callable[[], CSR], floor: float):
        self._parameters, self._factor, self._floor = list(parameters), factor, floor
        self._before: list[Tensor] = []
        self.shortened = 0

    def holds(self) -> bool:
        return definiteness(self._factor()) >= self._floor

    def before(self) -> None:
        if self._floor:
            self._before = [p.detach().clone() for p in self._parameters]

    @torch.no_grad()
    def after(self) -> None:
        if not self._floor or self.holds():
            return
        self.shortened += 1
        steps = [p - old for p, old in zip(self._parameters, self._before, strict=True)]
        for halvings in range(1, HALVINGS + 1):
            self._set([old + step / 2**halvings for old, step in zip(self._before, steps, strict=True)])
            if self.holds():
                return
        self._set(self._before)

    def _set(self, values: list[Tensor]) -> None:
        for p, value in zip(self._parameters, values, strict=True):
            p.copy_(value)
