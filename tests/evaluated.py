"""Matrices of the tests of `evaluate`, and a preconditioner that it refuses."""

import numpy as np
import scipy.sparse
import torch

import learnsolve as ls

F64 = torch.float64
Jacobi = ls.preconditioners.Jacobi


def stretched(n: int = 80, seed: int = 0) -> ls.CSR:
    """Positive definite, its rows and columns scaled at random: Jacobi has something to do. Not so much that
    cg needs more than n iterations: then rounding, which differs between libraries, decides on their number.
    """
    rng = np.random.default_rng(seed)
    S = scipy.sparse.random_array((n, n), density=0.05, rng=rng)
    S = S + S.T + scipy.sparse.diags_array(np.asarray(abs(S + S.T).sum(axis=1)) + 0.1)
    d = scipy.sparse.diags_array(10 ** rng.uniform(-0.3, 0.3, n))
    return ls.CSR.from_scipy(scipy.sparse.csr_array(d @ S @ d))


MATRICES = {
    "poisson 1D": lambda: ls.problems.poisson((60,)),
    "poisson 2D": lambda: ls.problems.poisson((25, 25)),
    "poisson 3D": lambda: ls.problems.poisson((9, 9, 9)),
    "q1": lambda: ls.problems.poisson((20, 20), stencil="q1"),
    "anisotropic": lambda: ls.problems.anisotropic((20, 20), 0.05, 0.4),
    "diffusion": lambda: ls.problems.diffusion(
        10 ** torch.linspace(-1, 1, 400, dtype=F64).reshape(20, 20).sin()
    ),
    "stretched": stretched,
    "other": lambda: stretched(150, seed=1),
}


class Skew(ls.preconditioners.Preconditioner):
    """Not symmetric, and says so."""

    def __init__(self, A):
        self.shape, self.depends_on = A.shape, (A.values,)

    def _columns(self, R):
        return R
