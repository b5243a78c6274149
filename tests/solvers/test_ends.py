"""How solves end that cannot go on: stagnation, systems without a solution, numbers out of range; and what is
said of it."""

import time
import warnings

import pytest
import torch
from reference import normal
from solvers.krylov import RECTANGULAR, SQUARE, SYMMETRIC, S, run

import learnsolve as ls

Status, ConvergenceWarning = S.Status, S.ConvergenceWarning
ALL = (*SQUARE, *RECTANGULAR)
STATIONARY = {
    "richardson": lambda A, b, **k: S.richardson(A, b, weight=0.25, **k),
    "heavyball": lambda A, b, **k: S.heavyball(A, b, alpha=0.2, beta=0.5, **k),
    "chebyshev": lambda A, b, **k: S.chebyshev(A, b, lmin=0.1, lmax=8.0, **k),
    "gauss_seidel": S.gauss_seidel,
    "ssor": lambda A, b, **k: S.ssor(A, b, omega=1.5, **k),
}
quiet = pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")


def ones(n, dtype=torch.float64):
    return torch.ones(n, dtype=dtype)


@quiet
@pytest.mark.parametrize("of", ["CSR", "callable"])
@pytest.mark.parametrize("name", SQUARE)
def test_stagnation_stops(name, of):
    A, b = ls.problems.poisson((32, 32)).to(torch.float32), ones(1024, torch.float32)
    keywords = {} if of == "CSR" or name in SYMMETRIC else {"transpose": lambda x: A @ x}
    solution = getattr(S, name)(A if of == "CSR" else lambda x: A @ x, b, rtol=1e-6, **keywords)
    assert solution.status is Status.STAGNATED
    assert solution.iterations < 400  # maxiter is 10,240
    true = torch.linalg.vector_norm(b.double() - A.to(torch.float64) @ solution.x.double()) / 32
    assert true < 5e-5  # the condition number is 440
    assert solution.residual_norms[-1] / 32 < 1.5 * true + 1e-6
    assert "asked: 1e-06" in solution.summary()
    assert "||b - A x|| / ||b|| is" in solution.summary()
    assert "float64" in solution.summary()


@quiet
def test_stagnation_stops_a_recurrence_that_never_meets_its_tolerance():
    A = ls.problems.poisson((20_000,)).to(torch.float32)
    solution = S.cg(A, normal((20_000,), torch.float32), rtol=1e-7)
    assert solution.status is Status.STAGNATED
    assert solution.iterations < 10_000  # maxiter is 200,000


@quiet
@pytest.mark.parametrize("name", STATIONARY)
def test_stagnation_stops_stationary_methods(name):
    A, b = ls.problems.poisson((12, 12)).to(torch.float32), ones(144, torch.float32)
    solution = STATIONARY[name](A, b, rtol=1e-8, maxiter=20000)
    assert solution.status is Status.STAGNATED
    assert solution.iterations < 1000
    assert solution.residual_norms[-1] <= 4 * solution.residual_norms.min()


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
@pytest.mark.parametrize("name", RECTANGULAR)
def test_stagnation_stops_least_squares(name):
    """b is nearly in the range of A, and x large: A^T r has no correct digit."""
    Q, W = (torch.linalg.qr(normal((40, 20), seed=s))[0] for s in (1, 2))
    A = ls.CSR.from_dense((Q * torch.logspace(0, -5, 20, dtype=Q.dtype)) @ W[:20].mT @ torch.eye(20).double())
    b = Q.sum(1) + 1e-7 * normal((40,))
    solution = getattr(S, name)(A, b, atol=0, btol=0, conlim=0, maxiter=100_000)
    assert solution.status in (Status.STAGNATED, Status.CONVERGED)
    assert solution.iterations < 5000


