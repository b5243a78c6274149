"""Lanczos and the condition number against closed forms and dense eigenvalues."""

import os
import signal
import time
import warnings

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from solvers.cases import convection

import learnsolve as ls
from learnsolve.analysis import condition_number, extreme_eigenvalues, spectrum

F64 = torch.float64
exact_poisson = ls.problems.PROPERTIES["poisson"].eigenvalues


def varied(side: int = 6) -> ls.CSR:
    """Symmetric positive definite with simple eigenvalues and a diagonal that is not constant."""
    S = ls.problems.poisson((side, side + 1)).to_scipy()
    d = scipy.sparse.diags_array(np.linspace(1, 2, S.shape[0]))
    return ls.CSR.from_scipy(scipy.sparse.csr_array(d @ S @ d))


def symmetric(A: ls.CSR, values: torch.Tensor) -> ls.CSR:
    """Its symmetric part, so that numerical differences stay within symmetric matrices."""
    return A.with_values(0.5 * (values + values[A.pattern.transpose_permutation.long()]))


@pytest.mark.parametrize("size", [1e-310, 1e-200, 1.0, 1e200])
@pytest.mark.parametrize("k", [1, 2, 40])
def test_ritz_values_of_every_size(k, size):
    alpha, beta = (size * torch.rand(k, dtype=F64, generator=torch.Generator().manual_seed(0)) for _ in "ab")
    V = torch.eye(k, dtype=F64)
    ends = spectrum._ends(V, V, alpha.tolist(), beta.tolist(), float(beta[-1]), 0.0, 1e-6)
    T = (torch.diag(alpha) + torch.diag(beta[:-1], 1) + torch.diag(beta[:-1], -1)) / size
    values, vectors = torch.linalg.eigh(T)
    torch.testing.assert_close(ends.theta / size, values[[0, -1]], rtol=0, atol=1e-13)
    torch.testing.assert_close(ends.u.abs(), vectors[:, [0, -1]].abs(), rtol=0, atol=1e-11)


@pytest.mark.skipif(os.name != "posix", reason="needs a timer that sends signals")
def test_many_steps_hear_an_interrupt():
    """All Ritz pairs of 3000 steps would take seconds, in one call."""

    def interrupt(*_):
        raise KeyboardInterrupt

    def steps():
        while True:
            spectrum._ends(V, V, alpha, beta, 1.0, 0.0, 1e-6)

    k = 3000
    alpha, beta, V = torch.rand(k, dtype=F64).tolist(), torch.rand(k, dtype=F64).tolist(), torch.zeros(k, 1)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    begin = time.perf_counter()
    try:
        with pytest.raises(KeyboardInterrupt):
            steps()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.perf_counter() - begin < 1


class Diagonal(ls.preconditioners.Trainable):
    symmetric = True

    def __init__(self, d: torch.Tensor):
        super().__init__()
        self.shape = (len(d), len(d))
        self.d = torch.nn.Parameter(d)

    def _columns(self, R):
        return self.d.unsqueeze(-1) * R


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (40,), (9, 11), (5, 6, 4), (70, 70)], ids=str)
def test_poisson_in_closed_form(shape):
    found = extreme_eigenvalues(ls.problems.poisson(shape), steps=300)
    exact = exact_poisson(shape)
    assert found.converged
    assert abs(found.smallest - exact[0]) <= found.errors[0]
    assert abs(found.largest - exact[-1]) <= found.errors[1]
    assert found.errors[0] <= 1e-6 * exact[0]
    assert found.errors[1] <= 1e-6 * exact[-1]
    kappa = condition_number(ls.problems.poisson(shape), steps=300)
    assert kappa.converged
    assert abs(kappa.value - exact[-1] / exact[0]) <= kappa.error


@pytest.mark.parametrize("steps", [1, 3, 10, 20])
def test_the_errors_are_bounds_before_convergence(steps):
    shape = (30, 30)
    exact = exact_poisson(shape)
    with pytest.warns(RuntimeWarning, match="extreme_eigenvalues: after"):
        found = extreme_eigenvalues(ls.problems.poisson(shape), steps=steps)
    assert not found.converged
    assert found.steps == steps
    for theta, error in zip((found.smallest, found.largest), found.errors, strict=True):
        assert (exact - theta).abs().min() <= error
    # Ritz values lie inside the spectrum.
    assert exact[0] <= found.smallest <= found.largest <= exact[-1]


