"""The small systems that approximate inverses are made of."""

import pytest
import torch
from reference import normal

import learnsolve as ls
from learnsolve.ops.core.local_solve import NotPositive, local_solve


@pytest.fixture(params=[torch.int64, torch.int32], ids=["int64", "int32"])
def problem(request):
    """A symmetric positive definite K, and values on a pattern with columns of many sizes, one is empty."""
    K = ls.problems.poisson((2, 3))
    S = torch.zeros(6, 6, dtype=torch.float64)
    for j in range(5):
        S[: j + 1, j] = 1
    S[0, 3:] = 0
    S = ls.CSR.from_dense(S)
    K, S = (ls.CSR(M.values, M.pattern.to(dtype=request.param)) for M in (K, S))
    return K, S.with_values(normal((S.nnz,)))


def reference(K: torch.Tensor, G: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    Y = torch.zeros_like(G)
    for j in range(G.shape[1]):
        J = mask[:, j].nonzero().squeeze(1)
        Y[J, j] = torch.linalg.solve(K[J][:, J], G[J, j])
    return Y


def test_against_dense(problem):
    K, G = problem
    D = G.to_dense()
    wanted = reference(K.to_dense(), D, D != 0)
    assert torch.allclose(local_solve(K, G).to_dense(), wanted, rtol=1e-12, atol=1e-14)
    single = local_solve(K.to(torch.float32), G.to(torch.float32)).to_dense()
    assert torch.allclose(single.double(), wanted, rtol=1e-4, atol=1e-5)


def test_batches_and_vmap(problem):
    K, G = problem
    k = torch.stack((K.values, 2 * K.values, 3 * K.values))
    g = normal((2, 1, G.nnz), seed=1)
    together = local_solve(K.with_values(k), G.with_values(g)).values
    assert together.shape == (2, 3, G.nnz)
    for i in range(2):
        for j in range(3):
            one = local_solve(K.with_values(k[j]), G.with_values(g[i, 0])).values
            assert torch.allclose(together[i, j], one, rtol=1e-13)
    apply = lambda k, g: local_solve(K.with_values(k), G.with_values(g)).values  # noqa: E731
    assert torch.allclose(torch.vmap(apply, in_dims=(1, None))(k.T, g[0, 0]), together[0], rtol=1e-13)
    nested = torch.vmap(torch.vmap(apply, in_dims=(0, None)), in_dims=(None, 0))(k, g[:, 0])
    assert torch.allclose(nested, together, rtol=1e-13)
    jacobian = torch.func.jacrev(apply, argnums=1)(k[0], g[0, 0])
    assert torch.allclose(jacobian @ g[0, 0], together[0, 0], rtol=1e-12)


def test_only_what_is_asked(problem):
    K, G = problem
    g = G.values.clone().requires_grad_()
    local_solve(K, G.with_values(g)).values.sum().backward()
    assert g.grad is not None


def test_a_cotangent_of_any_size(problem):
    K, G = problem
    k = K.values.clone().requires_grad_()
    y, v = local_solve(K.with_values(k), G).values, normal((G.nnz,), seed=5)
    (large,) = torch.autograd.grad(y, k, v, retain_graph=True)
    (small,) = torch.autograd.grad(y, k, 1e-200 * v)
    assert torch.allclose(1e200 * small, large, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_any_scale(scale):
    K = ls.problems.poisson((3, 4)) * scale
    G = K.with_values(normal((K.nnz,)))
    wanted = local_solve(ls.problems.poisson((3, 4)), G).values
    assert torch.allclose(local_solve(K, G).values * scale, wanted, rtol=1e-12)


@pytest.mark.parametrize("fault", ["negative", "zero", "singular", "nan"])
def test_what_is_not_positive_definite_is_named(fault):
    K = ls.problems.poisson((4,)).to_dense()
    if fault == "singular":
        K[2:, 2:] = 1.0
    else:
        K[3, 3] = {"negative": -1.0, "zero": 0.0, "nan": float("nan")}[fault]
    K = ls.CSR.from_dense(K)
    G = ls.CSR.from_dense(torch.ones(4, 4, dtype=torch.float64).tril(1).triu(-1))
    with pytest.raises(NotPositive) as caught:
        local_solve(K, G)
    assert caught.value.column == 2 if fault != "singular" else caught.value.column in (2, 3)


def test_empty():
    K = ls.problems.poisson((4,))
    none = ls.CSR.from_dense(torch.zeros(4, 4, dtype=torch.float64))
    assert local_solve(K, none).values.shape == (0,)
    nothing = ls.CSR.from_dense(torch.zeros(0, 0, dtype=torch.float64))
    assert local_solve(nothing, nothing).values.shape == (0,)
    assert local_solve(K, K.with_values(torch.zeros(0, K.nnz, dtype=torch.float64))).values.shape == (0, 10)
