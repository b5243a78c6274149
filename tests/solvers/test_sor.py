"""Gauss-Seidel, SOR and SSOR: against plain loops, theory, stopping, errors, the module."""

import math

import pytest
import torch
from reference import normal
from solvers.krylov import convection, poisson

import learnsolve as ls
from learnsolve.solvers import Status

S = ls.solvers
DIRECTIONS = ("forward", "backward", "symmetric")


def loop(A, b, x, omega, order):
    """One sweep through the unknowns in `order`, by the book."""
    D, x = A.to_dense().numpy(), x.numpy().copy()
    for i in order:
        x[i] += omega * (b.numpy()[i] - D[i] @ x) / D[i, i]
    return torch.from_numpy(x)


def orders(A, direction, multicolour):
    n = A.shape[0]
    order = ls.ordering.greedy_colouring(A).rows.tolist() if multicolour else list(range(n))
    return {"forward": order, "backward": order[::-1], "symmetric": order + order[::-1]}[direction]


@pytest.mark.parametrize("multicolour", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("omega", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("A", [poisson(4, 5), convection(4, 5), ls.problems.poisson((4, 5), stencil="q1")])
def test_against_a_plain_loop(A, omega, direction, multicolour):
    b, x = normal((20, 3)), normal((20, 3), seed=1)
    expected, norms = x, []
    for _ in range(3):
        norms.append(torch.linalg.vector_norm(b - A @ expected, dim=0))
        expected = loop(A, b, expected, omega, orders(A, direction, multicolour))
    norms.append(torch.linalg.vector_norm(b - A @ expected, dim=0))
    key = {"direction": direction, "multicolour": multicolour, "iterations": 3}
    found = S.sor(A, b, x, omega=omega, **key)
    torch.testing.assert_close(found.x, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.residual_norms, torch.stack(norms), rtol=1e-12, atol=1e-12)
    assert found.status is Status.MAX_ITERATIONS
    if omega == 1:
        assert torch.equal(S.gauss_seidel(A, b, x, **key).x, found.x)
    if direction == "symmetric":
        del key["direction"]
        assert torch.equal(S.ssor(A, b, x, omega=omega, **key).x, found.x)


def test_multicolour_is_the_sweep_of_the_permuted_matrix():
    A, b = convection(5, 6), normal((30,))
    p = ls.ordering.greedy_colouring(A).rows.long()
    other = S.sor(ls.ops.permute(A, p), b[p], omega=1.2, iterations=4)
    assert torch.allclose(S.sor(A, b, omega=1.2, multicolour=True, iterations=4).x[p], other.x)


def test_both_ways_of_stopping_iterate_alike():
    A, b, x0 = poisson(5, 5), normal((25, 2)), normal((25, 2), seed=1)
    for direction in DIRECTIONS:
        to_tolerance = S.gauss_seidel(A, b, x0, direction=direction, rtol=1e-4)
        N = to_tolerance.iterations
        fixed = S.gauss_seidel(A, b, x0, direction=direction, iterations=N)
        slow = to_tolerance.residual_norms[-2].argmax()  # the other column has stopped before
        assert torch.equal(to_tolerance.x[:, slow], fixed.x[:, slow])
        assert to_tolerance.converged
        assert (torch.linalg.vector_norm(b - A @ to_tolerance.x, dim=0) <= 1e-4 * b.norm(dim=0)).all()


def test_a_fixed_number_runs_whatever_happens():
    A, x0 = poisson(), normal((16,))
    nothing = torch.zeros(16, dtype=torch.float64)
    smooth = S.gauss_seidel(A, nothing, x0, iterations=3)  # the error of another system, say
    assert smooth.iterations == 3
    assert len(smooth.residual_norms) == 4
    assert smooth.x.norm() > 0
    assert torch.equal(S.gauss_seidel(A, nothing, x0).x, nothing)  # to a tolerance: zero solves it at once
    none = S.sor(A, x0, omega=1.5, iterations=0)
    assert torch.equal(none.x, nothing)
    assert torch.equal(none.residual_norms, torch.linalg.vector_norm(x0).reshape(1))
    done = S.gauss_seidel(A, x0, iterations=400)
    assert done.residual_norms[-1] < 1e-14


def test_batches_are_loops():
    A = convection(4, 4)
    values = torch.stack([A.values, 1.5 * A.values + 0.01 * normal((A.nnz,))])
    omega = torch.tensor([0.8, 1.3], dtype=torch.float64)
    b = normal((2, 16, 3))
    for key in ({"iterations": 4}, {"rtol": 1e-8}):
        for multicolour in (False, True):
            together = S.ssor(A.with_values(values), b, omega=omega, multicolour=multicolour, **key)
            for i in range(2):
                one = S.ssor(A.with_values(values[i]), b[i], omega=omega[i], multicolour=multicolour, **key)
                n = one.residual_norms.shape[-2]
                torch.testing.assert_close(together.x[i], one.x, rtol=1e-7, atol=1e-9)
                torch.testing.assert_close(
                    together.residual_norms[i, :n], one.residual_norms, rtol=1e-9, atol=1e-12
                )
    shared = S.sor(A.with_values(values), b[0], omega=1.1, iterations=2)
    assert shared.x.shape == (2, 16, 3)
    for empty in (normal((2, 16, 0)), normal((0, 16, 2))):
        v = values if len(empty) else values[:0]
        assert S.gauss_seidel(A.with_values(v), empty, iterations=2).x.shape == empty.shape


@pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")
@pytest.mark.parametrize("name", ["gauss_seidel", "sor", "ssor"])
def test_batches_that_come_to_rounding_level_are_loops(name):
    """A member starts again there; the triangles are those of all members."""
    A, method = poisson(3, 2), getattr(ls.solvers, name)
    values, b = A.values * torch.tensor([[1.0], [1.5]]).double(), normal((2, A.shape[0], 1))
    ours = method(A.with_values(values), b, rtol=1e-17, maxiter=80)
    assert ours.x.shape == b.shape
    for i in range(2):
        assert torch.equal(ours.x[i], method(A.with_values(values[i]), b[i], rtol=1e-17, maxiter=80).x)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precisions_and_index_types(dtype, index):
    A = poisson(6, 6)
    A = ls.CSR(A.values.to(dtype), A.pattern.to(dtype=index))
    b = normal((36,), dtype)
    x = S.sor(A, b, omega=1.4, rtol=1e-5, multicolour=True).x
    assert x.dtype == dtype
    assert torch.linalg.vector_norm(b - A @ x) <= 1.1e-5 * b.norm()


def rate(solution):
    norms = solution.residual_norms
    return float((norms[-1] / norms[-11]) ** 0.1)


def test_rates_of_theory():
    """Young: on a consistently ordered matrix Gauss-Seidel is Jacobi squared, and the best omega has rate
    omega - 1; multicolour orders are consistent too."""
    n = 12
    A, b = ls.problems.poisson((n, n)), normal((n * n,))
    mu = math.cos(math.pi / (n + 1))
    assert abs(rate(S.jacobi(A, b, iterations=400)) - mu) < 1e-4
    for multicolour in (False, True):
        for direction in ("forward", "backward"):
            key = {"direction": direction, "multicolour": multicolour}
            assert abs(rate(S.gauss_seidel(A, b, iterations=200, **key)) - mu**2) < 1e-4
        best = 2 / (1 + math.sin(math.pi / (n + 1)))
        M = ls.preconditioners.SOR(A, best, multicolour=multicolour)
        eye = torch.eye(n * n, dtype=torch.float64)
        propagator = eye - M(A.to_dense())
        # All eigenvalues have that modulus; the largest is double, so known to sqrt(eps) only.
        assert abs(torch.linalg.eigvals(propagator).abs().max() - (best - 1)) < 1e-5
        norms = S.sor(A, b, omega=best, iterations=60, multicolour=multicolour).residual_norms
        assert abs(float(norms[60] / norms[20]) ** (1 / 40) - (best - 1)) < 0.03
        counts = [
            S.sor(A, b, omega=w, rtol=1e-8, multicolour=multicolour).iterations
            for w in (best - 0.1, best, best + 0.1)
        ]
        assert counts[1] < min(counts[0], counts[2])


def test_extraordinary_sizes():
    """Residuals whose squares leave the range of the dtype."""
    A, b = poisson(), normal((16,))
    x = S.gauss_seidel(A, b, rtol=1e-10).x
    for of_A, of_b in ((1e-200, 1e-100), (1e160, 1.0), (1.0, 1e-250)):
        found = S.gauss_seidel(A * of_A, b * of_b, rtol=1e-10)
        assert found.converged
        torch.testing.assert_close(found.x, x * (of_b / of_A), rtol=1e-12, atol=0)
    values = A.values.clone().requires_grad_()
    right = b.clone().requires_grad_()
    y = S.ssor(A.with_values(values), right, rtol=1e-12).x
    small = torch.autograd.grad(y, (values, right), 1e-200 * b, retain_graph=True)
    large = torch.autograd.grad(y, (values, right), b)
    for s, g in zip(small, large, strict=True):
        torch.testing.assert_close(s * 1e200, g, rtol=1e-9, atol=1e-12)


def test_divergence_and_other_ends_have_their_names():
    A = ls.CSR.from_dense(torch.tensor([[1.0, 3.0], [3.0, 1.0]], dtype=torch.float64))
    b = torch.ones(2, dtype=torch.float64)
    assert S.gauss_seidel(A, b, maxiter=1000).status is Status.DIVERGED
    assert S.gauss_seidel(A, b, iterations=10).status is Status.DIVERGED
    assert S.gauss_seidel(A, b, iterations=1000).status is Status.NON_FINITE
    assert S.gauss_seidel(poisson(), normal((16,)), maxiter=2).status is Status.MAX_ITERATIONS
    seen = []
    stopped = S.sor(
        poisson(), normal((16,)), omega=1.1, callback=lambda at: seen.append(at) or at.iteration == 3
    )
    assert stopped.status is Status.STOPPED_BY_CALLBACK
    assert [at.iteration for at in seen] == [1, 2, 3]
    assert seen[0].x.shape == (16,)
    with pytest.raises(S.SolverError, match="ssor: MAX_ITERATIONS"):
        S.ssor(poisson(), normal((16,)), maxiter=2, throw=True)


A, B = poisson(), normal((16,))


def test_every_keyword_counts():
    x = S.sor(A, B, omega=1.3, iterations=2).x
    for other in ({"omega": 1.2}, {"direction": "backward"}, {"multicolour": True}, {"iterations": 3}):
        assert not torch.allclose(S.sor(A, B, **{"omega": 1.3, "iterations": 2, **other}).x, x)
    count = S.ssor(A, B).iterations
    for other in ({"rtol": 1e-2}, {"atol": 1.0}, {"maxiter": 2}, {"omega": 1.3}):
        assert S.ssor(A, B, **other).iterations < count


def test_module_learns_omega():
    n = 10
    A, b = poisson(n, n), torch.ones(n * n, dtype=torch.float64)
    solver = S.SOR(1.0, iterations=15).double()
    assert float(solver.omega.detach()) == 1.0
    optimiser = torch.optim.Adam(solver.parameters(), lr=0.2)
    for _ in range(40):
        optimiser.zero_grad()
        loss = solver(A, b).residual_norms[-1].log()
        loss.backward()
        optimiser.step()
    best = 2 / (1 + math.sin(math.pi / (n + 1)))
    assert abs(float(solver.omega.detach()) - best) < 0.15
    assert "iterations=15" in repr(solver)
    again = S.SOR(1.9, iterations=15).double()
    again.load_state_dict(solver.state_dict())
    assert torch.equal(again(A, b).x, solver(A, b).x)


def test_module_passes_everything_on():
    x = S.SOR(torch.tensor(1.4, dtype=torch.float64), 3, direction="symmetric", multicolour=True)(A, B).x
    assert torch.allclose(x, S.ssor(A, B, omega=1.4, multicolour=True, iterations=3).x)
    for logit in (1e3, -1e3):  # where sigmoid is rounded
        solver = S.SOR(1.0).double()
        torch.nn.init.constant_(solver.logit, logit)
        assert torch.isfinite(solver(A, B).x).all()


@pytest.mark.parametrize("x0", [False, True])
def test_no_sweep_gives_a_copy_and_zero_gradients(x0):
    A, b = ls.problems.poisson((5,)), torch.ones(5, dtype=torch.float64)
    learn = [A.values.clone(), b.clone(), torch.tensor(1.2, dtype=b.dtype)] + ([b * 3] if x0 else [])
    for t in learn:
        t.requires_grad_()
    v, b, w, *start = learn
    S = ls.solvers
    for solution in (
        S.sor(A.with_values(v), b, *start, omega=w, iterations=0),
        S.sor(A.with_values(v), b, *start, omega=w, iterations=0, gradient="checkpointed"),
        S.sor(A.with_values(v), b, *start, omega=w, maxiter=0, gradient="unrolled"),
    ):
        assert solution.x.requires_grad
        gradients = torch.autograd.grad(solution.x.sum(), learn)
        for t, g in zip(learn, gradients, strict=True):
            assert torch.equal(g, torch.full_like(t, float(any(t is s for s in start))))
    one = S.sor(A, b.detach(), omega=w, maxiter=0, gradient="unrolled").x
    assert torch.autograd.grad(one.sum(), w)[0] == 0
    module = S.SOR(1.0, iterations=0).double()
    assert module(A, b.detach()).x.requires_grad
    if x0:
        given = start[0].detach()
        x = S.gauss_seidel(A, b.detach(), given, iterations=0).x
        assert torch.equal(x, given)
        assert x.data_ptr() != given.data_ptr()
