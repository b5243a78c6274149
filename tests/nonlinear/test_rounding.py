"""Starts at the solution, and Jacobians that are not quite those of f."""

import warnings

import pytest
import torch

import learnsolve as ls
from learnsolve.nonlinear import _methods
from learnsolve.solvers import ConvergenceWarning, Status

N = ls.nonlinear
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
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [1, 5])
def test_a_start_at_the_solution_is_converged(method, dtype, n):
    a = torch.arange(2, n + 2, dtype=dtype)
    solution = call(method, lambda u, a: u**2 - a, a.sqrt(), a)
    assert solution.status is Status.CONVERGED
    torch.testing.assert_close(solution.x, a.sqrt())


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


def test_an_absolute_tolerance_below_rounding_is_not_met():
    with pytest.warns(ConvergenceWarning, match="STAGNATED"):
        N.root(lambda u: u * u - 2, torch.ones(1, dtype=F64), rtol=0.0, atol=1e-300)


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


@pytest.mark.few
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
    with pytest.warns(ConvergenceWarning, match="adjoint solve of the backward: did not converge"):
        (solution.x * torch.tensor([1.0, 1e-3, 1e-3], dtype=F64)).sum().backward()


@pytest.mark.parametrize("method", ["newton", "chord", "anderson", "fixed_point"])
def test_no_rounding_floor_is_computed_while_residuals_fall(method, monkeypatch):
    """It takes a call of f, and random numbers of the size of all parameters of a network."""
    monkeypatch.setattr(_methods, "rounding", lambda *_: pytest.fail("a usual solve pays for the floor"))
    a = torch.ones(3, dtype=F64)
    solution = call(method, lambda u, a: u - 0.3 * u.cos() - a, torch.zeros_like(a), a)
    assert solution.status is Status.CONVERGED
