"""Each bad argument: the right type of exception, and a message with function, rule and value."""

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import pattern_of, random

import learnsolve as ls

M, N = 6, 5
P = pattern_of(random(M, N, 0.5))
NNZ = P.nnz
F64 = torch.float64


def ones(*shape, dtype=F64):
    return torch.ones(shape, dtype=dtype)


A = ls.CSR(ones(NNZ), P)
INTEGERS = ls.CSR(torch.ones(NNZ, dtype=torch.int64), P)
META = ones(N).to("meta")
spmm, sddmm = ls.ops.spmm, ls.ops.sddmm

BAD = {
    # spmm
    "x too short": (
        lambda: spmm(A, ones(99)),
        ValueError,
        r"spmm: x must have A.shape\[1\] = 5 rows.*\(99,\)",
    ),
    "x too long": (lambda: spmm(A, ones(6, 2)), ValueError, r"spmm: .*A.shape\[1\] = 5.*\(6, 2\)"),
    "x for transpose": (lambda: spmm(A, ones(5), transpose=True), ValueError, r"A.shape\[0\] = 6.*\(5,\)"),
    "x is a scalar": (lambda: spmm(A, ones()), ValueError, "spmm: x must have shape .*scalar"),
    "x is no tensor": (lambda: spmm(A, [1.0] * N), TypeError, "spmm: x must be a torch.Tensor, got list"),
    "x is an array": (lambda: A @ np.ones(N), TypeError, "spmm: x must be a torch.Tensor, got ndarray"),
    "transpose is a word": (
        lambda: spmm(A, ones(N), transpose="no"),
        TypeError,
        "spmm: transpose must be True or False, got 'no'",
    ),
    "A + B, two dtypes on one pattern": (
        lambda: A + A.to(torch.float64 if A.dtype == torch.float32 else torch.float32),
        TypeError,
        "A \\+ B: B.values has dtype",
    ),
    "A * B, two dtypes on one pattern": (
        lambda: A * A.to(torch.float64 if A.dtype == torch.float32 else torch.float32),
        TypeError,
        "A \\* B: B.values has dtype",
    ),
    "A + B, batches on one pattern": (
        lambda: A.with_values(ones(2, A.nnz)) + A.with_values(ones(3, A.nnz)),
        ValueError,
        "A \\+ B: the batch axes of A.values and B.values must broadcast",
    ),
    "A * a complex tensor": (lambda: A * torch.tensor(2j), TypeError, "s has dtype torch.complex64"),
    "Factorized of a rectangle": (lambda: ls.ops.Factorized(A), ValueError, "Factorized: A must be square"),
    "x is a CSR": (lambda: spmm(A, A.T), TypeError, "spmm: x must be a torch.Tensor, got CSR"),
    "A is no CSR": (lambda: spmm(ones(M, N), ones(N)), TypeError, "spmm: A must be a CSR, got Tensor"),
    "A is a SciPy matrix": (
        lambda: spmm(scipy.sparse.eye_array(N), ones(N)),
        TypeError,
        "spmm: A must be a CSR",
    ),
    "x is sparse": (
        lambda: spmm(A, torch.eye(N, dtype=F64).to_sparse()),
        TypeError,
        "spmm: x must be a dense tensor, got layout torch.sparse_coo; .*CSR.from_torch",
    ),
    "U is sparse": (
        lambda: sddmm(torch.eye(M, dtype=F64).to_sparse_csr(), ones(N, M), P),
        TypeError,
        "sddmm: U must be a dense tensor, got layout torch.sparse_csr",
    ),
    "x of another precision": (
        lambda: spmm(A, ones(N, dtype=torch.float32)),
        TypeError,
        "spmm: .*float32.*float64",
    ),
    "x of integers": (
        lambda: spmm(A, ones(N, dtype=torch.int64)),
        TypeError,
        "spmm: x has dtype torch.int64",
    ),
    "A of integers": (
        lambda: INTEGERS @ ones(N, dtype=torch.int64),
        TypeError,
        "A.values must be float32 or float64",
    ),
    "A of booleans": (
        lambda: ls.CSR(torch.ones(NNZ, dtype=torch.bool), P) @ ones(N),
        TypeError,
        "spmm: .*torch.bool",
    ),
    "A of half": (lambda: A.to(torch.float16) @ ones(N, dtype=torch.float16), TypeError, "spmm: .*float16"),
    "A of complex": (lambda: A.to(torch.complex64) @ ones(N), TypeError, "spmm: .*complex64"),
    "x on another device": (lambda: spmm(A, META), TypeError, "spmm: x is on meta.*cpu"),
    "batches do not match": (
        lambda: spmm(ls.CSR(ones(2, NNZ), P), ones(3, N, 1)),
        ValueError,
        r"spmm: .*\(?2,?\)?.*\(?3",
    ),
    "array @ A": (lambda: np.ones(M) @ A, TypeError, "Tensor|unsupported"),
    "x @ A too short": (lambda: ones(5) @ A, ValueError, r"A.shape\[0\] = 6"),
    # sddmm
    "U of wrong length": (
        lambda: sddmm(ones(5), ones(5), P),
        ValueError,
        r"sddmm: U .*pattern.shape\[0\] = 6.*\(5,\)",
    ),
    "V of wrong length": (
        lambda: sddmm(ones(6), ones(6), P),
        ValueError,
        r"sddmm: V .*pattern.shape\[1\] = 5.*\(6,\)",
    ),
    "U and V of other widths": (lambda: sddmm(ones(6, 2), ones(5, 3), P), ValueError, "sddmm: .*got 2 and 3"),
    "U vector, V matrix": (lambda: sddmm(ones(6), ones(5, 1), P), ValueError, "sddmm: .*both"),
    "U scalar": (lambda: sddmm(ones(), ones(), P), ValueError, "sddmm"),
    "V of another precision": (
        lambda: sddmm(ones(6), ones(5, dtype=torch.float32), P),
        TypeError,
        "sddmm: U .*float64.*float32",
    ),
    "U of integers": (
        lambda: sddmm(ones(6).long(), ones(5).long(), P),
        TypeError,
        "sddmm: U must be float32",
    ),
    "V on another device": (lambda: sddmm(ones(6), META, P), TypeError, "sddmm: .*meta"),
    "pattern is a CSR": (
        lambda: sddmm(ones(6), ones(5), A),
        TypeError,
        "pattern must be a SparsityPattern, got CSR",
    ),
    "U is no tensor": (lambda: sddmm(1, ones(5), P), TypeError, "sddmm: U must be a torch.Tensor, got int"),
    "V is no tensor": (
        lambda: sddmm(ones(6), None, P),
        TypeError,
        "sddmm: V must be a torch.Tensor, got NoneType",
    ),
    "sddmm batches do not match": (
        lambda: sddmm(ones(2, 6, 1), ones(3, 5, 1), P),
        ValueError,
        "sddmm: .*2.*3",
    ),
    # structure
    "sum over what is not there": (lambda: A.sum(2), ValueError, "sum: dim must be one of .* got 2"),
    "sum of integers": (lambda: INTEGERS.sum(0), TypeError, "sum: A.values must be float32"),
    "scale_rows too short": (
        lambda: A.scale_rows(ones(5)),
        ValueError,
        r"scale_rows: .*A.shape\[0\] = 6.*\(5,\)",
    ),
    "scale_columns too long": (
        lambda: A.scale_columns(ones(6)),
        ValueError,
        r"scale_columns: .*A.shape\[1\] = 5.*\(6,\)",
    ),
    "scale by a scalar": (lambda: A.scale_rows(ones()), ValueError, r"scale_rows: .*A \* s"),
    "scale by a list": (lambda: A.scale_rows([1.0] * 6), TypeError, "scale_rows: d must be a torch.Tensor"),
    "scale in another precision": (
        lambda: A.scale_rows(ones(6).float()),
        TypeError,
        "scale_rows: d has dtype",
    ),
    "scale integers": (lambda: INTEGERS.scale_rows(ones(6).long()), TypeError, "scale_rows: A.values"),
    "scale batches do not match": (
        lambda: ls.CSR(ones(2, NNZ), P).scale_rows(ones(3, 6)),
        ValueError,
        "scale_rows: .*2.*3",
    ),
    # arithmetic
    "A + 1": (lambda: A + 1, TypeError, r"A \+ B: B must be a CSR, got int"),
    "1 + A": (lambda: 1 + A, TypeError, ""),
    "A - 1.0": (lambda: A - 1.0, TypeError, "A - B: B must be a CSR, got float: .*A.values"),
    "1 - A": (lambda: 1 - A, TypeError, ""),
    "A + tensor": (lambda: A + ones(NNZ), TypeError, "B must be a CSR, got Tensor"),
    "tensor + A": (lambda: ones(NNZ) + A, TypeError, ""),
    "other shape": (lambda: A + A.T, ValueError, r"A \+ B: .*\(6, 5\) and \(5, 6\)"),
    "other shape of a factor": (lambda: A * A.T, ValueError, r"A \* B: .*\(6, 5\) and \(5, 6\)"),
    "other pattern, other precision": (
        lambda: A - ls.CSR.from_dense(ones(M, N, dtype=torch.float32)),
        TypeError,
        "A - B: B.values has dtype torch.float32",
    ),
    "add batches": (
        lambda: ls.ops.add(ls.CSR(ones(2, NNZ), P), ls.CSR(ones(3, NNZ), P)),
        ValueError,
        "add: the batch axes of A.values and B.values",
    ),
    "add alpha of wrong shape": (
        lambda: ls.ops.add(A, A, alpha=ones(3)),
        TypeError,
        r"add: alpha must be a number or .*\(3,\)",
    ),
    "add beta as text": (lambda: ls.ops.add(A, A, beta="2"), TypeError, "add: beta must be .*str"),
    "add alpha of another precision": (
        lambda: ls.ops.add(A.to(torch.float32), A.to(torch.float32), alpha=ones(2, 1)),
        TypeError,
        "add: alpha .*float64.*float32",
    ),
    "add complex alpha": (
        lambda: ls.ops.add(A, A, alpha=torch.tensor(1j, dtype=torch.complex128)),
        TypeError,
        "add: alpha .*complex128",
    ),
    "add a number": (lambda: ls.ops.add(A, 1.0), TypeError, "add: B must be a CSR, got float"),
    "add to a tensor": (lambda: ls.ops.add(ones(M, N), A), TypeError, "add: A must be a CSR, got Tensor"),
    "add integers": (lambda: ls.ops.add(INTEGERS, INTEGERS), TypeError, "add: A.values must be float32"),
    "add other shapes": (lambda: ls.ops.add(A, A.T), ValueError, r"add: .*\(6, 5\) and \(5, 6\)"),
    "A * vector": (lambda: A * ones(N), TypeError, r"A \* B: .*\(5,\).*scale_rows"),
    "vector * A": (lambda: ones(N) * A, TypeError, "scale_rows"),
    "A * text": (lambda: A * "2", TypeError, r"A \* B: .*str"),
    "A * complex": (lambda: A * 2j, TypeError, "complex"),
    "A / A": (lambda: A / A, TypeError, "A / s: .*CSR"),
    "A / vector": (lambda: A / ones(N), TypeError, r"A / s: .*\(5,\)"),
    "1 / A": (lambda: 1 / A, TypeError, ""),
    "tensor / A": (lambda: ones(1) / A, TypeError, ""),
    "A * batch": (lambda: ls.CSR(ones(2, NNZ), P) * ones(3, 1), ValueError, ".*2.*3"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_argument(name):
    call, kind, message = BAD[name]
    with pytest.raises(Exception, match=message) as caught:
        call()
    assert type(caught.value) is kind, f"{type(caught.value).__name__}: {caught.value}"


def test_a_failed_call_leaves_nothing_behind():
    """The pattern works as before after errors."""
    for call, kind, _ in BAD.values():
        with pytest.raises((kind, RuntimeError)):
            call()
    assert torch.equal(A @ ones(N), torch.from_numpy(random(M, N, 0.5).sum(axis=1)))
