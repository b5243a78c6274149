"""Iteration counts against SciPy's, solutions against direct ones, and what the history says."""

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from reference import normal
from solvers.krylov import (
    ANY,
    RECTANGULAR,
    SQUARE,
    SYMMETRIC,
    S,
    convection,
    dense_solution,
    matrix,
    poisson,
    run,
    tall,
)

import learnsolve as ls

# Solves that cannot converge, or are stopped before, are part of what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")

MATRICES = {
    "poisson": lambda: poisson(20, 20),
    "convection": lambda: convection(20, 20),
    "unit_square": lambda: ls.problems.gallery("unit_square"),
    "airfoil": lambda: ls.problems.gallery("airfoil"),
}


def scipy_count(name, A, b, **keywords):
    count = [0]

    def tick(_):
        count[0] += 1

    if name == "gmres":
        keywords.update(restart=20, callback_type="pr_norm", maxiter=A.shape[0])
    _, info = getattr(scipy.sparse.linalg, name)(A, b, callback=tick, **keywords)
    assert info == 0
    return count[0]


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("cg", "poisson"),
        ("cg", "unit_square"),
        ("cg", "airfoil"),
        ("bicgstab", "poisson"),
        ("bicgstab", "convection"),
        ("bicgstab", "unit_square"),
        ("gmres", "poisson"),
        ("gmres", "convection"),
        ("gmres", "unit_square"),
    ],
)
def test_as_many_iterations_as_scipy(name, which, preconditioned):
    if which in ("airfoil", "unit_square"):
        pytest.importorskip("pyamg")
    A = MATRICES[which]()
    b, inverse = A @ normal((A.shape[0],)), 1 / A.diagonal()  # unit_square is singular
    host = scipy.sparse.diags_array(inverse.numpy())
    M = {"M": lambda r: inverse * r} if preconditioned else {}
    N = {"M": host} if preconditioned else {}
    for rtol in (1e-5, 1e-9):
        mine = getattr(S, name)(A, b, rtol=rtol, **M)
        theirs = scipy_count(name, A.to_scipy(), b.numpy(), rtol=rtol, **N)
        assert mine.converged
        # BiCGSTAB is sensitive to rounding: late in a solve the two differ by more.
        slack = theirs // 20 if name == "bicgstab" and rtol < 1e-5 else 1
        assert abs(mine.iterations - theirs) <= slack


