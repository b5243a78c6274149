"""Singular systems: `null_space=` of Krylov methods and of `ls.solve`, against the dense pseudo-inverse."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from reference import normal
from solvers.cases import WEIGHTS, laplacian
from solvers.krylov import ANY, SQUARE, SYMMETRIC, S

import learnsolve as ls
from learnsolve.solvers import ConvergenceWarning, SolverError, Status

TWO_PARTS = torch.tensor([[0, 1, 2, 4, 5], [1, 2, 0, 5, 6]])  # 0-1-2, 4-5-6, and 3 alone
SCALE = torch.tensor([1.0, 2.0, 0.5, 1.5, 3.0], dtype=torch.float64)


def nonsymmetric(weights):
    """L D: constants are the null vectors of its transpose, 1 / d its own."""
    return ls.ops.scale_columns(laplacian(weights), SCALE)


OF_NONSYMMETRIC = ((1 / SCALE).unsqueeze(1), "constants")


def tight(name, A, b, **keywords):
    return getattr(S, name)(A, b, **{"rtol": 1e-13, "null_space": "constants", **keywords})


@pytest.mark.parametrize("name", ANY)
def test_two_null_spaces_of_a_nonsymmetric_matrix(name):
    def solution(w, b):
        return tight(name, nonsymmetric(w), b, null_space=OF_NONSYMMETRIC).x

    w, b = WEIGHTS.clone().requires_grad_(), normal((5,)).requires_grad_()
    dense = torch.linalg.pinv(nonsymmetric(w).to_dense()) @ b
    torch.testing.assert_close(solution(w, b), dense, rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradcheck(solution, (w, b))
    assert torch.autograd.gradgradcheck(solution, (w, b))


@pytest.mark.parametrize("name", SQUARE)
def test_connected_components_batches_and_blocks(name):
    w = torch.stack((torch.ones(5), torch.arange(1.0, 6))).double()
    A, b = laplacian(w, TWO_PARTS), normal((2, 7, 3))
    solution = tight(name, A, b)
    assert solution.converged
    exact = torch.linalg.pinv(A.to_dense(), hermitian=True) @ b
    torch.testing.assert_close(solution.x, exact, rtol=1e-9, atol=1e-11)
    assert (solution.x[:, 3] == 0).all()  # the node without edges
    ring = ls.problems.poisson((5,), boundary="periodic")
    batch = ls.BlockBatch([laplacian(w[0], TWO_PARTS), ring])
    right = normal((12, 2))
    parts = batch.split(tight(name, batch, right).x)
    exact = [
        torch.linalg.pinv(D, hermitian=True) for D in (laplacian(w[0], TWO_PARTS).to_dense(), ring.to_dense())
    ]
    for x, X, b in zip(parts, exact, right.split((7, 5)), strict=True):
        torch.testing.assert_close(x, X @ b, rtol=1e-9, atol=1e-11)
    blocks = ls.BlockBatch([ring, laplacian(WEIGHTS)])
    x = tight(name, blocks, right[:10], null_space=torch.ones(10, 1, dtype=torch.float64)).x
    torch.testing.assert_close(x, tight(name, blocks, right[:10]).x, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", SQUARE)
def test_tensors_of_null_vectors(name):
    """Any basis; of a batch of matrices each its own."""
    D = torch.linalg.qr(normal((2, 6, 6)))[0]
    A = D @ torch.diag_embed(torch.tensor([0.0, 0, 1, 2, 3, 4]).double()) @ D.mT
    A = ls.CSR.stack([ls.CSR.from_dense(0.5 * (a + a.mT)) for a in A])
    N = D[..., :2] @ normal((2, 2), seed=4)
    b = normal((2, 6, 2), seed=5)
    solution = tight(name, A, b, null_space=N, rtol=1e-12)
    assert solution.converged, solution.summary()
    exact = torch.linalg.pinv(A.to_dense(), hermitian=True, rtol=1e-10) @ b
    torch.testing.assert_close(solution.x, exact, rtol=1e-8, atol=1e-10)
    with pytest.raises(
        ValueError, match=rf"{name}: column 0 of null_space, orthonormalized, is not in the null"
    ):
        tight(name, A, b, null_space=N + 1e-6)


@pytest.mark.parametrize("name", SQUARE)
def test_operators_without_entries(name):
    """Callables of vectors and of blocks, stencils: constants are one vector."""
    ring = ls.problems.poisson((4, 5), boundary="periodic")
    b = normal((20,))
    exact = torch.linalg.pinv(ring.to_dense(), hermitian=True) @ b
    turned = {} if name in SYMMETRIC else {"transpose": lambda x: ring @ x}
    torch.testing.assert_close(tight(name, lambda x: ring @ x, b, **turned).x, exact, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(
        tight(name, lambda x: ring @ x, b.unsqueeze(1), **turned).x[:, 0], exact, rtol=1e-8, atol=1e-10
    )
    neighbors = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
    coefficients = torch.tensor([4.0, -1, -1, -1, -1], dtype=torch.float64)
    stencil = ls.ops.StencilOperator(coefficients, (4, 5), offsets=neighbors, boundary="periodic")
    torch.testing.assert_close(tight(name, stencil, b).x, exact, rtol=1e-8, atol=1e-10)
    zeros_and_constants = torch.stack((0 * b, 1e-200 * b, torch.ones_like(b)), 1)
    x = tight(name, lambda x: ring @ x / 3, zeros_and_constants, **turned).x
    torch.testing.assert_close(x[:, 1] * 1e200, 3 * exact, rtol=1e-8, atol=1e-10)
    assert not x[:, ::2].any()
    with pytest.raises(ValueError, match="null_space is not in the null space of A"):
        tight(name, lambda x: ring @ x + x, b, **turned)


@pytest.mark.parametrize("name", SQUARE)
def test_what_is_left_out_of_b_is_said(name):
    A = ls.problems.poisson((8, 8), boundary="periodic")
    b = normal((64,)) + 1
    solution = getattr(S, name)(A, b, null_space="constants")
    assert solution.converged
    assert solution.note.startswith("b has a component of 0.")
    assert getattr(S, name)(A, b - b.mean(), null_space="constants").note == ""
    nothing = getattr(S, name)(A, torch.full((64,), 0.1, dtype=torch.float64), null_space="constants")
    assert nothing.converged
    assert nothing.iterations == 0
    assert (nothing.x == 0).all()


@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.parametrize("of", ["CSR", "callable"])
def test_an_inconsistent_system_is_named_and_so_is_the_remedy(name, of):
    A = ls.problems.poisson((6, 5), boundary="periodic")
    b = normal((30,)) + 0.5
    share = float(b.mean().abs() * 30**0.5 / b.norm())
    argument = A if of == "CSR" else lambda x: A @ x
    turned = {} if of == "CSR" or name in SYMMETRIC else {"transpose": lambda x: A @ x}
    with pytest.warns(ConvergenceWarning, match="INCONSISTENT.*null_space="):
        solution = getattr(S, name)(argument, b, rtol=1e-8, **turned)
    assert solution.status is Status.INCONSISTENT
    words = (
        f'b has a component of {share:.2g} ||b|| along the constants; null_space="constants" leaves it out'
    )
    assert words in solution.summary()


def test_a_gradient_that_has_no_solution_is_named():
    """b is consistent, the cotangent is not."""
    A, b = ls.problems.poisson((6, 5), boundary="periodic"), normal((30,))
    b = (b - b.mean()).requires_grad_()
    x = S.cg(A, b, rtol=1e-8).x
    with pytest.warns(ConvergenceWarning, match="adjoint solve.*INCONSISTENT.*null_space="):
        (x + 0).square().sum().add(x[0]).backward()


def test_a_callback_is_given_the_shortest_iterate():
    A, seen = laplacian(WEIGHTS), []
    M = ls.preconditioners.Jacobi(A)
    S.cg(A, normal((5,)), M=M, null_space="constants", callback=lambda at: seen.append(at.x.clone()))
    assert all(abs(float(x.mean())) < 1e-14 for x in seen)


def test_solve_finds_constants_and_says_so():
    A = ls.problems.poisson((50, 50), boundary="periodic").requires_grad_()
    b = normal((2500,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = ls.solve(A, b - b.mean(), rtol=1e-8)
        argument = ls.solve(A, b, rtol=1e-8, null_space="constants")
    words = 'null_space="constants", as the rows of A sum to zero; cg with Jacobi'
    assert solution.selected.startswith(words)
    assert solution.converged
    assert abs(float(solution.x.detach().mean())) < 1e-13
    torch.testing.assert_close(argument.x, solution.x, rtol=1e-6, atol=1e-8)
    with pytest.warns(ConvergenceWarning, match="solve: did not converge: INCONSISTENT"):
        lost = ls.solve(A, b, rtol=1e-8)
    assert lost.status is Status.INCONSISTENT
    assert 'null_space="constants" asks for that' in lost.summary()
    torch.testing.assert_close(lost.x, argument.x, rtol=1e-6, atol=1e-8)
    with pytest.raises(SolverError):
        ls.solve(A, b, rtol=1e-8, throw=True)
    assert "null_space" not in ls.solve(A, b - b.mean(), null_space=None).selected
    with pytest.warns(ConvergenceWarning):
        columns = ls.solve(A, torch.stack((b, b - b.mean()), 1), method="minres", rtol=1e-6)
    assert columns.statuses == [Status.INCONSISTENT, Status.CONVERGED]
    with pytest.raises(ValueError, match="solve: null_space belongs to cg, minres, gmres and bicgstab"):
        ls.solve(A, b, method="lsqr", null_space="constants")


def test_an_example_of_pyamg():
    """unit_square, a Neumann problem: its eigenvalue is zero to rounding."""
    A, b = ls.problems.gallery("unit_square"), normal((191,))
    solution = S.cg(A, b, M=ls.preconditioners.Jacobi(A), rtol=1e-10, null_space="constants")
    assert solution.converged
    exact = torch.linalg.pinv(A.to_dense(), rtol=1e-12) @ b
    torch.testing.assert_close(solution.x, exact, rtol=1e-7, atol=1e-8)


def test_a_module_keeps_its_null_space():
    A, b = laplacian(WEIGHTS), normal((5,))
    solver = S.PCG(ls.preconditioners.Jacobi(A), rtol=1e-12, gradient="implicit", null_space="constants")
    x = pickle.loads(pickle.dumps(solver))(A, b).x
    torch.testing.assert_close(x, tight("cg", A, b).x, rtol=1e-9, atol=1e-11)


A5 = laplacian(WEIGHTS)
ONES = torch.ones(5, 1, dtype=torch.float64)
LD, REGULAR = nonsymmetric(WEIGHTS), ls.problems.poisson((5,))
JORDAN = ls.CSR.from_dense(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
OF_JORDAN = torch.eye(2)[:, :1], torch.eye(2)[:, 1:]


@pytest.mark.parametrize(
    ("name", "A", "argument", "error", "words"),
    [
        ("cg", A5, "constant", ValueError, 'null_space must be None, "constants", a tensor'),
        ("cg", A5, 3, TypeError, "null_space must be None.* got int"),
        ("cg", A5, torch.ones(5).double(), ValueError, r"must have shape \(5, k\).* got \(5,\)"),
        ("cg", A5, torch.ones(4, 1).double(), ValueError, r"must have shape \(5, k\).* got \(4, 1\)"),
        ("cg", A5, ONES.float(), TypeError, "null_space has dtype torch.float32"),
        ("cg", A5, ONES.clone().requires_grad_(), ValueError, "null_space requires grad.*detach it"),
        ("cg", A5, ONES.expand(5, 2), ValueError, "linearly independent, column 1 is zero"),
        ("cg", A5, torch.nan * ONES, ValueError, "finite and linearly independent, column 0"),
        ("cg", REGULAR, "constants", ValueError, r"null space of A: \|\|A v\|\| is 0.* regular A needs no"),
        ("cg", A5, ("constants", "constants"), ValueError, "A is symmetric here: give one"),
        ("gmres", A5, ("constants",), ValueError, "got 1 of them"),
        ("gmres", LD, OF_NONSYMMETRIC[0], ValueError, r"of A\^T: .*\(N, N_left\)"),
        ("gmres", LD, "constants", ValueError, "null space of A: "),
        (
            "gmres",
            A5,
            (ONES, torch.eye(5).double()[:, :2]),
            ValueError,
            "as many null vectors of A as of A.T",
        ),
        ("gmres", JORDAN, OF_JORDAN, ValueError, "a null vector of A is in the range of A.*use lsqr"),
    ],
)
def test_errors(name, A, argument, error, words):
    with pytest.raises(error, match=f"{name}: .*" + words):
        getattr(S, name)(A, torch.ones(A.shape[0], dtype=A.dtype), null_space=argument)


def test_numpy_and_float32():
    A = ls.problems.poisson((30, 30), boundary="periodic", dtype=torch.float32)
    solution = S.cg(A, normal((900,)).float(), null_space=np.ones((900, 1), dtype=np.float32))
    assert solution.converged
    assert abs(float(solution.x.mean())) < 1e-6
