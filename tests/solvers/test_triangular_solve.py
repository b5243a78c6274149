"""The triangular solve with a trainable matrix."""

import copy
import itertools

import pytest
import torch
from reference import normal, on_cuda

import learnsolve as ls

T = ls.solvers.TriangularSolve
A = ls.problems.poisson((4, 5)) + 0.1 * ls.ops.eye(20, dtype=torch.float64)
FLAGS = list(itertools.product((True, False), (True, False), (True, False), (None, "exp", "softplus")))
FLAGS = [f for f in FLAGS if not (f[1] and f[3])]


def build(lower, unit, transpose, positive):
    L = A.tril() if lower else A.triu()
    return T(L, lower=lower, unit_diagonal=unit, transpose=transpose, positive=positive)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_formula_and_derivatives(flags):
    lower, unit, transpose, _ = flags
    solve, b = build(*flags), normal((20, 2))
    D = (A.tril() if lower else A.triu()).to_dense()
    if unit:
        D.fill_diagonal_(1)
    wanted = torch.linalg.solve(D.T if transpose else D, b)
    assert torch.allclose(solve(b), wanted, rtol=1e-12)
    assert torch.allclose(solve(b[:, 0]), wanted[:, 0], rtol=1e-12)
    names = [name for name, _ in solve.named_parameters()]
    parameters = [p.detach().clone().requires_grad_() for p in solve.parameters()]
    apply = lambda b, *p: torch.func.functional_call(solve, dict(zip(names, p, strict=True)), (b,))  # noqa: E731
    b.requires_grad_()
    assert torch.autograd.gradcheck(apply, (b, *parameters))


@pytest.mark.parametrize("flags", [(True, False, False, None), (False, False, True, "exp")], ids=str)
def test_module(flags, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    solve, b = build(*flags), normal((20,))
    assert torch.autograd.gradgradcheck(lambda b: solve(b), (b.clone().requires_grad_(),))
    other = copy.deepcopy(solve)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.1)
    assert not torch.allclose(other(b), solve(b))
    safetensors.save_file(other.state_dict(), tmp_path / "L.safetensors")
    solve.load_state_dict(safetensors.load_file(tmp_path / "L.safetensors"))
    assert torch.equal(solve(b), other(b))
    assert solve.float()(b.float()).dtype == torch.float32
    with pytest.raises(RuntimeError, match="TriangularSolve: the weights belong to another pattern"):
        solve.load_state_dict(T(ls.ops.eye(20, dtype=torch.float64), positive=flags[3]).state_dict())
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(b), other(b), rtol=1e-13)


def test_parameters():
    assert {n for n, _ in T(A.tril()).named_parameters()} == {"values"}
    assert T(A.tril(), unit_diagonal=True).values.numel() == A.tril(-1).nnz
    assert {n for n, _ in T(A.tril(), positive="exp").named_parameters()} == {"off_diagonal", "log_diagonal"}
    values = torch.stack((A.tril().values, 2 * A.tril().values))
    batch = T(A.tril().with_values(values), positive="softplus")
    assert torch.allclose(batch(normal((20, 1)))[1] * 2, T(A.tril())(normal((20, 1))), rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: T(A.to_dense()), TypeError, "TriangularSolve: L must be a CSR"),
        (lambda: T(A), ValueError, "lower triangular"),
        (lambda: T(A.tril(), lower=False), ValueError, r"upper triangular.*ops.triu\(L\)"),
        (lambda: T(A.tril(), lower=1), TypeError, "lower must be True or False"),
        (lambda: T(A.tril(), unit_diagonal=True, positive="exp"), ValueError, "no diagonal to keep positive"),
        (lambda: T(-A.tril(), positive="exp"), ValueError, "row 0 has -4.1"),
        (lambda: T(A.tril(), positive="square"), ValueError, "positive must be one of"),
        (lambda: T(A.tril(-1)), ValueError, "row 0 has none"),
        (lambda: T(A.tril())(torch.ones(3, dtype=torch.float64)), ValueError, "20 rows"),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_a_zero_on_the_diagonal():
    solve = T(A.tril() * 0.0)
    if on_cuda():  # a CUDA operator raises nothing: to look would be to wait
        assert solve(normal((20,))).isnan().all()
        return
    with pytest.raises(ValueError, match="zeros on its diagonal"):
        solve(normal((20,)))
