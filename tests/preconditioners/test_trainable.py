"""What is particular to one M in a `Trainable`: where it starts, positive numbers, other matrices, files."""

import pytest
import torch
from preconditioners.cases import CASES, general, matrix, spd
from reference import normal

import learnsolve as ls

P = ls.preconditioners
T = P.Trainable
LEARNED = [c for c in CASES if isinstance(c.make(matrix(c)), T)]
positives = pytest.mark.parametrize("positive", ["exp", "softplus"])


def indefinite() -> ls.CSR:
    """Whose pivots have any sign."""
    return ls.ops.scale_rows(general(), torch.where(torch.arange(20) % 3 == 0, -1.0, 1.0).double())


@positives
@pytest.mark.parametrize("make", [P.IC0, P.MIC0, lambda A: P.IC0(A, shift=0.5), lambda A: P.ICT(A, fill=1)])
def test_starts_as_the_incomplete_cholesky_factor(make, positive):
    A, r = spd(), normal((20, 2))
    start = make(A)
    M = T(start, positive=positive)
    assert torch.allclose(M.L().values, start.L.values, rtol=1e-14, atol=0)
    assert M.L.pattern is start.L.pattern
    assert torch.allclose(M(r), start(r), rtol=1e-12)
    assert M.symmetric


@positives
def test_starts_as_the_incomplete_lu_factors(positive):
    A, r = indefinite(), normal((20, 2))
    start = P.ILU0(A)
    M = T(start, positive=positive)
    assert torch.allclose(M.U().values, start.U.values, rtol=1e-14, atol=0)
    assert torch.allclose(M(r), start(r), rtol=1e-10)
    assert torch.allclose(M.T(r), start.T(r), rtol=1e-10)
    assert not T(P.ILU0(spd())).symmetric
    assert M.pcg_form() is None


def test_the_ones_of_L_are_not_learned():
    start = P.ILU0(general())
    M = T(start, positive="exp")
    assert M.L.values.numel() == start.L.tril(-1).nnz
    assert {name for name, _ in M.named_parameters()} == {"L.values", "U.off_diagonal", "U.log_diagonal"}
    without = T(P.Factored(start.L.tril(-1), start.U), positive="exp")
    assert torch.equal(without(normal((20,))), M(normal((20,))))


@positives
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_positive_definite_for_all_parameters(scale, positive):
    M = T(P.IC0(spd()), positive=positive)
    for seed in range(4):
        with torch.no_grad():
            for i, p in enumerate(M.parameters()):
                p.copy_(scale * normal(p.shape, seed=10 * seed + i))
        assert (M.L().diagonal() > 0).all()
        x = normal((20, 5), seed=seed)
        y = ls.ops.sptrsv(M.L(), x)
        assert ((x * M(x)).sum(0) > 0).all()
        assert torch.allclose((x * M(x)).sum(0), y.square().sum(0), rtol=1e-6)


def test_signs_of_U_stay():
    M = T(P.ILU0(indefinite()), positive="exp")
    before = M.U().diagonal().sign()
    assert (before < 0).any()
    with torch.no_grad():
        M.U.log_diagonal.copy_(normal((20,)))
    assert torch.equal(M.U().diagonal().sign(), before)


@pytest.mark.parametrize("positive", [None, "exp", "softplus"])
def test_weights_of_the_diagonal(positive):
    A, r = spd(), normal((20, 2))
    d = A.diagonal().unsqueeze(1)
    assert torch.allclose(T(P.Jacobi(A), positive=positive)(r), r / d, rtol=1e-14)
    w = torch.linspace(0.5, 60, 20, dtype=torch.float64)
    M = T(P.Jacobi(A, w), positive=positive)
    assert torch.allclose(M.weight(), w, rtol=1e-14)
    assert torch.allclose(M(r), w.unsqueeze(1) * r / d, rtol=1e-14)
    with torch.no_grad():
        next(M.parameters()).copy_(normal((20,)) * 5)
    assert bool((M.weight() > 0).all()) == (positive is not None)


def test_weights_for_another_matrix():
    A, B = spd(), spd() * 3.0
    M = T(P.Jacobi(A, 0.7), positive="softplus")
    N = M.on(P.Jacobi(B))
    assert N.weight is M.weight
    assert torch.allclose(N(normal((20,))) * 3, M(normal((20,))), rtol=1e-14)
    other = T(P.Jacobi(B))
    other.load_state_dict(T(P.Jacobi(A, 0.7)).state_dict())
    assert set(other.state_dict()) == {"weight.values"}
    with pytest.raises(RuntimeError, match="raw_values"):  # of another parametrization
        other.load_state_dict(M.state_dict())


def test_assign():
    A, B, r = spd(), spd() * 2.0, normal((20,))
    M = T(P.IC0(A), positive="exp")
    kept = [id(p) for p in M.parameters()]
    assert M.assign_(P.IC0(B)) is M
    assert [id(p) for p in M.parameters()] == kept
    assert torch.equal(M(r), T(P.IC0(B), positive="exp")(r))
    M = T(P.ILU0(general()), positive="exp")
    M.assign_(P.ILU0(-general()))
    assert torch.equal(M(r), T(P.ILU0(-general()), positive="exp")(r))


