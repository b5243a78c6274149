"""Complex systems: what the rows of cases.py do not show. Solutions against dense algebra and SciPy in both
precisions, the choice of `ls.solve`, preconditioners as complex factors, and what refuses by name."""

import re

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from reference import normal
from solvers.cases import close, gradients
from torch.autograd import grad

import learnsolve as ls
from learnsolve.ops.products import combination
from learnsolve.solvers import Status
from learnsolve.solvers.core.operators import dot

S, P = ls.solvers, ls.preconditioners
KH = torch.full((6, 5), 1.1, dtype=torch.float64)
WAVE = ls.problems.helmholtz(KH, boundary="absorbing")
SKEW = torch.sign(WAVE.pattern.col_indices - WAVE.pattern.row_indices)
BASE = ls.problems.poisson((6, 5)) + ls.ops.diag(normal((30,), seed=6).abs())
HERMITIAN = BASE.with_values(BASE.values * (1 + 0.4j * SKEW))
INDEFINITE = HERMITIAN - 3.3 * ls.ops.eye(30, dtype=torch.float64)
SYSTEMS = {"wave": WAVE, "Hermitian": HERMITIAN, "indefinite": INDEFINITE}
TOLERANCE = {torch.complex64: 1e-5, torch.complex128: 1e-11}


