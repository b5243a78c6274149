"""What stationary methods promise beyond the table: defaults, relations between methods, statuses."""

import math
import warnings

import numpy as np
import pytest
import torch
from reference import normal
from solvers.krylov import poisson
from solvers.stationary_cases import close, small_square, values_on

import learnsolve as ls
from learnsolve.solvers import Solution, Status

S = ls.solvers
P = small_square()
F64 = torch.float64


def test_defaults():
    A, b = ls.CSR(values_on(P), P), normal((4,), seed=1)
    x = S.jacobi(A, b).x
    close(x, b / A.diagonal())  # one sweep with weight 1 from zero
    assert torch.equal(x, S.jacobi(A, b, torch.zeros_like(b), weight=1.0, iterations=1).x)
    assert torch.equal(S.sor(A, b, iterations=3).x, S.gauss_seidel(A, b, iterations=3).x)
    assert torch.equal(S.sor(A, b, omega=1.0, iterations=3).x, S.gauss_seidel(A, b, iterations=3).x)
    both = S.sor(A, b, omega=1.2, direction="symmetric", iterations=3)
    assert torch.equal(S.ssor(A, b, omega=1.2, iterations=3).x, both.x)
    assert S.Jacobi().weight.shape == ()
    assert S.Jacobi(1).weight.is_floating_point()  # as jacobi takes the number 1


@pytest.mark.parametrize("number", [0.5, 1, np.float64(0.5)], ids=repr)
def test_any_number_is_a_scalar(number):
    A, b, scalar = ls.CSR(values_on(P, 2), P), normal((2, 4, 2)), torch.tensor(float(number), dtype=F64)
    for method, keys in (("jacobi", ["weight"]), ("heavyball", ["alpha", "beta"]), ("sor", ["omega"])):
        one, other = (
            getattr(S, method)(A, b, **dict.fromkeys(keys, n), iterations=3).x for n in (number, scalar)
        )
        assert torch.equal(one, other)


def test_the_inverse_diagonal_follows_the_values():
    A, b = ls.CSR(values_on(P), P), normal((4,), seed=1)
    for learns in (False, True):
        A.requires_grad_(learns)
        for _ in range(2):
            S.jacobi(A, b, iterations=2)
            with torch.no_grad():
                A.values[P.diagonal_positions] *= 1.5
            fresh = ls.CSR(A.values.detach().clone(), P)
            assert torch.equal(S.jacobi(A, b, iterations=2).x, S.jacobi(fresh, b, iterations=2).x)


def test_equal_bounds():
    """lmin = lmax: no step has momentum, and all derivatives are numbers."""
    A, b = ls.problems.poisson((6,)), normal((6,))
    bounds = [torch.tensor(2.0, dtype=F64, requires_grad=True) for _ in range(2)]
    x = S.chebyshev(A, b, lmin=bounds[0], lmax=bounds[1], iterations=5).x
    close(x, S.richardson(A, b, weight=0.5, iterations=5).x)
    grads = torch.autograd.grad(x.sum(), bounds, create_graph=True)
    assert all(g.isfinite() for g in (*grads, *torch.autograd.grad(sum(grads), bounds)))
    step = 1e-6
    more, less = (S.chebyshev(A, b, lmin=2.0, lmax=2.0 + s, iterations=5).x.sum() for s in (step, 0))
    assert float(grads[1]) == pytest.approx(float(more - less) / step, rel=1e-4)


@pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")
@pytest.mark.parametrize("name", ["gauss_seidel", "sor", "ssor"])
def test_batches_that_come_to_rounding_level_are_loops(name):
    """A member starts again there; the triangles are those of all members."""
    A, method = poisson(3, 2), getattr(S, name)
    values, b = A.values * torch.tensor([[1.0], [1.5]]).double(), normal((2, A.shape[0], 1))
    ours = method(A.with_values(values), b, rtol=1e-17, maxiter=80)
    assert ours.x.shape == b.shape
    for i in range(2):
        assert torch.equal(ours.x[i], method(A.with_values(values[i]), b[i], rtol=1e-17, maxiter=80).x)


def test_no_sweep_has_zero_gradients():
    A, b = poisson(), normal((16,))
    w = torch.tensor(1.2, dtype=F64, requires_grad=True)
    for how in (
        {"iterations": 0},
        {"iterations": 0, "gradient": "checkpointed"},
        {"maxiter": 0, "gradient": "unrolled"},
    ):
        assert torch.autograd.grad(S.sor(A, b, omega=w, **how).x.sum(), w)[0] == 0
    assert S.SOR(1.0, iterations=0).double()(A, b).x.requires_grad


def test_adjoint_solves_report_how_they_ended():
    A, b = poisson(), normal((16,)).requires_grad_()
    loose = S.ssor(A, b, rtol=1e-10, adjoint_rtol=1e-2)
    loose.x.sum().backward()
    assert loose.adjoint is not None
    assert loose.adjoint.iterations < loose.iterations / 2
    failed = S.ssor(A, b, adjoint_maxiter=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="ssor, adjoint solve of the backward: did not converge"):
            failed.x.sum().backward()


def test_modules_hold_what_learns():
    A, b = poisson(), normal((16, 2))
    for make in (S.Richardson, S.Heavyball, S.Chebyshev):
        learned, numbers = (
            torch.nn.Linear(16, 16, bias=False).double(),
            [0.3, 0.4][: 1 + (make is not S.Richardson)],
        )
        assert any(name.startswith("M.") for name, _ in make(*numbers, M=learned).named_parameters())
        inside = make(*numbers, M=lambda r: learned(r.mT).mT)  # noqa: B023
        assert not any("M" in name for name, _ in inside.named_parameters())
    for logit in (1e3, -1e3):  # where sigmoid is rounded
        solver = S.SOR(1.0).double()
        torch.nn.init.constant_(solver.logit, logit)
        assert torch.isfinite(solver(A, b).x).all()


# --- how a solve ended ---


def test_the_worst_column_counts():
    """One diverging column or member of the batch among others."""
    A = ls.problems.poisson((8,))
    # Of the smallest eigenvalue: a weight of 1.5 is good.
    mode, rough = torch.sin(torch.arange(1, 9, dtype=F64) * math.pi / 9), normal((8,))
    b = torch.stack((mode, rough, mode), -1)
    assert S.jacobi(A, mode, weight=1.5, iterations=20).status is Status.MAX_ITERATIONS
    assert S.jacobi(A, b, weight=1.5, iterations=20).status is Status.DIVERGED
    assert S.jacobi(A, b.mT.unsqueeze(-1), weight=1.5, iterations=20).status is Status.DIVERGED
    b[3, 2] = math.nan
    assert S.jacobi(A, b, iterations=1).status is Status.NON_FINITE


@pytest.mark.parametrize("learns", [False, True])
def test_overflow(learns):
    """Of the norm alone, or of the iterates too."""
    for dtype, iterations in ((torch.float32, 1), (torch.float32, 5), (F64, 5), (F64, 20)):
        weight = torch.tensor(1e30, dtype=dtype, requires_grad=learns)
        A = ls.problems.poisson((8,), dtype=dtype)
        solution = S.jacobi(A, torch.ones(8, dtype=dtype), weight=weight, iterations=iterations)
        expected = Status.DIVERGED if (dtype, iterations) == (F64, 5) else Status.NON_FINITE
        assert (solution.status, solution.converged) == (expected, False)


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