@pytest.mark.parametrize("case", LEARNED, ids=lambda c: c.name)
def test_files(case, tmp_path):
    """Of factors and diagonals a file is enough; of others M is the matrix and what is not learned."""
    pytest.importorskip("safetensors")
    A, r, path = matrix(case), normal((20,)), tmp_path / "M.safetensors"
    M = case.make(A)
    start = type(M.M)
    with torch.no_grad():
        for p in M.parameters():
            p.mul_(1.25)
    M.save(path)
    if start in (P.Factored, P.Diagonal) and case.name != "learned ILU0, U alone":
        again = P.load(path)
        assert torch.equal(again(r), M(r))
        assert (again.symmetric, again.batch_shape) == (M.symmetric, M.batch_shape)
        assert not any(p.requires_grad for p in again.parameters())
    else:
        with pytest.raises(ValueError, match=f"load: .* the parameters of a {start.__name__}, .*pass M="):
            P.load(path)
    fresh = case.make(A).requires_grad_(False).build()
    assert torch.equal(P.load(path, M=fresh)(r), M(r))


def test_files_of_batches(tmp_path):
    pytest.importorskip("safetensors")
    A = spd()
    M = T(P.IC0(A.with_values(torch.stack((A.values, 2 * A.values)))), positive="exp")
    M.save(tmp_path / "M")
    assert torch.equal(P.load(tmp_path / "M")(normal((20, 1))), M(normal((20, 1))))


def test_files_that_do_not_fit(tmp_path):
    pytest.importorskip("safetensors")
    path = tmp_path / "M.safetensors"
    T(P.Polynomial.chebyshev(spd(), 3)).save(path)
    with pytest.raises(ValueError, match=r"load: .* does not fit M \(Trainable: learn must be one or more"):
        P.load(path, M=P.IC0(spd()))
    with pytest.raises(ValueError, match=r"does not fit its settings, coefficients\.values has shape"):
        P.load(path, M=P.Polynomial(spd(), [1.0], interval=(0.0, 1.0)))
    P.PreCorrector(rounds=1).save(path)
    with pytest.raises(ValueError, match=r"M= is for a Trainable, and .* is of a PreCorrector"):
        P.load(path, M=P.IC0(spd()))


def test_a_class_of_ones_own_may_build():
    class Scale(T):
        symmetric = True

        def __init__(self, n):
            self.shape = (n, n)
            self.weight = torch.nn.Parameter(torch.linspace(0.5, 1, n).double())

        def build(self):
            return P.Diagonal(self.weight)

    M, A, b = Scale(20), spd(), normal((20,))
    assert torch.equal(M(b), M.weight * b)
    solution = ls.solvers.cg(A, b, M=M, rtol=0, maxiter=3, gradient="unrolled")
    assert solution.execution == "compiled"
    solution.residual_norms[-1].backward()
    assert M.weight.grad is not None
    with pytest.raises(NotImplementedError, match="Scale must define settings"):
        M.save("never")


def dense(rows) -> ls.CSR:
    return ls.CSR.from_dense(torch.tensor(rows, dtype=torch.float64))


F, J = P.Factored, P.Jacobi


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda A: T(), TypeError, r"M must be a Preconditioner .*, as IC0\(A\) is, got NoneType"),
        (lambda A: T(A), TypeError, "M must be a Preconditioner .* got CSR"),
        (lambda A: T(T(P.IC0(A))), TypeError, "got Trainable"),
        (lambda A: T(P.SSOR(A)), ValueError, "Trainable: SSOR has no tensors that can be learned"),
        (
            lambda A: T(P.IC0(A), learn=("l",)),
            ValueError,
            r"learn must be one or more of \('L',\), .*\('l',\)",
        ),
        (lambda A: T(P.IC0(A), learn="L"), ValueError, "in a tuple, got 'L'"),
        (lambda A: T(P.IC0(A), learn=()), ValueError, r"learn must be one or more of .*got \(\)"),
        (lambda A: T(P.IC0(A), positive="abs"), ValueError, r"positive must be one of \('exp', 'softplus'\)"),
        (lambda A: T(P.SPAI(A), positive="exp"), ValueError, r"applies to none of \('matrix',\); leave it"),
        (lambda A: T(F(-A.tril()), positive="exp"), ValueError, "of L must be positive, row 0 has -4"),
        (lambda A: T(F(dense([[1.0, 0], [1, -2.0]])), positive="exp"), ValueError, "row 1 has -2"),
        (lambda A: T(F(A.tril(-1), form="product"), positive="exp"), ValueError, "row 0 has none"),
        (lambda A: T(F(A[:4], form="product"), positive="exp"), ValueError, "L must be square"),
        (lambda A: T(J(A, -1.0), positive="exp"), ValueError, "must be positive .* the smallest is -1"),
        (lambda A: J(A, torch.ones(3).double()), ValueError, r"weight must have shape \(\) or \(..., 20\)"),
        (lambda A: J(A, torch.ones(20)), TypeError, "float32"),
        (lambda A: J(A, float("nan")), ValueError, "weight must be finite"),
        (lambda A: J(A, torch.full((20,), float("nan")).double()), ValueError, "weight must be finite"),
        (lambda A: J(A.tril(-1)), ValueError, "row 0 has none"),
        (lambda A: T(J(A)).on(J(ls.problems.poisson((3,)))), ValueError, r"must have shape \(20,\), as here"),
        (lambda A: T(J(A)).on(J(A.to(torch.float32))), TypeError, "weight.values must be torch.float64"),
        (lambda A: T(J(A)).on(P.IC0(A)), ValueError, r"learn must be one or more of \('L',\)"),
        (lambda A: T(P.IC0(A)).assign_(F(ls.ops.eye(20).double())), ValueError, "pattern of this module"),
        (lambda A: T(P.IC0(A)).assign_(P.FSAI(A)), ValueError, "solve"),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make(spd())
