"""learnsolve.solve: what it chooses for a matrix, and what it says of that."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import learnsolve as ls
from learnsolve.solvers import ConvergenceWarning, SolverError, Status
from learnsolve.solvers.solve import DIRECT

RNG = np.random.default_rng(0)


def matrix(S):
    return ls.CSR.from_scipy(sp.csr_array(S))


def ones(A):
    return torch.ones(A.shape[0], dtype=A.dtype)


def tridiagonal(n, low, middle, high):
    return sp.diags_array([np.full(n - 1, low), np.full(n, middle), np.full(n - 1, high)], offsets=[-1, 0, 1])


N = DIRECT + 1
CHOICES = {
    "small": (tridiagonal(9, -1.0, 2.0, -1.0), "direct: 9 rows are few"),
    "small and singular": (
        np.array([[1.0, -2, 0], [-2, 8, -2], [0, -2, 1]]),
        "direct: 3 rows are few; A is singular; then cg with IC0, shifted by 0.001: ",
    ),
    "graph Laplacian": (
        np.array([[1.0, -1, 0], [-1, 2, -1], [0, -1, 1]]),
        'null_space="constants", as the rows of A sum to zero; cg with MIC0, shifted by 0.001: ',
    ),
    "M-matrix": (tridiagonal(N, -1.0, 2.0, -1.0), "cg with MIC0: A is symmetric and diagonally dominant"),
    "positive": (tridiagonal(N, 1.0, 3.0, 1.0), "cg with IC0: A is symmetric, its diagonal positive"),
    "indefinite": (
        sp.diags_array(np.where(np.arange(N) % 2, 1.0, -1.0)),
        "minres: A is symmetric and may be indefinite",
    ),
    "hidden": (  # eigenvalues 3 and -1
        sp.block_diag([np.array([[1.0, 2.0], [2.0, 1.0]])] * (N // 2 + 1)),
        "INDEFINITE; then minres",
    ),
    "not symmetric": (tridiagonal(N, -2.0, 4.0, -1.0), "gmres with ILU0: A is not symmetric"),
    "zero diagonal": (sp.eye_array(N, k=1) + 0.5 * sp.eye_array(N, k=1 - N), "gmres: A is not symmetric"),
    "tall": (RNG.standard_normal((30, 7)), "lsqr: A is 30 x 7"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choice(name):
    S, words = CHOICES[name]
    A = matrix(S)
    b = torch.from_numpy(RNG.standard_normal(A.shape[0]))
    if "null" in words or "singular" in words:
        b = A @ b
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = ls.solve(A, b, rtol=1e-8)
    assert solution.converged
    assert words in solution.choice
    if A.shape[0] == A.shape[1]:
        assert torch.linalg.vector_norm(b - A @ solution.x) <= 1.001e-8 * torch.linalg.vector_norm(b)


@pytest.mark.parametrize("name", ["small", "M-matrix", "not symmetric"])
def test_gradient_is_that_of_the_solution(name):
    S, _ = CHOICES[name]
    A = matrix(S).requires_grad_()
    b = torch.from_numpy(RNG.standard_normal(A.shape[0])).requires_grad_()
    ls.solve(A, b, rtol=1e-10).x.square().sum().backward()
    found = A.values.grad.clone(), b.grad.clone()
    A.values.grad = b.grad = None
    ls.ops.spsolve(A, b).square().sum().backward()
    for ours, exact in zip(found, (A.values.grad, b.grad), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-8)


def test_batches_and_columns():
    A = matrix(tridiagonal(N, -1.0, 2.5, -1.0))
    A = A.with_values(torch.stack((A.values, 2 * A.values)))
    b = torch.from_numpy(RNG.standard_normal((2, N, 3)))
    solution = ls.solve(A, b, rtol=1e-10)
    assert solution.choice.startswith("cg with MIC0")
    torch.testing.assert_close(A @ solution.x, b, rtol=0, atol=1e-8)
    few = ls.solve(matrix(tridiagonal(4, -1.0, 2.5, -1.0)), b[0, :4])
    assert few.choice.startswith("direct")
    assert few.x.shape == (4, 3)
    assert few.residual_norms.shape == (2, 3)


def test_what_is_asked_for_is_taken():
    A = matrix(tridiagonal(20, -1.0, 2.0, -1.0))
    assert ls.solve(A, ones(A), method="cg").choice == "cg with MIC0: as asked"
    assert ls.solve(A, ones(A), method="cg", M=None).choice == "cg: as asked"
    assert ls.solve(A, ones(A), method="minres").choice == "minres: as asked"
    M = ls.preconditioners.Jacobi(A)
    assert ls.solve(A, ones(A), M=M).choice.startswith("cg with the given M: ")
    with pytest.raises(ValueError, match=r'solve: method="direct" takes no M'):
        ls.solve(A, ones(A), method="direct", M=M)
    with pytest.raises(ValueError, match="solve: method must be one of"):
        ls.solve(A, ones(A), method="cgs")
    with pytest.raises(TypeError, match=r"solve: A .*CSR\.from"):
        ls.solve(A.to_dense().tolist(), ones(A))


def test_a_failure_is_said():
    A = matrix(tridiagonal(N, -1.0, 2.0, -1.0))
    with pytest.warns(ConvergenceWarning, match="solve: did not converge: MAX_ITERATIONS"):
        solution = ls.solve(A, ones(A), rtol=1e-10, maxiter=2, method="cg", M=None)
    assert solution.status is Status.MAX_ITERATIONS
    with pytest.raises(SolverError, match="solve: MAX_ITERATIONS after 2 iterations"):
        ls.solve(A, ones(A), rtol=1e-10, maxiter=2, method="cg", M=None, throw=True)
    with pytest.raises(ValueError, match="singular"):
        ls.solve(matrix(np.ones((2, 2))), torch.ones(2, dtype=torch.float64), method="direct")
    small = matrix(tridiagonal(20, -1.0, 2.0, -1.0))
    with pytest.warns(ConvergenceWarning, match="STAGNATED"):
        assert not ls.solve(small, ones(small), rtol=0.0, method="direct").converged


def test_under_vmap_it_asks_for_a_method():
    A = matrix(tridiagonal(5, -1.0, 2.0, -1.0))
    with pytest.raises(NotImplementedError, match="solve: under vmap"):
        torch.func.vmap(lambda v: ls.solve(A.with_values(v), ones(A)).x)(torch.stack((A.values, A.values)))