@pytest.mark.parametrize("kind", ["Jacobi", "matrix", "factor", "operator"])
def test_preconditioned(kind):
    A = varied()
    D = A.to_dense()
    n = A.shape[0]
    L = ls.ops.ic0(A).L
    G = torch.diag(torch.linspace(1, 3, n, dtype=F64)) + 0.1
    solve = ls.ops.sptrsv
    M, dense = {
        "Jacobi": (ls.preconditioners.Jacobi(A), torch.diag(1 / D.diagonal())),
        "matrix": (ls.CSR.from_dense(G), G),
        "factor": (
            lambda r: solve(L, solve(L, r), transpose=True),
            torch.linalg.inv(L.to_dense() @ L.to_dense().T),
        ),
        "operator": (scipy.sparse.linalg.aslinearoperator(G.numpy()), G),
    }[kind]
    exact = torch.linalg.eigvals(dense @ D).real.sort().values
    found = extreme_eigenvalues(A, M)
    assert found.converged
    torch.testing.assert_close(
        torch.stack((found.smallest, found.largest)), exact[[0, -1]], rtol=1e-10, atol=0
    )
    kappa = condition_number(A, M)
    assert abs(kappa.value - exact[-1] / exact[0]) <= kappa.error + 1e-12
    torch.manual_seed(2)
    with torch.inference_mode():  # the same bits in every call
        assert extreme_eigenvalues(A, M)[:2] == found[:2]
        assert condition_number(A, M).value == kappa.value


def test_indefinite_and_semidefinite():
    A = ls.problems.poisson((12,))
    shifted = A - ls.ops.eye(12, dtype=F64) * 1.0
    exact = exact_poisson((12,)) - 1
    found = extreme_eigenvalues(shifted)
    assert abs(found.smallest - exact[0]) <= found.errors[0] <= 1e-12
    with pytest.raises(
        ValueError, match=r"condition_number: A must be positive definite, got an eigenvalue -0.9"
    ):
        condition_number(shifted)
    ring = ls.CSR.from_dense(
        2 * torch.eye(9, dtype=F64) - torch.eye(9, dtype=F64).roll(1, 0) - torch.eye(9, dtype=F64).roll(-1, 0)
    )
    assert extreme_eigenvalues(ring).converged
    with pytest.warns(RuntimeWarning, match="singular"):
        kappa = condition_number(ring)
    assert kappa.value == torch.inf
    assert not kappa.converged


@pytest.mark.parametrize("matrix", ["identity", "zero", "few eigenvalues"])
def test_a_small_krylov_space(matrix):
    d = {"identity": torch.ones(50), "zero": torch.zeros(50), "few eigenvalues": torch.arange(50) % 3 + 1.0}[
        matrix
    ]
    found = extreme_eigenvalues(ls.ops.diag(d.double()))
    assert found.converged
    assert found.steps <= 3
    torch.testing.assert_close(
        torch.stack(found[:2]), torch.stack((d.min(), d.max())).double(), rtol=1e-13, atol=1e-13
    )


def test_single_precision_and_other_operands():
    A = varied()
    exact = torch.linalg.eigvalsh(A.to_dense())
    for operand, keys in (
        (A.to(torch.float32), {}),
        (A.to_scipy_linear_operator(), {}),
        (lambda X: A @ X, {"n": A.shape[0]}),
        (lambda X: A.to(torch.float32) @ X, {"n": A.shape[0], "dtype": torch.float32}),
    ):
        found = extreme_eigenvalues(operand, **keys)
        assert found.converged
        low = keys.get("dtype", getattr(operand, "dtype", F64)) == torch.float32
        assert found.smallest.dtype == (torch.float32 if low else F64)
        for value, reference, error in zip(found[:2], exact[[0, -1]], found.errors, strict=True):
            assert abs(value.double() - reference) <= error.double() + (1e-5 if low else 1e-12)


