"""Lanczos, condition numbers and spectral radii against closed forms, dense eigenvalues and loops."""

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
from learnsolve.analysis import (
    ErrorPropagator,
    condition_number,
    extreme_eigenvalues,
    spectral_radius,
    spectrum,
)

F64 = torch.float64
METHODS = ("dense", "arnoldi")


def jacobi_poisson(shape, weight):
    A = ls.problems.poisson(shape)
    return ErrorPropagator(A, ls.preconditioners.Jacobi(A), weight)


def dense_radius(E: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvals(E).abs().max()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("shape", "weight"), [((30,), 2 / 3), ((8, 9), 1.0), ((6, 7), 1.3), ((40, 41), 0.9)], ids=str
)
def test_jacobi_on_poisson_in_closed_form(method, shape, weight):
    options = {} if len(shape) > 1 and shape[0] == 40 else {"method": method}  # for large ones by default
    found = spectral_radius(jacobi_poisson(shape, weight), **options)
    spectrum = 1 - weight * ls.problems.PROPERTIES["poisson"].eigenvalues(shape) / (2 * len(shape))
    assert found.converged
    assert abs(found.value - spectrum.abs().max()) <= found.error + 1e-12
    assert found.error < 1e-5


def complex_case() -> ls.CSR:
    """Its dominant eigenvalues are a complex pair."""
    A = convection(5, 6, speed=1.3)
    value = np.linalg.eigvals(A.to_scipy().toarray())
    assert abs(value[np.abs(value).argmax()].imag) > 0.1
    return A


@pytest.mark.parametrize("method", METHODS)
def test_gradients(method):
    A = complex_case()
    n = A.shape[0]
    w = torch.linspace(0.6, 0.9, n, dtype=F64, requires_grad=True)
    v = A.values.clone().requires_grad_()

    def ours(v, w):
        B = A.with_values(v)
        return spectral_radius(
            ErrorPropagator(B, ls.preconditioners.Jacobi(B), w), method=method, rtol=1e-12
        ).value

    def theirs(v, w):
        D = A.with_values(v).to_dense()
        return dense_radius(torch.eye(n, dtype=F64) - (w / D.diagonal())[:, None] * D)

    expected = torch.autograd.grad(theirs(v, w), (v, w))
    torch.testing.assert_close(ours(v, w), theirs(v, w))
    torch.testing.assert_close(torch.autograd.grad(ours(v, w), (v, w)), expected, rtol=1e-7, atol=1e-9)
    # The matrix itself, a pair that is complex.
    B = A.with_values(v)
    expected = torch.autograd.grad(dense_radius(B.to_dense()), v)
    torch.testing.assert_close(
        torch.autograd.grad(spectral_radius(B, method=method, rtol=1e-12).value, v),
        expected,
        rtol=1e-7,
        atol=1e-9,
    )


def test_a_defective_rest_does_no_harm():
    """Gauss-Seidel's propagator has a multiple, defective eigenvalue 0 beside the dominant one."""
    A = ls.problems.poisson((12,))
    v = A.values.clone().requires_grad_()

    def propagate(X):
        B = A.with_values(v)
        return X - ls.ops.sptrsv(B.tril(), B @ X)

    found = spectral_radius(propagate, 12)
    assert abs(found.value.detach() - np.cos(np.pi / 13) ** 2) < 1e-9
    (g,) = torch.autograd.grad(found.value, v)
    step = 1e-6 * torch.randn(A.nnz, dtype=F64)
    values = []
    for sign in (1, -1):
        D = A.with_values(A.values + sign * step).to_dense()
        values.append(dense_radius(torch.eye(12, dtype=F64) - torch.linalg.solve(D.tril(), D)))
    assert abs((values[0] - values[1]) / 2 - g @ step) < 1e-4 * abs(g @ step) + 1e-11


