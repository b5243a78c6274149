"""The table of preconditioners. The contract of test_preconditioner_contract.py runs for each row."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy.sparse
import torch

import learnsolve as ls

P = ls.preconditioners
T = P.Trainable


@dataclass(frozen=True)
class Case:
    """make(A) builds the preconditioner of a CSR."""

    name: str
    make: Callable[[ls.CSR], P.Preconditioner]
    matrix: str = "spd"  # or "general": what A it is tried with
    batched: bool = True  # takes A.values of shape (B, nnz)
    differentiable: bool = True  # in A's values; of a Trainable: in its parameters
    positive: bool = True  # a symmetric M is positive definite for an A that is


CASES = [
    Case("Jacobi", P.Jacobi),
    Case("Jacobi, general", P.Jacobi, matrix="general"),
    # learned: batches of matrices become batches of parameters
    # with parameters: batches of matrices become batches of them
    Case("learned FSAI", lambda A: T(P.FSAI(A))),
    Case("learned FSAI, two rings", lambda A: T(P.FSAI(A, pattern=two_rings(A)))),
    Case("learned product, tril(A)", lambda A: T(P.FactorPreconditioner(A.tril(), form="product"))),
    Case("learned product, bidiagonal", lambda A: T(bidiagonal(A)), batched=False),
    Case(
        "learned product, exp", lambda A: T(P.FactorPreconditioner(A.tril(), form="product"), positive="exp")
    ),
    Case(
        "learned product, not triangular",
        lambda A: T(P.FactorPreconditioner(A, form="product")),
        matrix="general",
    ),
    Case("learned product of two", lambda A: T(two_factors(A)), matrix="general"),
    Case(
        "learned product and shift",
        lambda A: T(P.FactorPreconditioner(0.1 * A, form="product", shift=shift_of(A)), learn=("L", "shift")),
    ),
    Case("learned IC", lambda A: T(P.IC(A))),
    Case("learned IC, exp", lambda A: T(P.IC(A), positive="exp")),
    Case("learned MIC, softplus", lambda A: T(P.MIC(A), positive="softplus")),
    Case("learned ILU, exp", lambda A: T(P.ILU(A), positive="exp"), matrix="general"),
    Case("learned ILU, U alone", lambda A: T(P.ILU(A), learn=("U",)), matrix="general"),
    Case("learned Diagonal", lambda A: T(P.Diagonal(1.3 / A.diagonal()), positive="exp")),
    Case("learned Jacobi", lambda A: T(P.Jacobi(A))),
    Case("learned Jacobi, exp", lambda A: T(P.Jacobi(A, 1.5), positive="exp"), matrix="general"),
    Case("learned Jacobi, softplus", lambda A: T(P.Jacobi(A), positive="softplus")),
    Case("learned Neumann series", lambda A: T(P.Polynomial.neumann(A, 2))),
    Case("learned Neumann series, general", lambda A: T(P.Polynomial.neumann(A, 3)), matrix="general"),
    Case("learned Chebyshev", lambda A: T(P.Polynomial.chebyshev(A, 3)), batched=False),  # one interval
    Case("learned Chebyshev, general", lambda A: T(chebyshev(A)), matrix="general"),
    Case(
        "learned interval",
        lambda A: T(chebyshev(A), learn=("coefficients", "interval")),
        matrix="general",
    ),
    Case("learned SPAI", lambda A: T(P.SPAI(A)), matrix="general"),
    Case("FSAI", P.FSAI),
    Case("FSAI, two rings", lambda A: P.FSAI(A, pattern=two_rings(A))),
    Case(
        "Jacobi, weights", lambda A: P.Jacobi(A, torch.linspace(0.5, 2, 20, dtype=A.dtype, device=A.device))
    ),
    Case("Factorization", ls.factorize),
    Case("Factorization, general", ls.factorize, matrix="general"),
    # of values with a graph
    Case("Diagonal", lambda A: P.Diagonal(1.3 / ls.ops.diagonal(A))),
    Case("factors", lambda A: P.FactorPreconditioner(ls.ops.ic(A).L)),
    Case("factors, LU", lambda A: P.FactorPreconditioner(*ls.ops.ilu(A)[:2]), matrix="general"),
    Case(
        "factors, LU without ones",
        lambda A: P.FactorPreconditioner(*without_ones(A)),
        matrix="general",
    ),
    Case("factors, product", lambda A: P.FactorPreconditioner(0.1 * A.tril(), form="product")),
    Case(
        "factors, shifted product",
        lambda A: P.FactorPreconditioner(0.1 * A, form="product", shift=0.3),
    ),
    Case(
        "factors, rectangular",
        lambda A: P.FactorPreconditioner(0.1 * A[:, :7], form="product", shift=shift_of(A)),
    ),
    Case("factors, product of two", lambda A: two_factors(A), matrix="general"),
    Case("Polynomial", lambda A: P.Polynomial(A, coefficients_of(A), interval=(0.0, 2.0))),
    Case("Polynomial of IC", lambda A: P.Polynomial(A, [3.0, -3.0, 1.0], M=P.IC(A))),
    Case("Polynomial, M=None", lambda A: P.Polynomial(A, [0.2, -0.01], M=None), matrix="general"),
    Case("SPAI", P.SPAI),
    Case("SPAI, left", lambda A: P.SPAI(A, side="left"), matrix="general"),
    Case("IC", P.IC),
    Case("IC, shifted", lambda A: P.IC(A, shift=0.1)),
    Case("MIC", lambda A: P.MIC(A, shift=0.01)),
    Case("MIC, relaxed", lambda A: P.MIC(A, omega=0.9)),
    Case("ILU", P.ILU),
    Case("ILU, general", P.ILU, matrix="general"),
    Case("IC(1)", lambda A: P.IC(A, level=1)),
    Case("ILU(1)", lambda A: P.ILU(A, level=1), matrix="general"),
    Case("ICT", lambda A: P.ICT(A, max_fill=1), batched=False),
    Case("ILUT", lambda A: P.ILUT(A, max_fill=0, drop_tol=0.12), batched=False),
    Case("ILUT, not symmetric", lambda A: P.ILUT(A, max_fill=0, drop_tol=0.2), batched=False),
    Case("ILUT, general", lambda A: P.ILUT(A, max_fill=1), matrix="general", batched=False),
    Case("BlockJacobi", lambda A: P.BlockJacobi(A, 4)),
    Case("BlockJacobi, one unknown", lambda A: P.BlockJacobi(A, 1), matrix="general"),
    Case("BlockJacobi, general", lambda A: P.BlockJacobi(A, 3), matrix="general"),
    Case("BlockJacobi, labels", lambda A: P.BlockJacobi(A, blocks=_labels(A))),
    Case("SOR", P.SOR),
    Case("SOR, backward", lambda A: P.SOR(A, 1.3, direction="backward"), matrix="general"),
    Case("SOR, multicolor", lambda A: P.SOR(A, 1.3, multicolor=True)),
    Case("SSOR", P.SSOR),
    Case("SSOR, omega", lambda A: P.SSOR(A, 1.4)),
    Case("SSOR, multicolor", lambda A: P.SSOR(A, 0.7, multicolor=True)),
    Case("SSOR, general", lambda A: P.SSOR(A, 1.2), matrix="general"),
    Case("Chebyshev", lambda A: P.Chebyshev(A, lmin=0.2, lmax=2.1, degree=3)),
    Case("Chebyshev, estimated", P.Chebyshev, differentiable=False),  # the estimate is a constant
    Case(
        "Chebyshev, unscaled",
        lambda A: P.Chebyshev(A, lmin=0.5, lmax=30.0, degree=2, M=None),
        matrix="general",
    ),
    Case("Chebyshev of SSOR", lambda A: P.Chebyshev(A, lmin=0.2, lmax=1.1, degree=1, M=P.SSOR(A))),
    Case("Chebyshev of SOR", lambda A: P.Chebyshev(A, lmin=0.2, lmax=1.1, degree=1, M=P.SOR(A))),
    Case("Neumann", lambda A: P.Neumann(A, degree=2)),
    Case("Neumann, weighted", lambda A: P.Neumann(A, degree=1, weight=0.7), matrix="general"),
    Case("Neumann of IC", lambda A: P.Neumann(A, degree=1, weight=0.9, M=P.IC(A))),
]


def spd(side: int = 4) -> ls.CSR:
    """Anisotropic, so that no two rows of a preconditioner are alike by symmetry."""
    S = ls.problems.poisson((side, side + 1)).to_scipy()
    d = scipy.sparse.diags_array(1 + np.linspace(0, 1, S.shape[0]))
    return ls.CSR.from_scipy(scipy.sparse.csr_array(d @ S @ d))


def general(side: int = 4) -> ls.CSR:
    """With a wind: not symmetric, its pattern is."""
    A = spd(side)
    rows, cols = A.pattern.row_indices, A.col_indices
    return A.with_values(A.values + 0.3 * (cols - rows).sign().to(A.dtype))


def dense(M: P.Preconditioner) -> torch.Tensor:
    """The matrix that M applies."""
    return M(torch.eye(M.shape[0], dtype=M.dtype, device=M.device)).detach()


def matrix(case: Case) -> ls.CSR:
    return spd() if case.matrix == "spd" else general()


def two_rings(A: ls.CSR) -> ls.SparsityPattern:
    return P.lower_pattern(A, power=2)


def bidiagonal(A: ls.CSR) -> P.FactorPreconditioner:
    return P.FactorPreconditioner.bidiagonal(A.shape[0], dtype=A.dtype, device=A.device)


def chebyshev(A: ls.CSR) -> P.Polynomial:
    return P.Polynomial.chebyshev(A, 2, lmin=0.1, lmax=2.5)


def without_ones(A: ls.CSR) -> tuple[ls.CSR, ls.CSR]:
    factors = ls.ops.ilu(A)
    return factors.L.tril(-1), factors.U


def shift_of(A: ls.CSR) -> torch.Tensor:
    """One number a matrix of the batch."""
    return 0.02 * A.diagonal().sum(-1)


def two_factors(A: ls.CSR) -> P.FactorPreconditioner:
    return P.FactorPreconditioner(0.1 * A.tril()[:, :17], 0.2 * A.triu()[:17], form="product", shift=0.3)


def coefficients_of(A: ls.CSR) -> torch.Tensor:
    """Coefficients, of each matrix of the batch its own, with a graph."""
    return torch.stack([1 / A.diagonal().mean(-1), -0.01 * A.sum().squeeze(-1).tanh()], -1)


def _labels(A: ls.CSR) -> list[int]:
    """Blocks of 1, 2, 3, ... unknowns, which do not lie together."""
    n = A.shape[0]
    labels = [block for block in range(n) for _ in range(block + 1)][:n]
    return [10 * labels[(7 * i) % n] for i in range(n)]


def amg(A: ls.CSR, method: str = "smoothed_aggregation", **options) -> Callable[[ls.CSR], P.Preconditioner]:
    """With the hierarchy of A for all: a batch is a loop then, and differences are those of the gradient."""
    hierarchy = cache(
        lambda: P.AMG(A, method=method, max_coarse=1, smoother="jacobi").hierarchy
    )  # with radii
    return lambda A: P.AMG(A, hierarchy=hierarchy().to(A.device, A.dtype), **options)


def robin(A: ls.CSR, n_subdomains: int) -> ls.CSR:
    """Interface values made of A's: a part of the diagonal, less with distance from it."""
    pattern = P.learned.interface_pattern(A, n_subdomains=n_subdomains)
    weight = 0.1 - 0.05 * (pattern.row_indices != pattern.col_indices).to(A.dtype)
    return ls.CSR(A.diagonal().mean(-1, keepdim=True) * weight, pattern)


