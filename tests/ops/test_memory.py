"""Peak memory: O(nnz + n k), never a dense n x n, never a column for each entry (nnz x k)."""

import pytest
import torch
from reference import normal, pattern_of, peak
from scipy.sparse import random_array

import learnsolve as ls

N, K = 20_000, 64
P = pattern_of(random_array((N, N), density=8 / N, rng=0), torch.int32)
WORD = 8


def test_the_instrument_sees_a_temporary():
    values, x = normal((P.nnz,)), normal((N, K))
    rows, columns = P.row_indices.long(), P.col_indices.long()
    found = peak(lambda: torch.zeros(N, K, dtype=x.dtype).index_add_(0, rows, values[:, None] * x[columns]))
    assert found > P.nnz * K * WORD


def product(values: bool = True, dense: bool = True):
    """A matrix and a dense operand, of which the gradient is wanted for one or both."""
    v, x = normal((P.nnz,)).requires_grad_(values), normal((N, K)).requires_grad_(dense)
    A = ls.CSR(v, P)
    torch.autograd.grad((A @ x).sum(), [t for t in (v, x) if t.requires_grad])  # analysis is not counted
    return A, x


def test_forward():
    A, x = product()
    assert peak(lambda: A @ x) <= (N * K + 4096) * WORD


@pytest.mark.parametrize("expanded", [False, True], ids=["", "expanded gradient"])
@pytest.mark.parametrize(("values", "dense"), [(True, True), (True, False), (False, True)])
def test_backward(values, dense, expanded):
    A, x = product(values, dense)
    inputs = [t for t in (A.values, x) if t.requires_grad]
    y = A @ x
    g = torch.ones((), dtype=y.dtype).expand_as(y) if expanded else torch.ones_like(y)
    found = peak(lambda: torch.autograd.grad(y, inputs, g))
    # An n x k for the gradient of x, one more if the incoming gradient has to be written out.
    assert found <= (values * P.nnz + (dense + expanded) * N * K + 4096) * WORD


def test_double_backward():
    A, x = product()
    y = A @ x
    g = torch.ones_like(y).requires_grad_()
    gv, gx = torch.autograd.grad(y, (A.values, x), g, create_graph=True)
    found = peak(lambda: torch.autograd.grad(gv.sum() + gx.sum(), (A.values, x, g)))
    assert found <= (6 * P.nnz + 6 * N * K) * WORD
    assert found < P.nnz * K * WORD


def test_sampled_product():
    u, w = (normal((N, K), seed=i).requires_grad_() for i in (1, 2))
    out = ls.ops.sddmm(u, w, P)
    assert peak(lambda: ls.ops.sddmm(u, w, P)) <= (P.nnz + 4096) * WORD
    g = torch.ones_like(out)
    assert peak(lambda: torch.autograd.grad(out, (u, w), g)) <= (2 * N * K + 4096) * WORD
