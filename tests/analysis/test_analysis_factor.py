"""The asymptotic convergence factor of a history."""

import pytest
import torch

import learnsolve as ls
from learnsolve.analysis import ErrorPropagator, convergence_factor, spectral_radius

F64 = torch.float64


def geometric(rho, N: int = 40) -> torch.Tensor:
    return torch.as_tensor(rho, dtype=F64) ** torch.arange(N + 1, dtype=F64).unsqueeze(-1)


def test_a_geometric_history():
    for rho in (0.1, 0.9, 1.0, 1.5):
        found = convergence_factor(3 * geometric(rho).squeeze(-1))
        assert found.value.shape == ()
        torch.testing.assert_close(found.value, torch.tensor(rho, dtype=F64))
        assert found.error < 1e-12
        assert found.converged
    found = convergence_factor(geometric([0.1, 0.5]))
    torch.testing.assert_close(found.value, torch.tensor([0.1, 0.5], dtype=F64))


def test_last():
    history = torch.cat((geometric(0.5, 30), 0.5**30 * geometric(0.9, 10)[1:])).squeeze(-1)
    assert abs(convergence_factor(history, last=0.25).value - 0.9) < 1e-12
    with pytest.warns(RuntimeWarning, match="has not settled"):
        found = convergence_factor(history, last=1)
    assert not found.converged
    torch.testing.assert_close(found.value, (0.5**30 * 0.9**10) ** torch.tensor(1 / 40, dtype=F64))
    with pytest.warns(RuntimeWarning, match="has not settled"):
        assert abs(convergence_factor(history, last=1e-9).value - 0.9) < 1e-12


def test_of_stationary_iterations_is_the_spectral_radius():
    A = ls.problems.poisson((7, 8))
    b = torch.linspace(1, 2, 56, dtype=F64)
    found = convergence_factor(ls.solvers.jacobi(A, b, weight=0.8, iterations=400), last=0.2)
    rho = spectral_radius(ErrorPropagator(A, ls.preconditioners.Jacobi(A), 0.8)).value
    assert abs(found.value - rho) < 1e-6


def test_columns_of_a_solution_count_until_they_stopped():
    A = ls.problems.poisson((20, 20))
    b = torch.stack((torch.ones(400, dtype=F64), torch.randn(400, dtype=F64)), 1)
    both = ls.solvers.cg(A, b, rtol=1e-8)
    one = [ls.solvers.cg(A, b[:, i], rtol=1e-8) for i in (0, 1)]
    assert one[0].iterations < one[1].iterations
    found = convergence_factor(both, rtol=1).value
    for i in (0, 1):
        torch.testing.assert_close(found[i], convergence_factor(one[i], rtol=1).value)
        history = one[i].residual_norms
        m = len(history) - 1 - -(-(len(history) - 1) // 2)
        expected = (history[-1] / history[m]) ** (1 / (len(history) - 1 - m))
        torch.testing.assert_close(found[i], expected)


def test_gradients():
    A = ls.problems.poisson((15,))
    b = torch.randn(15, 2, dtype=F64)
    weight = torch.tensor(0.6, dtype=F64, requires_grad=True)

    def factor(weight):
        return convergence_factor(ls.solvers.jacobi(A, b, weight=weight, iterations=12), rtol=9).value

    assert torch.autograd.gradcheck(factor, weight, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(factor, weight)


def test_solved_exactly():
    history = torch.tensor([1.0, 0.1, 0.0, 0.0], dtype=F64, requires_grad=True)
    found = convergence_factor(history, rtol=9)
    assert found.value == 0
    found.value.backward()
    assert torch.isfinite(history.grad).all()
    with pytest.warns(RuntimeWarning, match="has not settled"):  # one iteration: nothing to compare it with
        found = convergence_factor(ls.solvers.cg(ls.ops.eye(4, dtype=F64), torch.ones(4, dtype=F64)))
    assert found.value == 0


def test_a_right_hand_side_of_zero_is_settled(recwarn):
    A = ls.problems.poisson((20,))
    b = torch.stack((torch.zeros(20, dtype=F64), torch.ones(20, dtype=F64)), 1)
    found = convergence_factor(ls.solvers.jacobi(A, b, iterations=400))
    assert found.converged
    assert found.value[0] == found.error[0] == 0
    assert not recwarn


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_told(bad):
    history = torch.tensor([1.0, 2.0, 3.0, bad], dtype=F64)
    with pytest.warns(RuntimeWarning, match="infinities or NaNs"):
        found = convergence_factor(history)
    assert not torch.isfinite(found.value)
    assert not found.converged


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: convergence_factor([1.0, 0.5]), TypeError, "history must be a Solution or a Tensor"),
        (lambda: convergence_factor(torch.ones(1)), ValueError, r"N >= 1 iterations, got \(1,\)"),
        (lambda: convergence_factor(torch.ones(5), last=0), ValueError, r"last must be in \(0, 1\]"),
        (lambda: convergence_factor(torch.ones(5, dtype=torch.int64)), TypeError, "float32 or float64"),
        (lambda: convergence_factor(torch.ones(5), rtol="a"), TypeError, "rtol must be a number, got str"),
        (lambda: convergence_factor(torch.ones(5), rtol=torch.nan), ValueError, "not negative, got nan"),
        (lambda: convergence_factor(torch.ones(5), rtol=torch.inf), ValueError, "not negative, got inf"),
    ],
)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()
