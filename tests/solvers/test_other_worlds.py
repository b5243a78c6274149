"""Matrices of SciPy and torch, NumPy vectors and SciPy's result, as solvers and preconditioners take them."""

import inspect
import re
import typing

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch

import learnsolve as ls
from learnsolve.matrix.convert import TensorLike

A = ls.problems.poisson((4, 4))
S, D = A.to_scipy(), A.to_dense()
B = np.linspace(1, 2, 16)
X = torch.from_numpy(np.linalg.solve(D.numpy(), B))
WORLDS = {
    "scipy": S,
    "csc": S.tocsc(),
    "dia": S.todia(),
    "spmatrix": scipy.sparse.csr_matrix(S),
    "csr tensor": A.to_torch(),
    "csc tensor": D.to_sparse_csc(),
    "coo tensor": A.to_torch(torch.sparse_coo),
    "bsr tensor": D.to_sparse_bsr((2, 2)),
    "bsc tensor": D.to_sparse_bsc((2, 4)),
    "dense": D,
    "array": D.numpy(),
    "module": ls.nn.SparseMatrix(A),
}


@pytest.mark.parametrize("world", WORLDS)
def test_solvers_take_matrices_of_other_libraries(world):
    x = ls.solvers.cg(WORLDS[world], B, rtol=1e-12, M=WORLDS[world] if world == "dense" else None).x
    torch.testing.assert_close(x, X)
    M = ls.preconditioners.IC0(WORLDS[world])
    r = torch.from_numpy(B)
    if "bs" not in world:  # zeros of blocks are entries, here fill
        torch.testing.assert_close(M(r), ls.preconditioners.IC0(A)(r))


SOLVERS = {
    **{name: getattr(ls.solvers, name) for name in ("minres", "bicgstab", "gmres", "lsqr", "lsmr")},
    "jacobi": lambda A, b, x0: ls.solvers.jacobi(A, b, x0, iterations=3),
    "sor": lambda A, b, x0: ls.solvers.sor(A, b, x0, iterations=3),
    "richardson": lambda A, b, x0: ls.solvers.richardson(A, b, x0, weight=0.2, iterations=3),
    "chebyshev": lambda A, b, x0: ls.solvers.chebyshev(A, b, x0, lmin=0.2, lmax=8.0, iterations=3),
    "heavyball": lambda A, b, x0: ls.solvers.heavyball(A, b, x0, alpha=0.2, beta=0.1, iterations=3),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_takes_them(name):
    x = SOLVERS[name](S, B, np.ones(16)).x
    expected = SOLVERS[name](A, torch.from_numpy(B), torch.ones(16, dtype=torch.float64)).x
    assert torch.equal(x, expected)


def described(name, argument):
    """What the docstring of a solver, or the one that it refers to, says of an argument."""
    entries = re.findall(r"^    (\w+(?:, \w+)*) : (.*)", getattr(ls.solvers, name).__doc__, re.MULTILINE)
    (text,) = (text for names, text in entries if argument in names.split(", "))
    other = re.fullmatch(r"as for `(\w+)`", text)
    return described(other[1], argument) if other else text


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, f in inspect.getmembers(ls.solvers, inspect.isfunction)
        if "x0" in inspect.signature(f).parameters
    ],
)
def test_types_and_docstrings_of_every_solver_say_that_b_and_x0_may_be_arrays(name):
    hints = typing.get_type_hints(getattr(ls.solvers, name))
    assert (hints["b"], hints["x0"]) == (TensorLike, TensorLike | None)
    assert described(name, "b").startswith("Tensor or NumPy array, shape")
    assert described(name, "x0").startswith(("Tensor or NumPy array, shape", "like b"))


@pytest.mark.parametrize("M", [S, A.to_torch(), D], ids=["scipy", "tensor", "dense"])
def test_preconditioners_of_other_libraries(M):
    b = torch.from_numpy(B)
    expected = ls.solvers.gmres(A, b, M=A)
    assert torch.equal(ls.solvers.gmres(A, b, M=M).x, expected.x)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr"])
