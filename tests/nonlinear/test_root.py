"""Nonlinear equations, least squares, time steps: solutions, statuses, derivatives, errors."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import learnsolve as ls
from learnsolve.nonlinear import _methods, jacobians
from learnsolve.solvers import ConvergenceWarning, SolverError, Status

N: Any = ls.nonlinear  # the tests of errors pass arguments of wrong types
A = ls.problems.poisson((4, 4))
ROOTS = ("newton", "newton-krylov", "chord", "lm", "anderson")


def cubic(u, a):
    return u + 0.1 * u**3 - a


def bratu(u, a):
    return A @ u - 0.1 * a * torch.exp(u)


def rosenbrock(u, a):
    return torch.stack([u[0] ** 2 - u[1], (1 - u[0]) * a[0]])


def field(n, seed=0):
    return torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.5


def zeros(n):
    return torch.zeros(n, dtype=torch.float64)


def solve(kind, a, **options):
    """One system by every function, whose solution is u + 0.1 u^3 = a."""
    if kind == "fixed_point":
        return N.fixed_point(lambda u, a: a - 0.1 * u**3, zeros(len(a)), a, **options)
    if kind == "least_squares":  # with a residual that does not vanish
        return N.least_squares(lambda u, a: torch.cat([cubic(u, a), u - 1]), zeros(len(a)), a, **options)
    return N.root(cubic, zeros(len(a)), a, method=kind, **options)


@pytest.mark.parametrize("method", ROOTS)
@pytest.mark.parametrize(("f", "n"), [(cubic, 5), (bratu, 16), (rosenbrock, 2)])
def test_a_solution_has_a_small_residual(f, n, method):
    a = field(n)
    if f is bratu and method == "anderson":
        pytest.skip("u - f(u) is no contraction for eigenvalues up to 8")
    solution = N.root(f, zeros(n), a, method=method, rtol=1e-11, maxiter=400)
    assert solution.status is Status.CONVERGED
    norms = solution.residual_norms
    assert torch.linalg.vector_norm(f(solution.x, a)) <= 1e-11 * norms[0] * (1 + 1e-9)
    assert norms.shape == (solution.iterations + 1,)


@pytest.mark.parametrize("linear", ["direct", "cg", lambda J, b: ls.solvers.cg(J, b, rtol=1e-12)])
@pytest.mark.parametrize("jacobian", ["pattern", "function", None])
def test_gradient_for_a_field_against_central_differences(jacobian, linear):
    J = {"pattern": A, "function": lambda u, a: A - ls.ops.diag(0.1 * a * torch.exp(u)), None: None}[jacobian]
    if J is None and linear == "direct":
        with pytest.raises(ValueError, match='linear="direct" needs an assembled Jacobian'):
            N.root(bratu, zeros(16), field(16), jacobian=J, linear=linear)
        return
    a, weights = field(16).requires_grad_(), field(16, 1)

    def loss(a):
        return N.root(bratu, zeros(16), a, jacobian=J, linear=linear, rtol=1e-12).x @ weights

    (g,) = torch.autograd.grad(loss(a), a)
    with torch.no_grad():
        for e in torch.eye(16, dtype=torch.float64)[::6] * 1e-4:
            difference = (loss(a + e) - loss(a - e)) / 2e-4
            assert torch.allclose(g @ e / 1e-4, difference, rtol=1e-6, atol=1e-9)


def test_a_system_of_a_batch_that_fails_leaves_the_others_alone():
    solutions = []

    def x(a):
        solutions.append(N.root(lambda u, a: u * u - a, torch.ones(1, dtype=torch.float64), a))
        return solutions[-1].x

    batch = torch.tensor([[4.0], [-1.0], [9.0]], dtype=torch.float64)  # u^2 = -1 has no root
    with pytest.warns(ConvergenceWarning, match="root: did not converge"):
        u = torch.vmap(x)(batch)
    assert [s is Status.CONVERGED for s in solutions[0].statuses] == [True, False, True]
    assert torch.allclose(u[[0, 2], 0], torch.tensor([2.0, 3.0], dtype=torch.float64))


@pytest.mark.parametrize("kind", [*ROOTS[:4], "fixed_point", "least_squares"])
def test_one_is_solved_one_is_not_finite_one_is_slow(kind):
    """In one batch: statuses and gradients are those of each alone."""
    batch, solutions = torch.tensor([[1.0], [-1.0], [1e6], [4.0]], dtype=torch.float64), []
    ones = torch.ones(1, dtype=torch.float64)

    def x(a):
        options: dict[str, Any] = {"rtol": 1e-12, "maxiter": 300, "atol": 1e-12}
        if kind == "fixed_point":  # of Heron
            solution = N.fixed_point(lambda u, a: (u + a / u) / 2 + 0 * a.sqrt(), ones, a, **options)
        elif kind == "least_squares":
            solution = N.least_squares(lambda u, a: u * u - a + 0 * a.sqrt(), ones, a, **options)
        else:
            solution = N.root(lambda u, a: u * u - a + 0 * a.sqrt(), ones, a, method=kind, **options)
        solutions.append(solution)
        return solution.x

    with pytest.warns(ConvergenceWarning, match="NON_FINITE"):
        g = torch.vmap(torch.func.grad(lambda a: x(a).sum()))(batch)
    good = [0, 2, 3]
    assert [i for i, s in enumerate(solutions[0].statuses) if s is Status.CONVERGED] == good
    assert torch.allclose(g[good], 0.5 / batch[good].sqrt(), rtol=1e-6)
    assert g[1].isnan()


def test_gradients_for_whatever_args_hold():
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 3).double()
    matrix = ls.problems.poisson((3,)).requires_grad_()
    bias = {"b": [field(3).requires_grad_()]}

    def f(u, net, matrix, bias):
        return matrix @ u + torch.tanh(net(u)) - bias["b"][0]

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def g(self, u, matrix, bias):
            return f(u, self.net, matrix, bias)

    wanted = [*net.parameters(), matrix.values, bias["b"][0]]
    for function, args in ((f, (net, matrix, bias)), (Layer().g, (matrix, bias))):
        u = N.root(function, zeros(3), *args, rtol=1e-12).x
        got = torch.autograd.grad(u.sum(), wanted)
        J = torch.func.jacrev(lambda u: f(u, net, matrix, bias))(u.detach())
        y = torch.linalg.solve(J.T, torch.ones(3, dtype=torch.float64))
        expected = torch.autograd.grad(-(y @ f(u.detach(), net, matrix, bias)), wanted)
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("kind", ["newton", "newton-krylov", "anderson", "fixed_point"])
def test_unrolled_gradients_are_those_of_the_steps(kind):
    """For u0 and a damping, which the solution does not depend on."""
    a, u0, t = (
        field(2),
        field(2, 1).requires_grad_(),
        torch.tensor(0.7, dtype=torch.float64, requires_grad=True),
    )
    options = {"rtol": 0.0, "maxiter": 2, "gradient": "unrolled", "adjoint_rtol": 1e-13}

    def steps(u0, t):
        if kind == "fixed_point":
            return N.fixed_point(lambda u, a: a - 0.1 * u**3, u0, a, damping=t, **options)
        t = {} if kind == "anderson" else {"line_search": t}
        return N.root(cubic, u0, a, method=kind, **t, **options)

    def outcome(u0, t):
        solution = steps(u0, t)
        assert solution.status is Status.MAX_ITERATIONS
        return solution.x, solution.residual_norms

    assert torch.autograd.gradcheck(outcome, (u0, t) if kind != "anderson" else (u0, t.detach()))


def test_the_initial_guess_gets_no_implicit_gradient():
    u0 = field(2).requires_grad_()
    assert not N.root(cubic, u0, field(2)).x.requires_grad
    a = field(2).requires_grad_()
    assert torch.autograd.grad(N.root(cubic, u0, a).x.sum(), (u0, a), allow_unused=True)[0] is None


@pytest.mark.parametrize("jacobian", ["auto", None])
def test_lsmr_does_not_square_the_condition_number(jacobian):
    V = torch.linspace(0, 1, 60, dtype=torch.float64)[:, None] ** torch.arange(10)
    c = torch.linspace(-1, 1, 10, dtype=torch.float64)
    assert torch.linalg.cond(V) > 1e6

    def r(u, y):
        return V @ u + 0.1 * (V @ u) ** 3 - y - 0.1 * y**3

    kw: dict[str, Any] = {"jacobian": jacobian, "rtol": 1e-13, "method": "gauss-newton"}
    squared, not_squared = (
        (N.least_squares(r, 0 * c, V @ c, linear=linear, **kw).x - c).norm()
        for linear in ("cg" if jacobian is None else "direct", "lsmr")
    )
    assert not_squared < 1e-9
    assert squared > 1e-7


@pytest.mark.parametrize("n", [5, 210])  # the Hessian of the adjoint solve is dense, or by products
def test_lsmr_has_the_gradient_and_takes_no_batch(n):
    a = field(n).requires_grad_()
    for jacobian in ("auto", None):
        kw: dict[str, Any] = {"jacobian": jacobian, "rtol": 1e-11, "adjoint_rtol": 1e-11}
        found = [
            torch.autograd.grad(solve("least_squares", a, linear=linear, **kw).x.square().sum(), a)[0]
            for linear in ("auto", "lsmr")
        ]
        torch.testing.assert_close(*found, rtol=1e-7, atol=1e-9)
    with pytest.raises(
        NotImplementedError, match='least_squares: linear="lsmr" takes one system, under vmap'
    ):
        torch.vmap(lambda a: solve("least_squares", a, linear="lsmr").x)(torch.stack([a, a]))
    with pytest.raises(ValueError, match="root: linear must be one of"):
        N.root(cubic, zeros(n), a, linear="lsmr", method="lm")


def one(value):
    return torch.tensor([value], dtype=torch.float64)


STATUSES = [
    ("LINE_SEARCH_FAILED", lambda u: u * u + 1, 0.9, {}),
    ("SINGULAR_JACOBIAN", lambda u: u * u + 1, 0.0, {}),
    ("SINGULAR_JACOBIAN", lambda u: u * u + 1, 0.9, {"method": "lm"}),
    ("STAGNATED", lambda u: u * u - 2, 1.0, {"rtol": 0.0, "atol": 1e-300}),
    ("MAX_ITERATIONS", lambda u: u**3, 1.0, {"maxiter": 3}),
    ("SINGULAR_JACOBIAN", torch.atan, 3.0, {"line_search": None}),  # overflows
    ("STOPPED_BY_CALLBACK", lambda u: u**3, 1.0, {"callback": lambda i: i.iteration == 2}),
    ("CONVERGED", torch.atan, 3.0, {}),
    ("CONVERGED", torch.atan, 3.0, {"pseudo_transient": 1.0}),
    ("CONVERGED", lambda u: torch.log(u), 9.0, {}),  # full steps leave the domain
]


@pytest.mark.parametrize(("name", "f", "start", "options"), STATUSES)
def test_statuses(name, f, start, options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solution = N.root(f, one(start), **options)
    assert solution.status.name == name, solution.residual_norms
    silent = name in ("CONVERGED", "STOPPED_BY_CALLBACK")
    assert (
        [str(w.message).split(".")[0] for w in caught] == []
        if silent
        else [f"root: did not converge: {name}"]
    )
    if not silent:
        with pytest.raises(SolverError, match=name):
            N.root(f, one(start), throw=True, **options)


def test_iterations_that_grow_end():
    with pytest.warns(ConvergenceWarning, match="fixed_point: did not converge: DIVERGED"):
        N.fixed_point(lambda x: 3 * x, one(1.0), memory=0)


def test_what_is_huge_or_tiny_is_not_called_converged():
    for scale in (1e-200, 1e200):
        solution = N.root(lambda u, s: s * cubic(u, field(3)), zeros(3), one(scale), rtol=1e-10)
        assert solution.converged
        assert torch.linalg.vector_norm(cubic(solution.x, field(3))) < 1e-9


def counted(function):
    def call(*args):
        call.count += 1
        return function(*args)

    call.count = 0
    return call


def test_chord_and_lagged_preconditioners_do_less():
    a, kw = field(16), dict[str, Any](rtol=1e-10)
    jacobian = counted(lambda u, a: A - ls.ops.diag(0.1 * a * torch.exp(u)))
    N.root(bratu, zeros(16), a, jacobian=jacobian, **kw)
    newton, jacobian.count = jacobian.count, 0
    solution = N.root(bratu, zeros(16), a, jacobian=jacobian, method="chord", **kw)
    assert (solution.converged, jacobian.count) == (True, 1)
    assert newton > 2
    M = counted(ls.preconditioners.IC)
    assert N.root(bratu, zeros(16), a, jacobian=A, linear="cg", M=M, **kw).converged
    assert M.count == 1


def test_a_wrong_jacobian_gives_an_error_not_a_wrong_gradient():
    a = field(16).requires_grad_()
    u = N.root(
        bratu, zeros(16), a, jacobian=lambda u, a: A
    ).x  # without the derivative of exp: converges, slowly
    with pytest.raises(ValueError, match="root: jacobian is not the Jacobian of f at the solution"):
        u.sum().backward()


def grid_bratu(u, a):
    v = torch.nn.functional.pad(u, (1, 1, 1, 1))
    return 4 * u - v[2:, 1:-1] - v[:-2, 1:-1] - v[1:-1, 2:] - v[1:-1, :-2] - 0.003 * a * u.exp()


def test_the_pattern_is_found_in_the_program_also_under_vmap():
    u0, a = (
        torch.zeros(15, 15, dtype=torch.float64),
        torch.stack([field(225), field(225, 1)]).reshape(2, 15, 15),
    )
    solutions = []

    def x(a, jacobian: Any = "auto"):
        solutions.append(N.root(grid_bratu, u0, a, jacobian=jacobian, rtol=1e-10))
        return solutions[-1].x

    together = torch.vmap(x)(a)
    assert torch.allclose(together[1], x(a[1]), rtol=1e-9)
    assert torch.allclose(together[1], x(a[1], None), rtol=1e-9)
    assert [s.reason for s in solutions[1:]] == ["a factorization is cheap", "J by products"]
    assert [s.method for s in solutions[1:]] == ["direct", "gmres"]


def test_a_jacobian_is_analyzed_once_where_it_is_kept(monkeypatch):
    """As a training loop keeps it; a function that changes is analyzed again."""
    trace = counted(jacobians.trace_pattern)
    monkeypatch.setattr(jacobians, "trace_pattern", trace)
    shift, u0 = 1, torch.zeros(15, 15, dtype=torch.float64)

    def f(u, a):
        return grid_bratu(u, a) + 0.5 * (u - u.roll(shift, 0))

    J, a = N.jacobian(f), torch.zeros(15, 15)
    for seed in range(3):
        a = field(225, seed).reshape(15, 15).requires_grad_()
        for gradient in ("implicit", "unrolled"):
            grads = [
                torch.autograd.grad(N.root(f, u0, a, jacobian=j, rtol=1e-10, gradient=gradient).x.sum(), a)[0]
                for j in (J, "auto")
            ]
            torch.testing.assert_close(*grads, rtol=1e-7, atol=0)
    together = torch.vmap(lambda a: N.root(f, u0, a, jacobian=J, rtol=1e-10).x)(torch.stack([a, 2 * a]))
    torch.testing.assert_close(together[1], N.root(f, u0, 2 * a, jacobian=J, rtol=1e-10).x)
    assert trace.count == 1 + 6  # those of "auto"
    shift = 4  # another pattern
    kept, new = (
        torch.autograd.grad(N.root(f, u0, a, jacobian=j, rtol=1e-10).x.sum(), a)[0] for j in (J, "auto")
    )
    torch.testing.assert_close(kept, new, rtol=1e-7, atol=0)
    assert trace.count == 7 + 2


def test_a_compiled_function_breaks_its_graph_here():
    solve = torch.compile(lambda a: 2 * N.root(cubic, zeros(2), a).x, backend="eager")
    assert torch.allclose(solve(field(2)), 2 * N.root(cubic, zeros(2), field(2)).x)


def test_float32_and_any_shape():
    u0 = torch.zeros(2, 3)
    solution = N.root(cubic, u0, torch.ones(2, 3))
    assert solution.converged
    assert solution.x.shape == (2, 3)
    assert solution.x.dtype == torch.float32


def test_a_residual_may_grow_without_bound():
    """The next linear system is solved roughly: no error of Python's floats."""
    progress = SimpleNamespace(running=torch.tensor([True]), target=torch.ones(1))
    assert 0 < _methods._forcing(0.1, 1e200, progress, torch.tensor([1e300], dtype=torch.float64)) < 1


