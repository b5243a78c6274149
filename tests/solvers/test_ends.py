"""How solves end and how fast: stagnation, systems without a solution, numbers out of range, and what is said
of it; stationary methods against theory, with given and estimated bounds of the spectrum; small systems of
many kinds. That what is said to have converged has: tests/stress/converged.py.

Factors of convergence are those of the last steps of a run that is long enough for the slowest part of the
error to be all that is left; errors are taken for b = 0, of which the solution is known, from x0 != 0."""

import math
import time
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch
from reference import normal
from solvers.cases import RECTANGULAR, SQUARE, SYMMETRIC, S, poisson, quiet, run

import learnsolve as ls
from learnsolve.solvers import ConvergenceWarning, Status
from learnsolve.solvers.core.advance import ResidualNorm
from learnsolve.solvers.core.loop import Method, iterate
from learnsolve.solvers.core.operators import Matrix, System
from learnsolve.solvers.solution import STATUSES

ALL = (*SQUARE, *RECTANGULAR)
TO_A_TOLERANCE = ("richardson", "heavyball", "chebyshev", "gauss_seidel", "ssor")
every_square = pytest.mark.parametrize("name", SQUARE)
every_rectangular = pytest.mark.parametrize("name", RECTANGULAR)
every_stationary = pytest.mark.parametrize("name", TO_A_TOLERANCE)


def ones(n, dtype=torch.float64):
    return torch.ones(n, dtype=dtype)


def diagonal(*d):
    return ls.CSR.from_dense(torch.diag(torch.tensor(d, dtype=torch.float64)))


# --- stagnation ---


@quiet
@pytest.mark.parametrize("of", ["CSR", "callable"])
@every_square
def test_stagnation_stops(name, of):
    A, b = ls.problems.poisson((32, 32)).to(torch.float32), ones(1024, torch.float32)
    keywords = {} if of == "CSR" or name in SYMMETRIC else {"transpose": lambda x: A @ x}
    solution = getattr(S, name)(A if of == "CSR" else lambda x: A @ x, b, rtol=1e-6, **keywords)
    assert solution.status is Status.STAGNATED
    assert solution.iterations < 400  # maxiter is 10,240
    true = torch.linalg.vector_norm(b.double() - A.to(torch.float64) @ solution.x.double()) / 32
    assert true < 5e-5  # the condition number is 440
    assert solution.residual_norms[-1] / 32 < 1.5 * true + 1e-6
    for words in ("asked: 1e-06", "||b - A x|| / ||b|| is", "float64"):
        assert words in solution.summary()


@quiet
def test_stagnation_stops_a_recurrence_that_never_meets_its_tolerance():
    A = ls.problems.poisson((20_000,)).to(torch.float32)
    solution = S.cg(A, normal((20_000,), torch.float32), rtol=1e-7)
    assert solution.status is Status.STAGNATED
    assert solution.iterations < 10_000  # maxiter is 200,000


@quiet
@every_stationary
def test_stagnation_stops_stationary_methods(name):
    A, b = ls.problems.poisson((12, 12)).to(torch.float32), ones(144, torch.float32)
    solution = run(name, A, b, tol=1e-8, maxiter=20000)
    assert solution.status is Status.STAGNATED
    assert solution.iterations < 1000
    assert solution.residual_norms[-1] <= 4 * solution.residual_norms.min()


class Iterate(NamedTuple):
    x: torch.Tensor
    r: torch.Tensor


class Drifting(Method):
    """For A = I: until it has started again, x is wrong by 7 eps, and r three times smaller than b - A x."""

    def __init__(self, good):
        self.good, self.starts = good, 0

    def start(self, A, M, x, r, running):
        self.starts += 1
        return Iterate(x, r)

    def step(self, A, M, b, state, running):
        x = b if self.starts > self.good else b * (1 - 7 * torch.finfo(b.dtype).eps)
        return Iterate(x, 0.3 * (b - x)), torch.zeros_like(running, dtype=torch.int64)


@pytest.mark.parametrize(("good", "status", "iterations"), [(1, "CONVERGED", 41), (9, "STAGNATED", 60)])
def test_a_recurrence_that_drifted_starts_again_once(good, status, iterations):
    method, b = Drifting(good), ones(4).unsqueeze(1)
    A = Matrix(diagonal(1.0, 1.0, 1.0, 1.0))
    out = iterate(method, System("test", A, None, b, None, ResidualNorm(1e-20, 0.0)), 100)
    assert STATUSES[int(out.codes) - 1].name == status
    assert (len(out.norms) - 1, method.starts) == (iterations, 2)
    assert float(out.norms[-1]) == float((b - out.x).norm())  # the true one