def test_gradient_arrives_at_the_values_of_a_tensor(layout):
    """For a CSR tensor also at the tensor itself, and for a dense one also at its zeros."""
    target = D.clone().requires_grad_()
    torch.linalg.solve(target, torch.from_numpy(B)).sum().backward()
    values = A.values.clone().requires_grad_()
    arguments = (A.crow_indices, A.col_indices, values, A.shape)
    if layout == "coo":
        T = torch.sparse_coo_tensor(torch.stack((A.pattern.row_indices, A.col_indices)), values, A.shape)
    elif layout == "bsr":
        T = torch.sparse_bsr_tensor(*arguments[:2], values.view(-1, 1, 1), A.shape)
    else:  # the matrix is symmetric
        T = getattr(torch, f"sparse_{layout}_tensor")(*arguments)
    ls.solvers.cg(T, B, rtol=1e-13).x.sum().backward()
    places = (A.pattern.row_indices, A.col_indices)
    assert target.grad is not None
    torch.testing.assert_close(values.grad, target.grad[places[::-1] if layout == "csc" else places])


def test_gradient_arrives_at_a_tensor():
    target, dense = D.clone().requires_grad_(), D.clone().requires_grad_()
    sparse = A.to_torch().requires_grad_()
    torch.linalg.solve(target, torch.from_numpy(B)).sum().backward()
    ls.solvers.cg(dense, B, rtol=1e-13).x.sum().backward()
    ls.solvers.cg(sparse, B, rtol=1e-13).x.sum().backward()
    assert target.grad is not None
    assert sparse.grad is not None
    torch.testing.assert_close(dense.grad, target.grad)  # zeros of D have gradients
    torch.testing.assert_close(sparse.grad.to_dense(), target.grad * (D != 0))
    tall, same = (D[:, :5].clone().requires_grad_() for _ in range(2))
    ls.solvers.lsqr(tall, B, atol=1e-13, btol=1e-13).x.sum().backward()
    (torch.linalg.pinv(same) @ torch.from_numpy(B)).sum().backward()
    torch.testing.assert_close(tall.grad, same.grad)
    module = ls.nn.SparseMatrix(A, trainable=True)
    ls.solvers.cg(module, B, rtol=1e-13).x.sum().backward()
    torch.testing.assert_close(module.values.grad, sparse.grad.values())
    with pytest.raises(NotImplementedError, match="cannot accumulate a gradient in a CSC tensor"):
        ls.solvers.cg(D.to_sparse_csc().requires_grad_(), B)


def test_solution_unpacks_as_in_scipy():
    x, info = ls.solvers.cg(S, B)
    torch.testing.assert_close(x, torch.from_numpy(scipy.sparse.linalg.cg(S, B)[0]), rtol=1e-4, atol=0)
    assert info == 0
    with pytest.warns(ls.solvers.ConvergenceWarning):
        assert ls.solvers.cg(S, B, maxiter=3).info == 3
    with pytest.warns(ls.solvers.ConvergenceWarning):
        x, info = ls.solvers.cg(-S, B)
    assert info < 0


def test_numpy_arrays():
    rows, columns = A.pattern.row_indices.numpy(), A.col_indices.numpy()
    assert torch.equal(ls.CSR.from_coo(rows, columns, A.values.numpy(), A.shape).to_dense(), D)
    assert torch.equal(ls.CSR.from_dense(D.numpy()).to_dense(), D)
    assert torch.equal(A @ B, A @ torch.from_numpy(B))
    assert torch.equal(B @ A, torch.from_numpy(B) @ A)
    assert isinstance(A @ B, torch.Tensor)
    for format in ("csc", "coo", "bsr", "dia", "lil", "dok"):
        assert (A.to_scipy(format) != S).nnz == 0
        assert A.to_scipy(format).format == format


def test_what_is_not_taken_names_the_remedy():
    x = torch.ones(16)
    with pytest.raises(TypeError, match=r"A\.toarray\(\)"):
        np.asarray(A)
    with pytest.raises(TypeError, match=r"torch\.mm: takes no CSR; write A @ x"):
        torch.mm(A, x.double().unsqueeze(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"dtype=torch\.float32"):
        A @ x
    with pytest.raises(TypeError, match=r"class IC0.* give IC0\(A\)"):
        ls.solvers.cg(A, B, M=ls.preconditioners.IC0)
    with pytest.raises(TypeError, match="cg: a NumPy array must hold numbers, got object"):
        ls.solvers.cg(A, B.astype(object))
    with pytest.raises(ValueError, match="format must be one of"):
        A.to_scipy("coordinates")
