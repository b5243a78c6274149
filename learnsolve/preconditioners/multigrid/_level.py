"""One level of a hierarchy, for the analysis of csrc/analysis/multigrid.cpp, and the step to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from learnsolve import _analysis
from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import as_numpy
from learnsolve.matrix.plain import plain_tensors
from learnsolve.ops.core.operands import plain_values
from learnsolve.ops.diagonal import shared_inverse_diagonal
from learnsolve.ops.spgemm import galerkin, spgemm
from learnsolve.preconditioners.base import check_finite


class Step(NamedTuple):
    """From one level to the next: prolongation, restriction if it is not the transpose, rho(D^-1 A) if
    known."""

    P: CSR
    R: CSR | None = None
    radius: float | None = None


class Levels(NamedTuple):
    steps: list[Step]
    operators: list[CSR]  # A and the coarse matrices: one more than steps


def coarsened(
    function: str, A: CSR, max_levels: int, max_coarse: int, step: Callable[[CSR], Step | None]
) -> Levels:
    """The levels of the `mean` of A, by `step(matrix)`, which is None if there is nothing to coarsen."""
    found = Levels([], [mean(function, A)])
    with plain_tensors():
        while len(found.operators) < max_levels and (A := found.operators[-1]).shape[0] > max_coarse:
            level = f"{function}, level {len(found.steps)}" if found.steps else function
            check_finite(level, A)
            shared_inverse_diagonal(A, level)  # for its ValueError
            made = step(A)
            if made is None:
                break
            found.steps.append(made)
            found.operators.append(coarse_matrix(made.P, made.R, A))
    return found


def coarse_matrix(P: CSR, R: CSR | None, A: CSR) -> CSR:
    return galerkin(P, A) if R is None else spgemm(R, spgemm(A, P))


def mean(function: str, A: CSR) -> CSR:
    """The mean of a batch of square matrices, or the one matrix, without a graph."""
    checks.square(function, "A", A.shape)
    values = plain_values(A.values)
    if values.shape != A.values.shape:
        raise ValueError(
            f"{function}: inside torch.func.vmap there is not one matrix to analyze; make an AMG outside, "
            "and pass hierarchy=M.hierarchy"
        )
    with plain_tensors():
        return CSR(values.flatten(0, -2).mean(0) if values.dim() > 1 else values, A.pattern)


def arrays(A: CSR) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arrays of one matrix on the host, for the compiled functions."""
    P = A.pattern
    return as_numpy(P.crow_indices), as_numpy(P.col_indices), as_numpy(A.values.double())


def diagonal(A: CSR) -> np.ndarray:
    return as_numpy(A.diagonal().double())


def like(A: CSR, made: tuple[np.ndarray, np.ndarray, np.ndarray], columns: int) -> CSR:
    """A matrix with A's dtype and device from the result of a compiled function."""
    ptr, idx, values = (torch.from_numpy(a) for a in made)
    pattern = type(A.pattern)._trusted(ptr.to(A.device), idx.to(A.device), (len(ptr) - 1, columns))
    return CSR(values.to(A.device, A.dtype), pattern)


def spectral_radius(A: CSR, symmetric: bool) -> float:
    """An estimate of rho(D^-1 A) for the `mean` of A, at most the largest row sum of magnitudes.

    For a symmetric A with a positive diagonal, Lanczos's method in the inner product of D: the distance of an
    eigenvalue from its estimate is at most the residual, which is added so that smoothers do not diverge.
    Three steps for large matrices; more did not change iteration counts. Otherwise 30 steps of Arnoldi's
    method, accurate to about a percent.
    """
    A = mean("AMG", A)
    with plain_tensors():
        d = diagonal(A)
    if symmetric and (d > 0).all():
        H, k, bound = _analysis.arnoldi(*arrays(A), d, 15 if A.nnz < 2**16 else 3, True)
        ritz, Y = np.linalg.eigh(H[:k, :k], UPLO="L")
        return float(min(ritz[-1] + abs(H[k, k - 1] * Y[-1, -1]), bound))
    H, k, bound = _analysis.arnoldi(*arrays(A), d, 30, False)
    return float(min(abs(np.linalg.eigvals(H[:k, :k])).max(), bound))
