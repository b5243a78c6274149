"""How fast stationary methods converge, against theory, on Poisson's problem.

The factors are those of the last steps of a run that is long enough for the slowest part of the error to be
all that is left; errors are taken for b = 0, of which the solution is known, in long runs from x0 != 0.
"""

import math

import pytest
import torch
from reference import normal

import learnsolve as ls

S = ls.solvers
GRIDS = [(15,), (31,), (8, 8), (9, 15)]
every_grid = pytest.mark.parametrize("shape", GRIDS, ids=str)


def problem(shape):
    """A, its extreme eigenvalues and their eigenvectors."""
    A = ls.problems.poisson(shape)
    values, vectors = torch.linalg.eigh(A.to_dense())
    return A, float(values[0]), float(values[-1]), vectors[:, 0], vectors[:, -1]


def factor(method, A, N, window, **parameters):
    """Mean factor of the error over the last `window` of N steps."""
    x0, b = normal((A.shape[0],), seed=1), torch.zeros(A.shape[0], dtype=torch.float64)
    runs = (getattr(S, method)(A, b, x0, iterations=k, **parameters) for k in (N - window, N))
    first, last = (float(run.x.norm()) for run in runs)
    return (last / first) ** (1 / window)


def bound(kappa, k):
    q = (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)
    return 2 * q**k / (1 + q ** (2 * k))


@every_grid
def test_chebyshev(shape):
    """The bound holds for any error, and is attained at both ends of the spectrum."""
    A, low, high, first, last = problem(shape)
    random = normal(first.shape, seed=1)
    vectors = torch.linalg.eigh(A.to_dense())[1]

    def error(e, k, lmin=low, lmax=high):
        return S.chebyshev(A, torch.zeros_like(e), e, lmin=lmin, lmax=lmax, iterations=k).x

    for k in (1, 2, 5, 10, 25):
        of_theory = bound(high / low, k)
        for e, sign in ((first, 1), (last, (-1) ** k)):
            torch.testing.assert_close(error(e, k), sign * of_theory * e, rtol=1e-9, atol=1e-11)
        assert error(random, k).norm() <= of_theory * random.norm()
        # The worst part of the error: bounds that are too wide cost what they cost, and gain nothing.
        worst = float(error(vectors, k, 0.9 * low, 1.1 * high).norm(dim=0).max())
        assert of_theory * (1 - 1e-9) <= worst <= bound(1.1 / 0.9 * high / low, k) * (1 + 1e-9)


@every_grid
def test_the_best_parameters(shape):
    """Of richardson and heavyball: sqrt(beta) asymptotically, (N + 1) sqrt(beta)^N on the double root."""
    A, low, high, _, _ = problem(shape)
    weight, (alpha, beta) = S.richardson_weight(low, high), S.heavyball_parameters(low, high)
    best = factor("richardson", A, 1500, 100, weight=weight)
    assert best == pytest.approx((high - low) / (high + low), rel=1e-6)
    if len(set(shape)) == 1:
        d, s = len(shape), math.sin(math.pi / (shape[0] + 1))
        assert alpha == pytest.approx(1 / (d * (1 + s)), rel=1e-10)
        assert beta == pytest.approx((1 - s) / (1 + s), rel=1e-10)
    N = min(1200, int(math.log(1e-100) / math.log(math.sqrt(beta))))  # squares of errors must not vanish
    growth = (N / (N - N // 3)) ** (1 / (N // 3))  # of the polynomial in front
    rate = factor("heavyball", A, N, N // 3, alpha=alpha, beta=beta)
    assert rate == pytest.approx(math.sqrt(beta) * growth, rel=1e-3)


@pytest.mark.parametrize("multicolor", [False, True])
def test_relaxation(multicolor):
    """Young: on a consistently ordered matrix Gauss-Seidel is Jacobi squared, and the best omega has rate
    omega - 1; multicolor orders are consistent too."""
    A = ls.problems.poisson((12, 12))
    mu, best = math.cos(math.pi / 13), 2 / (1 + math.sin(math.pi / 13))
    assert abs(factor("jacobi", A, 400, 10) - mu) < 1e-4
    for direction in ("forward", "backward"):
        keys = {"direction": direction, "multicolor": multicolor}
        assert abs(factor("gauss_seidel", A, 200, 10, **keys) - mu**2) < 1e-4
    assert abs(factor("sor", A, 60, 40, omega=best, multicolor=multicolor) - (best - 1)) < 0.03


def test_chebyshev_tends_to_heavyball():
    """Its momentum is, in the end, that of the best heavy ball."""
    from learnsolve.solvers.chebyshev import _coefficients

    a, c = _coefficients(0.01, 1.0, 400, torch.empty(0, dtype=torch.float64))
    alpha, beta = S.heavyball_parameters(0.01, 1.0)
    assert float(a[-1]) == pytest.approx(alpha, rel=1e-12)
    assert float(c[-1]) == pytest.approx(beta, rel=1e-12)
    assert float(a[0]) == pytest.approx(S.richardson_weight(0.01, 1.0), rel=1e-12)
    assert c[0] == 0
