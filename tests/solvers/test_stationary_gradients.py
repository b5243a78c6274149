"""richardson, heavyball, chebyshev: implicit and unrolled gradients, and those of their parameters."""

import math

import pytest
import scipy.sparse.linalg
import torch
from reference import densify, gradients, normal
from solvers.dense_jacobi import small_square, values_on
from solvers.dense_momentum import close
from solvers.stationary import METHODS, PARAMETERS, S, halved, run, tensors
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls


@pytest.mark.parametrize("method", METHODS)
def test_implicit_gradient(method):
    """On a matrix that is not symmetric, against dense solves; callables and LinearOperators too."""
    P = small_square()
    v, b = values_on(P).requires_grad_(), normal((4, 2), seed=3).requires_grad_()
    options = {"rtol": 1e-13, "maxiter": 3000}
    wanted = gradients(lambda v, b: torch.linalg.solve(densify(P, v), b), [v, b], normal((4, 2), seed=8))

    def solve(v, b, **keywords):
        return run(method, ls.CSR(v, P), b, **options, **keywords).x

    close(gradients(solve, [v, b], normal((4, 2), seed=8)), wanted, 1e-9)
    scaled = lambda v, b: solve(v, b, M=ls.preconditioners.Jacobi(ls.CSR(v, P)))  # noqa: E731
    close(gradients(scaled, [v, b], normal((4, 2), seed=8)), wanted, 1e-9)
    D = densify(P, v.detach())

    def by_callable(b):
        return run(method, lambda x: D @ x, b, transpose=lambda x: D.T @ x, **options).x

    close(gradients(by_callable, [b], normal((4, 2), seed=8)), wanted[1:], 1e-9)
    operator = scipy.sparse.linalg.aslinearoperator(ls.CSR(v.detach(), P).to_scipy())
    close([run(method, operator, b.detach(), **options).x], [torch.linalg.solve(D, b.detach())], 1e-9)
    mapped = torch.vmap(lambda b: solve(v.detach(), b))(torch.stack((b.detach(), 2 * b.detach())))
    close([mapped[1]], [torch.linalg.solve(D, 2 * b.detach())], 1e-9)


# The gradient is one code for all methods; richardson takes the fewest iterations here.
@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=() if m == "richardson" else pytest.mark.slow) for m in METHODS]
)
def test_implicit_gradient_in_forward_mode_and_twice(method):
    P = small_square()
    v, b = values_on(P).requires_grad_(), normal((4, 2), seed=3).requires_grad_()

    def solve(v, b):
        return run(method, ls.CSR(v, P), b, rtol=1e-13, maxiter=3000).x

    assert gradcheck(solve, (v, b), check_forward_ad=True, atol=1e-5)
    assert gradgradcheck(solve, (v, b), atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_unrolled_until_a_tolerance(method):
    """The gradient of the iterations that ran, for the parameters too."""
    A, b = halved(), normal((16, 2))
    found = []
    for options in ({"rtol": 1e-4, "gradient": "unrolled"}, {"rtol": 1e-4, "gradient": "checkpointed"}):
        given = tensors(method, True)
        solution = run(method, A, b[:, :1], given=given, maxiter=500, **options)
        assert solution.converged
        loss = solution.x.sum() + solution.residual_norms.log().sum()
        found.append(torch.autograd.grad(loss, given))
    given = tensors(method, True)
    fixed = run(method, A, b[:, :1], given=given, iterations=solution.iterations)
    wanted = torch.autograd.grad(fixed.x.sum() + fixed.residual_norms.log().sum(), given)
    close(found[0], wanted, 1e-10)
    close(found[1], wanted, 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_what_learns_and_has_no_implicit_gradient(method):
    A, b = ls.problems.poisson((4,)), normal((4,))
    for i, key in enumerate(PARAMETERS[method]):
        given = tensors(method)
        given[i].requires_grad_()
        with pytest.raises(ValueError, match=rf'{method}: {key} requires grad.*"unrolled"'):
            run(method, A, b, given=given)
        with torch.no_grad():
            run(method, A, b, given=given)


@pytest.mark.parametrize("method", METHODS)
def test_derivatives_for_the_parameters(method):
    P, (v, b) = small_square(), (values_on(small_square()), normal((4, 2)))

    def f(*given):
        solution = run(method, ls.CSR(v, P), b, given=given, iterations=4)
        return solution.x, solution.residual_norms

    given = tensors(method, True)
    assert gradcheck(f, given, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(f, given, check_fwd_over_rev=True)
    several = [torch.stack((t.detach(), 1.1 * t.detach())) for t in given]
    x, _ = torch.vmap(f)(*several)
    for i in range(2):
        close([x[i]], [f(*(t[i] for t in several))[0]])


def test_equal_bounds():
    """lmin = lmax: no step has momentum, and all derivatives are numbers."""
    A, b = ls.problems.poisson((6,)), normal((6,))
    bounds = [torch.tensor(2.0, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    x = S.chebyshev(A, b, lmin=bounds[0], lmax=bounds[1], iterations=5).x
    close([x], [S.richardson(A, b, weight=0.5, iterations=5).x])
    grads = torch.autograd.grad(x.sum(), bounds, create_graph=True)
    assert all(g.isfinite() for g in grads)
    assert all(g.isfinite() for g in torch.autograd.grad(sum(grads), bounds))
    step = 1e-6
    more, less = (S.chebyshev(A, b, lmin=2.0, lmax=2.0 + s, iterations=5).x.sum() for s in (step, 0))
    assert float(grads[1]) == pytest.approx(float(more - less) / step, rel=1e-4)


def test_learning_reaches_the_optimum_of_theory():
    """Bounds that are learned from the residual after K steps on the worst errors find the spectrum."""
    A = ls.problems.poisson((8,))
    values, vectors = torch.linalg.eigh(A.to_dense())
    solver = S.Chebyshev(float(values[0]) * 2, float(values[-1]) * 0.9, iterations=4).double()
    optimizer = torch.optim.Adam(solver.parameters(), lr=0.02)
    for _ in range(400):
        optimizer.zero_grad()
        e = solver(A, torch.zeros_like(vectors), vectors).x.norm(dim=0)
        e.pow(40).sum().pow(1 / 40).backward()
        optimizer.step()
    q = (math.sqrt(values[-1] / values[0]) - 1) / (math.sqrt(values[-1] / values[0]) + 1)
    assert float(e.detach().max()) <= 1.03 * 2 * q**4 / (1 + q**8)
