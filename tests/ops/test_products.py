"""Products with vectors and matrices beyond the table: identities, batches, special values, and the backward
in the order of the rows."""

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import assert_same_bits, assert_within, banded, normal, pattern_of, random, structures

import learnsolve as ls

INF, NAN = float("inf"), float("nan")
STRUCTURES = structures()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_transpose_identity(structure):
    """<A x, y> = <x, A^T y>, by each of the three ways to multiply by the transpose."""
    P = pattern_of(STRUCTURES[structure])
    A = ls.CSR(normal((P.nnz,), seed=1), P)
    for tail in ((), (3,)):
        x, y = normal((P.shape[1], *tail), seed=2), normal((P.shape[0], *tail), seed=3)
        z = ls.ops.spmm(A, y, transpose=True)
        size = ((ls.CSR(A.values.abs(), P) @ x.abs()) * y.abs()).sum()
        assert_within(((A @ x) * y).sum(), (x * z).sum(), size, torch.tensor(float(3 * P.nnz + y.numel())))
        for other in (A.T @ y, (y.mT @ A).mT if tail else y @ A):
            torch.testing.assert_close(other, z, rtol=1e-13, atol=1e-13)
    assert torch.equal(A.T.T.values, A.values)
    assert A.T.T.pattern is P


def test_a_batch_is_a_loop():
    """To the last bit."""
    P = pattern_of(random(40, 30, 0.2))
    values, X, U = normal((3, P.nnz), seed=1), normal((3, 30, 5), seed=2), normal((3, 40, 5), seed=3)
    A = ls.CSR(values, P)
    one = [ls.CSR(v, P) for v in values]
    for b in range(3):
        assert torch.equal((A @ X)[b], one[b] @ X[b])
        assert torch.equal((one[1] @ X)[b], one[1] @ X[b])
        assert torch.equal((A @ X[0])[b], one[b] @ X[0])
        assert torch.equal((A @ X[0, :, 0])[b], one[b] @ X[0, :, 0].contiguous())
        assert torch.equal(ls.ops.sddmm(U, X, P)[b], ls.ops.sddmm(U[b], X[b], P))
        assert torch.equal(A.T.values[b], one[b].T.values)
        assert torch.equal(A.diagonal()[b], one[b].diagonal())
        assert torch.equal(A.to_dense()[b], one[b].to_dense())
        for dim in (0, 1):
            torch.testing.assert_close(A.sum(dim)[b], one[b].sum(dim), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("batch", [(0,), (0, 3), (2, 0), (), (2,), (2, 3)], ids=str)
def test_nothing(batch):
    """An empty batch of values, x or both, or no column: results and gradients of the right, empty shape."""
    P = pattern_of(random(6, 5, 0.5))
    for v_batch, x_batch, k in ((batch, (), 2), ((), batch, 2), (batch, batch, 2))[: 3 * (0 in batch)] or (
        (batch, batch, 0),
    ):
        v = torch.ones(*v_batch, P.nnz, dtype=torch.float64, requires_grad=True)
        x = torch.ones(*x_batch, 5, k, dtype=torch.float64, requires_grad=True)
        y = ls.CSR(v, P) @ x
        assert y.shape == (*batch, 6, k)
        gv, gx = torch.autograd.grad(y.sum(), (v, x))
        assert torch.equal(gv, torch.zeros_like(v))
        assert torch.equal(gx, torch.zeros_like(x))
        w = ls.ops.sddmm(torch.ones(*batch, 6, k, dtype=v.dtype), x.detach(), P)
        assert torch.equal(w, torch.zeros(*batch, P.nnz, dtype=v.dtype))


# --- infinities, NaN, explicit zeros ---


@pytest.mark.parametrize("S", [random(30, 30, 0.2), banded(40, 5)], ids=["random", "banded"])
@pytest.mark.parametrize("k", [None, 1, 3, 40])
def test_nonfinite_numbers_pass_as_in_scipy(S, k):
    rng = np.random.default_rng(0)
    S = S.astype(np.float64)
    S.data[:] = rng.standard_normal(S.nnz)
    S.data[::7] = 0  # 0 * inf is NaN where there is an entry, and nothing where there is none
    S.data[3], S.data[11] = INF, NAN
    A = ls.CSR.from_scipy(S)
    for M, transpose in ((S, False), (S.T, True)):
        x = rng.standard_normal((M.shape[1],) if k is None else (M.shape[1], k))
        x[2], x[5], x[9] = INF, -INF, NAN
        with np.errstate(invalid="ignore"):
            wanted = torch.as_tensor(M @ x)
        found = ls.ops.spmm(A, torch.as_tensor(x), transpose=transpose)
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13, equal_nan=True)


def test_nan_in_one_gradient_stays_in_its_entries():
    A = ls.CSR.from_scipy(random(20, 20, 0.2)).requires_grad_()
    x, g = normal((20,)).requires_grad_(), normal((20,), seed=1)
    g[3] = NAN
    gv, gx = torch.autograd.grad(A @ x, (A.values, x), g)
    assert torch.equal(gv.isnan(), A.pattern.row_indices == 3)
    row = A.pattern.col_indices[A.pattern.row_indices == 3]
    assert set(gx.isnan().nonzero().flatten().tolist()) == set(row.tolist())


