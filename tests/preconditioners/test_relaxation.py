"""SOR, SSOR, Chebyshev and Neumann: dense formulas, bounds, positive definiteness, options, errors."""

import numpy as np
import pytest
import torch
from numpy.polynomial import chebyshev as T
from preconditioners.cases import dense, general, spd
from reference import normal

import learnsolve as ls
from learnsolve.preconditioners import polynomials

P, S = ls.preconditioners, ls.solvers


def triangles(A, order=None):
    D = A.to_dense()
    if order is not None:
        D = D[order][:, order]
    return torch.diag(torch.diag(D)), torch.tril(D, -1), torch.triu(D, 1)


@pytest.mark.parametrize("multicolor", [False, True])
@pytest.mark.parametrize("omega", [1.0, 0.4, 1.9, torch.tensor(1.3, dtype=torch.float64)])
@pytest.mark.parametrize("A", [spd(), general()])
def test_formulas(A, omega, multicolor):
    order = ls.ordering.greedy_coloring(A).rows.long() if multicolor else torch.arange(A.shape[0])
    back = torch.argsort(order)
    D, L, U = triangles(A, order)
    w = float(omega)
    lower, upper = D + w * L, D + w * U
    for M, expected in (
        (P.SOR(A, omega, multicolor=multicolor), w * torch.linalg.inv(lower)),
        (P.SOR(A, omega, direction="backward", multicolor=multicolor), w * torch.linalg.inv(upper)),
        (
            P.SSOR(A, omega, multicolor=multicolor),
            w * (2 - w) * torch.linalg.inv(upper) @ D @ torch.linalg.inv(lower),
        ),
    ):
        expected = expected[back][:, back]
        torch.testing.assert_close(dense(M), expected, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(dense(M.T), expected.mT, rtol=1e-10, atol=1e-13)


def test_a_sweep_of_the_solver():
    A, r = general(), normal((20, 2))
    assert torch.equal(P.SOR(A, 1.2)(r), S.sor(A, r, omega=1.2, iterations=1).x)
    assert torch.equal(P.SSOR(A, 1.2)(r), S.ssor(A, r, omega=1.2, iterations=1).x)


def test_multicolor_has_as_many_levels_as_colors():
    A = ls.problems.poisson((30, 30))
    M = P.SOR(A, multicolor=True)
    from learnsolve import _analysis
    from learnsolve.matrix.pattern import as_numpy

    for system, levels in ((A, 59), (M._system, 2)):
        P_ = system.pattern
        found = _analysis.level_schedule(as_numpy(P_.crow_indices), as_numpy(P_.col_indices), False)[1]
        assert len(found) - 1 == levels


def test_the_order_is_planned_once():
    A = ls.problems.poisson((5, 5))
    one = P.SSOR(A, multicolor=True)
    assert P.SOR(A.with_values(2 * A.values), 1.5, multicolor=True)._system.pattern is one._system.pattern


def test_a_diagonal_matrix_and_none_at_all():
    eye = ls.ops.eye(3, dtype=torch.float64)
    assert torch.allclose(P.SSOR(eye, 0.5)(torch.ones(3, dtype=torch.float64)), torch.tensor(0.75).double())
    nothing = ls.ops.eye(0, dtype=torch.float64)
    for M in (P.SOR(nothing), P.SSOR(nothing, multicolor=True)):
        assert M(normal((0, 2))).shape == (0, 2)


A = spd()


P, S = ls.preconditioners, ls.solvers


def jacobi_spectrum(A):
    """Of D^-1 A, for a symmetric A."""
    d = A.diagonal().rsqrt()
    return torch.linalg.eigvalsh(d[:, None] * A.to_dense() * d)


@pytest.mark.parametrize("degree", [0, 1, 2, 5])
def test_chebyshev_is_the_best_polynomial(degree):
    """1 - t p(t) is the scaled Chebyshev polynomial, on the eigenvalues of a diagonal matrix."""
    t = np.linspace(0.3, 2.0, 30)
    A = ls.ops.diag(torch.from_numpy(t))
    M = P.Chebyshev(A, lmin=0.4, lmax=1.8, degree=degree, M=None)
    residual = 1 - t * M(torch.ones(30, dtype=torch.float64)).numpy()
    coefficients = [0] * (degree + 1) + [1]
    theta, delta = 1.1, 0.7
    expected = T.chebval((theta - t) / delta, coefficients) / T.chebval(theta / delta, coefficients)
    assert np.allclose(residual, expected, rtol=1e-11, atol=1e-13)
    inside = (t >= 0.4) & (t <= 1.8)
    assert np.abs(residual[inside]).max() <= 1 / T.chebval(theta / delta, coefficients) * (1 + 1e-12)


def test_one_eigenvalue():
    A = ls.ops.diag(torch.full((3,), 4.0, dtype=torch.float64))
    r = normal((3,))
    for degree in (0, 3):
        assert torch.allclose(P.Chebyshev(A, lmin=4.0, lmax=4.0, degree=degree, M=None)(r), r / 4)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("A", [spd(), general()])
def test_neumann_is_the_truncated_series(A, degree):
    weight = 0.8
    for M, inner in (("jacobi", P.Jacobi(A)), (P.Jacobi(A), P.Jacobi(A)), (None, None), (P.SOR(A), P.SOR(A))):
        W = weight * (torch.eye(20, dtype=A.dtype) if inner is None else dense(inner))
        step = torch.eye(20, dtype=A.dtype) - W @ A.to_dense()
        expected = sum(torch.linalg.matrix_power(step, i) for i in range(degree + 1)) @ W
        found = P.Neumann(A, degree=degree, weight=weight, M=M)
        torch.testing.assert_close(dense(found), expected, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(dense(found.T), expected.mT, rtol=1e-10, atol=1e-11)


def test_the_compiled_sweeps_agree_with_the_loop():
    A, R = general(), normal((2, 3, 20, 4))
    M = P.Neumann(A, degree=3, weight=0.7)
    torch.testing.assert_close(M(R), super(P.Neumann, M)._columns(R), rtol=1e-13, atol=1e-13)


def test_when_neumann_is_positive_definite():
    """Always for even degrees; for odd ones if weight < 2 / lmax."""
    A = spd()
    lmax = float(jacobi_spectrum(A)[-1])
    for degree in (0, 1, 2, 3, 4):
        for of_bound, positive in ((0.95, True), (1.05, degree % 2 == 0)):
            D = dense(P.Neumann(A, degree=degree, weight=of_bound * 2 / lmax))
            assert bool(torch.linalg.eigvalsh((D + D.mT) / 2).min() > 0) == positive


def test_chebyshev_is_positive_definite_if_lmax_is_above_the_spectrum():
    A = spd()
    lmin, lmax = (float(t) for t in jacobi_spectrum(A)[[0, -1]])
    for degree in (0, 1, 2, 5):
        D = dense(P.Chebyshev(A, lmin=5 * lmin, lmax=lmax * 1.01, degree=degree))
        assert torch.linalg.eigvalsh((D + D.mT) / 2).min() > 0


@pytest.mark.parametrize(
    "A",
    [
        ls.problems.poisson((30, 30)),
        ls.problems.poisson((9, 9, 9)),
        ls.problems.poisson((900,)),
        ls.problems.anisotropic((30, 30), epsilon=0.01, theta=0.5),
        ls.problems.poisson((3,)),
        spd(20),
    ],
)
def test_the_estimate_lies_above_the_spectrum_and_not_far(A):
    M = P.Chebyshev(A)
    lmax = float(jacobi_spectrum(A)[-1])
    assert lmax * 0.999 < float(M.lmax) < 1.11 * lmax
    assert torch.allclose(M.lmin, M.lmax / 30)
    assert torch.equal(P.Chebyshev(A).lmax, M.lmax)  # deterministic


def test_the_estimate_of_a_batch_and_of_invariant_subspaces():
    A = spd()
    both = P.Chebyshev(A.with_values(torch.stack((A.values, 3 * A.values))), M=None)
    assert both.lmax.shape == (2,)
    assert torch.allclose(both.lmax, torch.stack((both.lmax[0], 3 * both.lmax[0])))
    one = ls.ops.eye(7, dtype=torch.float64) * 5.0
    assert torch.allclose(P.Chebyshev(one, M=None).lmax, torch.tensor(5.5).double())
    nothing = ls.ops.eye(0, dtype=torch.float64)
    assert P.Chebyshev(nothing)(normal((0, 2))).shape == (0, 2)
    known = polynomials.largest_eigenvalue(
        lambda X: X * torch.tensor([1.0, 2.0, 9.0])[:, None], torch.ones(3, 1)
    )
    assert torch.allclose(known, torch.tensor(9.9))
