"""Ends of a solve: zeros, NaNs, empty sizes, callbacks, tolerances, reported failures, memory that is
freed."""

import gc
import warnings
import weakref

import pytest
import torch
import torch.utils.checkpoint
from reference import normal
from solvers.krylov import MODES, RECTANGULAR, SQUARE, SYMMETRIC, S, matrix, poisson, run

import learnsolve as ls

# Solves that cannot converge, or are stopped before, are part of what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")

Status = S.Status
ALL = (*SQUARE, *RECTANGULAR)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALL)
def test_zero_is_solved_by_zero_at_once(name, mode):
    A = matrix(name)
    b = torch.zeros(A.shape[0], dtype=A.dtype, requires_grad=True)
    for x0 in (None, normal((A.shape[1],)), torch.full((A.shape[1],), NAN, dtype=A.dtype)):
        solution = run(name, A, b, x0, gradient=mode)
        assert solution.converged
        assert solution.iterations == 0
        assert bool((solution.x == 0).all())
        assert solution.residual_norms.tolist() == [0]
    (g,) = torch.autograd.grad(run(name, A, b, gradient=mode).x.sum(), b)
    assert torch.isfinite(g).all()


@pytest.mark.parametrize("name", ALL)
def test_a_solution_to_start_with(name):
    A = matrix(name)
    b = normal((A.shape[0], 2))
    x = run(name, A, b, tol=1e-13).x
    solution = run(name, A, b, x, tol=1e-8)
    assert solution.converged
    assert solution.iterations == 0
    assert torch.equal(solution.x, x)
    near = run(name, A, b, x + 1e-3, tol=1e-8)
    torch.testing.assert_close(near.x, x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALL)
def test_no_iterations(name, mode):
    A = matrix(name)
    solution = run(name, A, normal((A.shape[0],)), maxiter=0, gradient=mode)
    assert solution.status is Status.MAX_ITERATIONS
    assert solution.iterations == 0
    assert bool((solution.x == 0).all())


@pytest.mark.parametrize("name", ALL)
def test_no_tolerance_ends_at_rounding_level(name):
    A = matrix(name)
    b = normal((A.shape[0],))
    solution = run(name, A, b, tol=0.0, maxiter=60)
    # minres sees by chance that it gains nothing more, compiled or op by op: for half of all b, or a third.
    ends = (Status.MAX_ITERATIONS, Status.CONVERGED, Status.BREAKDOWN)
    assert solution.status in ((*ends, Status.STAGNATED) if name == "minres" else ends)
    r = b - A @ solution.x
    assert (A.T @ r).norm() < 1e-8 * b.norm()


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("where", ["A", "b", "x0", "M"])
@pytest.mark.parametrize("name", ALL)
def test_what_is_not_finite_is_told(name, where, bad):
    A = matrix(name)
    b, x0 = normal((A.shape[0], 2)), normal((A.shape[1], 2), seed=4)
    keywords = {}
    if where == "A":
        values = A.values.clone()
        values[3] = bad
        A = A.with_values(values)
    elif where == "M":
        if name in RECTANGULAR:
            pytest.skip("has no M")
        keywords["M"] = lambda r: bad * r
    else:
        {"b": b, "x0": x0}[where][1, 0] = bad
    solution = run(name, A, b, x0, **keywords)
    assert solution.status is Status.NON_FINITE
    assert solution.iterations <= 2 if where != "b" and where != "x0" else True
    if where in ("b", "x0"):  # the other column is solved
        assert solution.statuses == [Status.NON_FINITE, Status.CONVERGED]
        if where == "b":
            assert torch.isfinite(solution.x).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALL)