@quiet
def test_minres_watches_its_recurrence():
    """Of condition 1e6: if it trusted its own r, x would be a hundred times less accurate, after maxiter."""
    Q = torch.linalg.qr(normal((40, 40)))[0]
    signs = torch.tensor([1.0, -1.0], dtype=Q.dtype).repeat(20)
    A = ls.CSR.from_dense((Q * signs * torch.logspace(0, -6, 40, dtype=Q.dtype)) @ Q.mT)
    A, b = 0.5 * (A + A.T), normal((40, 2))
    solution = S.minres(A, b, rtol=1e-12, maxiter=2000)
    assert solution.statuses == [Status.STAGNATED] * 2
    assert ((b - A @ solution.x).norm(dim=0) < 1e-9 * b.norm(dim=0)).all()


@quiet
@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
def test_stagnation_stops_recorded_iterations(gradient):
    A, b = ls.problems.poisson((8, 8)).to(torch.float32), ones(64, torch.float32).requires_grad_()
    solution = S.cg(A, b, rtol=1e-9, gradient=gradient)
    assert solution.status is Status.STAGNATED
    assert solution.iterations < 100
    (g,) = torch.autograd.grad(solution.x.sum() + solution.residual_norms[-1], b)
    assert g.isfinite().all()


@quiet
@every_rectangular
def test_stagnation_stops_least_squares(name):
    """b is nearly in the range of A, and x large: A^T r has no correct digit."""
    Q, W = (torch.linalg.qr(normal((40, 20), seed=s))[0] for s in (1, 2))
    A = ls.CSR.from_dense((Q * torch.logspace(0, -5, 20, dtype=Q.dtype)) @ W[:20].mT @ torch.eye(20).double())
    b = Q.sum(1) + 1e-7 * normal((40,))
    solution = getattr(S, name)(A, b, atol=0, btol=0, conlim=0, maxiter=100_000)
    assert solution.status in (Status.STAGNATED, Status.CONVERGED)
    assert solution.iterations < 5000


@every_rectangular
def test_stagnation_of_rectangular_callables_is_measured(name):
    """More than twenty iterations, after which it is, of a function whose entries nothing knows."""
    D = normal((60, 30)) + 4 * torch.eye(60, 30, dtype=torch.float64)
    b = normal((60,), seed=1)
    solution = getattr(S, name)(lambda x: D @ x, b, transpose=lambda y: D.mT @ y)
    assert solution.converged
    assert solution.iterations > 20
    torch.testing.assert_close(D.mT @ (b - D @ solution.x), torch.zeros(30).double(), rtol=0, atol=1e-4)