def test_several_sweeps():
    A = complex_case()
    n = A.shape[0]
    weights = torch.tensor([[0.4], [0.9], [0.6]], dtype=F64)
    D = torch.eye(n, dtype=F64) - (w_D := A.to_dense() / A.diagonal()[:, None]) * weights[0]
    for w in weights[1:]:
        D = (torch.eye(n, dtype=F64) - w * w_D) @ D
    E = ErrorPropagator(A, ls.preconditioners.Jacobi(A), weights)
    torch.testing.assert_close(E(torch.eye(n, dtype=F64)), D)
    torch.testing.assert_close(spectral_radius(E).value, dense_radius(D))
    # It is what the solver does to the error.
    x = torch.linspace(0, 1, n, dtype=F64)
    after = ls.solvers.jacobi(A, A @ x, weight=weights, iterations=3).x
    torch.testing.assert_close(x - after, (D @ x))


@pytest.mark.parametrize("cycle", ["V", "W", "F"])
@pytest.mark.parametrize("smoother", ["jacobi", "gauss_seidel"])
def test_sweeps_of_multigrid(smoother, cycle):
    """As one operation, and one after another."""
    A, H = ls.problems.poisson((15, 15)), ls.preconditioners.Hierarchy.linear((15, 15))
    values = [t.values.clone().requires_grad_() for t in (A, *H.prolongations)]
    A = A.with_values(values[0])
    H = H.with_prolongations([P.with_values(v) for P, v in zip(H.prolongations, values[1:], strict=True)])
    M = ls.preconditioners.AMG(A, hierarchy=H, cycle=cycle, smoother=smoother, presweeps=2, symmetric=True)
    x = torch.linspace(-1, 1, 450, dtype=F64).reshape(225, 2)
    results, y = [ErrorPropagator(A, M, sweeps=3)(x)], x
    for _ in range(3):
        y = y - M(A @ y)
    results += [y, ErrorPropagator(A, M, torch.ones(3, 1, dtype=F64))(x)]
    results += [ErrorPropagator(A, M, torch.ones((), dtype=F64), sweeps=3)(x)]
    gradients = [torch.autograd.grad(r.square().sum(), values, retain_graph=True) for r in results]
    for r, g in zip(results[1:], gradients[1:], strict=True):
        torch.testing.assert_close(r, results[0])
        torch.testing.assert_close(g, gradients[0])


def test_a_cycle_goes_on_with_the_matrix_that_it_was_made_of():
    A = ls.problems.poisson((15, 15))
    M = ls.preconditioners.AMG(A, hierarchy=ls.preconditioners.Hierarchy.linear((15, 15)), weight=2 / 3)
    E, X = ErrorPropagator(A, M), torch.ones(225, dtype=F64)
    E(X)
    A.values.mul_(2)
    torch.testing.assert_close(E(X), X - M(A @ X))


@pytest.mark.parametrize("shape", [(), (12,), (2, 1), (3, 12)], ids=str)
def test_the_error_of_a_vector_is_a_vector(shape):
    A = ls.problems.poisson((3, 4))
    E = ErrorPropagator(A, ls.preconditioners.Jacobi(A), torch.rand(shape, dtype=F64))
    D = E(torch.eye(12, dtype=F64))
    x = torch.randn(2, 12, 3, dtype=F64)
    assert E(x[0, :, 0]).shape == (12,)
    torch.testing.assert_close(E(x[0, :, 0]), D @ x[0, :, 0])
    torch.testing.assert_close(E(x), D @ x)


