"""Peak memory: O(nnz + n k), never a dense n x n, never a column for each entry (nnz x k), nor a number for
each column of a long row."""

import tracemalloc

import numpy as np
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


LONG = 2**24
ONE = torch.ones(1, dtype=torch.float64)
# Two entries in a row of LONG columns: what is made of it, and its numbers.
OF_A_LONG_ROW = {
    "scale_rows": (lambda A: A.scale_rows(3 * ONE), [6, 9]),
    "scale_rows, batch": (lambda A: A.scale_rows(torch.stack((ONE, 3 * ONE))), [2, 3, 6, 9]),
    "gradient of scale_rows": (lambda A: gradient(lambda d: A.scale_rows(d).values, ONE), [5]),
    "sum": (lambda A: A.sum(1), [5]),
    "gradient of sum": (lambda A: gradient(lambda v: A.with_values(v).sum(1), A.values), [1, 1]),
    "norm of rows": (lambda A: A.norm(1, 1), [5]),
    "norm 1": (lambda A: A.norm(1), [3]),
    "norm inf": (lambda A: A.norm(torch.inf), [5]),
    "segment_sum": (lambda A: ls.ops.segment_sum(A.values, A.pattern), [5]),
    "gather": (lambda A: ls.ops.gather(3 * ONE, A.pattern), [3, 3]),
    "segment_softmax": (lambda A: ls.ops.segment_softmax(0 * A.values, A.pattern), [0.5, 0.5]),
    "slice": (lambda A: A[:, 5:10], [2]),
    "long slice": (lambda A: A[:, 8:], [3]),
    "slice with a step": (lambda A: A[:, :6:-1], [3, 2]),
    "rows by an array": (lambda A: A[[0, 0]], [2, 3, 2, 3]),
    "columns by an array": (lambda A: A[:, [LONG - 1, 4, 7, 7]], [3, 2, 2]),
    "rows and columns": (lambda A: A[np.ix_([0], [7, 6])], [2]),
    "tril": (lambda A: A.tril(8), [2]),
    "hstack": (lambda A: ls.ops.hstack([A, A]), [2, 3, 2, 3]),
    "vstack": (lambda A: ls.ops.vstack([A, A]), [2, 3, 2, 3]),
    "add": (lambda A: A + A[[0]][:, :], [4, 6]),
    "to_scipy and back": (lambda A: ls.CSR.from_scipy(A.to_scipy("coo")), [2, 3]),
}


def gradient(f, t):
    t = t.clone().requires_grad_()
    return torch.autograd.grad(f(t).sum(), t)[0]


@pytest.mark.parametrize("name", OF_A_LONG_ROW)
def test_a_row_costs_its_entries_and_not_its_columns(name):
    f, numbers = OF_A_LONG_ROW[name]
    f(long_row())  # imports are not counted
    A = long_row()
    of_numpy = []

    def watched():
        tracemalloc.start()
        try:
            return f(A)
        finally:
            of_numpy.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    most = peak(watched) + of_numpy[0]
    found = f(A)
    assert (found.values if isinstance(found, ls.CSR) else found).flatten().tolist() == numbers
    assert most < LONG / 8


def long_row() -> ls.CSR:
    pattern = ls.SparsityPattern(torch.tensor([0, 2]), torch.tensor([7, LONG - 1]), (1, LONG))
    return ls.CSR(torch.tensor([2.0, 3.0], dtype=torch.float64), pattern)
