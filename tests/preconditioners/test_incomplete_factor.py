"""M = (L L^T)^-1 and (L U)^-1: where it starts, and that its diagonal cannot become zero."""

import pytest
import torch
from preconditioners.cases import general, spd
from reference import normal

import learnsolve as ls

F = ls.preconditioners.IncompleteFactor


@pytest.mark.parametrize("positive", ["exp", "softplus"])
@pytest.mark.parametrize("method", ["ic0", "mic0"])
def test_starts_as_the_incomplete_cholesky_factor(method, positive):
    A, r = spd(), normal((20, 2))
    L = getattr(ls.ops, method)(A).L
    M = F.initialise_from(A, method, positive=positive)
    assert torch.allclose(M.L.matrix().values, L.values, rtol=1e-14, atol=0)
    assert M.L.pattern is L.pattern
    wanted = ls.ops.sptrsv(L, ls.ops.sptrsv(L, r), transpose=True)
    assert torch.allclose(M(r), wanted, rtol=1e-12)
    D = L.to_dense()
    assert torch.allclose(M(r), torch.linalg.solve(D @ D.T, r), rtol=1e-10)
    assert M.symmetric


@pytest.mark.parametrize("positive", ["exp", "softplus"])
def test_starts_as_the_incomplete_lu_factors(positive):
    A, r = general(), normal((20, 2))
    A = ls.ops.scale_rows(A, torch.where(torch.arange(20) % 3 == 0, -1.0, 1.0).double())  # pivots of any sign
    L, U, _ = ls.ops.ilu0(A)
    M = F.initialise_from(A, "ilu0", positive=positive)
    assert M.U is not None
    assert torch.allclose(M.U.matrix().values, U.values, rtol=1e-14, atol=0)
    assert torch.allclose(M(r), torch.linalg.solve(L.to_dense() @ U.to_dense(), r), rtol=1e-10)
    assert torch.allclose(M.T(r), torch.linalg.solve((L.to_dense() @ U.to_dense()).T, r), rtol=1e-10)
    assert not M.symmetric
    assert M.pcg_form() is None


def test_the_ones_of_L_are_not_learned():
    A = general()
    M = F.initialise_from(A, "ilu0")
    assert M.L.values.numel() == A.tril(-1).nnz
    assert {name for name, _ in M.named_parameters()} == {"L.values", "U.off_diagonal", "U.diagonal"}
    without = F(ls.ops.ilu0(A).L.tril(-1), ls.ops.ilu0(A).U)
    assert torch.equal(without(normal((20,))), M(normal((20,))))


@pytest.mark.parametrize("positive", ["exp", "softplus"])
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_positive_definite_for_all_parameters(scale, positive):
    M = F.initialise_from(spd(), positive=positive)
    for seed in range(4):
        with torch.no_grad():
            for i, p in enumerate(M.parameters()):
                p.copy_(scale * normal(p.shape, seed=10 * seed + i))
        d = M.L.matrix().diagonal()
        assert (d > 0).all()
        x = normal((20, 5), seed=seed)
        y = ls.ops.sptrsv(M.L.matrix(), x)
        assert ((x * M(x)).sum(0) > 0).all()
        assert torch.allclose((x * M(x)).sum(0), y.square().sum(0), rtol=1e-6)


def test_signs_of_U_stay():
    A = ls.ops.scale_rows(general(), torch.where(torch.arange(20) % 3 == 0, -1.0, 1.0).double())
    M = F.initialise_from(A, "ilu0")
    assert M.U is not None
    before = M.U.matrix().diagonal().sign()
    assert (before < 0).any()
    with torch.no_grad():
        M.U.diagonal.copy_(normal((20,)))
    assert torch.equal(M.U.matrix().diagonal().sign(), before)


def test_assign():
    A, B = spd(), spd() * 2.0
    M = F.initialise_from(A)
    kept = [id(p) for p in M.parameters()]
    assert M.assign_(ls.ops.ic0(B).L) is M
    assert [id(p) for p in M.parameters()] == kept
    assert torch.allclose(M(normal((20,))), F.initialise_from(B)(normal((20,))), rtol=1e-13)
    G, H = general(), -general()
    M = F.initialise_from(G, "ilu0")
    M.assign_(*ls.ops.ilu0(H)[:2])
    assert torch.allclose(M(normal((20,))), F.initialise_from(H, "ilu0")(normal((20,))), rtol=1e-13)


def test_a_shift_is_passed_on():
    A = spd() * -1.0 + 0.5 * spd()
    with pytest.raises(ValueError, match="pivot must be positive"):
        F.initialise_from(A)
    weak = ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64))
    with pytest.warns(RuntimeWarning, match="shift"):
        M = F.initialise_from(weak, on_breakdown="shift")
    assert torch.isfinite(M(normal((2,)))).all()
    L = ls.ops.ic0(spd(), shift=0.5).L
    assert torch.allclose(F.initialise_from(spd(), shift=0.5).L.matrix().values, L.values, rtol=1e-14)


def dense(rows) -> ls.CSR:
    return ls.CSR.from_dense(torch.tensor(rows, dtype=torch.float64))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda A: F(A.to_dense()), TypeError, "L must be a CSR"),
        (lambda A: F(A), ValueError, r"L must be lower triangular, but 31 .* take ops.tril\(L\)"),
        (lambda A: F(A.tril(-1)), ValueError, "row 0 has none"),
        (lambda A: F(A[:4].tril()), ValueError, "L must be square"),
        (lambda A: F(-A.tril()), ValueError, "diagonal of L must be positive, row 0 has -4"),
        (lambda A: F(dense([[1.0, 0], [1, -2.0]])), ValueError, "row 1 has -2"),
        (lambda A: F(A.tril() * float("inf")), ValueError, "L.values must be finite"),
        (lambda A: F(A.tril(), positive="abs"), ValueError, "positive must be one of"),
        (lambda A: F(A.tril(), A.triu()), ValueError, "L must have ones on its diagonal.*row 0 has 4"),
        (lambda A: F(A.tril(-1), A), ValueError, "U must be upper triangular"),
        (lambda A: F(dense([[1.0]]), A.triu()), ValueError, "one shape"),
        (lambda A: F(A.tril(-1), A.triu().to(torch.float32)), TypeError, "float32"),
        (lambda A: F.initialise_from(A, "ict"), ValueError, "method must be one of"),
        (lambda A: F.initialise_from(A).assign_(A.tril(), A.triu()), ValueError, "give L alone"),
        (lambda A: F.initialise_from(A, "ilu0").assign_(A.tril(-1)), ValueError, "give L, U"),
        (lambda A: F.initialise_from(A).assign_(ls.ops.eye(20).to(A.dtype)), ValueError, "pattern of this"),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make(spd())
