"""Identities that products satisfy for all values, and SciPy as an independent reference."""

import numpy as np
import pytest
import torch
from reference import assert_within, normal, pattern_of, power_law, random, structures

import learnsolve as ls

STRUCTURES = structures()
every_structure = pytest.mark.parametrize("structure", STRUCTURES)


@every_structure
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_agrees_with_scipy(structure, dtype):
    S = STRUCTURES[structure].astype(np.float64)
    S.data[:] = normal((S.nnz,), dtype, seed=1).double().cpu().numpy()
    A = ls.CSR.from_scipy(S, dtype=dtype)
    ones = S.copy()
    ones.data[:] = 1
    for M, count, transpose in ((S, ones, False), (S.T, ones.T, True)):
        for tail in ((), (4,)):
            x = normal((M.shape[1], *tail), dtype, seed=2)
            wanted, size, terms = (
                torch.as_tensor(np.asarray(B @ y))
                for B, y in (
                    (M, x.double().cpu().numpy()),
                    (abs(M), x.double().abs().cpu().numpy()),
                    (count, np.ones(x.shape)),
                )
            )
            assert_within(ls.ops.spmm(A, x, transpose=transpose), wanted, size, terms)


@every_structure
def test_transpose_identity(structure):
    """<A x, y> = <x, A^T y>."""
    P = pattern_of(STRUCTURES[structure])
    A = ls.CSR(normal((P.nnz,), seed=1), P)
    for tail in ((), (3,)):
        x, y = normal((P.shape[1], *tail), seed=2), normal((P.shape[0], *tail), seed=3)
        left, right = ((A @ x) * y).sum(), (x * ls.ops.spmm(A, y, transpose=True)).sum()
        size = ((ls.CSR(A.values.abs(), P) @ x.abs()) * y.abs()).sum()
        assert_within(left, right, size, torch.tensor(float(3 * P.nnz + y.numel())))


@every_structure
def test_three_ways_to_multiply_by_the_transpose(structure):
    P = pattern_of(STRUCTURES[structure])
    A = ls.CSR(normal((P.nnz,), seed=1), P)
    X = normal((P.shape[0], 3), seed=2)
    wanted = ls.ops.spmm(A, X, transpose=True)
    torch.testing.assert_close(A.T @ X, wanted, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close((X.mT @ A).mT, wanted, rtol=1e-13, atol=1e-13)
    assert torch.equal(A.T.T.values, A.values)
    assert A.T.T.pattern is P


def test_a_batch_is_a_loop():
    P = pattern_of(random(40, 30, 0.2))
    values, X = normal((3, P.nnz), seed=1), normal((3, 30, 5), seed=2)
    U, g = normal((3, 40, 5), seed=3), normal((3, 40, 5), seed=4)
    A = ls.CSR(values, P)

    def one(b):
        return ls.CSR(values[b], P)

    for b in range(3):
        assert torch.equal((A @ X)[b], one(b) @ X[b])
        assert torch.equal((one(1) @ X)[b], one(1) @ X[b])
        assert torch.equal((A @ X[0])[b], one(b) @ X[0])
        assert torch.equal((A @ X[0, :, 0])[b], one(b) @ X[0, :, 0].contiguous())
        assert torch.equal(ls.ops.sddmm(U, X, P)[b], ls.ops.sddmm(U[b], X[b], P))
        assert torch.equal(A.T.values[b], one(b).T.values)
        assert torch.equal(A.diagonal()[b], one(b).diagonal())
        assert torch.equal(A.to_dense()[b], one(b).to_dense())
        for dim in (0, 1):
            torch.testing.assert_close(A.sum(dim)[b], one(b).sum(dim), rtol=1e-14, atol=1e-14)
    # Gradients: those of the loop, summed for what the batch shares.
    shared_x = normal((30, 5), seed=5)
    v, x = values.clone().requires_grad_(), shared_x.clone().requires_grad_()
    (ls.CSR(v, P) @ x).backward(g)
    total = torch.zeros_like(shared_x)
    for b in range(3):
        vb, xb = values[b].clone().requires_grad_(), shared_x.clone().requires_grad_()
        (ls.CSR(vb, P) @ xb).backward(g[b])
        torch.testing.assert_close(v.grad[b], vb.grad, rtol=1e-13, atol=1e-13)
        total += xb.grad
    torch.testing.assert_close(x.grad, total, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)], ids=str)
def test_batch_of_nothing(shape):
    """Values, x or both with a batch axis of length 0: results and gradients of the right, empty shape."""
    P = pattern_of(random(6, 5, 0.5))
    for v_batch, x_batch in ((shape, ()), ((), shape), (shape, shape)):
        v = torch.ones(*v_batch, P.nnz, dtype=torch.float64, requires_grad=True)
        x = torch.ones(*x_batch, 5, 2, dtype=torch.float64, requires_grad=True)
        y = ls.CSR(v, P) @ x
        assert y.shape == (*shape, 6, 2)
        gv, gx = torch.autograd.grad(y.sum(), (v, x))
        assert torch.equal(gv, torch.zeros_like(v))
        assert torch.equal(gx, torch.zeros_like(x))
    assert ls.ops.sddmm(torch.ones(*shape, 6, 2), torch.ones(5, 2), P).shape == (*shape, P.nnz)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_no_column(batch):
    P = pattern_of(random(6, 5, 0.5))
    v = torch.ones(*batch, P.nnz, dtype=torch.float64, requires_grad=True)
    x = torch.ones(*batch, 5, 0, dtype=torch.float64, requires_grad=True)
    y = ls.CSR(v, P) @ x
    assert y.shape == (*batch, 6, 0)
    gv, gx = torch.autograd.grad(y.sum(), (v, x))
    assert torch.equal(gv, torch.zeros_like(v))
    assert gx.shape == x.shape
    u = torch.ones(*batch, 6, 0, dtype=torch.float64)
    assert torch.equal(ls.ops.sddmm(u, x.detach(), P), torch.zeros(*batch, P.nnz, dtype=torch.float64))


def test_sampled_product_of_long_rows():
    """Inner products of many lengths around the widths that kernels work in."""
    P = pattern_of(power_law(30))
    for k in (1, 2, 3, 5, 8, 15, 16, 17, 63, 64, 65, 130):
        U, V = normal((30, k), torch.float32, seed=k), normal((30, k), torch.float32, seed=k + 1)
        rows, columns = P.row_indices.long(), P.col_indices.long()
        pairs = U.double()[rows] * V.double()[columns]
        assert_within(
            ls.ops.sddmm(U, V, P),
            pairs.sum(-1),
            pairs.abs().sum(-1),
            torch.full((P.nnz,), float(k)),
            f"k = {k}",
        )