@pytest.mark.parametrize("method", METHODS)
def test_of_a_stencil_operator(method):
    stencil = torch.tensor([[0.0, -1, 0], [-1.5, 4, -0.5], [0, -1, 0]], dtype=F64, requires_grad=True)
    A = ls.ops.StencilOperator(stencil, (5, 6))
    D = A.to_csr().to_dense().detach()
    torch.testing.assert_close(spectral_radius(A, method=method).value, dense_radius(D), rtol=1e-5, atol=0)
    torch.testing.assert_close(
        ErrorPropagator(A, None, 0.2)(torch.eye(30, dtype=F64)), torch.eye(30) - 0.2 * D
    )
    S = ls.ops.StencilOperator((stencil + stencil.flip(0, 1)) / 2, (5, 6))
    kappas = [ls.analysis.condition_number(M).value for M in (S, S.to_csr())]
    torch.testing.assert_close(*kappas)
    torch.testing.assert_close(
        *(torch.autograd.grad(k, stencil, retain_graph=True)[0] for k in kappas), rtol=1e-6, atol=1e-8
    )


@pytest.mark.filterwarnings("ignore:spectral_radius. Arnoldi did not converge")
def test_a_map_that_is_zero_but_for_rounding_is_linear():
    """An exact preconditioner of an ill-conditioned matrix leaves nothing but noise."""
    A = ls.problems.poisson((400,)).to(torch.float32)
    D = A.to_dense()
    found = spectral_radius(ErrorPropagator(A, lambda R: torch.linalg.solve(D, R)), method="dense")
    assert found.value < 0.5


@pytest.mark.parametrize("method", METHODS)
def test_zero_and_not_finite(method):
    zero = ls.CSR.from_dense(torch.eye(20, dtype=F64))
    zero = zero.with_values(torch.zeros(20, dtype=F64, requires_grad=True))
    found = spectral_radius(zero, method=method)
    assert found.value == 0
    assert found.converged
    found.value.backward()
    assert (zero.values.grad == 0).all()
    bad = ls.problems.poisson((20,))
    bad.values[5] = torch.nan
    with pytest.warns(RuntimeWarning, match="infinities or NaNs"):
        found = spectral_radius(lambda X: bad @ X - 0, 20, method=method)
    assert torch.isnan(found.value)
    assert not found.converged


def test_not_converged_is_told():
    A = ls.problems.poisson((400,))
    with pytest.warns(RuntimeWarning, match="Arnoldi did not converge"):
        found = spectral_radius(ErrorPropagator(A, None, 0.25), method="arnoldi", rtol=1e-12, maxiter=1)
    assert not found.converged
    assert 0.9 < found.value <= 1
    assert found.error > 0


def test_a_defective_dominant_eigenvalue_is_told():
    n = 10
    J = torch.eye(n, dtype=F64) + torch.diag(torch.ones(n - 1, dtype=F64), 1)
    A = ls.CSR.from_dense(J).requires_grad_()
    with pytest.warns(RuntimeWarning, match="nearly orthogonal"):
        spectral_radius(A)


def test_single_precision_and_linear_operators():
    A = complex_case()
    exact = dense_radius(A.to_dense())
    for method in METHODS:
        found = spectral_radius(A.to(torch.float32), method=method)
        assert found.converged
        assert found.value.dtype == torch.float32
        assert abs(found.value - exact) < 2e-3 * exact
        found = spectral_radius(A.to_scipy_linear_operator(), method=method)
        assert abs(found.value - exact) < 1e-6 * exact
        found = spectral_radius(scipy.sparse.linalg.aslinearoperator(A.to_scipy()), method=method)
        assert abs(found.value - exact) < 1e-6 * exact


