"""`implicit_euler` and `trapezoidal`: order, derivatives, and the work and memory of a backward."""

import pytest
import torch
from reference import assert_nested_forward_mode

import learnsolve as ls
from learnsolve.solvers import ConvergenceWarning

N = ls.nonlinear
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


@pytest.mark.parametrize(("step", "order"), STEPPERS)
def test_derivatives(step, order, quick):
    u0, dt, a = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in ([1.0], 0.2, 1.5))

    def end(u0, dt, a):
        return step(decay, u0, 2, dt, a, rtol=1e-13).x

    assert torch.autograd.gradcheck(end, (u0, dt, a), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(end, (u0, dt, a), fast_mode=quick)
    assert_nested_forward_mode(end, (u0.detach(), dt.detach(), a.detach()), end, 1e-8)
    together = torch.vmap(lambda a: end(U0, 0.2, a))(torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert torch.allclose(together[1], end(U0, 0.2, torch.tensor(2.0, dtype=torch.float64)))


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
