"""Arguments: matrices of SciPy and torch and `nn.SparseMatrix` are taken; each bad one is refused with the
right type of exception, and a message with function, rule and value."""

import ast
import inspect
import pickle

import numpy as np
import ops_stub
import pytest
import scipy.sparse
import torch
from reference import pattern_of, random
from registry import NUMBERS

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

BAD = [
    # spmm
    (lambda: spmm(A, ones(99)), ValueError, r"spmm: x must have A.shape\[1\] = 5 rows.*\(99,\)"),
    (lambda: spmm(A, ones(6, 2)), ValueError, r"spmm: .*A.shape\[1\] = 5.*\(6, 2\)"),
    (lambda: spmm(A, ones(5), transpose=True), ValueError, r"A.shape\[0\] = 6.*\(5,\)"),
    (lambda: spmm(A, ones()), ValueError, "spmm: x must have shape .*scalar"),
    (lambda: spmm(A, [1.0] * N), TypeError, "spmm: x must be a torch.Tensor, got list"),
    (lambda: A @ [1.0] * N, TypeError, "spmm: x must be a torch.Tensor, got list"),
    (lambda: spmm(A, ones(N), transpose="no"), TypeError, "spmm: transpose must be True or False, got 'no'"),
    (lambda: A + A.to(torch.float32), TypeError, "A \\+ B: B.values has dtype"),
    (lambda: A * A.to(torch.float32), TypeError, "A \\* B: B.values has dtype"),
    (
        lambda: A.with_values(ones(2, A.nnz)) + A.with_values(ones(3, A.nnz)),
        ValueError,
        "A \\+ B: the batch axes of A.values and B.values must broadcast",
    ),
    (lambda: A * torch.full((1, 1), 2j), TypeError, "s has dtype torch.complex64, the matrix torch.float64"),
    (lambda: ls.factorize(A), ValueError, "factorize: A must be square"),
    (lambda: spmm(A, A.T), TypeError, "spmm: x must be a torch.Tensor, got CSR"),
    (lambda: spmm(ones(M, N), ones(N)), TypeError, "spmm: A must be a CSR, got Tensor"),
    (lambda: spmm(None, ones(N)), TypeError, "spmm: A must be a CSR"),
    (
        lambda: spmm(A, torch.eye(N, dtype=F64).to_sparse()),
        TypeError,
        "spmm: x must be a dense tensor, got layout torch.sparse_coo; .*CSR.from_torch",
    ),
    (
        lambda: sddmm(torch.eye(M, dtype=F64).to_sparse_csr(), ones(N, M), P),
        TypeError,
        "sddmm: U must be a dense tensor, got layout torch.sparse_csr",
    ),
    (lambda: spmm(A, ones(N, dtype=torch.float32)), TypeError, "spmm: .*float32.*float64"),
    (lambda: spmm(A, ones(N, dtype=torch.int64)), TypeError, "spmm: x has dtype torch.int64"),
    (lambda: INTEGERS @ ones(N, dtype=torch.int64), TypeError, "A.values must be float32 or float64"),
    (lambda: ls.CSR(torch.ones(NNZ, dtype=torch.bool), P) @ ones(N), TypeError, "spmm: .*torch.bool"),
    (lambda: A.to(torch.float16) @ ones(N, dtype=torch.float16), TypeError, "spmm: .*float16"),
    (lambda: A.to(torch.complex64) @ ones(N), TypeError, "spmm: x has dtype torch.float64, the .*complex64"),
    (
        lambda: A.to(torch.complex32) @ torch.ones(N, dtype=torch.complex32),
        TypeError,
        "spmm: A.values must be complex64 or complex128, got torch.complex32",
    ),
    (lambda: ls.ops.sddmm(1j * ones(M), torch.ones(N), P), TypeError, "sddmm: .*complex128.*float32"),
    (
        lambda: ls.ops.real_form(A),
        TypeError,
        "real_form: without im, re must be a complex .*got CSR of torch",
    ),
    (lambda: ls.ops.real_form(A, A.T), ValueError, "real_form: re and im must have one shape"),
    (lambda: ls.ops.real_form(A, 1.0), TypeError, "real_form: im must be a CSR, got float"),
    (lambda: spmm(A, META), TypeError, "spmm: x is on meta.*cpu"),
    (lambda: spmm(ls.CSR(ones(2, NNZ), P), ones(3, N, 1)), ValueError, r"spmm: .*\(?2,?\)?.*\(?3"),
    (lambda: [1.0] * M @ A, TypeError, "x @ A: x must be a torch.Tensor or a NumPy array, got list"),
    (lambda: ones(5) @ A, ValueError, r"A.shape\[0\] = 6"),
    # sddmm
    (lambda: sddmm(ones(5), ones(5), P), ValueError, r"sddmm: U .*pattern.shape\[0\] = 6.*\(5,\)"),
    (lambda: sddmm(ones(6), ones(6), P), ValueError, r"sddmm: V .*pattern.shape\[1\] = 5.*\(6,\)"),
    (lambda: sddmm(ones(6, 2), ones(5, 3), P), ValueError, "sddmm: .*got 2 and 3"),
    (lambda: sddmm(ones(6), ones(5, 1), P), ValueError, "sddmm: .*both"),
    (lambda: sddmm(ones(), ones(), P), ValueError, "sddmm"),
    (lambda: sddmm(ones(6), ones(5, dtype=torch.float32), P), TypeError, "sddmm: U .*float64.*float32"),
    (lambda: sddmm(ones(6).long(), ones(5).long(), P), TypeError, "sddmm: U must be float32"),
    (lambda: sddmm(ones(6), META, P), TypeError, "sddmm: .*meta"),
    (lambda: sddmm(ones(6), ones(5), [A]), TypeError, "pattern must be a SparsityPattern or a CSR, got list"),
    (lambda: sddmm(1, ones(5), P), TypeError, "sddmm: U must be a torch.Tensor, got int"),
    (lambda: sddmm(ones(6), None, P), TypeError, "sddmm: V must be a torch.Tensor, got NoneType"),
    (lambda: sddmm(ones(2, 6, 1), ones(3, 5, 1), P), ValueError, "sddmm: .*2.*3"),
    # structure
    (lambda: A.sum(2), ValueError, "sum: dim must be one of .* got 2"),
    (lambda: INTEGERS.sum(0), TypeError, "sum: A.values must be float32"),
    (lambda: A.scale_rows(ones(5)), ValueError, r"scale_rows: .*A.shape\[0\] = 6.*\(5,\)"),
    (lambda: A.scale_columns(ones(6)), ValueError, r"scale_columns: .*A.shape\[1\] = 5.*\(6,\)"),
    (lambda: A.scale_rows(ones()), ValueError, r"scale_rows: .*A \* s"),
    (lambda: A.scale_rows([1.0] * 6), TypeError, "scale_rows: d must be a torch.Tensor"),
    (lambda: A.scale_rows(ones(6).float()), TypeError, "scale_rows: d has dtype"),
    (lambda: INTEGERS.scale_rows(ones(6).long()), TypeError, "scale_rows: A.values"),
    (lambda: ls.CSR(ones(2, NNZ), P).scale_rows(ones(3, 6)), ValueError, "scale_rows: .*2.*3"),
    # arithmetic
    (lambda: A + 1, TypeError, r"A \+ B: B must be a CSR, got int"),
    (lambda: 1 + A, TypeError, ""),
    (lambda: A - 1.0, TypeError, "A - B: B must be a CSR, got float: .*A.values"),
    (lambda: 1 - A, TypeError, ""),
    (lambda: A + ones(NNZ), TypeError, "B must be a CSR, got Tensor"),
    (lambda: ones(NNZ) + A, TypeError, ""),
    (lambda: A + A.T, ValueError, r"A \+ B: .*\(6, 5\) and \(5, 6\)"),
    (lambda: A * A.T, ValueError, r"A \* B: .*\(6, 5\) and \(5, 6\)"),
    (
        lambda: A - ls.CSR.from_dense(ones(M, N, dtype=torch.float32)),
        TypeError,
        "A - B: B.values has dtype torch.float32",
    ),
    (
        lambda: ls.ops.add(ls.CSR(ones(2, NNZ), P), ls.CSR(ones(3, NNZ), P)),
        ValueError,
        "add: the batch axes of A.values and B.values",
    ),
    (lambda: ls.ops.add(A, A, alpha=ones(3)), TypeError, r"add: alpha must be a number or .*\(3,\)"),
    (lambda: ls.ops.add(A, A, beta="2"), TypeError, "add: beta must be .*str"),
    (
        lambda: ls.ops.add(A.to(torch.float32), A.to(torch.float32), alpha=ones(2, 1)),
        TypeError,
        "add: alpha .*float64.*float32",
    ),
    (
        lambda: ls.ops.add(A, A, alpha=torch.full((1, 1), 1j)),
        TypeError,
        "add: alpha .*complex64",
    ),
    (lambda: ls.ops.add(A, 1.0), TypeError, "add: B must be a CSR, got float"),
    (lambda: ls.ops.add(ones(M, N), A), TypeError, "add: A must be a CSR, got Tensor"),
    (lambda: ls.ops.add(INTEGERS, INTEGERS), TypeError, "add: A.values must be float32"),
    (lambda: ls.ops.add(A, A.T), ValueError, r"add: .*\(6, 5\) and \(5, 6\)"),
    (lambda: A * ones(N), TypeError, r"A \* B: .*\(5,\).*scale_rows"),
    (lambda: ones(N) * A, TypeError, "scale_rows"),
    (lambda: A * "2", TypeError, r"A \* B: .*str"),
    (lambda: A / A, TypeError, "A / s: .*CSR"),
    (lambda: A / ones(N), TypeError, r"A / s: .*\(5,\)"),
    (lambda: 1 / A, TypeError, ""),
    (lambda: ones(1) / A, TypeError, ""),
    (lambda: ls.CSR(ones(2, NNZ), P) * ones(3, 1), ValueError, ".*2.*3"),
]