class Nonlinear(ls.preconditioners.Trainable):
    linear = False

    def __init__(self):
        super().__init__()
        self.shape, self.w = (10, 10), torch.nn.Parameter(torch.ones(1, dtype=F64))

    def mv(self, R):
        return R.abs()


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda A: spectral_radius(lambda x: x), ValueError, "Pass n="),
        (lambda A: spectral_radius(lambda x: x + 1, 10), ValueError, r"E must be linear, got E\(0\)"),
        (lambda A: spectral_radius(lambda X: X**2, 10), ValueError, r"linear, got E\(x - 2 y\) that differs"),
        (lambda A: spectral_radius(lambda X: X.relu(), 10), ValueError, r"linear, got E\(x - 2 y\)"),
        (lambda A: ErrorPropagator(A)(torch.ones(9, dtype=F64)), ValueError, "X must have shape"),
        (lambda A: ErrorPropagator(A)(torch.ones(10)), TypeError, "X must be torch.float64"),
        (lambda A: spectral_radius(lambda x: x[:3], 10), ValueError, "the result of A must have shape"),
        (lambda A: ErrorPropagator(A, Nonlinear()), ValueError, "Nonlinear is not linear"),
        (lambda A: ErrorPropagator(A, weight=torch.ones(3, dtype=F64)), ValueError, "weight must have shape"),
        (
            lambda A: ErrorPropagator(A, weight=torch.ones(2, 1, dtype=F64), sweeps=2),
            ValueError,
            "sweeps is only used by one weight, got .*Remove it",
        ),
        (
            lambda A: torch.vmap(lambda v: spectral_radius(A.with_values(v)).value)(A.values.expand(2, -1)),
            NotImplementedError,
            "vmap is not supported",
        ),
    ],
)  # fmt: skip
def test_errors_of_radii(call, error, match):
    with pytest.raises(error, match=match):
        call(ls.problems.poisson((10,)))


def test_a_map_that_cannot_be_differentiated_needs_no_transpose_without_gradient():
    A = ls.problems.poisson((300,))
    host = lambda X: torch.from_numpy(A.to_scipy() @ X.detach().numpy())  # noqa: E731
    assert spectral_radius(host, 300, rtol=1e-4).value > 3.9


# --- lanczos and the condition number against closed forms and dense eigenvalues ---


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

    def mv(self, R):
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
    L = ls.ops.ic(A).L
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


def test_gradients_of_lanczos():
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

    # Against autograd through dense eigenvalues.
    dense = lambda v, d: torch.linalg.eigvalsh(d.sqrt()[:, None] * symmetric(A, v).to_dense() * d.sqrt())  # noqa: E731
    for i, at in ((0, 0), (1, -1)):
        ours = torch.autograd.grad(eigenvalues(v, d)[i], (v, d))
        theirs = torch.autograd.grad(dense(v, d)[at], (v, d))
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    # A Trainable preconditioner.
    M = Diagonal(d.detach().clone())
    condition_number(A, M).value.backward()
    expected = torch.autograd.grad(eigenvalues(A.values, d)[2], d)[0]
    torch.testing.assert_close(M.d.grad, expected, rtol=1e-8, atol=1e-10)


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
        (lambda A: extreme_eigenvalues(lambda x: x), ValueError, "Pass n="),
        (lambda A: extreme_eigenvalues(A, n=3), ValueError, "n is only used by a callable A"),
        (lambda A: extreme_eigenvalues(A, dtype=torch.float32), ValueError, "dtype is only used by a"),
        (lambda A: extreme_eigenvalues(A.with_values(A.values.expand(0, -1))), ValueError, "empty batch"),
        (lambda A: extreme_eigenvalues(A[:0, :0]), ValueError, "no rows"),
    ],
)  # fmt: skip
def test_errors(call, error, match):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error, match=match):
            call(varied())


# --- batches of matrices and preconditioners ---


P = ls.preconditioners


def family(shape: tuple[int, ...], side: int = 5) -> ls.CSR:
    """Symmetric positive definite, with simple eigenvalues."""
    A = ls.problems.poisson((side, side + 1))
    generator = torch.Generator().manual_seed(3)
    scale = 1 + torch.rand(*shape, A.shape[0], dtype=F64, generator=generator)
    batch = A.with_values(A.values.expand(*shape, -1))
    return batch.scale_rows(scale).scale_columns(scale)


def members(A: ls.CSR, v: torch.Tensor) -> list[ls.CSR]:
    return [A.with_values(values) for values in v.reshape(-1, A.nnz)]


HIERARCHY = P.AMG(ls.problems.poisson((5, 6)), max_coarse=10, smoother="jacobi").hierarchy


