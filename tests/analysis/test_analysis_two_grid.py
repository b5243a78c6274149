"""Block Fourier analysis of two grids against the propagator of the whole periodic problem."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.analysis import ErrorPropagator, spectral_radius, two_grid_factor, two_grid_symbols
from learnsolve.analysis.two_grid import _Grid

F64 = torch.float64
AMG, Hierarchy = ls.preconditioners.AMG, ls.preconditioners.Hierarchy


def problem(n=12, period=4, shift=0.1, seed=0):
    """A, and a P whose entries repeat themselves with the same period."""
    A = ls.problems.dataset("q1_diffusion", "train", seed + 1, n=n, period=period, shift=shift)[seed].A
    (P,) = Hierarchy.linear((n, n), periodic=True, levels=2).prolongations
    fine = _Grid((n, n), (period, period))
    local, _ = fine.positions(P.pattern.row_indices.long())
    coarse, _ = fine.coarse.positions(P.pattern.col_indices.long())
    draws = torch.rand(period**2, period**2 // 4, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return A, P.with_values(P.values * (0.8 + 0.4 * draws[local, coarse]))


def options(n=12, period=4, **others):
    return {"grid": (n, n), "period": (period, period)} | others


@pytest.mark.parametrize("sweeps", [(1, 1), (2, 0)], ids=str)
@pytest.mark.parametrize("weight", ["number", "tensor"])
def test_all_eigenvalues_are_those_of_the_whole_problem(sweeps, weight):
    A, P = problem()
    w = 0.7 if weight == "number" else 0.5 + 0.1 * A.diagonal() / A.diagonal().amax()
    E = two_grid_symbols(A, P, **options(weight=w, presweeps=sweeps[0], postsweeps=sweeps[1]))
    assert E.shape == (9, 16, 16)
    M = AMG(A, hierarchy=Hierarchy([P]), weight=w, presweeps=sweeps[0], postsweeps=sweeps[1])
    whole = ErrorPropagator(A, M)
    full = whole(torch.eye(144, dtype=F64))
    torch.testing.assert_close(E.abs().square().sum(), full.square().sum())
    sizes = torch.linalg.eigvals(E).reshape(-1).abs().sort().values
    torch.testing.assert_close(sizes, torch.linalg.eigvals(full).abs().sort().values, rtol=1e-6, atol=1e-6)
    factor = two_grid_factor(A, P, **options(weight=w, presweeps=sweeps[0], postsweeps=sweeps[1]))
    torch.testing.assert_close(factor, spectral_radius(whole).value)


def test_another_restriction_and_one_and_three_axes():
    A, P = problem()
    R = P.T.with_values(2 * P.T.values)
    (other,) = Hierarchy.linear((12, 12), periodic=True, levels=2).prolongations
    M = AMG(A, hierarchy=Hierarchy([P], [other.T]), weight=2 / 3)
    expected = spectral_radius(ErrorPropagator(A, M)).value
    torch.testing.assert_close(two_grid_factor(A, P, R=other.T, **options()), expected)
    torch.testing.assert_close(two_grid_factor(A, P, R=R, **options()), two_grid_factor(A, P, **options()))
    line = torch.eye(8, dtype=F64).roll(1, 0) + torch.eye(8, dtype=F64).roll(-1, 0)
    one = ls.CSR.from_dense(2.5 * torch.eye(8, dtype=F64) - line)
    (Q,) = Hierarchy.linear(8, periodic=True, levels=2).prolongations
    for A1, Q1, axes in (
        (one, Q, 1),
        (ls.ops.kron(ls.ops.kron(one, one), one), ls.ops.kron(ls.ops.kron(Q, Q), Q), 3),
    ):
        M = AMG(A1, hierarchy=Hierarchy([Q1]), weight=0.6)
        found = two_grid_factor(A1, Q1, grid=(8,) * axes, period=(2,) * axes, weight=0.6)
        torch.testing.assert_close(found, spectral_radius(ErrorPropagator(A1, M), method="arnoldi").value)


def test_without_constants():
    A = problem(shift=0.0)[0]
    (P,) = Hierarchy.linear((12, 12), periodic=True, levels=2).prolongations
    with pytest.raises(
        ValueError, match=r"a coarse block is singular up to rounding.*without_constants=True"
    ):
        two_grid_factor(A, P, **options())
    M = AMG(A, hierarchy=Hierarchy([P]), weight=2 / 3, coarse_solver="pinv")
    full = ErrorPropagator(A, M)(torch.eye(144, dtype=F64))
    off = torch.eye(144, dtype=F64) - 1 / 144
    expected = torch.linalg.eigvals(off @ full @ off).abs().max()
    assert expected < 0.9
    torch.testing.assert_close(two_grid_factor(A, P, without_constants=True, **options()), expected)


def test_batches_and_gradients():
    n, period = 8, 4
    pairs = [problem(n, period, seed=i) for i in range(2)]
    A, P = (ls.CSR.stack([pair[k] for pair in pairs]) for k in (0, 1))
    found = two_grid_factor(A, P, **options(n, period))
    for i, (one, Q) in enumerate(pairs):
        torch.testing.assert_close(found[i], two_grid_factor(one, Q, **options(n, period)))
    # Of parameters that are repeated, as the network's are.
    kappa = torch.linspace(1, 3, 16, dtype=F64).reshape(4, 4).requires_grad_()
    w = torch.tensor(0.6, dtype=F64, requires_grad=True)

    def loss(kappa, w):
        A = ls.problems.nodal_diffusion(kappa.repeat(2, 2), stencil="q1", boundary="periodic", shift=0.1)
        return two_grid_symbols(A, pairs[0][1], weight=w, **options(n, period)).abs().square().sum()

    assert gradcheck(loss, (kappa, w), fast_mode=True)
    assert gradgradcheck(loss, (kappa, w), fast_mode=True)
    A = ls.problems.nodal_diffusion(kappa.repeat(2, 2), stencil="q1", boundary="periodic", shift=0.1)
    Q = pairs[0][1].values.clone().requires_grad_()
    P = pairs[0][1].with_values(Q)
    (ours,) = torch.autograd.grad(two_grid_factor(A, P, **options(n, period)), kappa, retain_graph=True)
    M = AMG(A, hierarchy=Hierarchy([P]), weight=2 / 3)
    (theirs,) = torch.autograd.grad(spectral_radius(ErrorPropagator(A, M)).value, kappa)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def test_what_it_refuses():
    A, P = problem()
    broken = A.values.clone()
    broken[7] *= 1.001
    for call, message in (
        (lambda: two_grid_factor(A.with_values(broken), P, **options()), "entries of A must be the same"),
        (lambda: two_grid_factor(A, P, grid=(12, 12), period=(2, 2)), "entries of A must be the same"),
        (lambda: two_grid_factor(A, P, grid=(12, 12), period=(3, 3)), "period must have an even number"),
        (lambda: two_grid_factor(A, P, grid=(12, 12), period=(4,)), "period must have an even number"),
        (lambda: two_grid_factor(A, P.T, **options()), r"P must have shape \(144, 36\)"),
        (
            lambda: two_grid_factor(A, P, weight=torch.ones(3, dtype=F64), **options()),
            "weight must have shape",
        ),
    ):
        with pytest.raises(ValueError, match=f"two_grid_symbols: .*{message}"):
            call()
