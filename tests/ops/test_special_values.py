"""Infinities, NaN, explicit zeros, and gradients at them."""

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import banded, normal, random

import learnsolve as ls

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("S", [random(30, 30, 0.2), banded(40, 5)], ids=["random", "banded"])
@pytest.mark.parametrize("k", [None, 1, 3, 40])
def test_nonfinite_numbers_pass_as_in_scipy(S, k):
    rng = np.random.default_rng(0)
    S = S.astype(np.float64)
    S.data[:] = rng.standard_normal(S.nnz)
    S.data[::7] = 0  # 0 * inf is NaN where there is an entry, and nothing where there is none
    S.data[3], S.data[11] = INF, NAN
    x = rng.standard_normal((S.shape[1],) if k is None else (S.shape[1], k))
    x[2], x[5], x[9] = INF, -INF, NAN
    A = ls.CSR.from_scipy(S)
    with np.errstate(invalid="ignore"):
        wanted = torch.as_tensor(S @ x)
    torch.testing.assert_close(A @ torch.as_tensor(x), wanted, rtol=1e-13, atol=1e-13, equal_nan=True)
    y = rng.standard_normal((S.shape[0],) if k is None else (S.shape[0], k))
    y[4] = INF
    with np.errstate(invalid="ignore"):
        wanted = torch.as_tensor(S.T @ y)
    found = ls.ops.spmm(A, torch.as_tensor(y), transpose=True)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13, equal_nan=True)


def test_nan_stays_in_its_rows():
    S = random(40, 40, 0.1).astype(np.float64)
    x = torch.ones(40, dtype=torch.float64)
    x[7] = NAN
    hit = torch.as_tensor(S[:, [7]].toarray()[:, 0] != 0)
    assert torch.equal((ls.CSR.from_scipy(S) @ x).isnan(), hit)


def test_nan_in_one_gradient_stays_in_its_entries():
    A = ls.CSR.from_scipy(random(20, 20, 0.2)).requires_grad_()
    x = normal((20,)).requires_grad_()
    g = normal((20,), seed=1)
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