def two_grid(A: ls.CSR) -> P.AMG:
    return P.AMG(A, hierarchy=HIERARCHY, weight=0.6)


CALLS = {
    "radius, dense": lambda A: spectral_radius(ErrorPropagator(A, P.Jacobi(A), 0.7), method="dense"),
    "radius, Arnoldi": lambda A: spectral_radius(
        ErrorPropagator(A, P.Jacobi(A), 0.7), method="arnoldi", rtol=1e-12
    ),
    "radius, two grids": lambda A: spectral_radius(ErrorPropagator(A, two_grid(A))),
    "condition": lambda A: condition_number(A, rtol=1e-12),
    "condition, two grids": lambda A: condition_number(A, two_grid(A), rtol=1e-12),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", [(3,), (2, 1)], ids=str)
def test_equal_to_a_loop(name, shape):
    A, call = family(shape), CALLS[name]
    v, w = (A.values.clone().requires_grad_() for _ in "vw")
    found = call(A.with_values(v))
    loop = [call(B) for B in members(A, w)]
    assert found.value.shape == found.error.shape == torch.Size(shape)
    assert found.converged is True
    torch.testing.assert_close(found.value.reshape(-1), torch.stack([e.value for e in loop]))
    bounds = torch.stack([e.error for e in loop])
    torch.testing.assert_close(found.error.reshape(-1), bounds, rtol=0.1, atol=1e-11)
    weights = torch.linspace(1, 2, v.shape[:-1].numel(), dtype=F64)
    (found.value.reshape(-1) * weights).sum().backward()
    sum(c * e.value for c, e in zip(weights, loop, strict=True)).backward()
    torch.testing.assert_close(v.grad, w.grad, rtol=1e-6, atol=1e-8)


def test_a_batch_of_preconditioners_for_one_matrix():
    A = family(())
    d = torch.linspace(0.5, 1.5, 2 * A.shape[0], dtype=F64).reshape(2, -1)
    kappa = condition_number(A, P.Diagonal(d)).value
    radius = spectral_radius(ErrorPropagator(A, P.Diagonal(d), 0.1)).value
    for i in range(2):
        torch.testing.assert_close(kappa[i], condition_number(A, P.Diagonal(d[i])).value)
        one = spectral_radius(ErrorPropagator(A, P.Diagonal(d[i]), 0.1)).value
        torch.testing.assert_close(radius[i], one)


def test_one_matrix_that_is_not_finite_or_singular():
    A = family((2,))
    v = A.values.clone()
    v[1, 0] = torch.inf
    v.requires_grad_()
    with pytest.warns(RuntimeWarning, match="matrix 1 of the batch"):
        found = spectral_radius(A.with_values(v))
    assert not found.converged
    assert found.value[0] == spectral_radius(A.with_values(v.detach()[0])).value
    assert found.value[1].isnan()
    with pytest.warns(RuntimeWarning, match="matrix 1 of the batch"):
        assert extreme_eigenvalues(A.with_values(v)).smallest.isnan().tolist() == [False, True]
    singular = torch.stack((A.values[0], torch.zeros_like(A.values[0])))
    with pytest.warns(RuntimeWarning, match="of matrix 1 of the batch, may be zero"):
        kappa = condition_number(A.with_values(singular.requires_grad_())).value
    assert kappa.isinf().tolist() == [False, True]
    kappa[0].backward()
    assert singular.grad.isfinite().all()


def test_shapes_are_checked():
    A = family((2,))
    E = ErrorPropagator(A, P.Jacobi(A))
    assert E.batch_shape == (2,)
    with pytest.raises(ValueError, match=r"for a batch of shape \(2,\) X must have shape"):
        E(torch.ones(30, dtype=F64))
    with pytest.raises(ValueError, match="batch axes of A and M must broadcast"):
        ErrorPropagator(A, P.Jacobi(family((3,))))
    with pytest.raises(ValueError, match="empty batch"):
        spectral_radius(family((0,)))
