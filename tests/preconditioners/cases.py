"""The table of preconditioners. A row buys the contract of test_preconditioner_contract.py."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import scipy.sparse
import torch

import learnsolve as ls

P = ls.preconditioners


@dataclass(frozen=True)
class Case:
    """make(A) builds the preconditioner of a CSR."""

    name: str
    make: Callable[[ls.CSR], P.Preconditioner]
    matrix: str = "spd"  # or "general": what A it is tried with
    batched: bool = True  # takes A.values of shape (B, nnz)
    differentiable: bool = True  # in A's values; of a Learned: in its parameters
    positive: bool = True  # a symmetric M is positive definite for an A that is


CASES = [
    Case("Jacobi", P.Jacobi),
    Case("Jacobi, general", P.Jacobi, matrix="general"),
]


def spd(side: int = 4) -> ls.CSR:
    """Anisotropic, so that no two rows of a preconditioner are alike by symmetry."""
    S = ls.problems.poisson((side, side + 1)).to_scipy()
    d = scipy.sparse.diags_array(1 + torch.linspace(0, 1, S.shape[0], dtype=torch.float64).numpy())
    return ls.CSR.from_scipy(scipy.sparse.csr_array(d @ S @ d))


def general(side: int = 4) -> ls.CSR:
    """With a wind: not symmetric, its pattern is."""
    A = spd(side)
    rows, cols = A.pattern.row_indices, A.col_indices
    return A.with_values(A.values + 0.3 * (cols - rows).sign().to(A.dtype))


def amg(A: ls.CSR, method: str = "smoothed_aggregation", **options) -> Callable[[ls.CSR], P.Preconditioner]:
    """With the hierarchy of A for all: a batch is a loop then, and differences are those of the gradient."""
    hierarchy = cache(lambda: P.AMG(A, method=method, max_coarse=1).hierarchy)
    return lambda A: P.AMG(A, hierarchy=hierarchy().to(dtype=A.dtype), **options)


def matrix(case: Case) -> ls.CSR:
    return spd() if case.matrix == "spd" else general()


_AMG = amg(spd())
CASES += [
    Case("AMG", _AMG),
    Case("AMG, classical", amg(spd(), "ruge_stuben", presweeps=2, postsweeps=2, weight=0.6)),
    Case("AMG, F", amg(spd(), "ruge_stuben", cycle="F")),
    Case("AMG, Chebyshev", amg(spd(), smoother="chebyshev")),
    Case("AMG, Gauss-Seidel", amg(spd(), smoother="gauss_seidel")),
    Case("AMG, general, W", amg(general(), cycle="W", presweeps=2), matrix="general"),
    Case("AMG, general, Gauss-Seidel", amg(general(), smoother="gauss_seidel"), matrix="general"),
    Case("AMG, learned", lambda A: P.LearnedAMG(_AMG(A))),
    Case("Schwarz", lambda A: P.AdditiveSchwarz(A, n_subdomains=3)),
    Case("Schwarz, two levels", lambda A: P.AdditiveSchwarz(A, n_subdomains=3, overlap=2, coarse=True)),
    Case("Schwarz, restricted", lambda A: P.AdditiveSchwarz(A, n_subdomains=4, restricted=True)),
    Case(
        "Schwarz, general",
        lambda A: P.AdditiveSchwarz(A, [range(9), range(7, 20)], restricted=True, coarse=True),
        matrix="general",
    ),
]