def test_no_tolerance_no_stagnation():
    A, b = ls.problems.poisson((8, 8)).to(torch.float32), ones(64, torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = S.minres(A, b, rtol=0.0, maxiter=30)
        assert S.gmres(A, b, rtol=0.0, maxiter=200).iterations == 200
        assert S.richardson(A, b, weight=0.1, iterations=3).iterations == 3
        assert S.cg(A, b, rtol=0.0, maxiter=3, gradient="unrolled").iterations == 3
    assert not solution.converged


def test_slow_convergence_is_no_stagnation():
    A, b = ls.problems.poisson((12,)), ones(12)
    assert S.richardson(A, b, weight=0.2, rtol=1e-12, maxiter=9_000).iterations > 1000
    assert S.richardson(A, b, weight=0.2, rtol=1e-12, maxiter=9_000).converged
    assert S.richardson(A.to(torch.float32), b.float(), weight=0.2, rtol=1e-5, maxiter=9_000).converged


def test_a_plateau_is_no_stagnation():
    """The residual of a cyclic shift stays where it is until the last iteration; that of minres for
    eigenvalues +-d in every second one; cg's on a condition of 1e6 for hundreds."""
    n = 120
    shift = ls.CSR.from_dense(torch.roll(torch.eye(n), 1, 0).double())
    solution = S.gmres(shift, torch.eye(n).double()[0], restart=n, rtol=1e-10)
    assert solution.converged
    assert solution.iterations == n
    d = torch.linspace(1, 100, 60, dtype=torch.float64)
    both = ls.CSR.from_dense(torch.diag(torch.cat((d, -d))))
    assert S.minres(both, ones(120), rtol=1e-10).converged
    hard = ls.CSR.from_dense(torch.diag(torch.logspace(0, 6, 100, dtype=torch.float64)))
    assert S.cg(hard, ones(100), rtol=1e-8, maxiter=5_000).converged
    assert S.fcg(hard, ones(100), rtol=1e-8, maxiter=5_000).converged


@quiet
@pytest.mark.parametrize("name", SQUARE)
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
@pytest.mark.parametrize("name", RECTANGULAR)
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
def test_indefinite_is_not_without_solution():
    for d in ([1.0, -1.0], [1e10, -1.0], [1.0, 2.0, -1e-3]):
        D = torch.diag(torch.tensor(d, dtype=torch.float64))
        assert S.cg(ls.CSR.from_dense(D), ones(len(d))).status is Status.INDEFINITE
        assert S.fcg(lambda x, D=D: D @ x, ones(len(d))).status is Status.INDEFINITE


@quiet
@pytest.mark.parametrize("name", ALL)
def test_a_nan_that_no_product_meets(name):
    D = 2 * torch.eye(4).double()
    D[2, 2] = 0  # row and column are empty
    x0 = torch.tensor([0.0, 0.0, torch.nan, 0.0]).double()
    b = torch.tensor([1.0, 1.0, 0.0, 1.0]).double()
    assert run(name, ls.CSR.from_dense(D), b, x0).status is Status.NON_FINITE
    A = ls.problems.poisson((4,))
    A = A.with_values(torch.where(torch.arange(A.nnz) == 3, torch.nan, A.values))
    assert run(name, A, 0 * b).status is Status.NON_FINITE


@quiet
@pytest.mark.parametrize("of", ["CSR", "callable"])
@pytest.mark.parametrize("name", SQUARE)
def test_an_infinity_is_named_whatever_the_method_takes_it_for(name, of):
    """An infinite curvature looks like a breakdown, and b then like one without a solution."""
    D = ls.problems.poisson((20,)).to_dense()
    D[-1, -1] = torch.inf
    A, keywords = ls.CSR.from_dense(D), {}
    if of == "callable":
        A, keywords = (lambda x: D @ x), {} if name in SYMMETRIC else {"transpose": lambda x: D.T @ x}
    b = torch.zeros(20).double()
    b[0] = 1
    for maxiter in (0, 3, 200):
        assert run(name, A, b, maxiter=maxiter, **keywords).status is Status.NON_FINITE
        M = ls.CSR.from_dense(-torch.eye(20).double())  # INDEFINITE before A is met
        assert run(name, A, b, maxiter=maxiter, M=M, **keywords).status is Status.NON_FINITE


@quiet
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SQUARE)
def test_products_with_subnormal_matrices_keep_their_digits(name, dtype):
    """x has the size of one in the solver's units: its products with A would be subnormal, of few digits."""
    unit, tol = {torch.float32: (2.0**-135, 1e-6), torch.float64: (2.0**-1060, 1e-12)}[dtype]
    D = torch.tensor([[4.0, 1.0, 0.0], [1.0, 5.0, 2.0], [0.0, 2.0, 6.0]], dtype=dtype)
    b = torch.tensor([[0.3, 0.7, 0.11], [1.3, 0.1, 0.9]], dtype=dtype).T.contiguous()
    for small in (b, b[:, 0]):
        solution = run(name, ls.CSR.from_dense(D * unit), small * (unit * 2.0**60), tol=tol)
        wanted = run(name, ls.CSR.from_dense(D), small, tol=tol)
        assert solution.converged
        assert solution.iterations == wanted.iterations
        torch.testing.assert_close(solution.x * 2.0**-60, wanted.x, rtol=8 * torch.finfo(dtype).eps, atol=0)