@pytest.mark.parametrize(("call", "kind", "message"), BAD)
def test_bad_argument(call, kind, message):
    with pytest.raises(Exception, match=message) as caught:
        call()
    assert type(caught.value) is kind, f"{type(caught.value).__name__}: {caught.value}"


def test_a_failed_call_leaves_nothing_behind():
    """The pattern works as before after errors."""
    assert torch.equal(A @ ones(N), torch.from_numpy(random(M, N, 0.5).sum(axis=1)))


GRID = ls.problems.poisson((4, 4))
OTHERS = {
    **dict.fromkeys(("A", "L", "re", "im"), lambda: GRID),
    "x": lambda: torch.ones(16, dtype=torch.float64),
    "B": lambda: GRID,
    "P": lambda: GRID,
    "y": lambda: torch.ones(16, dtype=torch.float64),
    "p": lambda: torch.arange(16).flip(0),
    "matrices": lambda: [GRID, GRID],
    "blocks": lambda: [[None, GRID], [GRID, GRID]],
    "U": lambda: torch.ones(16, dtype=torch.float64),
    "V": lambda: torch.ones(16, dtype=torch.float64),
    "pattern": lambda: GRID,
}
OPERATIONS = [
    name
    for name in ls.ops.__all__
    if inspect.isfunction(f := getattr(ls.ops, name))
    and any("CSR" in str(p.annotation) for p in inspect.signature(f).parameters.values())
]


