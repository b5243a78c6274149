"""Behaviour of the iteration: its rate, its limit, how failures are reported; the trainable module."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from reference import normal
from solvers.dense_jacobi import WEIGHTS, small_square, values_on

import learnsolve as ls
from learnsolve.solvers import Jacobi, Solution, Status, jacobi

F64 = torch.float64


# --- convergence ---
@pytest.mark.parametrize("n", [7, 15])
@pytest.mark.parametrize("weight", [0.5, 2 / 3, 1.0])
def test_rate_on_poisson(n, weight):
    """The slowest mode shrinks by 1 - w (1 - cos(pi h)), h = 1 / (n + 1) (Saad 2003, section 4.2.1)."""
    A = ls.problems.poisson((n,))
    solution = jacobi(A, torch.zeros(n, dtype=F64), normal((n,)), weight=weight, iterations=800)
    norms = solution.residual_norms
    wanted = 1 - weight * (1 - math.cos(math.pi / (n + 1)))
    assert float(norms[-1] / norms[-2]) == pytest.approx(wanted, rel=1e-9)


def test_converges_to_the_direct_solution():
    A = ls.problems.poisson((5, 4))
    b = normal((20, 3))
    solution = jacobi(A, b, weight=0.9, iterations=1000)
    direct = scipy.sparse.linalg.spsolve(A.to_scipy().tocsc(), b.numpy())
    np.testing.assert_allclose(solution.x, direct, rtol=1e-12, atol=1e-12)
    assert (solution.residual_norms[-1] < 1e-12).all()


def test_the_right_hand_side_zero():
    A = ls.problems.poisson((6,))
    solution = jacobi(A, torch.zeros(6, dtype=F64), iterations=4)
    assert torch.equal(solution.x, torch.zeros(6, dtype=F64))
    assert not solution.residual_norms.any()
    assert solution.status is Status.MAX_ITERATIONS


# --- how it ended ---
def poisson_solution(weight=2 / 3, iterations=50, b=None, dtype=F64):
    A = ls.problems.poisson((8,), dtype=dtype)
    return jacobi(A, torch.ones(8, dtype=dtype) if b is None else b, weight=weight, iterations=iterations)


def test_status_without_a_tolerance():
    """No tolerance can be asked for: however small the residual, it is not said to have met one."""
    for iterations in (0, 1, 2000):
        solution = poisson_solution(iterations=iterations)
        assert solution.status is Status.MAX_ITERATIONS
        assert not solution.converged
        assert solution.iterations == iterations


@pytest.mark.parametrize("learns", [False, True])
def test_divergence(learns):
    solution = poisson_solution(weight=torch.tensor(1.5, dtype=F64, requires_grad=learns))
    assert torch.isfinite(solution.x).all()
    assert solution.status is Status.DIVERGED
    assert not solution.converged


def test_the_worst_column_counts():
    """One diverging column or member of the batch among others."""
    A = ls.problems.poisson((8,))
    mode = torch.sin(
        torch.arange(1, 9, dtype=F64) * math.pi / 9
    )  # of the smallest eigenvalue: w = 1.5 is good
    rough = normal((8,))
    b = torch.stack((mode, rough, mode), -1)
    solution = jacobi(A, b, weight=1.5, iterations=20)
    assert jacobi(A, mode, weight=1.5, iterations=20).status is Status.MAX_ITERATIONS
    assert solution.status is Status.DIVERGED
    batch = torch.stack((mode.unsqueeze(-1), rough.unsqueeze(-1)))
    assert jacobi(A, batch, weight=1.5, iterations=20).status is Status.DIVERGED
    b[3, 2] = math.nan
    assert jacobi(A, b, iterations=1).status is Status.NON_FINITE


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("learns", [False, True])
def test_overflow(dtype, learns):
    weight = torch.tensor(1e30, dtype=dtype, requires_grad=learns)
    for iterations in (1, 5, 20):
        if iterations == 1 and dtype == F64:
            continue  # 1e30 itself fits
        solution = poisson_solution(weight, iterations, dtype=dtype)
        assert solution.status is (Status.NON_FINITE if iterations > 5 or dtype != F64 else Status.DIVERGED)
        assert not solution.converged


@pytest.mark.parametrize("where", ["A", "b", "x0", "weight"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_input_that_is_not_finite(where, bad, iterations):
    P = small_square()
    inputs = {"A": values_on(P), "b": normal((4,)), "x0": normal((4,)), "weight": torch.ones(4, dtype=F64)}
    inputs[where][0 if where == "A" else 2] = bad
    if where == "weight" and iterations == 0:
        return  # it is not used
    for learns in (False, True):
        weight = inputs["weight"].clone().requires_grad_(learns)
        A = ls.CSR(inputs["A"], P)
        solution = jacobi(A, inputs["b"], inputs["x0"], weight=weight, iterations=iterations)
        assert solution.status is Status.NON_FINITE
        assert not solution.converged


def test_status_is_a_sentence():
    for status in Status:
        assert str(status) == status.value
        assert status.value[0].isupper()
        assert status.value.endswith(".")
    assert "smaller weight" in Status.DIVERGED.value
    assert "reduce the weight" in Status.NON_FINITE.value
    assert "float64" in Status.NON_FINITE.value


def test_solution():
    norms, x = torch.tensor([3.0, 1.0]), torch.ones(2)
    asked = []
    solution = Solution(x, 1, lambda: asked.append(1) or norms, 0, ())
    assert not asked  # the norms are computed when asked for
    assert solution.residual_norms is norms
    assert solution.status is Status.MAX_ITERATIONS
    assert solution.residual_norms is norms
    assert len(asked) == 1
    assert repr(solution) == "Solution(x=(2,), iterations=1, status=MAX_ITERATIONS)"
    # Tenfold is not yet more than tenfold.
    assert Solution(x, 1, lambda: torch.tensor([1.0, 10.0]), 0, ()).status is Status.MAX_ITERATIONS
    assert Solution(x, 1, lambda: torch.tensor([1.0, 10.1]), 0, ()).status is Status.DIVERGED
    assert Solution(torch.tensor([math.nan]), 1, lambda: norms, 0, ()).status is Status.NON_FINITE


@pytest.mark.parametrize("changed", ["A", "b", "x"])
@pytest.mark.parametrize("shape", [(4,), (4, 2)], ids=str)
@pytest.mark.parametrize(("iterations", "learns"), [(1, True), (1, False), (3, True)])
def test_norms_are_refused_once_what_they_need_has_changed(iterations, learns, shape, changed):
    P = small_square()
    A, b = ls.CSR(values_on(P), P), normal(shape)
    w = torch.ones(4, dtype=F64, requires_grad=learns)
    solution = jacobi(A, b, weight=w, iterations=iterations)
    with torch.no_grad():
        {"A": A.values, "b": b, "x": solution.x}[changed].mul_(2)
    with pytest.raises(RuntimeError, match=r"Solution.residual_norms: .* changed in place after the solve"):
        _ = solution.residual_norms


@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_norms_have_the_graph_of_the_solve(iterations):
    """Whether they are differentiable does not depend on the mode in which they are first asked for."""
    A, b = ls.problems.poisson((4,)), normal((4,)).requires_grad_()
    solution = jacobi(A, b, iterations=iterations)
    with torch.no_grad():
        assert not solution.converged
        solution.residual_norms  # noqa: B018
    assert all(torch.autograd.grad(norm, b, retain_graph=True)[0].any() for norm in solution.residual_norms)
    with torch.no_grad():
        solution = jacobi(A, b, iterations=iterations)
    assert not solution.residual_norms.requires_grad


# --- the module ---
@pytest.mark.parametrize("weight", WEIGHTS)
def test_module_is_the_function(weight):
    P, K = small_square(), 3
    A, b, x0 = ls.CSR(values_on(P), P), normal((4, 2), seed=1), normal((4, 2), seed=2)
    w = normal(WEIGHTS[weight](K, 4), seed=3)
    for gradient in ("unrolled", "checkpointed"):
        module = Jacobi(w, K, gradient)
        assert {name: p.shape for name, p in module.named_parameters()} == {"weight": w.shape}
        for start in (None, x0):
            found = module(A, b, start)
            wanted = jacobi(A, b, start, weight=w, iterations=K, gradient=gradient)
            assert torch.equal(found.x, wanted.x)
            assert torch.equal(found.residual_norms, wanted.residual_norms)
        assert repr(module) == f"Jacobi(weight={tuple(w.shape)}, iterations=3, gradient={gradient!r})"


def test_module_owns_its_weight():
    w = torch.ones(4, dtype=F64)
    module = Jacobi(w)
    w.zero_()
    assert torch.equal(module.weight, torch.ones(4, dtype=F64))
    assert Jacobi().weight.shape == ()
    assert Jacobi(0.5).weight == 0.5


def test_module_state_round_trip():
    first, second = Jacobi(normal((2, 4)), 2), Jacobi(torch.ones(2, 4, dtype=F64), 2)
    assert list(first.state_dict()) == ["weight"]
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.weight, second.weight)
    assert first.weight.data_ptr() != second.weight.data_ptr()


@pytest.mark.parametrize("iterations", [1, 4])
def test_training_lowers_the_loss(iterations):
    A = ls.problems.poisson((12,))
    E = normal((12, 30))
    module = Jacobi(torch.ones(12, dtype=F64), iterations)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
    losses = []
    for _ in range(25):
        optimiser.zero_grad()
        loss = ls.ops.quadratic_form(A, module(A, torch.zeros_like(E), E).x, symmetric=True)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    assert all(b < a for a, b in itertools.pairwise(losses))