def test_gradients():
    A = varied(4)
    d = torch.linspace(0.5, 1, A.shape[0], dtype=F64, requires_grad=True)
    v = A.values.clone().requires_grad_()

    def eigenvalues(v, d):
        found = extreme_eigenvalues(symmetric(A, v), lambda R: d.unsqueeze(-1) * R)
        return (
            found.smallest,
            found.largest,
            condition_number(symmetric(A, v), lambda R: d.unsqueeze(-1) * R).value,
        )

    assert torch.autograd.gradcheck(eigenvalues, (v, d), check_forward_ad=True, fast_mode=True)
    # Against autograd through dense eigenvalues.
    dense = lambda v, d: torch.linalg.eigvalsh(d.sqrt()[:, None] * symmetric(A, v).to_dense() * d.sqrt())  # noqa: E731
    for i, at in ((0, 0), (1, -1)):
        ours = torch.autograd.grad(eigenvalues(v, d)[i], (v, d))
        theirs = torch.autograd.grad(dense(v, d)[at], (v, d))
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    # A Trainable preconditioner, and torch.func.
    M = Diagonal(d.detach().clone())
    condition_number(A, M).value.backward()
    expected = torch.autograd.grad(eigenvalues(A.values, d)[2], d)[0]
    torch.testing.assert_close(M.d.grad, expected, rtol=1e-8, atol=1e-10)
    by_func = torch.func.grad(lambda d: eigenvalues(A.values, d)[2])(d.detach())
    torch.testing.assert_close(by_func, expected, rtol=1e-8, atol=1e-10)


def test_second_derivatives_are_refused():
    A = varied(3)
    kappa = torch.ones(A.nnz, dtype=F64, requires_grad=True)
    value = extreme_eigenvalues(A.with_values(A.values * kappa**2)).largest
    (g,) = torch.autograd.grad(value, kappa, create_graph=True)
    with pytest.raises(NotImplementedError, match="extreme_eigenvalues: has first derivatives only"):
        g.sum().backward()


def test_what_is_not_finite_is_told():
    A = varied()
    A.values[3] = torch.nan
    with pytest.warns(RuntimeWarning, match="infinities or NaNs"):
        found = extreme_eigenvalues(A)
    assert not found.converged
    assert torch.isnan(found.smallest)
    assert (found.errors == torch.inf).all()


NOT_SYMMETRIC = convection(6, 7)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda A: extreme_eigenvalues(NOT_SYMMETRIC), ValueError, "must be symmetric"),
        (lambda A: extreme_eigenvalues(A, NOT_SYMMETRIC), ValueError, "must be symmetric|positive definite"),
        (lambda A: extreme_eigenvalues(A, lambda r: -r), ValueError, "M must be positive definite"),
        (lambda A: extreme_eigenvalues(lambda x: x), ValueError, "pass n="),
        (lambda A: extreme_eigenvalues(A, n=3), ValueError, "n is for a callable A"),
        (lambda A: extreme_eigenvalues(A, dtype=torch.float32), ValueError, "dtype is for a callable A"),
        (lambda A: extreme_eigenvalues(A, steps=0), ValueError, "steps must be at least 1"),
        (lambda A: extreme_eigenvalues(A, rtol=-1.0), ValueError, "rtol must be finite and not negative"),
        (lambda A: extreme_eigenvalues(A, rtol="a"), TypeError, "rtol must be a number, got str"),
        (lambda A: condition_number(A, rtol=torch.inf), ValueError, "finite and not negative, got inf"),
        (lambda A: condition_number(A, rtol=torch.nan), ValueError, "finite and not negative, got nan"),
        (lambda A: extreme_eigenvalues(A[:3]), ValueError, "must be square"),
        (lambda A: extreme_eigenvalues(3.0, n=3), TypeError, "A must be a CSR"),
        (lambda A: extreme_eigenvalues(A.with_values(A.values.expand(0, -1))), ValueError, "empty batch"),
        (lambda A: extreme_eigenvalues(A[:0, :0]), ValueError, "no rows"),
    ],
)  # fmt: skip
def test_errors(call, error, match):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error, match=match):
            call(varied())
