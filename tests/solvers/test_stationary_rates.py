"""How fast stationary methods converge, against theory, on Poisson's problem; and the bounds of the spectrum
that `richardson`, `heavyball` and `chebyshev` estimate where they are not given.

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
    from learnsolve.solvers.stationary import _coefficients

    a, c = _coefficients(0.01, 1.0, 400, torch.empty(0, dtype=torch.float64))
    alpha, beta = S.heavyball_parameters(0.01, 1.0)
    assert float(a[-1]) == pytest.approx(alpha, rel=1e-12)
    assert float(c[-1]) == pytest.approx(beta, rel=1e-12)
    assert float(a[0]) == pytest.approx(S.richardson_weight(0.01, 1.0), rel=1e-12)
    assert c[0] == 0


P = ls.preconditioners


@pytest.mark.parametrize("method", ["richardson", "chebyshev"])
@pytest.mark.parametrize("grid", [(40,), (12, 12), (6, 6, 6)])
def test_defaults_converge_on_poisson(method, grid):
    A = ls.problems.poisson(grid)
    solution = getattr(S, method)(A, normal((A.shape[0],)), rtol=1e-6, maxiter=4000)
    assert solution.converged


@pytest.mark.parametrize("method", ["richardson", "chebyshev"])
def test_the_estimate_is_within_its_factor_of_the_largest_eigenvalue(method):
    A, b = ls.problems.poisson((9, 9)), normal((81, 2))
    top = float(torch.linalg.eigvalsh(A.to_dense())[-1])
    # The first step is b times 2 / (lmin + lmax).
    lmax = 2 / (getattr(S, method)(A, b, iterations=1).x / b * (1 + 1 / 30))
    assert ((lmax >= top) & (lmax <= 1.1 * top)).all()
    lmax = torch.tensor(top, dtype=A.dtype)
    given = getattr(S, method)(A, b, lmin=top / 30, lmax=lmax, iterations=3).x
    assert torch.allclose(getattr(S, method)(A, b, lmax=lmax, iterations=3).x, given, rtol=1e-12)


def test_the_weight_of_richardson():
    A, b = ls.problems.poisson((5, 5)), normal((25,))
    M = P.Jacobi(A)
    x = S.richardson(A, b, weight=0.25, iterations=4).x
    assert torch.allclose(S.richardson(A, b, lmin=1.0, lmax=7.0, iterations=4).x, x)
    assert torch.equal(
        S.richardson(A, b, M=M, iterations=4).x, S.richardson(A, b, M=M, weight=1.0, iterations=4).x
    )
    assert S.richardson(A, b, M=M, lmax=2.0, lmin=0.05).converged
    lmax = torch.tensor(8.0, dtype=A.dtype, requires_grad=True)
    assert torch.autograd.grad(S.richardson(A, b, lmax=lmax, iterations=4).x.sum(), lmax)[0] != 0
    with pytest.raises(ValueError, match="lmax requires grad"):
        S.richardson(A, b, lmax=lmax)
    with pytest.raises(ValueError, match="richardson: weight must not be given beside lmin or lmax"):
        S.richardson(A, b, weight=1.0, lmax=8.0)


def test_the_parameters_of_the_heavy_ball():
    A, b = ls.problems.poisson((5, 5)), normal((25, 2))
    eigenvalues = torch.linalg.eigvalsh(A.to_dense())
    low, high = (eigenvalues[i].clone().requires_grad_() for i in (0, -1))
    alpha, beta = S.heavyball_parameters(low, high)
    solutions = [
        S.heavyball(A, b, lmin=low, lmax=high, iterations=6),
        S.heavyball(A, b, alpha=alpha, beta=beta, iterations=6),
    ]
    torch.testing.assert_close(*[s.residual_norms for s in solutions])
    torch.testing.assert_close(*[torch.autograd.grad(s.x.sum(), (low, high)) for s in solutions])
    numbers = {"lmin": float(low.detach()), "lmax": float(high.detach())}
    fast = S.heavyball(A, b, rtol=1e-10, **numbers)
    # sqrt(beta) a step in the end, by a polynomial of the step's number in the beginning
    assert fast.converged
    assert fast.iterations < 2 * math.log(1e-10) / math.log(float(beta.detach()) ** 0.5)
    assert S.heavyball(A, b, rtol=1e-6, maxiter=4000).converged  # with estimates
    lows = torch.stack((low, 2 * low)).detach()
    batch = S.heavyball(A, b.expand(2, -1, -1), lmin=lows, lmax=numbers["lmax"], iterations=3).x
    for x, lmin in zip(batch, lows, strict=True):
        alone = S.heavyball(A, b, lmin=float(lmin), lmax=numbers["lmax"], iterations=3)
        torch.testing.assert_close(x, alone.x)
    for keywords, match in (
        ({"alpha": 1.0, "beta": 0.1, "lmax": 8.0}, "alpha and beta must not be given beside lmin or lmax"),
        ({"alpha": 1.0, "lmax": 8.0}, "alpha must not be given beside lmin or lmax"),
        ({"beta": 0.1}, "beta must be given with alpha"),
        ({"alpha": 0.1}, "alpha must be given with beta"),
        ({"lmin": -1.0}, "lmin must be positive and finite, got -1"),
        ({"lmin": low, "lmax": high}, "lmin requires grad"),
    ):
        with pytest.raises(ValueError, match=f"heavyball: {match}"):
            S.heavyball(A, b, **keywords)


@pytest.mark.parametrize("method", ["richardson", "chebyshev"])
def test_batches_have_an_estimate_each(method):
    A, b = ls.problems.poisson((5, 5)), normal((3, 25, 2))
    scales = torch.tensor([1.0, 5.0, 25.0], dtype=A.dtype)
    together = getattr(S, method)(A.with_values(scales[:, None] * A.values), b, iterations=6)
    for i, s in enumerate(scales):
        assert torch.allclose(together.x[i], getattr(S, method)(s * A, b[i], iterations=6).x)
    shared = getattr(S, method)(A, b, iterations=6).x
    assert torch.allclose(shared[1], getattr(S, method)(A, b[1], iterations=6).x)


def test_other_operators():
    A, b = ls.problems.poisson((5, 5)), normal((25,))
    x = S.chebyshev(A, b, rtol=1e-10).x
    for B in (lambda X: A @ X, A.to_scipy_linear_operator(), ls.BlockBatch([A])):
        assert torch.allclose(S.chebyshev(B, b, rtol=1e-10, gradient="unrolled").x, x)
    with pytest.warns(S.ConvergenceWarning):
        assert not S.chebyshev(0.0 * A, b, maxiter=5).converged
    with pytest.raises(ValueError, match="not estimated for one M a block; pass lmax="):
        S.chebyshev(ls.BlockBatch([A]), b, M=[P.Jacobi(A)])


@pytest.mark.parametrize("name", ["heavyball_parameters", "richardson_weight"])
def test_parameters_from_bounds_in_transformations_and_compiled(name, fresh_compiler):
    """There no values are looked at: the same numbers, and no break of the graph."""
    f = getattr(S, name)
    low, high = torch.tensor([0.5, 2.0], dtype=torch.float64), torch.tensor([3.0, 4.0], dtype=torch.float64)
    expected = f(low, high)
    torch.testing.assert_close(torch.func.vmap(f)(low, high), expected)
    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="eager")(low, high), expected)
    assert torch.autograd.gradcheck(f, (low.requires_grad_(), high.requires_grad_()))
    whole = lambda t: torch.as_tensor(f(t, high.detach())[0]).sum()  # noqa: E731
    assert torch.func.grad(whole)(low.detach()).isfinite().all()