# --- `implicit_euler` and `trapezoidal` ---


STEPPERS = [(N.implicit_euler, 1), (N.trapezoidal, 2)]
U0 = torch.tensor([1.0, 0.5], dtype=torch.float64)


def decay(u, a):
    return -a * u**3


def exact(t, a):
    return U0 / torch.sqrt(1 + 2 * a * U0**2 * t)


@pytest.mark.parametrize(("step", "order"), STEPPERS)
def test_order(step, order):
    a = torch.tensor(1.5, dtype=torch.float64)
    errors = [(step(decay, U0, n, 1 / n, a, rtol=1e-12).x - exact(1, a)).abs().max() for n in (20, 40)]
    assert abs(torch.log2(errors[0] / errors[1]) - order) < 0.1


@pytest.mark.rows(1)
@pytest.mark.parametrize(("step", "order"), STEPPERS)
def test_a_backward_repeats_each_step_once_and_holds_few(step, order):
    """Of 16 steps the graph of a segment of 4 is held at a time: states, not Jacobians, of the others."""
    A = ls.problems.poisson((30,))
    calls, alive, most = [0], [0], [0]

    class Held(ls.preconditioners.Jacobi):  # lives as long as the graph of its step
        def __init__(self, A):
            super().__init__(A)
            alive[0] += 1
            most[0] = max(most[0], alive[0])

        def __del__(self):
            alive[0] -= 1

    def f(u, a):
        calls[0] += 1
        return -a * (A @ u) - u**3

    a = torch.ones(30, dtype=torch.float64, requires_grad=True)
    u = step(f, torch.ones(30, dtype=torch.float64), 16, 0.01, a, jacobian=A, linear="cg", M=Held).x
    assert most[0] == 1  # the graph of the forward has states alone
    forward = calls[0]
    (g,) = torch.autograd.grad(u.sum(), a)
    assert most[0] <= 2
    assert calls[0] < 3 * forward
    assert torch.isfinite(g).all()