def test_empty(name, mode):
    A = matrix(name)
    m, n = A.shape
    for shape in ((m, 0), (0, m, 2)):
        b = torch.zeros(shape, dtype=A.dtype, requires_grad=True)
        solution = run(name, A, b, gradient=mode)
        assert solution.converged
        assert solution.x.shape == (*shape[:-2], n, shape[-1])
        solution.x.sum().backward()
        assert b.grad.shape == shape
    none = ls.CSR.from_dense(torch.zeros(0, 0, dtype=A.dtype))
    for shape in ((0,), (0, 2)):
        solution = run(name, none, torch.zeros(shape, dtype=A.dtype), gradient=mode)
        assert solution.converged
        assert solution.x.shape == shape


@pytest.mark.parametrize("name", ALL)
def test_one_unknown_and_the_identity(name):
    one = ls.CSR.from_dense(torch.tensor([[3.0]]).double())
    solution = run(name, one, torch.tensor([6.0]).double())
    assert solution.converged
    assert solution.iterations == 1
    torch.testing.assert_close(solution.x.item(), 2.0)
    identity = ls.CSR.from_dense(torch.eye(7).double())
    b = normal((7, 2))
    solution = run(name, identity, b)
    assert solution.converged
    assert solution.iterations == 1
    torch.testing.assert_close(solution.x, b)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALL)
def test_a_callback_stops(name, mode):
    A = matrix(name)
    b = normal((A.shape[0],)).requires_grad_()
    seen = []

    def callback(at):
        assert at.x.shape == (A.shape[1],)
        assert not at.x.requires_grad
        assert at.residual_norm.shape == at.converged.shape == ()
        seen.append(at.iteration)
        return at.iteration == 3

    solution = run(name, A, b, callback=callback, gradient=mode)
    assert solution.status is Status.STOPPED_BY_CALLBACK
    assert solution.iterations == 3
    solution.x.sum().backward()  # which does not call it
    assert seen == [1, 2, 3]
    again = run(name, A, b, maxiter=3, gradient=mode)
    # To rounding: without a callback cg has a compiled loop.
    torch.testing.assert_close(again.x, solution.x, rtol=1e-13, atol=1e-14)
    if mode != "implicit":
        (g,) = torch.autograd.grad(again.x.sum(), b)
        torch.testing.assert_close(g, b.grad)
    # Anything but True goes on.
    assert run(name, A, b, callback=lambda at: 1, gradient=mode).converged


def test_a_callback_sees_the_users_units():
    A = poisson()
    b = 1e200 * normal((16,))
    seen = []
    solution = S.cg(A, b, callback=seen.append)
    assert solution.converged
    assert torch.equal(seen[-1].x, solution.x)
    torch.testing.assert_close(seen[0].residual_norm / 1e200, (b / 1e200 - A @ (seen[0].x / 1e200)).norm())
    assert solution.residual_norms[0] / 1e200 == (b / 1e200).norm()


def test_absolute_tolerance():
    A, b = poisson(8, 8), normal((64,))
    for factor in (1.0, 1e-100):  # in and out of units
        solution = S.cg(A, factor * b, rtol=0.0, atol=1e-3 * factor)
        assert solution.converged
        assert 1e-5 * factor < solution.residual_norms[-1] <= 1e-3 * factor
    assert S.cg(A, b, rtol=1e-12, atol=1e3).iterations == 0


@pytest.mark.parametrize("name", ALL)
def test_throw(name):
    A = matrix(name)
    b = normal((A.shape[0],)).requires_grad_()
    for mode in MODES:
        with pytest.raises(S.SolverError, match=f"{name}: MAX_ITERATIONS after 2 iterations") as raised:
            run(name, A, b, maxiter=2, throw=True, gradient=mode)
        assert raised.value.solution.iterations == 2
    solution = run(name, A, b, throw=True, adjoint_maxiter=2)
    assert solution.adjoint is None
    with pytest.raises(S.SolverError, match=f"{name}, adjoint solve of the backward: MAX_ITERATIONS"):
        solution.x.sum().backward()
    assert solution.adjoint.iterations == 2