def arguments(function):
    return {
        p.name: OTHERS[p.name]() if p.name in OTHERS else NUMBERS[p.name]
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty or p.name == "im"
    }


def converted(convert, value):
    if isinstance(value, list):
        return [converted(convert, part) for part in value]
    return convert(value) if isinstance(value, ls.CSR) else value


def numbers(result):
    for part in result if isinstance(result, tuple) else (result,):
        part = getattr(part, "L", part)
        part = part.values if isinstance(part, ls.CSR) else part
        if isinstance(part, torch.Tensor):
            yield part
        elif hasattr(part, "solve"):
            yield part.solve(torch.ones(16, dtype=torch.float64))


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_takes_sparse_matrices_of_other_libraries(name):
    f = getattr(ls.ops, name)
    given = arguments(f)
    expected = list(numbers(f(**given)))
    assert expected
    csr = [key for key, value in given.items() if isinstance(value, (ls.CSR, list))]
    assert csr
    for convert in (ls.CSR.to_scipy, ls.CSR.to_torch, ls.nn.SparseMatrix):
        turned = {key: converted(convert, value) for key, value in given.items()}
        torch.testing.assert_close(list(numbers(f(**turned))), expected)
    by_place = [converted(ls.CSR.to_scipy, value) for value in given.values()]
    torch.testing.assert_close(list(numbers(f(*by_place))), expected)


def test_gradients_arrive_at_a_sparse_tensor():
    T = GRID.to_torch().requires_grad_()
    b = torch.linspace(1, 2, 16, dtype=torch.float64)
    (ls.ops.spsolve(T, b).sum() + ls.ops.spmm(T, b).square().sum()).backward()
    values = GRID.values.clone().requires_grad_()
    B = GRID.with_values(values)
    (ls.ops.spsolve(B, b).sum() + ls.ops.spmm(B, b).square().sum()).backward()
    torch.testing.assert_close(T.grad.values(), values.grad)


@pytest.mark.parametrize("wrong", [GRID.to_dense(), GRID.to_dense().numpy(), [[1.0]], None])
def test_what_is_no_sparse_matrix_is_refused(wrong):
    with pytest.raises(TypeError, match=r"spmm: A must be a CSR, got .*CSR\.from_scipy, CSR\.from_torch"):
        ls.ops.spmm(wrong, torch.ones(16, dtype=torch.float64))


def test_operations_are_pickled_by_name():
    assert pickle.loads(pickle.dumps(ls.ops.spmm)) is ls.ops.spmm


def test_evaluate_takes_them():
    S, b = GRID.to_scipy(), np.ones(16)
    rows = []
    for matrix, right in (
        (GRID, torch.from_numpy(b)),
        (S, b),
        (GRID.to_torch(), b),
        ([S, GRID.to_dense()], [b, b]),
    ):
        result = ls.evaluate(matrix, right, {"Jacobi": ls.preconditioners.Jacobi}, rtol=1e-6, repeats=1)
        rows.append((result.rows[0].converged / result.rows[0].systems, result.rows[0].iterations.mean))
    assert rows == rows[:1] * 4
    with pytest.raises(TypeError, match=r"evaluate: A must hold .*CSR\.from_scipy"):
        ls.evaluate([scipy.sparse], [b], {"none": None})


def test_the_types_that_users_see_are_those_of_the_functions():
    """`python tests/ops_stub.py` writes the stub again."""
    written, wanted = (
        sorted(map(ast.dump, ast.parse(t).body)) for t in (ops_stub.STUB.read_text(), ops_stub.text())
    )
    assert written == wanted
