"""Incomplete factors and sparse approximate inverses against dense formulas and least squares."""

import pytest
import scipy.sparse.linalg as spla
import torch
from preconditioners.cases import general, spd
from reference import normal

import learnsolve as ls
from learnsolve.ops.core import local_solve

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


def test_condition_of_the_modified_factor_grows_like_the_inverse_of_h():
    """Gustafsson: O(1/h), where IC0's is O(1/h^2). Doubling the grid: a factor of 2, not 4."""

    def condition(kind, n, **keywords):
        A = ls.problems.poisson((n, n))
        lambdas = torch.linalg.eigvals(kind(A, **keywords)(A.to_dense())).real
        return float(lambdas.max() / lambdas.min())

    growth = {kind: condition(kind, 24) / condition(kind, 12) for kind in (P.IC0, P.MIC0)}
    assert growth[P.IC0] > 3
    assert growth[P.MIC0] < 2.3


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


P = ls.preconditioners


def fsai(A: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """By its definition, one dense system after the other."""
    L = torch.zeros_like(A)
    for j in range(A.shape[0]):
        J = where[:, j].nonzero().squeeze(1)
        e = (j == J).to(A.dtype)
        y = torch.linalg.solve(A[J][:, J], e)
        L[J, j] = y / (y @ e).sqrt()
    return L


def test_a_product_by_dense_algebra():
    A, r = spd(), normal((20, 2))
    for L in (A, A.tril(), A.triu()):
        D = L.to_dense()
        assert torch.allclose(P.Factored(L, form="product")(r), D @ D.T @ r, rtol=1e-12)


def test_bidiagonal():
    M = P.Factored.bidiagonal(5)
    wanted = 2 * torch.eye(5, dtype=torch.float64) + 0.1 * torch.eye(5, dtype=torch.float64).tril(-1)
    wanted += torch.diag(torch.full((4,), 0.1, dtype=torch.float64), -1)
    assert torch.equal(M.L.to_dense(), wanted)
    other = P.Factored.bidiagonal(3, diagonal=3.0, off=-1.0, dtype=torch.float32).L.to_dense()
    assert torch.equal(other, torch.tensor([[3.0, 0, 0], [-1, 3, 0], [0, -1, 3]]))
    assert P.Factored.bidiagonal(0)(torch.ones(0, dtype=torch.float64)).shape == (0,)
    assert P.Factored.bidiagonal(1).L.to_dense().tolist() == [[2.0]]


def test_from_pattern():
    A = spd()
    D = P.Factored.from_pattern(A.pattern, 3.0, 0.25).L.to_dense()
    wanted = torch.where(A.to_dense() != 0, 0.25, 0.0).double()
    wanted.fill_diagonal_(3.0)
    assert torch.equal(D, wanted)
    assert P.Factored.from_pattern(A.pattern).L.pattern is A.pattern


@pytest.mark.parametrize("power", [1, 2, 3])
def test_patterns_of_a_matrix(power):
    A = spd()
    wanted = torch.linalg.matrix_power((A.to_dense() != 0).double(), power).tril() != 0
    pattern = P.lower_pattern(A, power)
    found = A.to_dense().new_zeros(20, 20)
    found[pattern.row_indices, pattern.col_indices] = 1
    assert torch.equal(found != 0, wanted)
    assert P.lower_pattern(A.pattern, power) is pattern
    assert pattern.nnz == int(wanted.sum())
    ls.SparsityPattern(pattern.crow_indices, pattern.col_indices, pattern.shape)  # valid


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("lower", [True, False])
def test_fsai_against_dense(power, lower):
    A = spd()
    pattern = P.lower_pattern(A, power)
    pattern = pattern if lower else pattern.T
    D = A.to_dense()
    where = torch.zeros(20, 20, dtype=torch.bool)
    where[pattern.row_indices, pattern.col_indices] = True
    L = P.FSAI(A, pattern=pattern).L.to_dense()
    assert torch.allclose(L, fsai(D, where), rtol=1e-11, atol=1e-14)
    assert torch.allclose((L.T @ D @ L).diagonal(), torch.ones(20, dtype=torch.float64), rtol=1e-12)


def test_fsai_on_the_whole_triangle_is_the_inverse():
    A = spd(3)
    full = ls.CSR.from_dense(torch.ones(12, 12, dtype=torch.float64).tril()).pattern
    M = P.FSAI(A, pattern=full)
    assert torch.allclose(M(A.to_dense()), torch.eye(12, dtype=torch.float64), atol=1e-10)


def test_fsai_has_the_smallest_condition_number_of_kaporin():
    A = spd()
    M, D = P.FSAI(A), A.to_dense()

    def kaporin(values):
        L = M.L.with_values(values).to_dense()
        K = L.T @ D @ L
        return (K.trace() / 20).log() - torch.linalg.slogdet(K)[1] / 20

    values = M.L.values.clone().requires_grad_()
    (g,) = torch.autograd.grad(kaporin(values), values)
    assert g.abs().max() < 1e-10
    for seed in range(5):
        assert kaporin(values + 0.1 * normal(values.shape, seed=seed)) > kaporin(values)


def where(pattern: ls.SparsityPattern) -> torch.Tensor:
    mask = torch.zeros(pattern.shape, dtype=torch.bool)
    mask[pattern.row_indices, pattern.col_indices] = True
    return mask


def by_columns(A: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    M, one = torch.zeros_like(A), torch.eye(len(A), dtype=A.dtype)
    for j in range(len(A)):
        J = mask[:, j].nonzero().squeeze(1)
        M[J, j] = torch.linalg.lstsq(A[:, J], one[:, j : j + 1], driver="gelsd").solution.squeeze(1)
    return M


SPAI_PATTERNS = {
    "A": lambda A: None,
    "tril": lambda A: A.tril().pattern,
    "two rings": lambda A: (A @ A).pattern,
    "diagonal": lambda A: ls.ops.eye(A.shape[0]).pattern,
}


@pytest.mark.parametrize("pattern", SPAI_PATTERNS)
@pytest.mark.parametrize("A", [spd(), general()], ids=["spd", "general"])
def test_against_dense_least_squares(A, pattern):
    S = SPAI_PATTERNS[pattern](A)
    mask, D = where(A.pattern if S is None else S), A.to_dense()
    assert torch.allclose(P.SPAI(A, pattern=S).matrix.to_dense(), by_columns(D, mask), rtol=1e-12, atol=1e-14)
    left = P.SPAI(A, pattern=S, side="left").matrix.to_dense()
    assert torch.allclose(left, by_columns(D.T, mask.T).T, rtol=1e-12, atol=1e-14)


def test_irregular_patterns():
    torch.manual_seed(1)
    D = torch.where(torch.rand(30, 30) < 0.15, torch.randn(30, 30), 0.0).double()
    D += 3 * torch.eye(30, dtype=torch.float64)
    A = ls.CSR.from_dense(D)
    mask = (torch.rand(30, 30) < 0.2) | torch.eye(30, dtype=torch.bool)
    S = ls.CSR.from_dense(mask.double()).pattern
    assert torch.allclose(P.SPAI(A, pattern=S).matrix.to_dense(), by_columns(D, mask), rtol=1e-11, atol=1e-13)


def test_on_the_full_pattern_it_is_the_inverse():
    A = general(3)
    full = ls.CSR.from_dense(torch.ones(12, 12, dtype=torch.float64)).pattern
    assert torch.allclose(
        P.SPAI(A, pattern=full)(A.to_dense()), torch.eye(12, dtype=torch.float64), atol=1e-12
    )


def test_refinement_makes_up_for_the_squared_condition():
    """Rows of very different size: condition 4e4 of the local problems, 2e9 of their squares."""
    scale = torch.logspace(0, -8, 20, dtype=torch.float64)
    A = ls.ops.scale_rows(general(), scale[torch.randperm(20, generator=torch.Generator().manual_seed(0))])
    M, wanted = P.SPAI(A).matrix.to_dense(), by_columns(A.to_dense(), where(A.pattern))
    D = A.to_dense()
    one = torch.eye(20, dtype=torch.float64)
    residual = ((D @ M - one).norm(dim=0), (D @ wanted - one).norm(dim=0))
    assert torch.allclose(*residual, rtol=1e-10)
    assert float((M - wanted).norm(dim=0).div(wanted.norm(dim=0)).max()) < 1e-11


def test_single_precision_is_that_of_the_result():
    A = general()
    single = P.SPAI(A.to(dtype=torch.float32)).matrix
    assert single.dtype == torch.float32
    assert torch.allclose(single.values.double(), P.SPAI(A).matrix.values, rtol=1e-5, atol=1e-7)


def test_small_chunks_change_nothing(monkeypatch):
    A = general()
    whole = P.SPAI(A).matrix.values
    monkeypatch.setattr(local_solve, "_CHUNK", 40)  # one or two columns at a time
    again = general()
    assert torch.allclose(P.SPAI(again).matrix.values, whole, rtol=1e-13)


def test_a_bounded_number_of_blocks_at_a_time(monkeypatch):
    sizes, inner = [], local_solve._solve_blocks

    def record(B, g):
        sizes.append(B.numel())
        return inner(B, g)

    A = ls.problems.poisson((30, 30))
    values = torch.stack((A.values, 2 * A.values))
    monkeypatch.setattr(local_solve, "_solve_blocks", record)
    monkeypatch.setattr(local_solve, "_CHUNK", 1000)
    P.SPAI(A.with_values(values))
    assert max(sizes) <= 1000
    assert sum(sizes) > 30_000


def test_a_second_matrix_uses_the_plans():
    A = spd()
    first = P.SPAI(A)
    second = P.SPAI(A.with_values(2 * A.values))
    assert second.matrix.pattern is first.matrix.pattern
    assert torch.allclose(2 * second.matrix.values, first.matrix.values, rtol=1e-13)


def test_gradient_of_a_loss_on_the_inverse():
    """|A M - I|^2 is stationary in M: its gradient in A is that with M held."""
    A = general()
    values = A.values.clone().requires_grad_()
    D = A.with_values(values).to_dense()
    M = P.SPAI(A.with_values(values)).matrix.to_dense()
    one = torch.eye(20, dtype=torch.float64)
    (g,) = torch.autograd.grad((D @ M - one).square().sum(), values, retain_graph=True)
    (held,) = torch.autograd.grad((D @ M.detach() - one).square().sum(), values)
    assert torch.allclose(g, held, rtol=1e-9, atol=1e-12)
