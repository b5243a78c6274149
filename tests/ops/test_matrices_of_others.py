"""Sparse matrices of SciPy and torch, and `nn.SparseMatrix`, as arguments of operations and of `evaluate`."""

import ast
import inspect
import pickle

import numpy as np
import ops_stub
import pytest
import scipy.sparse
import torch
from public_calls import NUMBERS

import learnsolve as ls

A = ls.problems.poisson((4, 4))
OTHERS = {
    **dict.fromkeys(("A", "L", "re", "im"), lambda: A),
    "x": lambda: torch.ones(16, dtype=torch.float64),
    "B": lambda: A,
    "P": lambda: A,
    "y": lambda: torch.ones(16, dtype=torch.float64),
    "p": lambda: torch.arange(16).flip(0),
    "matrices": lambda: [A, A],
    "blocks": lambda: [[None, A], [A, A]],
    "U": lambda: torch.ones(16, dtype=torch.float64),
    "V": lambda: torch.ones(16, dtype=torch.float64),
    "pattern": lambda: A,
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
    T = A.to_torch().requires_grad_()
    b = torch.linspace(1, 2, 16, dtype=torch.float64)
    (ls.ops.spsolve(T, b).sum() + ls.ops.spmm(T, b).square().sum()).backward()
    values = A.values.clone().requires_grad_()
    B = A.with_values(values)
    (ls.ops.spsolve(B, b).sum() + ls.ops.spmm(B, b).square().sum()).backward()
    torch.testing.assert_close(T.grad.values(), values.grad)


@pytest.mark.parametrize("wrong", [A.to_dense(), A.to_dense().numpy(), [[1.0]], None])
def test_what_is_no_sparse_matrix_is_refused(wrong):
    with pytest.raises(TypeError, match=r"spmm: A must be a CSR, got .*CSR\.from_scipy, CSR\.from_torch"):
        ls.ops.spmm(wrong, torch.ones(16, dtype=torch.float64))


def test_operations_are_pickled_by_name():
    assert pickle.loads(pickle.dumps(ls.ops.spmm)) is ls.ops.spmm


def test_evaluate_takes_them():
    S, b = A.to_scipy(), np.ones(16)
    rows = []
    for matrix, right in ((A, torch.from_numpy(b)), (S, b), (A.to_torch(), b), ([S, A.to_dense()], [b, b])):
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
