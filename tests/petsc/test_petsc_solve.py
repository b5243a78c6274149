"""petsc.solve: solutions, gradients, statuses."""

import gc
import warnings

import pytest

pytest.importorskip("petsc4py", reason="needs petsc4py: make test-petsc")

import numpy as np
import scipy.sparse as sp
import torch
from distributed import close, distributed, leaves, numbers, own_entries, own_rows, random_matrix
from torch.autograd import forward_ad

import learnsolve as ls
from learnsolve import petsc
from learnsolve.petsc._processes import processes
from learnsolve.petsc.solve import _alive
from learnsolve.solvers import SolverError, Status

HOW = ["even", "last", "uneven"]


def whole_solve(C, b):
    return torch.linalg.solve(C.to_dense(), b)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("symmetric", "method", "M"),
    [(True, "cg", "bjacobi"), (True, "minres", "jacobi"), (False, "gmres", "bjacobi"), (False, "bcgs", None)],
)
def test_solution_and_derivatives(how, symmetric, method, M):
    S = random_matrix(19, symmetric)
    A, C = distributed(S, how), ls.CSR.from_scipy(S)
    b = numbers(19, 2)
    (v, bh), (w, bo) = leaves(A, C, b)
    solution = petsc.solve(A.with_values(v), bh, rtol=1e-14, method=method, M=M, maxiter=200)
    x = whole_solve(C.with_values(w), bo)
    assert solution.converged
    close(solution.x, own_rows(A, x))
    loss, loss_one = petsc.norm(torch.sin(solution.x)).sum(), torch.sin(x).norm(dim=0).sum()
    g = torch.autograd.grad(loss, (v, bh), create_graph=True)
    h = torch.autograd.grad(loss_one, (w, bo), create_graph=True)
    assert solution.adjoint.converged
    close(g[0], own_entries(A, C, h[0]))
    close(g[1], own_rows(A, h[1]))
    second = petsc.dot(g[0], g[0]) + petsc.dot(g[1], g[1]).sum()
    second_one = (h[0] ** 2).sum() + (h[1] ** 2).sum()
    g, h = torch.autograd.grad(second, (v, bh)), torch.autograd.grad(second_one, (w, bo))
    close(g[0], own_entries(A, C, h[0]))
    close(g[1], own_rows(A, h[1]))


@pytest.mark.parametrize("method", ["cg", "gmres"])
@pytest.mark.parametrize("M", ["gamg", "hypre", "none"])
def test_preconditioners_and_their_transposes(M, method):
    A = petsc.Matrix.from_scipy(ls.problems.poisson((12, 12)).to_scipy())
    b = own_rows(A, numbers(144)).requires_grad_()
    solution = petsc.solve(A, b, rtol=1e-13, M=M, method=method)
    petsc.dot(solution.x, solution.x).backward()
    again = petsc.solve(A, 2 * solution.x.detach(), rtol=1e-13, M=M)
    assert solution.converged
    assert solution.adjoint.converged
    close(b.grad, again.x)


@pytest.mark.parametrize(("M", "options"), [("hypre", {}), ("bjacobi", {"sub_pc_type": "hypre"})])
def test_gradients_with_hypre_of_a_nonsymmetric_matrix(M, options):
    S = random_matrix(24, False)
    A, C = distributed(S), ls.CSR.from_scipy(S)
    (v, bh), (w, bo) = leaves(A, C, numbers(24, 2))
    gc.collect()
    before = living()
    given = {"rtol": 1e-14, "method": "gmres", "M": M, "options": options, "maxiter": 100}
    solution, x = petsc.solve(A.with_values(v), bh, **given), whole_solve(C.with_values(w), bo)
    close(solution.x, own_rows(A, x))
    loss, loss_one = petsc.dot(torch.sin(solution.x), solution.x).sum(), (torch.sin(x) * x).sum()
    g = torch.autograd.grad(loss, (v, bh), create_graph=True)
    h = torch.autograd.grad(loss_one, (w, bo), create_graph=True)
    assert solution.adjoint.converged
    assert solution.adjoint.iterations <= solution.iterations + 5  # M fits the transpose
    close(g[0], own_entries(A, C, h[0]))
    close(g[1], own_rows(A, h[1]))
    second, second_one = petsc.dot(g[1], g[1]).sum(), (h[1] ** 2).sum()
    g, h = torch.autograd.grad(second, (v, bh)), torch.autograd.grad(second_one, (w, bo))
    close(g[0], own_entries(A, C, h[0]))
    close(g[1], own_rows(A, h[1]))
    assert living() == before + 2  # the KSP and that of the transpose
    del solution, loss, second, g
    gc.collect()
    assert living() == before


