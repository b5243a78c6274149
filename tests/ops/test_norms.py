"""Norms and symmetric scaling, which are not polynomials: values, the contract of operations, their range."""

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from ops.matrices import STRUCTURES, every_structure, matrix
from reference import densify, normal, pattern_of, random, small_pattern
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve import ops

# --- norms and scaling ---
NORMS = {
    "frobenius": (lambda A: ops.norm(A), lambda D: D.square().sum().sqrt()),
    "rows": (lambda A: A.norm(dim=1), lambda D: torch.linalg.vector_norm(D, dim=-1)),
    "columns": (lambda A: A.norm(2, 0), lambda D: torch.linalg.vector_norm(D, dim=-2)),
    "rows, 1": (lambda A: A.norm(1, -1), lambda D: D.abs().sum(-1)),
    "columns, 1": (lambda A: A.norm(1, -2), lambda D: D.abs().sum(-2)),
    "largest column sum": (lambda A: A.norm(1), lambda D: D.abs().sum(-2).amax()),
    "largest row sum": (lambda A: A.norm(float("inf")), lambda D: D.abs().sum(-1).amax()),
    "power": (lambda A: (A.abs() ** 1.5).values.sum(), lambda D: (D * D + 1e-300).pow(0.75).sum()),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms(name):
    """With empty rows and columns, whose norm has the gradient zero, and not NaN."""
    sparse, dense = NORMS[name]
    for dtype in (torch.float32, torch.float64):
        for index in (torch.int32, torch.int64):
            P = small_pattern(index)
            A = ls.CSR(normal((P.nnz,), dtype), P)
            torch.testing.assert_close(sparse(A), dense(A.to_dense()))
    v = normal((P.nnz,)).requires_grad_()

    def f(v):
        return sparse(ls.CSR(v, P))

    assert gradcheck(f, v, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(f, v, check_fwd_over_rev=True, check_batched_grad=True)
    batch = normal((3, P.nnz), seed=5)
    one_by_one = torch.stack([f(b) for b in batch])
    torch.testing.assert_close(torch.vmap(f)(batch), one_by_one)
    if name != "power":
        torch.testing.assert_close(f(batch), one_by_one)
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(v), f(v))


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_norm_of_zeros_has_no_nan(dim):
    P = small_pattern()
    v = torch.zeros(P.nnz, dtype=torch.float64)
    f = lambda v: ops.norm(ls.CSR(v, P), dim=dim).sum()  # noqa: E731
    assert torch.equal(torch.func.grad(f)(v), torch.zeros_like(v))
    assert torch.equal(torch.func.hessian(f)(v), torch.zeros(P.nnz, P.nnz).double())


@pytest.mark.parametrize("dim", [None, 1])
def test_where_norms_leave_the_range(dim):
    """As the docstring says: small entries count as zeros, without a NaN, large ones give infinity."""
    for dtype, small, large in ((torch.float64, 1e-200, 1e155), (torch.float32, 1e-25, 1e20)):
        A = ops.eye(2, dtype=dtype)
        v = torch.full((2,), small, dtype=dtype, requires_grad=True)
        found = A.with_values(v).norm(dim=dim).sum()
        assert found == 0
        assert torch.equal(torch.autograd.grad(found, v)[0], torch.zeros_like(v))
        assert A.with_values(torch.full((2,), large, dtype=dtype)).norm(dim=dim).isinf().all()
        s = 1 / small
        wanted = torch.full((), small, dtype=dtype) * (2**0.5 if dim is None else 1)
        scaled = (A.with_values(v.detach()) * s).norm(dim=dim) / s
        torch.testing.assert_close(scaled, wanted.expand(scaled.shape), rtol=1e-6, atol=0)


@every_structure
def test_norms_agree_with_scipy(structure):
    A = matrix(STRUCTURES[structure], 1)
    if not min(A.shape):
        assert all(A.norm(o).item() == 0 for o in (None, 1, float("inf")))
        return
    S = A.to_scipy()
    for o, axis in ((None, None), (1, None), (np.inf, None), (2, 0), (2, 1), (1, 0), (1, 1)):
        np.testing.assert_allclose(A.norm(o, axis), scipy.sparse.linalg.norm(S, o, axis), rtol=1e-14, atol=0)


@pytest.mark.parametrize("by", ["diagonal", "row_sums"])
def test_symmetric_scaling(by):
    P = pattern_of(random(5, 5, 0.5) + scipy.sparse.eye_array(5))
    v = (normal((P.nnz,)).abs() + 0.5).requires_grad_()

    def dense(v):
        D = densify(P, v)
        d = (torch.diagonal(D, dim1=-2, dim2=-1) if by == "diagonal" else D.sum(-1)).rsqrt()
        return d.unsqueeze(-1) * D * d.unsqueeze(-2)

    def f(v):
        return ops.symmetric_scaling(ls.CSR(v, P), by)

    torch.testing.assert_close(f(v).to_dense(), dense(v))
    g = normal((5, 5), seed=2)
    torch.testing.assert_close(
        *(torch.autograd.grad(h(v), v, g)[0] for h in (lambda v: f(v).to_dense(), dense))
    )
    assert gradcheck(lambda v: f(v).values, v, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda v: f(v).values, v, check_fwd_over_rev=True)
    batch = v.detach() * torch.tensor([[1.0], [2.0]])
    torch.testing.assert_close(f(batch).values, torch.vmap(lambda v: f(v).values)(batch))
