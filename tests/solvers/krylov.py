"""What the tests of the Krylov methods share."""

import inspect

import numpy as np
import torch
from reference import normal

import learnsolve as ls
from learnsolve.solvers.options import KRYLOV

S = ls.solvers
SQUARE = KRYLOV
SYMMETRIC = tuple(
    name for name in SQUARE if "adjoint_M" not in inspect.signature(getattr(S, name)).parameters
)
ANY = tuple(name for name in SQUARE if name not in SYMMETRIC)
RECTANGULAR = ("lsqr", "lsmr")
MODES = ("implicit", "unrolled", "checkpointed")


def poisson(nx: int = 4, ny: int = 4) -> ls.CSR:
    return ls.problems.poisson((nx, ny))


def convection(nx: int, ny: int, speed: float = 0.4) -> ls.CSR:
    """Poisson's matrix and centered differences of a wind: not symmetric."""
    import scipy.sparse

    A = poisson(nx, ny).to_scipy()
    n = A.shape[0]
    wind = scipy.sparse.diags_array([np.full(n - 1, speed), np.full(n - 1, -speed)], offsets=[1, -1])
    return ls.CSR.from_scipy(scipy.sparse.csr_array(A + wind))


def tall(m: int = 8, n: int = 5) -> ls.CSR:
    return ls.CSR.from_dense(normal((m, n), seed=3))


def run(name: str, A, b, x0=None, tol: float = 1e-12, **keywords) -> ls.solvers.Solution:
    """Any of the methods, to a tolerance."""
    key = {"rtol": tol} if name in SQUARE else {"atol": tol, "btol": tol}
    return getattr(S, name)(A, b, x0, **{**key, **keywords})


def matrix(name: str) -> ls.CSR:
    return poisson() if name in SYMMETRIC else convection(4, 4) if name in ANY else tall()


def dense_solution(name: str, D: torch.Tensor, b: torch.Tensor, damp: float = 0.0) -> torch.Tensor:
    if name in SQUARE:
        return torch.linalg.solve(D, b)
    N = D.mT @ D + damp**2 * torch.eye(D.shape[-1], dtype=D.dtype)
    return torch.linalg.solve(N, D.mT @ b)
