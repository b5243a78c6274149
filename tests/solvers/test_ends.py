"""How solves end that cannot go on: stagnation, systems without a solution, numbers out of range; and what is
said of it. Systems of every character in any units: tests/stress/converged.py."""

import time
import warnings
from typing import NamedTuple

import pytest
import torch
from reference import normal
from solvers.cases import quiet
from solvers.krylov import RECTANGULAR, SQUARE, SYMMETRIC, S, poisson, run

import learnsolve as ls
from learnsolve.solvers import ConvergenceWarning, Status
from learnsolve.solvers.core.advance import ResidualNorm
from learnsolve.solvers.core.loop import iterate
from learnsolve.solvers.core.operators import Matrix, System
from learnsolve.solvers.solution import STATUSES

ALL = (*SQUARE, *RECTANGULAR)
STATIONARY = {
    "richardson": lambda A, b, **k: S.richardson(A, b, weight=0.25, **k),
    "heavyball": lambda A, b, **k: S.heavyball(A, b, alpha=0.2, beta=0.5, **k),
    "chebyshev": lambda A, b, **k: S.chebyshev(A, b, lmin=0.1, lmax=8.0, **k),
    "gauss_seidel": S.gauss_seidel,
    "ssor": lambda A, b, **k: S.ssor(A, b, omega=1.5, **k),
}
every_square = pytest.mark.parametrize("name", SQUARE)
every_rectangular = pytest.mark.parametrize("name", RECTANGULAR)
every_stationary = pytest.mark.parametrize("name", STATIONARY)


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
    solution = STATIONARY[name](A, b, rtol=1e-8, maxiter=20000)
    assert solution.status is Status.STAGNATED
    assert solution.iterations < 1000
    assert solution.residual_norms[-1] <= 4 * solution.residual_norms.min()


class Iterate(NamedTuple):
    x: torch.Tensor
    r: torch.Tensor


class Drifting:
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
        assert not S.minres(A, b, rtol=0.0, maxiter=30).converged
        assert S.gmres(A, b, rtol=0.0, maxiter=200).iterations == 200
        assert S.richardson(A, b, weight=0.1, iterations=3).iterations == 3
        assert S.cg(A, b, rtol=0.0, maxiter=3, gradient="unrolled").iterations == 3


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
@pytest.mark.parametrize("name", [*ALL, *STATIONARY])
def test_a_nan_that_no_product_meets(name):
    A = ls.problems.poisson((4,))
    A = A.with_values(torch.where(torch.arange(A.nnz) == 3, torch.nan, A.values))
    if name in STATIONARY:
        assert STATIONARY[name](A, torch.zeros(4).double()).status is Status.NON_FINITE
        return
    assert run(name, A, torch.zeros(4).double()).status is Status.NON_FINITE
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