def test_diagonal_without_entry_has_no_part_in_nan():
    """Where the pattern has no diagonal entry the result is 0 whatever the values are, and no gradient."""
    A = ls.CSR.from_scipy(scipy.sparse.csr_array(np.array([[NAN, 1.0], [1.0, 0.0]]))).requires_grad_()
    d = A.diagonal()
    assert d[0].isnan()
    assert d[1] == 0
    (g,) = torch.autograd.grad(d, A.values, torch.tensor([1.0, NAN], dtype=torch.float64))
    assert g.tolist() == [1, 0, 0]


def test_explicit_zeros_have_a_gradient():
    P = ls.CSR.from_scipy(random(8, 8, 0.4)).pattern
    v = torch.zeros(P.nnz, dtype=torch.float64, requires_grad=True)
    x, g = normal((8,), seed=1), normal((8,), seed=2)
    (ls.CSR(v, P) @ x).backward(g)
    assert torch.equal(v.grad, ls.ops.sddmm(g, x, P))
    assert (v.grad != 0).all()


def test_subnormal_numbers_survive():
    """The kernels must not flush small numbers to zero (no fast-math)."""
    A = ls.CSR.from_scipy(banded(20, 3))
    x = torch.full((22,), 5e-324, dtype=torch.float64)
    assert torch.equal(A @ x, torch.full((20,), 15e-324, dtype=torch.float64))


# --- the backward in the order of the rows, which large irregular matrices with few columns take ---


@pytest.fixture(scope="module")
def tall():
    S = scipy.sparse.random_array((60000, 300), density=0.06, format="csr", dtype=float, rng=0)
    A = ls.CSR.from_scipy(S)
    assert A.pattern._prefers_scatter
    return A


@pytest.mark.cpu_only
def test_scattered_gradients(tall):
    x, g = torch.linspace(1, 2, 300, dtype=torch.float64), torch.linspace(-1, 1, 60000, dtype=torch.float64)

    def gradients(needs=(True, True), shape=(300,)):
        v, y = (
            t.clone().requires_grad_(n) for t, n in zip((tall.values, x.reshape(shape)), needs, strict=True)
        )
        out = ls.ops.spmm(tall.with_values(v), y)
        return torch.autograd.grad(out, [t for t in (v, y) if t.requires_grad], g.reshape(out.shape))

    gv, gx = gradients()
    torch.testing.assert_close(gv, g[tall.pattern.row_indices.long()] * x[tall.col_indices.long()])
    torch.testing.assert_close(gx, torch.from_numpy(tall.to_scipy().T @ g.numpy()), rtol=1e-12, atol=1e-10)
    assert torch.equal(gradients((False, True))[0], gx)
    assert torch.equal(gradients((False, True), (300, 1))[0], gx.unsqueeze(1))
    assert "transposed" not in tall.pattern._entries  # it is not needed: no time, no memory for it
    assert_same_bits(gradients)


@pytest.mark.cpu_only
@pytest.mark.parametrize("shape", [(60000,), (60000, 1)], ids=str)
def test_the_transposed_product_goes_the_same_way(tall, shape):
    fresh = tall.to(dtype=torch.float32).to(dtype=torch.float64)
    P, S = fresh.pattern, fresh.to_scipy()
    g = torch.linspace(-1, 1, 60000, dtype=torch.float64).reshape(shape).requires_grad_()
    v = fresh.values.clone().requires_grad_()
    y = ls.ops.spmm(fresh.with_values(v), g, transpose=True)
    wanted = torch.from_numpy(S.T @ g.detach().numpy())
    torch.testing.assert_close(y.detach(), wanted, rtol=1e-12, atol=1e-10)
    c = torch.linspace(1, 2, 300, dtype=torch.float64).reshape(y.shape)
    gv, gg = torch.autograd.grad(y, (v, g), c)
    torch.testing.assert_close(gg, ls.ops.spmm(fresh, c))
    torch.testing.assert_close(gv, g.detach().flatten()[P.row_indices] * c.flatten()[P.col_indices])
    _, tangent = torch.func.jvp(lambda g: ls.ops.spmm(fresh, g, transpose=True), (g.detach(),), (g.detach(),))
    torch.testing.assert_close(tangent, y.detach())


@pytest.mark.cpu_only
def test_second_derivative_of_a_scattered_product(tall):
    x = torch.linspace(1, 2, 300, dtype=torch.float64, requires_grad=True)
    y = ls.ops.spmm(tall.with_values(tall.values.clone().requires_grad_()), x)
    (gx,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gx.sum(), x)
    S = tall.to_scipy()
    torch.testing.assert_close(second, torch.from_numpy(2 * S.T @ (S @ np.ones(300))))
    assert not ls.problems.poisson((16,)).pattern._prefers_scatter
    assert not ls.problems.poisson((64, 64)).pattern._prefers_scatter