def right(*shape: int, dtype: torch.dtype = torch.complex128, seed: int = 0) -> torch.Tensor:
    return torch.complex(normal(shape, seed=seed), normal(shape, seed=seed + 1)).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("name", "system"),
    [
        *(("cg", "Hermitian"), ("fcg", "Hermitian"), ("minres", "Hermitian"), ("minres", "indefinite")),
        *((name, system) for name in ("gmres", "fgmres", "bicgstab", "lsqr", "lsmr") for system in ("wave",)),
    ],
)
def test_solution_status_and_history(name, system, dtype):
    A, tol = SYSTEMS[system].to(dtype), TOLERANCE[dtype]
    key = {"atol": tol, "btol": tol} if name in ("lsqr", "lsmr") else {"rtol": tol}
    key |= {"restart": 40} if "gmres" in name else {}
    for shape in ((30,), (30, 3), (2, 30, 2)):
        b, iterates = right(*shape, dtype=dtype), []
        solution = getattr(S, name)(A, b, right(*shape, dtype=dtype, seed=5), callback=iterates.append, **key)
        assert solution.converged, solution.summary()
        assert (solution.x.dtype, solution.residual_norms.dtype) == (dtype, dtype.to_real())
        expected = torch.linalg.solve(A.to_dense(), b if b.dim() > 1 else b.unsqueeze(1)).reshape(shape)
        close([solution.x], [expected], 1e3 * tol)
        for at in iterates[:: len(iterates) // 3]:
            norm = torch.linalg.vector_norm(b - A @ at.x, dim=-1 if b.dim() == 1 else -2)
            close([at.residual_norm], [norm], 1e4 * tol)
    numpy = getattr(S, name)(A.to_scipy(), right(30, dtype=dtype).numpy(), **key).x
    close([A @ numpy], [right(30, dtype=dtype)], 1e2 * tol)


def test_as_many_iterations_as_scipy():
    """So that no Krylov space is that of twice the unknowns."""
    b, wave, hermitian = right(30), WAVE.to_scipy(), HERMITIAN.to_scipy()
    for name, A, matrix in (("gmres", WAVE, wave), ("bicgstab", WAVE, wave), ("cg", HERMITIAN, hermitian)):
        count, extra = [], {"restart": 30, "callback_type": "pr_norm"} if name == "gmres" else {}
        getattr(scipy.sparse.linalg, name)(
            matrix, b.numpy(), rtol=1e-9, callback=lambda _, count=count: count.append(1), **extra
        )
        ours = getattr(S, name)(A, b, rtol=1e-9, **({"restart": 30} if name == "gmres" else {}))
        assert abs(ours.iterations - len(count)) <= 2, name


def test_the_solver_of_solve():
    for name, word in (("Hermitian", "cg"), ("indefinite", "cg"), ("wave", "bicgstab")):
        A, b = SYSTEMS[name].detach().requires_grad_(), right(30).requires_grad_()
        solution = ls.solve(A, b, rtol=1e-10)
        assert solution.method == "direct"
        (gb,) = grad(solution.x.real.sum(), b)
        close([A.H @ gb], [torch.ones(30, dtype=b.dtype)], 1e-8)
        assert next(ls.solvers.automatic._iterations(A, "auto", torch.inf, 60)).method == word
    assert ls.solve(WAVE, right(30), method="gmres", rtol=1e-9).converged
    assert ls.solve(WAVE, right(30), method=ls.factorize(WAVE)).backend == "direct"


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_fcg_takes_a_diagonal_that_is_not_hermitian(k, dtype):
    """As it takes the same numbers in a CSR and as a function."""
    A, b = HERMITIAN.detach().to(dtype=dtype), right(*([30, k] if k else [30])).to(dtype)
    d = ((normal((30,), seed=4).abs() + 1) * torch.exp(0.2j * normal((30,), seed=5))).to(dtype)
    tol = 1e-4 if dtype is torch.complex64 else 1e-10
    found = [
        S.fcg(A, b, M=M, rtol=tol).x
        for M in (
            P.Diagonal(d),
            ls.ops.diag(d),
            lambda r: d.reshape(-1, *[1] * (r.dim() - 1)) * r,
            P.Jacobi(A.with_values(A.values * (1 + 0.1j))),
        )
    ]
    close(found, len(found) * [torch.linalg.solve(A.to_dense(), b)], 30 * tol)


def test_incomplete_factors_are_the_complex_ones():
    """On a tridiagonal pattern nothing is dropped; pivots may be imaginary where rows can be turned."""
    b = right(30, 2)
    line = torch.diag(normal((30,), seed=3).abs() + 2) + torch.diag(normal((29,)), 1) * 1j
    line = line + line.mH
    for D, factors in (
        (line, (P.IC, P.ILU)),
        (1j * line, (P.ILU,)),
        (line + torch.diag(right(30)), (P.ILU,)),
    ):
        for M in (factor(ls.CSR.from_dense(D)) for factor in factors):
            close([M(b), M.T(b), M.T.T(b)], [torch.linalg.solve(T, b) for T in (D, D.mT, D)], 1e-10)
    A = WAVE.detach().requires_grad_()
    (g,) = grad((P.ILU(A)(b).abs() ** 2).sum(), A.values)
    v = A.values.detach()
    for step in (1e-6, 1e-6j):
        d = right(len(v), seed=9)
        f = [(P.ILU(A.with_values(v + s * step * d))(b).abs() ** 2).sum() for s in (1, -1)]
        slope = (f[0] - f[1]) / 2e-6
        assert abs(float(slope) - float((g.conj() * step / 1e-6 * d).sum().real)) < 1e-5 * g.norm()
    assert S.cg(HERMITIAN, right(30), M=P.IC(HERMITIAN)).iterations < S.cg(HERMITIAN, right(30)).iterations


@pytest.mark.parametrize("kind", ["auto", "lu", "cholesky", "ldlt"])
def test_direct_factors(kind):
    """Determinant and inertia too; a pivot that is not positive is found."""
    A, b = HERMITIAN.detach().requires_grad_(), right(30, 2).requires_grad_()
    F = ls.factorize(A, kind=kind)
    D = A.detach().to_dense().requires_grad_()
    for transpose in (False, True):
        T = D.mT if transpose else D
        ours = grad(F.solve(b, transpose=transpose).real.sum(), (A.values, b))
        theirs = grad(torch.linalg.solve(T, b).real.sum(), (D, b))
        close(ours, (theirs[0][A.pattern.row_indices, A.pattern.col_indices], theirs[1]), 1e-11)
    logs = F.logdet, torch.linalg.slogdet(D)[1]
    close([logs[0].detach()], [logs[1].detach()], 1e-12)
    (theirs,) = grad(logs[1], D)
    close(grad(logs[0], A.values), [theirs[A.pattern.row_indices, A.pattern.col_indices]], 1e-11)
    assert F.inertia.tolist() == [30, 0, 0]
    close([F.T.solve(b), F.T(b)], 2 * [torch.linalg.solve(D.mT, b)], 1e-11)
    close([F.refactorize(2 * A.values).solve(b)], [torch.linalg.solve(2 * D, b)], 1e-11)
    if kind in ("cholesky", "ldlt"):
        with pytest.raises(ValueError, match=f'kind="{kind}" needs a Hermitian matrix'):
            ls.factorize(WAVE, kind=kind)
    if kind == "cholesky":
        with pytest.raises(ValueError, match="not positive definite"):
            ls.factorize(INDEFINITE, kind=kind)


def test_operators():
    """A callable with a complex parameter, and SciPy's, whose adjoint is conjugated."""
    p = torch.tensor(0.3 - 0.2j, dtype=torch.complex128, requires_grad=True)
    b = right(30).requires_grad_()
    call = lambda x: WAVE @ x + p * x  # noqa: E731
    transposed = lambda x: WAVE.T @ x + p * x  # noqa: E731
    x = S.gmres(call, b, parameters=(p,), transpose=transposed, rtol=1e-12, restart=30).x
    dense = torch.linalg.solve(WAVE.to_dense() + p * torch.eye(30, dtype=b.dtype), b)
    w = right(30, seed=7)
    close(grad(x, (p, b), w), grad(dense, (p, b), w), 1e-8)
    A = scipy.sparse.linalg.aslinearoperator(WAVE.to_scipy())
    M = scipy.sparse.linalg.aslinearoperator(np.diag(1 / WAVE.to_scipy().diagonal()))
    ours = S.bicgstab(A, b, M=M, rtol=1e-12).x
    reference = torch.linalg.solve(WAVE.to_dense(), b)
    close(grad(ours, b, w), grad(reference, b, w), 1e-8)
    H = scipy.sparse.linalg.aslinearoperator(HERMITIAN.to_scipy())
    close([HERMITIAN @ S.minres(H, right(30, 2), rtol=1e-11).x], [right(30, 2)], 1e-8)


def test_large_blocks_are_the_same():
    """Beyond the size from which sums go by ordered kernels."""
    n = 160 * 110
    A = ls.problems.helmholtz(KH.new_full((160, 110), 0.9), shift=1 + 4j)
    for solver, mode, k in ((S.gmres, "unrolled", 1), (S.bicgstab, "implicit", 2)):
        b, w = right(n, k).requires_grad_(), right(n, k, seed=3)
        x = solver(A, b, rtol=1e-7, gradient=mode).x
        (g,) = grad((x.conj() * w).sum().real, b)
        close([A @ x, A.H @ g], [b, w], 1e-5)
        V, h = right(3, n, k), right(3, 1, k)
        sums = (V.conj() * w).sum(-2, keepdim=True), (h * V).sum(0)
        close([dot(V, w), combination(h, V)], sums, 1e-9)


REAL = right(30).real
REFUSED = [  # a complex argument alone: tests/properties/test_public_calls.py
    (lambda: S.gmres(WAVE, right(30), null_space="constants"), "null_space takes no complex values"),
    (lambda: S.gmres(WAVE, REAL), "b has dtype torch.float64, the matrix torch.complex128"),
    (lambda: ls.ops.spsolve(WAVE, REAL), "b has dtype torch.float64, the matrix torch.complex128"),
    (lambda: S.lsqr(BASE, right(30)), "b has dtype torch.complex128, the matrix torch.float64"),
    (lambda: ls.solve(BASE, right(30)), "b has dtype torch.complex128, the matrix torch.float64"),
    (lambda: S.gmres(torch.real, right(30)), "the result of A must be torch.complex128"),
    (lambda: S.cg(torch.real, right(30)), "the result of A has dtype torch.float64"),
    (lambda: S.cg(HERMITIAN, right(30), right(3)), "x0 must have b's shape (30,), got (3,)"),
    (lambda: S.minres(HERMITIAN, right(20)), "b must have A.shape[0] = 30 rows"),
    (lambda: P.IC(INDEFINITE - 9 * ls.ops.eye(30)), "two rows for each row of A"),
    (lambda: S.gmres(ls.BlockBatch([WAVE, WAVE]), right(60)), "takes no complex BlockBatch"),
    (lambda: S.cg(HERMITIAN, right(30), M=P.Jacobi(WAVE)), "needs a linear, symmetric M"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refused(call, message):
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=re.escape(message)):
        call()


def test_a_failure_is_named():
    assert S.cg(INDEFINITE, right(30), throw=False).status is not Status.CONVERGED
    bad = WAVE.with_values(WAVE.values * torch.nan)
    assert S.gmres(bad, right(30)).status is Status.NON_FINITE
    with pytest.raises(ValueError, match="singular"):
        ls.factorize(WAVE.with_values(WAVE.values * 0))


def test_cg_is_part_of_a_graph():
    def x(v, b):
        return S.cg(HERMITIAN.with_values(v), b, rtol=1e-10).x

    inputs = HERMITIAN.values, right(30)
    traced = torch.compile(x, fullgraph=True, backend="eager")
    close(gradients(traced, *inputs), gradients(x, *inputs), 1e-9)
