"""What the triangular solve refuses, and in which words."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from ops.sptrsv_structures import STRUCTURES
from ops.triangular import F64, dense, sparse, values_for
from reference import normal, pattern_of
from torch import func

import learnsolve as ls


def test_errors():
    eye = ls.CSR.from_dense(torch.eye(3, dtype=F64))
    b = normal((3,))
    cases = [
        (
            lambda: ls.ops.sptrsv(ls.CSR.from_dense(torch.ones(2, 3)), torch.ones(2)),
            ValueError,
            r"L must be square, got shape \(2, 3\)",
        ),
        (
            lambda: ls.ops.sptrsv(eye, normal((4,))),
            ValueError,
            r"b must have L.shape\[0\] = 3 rows, got shape \(4,\)",
        ),
        (lambda: ls.ops.sptrsv(eye, normal((4, 3))), ValueError, r"b must have .* got shape \(4, 3\)"),
        (lambda: ls.ops.sptrsv(eye, normal(())), ValueError, r"b must have .* got a scalar"),
        (
            lambda: ls.ops.sptrsv(eye, b.float()),
            TypeError,
            "b has dtype torch.float32, the matrix torch.float64",
        ),
        (lambda: ls.ops.sptrsv(eye, [1.0]), TypeError, "b must be a torch.Tensor, got list"),
        (lambda: ls.ops.sptrsv(b, b), TypeError, "L must be a CSR, got Tensor"),
        (lambda: ls.ops.sptrsv(eye, b, lower=1), TypeError, "lower must be True or False, got 1"),
        (
            lambda: ls.ops.sptrsv(ls.CSR(torch.ones(2, 3), eye.pattern), torch.ones(3, 3, 1)),
            ValueError,
            "the batch axes of L.values and b must broadcast",
        ),
    ]
    for call, kind, message in cases:
        with pytest.raises(kind, match="sptrsv: " + message):
            call()


@pytest.mark.parametrize("structure", ["chain", "band of 2", "random", "long rows", "diagonal", "dense"])
@pytest.mark.parametrize("transpose", [False, True])
def test_a_zero_on_the_diagonal_is_named(structure, transpose):
    Q = pattern_of(STRUCTURES[structure])
    place, n = Q.diagonal_positions, Q.shape[0]
    for zero, columns in itertools.product((0.0, -0.0, 1e-310), ((), (3,))):
        v, b = values_for(Q), normal((n, *columns))
        v[place[n // 2]] = zero
        for learns in (False, True):
            kind = "overflow" if zero else "zeros on its diagonal"
            with pytest.raises(ValueError, match=rf"sptrsv: .*{kind}, row {n // 2} has -?[01]"):
                sparse(v.clone().requires_grad_(learns), b, Q, transpose=transpose)
        with pytest.raises(ValueError, match=rf"sptrsv: .* row {n // 2} has"):
            func.grad(lambda v: sparse(v, b, Q, transpose=transpose).sum())(v)  # noqa: B023
        with pytest.raises(ValueError, match=rf"sptrsv: .* row {n // 2} of matrix 1 of the batch .* has"):
            sparse(torch.stack((values_for(Q), v)), b, Q, transpose=transpose)
        sparse(v, b, Q, transpose=transpose, unit_diagonal=True)
    v = values_for(Q)
    v[place[n // 2]] = torch.nan  # is no zero: it spreads
    assert sparse(v, normal((n,)), Q, transpose=transpose).isnan().any()


def test_a_zero_on_the_diagonal_in_a_batch_is_named():
    Q = pattern_of(STRUCTURES["random"])
    row, v = Q.shape[0] // 2, torch.stack([values_for(Q)] * 6).reshape(2, 3, -1)
    v[1, 1, Q.diagonal_positions[row]] = 0
    b = normal((2, 3, Q.shape[0], 1))
    for call in (sparse, lambda *args: func.grad(lambda v: sparse(v, *args[1:]).sum())(args[0])):
        with pytest.raises(ValueError, match=rf"sptrsv: .* row {row} of matrix 4 of the batch"):
            call(v, b, Q)
    with pytest.raises(ValueError, match=rf"sptrsv: .* row {row} has 0"):  # a map has no numbers
        func.vmap(lambda v, b: sparse(v, b, Q))(v[1], b[1, ..., 0])


def test_a_missing_diagonal_entry_is_named():
    Q = pattern_of(sp.csr_array(np.array([[1, 0, 0], [1, 0, 1], [0, 1, 1]])))
    v, b = torch.ones(Q.nnz, dtype=F64), normal((3,))
    for transpose in (False, True):
        with pytest.raises(ValueError, match=r"sptrsv: .* row 1 has none"):
            sparse(v, b, Q, transpose=transpose)
    x = sparse(v, b, Q, unit_diagonal=True)
    torch.testing.assert_close(x, dense(v, b, Q, unit_diagonal=True))
