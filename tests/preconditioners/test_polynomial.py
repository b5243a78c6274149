"""Polynomials against dense formulas and against the theory of Neumann's and Chebyshev's."""

import math

import numpy as np
import pytest
import torch
from preconditioners.cases import general, spd
from reference import normal

import learnsolve as ls

P, T = ls.preconditioners.Polynomial, ls.preconditioners.Trainable


def parts(A: ls.CSR) -> tuple[torch.Tensor, torch.Tensor]:
    """D^-1 and D^-1 A, dense."""
    inverse = torch.diag(1 / A.diagonal())
    return inverse, inverse @ A.to_dense()


@pytest.mark.parametrize("A", [spd(), general()], ids=["spd", "general"])
@pytest.mark.parametrize("interval", [None, (0.1, 1.9)])
@pytest.mark.parametrize("degree", [0, 1, 2, 5])
def test_formula(A, interval, degree):
    c = normal((degree + 1,), seed=4)
    inverse, B = parts(A)
    one = torch.eye(20, dtype=torch.float64)
    if interval is None:
        basis = [torch.linalg.matrix_power(B, k) for k in range(degree + 1)]
    else:
        lo, hi = interval
        X = (2 * B - (lo + hi) * one) / (hi - lo)
        basis = [one, X]
        while len(basis) <= degree:
            basis.append(2 * X @ basis[-1] - basis[-2])
    wanted = sum(ck * T for ck, T in zip(c, basis, strict=False)) @ inverse
    M = P(A, c, interval=interval)
    assert torch.allclose(M(one), wanted, rtol=1e-11, atol=1e-13)
    assert torch.allclose(M.T(one), wanted.T, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("degree", [0, 1, 2, 5])
def test_neumann(degree):
    A = spd()
    inverse, B = parts(A)
    N = torch.eye(20, dtype=torch.float64) - B
    wanted = sum(torch.linalg.matrix_power(N, k) for k in range(degree + 1)) @ inverse
    assert torch.allclose(P.neumann(A, degree)(torch.eye(20, dtype=torch.float64)), wanted, rtol=1e-11)


@pytest.mark.parametrize("degree", [0, 1, 3, 8])
def test_chebyshev_has_the_smallest_error_on_the_interval(degree):
    A = ls.problems.poisson((12,))
    lo, hi = (float(f(2 * np.sin(np.arange(1, 13) * np.pi / 26) ** 2)) for f in (np.min, np.max))
    M = P.chebyshev(A, degree, lmin=lo, lmax=hi)
    # Constant diagonal: D^-1 A and its polynomials have the same eigenvectors.
    eigenvalues, V = torch.linalg.eigh(A.to_dense() / 2)
    error = 1 - eigenvalues * torch.einsum("ij,ij->j", V, M(2.0 * V))
    kappa = (hi + lo) / (hi - lo)
    bound = 1 / math.cosh((degree + 1) * math.acosh(kappa))
    assert float(error.abs().max()) <= bound * (1 + 1e-9)
    assert float(error.abs().max()) >= 0.5 * bound  # and no smaller than by luck between extrema


def test_the_default_interval_is_safe():
    A = spd()
    M = P.chebyshev(A, 4)
    _, B = parts(A)
    assert M.interval is not None
    assert float(torch.linalg.eigvals(B).abs().max()) <= float(M.interval[1])
    assert (torch.linalg.eigvalsh(M(torch.eye(20, dtype=torch.float64))) > 0).all()


def test_coefficients_for_another_matrix():
    A, B = spd(), ls.problems.poisson((6,))
    for make in (P.chebyshev, P.neumann):
        M = T(make(A, 3))
        N = M.on(make(B, 3, symmetric=False))
        assert N.coefficients is M.coefficients
        assert N.shape == (6, 6)
        assert not N.symmetric
        assert set(M.state_dict()) <= {"coefficients.values", "interval.values"}
        wanted = P(B, M.coefficients().detach(), interval=M.build().interval)
        assert torch.equal(N(normal((6,))), wanted(normal((6,))))
    # The interval comes with the coefficients.
    first, second = T(P.chebyshev(B, 3, lmin=0.5, lmax=2.0)), T(P.chebyshev(B, 3))
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(normal((6,))), first(normal((6,))))
