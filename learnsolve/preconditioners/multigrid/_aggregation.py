"""Smoothed aggregation from pyamg's parts.

`pyamg.smoothed_aggregation_solver` starts its eigenvalue estimates with NumPy's global random numbers: two
calls give two hierarchies, and a seed for them would be seen by other threads. Here the estimates start with
numbers of their own; all else is pyamg's default, and with the seed 0 for both the result has the same bits.

Source: Vanek, Mandel, Brezina, "Algebraic multigrid by smoothed aggregation for second and fourth order
elliptic problems", Computing 56 (1996), doi:10.1007/BF02238511.
"""

from typing import Any

import numpy as np

OMEGA = 4 / 3  # of the Jacobi step that smooths a prolongation
# The relaxation of the constant vector on the finest level.
RELAXATION = ("block_gauss_seidel", {"sweep": "symmetric", "iterations": 4})


def smoothed_aggregation(A: Any, symmetric: bool, max_levels: int, max_coarse: int) -> list[tuple[Any, Any]]:
    """(prolongation, restriction) of each level but the coarsest, for a SciPy matrix with a nonzero diagonal.

    A restriction is the transpose of the prolongation if A is `symmetric`, or else of A^T's.
    """
    from pyamg.aggregation import fit_candidates, standard_aggregation
    from pyamg.relaxation.utils import relaxation_as_linear_operator
    from pyamg.strength import symmetric_strength_of_connection

    rng = np.random.RandomState(0)
    transfers: list[tuple[Any, Any]] = []
    nullspaces = [np.ones((A.shape[0], 1), A.dtype)] * (1 if symmetric else 2)  # of A, and of A^T
    while len(transfers) < max_levels - 1 and A.shape[0] > max_coarse:
        matrices = [A] if symmetric else [A, A.T.tocsr()]
        aggregates, _ = standard_aggregation(symmetric_strength_of_connection(A))
        smoothed = []
        for side, S in enumerate(matrices):
            B = nullspaces[side]
            if not transfers:
                B = relaxation_as_linear_operator(RELAXATION, S, np.zeros((S.shape[0], 1), S.dtype)) @ B
            T, nullspaces[side] = fit_candidates(aggregates, B)
            smoothed.append(_smoothed(S, T, rng))
        P, R = smoothed[0], smoothed[-1].T
        transfers.append((P, R))
        A = (R @ A @ P).tocsr()
    return transfers


def _smoothed(A: Any, T: Any, rng: np.random.RandomState) -> Any:
    """(I - omega / rho(D^-1 A) D^-1 A) T."""
    from pyamg.util.linalg import approximate_spectral_radius
    from pyamg.util.utils import get_diagonal, scale_rows

    S = scale_rows(A, get_diagonal(A, inv=True), copy=True)
    start = rng.rand(A.shape[0], 1)
    radius: Any = approximate_spectral_radius(S.astype(np.float64), initial_guess=start)
    return T - (OMEGA / radius * S) @ T