def test_forward_mode():
    S = random_matrix(12, True)
    A, C = distributed(S), ls.CSR.from_scipy(S)
    b, t, s = numbers(12), numbers(12, seed=1), numbers(C.nnz, seed=2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(own_rows(A, b), own_rows(A, t))
        values = forward_ad.make_dual(A.values, own_entries(A, C, s))
        x = petsc.solve(A.with_values(values), dual, rtol=1e-14).x
        tangent = forward_ad.unpack_dual(x).tangent
    close(tangent, own_rows(A, whole_solve(C, t - C.with_values(s) @ whole_solve(C, b))))


def test_start_norms_and_zero_right_hand_side():
    S = random_matrix(15, True)
    A = distributed(S)
    C = ls.CSR.from_scipy(S)
    b = numbers(15)
    x = own_rows(A, whole_solve(C, b))
    assert petsc.solve(A, own_rows(A, b), x).iterations == 0
    zero = petsc.solve(A, torch.zeros_like(x), x)
    assert zero.converged
    assert torch.equal(zero.x, torch.zeros_like(x))
    found = petsc.solve(A, own_rows(A, b), rtol=1e-10)
    close(found.residual_norms[0], b.norm())
    close(found.residual_norms[-1], petsc.norm(own_rows(A, b) - A @ found.x))
    assert found.residual_norms.shape == (found.iterations + 1,)
    assert not found.residual_norms.requires_grad


def same_everywhere(solution):
    codes = torch.tensor(
        [float(list(Status).index(s)) for s in solution.statuses] + [float(solution.iterations)]
    )
    everywhere = processes().gathered(codes)
    assert bool((everywhere == everywhere[0]).all())
    return solution.status


@pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")
def test_failures_have_one_status_in_all_processes():
    A = petsc.Matrix.from_scipy(ls.problems.poisson((16, 16)).to_scipy())
    b = own_rows(A, numbers(256))
    assert same_everywhere(petsc.solve(A, b, rtol=1e-12, maxiter=3)) is Status.MAX_ITERATIONS
    assert petsc.solve(A, b, rtol=1e-12, maxiter=3).iterations == 3
    assert same_everywhere(petsc.solve(A, b, rtol=0, atol=1e-30, maxiter=2000)) is Status.STAGNATED
    d = np.linspace(-1, 2, 256)
    indefinite = petsc.Matrix.from_scipy(sp.csr_array(sp.diags_array(d)))
    assert same_everywhere(petsc.solve(indefinite, b, M=None)) is Status.INDEFINITE
    if processes().rank == 0 and len(b):
        b = b.clone()
        b[0] = torch.nan
    assert same_everywhere(petsc.solve(A, b)) is Status.NON_FINITE
    with pytest.raises(SolverError, match="NON_FINITE"):
        petsc.solve(A, b, throw=True)


def test_an_adjoint_that_does_not_converge_is_reported():
    A = petsc.Matrix.from_scipy(ls.problems.poisson((16, 16)).to_scipy())
    b = own_rows(A, numbers(256))
    smooth = petsc.solve(A, b, rtol=1e-12).x
    start = (A @ smooth).requires_grad_()
    solution = petsc.solve(A, start, smooth, rtol=1e-8, maxiter=2, throw=True)  # converged before it began
    with pytest.raises(SolverError, match="adjoint"):
        petsc.dot(solution.x, own_rows(A, numbers(256, seed=3))).backward()
    assert solution.adjoint.status is Status.MAX_ITERATIONS


def test_options_reach_petsc_and_what_does_not_fit_is_refused():
    A = petsc.Matrix.from_scipy(ls.problems.poisson((12, 12)).to_scipy())
    b = own_rows(A, numbers(144))
    plain = petsc.solve(A, b, rtol=1e-10)
    levels = petsc.solve(A, b, rtol=1e-10, options={"sub_pc_type": "ilu", "-sub_pc_factor_levels": 3})
    assert levels.iterations < plain.iterations
    with pytest.raises(ValueError, match="method 'nothing'"):
        petsc.solve(A, b, method="nothing")
    with pytest.raises(ValueError, match="M 'nothing'"):
        petsc.solve(A, b, M="nothing")
    with pytest.raises(TypeError, match="LearnedPC"):
        petsc.solve(A, b, M=3)
    with pytest.raises(ValueError, match="x0 requires grad"):
        petsc.solve(A, b, b.clone().requires_grad_())
    with pytest.raises(ValueError, match="rtol is 0"):
        petsc.solve(A, b.clone().requires_grad_(), rtol=0, atol=1e-3)
    with pytest.raises(TypeError, match=r"use learnsolve\.solve"):
        petsc.solve(ls.problems.poisson((4,)), numbers(4))


def test_an_option_that_petsc_does_not_use_is_refused():
    A = petsc.Matrix.from_scipy(ls.problems.poisson((12, 12)).to_scipy())
    b = own_rows(A, numbers(144))
    misspelt = {"sub_pc_type": "icc", "-sub_pc_factor_level": 3}
    with pytest.raises(ValueError, match=r"not used options\['-sub_pc_factor_level'\] for method 'cg'"):
        petsc.solve(A, b, options=misspelt)
    with pytest.raises(ValueError, match=r"not used options\['pc_gamg_threshold'\]"):
        petsc.solve(A, b, M="jacobi", options={"pc_gamg_threshold": 0.02})
    # Also those that parts of M ask for when they are set up.
    parts = {"pc_gamg_threshold": 0.02, "mg_levels_ksp_type": "richardson", "mg_coarse_pc_type": "svd"}
    assert petsc.solve(A, b, M="gamg", options=parts).converged


def living():
    return sum(hasattr(system, "ksp") for system in _alive)


def test_systems_end_with_their_graphs():
    A = petsc.Matrix.from_scipy(ls.problems.poisson((8, 8)).to_scipy())
    b = own_rows(A, numbers(64))
    gc.collect()
    before = living()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        petsc.solve(A, b)
    assert living() == before
    x = petsc.solve(A, b.clone().requires_grad_()).x
    assert living() == before + 1
    del x
    assert living() == before
