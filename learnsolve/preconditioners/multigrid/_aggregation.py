"""Smoothed aggregation, one level after another.

Source: Vanek, Mandel, Brezina, "Algebraic multigrid by smoothed aggregation for second and fourth order
elliptic problems", Computing 56 (1996), doi:10.1007/BF02238511.
"""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import as_numpy
from learnsolve.preconditioners.multigrid._level import Levels, Step, arrays, coarsened, like, spectral_radius

OMEGA = 4 / 3  # of the Jacobi step that smooths a prolongation


def smoothed_aggregation(
    A: CSR,
    symmetric: bool,
    max_levels: int,
    max_coarse: int,
    strength: Callable[[CSR], CSR] | None = None,
    theta: float = 0.0,
    candidates: Tensor | None = None,
    block: int = 1,
) -> Levels:
    """The levels of A. A restriction is the transpose of the prolongation if A is `symmetric`, or else of
    A^T's. `strength` gives the matrix, on A's pattern, whose entries say what is strong; A if not given."""
    B = np.ones((A.shape[0], 1)) if candidates is None else as_numpy(candidates.detach().double())
    bases, size = [B] * (1 if symmetric else 2), block  # of A, and of A^T

    def step(A: CSR, number: int) -> Step | None:
        nonlocal bases, size
        of, count = _analysis.aggregate(*arrays(A if strength is None else strength(A)), size, theta)
        columns = count * bases[0].shape[1]
        if not 0 < columns < A.shape[0]:
            return None
        radius = spectral_radius(A, symmetric)
        sides = []
        for side, S in enumerate((A,) if symmetric else (A, A.T)):
            T = bases[side].copy()
            bases[side] = _analysis.orthonormalize(of, size, count, T)
            made = _analysis.smoothed_prolongation(*arrays(S), of, size, count, T, OMEGA / radius)
            sides.append(like(A, made, columns))
        size = bases[0].shape[1]
        return Step(sides[0], None if symmetric else sides[1].T, radius)

    return coarsened(A, max_levels, max_coarse, step)