@quiet
@pytest.mark.parametrize("name", RECTANGULAR)
def test_least_squares_of_a_callable_that_underflows_are_not_solved_by_zero(name):
    """The squares of A^T b are zero, not A^T b."""
    D = 1e-26 * torch.tensor([[2.0, 1.0], [1.0, 3.0], [0.5, 0.0]])
    solution = run(name, lambda x: D @ x, torch.ones(3), tol=1e-5, transpose=lambda y: D.T @ y)
    assert solution.x.any() or not solution.converged


@quiet
@pytest.mark.parametrize("name", STATIONARY)
def test_a_nan_in_x0_or_with_no_right_hand_side(name):
    A = ls.problems.poisson((4,))
    A = A.with_values(torch.where(torch.arange(A.nnz) == 1, torch.nan, A.values))
    assert STATIONARY[name](A, torch.zeros(4).double()).status is Status.NON_FINITE


@quiet
@pytest.mark.parametrize("name", ALL)
def test_digits_lost_below_the_range(name):
    b = 1e-320 * torch.tensor([1.0, 0.3, 0.7, 0.2], dtype=torch.float64)
    solution = run(name, ls.problems.poisson((4,)), b, tol=1e-8)
    assert solution.status is Status.STAGNATED
    one = ls.CSR.from_dense(torch.tensor([[1e300]], dtype=torch.float64))
    assert not run(name, one, torch.tensor([1e-15], dtype=torch.float64), tol=1e-12).converged
    assert run(name, one, torch.tensor([1e-3]).double(), tol=1e-12).converged


@quiet
@pytest.mark.parametrize("name", SQUARE)
def test_digits_lost_below_the_range_beside_a_column_that_is_not_finite(name):
    """The check of one column does not depend on its neighbours."""
    A = ls.CSR.from_dense(torch.tensor([[1e300]], dtype=torch.float64))
    b, x0 = torch.tensor([[[1e-15, 1.0]], [[0.0, torch.nan]]], dtype=torch.float64)
    assert Status.CONVERGED not in run(name, A, b, x0, tol=1e-12).statuses


@quiet
@pytest.mark.parametrize("name", SQUARE)
def test_an_absolute_tolerance_in_the_smallest_units(name):
    """The reciprocal of the unit of b is infinite; the tolerance is not."""
    A = ls.CSR.from_dense(torch.tensor([[2.0]], dtype=torch.float64))
    b = torch.tensor([4e-309], dtype=torch.float64)
    solution = getattr(S, name)(A, b, rtol=1e-4, atol=1e-313)
    assert solution.converged
    assert solution.x.item() == 2e-309


@quiet
@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.parametrize(("entry", "atol"), [(1e-300, 1e10), (1e150, 1e-200)])
def test_zeros_are_solved_by_zeros_in_any_units(name, entry, atol):
    """The unit of x is infinite or zero."""
    A = ls.CSR.from_dense(torch.tensor([[entry]], dtype=torch.float64))
    solution = getattr(S, name)(A, torch.zeros(1, dtype=torch.float64), atol=atol)
    assert solution.converged
    assert solution.x.item() == 0