_JACOBI = amg(spd(), smoother="jacobi")
CASES += [
    Case("AMG", amg(spd())),
    Case("AMG, classical", amg(spd(), "ruge_stuben", presweeps=2, postsweeps=2, weight=0.6)),
    Case("AMG, F", amg(spd(), "ruge_stuben", cycle="F")),
    Case("AMG, Chebyshev", amg(spd(), smoother="chebyshev")),
    Case("AMG, Jacobi", _JACOBI),
    Case("AMG, general, W", amg(general(), cycle="W", presweeps=2), matrix="general"),
    Case("AMG, general, Jacobi", amg(general(), smoother="jacobi"), matrix="general"),
    Case("learned AMG", lambda A: T(_JACOBI(A))),
    Case("learned AMG, exp", lambda A: T(_JACOBI(A), learn=("weights",), positive="exp")),
    Case("Schwarz", lambda A: P.AdditiveSchwarz(A, n_subdomains=3)),
    Case("Schwarz, two levels", lambda A: P.AdditiveSchwarz(A, n_subdomains=3, overlap=2, coarse=True)),
    Case("Schwarz, Robin values", lambda A: P.AdditiveSchwarz(A, n_subdomains=3, local=robin(A, 3))),
    Case(
        "Schwarz, restricted on both sides",
        lambda A: P.AdditiveSchwarz(A, n_subdomains=3, restricted="symmetric", local=robin(A, 3)),
    ),
    Case("Schwarz, restricted", lambda A: P.AdditiveSchwarz(A, n_subdomains=4, restricted=True)),
    Case(
        "Schwarz, general",
        lambda A: P.AdditiveSchwarz(A, [range(9), range(7, 20)], restricted=True, coarse=True),
        matrix="general",
    ),
]
