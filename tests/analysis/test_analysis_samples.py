"""Losses, Krylov samples and Fourier analysis of two grids, against dense algebra."""

import pytest
import torch

import learnsolve as ls
from learnsolve.analysis import (
    ErrorPropagator,
    convergence_factor,
    krylov_basis,
    krylov_samples,
    one_step_loss,
    spectral_radius,
    two_grid_factor,
    two_grid_symbols,
)
from learnsolve.analysis.two_grid import _Grid

F64 = torch.float64
A = ls.problems.diffusion(torch.linspace(1, 5, 12, dtype=F64).reshape(3, 4))


def drawn(*shape):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(sum(shape)))


def dense(D, b, d):
    """One column, by the formula."""
    q = D @ d
    return (b - (b @ d) / (d @ q) * q).square().sum() / b.square().sum()


def test_columns_and_batches_agree_with_dense_algebra():
    stack = ls.CSR.stack([A, 2.0 * A + ls.ops.eye(12, dtype=F64)])
    b, d = drawn(2, 12, 3), drawn(2, 12, 3) + 1
    found = one_step_loss(stack, b, d)
    D = stack.to_dense()
    expected = [[dense(D[i], b[i, :, c], d[i, :, c]) for c in range(3)] for i in range(2)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=F64), rtol=1e-13, atol=0)
    torch.testing.assert_close(one_step_loss(A, b[0, :, 0], d[0, :, 0]), dense(D[0], b[0, :, 0], d[0, :, 0]))
    torch.testing.assert_close(one_step_loss(lambda x: A @ x, b[0], d[0]), found[0])
    members = [A, ls.problems.poisson((5,))]
    batch = ls.BlockBatch(members)
    b, d = drawn(17, 2), drawn(17, 2) + 1
    apart = [one_step_loss(m, *t) for m, *t in zip(members, batch.split(b), batch.split(d), strict=True)]
    torch.testing.assert_close(one_step_loss(batch, b, d), torch.stack(apart))


@pytest.mark.parametrize("scale", [-3.0, 1e-200, 1e200])
def test_scales_do_not_matter(scale):
    b, d = drawn(12), drawn(12) + 1
    torch.testing.assert_close(one_step_loss(A, b, scale * d), one_step_loss(A, b, d), rtol=1e-12, atol=0)
    torch.testing.assert_close(one_step_loss(A, scale * b, d), one_step_loss(A, b, d), rtol=1e-12, atol=0)


def test_no_direction_and_no_residual():
    d = torch.stack((torch.zeros(12, dtype=F64), drawn(12)), -1).requires_grad_()
    b = torch.stack((drawn(12), torch.zeros(12, dtype=F64)), -1).requires_grad_()
    loss = one_step_loss(A, b, d)
    assert loss.tolist() == [1.0, 0.0]
    for grad in torch.autograd.grad(loss.sum(), (b, d)):
        assert bool((grad == 0).all())


def test_arguments_that_do_not_fit():
    with pytest.raises(ValueError, match=r"one_step_loss: d must have b's shape \(12,\), got \(12, 1\)"):
        one_step_loss(A, drawn(12), drawn(12, 1))
    with pytest.raises(ValueError, match=r"krylov_samples: m must be a number of steps or have the shape"):
        krylov_samples(A, drawn(11, 3))


WIND = ls.problems.convection_diffusion(drawn(2, 6, 6), 4.0, scheme="central")


def test_images_of_the_basis_are_orthonormal_and_span_the_krylov_space():
    Q = krylov_basis(WIND, 8, torch.Generator().manual_seed(3))
    D = WIND.to_dense()
    torch.testing.assert_close((D @ Q).T @ (D @ Q), torch.eye(8, dtype=F64))
    v = torch.randn(36, dtype=F64, generator=torch.Generator().manual_seed(3))
    K = [v / v.norm()]
    for _ in range(7):
        K.append(D @ K[-1] / (D @ K[-1]).norm())
    K = torch.stack(K, -1)
    torch.testing.assert_close(K @ torch.linalg.lstsq(K, Q).solution, Q, rtol=1e-8, atol=1e-8)


def test_a_batch_is_its_matrices():
    stack = ls.CSR.stack([WIND, ls.problems.convection_diffusion(drawn(2, 6, 6), 2.0)])
    Q = krylov_basis(stack, 5)
    AQ = stack @ Q
    torch.testing.assert_close(AQ.mT @ AQ, torch.eye(5, dtype=F64).expand(2, 5, 5))
    assert krylov_samples(stack, 5, 3).shape == (2, 36, 3)


def test_a_space_that_is_complete_and_a_singular_matrix():
    eye = ls.ops.eye(6, dtype=F64)
    assert (krylov_basis(eye, 4).norm(dim=0) > 0.5).sum() == 1
    nilpotent = ls.CSR.from_dense(torch.diag(torch.ones(5, dtype=F64), 1))
    Q = krylov_basis(nilpotent, 6)
    assert bool(Q.isfinite().all())
    assert Q.norm() < 1e3


def test_half_are_normal_and_half_white_in_the_krylov_space():
    Q = krylov_basis(WIND, 4, torch.Generator().manual_seed(0))
    x = krylov_samples(WIND, Q, 4001, torch.Generator().manual_seed(1))
    assert abs(x[:, :2001].var() - 1) < 0.05
    e = (WIND @ Q).T @ (WIND @ x[:, 2001:])
    torch.testing.assert_close(e @ e.T / 2000, torch.eye(4, dtype=F64), rtol=0, atol=0.1)
    torch.testing.assert_close((WIND @ Q) @ e, WIND @ x[:, 2001:])


def test_samples_depend_on_the_generator_alone():
    before = torch.random.get_rng_state()
    one, two = (krylov_samples(WIND, 5, 4, torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(krylov_samples(WIND, 5, 4), krylov_samples(WIND, 5, 4))


# --- the asymptotic factor of a history ---


def geometric(rho, N: int = 40) -> torch.Tensor:
    return torch.as_tensor(rho, dtype=F64) ** torch.arange(N + 1, dtype=F64).unsqueeze(-1)


def test_a_geometric_history():
    for rho in (0.1, 0.9, 1.0, 1.5):
        found = convergence_factor(3 * geometric(rho).squeeze(-1))
        assert found.value.shape == ()
        torch.testing.assert_close(found.value, torch.tensor(rho, dtype=F64))
        assert found.error < 1e-12
        assert found.converged
    history = torch.cat((geometric(0.5, 30), 0.5**30 * geometric(0.9, 10)[1:])).squeeze(-1)
    assert abs(convergence_factor(history, last=0.25).value - 0.9) < 1e-12
    for last, rho in ((1, (0.5**30 * 0.9**10) ** (1 / 40)), (1e-9, 0.9)):
        with pytest.warns(RuntimeWarning, match="has not settled"):
            found = convergence_factor(history, last=last)
        assert not found.converged
        assert abs(found.value - rho) < 1e-12
    found = convergence_factor(geometric([0.1, 0.5]))
    torch.testing.assert_close(found.value, torch.tensor([0.1, 0.5], dtype=F64))


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


def test_a_history_without_iterations_is_refused():
    with pytest.raises(ValueError, match=r"N >= 1 iterations, got \(1,\)"):
        convergence_factor(torch.ones(1))


# --- block Fourier analysis of two grids against the propagator of the whole periodic problem ---


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
    A = ls.problems.nodal_diffusion(kappa.repeat(2, 2), discretization="fe", boundary="periodic", shift=0.1)
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
        with pytest.raises(ValueError, match=rf"two_grid_\w+: .*{message}"):
            call()
