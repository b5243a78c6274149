"""GNP, a network for one matrix: its formula, scales, gradients, and what solvers do with it."""

import copy

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.nn import ResGCN

F64 = torch.float64
P = ls.preconditioners


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


A = ls.problems.convection_diffusion(drawn(2, 4, 5), 3.0, scheme="central")
SMALL = {"width": 4, "layers": 2, "dtype": F64}


@pytest.mark.parametrize("transpose", [False, True])
def test_the_network_by_dense_algebra(transpose):
    torch.manual_seed(0)
    network = ResGCN(2, 3, width=5, layers=2, transpose=transpose, dtype=F64)
    X = drawn(20, 2)
    D, w = A.to_dense(), dict(network.named_parameters())
    H = X @ w["first.weight"].T + w["first.bias"]
    for i in range(2):
        Y = D @ H @ w[f"rows.{i}.weight"].T + H @ w[f"own.{i}.weight"].T + w[f"own.{i}.bias"]
        if transpose:
            Y = Y + D.T @ H @ w[f"columns.{i}.weight"].T
        H = H + Y.relu()
    torch.testing.assert_close(network(A, X), H @ w["last.weight"].T + w["last.bias"])


def test_the_formula_of_the_preconditioner():
    M, R = P.GNP(A, **SMALL), drawn(20, 3)
    D = A.to_dense()
    unit = min(D.abs().sum(0).max(), D.abs().sum(1).max())
    for c in range(3):
        s = R[:, c].norm() / 20**0.5
        expected = M.network(A / unit, (R[:, c] / s).unsqueeze(-1)).squeeze(-1) * s / unit
        torch.testing.assert_close(M(R)[:, c], expected)
        torch.testing.assert_close(M(R[:, c]), expected)


@pytest.mark.parametrize("c", [3.0, 1e-250, 1e250])
def test_scales_of_the_residual_and_of_the_matrix(c):
    r = drawn(20)
    M = P.GNP(A, **SMALL)
    torch.testing.assert_close(M(c * r) / c, M(r), rtol=1e-10, atol=0)
    torch.testing.assert_close(P.GNP(c * A, **SMALL)(r) * c, M(r), rtol=1e-10, atol=0)


def test_a_batch_of_matrices_shares_the_weights():
    stack = ls.CSR.stack([A, 2.0 * A])
    M, R = P.GNP(stack, **SMALL), drawn(2, 20, 3)
    each = torch.stack([P.GNP(m, **SMALL)(r) for m, r in zip((A, 2.0 * A), R, strict=True)])
    torch.testing.assert_close(M(R), each)
    with torch.no_grad():
        assert ls.solvers.fgmres(stack, R, M=M, rtol=1e-8).converged


def test_derivatives():
    M = P.GNP(A, width=3, layers=1, transpose=True, dtype=F64)
    names = [name for name, _ in M.named_parameters()]

    def apply(r, *weights):
        return torch.func.functional_call(M, dict(zip(names, weights, strict=True)), (r,))

    given = [t.detach().clone().requires_grad_() for t in (drawn(20, 2), *M.parameters())]
    assert gradcheck(apply, given, fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(apply, given, fast_mode=True)


def test_a_residual_of_zero():
    M = P.GNP(A, **SMALL)
    r = torch.stack((torch.zeros(20, dtype=F64), drawn(20)), -1).requires_grad_()
    z = M(r)
    assert bool((z[:, 0] == 0).all())
    z.sum().backward()
    assert bool((r.grad[:, 0] == 0).all())
    assert bool(r.grad.isfinite().all())


def test_single_precision_inside_and_the_dtype_of_the_matrix_outside():
    M = P.GNP(A, width=4, layers=2)
    assert {p.dtype for p in M.parameters()} == {torch.float32}
    assert M(drawn(20)).dtype == M.dtype == F64
    torch.testing.assert_close(M(drawn(20)), copy.deepcopy(M).double()(drawn(20)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("solver", ["fcg", "fgmres"])
def test_solvers_with_and_without_gradient(solver):
    matrix = A if solver == "fgmres" else ls.problems.poisson((4, 5))
    solve, M, b = getattr(ls.solvers, solver), P.GNP(matrix, **SMALL), drawn(20, 2)
    with torch.no_grad():
        M.network.last.weight.mul_(0.1)
        M.network.first.weight.fill_(1.0)  # M is not far from a multiple of the identity
        M.network.last.weight.add_(0.5)
    with pytest.raises(ValueError, match="M requires grad"):
        solve(matrix, b, M=M)
    norms = solve(matrix, b, M=M, rtol=0.0, maxiter=4, gradient="unrolled").residual_norms
    norms[-1].sum().backward()
    assert all(bool((p.grad != 0).any()) for p in M.network.rows.parameters())
    with torch.no_grad():
        plain = solve(matrix, b, M=M, rtol=0.0, maxiter=4)
        apart = torch.stack([solve(matrix, c, M=M, rtol=0.0, maxiter=4).x for c in b.T], -1)
    torch.testing.assert_close(plain.residual_norms, norms.detach())
    torch.testing.assert_close(plain.x, apart)
    with pytest.raises(ValueError, match="GNP is not linear"):
        ls.solvers.cg(ls.problems.poisson((4, 5)), b, M=M)


def test_it_learns_where_ilu_fails():
    """The diagonal is zero: no Jacobi and no ILU(0)."""
    torch.manual_seed(0)
    hard = ls.problems.convection_diffusion(drawn(2, 6, 6), 6.0, scheme="central", reaction=-4.0)
    assert bool((hard.diagonal() == 0).all())
    with pytest.raises(ValueError, match="ilu0"):
        P.ILU0(hard)
    M = P.GNP(hard, width=8, layers=4, transpose=True, dtype=F64)
    optimizer = torch.optim.Adam(M.parameters(), lr=1e-2)
    Q, losses = ls.analysis.krylov_basis(hard, 20), []
    for _ in range(60):
        b = hard @ ls.analysis.krylov_samples(hard, Q, 16)
        b = b / b.norm(dim=0)
        loss = (hard @ M(b) - b).abs().sum() / b.abs().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_a_file_has_the_matrix(tmp_path):
    for matrix in (A, ls.CSR.stack([A, 2.0 * A])):
        M = P.GNP(matrix, width=4, layers=2, transpose=True, seed=3)
        with torch.no_grad():
            M.network.first.weight.add_(0.5)
        M.save(tmp_path / "m.safetensors")
        again = P.load(tmp_path / "m.safetensors")
        R = drawn(2, 20, 3)
        assert torch.equal(again(R), M(R))
        assert not any(p.requires_grad for p in again.parameters())
        assert ls.solvers.fgmres(matrix, R, M=again).converged


def test_arguments_that_do_not_fit():
    with pytest.raises(ValueError, match=r"GNP: A\.values requires grad"):
        P.GNP(A.with_values(A.values.clone().requires_grad_()))
    with pytest.raises(ValueError, match="GNP: A must be square"):
        P.GNP(A[:, :3])
    with pytest.raises(ValueError, match="width and layers must be at most 4096, got 5000"):
        P.GNP(A, width=5000)
    with pytest.raises(ValueError, match=r"ResGCN: X must have shape \(\.\.\., n = 20, in_features = 1\)"):
        P.GNP(A, **SMALL).network(A, drawn(20, 2))
    with pytest.raises(TypeError, match="GNP: r must be"):
        P.GNP(A, **SMALL)(drawn(20).float())
