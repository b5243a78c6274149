"""M = L L^T: patterns, factorized sparse approximate inverses."""

import pytest
import torch
from preconditioners.cases import spd
from reference import normal

import learnsolve as ls

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


def test_formula():
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


def test_higher_powers_take_fewer_iterations():
    A = ls.problems.poisson((20, 20))
    b = normal((400,))
    taken = [ls.solvers.cg(A, b).iterations]
    for power in (1, 2, 3):
        M = P.FSAI(A, pattern=P.lower_pattern(A, power))
        taken.append(ls.solvers.cg(A, b, M=M).iterations)
    assert taken == sorted(taken, reverse=True)
    assert len(set(taken)) == 4


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda A: P.Factored.bidiagonal(-1), ValueError, "n must be at least 0"),
        (lambda A: P.Factored.from_pattern(A), TypeError, "SparsityPattern, got CSR"),
        (lambda A: P.FSAI(A, pattern=A.pattern), ValueError, "lower or upper triang"),
        (lambda A: P.FSAI(A, pattern=A.tril(-1).pattern), ValueError, "row 0 has no"),
        (lambda A: P.FSAI(A, pattern=A[:3].pattern), ValueError, r"\(20, 20\), got"),
        (lambda A: P.FSAI(A[:3]), ValueError, "A must be square"),
        (lambda A: P.FSAI(-A), ValueError, "column 0 of the pattern"),
        (lambda A: P.lower_pattern(A, 0), ValueError, "power must be at least 1"),
        (lambda A: P.lower_pattern(A[:3]), ValueError, "square"),
        (lambda A: P.lower_pattern(A.to_dense()), TypeError, "CSR or a SparsityPattern"),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make(spd())