def test_a_pattern_without_the_diagonal_and_a_function_of_f():
    def f(u, a):
        return a * torch.roll(u, 1)  # no entry on the diagonal

    n = 4
    P = ls.CSR.from_dense(torch.roll(torch.eye(n, dtype=torch.float64), 1, 0))
    a = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    u0 = torch.arange(n, dtype=torch.float64)
    ends = [N.implicit_euler(f, u0, 3, 0.5, a, jacobian=J).x for J in ("auto", P, lambda u, a: P * a, None)]
    gradients = [torch.autograd.grad(u.square().sum(), a)[0] for u in ends]
    assert all(torch.allclose(u, ends[0], rtol=1e-7) for u in ends)
    assert all(torch.allclose(g, gradients[0], rtol=1e-6) for g in gradients)


def test_a_step_that_fails_is_named_and_a_state_at_rest_stays():
    with pytest.warns(ConvergenceWarning, match="implicit_euler: did not converge"):
        solution = N.implicit_euler(lambda u: u * u + 1, U0, 2, 10.0)
    assert not solution.converged
    rest = N.trapezoidal(lambda u: 1 / 3 - u, torch.full((2,), 1 / 3, dtype=torch.float64), 5, 0.1)
    assert rest.converged


# --- starts at the solution, and Jacobians that are not quite those of f ---


