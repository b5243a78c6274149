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


def problem(shape):
    """A, its extreme eigenvalues and their eigenvectors."""
    A = ls.problems.poisson(shape)
    values, vectors = torch.linalg.eigh(A.to_dense())
    return A, float(values[0]), float(values[-1]), vectors[:, 0], vectors[:, -1]


def factor(solve, n, N, window):
    """Mean factor of the error over the last `window` of N steps."""
    x0, b = normal((n,), seed=1), torch.zeros(n, dtype=torch.float64)
    first, last = (float(solve(b, x0, k).x.norm()) for k in (N - window, N))
    return (last / first) ** (1 / window)


@pytest.mark.parametrize("shape", GRIDS, ids=str)
@pytest.mark.parametrize("weight", [1.0, 0.8, 2 / 3])
def test_jacobi(shape, weight):
    A, low, high, _, _ = problem(shape)
    d = float(A.to_dense()[0, 0])
    rho = max(abs(1 - weight * low / d), abs(1 - weight * high / d))
    if len(shape) == 1:
        c = math.cos(math.pi / (shape[0] + 1))
        assert rho == pytest.approx(1 - weight * (1 - c), rel=1e-10)
    found = factor(lambda b, x0, k: S.jacobi(A, b, x0, weight=weight, iterations=k), A.shape[0], 1500, 100)
    assert found == pytest.approx(rho, rel=1e-6)


@pytest.mark.parametrize("shape", GRIDS, ids=str)
def test_richardson_at_the_best_weight(shape):
    A, low, high, _, _ = problem(shape)
    kappa = high / low
    weight = S.richardson_weight(low, high)
    found = factor(
        lambda b, x0, k: S.richardson(A, b, x0, weight=weight, iterations=k), A.shape[0], 1500, 100
    )
    assert found == pytest.approx((kappa - 1) / (kappa + 1), rel=1e-6)
    for other in (0.9 * weight, 1.1 * weight):
        solve = lambda b, x0, k: S.richardson(A, b, x0, weight=other, iterations=k)  # noqa: B023, E731
        worse = factor(solve, A.shape[0], 400, 50)
        assert worse > found


def bound(kappa, k):
    q = (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)
    return 2 * q**k / (1 + q ** (2 * k))


@pytest.mark.parametrize("shape", GRIDS, ids=str)
def test_chebyshev(shape):
    """The bound holds for any error, and is attained at both ends of the spectrum."""
    A, low, high, first, last = problem(shape)
    b = torch.zeros_like(first)
    random = normal(first.shape, seed=1)
    for k in (1, 2, 5, 10, 25):
        of_theory = bound(high / low, k)
        for e, sign in ((first, 1), (last, (-1) ** k)):
            x = S.chebyshev(A, b, e, lmin=low, lmax=high, iterations=k).x
            torch.testing.assert_close(x, sign * of_theory * e, rtol=1e-9, atol=1e-11)
        assert (
            S.chebyshev(A, b, random, lmin=low, lmax=high, iterations=k).x.norm() <= of_theory * random.norm()
        )
        # The worst part of the error: bounds that are too wide cost what they cost, and gain nothing.
        vectors = torch.linalg.eigh(A.to_dense())[1]
        wide = S.chebyshev(
            A, torch.zeros_like(vectors), vectors, lmin=0.9 * low, lmax=1.1 * high, iterations=k
        ).x
        worst = float(wide.norm(dim=0).max())
        assert of_theory * (1 - 1e-9) <= worst <= bound(1.1 / 0.9 * high / low, k) * (1 + 1e-9)


@pytest.mark.parametrize("shape", GRIDS, ids=str)
def test_heavyball_at_the_best_parameters(shape):
    """sqrt(beta) asymptotically: (N + 1) sqrt(beta)^N on the double root, so N must be large."""
    A, low, high, _, _ = problem(shape)
    alpha, beta = S.heavyball_parameters(low, high)
    if len(set(shape)) == 1:
        d, s = len(shape), math.sin(math.pi / (shape[0] + 1))
        assert alpha == pytest.approx(1 / (d * (1 + s)), rel=1e-10)
        assert beta == pytest.approx((1 - s) / (1 + s), rel=1e-10)

    def solve(b, x0, k):
        return S.heavyball(A, b, x0, alpha=alpha, beta=beta, iterations=k)

    N = min(1200, int(math.log(1e-100) / math.log(math.sqrt(beta))))  # squares of errors must not vanish
    window = N // 3
    found = factor(solve, A.shape[0], N, window)
    growth = (N / (N - window)) ** (1 / window)  # of the polynomial in front
    assert found == pytest.approx(math.sqrt(beta), rel=0.01)
    assert found == pytest.approx(math.sqrt(beta) * growth, rel=1e-3)


def test_heavyball_is_the_faster_one_and_chebyshev_the_fastest_of_fixed_length():
    A, low, high, _, _ = problem((31,))
    x0 = normal((31, 20), seed=1)
    b = torch.zeros_like(x0)
    alpha, beta = S.heavyball_parameters(low, high)
    richardson = S.richardson(A, b, x0, weight=S.richardson_weight(low, high), iterations=160)
    heavyball = S.heavyball(A, b, x0, alpha=alpha, beta=beta, iterations=160)
    chebyshev = S.chebyshev(A, b, x0, lmin=low, lmax=high, iterations=160)
    sizes = [float(s.x.norm()) for s in (chebyshev, heavyball, richardson)]
    assert sizes[0] < sizes[1] < 1e-3 * sizes[2]


def test_chebyshev_tends_to_heavyball():
    """Its momentum is, in the end, that of the best heavy ball."""
    from learnsolve.solvers.chebyshev import _coefficients

    a, c = _coefficients(0.01, 1.0, 400, torch.empty(0, dtype=torch.float64))
    alpha, beta = S.heavyball_parameters(0.01, 1.0)
    assert float(a[-1]) == pytest.approx(alpha, rel=1e-12)
    assert float(c[-1]) == pytest.approx(beta, rel=1e-12)
    assert float(a[0]) == pytest.approx(S.richardson_weight(0.01, 1.0), rel=1e-12)
    assert c[0] == 0


def test_preconditioned_chebyshev():
    """Bounds are those of M A: in 2D Poisson's D^-1 A they are 1 +- cos(pi h)."""
    A = ls.problems.poisson((12, 12))
    c = math.cos(math.pi / 13)
    M, b = ls.preconditioners.Jacobi(A), normal((144,))
    plain = S.chebyshev(A, b, lmin=4 - 4 * c, lmax=4 + 4 * c, rtol=1e-8)
    scaled = S.chebyshev(A, b, lmin=1 - c, lmax=1 + c, M=M, rtol=1e-8)
    assert plain.converged
    assert scaled.iterations == plain.iterations
    torch.testing.assert_close(scaled.x, plain.x, rtol=1e-12, atol=1e-12)
