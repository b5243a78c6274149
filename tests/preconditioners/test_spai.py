"""Sparse approximate inverses against dense least squares, column by column."""

import pytest
import torch
from preconditioners.cases import general, spd
from reference import normal

import learnsolve as ls
from learnsolve.ops.core import local_solve

P = ls.preconditioners


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


PATTERNS = {
    "A": lambda A: None,
    "tril": lambda A: A.tril().pattern,
    "two rings": lambda A: (A @ A).pattern,
    "diagonal": lambda A: ls.ops.eye(A.shape[0]).pattern,
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("A", [spd(), general()], ids=["spd", "general"])
def test_against_dense_least_squares(A, pattern):
    S = PATTERNS[pattern](A)
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


def test_transformations_of_torch_func():
    A, r = general(3), normal((12,))
    apply = lambda v: P.SPAI(A.with_values(v))(r)  # noqa: E731
    J = torch.func.jacrev(apply)(A.values)
    assert torch.allclose(torch.func.jacfwd(apply)(A.values), J, rtol=1e-10, atol=1e-13)
    _, along = torch.func.jvp(apply, (A.values,), (normal((A.nnz,), seed=2),))
    assert torch.allclose(along, J @ normal((A.nnz,), seed=2), rtol=1e-10, atol=1e-13)
    several = torch.stack((A.values, A.values + 0.01 * normal((A.nnz,), seed=3)))
    mapped = torch.vmap(apply)(several)
    for i in range(2):
        assert torch.allclose(mapped[i], apply(several[i]), rtol=1e-12)


def test_a_second_matrix_uses_the_plans():
    A = spd()
    first = P.SPAI(A)
    second = P.SPAI(A.with_values(2 * A.values))
    assert second.matrix.pattern is first.matrix.pattern
    assert torch.allclose(2 * second.matrix.values, first.matrix.values, rtol=1e-13)


@pytest.mark.parametrize("side", ["right", "left"])
def test_it_helps_gmres(side):
    A, b = general(8), normal((72,))
    plain = ls.solvers.gmres(A, b, rtol=1e-8).iterations
    assert ls.solvers.gmres(A, b, M=P.SPAI(A, side=side), rtol=1e-8).iterations < 0.75 * plain


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


def zero_column(A: ls.CSR) -> ls.CSR:
    return A.with_values(torch.where(A.col_indices == 7, 0, A.values))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda A: P.SPAI(A.to_dense().tolist()), TypeError, "A must be a CSR"),
        (lambda A: P.SPAI(A[:3]), ValueError, "A must be square"),
        (lambda A: P.SPAI(A, pattern=A), TypeError, "pattern must be a SparsityPattern"),
        (lambda A: P.SPAI(A, pattern=A[:3].pattern), ValueError, r"shape \(20, 20\), got \(3, 20\)"),
        (lambda A: P.SPAI(A, side="both"), ValueError, "side must be one of"),
        (lambda A: P.SPAI(A, pattern=A.tril(-1).pattern), ValueError, "column 19 has none"),
        (lambda A: P.SPAI(A, pattern=A.tril(-1).pattern, side="left"), ValueError, "row 0 has none"),
        (lambda A: P.SPAI(zero_column(A)), ValueError, "column 2 of the pattern is rank-deficient"),
        (lambda A: P.SPAI(zero_column(A).T, side="left"), ValueError, "row 2 of the pattern is rank-def"),
        (lambda A: P.SPAI(A * float("nan")), ValueError, "rank-deficient"),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make(general())