F64 = torch.float64
METHODS = (
    "newton",
    "newton-krylov",
    "chord",
    "lm",
    "anderson",
    "fixed_point",
    "least_squares",
    "gauss-newton",
)


def call(method, f, u0, a, **options):
    if method == "fixed_point":
        return N.fixed_point(lambda u, a: u - f(u, a), u0, a, **options)
    if method in ("least_squares", "gauss-newton"):
        method = "lm" if method == "least_squares" else method
        return N.least_squares(f, u0, a, method=method, **options)
    return N.root(f, u0, a, method=method, **options)


@pytest.mark.parametrize("method", METHODS)
def test_a_start_at_the_result_of_a_former_solve_is_converged(method):
    """As in time stepping, alone and under vmap, with equations of different sizes."""
    B = torch.eye(4, dtype=F64) + 0.1 * torch.rand(
        4, 4, dtype=F64, generator=torch.Generator().manual_seed(0)
    )
    scale = torch.tensor([1.0, 0.9, 0.3, 0.1], dtype=F64)
    a = torch.rand(20, 4, dtype=F64, generator=torch.Generator().manual_seed(1)) + 0.5

    def f(u, a):
        return 0.5 * scale * (B @ u + 0.1 * u**3 - a)

    u = torch.vmap(lambda a: N.root(f, torch.ones_like(a), a, rtol=1e-12).x)(a)
    solutions = [call(method, f, u[i], a[i]) for i in range(3)]
    torch.vmap(lambda u, a: solutions.append(call(method, f, u, a)) or solutions[-1].x)(u, a)
    assert {status for solution in solutions for status in solution.statuses} == {Status.CONVERGED}