@pytest.mark.parametrize("name", ALL)
def test_a_warning_where_the_adjoint_does_not_converge(name):
    A = matrix(name)
    b = normal((A.shape[0],)).requires_grad_()
    solution = run(name, A, b, adjoint_maxiter=1)
    said = f"{name}, adjoint solve .* did not converge.*adjoint_maxiter"
    with pytest.warns(S.ConvergenceWarning, match=said):
        solution.x.sum().backward()
    assert solution.adjoint.status is Status.MAX_ITERATIONS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = run(name, A, b)
        solution.x.sum().backward()
    assert solution.adjoint.converged
    assert not solution.adjoint.x.requires_grad


def test_least_squares_without_full_rank_warns_in_the_adjoint():
    A = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]).double())
    b = normal((3,)).requires_grad_()
    solution = S.lsqr(A, b)
    assert solution.converged
    torch.testing.assert_close(solution.x.detach(), torch.full((2,), b.mean().item() / 2).double())
    with pytest.warns(S.ConvergenceWarning, match="did not converge"):
        solution.x[0].backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        S.lsqr(A, b, damp=0.1).x[0].backward()


def test_names_of_failures():
    b = normal((16,))
    minus = -poisson()
    assert S.cg(minus, b).status is Status.INDEFINITE
    assert S.cg(poisson(), b, M=lambda r: -r).status is Status.INDEFINITE
    assert S.minres(poisson(), b, M=lambda r: -r).status is Status.INDEFINITE
    assert S.minres(minus, b).converged
    shift = ls.CSR.from_dense(torch.roll(torch.eye(16), 1, 0).double())
    e = torch.eye(16).double()[0]
    assert S.bicgstab(shift, e).status is Status.BREAKDOWN
    assert S.gmres(shift, e, restart=16).converged
    assert S.gmres(shift, e, restart=5).status is Status.MAX_ITERATIONS
    assert "Try" not in str(Status.CONVERGED)
    hard = ls.CSR.from_dense(torch.diag(torch.logspace(0, 6, 16)).double())
    assert S.lsqr(hard, b, atol=1e-14, btol=1e-14, conlim=1e3).status is Status.ILL_CONDITIONED
    assert S.lsmr(hard, b, atol=1e-14, btol=1e-14, conlim=1e2).status is Status.ILL_CONDITIONED


@pytest.mark.few
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["cg", "gmres", "lsqr"])
def test_no_cycles(name, mode):
    """Without the garbage collector, all is freed with the last name of it."""
    A = matrix(name)
    gc.collect()
    gc.disable()
    try:
        for create_graph in (False, True):
            v, b = A.values.clone().requires_grad_(), normal((A.shape[0], 2)).requires_grad_()
            solution = run(name, A.with_values(v), b, gradient=mode)
            loss = (solution.x**2).sum()
            grads = torch.autograd.grad(loss, (v, b), create_graph=create_graph)
            watched = [weakref.ref(t) for t in (solution, solution.x, loss, grads[0], v)]
            if solution.adjoint is not None:
                watched += [weakref.ref(solution.adjoint), weakref.ref(solution.adjoint.x)]
            del solution, loss, grads, v, b
            assert not [w for w in watched if w() is not None]
    finally:
        gc.enable()


@pytest.mark.parametrize("name", SYMMETRIC)
def test_inference_mode_and_no_grad(name):
    A, b = poisson(), normal((16,)).requires_grad_()
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            for mode in MODES:
                assert not run(name, A, b, gradient=mode).x.requires_grad


def test_a_replay_ends_where_the_callback_did():
    A, b = poisson(), normal((16,)).requires_grad_()
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        solution = S.cg(A, b, callback=lambda at: at.iteration == 5, gradient="checkpointed")
        (found,) = torch.autograd.grad(solution.x.sum(), b)
    (expected,) = torch.autograd.grad(S.cg(A, b, maxiter=5, gradient="unrolled").x.sum(), b)
    torch.testing.assert_close(found, expected)
