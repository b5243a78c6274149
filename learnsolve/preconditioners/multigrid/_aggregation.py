"""Smoothed aggregation, level by level.

Source: Vanek, Mandel, Brezina, "Algebraic multigrid by smoothed aggregation for second and fourth order
elliptic problems", Computing 56 (1996), doi:10.1007/BF02238511.
"""

import numpy as np
import torch

from learnsolve import _analysis
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import as_numpy
from learnsolve.preconditioners.multigrid._level import Levels, Step, arrays, coarsened, like, spectral_radius
from learnsolve.preconditioners.multigrid._strength import evolution

OMEGA = 4 / 3  # of the Jacobi step that smooths a prolongation
STRENGTHS = ("symmetric", "evolution")


def smoothed_aggregation(
    function: str,
    A: CSR,
    symmetric: bool,
    max_levels: int,
    max_coarse: int,
    *,
    strength: str = "symmetric",
    theta: float = 0.0,
    near_null: np.ndarray | None = None,
    block: int = 1,
) -> Levels:
    """The levels of A. A restriction is the transpose of the prolongation if A is `symmetric`, otherwise of
    the prolongation for A^T."""
    B = np.ones((A.shape[0], 1)) if near_null is None else near_null
    bases, size = [B] * (1 if symmetric else 2), block  # for A, and for A^T

    def step(A: CSR) -> Step | None:
        nonlocal bases, size
        radius, measured = None, A
        if strength == "evolution":
            radius = spectral_radius(A, symmetric)
            b = torch.from_numpy(bases[0][:, 0]).to(A.device, A.dtype)
            measured = evolution(A, b, radius)
        of, count = _analysis.aggregate(*arrays(measured), size, theta)
        columns = count * bases[0].shape[1]
        if not 0 < columns < A.shape[0]:
            return None
        radius = radius or spectral_radius(A, symmetric)
        sides = []
        for side, S in enumerate((A,) if symmetric else (A, A.T)):
            T = bases[side].copy()
            bases[side] = _analysis.orthonormalize(of, size, count, T)
            made = _analysis.smoothed_prolongation(*arrays(S), of, size, count, T, OMEGA / radius)
            sides.append(like(A, made, columns))
        size = bases[0].shape[1]
        return Step(sides[0], None if symmetric else sides[1].T, radius)

    return coarsened(function, A, max_levels, max_coarse, step)


def candidates(function: str, A: CSR, near_null: torch.Tensor) -> np.ndarray:
    """The checked near-null vectors."""
    if not isinstance(near_null, torch.Tensor):
        raise TypeError(
            f"{function}: near_null must be a tensor of shape (A.shape[0], k), got "
            f"{type(near_null).__name__}; torch.as_tensor makes one"
        )
    if near_null.dim() != 2 or near_null.shape[0] != A.shape[0] or near_null.shape[1] == 0:
        raise ValueError(
            f"{function}: near_null must have shape ({A.shape[0]}, k), k vectors as columns, got "
            f"{tuple(near_null.shape)}"
        )
    found = as_numpy(near_null.detach().double())
    if not np.isfinite(found).all():
        raise ValueError(f"{function}: near_null must be finite, it has an infinite or NaN entry")
    return np.ascontiguousarray(found)