@pytest.mark.parametrize("method", ["newton", "chord", "lm", "anderson", "fixed_point"])
def test_a_large_equation_that_is_solved_does_not_hide_a_small_one(method):
    def f(u, a):
        return torch.stack([1e20 * (u[0] ** 2 - a[0]), 0.5 * (u[1] - a[1])])

    a = torch.tensor([2.0, 1.0], dtype=F64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        solution = call(method, f, torch.stack([a[0].sqrt(), a[1] + 1]), a)
    assert solution.status is not Status.CONVERGED or abs(solution.x[1] - 1) < 1e-6


@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30])
@pytest.mark.parametrize("method", [method for method in METHODS if method != "fixed_point"])
def test_a_small_residual_alone_is_not_converged(method, scale):
    def f(u, a):
        return scale * (u**2 - a)

    a = torch.tensor([2.0, 3.0], dtype=F64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        solution = call(method, f, a.sqrt() * (1 + 1e-6), a, maxiter=3)
    assert solution.status is not Status.CONVERGED or ((solution.x - a.sqrt()).abs() < 1e-12).all()


def ring(u, a, k):
    return 3 * u - u.roll(1) - 0.5 * u.roll(-1) + 0.1 * u**3 + k * u.roll(25) - a


def nearest(n):
    i = torch.arange(n)
    rows, columns = i.repeat(3), torch.cat([i, (i - 1) % n, (i + 1) % n])
    return ls.CSR.from_coo(rows, columns, torch.ones(3 * n, dtype=F64), (n, n)).pattern


def without_the_weak(pattern):
    rows, columns = pattern.row_indices, pattern.col_indices.long()

    def jacobian(u, a, k):
        return ls.CSR(torch.func.jacfwd(ring)(u, a, k)[rows, columns], pattern)

    return jacobian


@pytest.mark.parametrize("linear", ["auto", "gmres", "direct", lambda J, b: ls.solve(J, b)])
@pytest.mark.parametrize("n", [40, 210])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_pattern_without_a_weak_coupling_has_the_gradient(n, linear, dtype):
    a, w = (torch.rand(n, dtype=F64, generator=torch.Generator().manual_seed(s)).to(dtype) for s in (0, 1))
    k = torch.tensor(0.008, dtype=dtype)

    def gradients(jacobian, method="auto"):
        p = a.clone().requires_grad_(), k.clone().requires_grad_()
        solution = N.root(ring, torch.zeros_like(a), *p, jacobian=jacobian, linear=method, adjoint_rtol=1e-6)
        grads = torch.autograd.grad(solution.x @ w, p)
        assert solution.adjoint is not None
        assert solution.adjoint.status is Status.CONVERGED
        return grads

    expected = gradients("auto")
    for got, right in zip(gradients(without_the_weak(nearest(n)), linear), expected, strict=True):
        assert (got - right).norm() < (1e-4 if dtype == torch.float32 else 3e-6) * right.norm()


def test_tangents_and_members_of_a_vmap_are_refined_too():
    n = 40
    a = torch.rand(2, n, dtype=F64, generator=torch.Generator().manual_seed(0))
    k = torch.tensor(0.008, dtype=F64)

    def solve(a, jacobian):
        return N.root(ring, torch.zeros_like(a), a, k, jacobian=jacobian, rtol=1e-12).x

    weak = without_the_weak(nearest(n))
    for transform in (
        lambda f: torch.func.jvp(f, (a[0],), (a[1],))[1],
        lambda f: torch.func.grad(lambda a: torch.vmap(f)(a).square().sum())(a),
        lambda f: torch.vmap(torch.func.grad(lambda a: f(a).square().sum()))(a),
    ):
        got, right = (transform(lambda a, j=j: solve(a, j)) for j in (weak, "auto"))
        torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-11)