@pytest.mark.parametrize("damp", [0.0, 0.3])
@pytest.mark.parametrize("name", RECTANGULAR)
def test_least_squares_as_scipy(name, damp):
    A, b = tall(60, 40), normal((60,))
    for tol in (1e-6, 1e-10):
        mine = run(name, A, b, tol=tol, damp=damp, maxiter=400)
        limit = {"iter_lim": 400} if name == "lsqr" else {"maxiter": 400}
        theirs = getattr(scipy.sparse.linalg, name)(
            A.to_scipy(), b.numpy(), damp=damp, atol=tol, btol=tol, **limit
        )
        assert mine.converged
        assert abs(mine.iterations - theirs[2]) <= 2
        x = dense_solution(name, A.to_dense(), b, damp)
        assert torch.linalg.vector_norm(mine.x - x) <= 1e3 * tol * torch.linalg.vector_norm(x)
        D = A.to_dense()
        r = b - D @ mine.x
        torch.testing.assert_close(mine.residual_norms[-1], (r @ r + damp**2 * mine.x @ mine.x).sqrt())
        torch.testing.assert_close(
            mine.normal_residual_norm, (D.T @ r - damp**2 * mine.x).norm(), rtol=1e-6, atol=1e-12
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
def test_solution_and_history(name, shape, dtype):
    A = matrix(name).to(dtype)
    m = A.shape[0]
    b = normal((*shape[:-1], m, *shape[-1:]), dtype)
    tol = 1e-10 if dtype == torch.float64 else 1e-5
    solution = run(name, A, b, tol=tol)
    assert solution.converged, solution.summary()
    D = A.to_dense().double()
    x = dense_solution(name, D, b.double() if b.dim() > 1 else b.double()[:, None])
    x = x if b.dim() > 1 else x.squeeze(-1)
    torch.testing.assert_close(solution.x.double(), x, rtol=300 * tol, atol=300 * tol)
    assert solution.residual_norms.shape == (*shape[:-1], solution.iterations + 1, *shape[-1:])
    axis = 0 if b.dim() == 1 else -2
    r = b.double() - (D @ solution.x.double())
    torch.testing.assert_close(
        solution.residual_norms.select(axis if b.dim() > 1 else -1, -1).double(),
        r.norm(dim=axis),
        rtol=1e-4,
        atol=10 * tol,
    )
    assert len(solution.statuses) == max(1, int(np.prod(shape)))


@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
def test_every_norm_of_the_history_is_that_of_its_iterate(name):
    A = matrix(name)
    b = normal((A.shape[0], 2))
    iterates = []
    solution = run(name, A, b, tol=1e-8, callback=lambda at: iterates.append(at))
    assert [at.iteration for at in iterates] == list(range(1, solution.iterations + 1))
    for at, norm in zip(iterates, solution.residual_norms[1:], strict=True):
        torch.testing.assert_close((b - A @ at.x).norm(dim=0), norm, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(at.residual_norm, norm, rtol=0, atol=0)


@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
def test_columns_stop_on_their_own(name):
    """A column's iterates are the same whatever its neighbours do."""
    A = matrix(name)
    easy = (A @ torch.eye(A.shape[1], dtype=A.dtype))[:, :1]
    b = torch.cat((normal((A.shape[0], 1)), 0 * easy, easy), dim=1)
    together = run(name, A, b, tol=1e-9)
    for i in range(3):
        alone = run(name, A, b[:, i], tol=1e-9)
        own = together.residual_norms[: alone.iterations + 1, i]
        torch.testing.assert_close(own, alone.residual_norms, rtol=1e-6, atol=1e-13)
        torch.testing.assert_close(together.x[:, i], alone.x, rtol=1e-7, atol=1e-10)
        # Afterwards nothing moves.
        assert bool((together.residual_norms[alone.iterations :, i] == own[-1]).all())
    assert bool((together.x[:, 1] == 0).all())


@pytest.mark.parametrize("name", SQUARE)
def test_values_in_batches(name):
    A = matrix(name)
    batch = ls.CSR(torch.stack([A.values, 2 * A.values]), A.pattern)
    b = normal((16, 2))
    x = run(name, batch, b).x
    torch.testing.assert_close(x, torch.stack([run(name, A, b).x, run(name, A, b).x / 2]))


@pytest.mark.parametrize("name", SYMMETRIC)
def test_preconditioners_of_every_kind(name):
    A, b = poisson(8, 8), normal((64,))
    inverse = 1 / A.diagonal()
    as_csr = ls.CSR.from_scipy(scipy.sparse.csr_array(scipy.sparse.diags_array(inverse.numpy())))
    kinds = (lambda r: inverse * r, as_csr, scipy.sparse.linalg.aslinearoperator(as_csr.to_scipy()))
    counts = {getattr(S, name)(A, b, M=M).iterations for M in kinds}
    assert len(counts) == 1


def test_flexible_methods_take_a_nonlinear_preconditioner():
    A, b = poisson(16, 16), normal((256,))

    def inner(r):  # a few steps towards A^-1 r, as many as r needs
        return S.cg(A, r, rtol=0.3).x

    plain = S.cg(A, b, rtol=1e-8).iterations
    for name in ("fcg", "fgmres"):
        solution = getattr(S, name)(A, b, rtol=1e-8, M=inner)
        assert solution.converged
        assert solution.iterations < plain / 2


@pytest.mark.parametrize("name", ["minres", *ANY])
def test_a_indefinite(name):
    d = torch.cat((torch.linspace(-3, -1, 8), torch.linspace(1, 2, 8))).double()
    Q = torch.linalg.qr(normal((16, 16)))[0]
    A = ls.CSR.from_dense(Q @ torch.diag(d) @ Q.T)
    solution = run(name, A, normal((16,)), tol=1e-9)
    assert solution.converged


def test_restart_changes_gmres():
    A, b = convection(12, 12), normal((144,))
    counts = [S.gmres(A, b, restart=r).iterations for r in (2, 10, 200)]
    assert counts[0] > counts[1] > counts[2]


def test_scipy_solves_with_our_operator():
    A, b = poisson(8, 8), normal((64,)).numpy()
    L = A.to_scipy_linear_operator()
    x, info = scipy.sparse.linalg.cg(L, b, rtol=1e-10)
    assert info == 0
    torch.testing.assert_close(torch.from_numpy(x), S.cg(A, torch.from_numpy(b), rtol=1e-10).x)
    T, X = tall(), normal((8, 3)).numpy()
    L, H = T.to_scipy_linear_operator(), T.to_scipy()
    assert L.dtype == np.float64
    np.testing.assert_allclose(L.rmatmat(X), H.T @ X, rtol=1e-12)
    np.testing.assert_allclose(L.rmatvec(X[::-1, 0]), H.T @ X[::-1, 0], rtol=1e-12)
    np.testing.assert_allclose(L.matvec(1j * X[:5, 0]), H @ (1j * X[:5, 0]), rtol=1e-12)
    np.testing.assert_allclose((L.T @ X), H.T @ X, rtol=1e-12)
    with pytest.raises(ValueError, match="to_scipy_linear_operator: needs one matrix"):
        T.with_values(T.values.expand(2, -1)).to_scipy_linear_operator()