def test_no_tolerance_no_stagnation():
    A, b = ls.problems.poisson((8, 8)).to(torch.float32), ones(64, torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not S.minres(A, b, iterations=30).converged
        assert S.gmres(A, b, iterations=200).iterations == 200
        assert S.richardson(A, b, weight=0.1, iterations=3).iterations == 3
        assert S.cg(A, b, iterations=3, gradient="unrolled").iterations == 3


def test_slow_convergence_and_a_plateau_are_no_stagnation():
    """The residual of a cyclic shift stays where it is until the last iteration; that of minres for
    eigenvalues +-d in every second one; cg's on a condition of 1e6 for hundreds."""
    A, b = ls.problems.poisson((12,)), ones(12)
    slow = S.richardson(A, b, weight=0.2, rtol=1e-12, maxiter=9_000)
    assert slow.converged
    assert slow.iterations > 1000
    assert S.richardson(A.to(torch.float32), b.float(), weight=0.2, rtol=1e-5, maxiter=9_000).converged
    n, d = 120, torch.linspace(1, 100, 60, dtype=torch.float64)
    shift = ls.CSR.from_dense(torch.roll(torch.eye(n), 1, 0).double())
    solution = S.gmres(shift, torch.eye(n).double()[0], restart=n, rtol=1e-10)
    assert solution.converged
    assert solution.iterations == n
    assert S.minres(diagonal(*d, *-d), ones(120), rtol=1e-10).converged
    hard = diagonal(*torch.logspace(0, 6, 100, dtype=torch.float64))
    assert S.cg(hard, ones(100), rtol=1e-8, maxiter=5_000).converged
    assert S.fcg(hard, ones(100), rtol=1e-8, maxiter=5_000).converged


# --- systems without a solution, and other failures ---


@quiet
@every_square
def test_no_solution(name):
    line = ls.problems.poisson((20,)).to_dense()
    line[0, 0] = line[-1, -1] = 1.0  # Neumann: constants are its null space
    neumann = torch.kron(line, torch.eye(20).double()) + torch.kron(torch.eye(20).double(), line)
    systems = [
        (torch.diag(torch.tensor([1.0, 2.0, 0.0])).double(), ones(3)),
        (torch.zeros(2, 2).double(), ones(2)),
        (line, normal((20,)) + 1),
    ]
    if name not in ("gmres", "fgmres"):
        systems.append((neumann, normal((400,)) + 1))
    for D, b in systems:
        solution = getattr(S, name)(ls.CSR.from_dense(D), b)
        assert solution.status is Status.INCONSISTENT, solution.summary()
        assert "lsqr" in solution.summary()
    projected = normal((400,))
    assert getattr(S, name)(ls.CSR.from_dense(neumann), projected - projected.mean()).converged


@quiet
@every_rectangular
@pytest.mark.parametrize(("dtype", "decades"), [(torch.float64, 3), (torch.float32, 2.5)], ids=str)
def test_least_squares_are_never_without_solution(name, dtype, decades):
    """b is far from the range of A, and the tolerance at the rounding errors or below."""
    ends = []
    for seed in range(6, 12):
        Q, W = (torch.linalg.qr(normal((n, 8), seed=n + seed))[0] for n in (40, 8))
        A = ls.CSR.from_dense(((Q * torch.logspace(0, -decades, 8).double()) @ W).to(dtype))
        solution = getattr(S, name)(A, normal((40,), dtype, seed), atol=1e-15, btol=1e-15)
        ends.append(solution.status)
        assert solution.converged or f"asked: {max(1e-15, torch.finfo(dtype).eps):.2g} ||A||" in solution.note
    assert set(ends) <= {Status.CONVERGED, Status.STAGNATED}
    assert Status.STAGNATED in ends


@quiet
def test_names_of_failures():
    b, A = normal((16,)), poisson()
    for solve in (S.cg, S.fcg):
        for d in ([1.0, -1.0], [1e10, -1.0], [1.0, 2.0, -1e-3], [3.0, 2.0, -1.0, 1.0], [-3.0, -2.0]):
            assert solve(diagonal(*d), ones(len(d))).status is Status.INDEFINITE
        assert solve(lambda x: -2 * x, b).status is Status.INDEFINITE
        assert solve(A, b, M=lambda r: -r).status is Status.INDEFINITE
    assert S.minres(A, b, M=lambda r: -r).status is Status.INDEFINITE
    assert S.minres(-A, b).converged
    shift = ls.CSR.from_dense(torch.roll(torch.eye(16), 1, 0).double())
    e = torch.eye(16).double()[0]
    assert S.bicgstab(shift, e).status is Status.BREAKDOWN
    assert S.gmres(shift, e, restart=16).converged
    assert S.gmres(shift, e, restart=5).status is Status.MAX_ITERATIONS
    assert "Try" not in str(Status.CONVERGED)
    hard = diagonal(*torch.logspace(0, 6, 16))
    assert S.lsqr(hard, b, atol=1e-14, btol=1e-14, conlim=1e3).status is Status.ILL_CONDITIONED
    assert S.lsmr(hard, b, atol=1e-14, btol=1e-14, conlim=1e2).status is Status.ILL_CONDITIONED
    for solve in (S.lsqr, S.lsmr):  # of condition 5, in any unit
        assert solve(diagonal(1e6, 2e6, 5e6), ones(3), conlim=100.0).converged


@every_rectangular
def test_least_squares_stop_by_the_frobenius_norm(name):
    A = ls.CSR.from_dense(normal((60, 40)) * torch.logspace(0, -4, 40, dtype=torch.float64))
    b, D = normal((60,)), A.to_dense()
    solution = getattr(S, name)(A, b, atol=1e-9, btol=0.0, conlim=0.0, maxiter=4000)
    assert solution.converged
    r = b - D @ solution.x
    assert (D.T @ r).norm() <= 1.001e-9 * D.norm() * r.norm()


# --- numbers out of range ---


@quiet
@pytest.mark.parametrize("name", [*ALL, *TO_A_TOLERANCE])
def test_a_nan_that_no_product_meets(name):
    A = ls.problems.poisson((4,))
    A = A.with_values(torch.where(torch.arange(A.nnz) == 3, torch.nan, A.values))
    assert run(name, A, torch.zeros(4).double()).status is Status.NON_FINITE
    if name in TO_A_TOLERANCE:
        return
    x0 = torch.tensor([0.0, 0.0, torch.nan, 0.0]).double()  # where row and column are empty
    b = torch.tensor([1.0, 1.0, 0.0, 1.0]).double()
    assert run(name, diagonal(2, 2, 0, 2), b, x0).status is Status.NON_FINITE


@quiet
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_square
def test_products_with_subnormal_matrices_keep_their_digits(name, dtype):
    """x has the size of one in the solver's units: its products with A would be subnormal, of few digits."""
    unit, tol = {torch.float32: (2.0**-135, 1e-6), torch.float64: (2.0**-1060, 1e-12)}[dtype]
    D = torch.tensor([[4.0, 1.0, 0.0], [1.0, 5.0, 2.0], [0.0, 2.0, 6.0]], dtype=dtype)
    b = torch.tensor([[0.3, 0.7, 0.11], [1.3, 0.1, 0.9]], dtype=dtype).T.contiguous()
    for small in (b, b[:, 0]):
        solution = run(name, ls.CSR.from_dense(D * unit), small * (unit * 2.0**60), tol=tol)
        expected = run(name, ls.CSR.from_dense(D), small, tol=tol)
        assert solution.converged
        assert solution.iterations == expected.iterations
        torch.testing.assert_close(solution.x * 2.0**-60, expected.x, rtol=8 * torch.finfo(dtype).eps, atol=0)


@quiet
@pytest.mark.parametrize("name", ALL)
def test_digits_lost_below_the_range(name):
    b = 1e-320 * torch.tensor([1.0, 0.3, 0.7, 0.2], dtype=torch.float64)
    assert run(name, ls.problems.poisson((4,)), b, tol=1e-8).status is Status.STAGNATED
    assert not run(name, diagonal(1e300), torch.tensor([1e-15]).double(), tol=1e-12).converged
    assert run(name, diagonal(1e300), torch.tensor([1e-3]).double(), tol=1e-12).converged
    if name in RECTANGULAR:
        # The squares of A^T b are zero, not A^T b.
        D = 1e-26 * torch.tensor([[2.0, 1.0], [1.0, 3.0], [0.5, 0.0]])
        solution = run(name, lambda x: D @ x, torch.ones(3), tol=1e-5, transpose=lambda y: D.T @ y)
        assert solution.x.any() or not solution.converged


def test_an_adjoint_that_lost_digits_warns():
    b = torch.tensor([1e10], dtype=torch.float64, requires_grad=True)
    solution = S.cg(diagonal(1e300), b, rtol=1e-12)
    with pytest.warns(ConvergenceWarning, match="adjoint solve .* did not converge.*STAGNATED"):
        (1e-15 * solution.x.sum()).backward()


@every_rectangular
@pytest.mark.parametrize(("dtype", "large"), [(torch.float64, 1e160), (torch.float32, 1e19)], ids=str)
def test_norms_that_overflow_prove_nothing(name, dtype, large):
    A = ls.CSR.from_dense(torch.diag(torch.tensor([large, 1.0], dtype=dtype)))
    b = torch.ones(2, dtype=dtype)
    solution = getattr(S, name)(A, b, conlim=0)
    assert solution.converged
    torch.testing.assert_close(solution.x[0] * large, b[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = getattr(S, name)(A, b, torch.tensor([large, 0.0], dtype=dtype), maxiter=0)
    assert not wrong.converged


# --- tolerances, and what is said ---


def test_absolute_tolerance():
    A, b = poisson(8, 8), normal((64,))
    for factor in (1.0, 1e-100):  # in and out of units
        solution = S.cg(A, factor * b, rtol=0.0, atol=1e-3 * factor)
        assert solution.converged
        assert 1e-5 * factor < solution.residual_norms[-1] <= 1e-3 * factor
    assert S.cg(A, b, rtol=1e-12, atol=1e3).iterations == 0
    b.requires_grad_()  # a cotangent is solved for relative to itself, however small
    (small,) = torch.autograd.grad(S.cg(A, b, rtol=1e-10, atol=1e-6).x, b, 1e-9 * ones(64))
    torch.testing.assert_close(A @ (small / 1e-9), ones(64), rtol=1e-8, atol=0)
    b = b.detach()
    for x0 in (None, ones(64)):  # far above b
        solution = S.cg(A, 1e-320 * b, x0, atol=1e-8)
        assert solution.converged
        assert torch.linalg.vector_norm(A @ solution.x) <= 1e-8


def test_a_callback_sees_the_users_units():
    A, b, seen = poisson(), 1e200 * normal((16,)), []
    solution = S.cg(A, b, callback=seen.append)
    assert solution.converged
    assert torch.equal(seen[-1].x, solution.x)
    torch.testing.assert_close(seen[0].residual_norm / 1e200, (b / 1e200 - A @ (seen[0].x / 1e200)).norm())
    assert solution.residual_norms[0] / 1e200 == (b / 1e200).norm()


def test_one_warning_for_a_line():
    A = ls.problems.poisson((20,))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for i in range(5):
            S.cg(A, normal((20,), seed=i), rtol=1e-10, maxiter=3)
        S.cg(A, ones(20), rtol=1e-10, maxiter=3)
    mine = [w for w in seen if issubclass(w.category, ConvergenceWarning)]
    assert [w.filename for w in mine] == [__file__, __file__]
    assert mine[0].lineno != mine[1].lineno
    assert "cg: did not converge: MAX_ITERATIONS" in str(mine[0].message)


def test_a_solution_has_no_truth_value_and_says_how_long_it_took():
    A, b = ls.problems.poisson((20, 20)), ones(400)
    start = time.perf_counter()
    solution = S.cg(A, b, rtol=1e-10)
    assert 0 < solution.seconds < time.perf_counter() - start
    assert S.jacobi(A, b, iterations=2).seconds is None
    assert S.gmres(A, b, maxiter=4, rtol=0.0).seconds > 0
    with pytest.raises(TypeError, match=r"\.converged.*solution\.statuses"):
        bool(solution)


P = ls.preconditioners
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
    with pytest.raises(ValueError, match="richardson: weight must not be passed with lmin or lmax"):
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
        ({"alpha": 1.0, "beta": 0.1, "lmax": 8.0}, "alpha and beta must not be passed with lmin or lmax"),
        ({"alpha": 1.0, "lmax": 8.0}, "alpha must not be passed with lmin or lmax"),
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
    with pytest.raises(ValueError, match=r"not estimated for one M per block\. Pass lmax="):
        S.chebyshev(ls.BlockBatch([A]), b, M=[P.Jacobi(A)])


@pytest.mark.parametrize("name", ["heavyball_parameters", "richardson_weight"])
def test_parameters_from_bounds_compiled(name, fresh_compiler):
    """There no values are looked at: no break of the graph."""
    f = getattr(S, name)
    low, high = torch.tensor([0.5, 2.0], dtype=torch.float64), torch.tensor([3.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="eager")(low, high), f(low, high))


KINDS = (
    *(
        "positive definite",
        "indefinite",
        "semidefinite, consistent",
        "semidefinite, inconsistent",
        "diagonal",
    ),
    *("zero", "nonsymmetric", "skew", "singular, inconsistent", "zero rows"),
)
SYMMETRIC_KINDS = KINDS[:6]
# What may be said of a system of a kind, besides CONVERGED.
LOST = {Status.BREAKDOWN, Status.MAX_ITERATIONS, Status.DIVERGED, Status.STAGNATED}
SINGULAR = {Status.BREAKDOWN}
PLAUSIBLE = {
    "indefinite": {"cg": {Status.INDEFINITE}, "fcg": {Status.INDEFINITE}, "bicgstab": LOST},
    "semidefinite, inconsistent": {
        "cg": {Status.INDEFINITE, *LOST},
        "fcg": {Status.INDEFINITE, *LOST},
        "bicgstab": LOST,
        "minres": {Status.STAGNATED},
    },
    "nonsymmetric": {"bicgstab": LOST},
    "skew": {"bicgstab": {Status.BREAKDOWN}},
    "singular, inconsistent": {"bicgstab": LOST, "gmres": SINGULAR, "fgmres": SINGULAR},
    "zero rows": {"bicgstab": LOST, "gmres": SINGULAR, "fgmres": SINGULAR},
}
WITHOUT_SOLUTION = {"semidefinite, inconsistent", "singular, inconsistent", "zero rows", "zero"}


def systems(kind: str, n: int, count: int, seed: int):
    """A (count, n, n) and b (count, n), condition numbers of nonsingular ones up to 1e3."""
    rng = np.random.default_rng(seed)
    Q, W = (np.linalg.qr(rng.standard_normal((count, n, n)))[0] for _ in range(2))
    d = 10 ** rng.uniform(-1.5, 1.5, (count, n))
    b = rng.standard_normal((count, n))
    if kind == "indefinite":
        d *= rng.choice([-1, 1], (count, n))
    if "semidefinite" in kind or kind == "singular, inconsistent":
        d[:, : max(1, n // 3)] = 0
    A = np.einsum("bij,bj,bkj->bik", Q if kind in SYMMETRIC_KINDS else W, d, Q)
    if kind in SYMMETRIC_KINDS:
        A = (A + A.transpose(0, 2, 1)) / 2
    if kind == "skew":
        A = (A - A.transpose(0, 2, 1)) / 2
    if kind == "zero rows":
        A *= (rng.uniform(size=(count, n, 1)) > 0.2) * np.ones((count, n, n))
    if kind == "diagonal":
        A = np.eye(n) * d[:, None]
        A[: count // 2] = np.eye(n)
    if kind == "zero":
        A *= 0
    if kind == "semidefinite, consistent":
        b = np.einsum("bij,bj->bi", A, b)
    b[::7] = 0
    return A, b


def batch(A: np.ndarray) -> ls.CSR:
    pattern = ls.CSR.from_dense(torch.ones(A.shape[-2:], dtype=torch.float64)).pattern
    return ls.CSR(torch.from_numpy(A.reshape(*A.shape[:-2], -1)), pattern)


CASES = [(k, m) for k in KINDS for m in SQUARE if k in SYMMETRIC_KINDS or m not in SYMMETRIC]


@quiet
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_statuses_are_plausible(kind, name):
    for n in (1, 2, 3, 6):
        A, b = systems(kind, n, 50, seed=n)
        solution = getattr(S, name)(batch(A), torch.from_numpy(b)[..., None], rtol=1e-8)
        x, statuses = solution.x[..., 0].numpy(), np.array(solution.statuses)
        converged = statuses == Status.CONVERGED
        residual = np.linalg.norm(b - np.einsum("bij,bj->bi", A, x), axis=1)
        assert (residual <= 1.001e-8 * np.linalg.norm(b, axis=1))[converged].all()
        assert np.isfinite(x).all()
        assert (x[~b.any(axis=1)] == 0).all()
        assert converged[~b.any(axis=1)].all()
        is_a = "singular, inconsistent" if kind == "skew" and n % 2 else kind
        allowed = PLAUSIBLE.get(is_a, {}).get(name, set())
        allowed = allowed | ({Status.INCONSISTENT} if is_a in WITHOUT_SOLUTION else set())
        assert set(statuses[~converged]) <= allowed, f"n = {n}: {set(statuses[~converged]) - allowed}"


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-150, 1e150])
@pytest.mark.parametrize("name", RECTANGULAR)
def test_least_squares_of_least_norm(name, scale, shape):
    """Whatever the rank, and in any units; damped, with a normal residual within its tolerance."""
    rng = np.random.default_rng(sum(shape))
    A = rng.standard_normal((40, *shape)) * (rng.uniform(size=(40, 1, shape[1])) > 0.1)
    b = rng.standard_normal((40, shape[0]))
    b[::7] = 0
    right = torch.from_numpy(b * scale)[..., None]
    for damp in (0.0, 0.5):
        solution = run(name, batch(A * scale), right, tol=1e-9, damp=damp * scale, maxiter=200)
        assert set(solution.statuses) == {Status.CONVERGED}
        x, eye = solution.x[..., 0].numpy(), damp * np.eye(shape[1])
        least = [np.linalg.pinv(np.vstack((a, eye)))[:, : shape[0]] @ c for a, c in zip(A, b, strict=True)]
        assert np.abs(x - np.stack(least)).max() < 1e-5
        assert (x[~b.any(axis=1)] == 0).all()


# --- what ran ---


@pytest.mark.parametrize("name", ["cg", "gmres", "lsqr", "jacobi", "heavyball", "sor"])
def test_a_solution_names_its_method(name):
    A, b = poisson(16), normal((64,)).requires_grad_()
    fixed = {"iterations": 3} if name in ("jacobi", "heavyball", "sor") else {}
    solution = getattr(S, name)(A, b, **fixed)
    assert (solution.method, solution.reason) == (name, "")
    if not fixed:
        solution.x.sum().backward()
        assert solution.adjoint.method == name