def test_a_jacobian_that_cannot_be_refined_says_so():
    """The error of J is small for the right-hand side, but not for the error that remains."""

    def f(u, a):
        return torch.stack([u[0] - a[0], u[1] + 5 * u[2] + 1e-3 * u[0] - a[1], 5 * u[1] + u[2] - a[2]])

    def jacobian(u, a):
        J = torch.func.jacrev(f)(u, a)
        return ls.CSR.from_dense(torch.diag(J.diagonal()))

    a = torch.ones(3, dtype=F64, requires_grad=True)
    exact = torch.linalg.inv(torch.func.jacrev(f)(torch.zeros(3, dtype=F64), a.detach()))
    u0 = exact @ (a.detach() - f(torch.zeros(3, dtype=F64), 0 * a.detach()))
    solution = N.root(f, u0, a, jacobian=jacobian)
    with pytest.warns(ConvergenceWarning, match="adjoint solve of the backward pass: did not converge"):
        (solution.x * torch.tensor([1.0, 1e-3, 1e-3], dtype=F64)).sum().backward()


@pytest.mark.parametrize("method", ["newton", "chord", "anderson", "fixed_point"])
def test_no_rounding_floor_is_computed_while_residuals_fall(method, monkeypatch):
    """It takes a call of f, and random numbers of the size of all parameters of a network."""
    monkeypatch.setattr(_methods, "rounding", lambda *_: pytest.fail("a usual solve pays for the floor"))
    a = torch.ones(3, dtype=F64)
    solution = call(method, lambda u, a: u - 0.3 * u.cos() - a, torch.zeros_like(a), a)
    assert solution.status is Status.CONVERGED