def test_an_adjoint_that_lost_digits_warns():
    b = torch.tensor([1e10], dtype=torch.float64, requires_grad=True)
    solution = S.cg(ls.CSR.from_dense(torch.tensor([[1e300]], dtype=torch.float64)), b, rtol=1e-12)
    with pytest.warns(ConvergenceWarning, match="adjoint solve .* did not converge.*STAGNATED"):
        (1e-15 * solution.x.sum()).backward()


def test_an_absolute_tolerance_far_above_b():
    A, b = ls.problems.poisson((4,)), 1e-320 * ones(4)
    for x0 in (None, ones(4)):
        solution = S.cg(A, b, x0, atol=1e-8)
        assert solution.converged
        assert torch.linalg.vector_norm(b - A @ solution.x) <= 1e-8


@quiet
def test_the_search_for_a_cause_stays_within_the_range():
    """Squares of A A^T b overflow in float32; each product with A is finite all the same."""
    rows = [[3.63325, 0, 0, 0, -1.53869], [0, -7.09431, 1.74328, 0.812086, 0], [0, 1.74328, 5.15444, 0, 0]]
    rows += [[0, 0.812086, 0, -4.03631, -1.12966], [-1.53869, 0, 0, -1.12966, 4.76291]]
    A = ls.CSR.from_dense(1e18 * torch.tensor(rows))
    found = []

    def product(x):
        found.append(A @ x)
        return found[-1]

    b = torch.tensor([2.10572, 1.75259, 0.0827515, -0.448662, 0.425299])
    M = ls.CSR.from_dense(1e-18 * torch.eye(5))
    solution = S.fcg(product, b, M=M)
    assert solution.status is Status.INDEFINITE
    assert all(bool(y.isfinite().all()) for y in found)


