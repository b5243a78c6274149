"""IC0, MIC0 and ILU0 as preconditioners: against dense formulas, iteration counts, options, errors."""

import pytest
import scipy.sparse.linalg as spla
import torch
from preconditioners.cases import general, spd
from reference import normal

import learnsolve as ls

P, S = ls.preconditioners, ls.solvers


@pytest.mark.parametrize(("kind", "op"), [(P.IC0, ls.ops.ic0), (P.MIC0, ls.ops.mic0)])
def test_cholesky_is_two_triangular_solves(kind, op):
    A = spd()
    M, factor = kind(A, shift=0.02), op(A, shift=0.02)
    assert torch.equal(M.L.values, factor.L.values)
    assert torch.equal(M.shift, factor.shift)
    L, r = factor.L.to_scipy(), normal((A.shape[0], 2))
    z = spla.spsolve_triangular(L, r.numpy(), lower=True)
    z = spla.spsolve_triangular(L.T.tocsr(), z, lower=False)
    assert torch.allclose(M(r), torch.from_numpy(z), rtol=1e-12)
    assert M.pcg_form()[0] == "triangular"
    assert M.T is M


def test_lu_is_two_triangular_solves_and_its_transpose():
    A = general()
    M, r = P.ILU0(A), normal((A.shape[0], 2))
    L, U = M.L.to_scipy(), M.U.to_scipy()
    z = spla.spsolve_triangular(L, r.numpy(), lower=True, unit_diagonal=True)
    assert torch.allclose(M(r), torch.from_numpy(spla.spsolve_triangular(U, z, lower=False)), rtol=1e-12)
    D = (M.L.to_dense() @ M.U.to_dense()).mT
    assert torch.allclose(M.T(r), torch.linalg.solve(D, r), rtol=1e-12)


def test_without_dropped_fill_they_are_direct_solvers():
    A, r = ls.problems.poisson((9,)), normal((9,))
    for kind in (P.IC0, P.MIC0, P.ILU0):
        assert torch.allclose(A @ kind(A)(r), r, rtol=1e-12)


def test_iteration_counts_fall():
    A, b = ls.problems.poisson((100, 100)), normal((10_000,))
    plain, ic, mic = (S.cg(A, b, M=M, rtol=1e-8).iterations for M in (None, P.IC0(A), P.MIC0(A)))
    assert mic < 0.8 * ic < 0.4 * plain
    wind = A.with_values(A.values + 0.5 * (A.col_indices - A.pattern.row_indices).sign().double())
    with_ilu, without = (S.gmres(wind, b, M=M, restart=30).iterations for M in (P.ILU0(wind), None))
    assert with_ilu < without / 2


def test_condition_of_the_modified_factor_grows_like_the_inverse_of_h():
    """Gustafsson: O(1/h), where IC0's is O(1/h^2). Doubling the grid: a factor of 2, not 4."""

    def condition(kind, n, **keywords):
        A = ls.problems.poisson((n, n))
        lambdas = torch.linalg.eigvals(kind(A, **keywords)(A.to_dense())).real
        return float(lambdas.max() / lambdas.min())

    growth = {kind: condition(kind, 24) / condition(kind, 12) for kind in (P.IC0, P.MIC0)}
    assert growth[P.IC0] > 3
    assert growth[P.MIC0] < 2.3


@pytest.mark.parametrize("kind", [P.IC0, P.MIC0, P.ILU0])
def test_shifts_count_and_learn(kind):
    A, r = spd(), normal((20,))
    shift = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    M = kind(A, shift=shift)
    assert any(t is shift for t in M.depends_on)
    assert not torch.allclose(M(r), kind(A)(r))
    assert torch.allclose(M(r), kind(A, shift=0.1)(r))
    assert torch.autograd.gradcheck(lambda s: kind(A, shift=s)(r), (shift,))
    with pytest.raises(ValueError, match=r"M requires grad, .* Use gradient=.unrolled"):
        S.cg(A, r, M=M)
    norms = S.cg(A, r, M=M, gradient="unrolled", rtol=0, maxiter=4).residual_norms
    (g,) = torch.autograd.grad(norms[-1], shift)
    assert g != 0


def test_breakdowns_name_the_row_or_are_shifted_away():
    D = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    A = ls.CSR.from_dense(D)
    with pytest.raises(ValueError, match=r"ic0: every pivot must be positive.* row 1 is -3"):
        P.IC0(A)
    with pytest.warns(RuntimeWarning, match="a pivot broke down"):
        M = P.IC0(A, on_breakdown="shift")
    assert M.shift > 1
    assert torch.isfinite(M(normal((2,)))).all()
    D[1, 1] = 4
    with pytest.raises(ValueError, match="ilu0: every pivot must be nonzero"):
        P.ILU0(ls.CSR.from_dense(D))
    for kind in (P.IC0, P.MIC0, P.ILU0):
        with pytest.raises(TypeError, match=f"{kind.__name__}: A must be a CSR, got list"):
            kind(D.tolist())


def test_the_gradient_of_an_unrolled_solve_goes_through_the_factor():
    """Of a loss on the residual after a few iterations, M made of A: against finite differences."""
    A, b = spd(3), normal((12,))
    order = A.pattern.transpose_permutation

    def loss(v):
        v = (v + v[order]) / 2
        A_ = A.with_values(v)
        return S.cg(A_, b, M=P.IC0(A_), rtol=0, maxiter=3, gradient="unrolled").residual_norms[-1]

    assert torch.autograd.gradcheck(loss, (A.values.clone().requires_grad_(),))


def test_symmetry_can_be_told():
    A = general()
    assert not P.ILU0(A).symmetric
    assert P.ILU0(A, symmetric=True).symmetric
    assert P.ILU0(spd()).symmetric
    assert not P.ILU0(spd(), symmetric=False).symmetric
    assert P.ILU0(spd(), pattern=P.fill_pattern(spd(), 1)).symmetric
    assert not P.ILU0(spd(), pattern=spd().triu().pattern).symmetric
    with pytest.raises(TypeError, match="ILU0: symmetric must be True or False, got 1"):
        P.ILU0(A, symmetric=1)