# --- what users do wrong with nonlinear solves ---


U = torch.full((2,), 2.0, dtype=torch.float64)
TRACKED = torch.ones(2, dtype=torch.float64, requires_grad=True)
NET = torch.nn.Dropout(0.5)
SPARSE = ls.ops.eye(2, dtype=torch.float64).to_torch()


def f(u):
    return u - 1


def of_a(f, **options):
    return torch.vmap(lambda a: N.root(f, U, a, **options).x)(torch.ones(3, 2).double())


V, T = ValueError, TypeError
WRONG = [
    (lambda: N.root(lambda u: u[:1], U), V, r"root: f\(u, \*args\) must have the shape of u, \(2,\)"),
    (
        lambda: N.root(lambda u: u.float(), U),
        T,
        "dtype and device of u, torch.float64 on cpu, got torch.float32",
    ),
    (lambda: N.root(lambda u: u + torch.rand(2), U), V, "gave other numbers when it was called again"),
    (lambda: N.root(lambda u: NET(u) - 3, U), V, r"put modules with dropout in eval\(\)"),
    (lambda: N.root(lambda u: u.mul_(2), U), V, r"f changes u in place. Let it work on a copy, u.clone\(\)"),
    (lambda: N.root(lambda u, a: a.add_(u), U, U.clone()), V, "f changes one of args in place"),
    (lambda: N.root(lambda u: u / 0, U), V, r"f\(u0, \*args\) must be finite, got 2 of 2"),
    (lambda: N.root(lambda u: 3, U), T, "must return a torch.Tensor, got int"),
    (lambda: N.root(lambda u: u - TRACKED, U), V, "requires grad and that is not among its arguments"),
    (lambda: N.root(f, U[:0]), V, "u0 must have at least one entry"),
    (lambda: N.root(f, U, linear=lambda J, b: b[:1]), V, "must return a Tensor of b's shape"),
    (lambda: N.root(f, U, method="lm", line_search=None), V, "line_search is only used by Newton's method"),
    (lambda: N.root(f, U, method="lm", gradient="unrolled"), NotImplementedError, "not .lm."),
    (lambda: N.root(f, U, jacobian=ls.ops.eye(3)), V, "shape"),
    (lambda: N.root(f, U, jacobian=lambda u: torch.eye(2)), T, "must be a CSR, got Tensor"),
    (lambda: N.root(lambda u: torch.from_numpy(u.numpy() - 1), U), V, r"root: .* as .numpy\(\) and"),
    (lambda: N.root(lambda u: SPARSE @ u - 1, U), V, "root: f uses a torch.sparse tensor"),
    (
        lambda: N.root(lambda u: u.abs().sqrt() - 1, 0 * U, throw=True),
        SolverError,
        "of f is not finite, where",
    ),
    (lambda: N.root(f, U, line_search=torch.ones(3)), V, "a Tensor, must have one element"),
    (lambda: N.implicit_euler(f, U, 3, torch.ones(3)), V, "dt must be a number or have one element"),
    (lambda: of_a(torch.sub, gradient="unrolled"), NotImplementedError, 'vmap needs gradient="implicit"'),
    (lambda: N.fixed_point(lambda x: x[:1], U), V, r"fixed_point: g\(x, \*args\) must have the shape of x"),
    (lambda: N.least_squares(f, U, gradient="unrolled"), V, "gradient must be one of"),
    (lambda: N.implicit_euler(f, U, 3, 0.1, metod="lm"), T, "unexpected keyword argument 'metod'"),
    (lambda: N.trapezoidal(lambda u: u[:1], U, 3, 0.1), V, "trapezoidal: f"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_a_sentence(call, error, message):
    with pytest.raises(error, match=message):
        call()