@pytest.mark.parametrize("name", RECTANGULAR)
@pytest.mark.parametrize(("dtype", "large"), [(torch.float64, 1e160), (torch.float32, 1e19)], ids=str)
def test_norms_that_overflow_prove_nothing(name, dtype, large):
    A = ls.CSR.from_dense(torch.diag(torch.tensor([large, 1.0], dtype=dtype)))
    b = torch.ones(2, dtype=dtype)
    assert A.values.isfinite().all()
    solution = getattr(S, name)(A, b, conlim=0)
    assert solution.converged
    torch.testing.assert_close(solution.x[0] * large, b[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = getattr(S, name)(A, b, torch.tensor([large, 0.0], dtype=dtype), maxiter=0)
    assert not wrong.converged


@pytest.mark.parametrize("name", RECTANGULAR)
def test_least_squares_stop_by_the_frobenius_norm(name):
    A = ls.CSR.from_dense(normal((60, 40)) * torch.logspace(0, -4, 40, dtype=torch.float64))
    b = normal((60,))
    solution = getattr(S, name)(A, b, atol=1e-9, btol=0.0, conlim=0.0, maxiter=4000)
    assert solution.converged
    D = A.to_dense()
    r = b - D @ solution.x
    assert (D.T @ r).norm() <= 1.001e-9 * D.norm() * r.norm()


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


@pytest.mark.parametrize("gradient", ["implicit", "unrolled", "checkpointed"])
@pytest.mark.parametrize("name", ALL)
def test_who_did_not_converge_warns(name, gradient):
    A, b = ls.problems.poisson((20,)), normal((20,)).requires_grad_()
    with pytest.warns(ConvergenceWarning, match=f"{name}: did not converge: MAX_ITERATIONS"):
        run(name, A, b, maxiter=2, gradient=gradient)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(name, A, b, maxiter=2, gradient=gradient, callback=lambda at: True)  # asked to stop
        run(name, A, b, tol=0.0, maxiter=2, gradient=gradient)  # no tolerance
        with pytest.raises(S.SolverError):
            run(name, A, b, maxiter=2, gradient=gradient, throw=True)


def test_a_solution_has_no_truth_value():
    with pytest.raises(TypeError, match=r"\.converged.*solution\.statuses"):
        bool(S.cg(ls.problems.poisson((4,)), ones(4)))


@pytest.mark.parametrize("name", ALL)
def test_none_is_the_default_tolerance(name):
    A, b = ls.problems.poisson((4, 4)), normal((16,))
    keys = ("rtol", "atol") if name in SQUARE else ("atol", "btol", "conlim")
    found = getattr(S, name)(A, b, **dict.fromkeys(keys))
    assert torch.equal(found.x, getattr(S, name)(A, b).x)


@pytest.mark.parametrize("name", SQUARE)
def test_a_class_is_no_preconditioner(name):
    A, b = ls.problems.poisson((4,)), ones(4)
    with pytest.raises(TypeError, match=rf"{name}: M is the class IC0.*give IC0\(A\)"):
        getattr(S, name)(A, b, M=ls.preconditioners.IC0)
    with pytest.raises(TypeError, match="richardson: M is the class IC0"):
        S.richardson(A, b, M=ls.preconditioners.IC0, iterations=2)


@pytest.mark.parametrize("name", ["cg", "fcg", "gmres", "fgmres"])
def test_products_of_a_solve(name):
    """One an iteration, and one for the true residual; with x0 one more."""
    D, calls = ls.problems.poisson((4,)).to_dense(), {"A": 0, "M": 0}

    def counted(key, f):
        def g(x):
            calls[key] += 1
            return f(x)

        return g

    A, M = counted("A", lambda x: D @ x), counted("M", lambda r: r / 2)
    keywords = {} if name in SYMMETRIC else {"transpose": lambda x: D @ x}
    for x0 in (None, ones(4)):
        calls.update(A=0, M=0)
        n = getattr(S, name)(A, ones(4), x0, M=M, **keywords).iterations
        assert calls["A"] == n + 1 + (x0 is not None)
        assert calls["M"] <= n + 1
    b, learned = ones(4), torch.ones(4, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match="A computes with tensors that require grad"):
        getattr(S, name)(lambda x: learned * x, b, **keywords)
    with pytest.raises(ValueError, match="M requires grad"):
        getattr(S, name)(A, b, M=lambda r: learned * r, **keywords)


@pytest.mark.parametrize("name", RECTANGULAR)
def test_stagnation_of_rectangular_callables_is_measured(name):
    """More than twenty iterations, after which it is, of a function whose entries nothing knows."""
    D = normal((60, 30)) + 4 * torch.eye(60, 30, dtype=torch.float64)
    b = normal((60,), seed=1)
    solution = getattr(S, name)(lambda x: D @ x, b, transpose=lambda y: D.mT @ y)
    assert solution.converged
    assert solution.iterations > 20
    torch.testing.assert_close(D.mT @ (b - D @ solution.x), torch.zeros(30).double(), rtol=0, atol=1e-4)


def test_a_solve_says_how_long_it_took():
    A, b = ls.problems.poisson((20, 20)), torch.ones(400, dtype=torch.float64)
    start = time.perf_counter()
    solution = ls.solvers.cg(A, b, rtol=1e-10)
    assert 0 < solution.seconds < time.perf_counter() - start
    assert ls.solvers.jacobi(A, b, iterations=2).seconds is None
    assert ls.solvers.gmres(A, b, maxiter=4, rtol=0.0).seconds > 0


@pytest.mark.parametrize("name", ["cg", "fcg", "minres", "bicgstab", "gmres", "fgmres", "lsqr", "lsmr"])
def test_a_solve_says_how_many_products_it_took(name):
    A, b, calls = ls.problems.poisson((9, 8)), torch.ones(72, dtype=torch.float64), []

    def counted(x):
        calls[-1] += 1
        return A @ x

    if name in RECTANGULAR:
        options = {"transpose": counted, "atol": 0.0, "btol": 0.0}
    else:
        options = {"rtol": 0.0, "gradient": "unrolled"} | ({"restart": 3} if "gmres" in name else {})
    products = []
    for maxiter in (2, 9):
        calls.append(0)
        products.append(getattr(S, name)(counted, b, maxiter=maxiter, **options).products)
    assert calls[1] - calls[0] == products[1] - products[0] >= 7  # the first residual, checks: in both
    assert products[0] <= calls[0]
