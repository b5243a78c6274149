"""The spectral radius against closed forms, dense eigenvalues and dense autograd."""

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from solvers.cases import convection

import learnsolve as ls
from learnsolve.analysis import ErrorPropagator, spectral_radius

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
    assert torch.autograd.gradcheck(ours, (v, w), check_forward_ad=True, fast_mode=True)
    torch.testing.assert_close(
        torch.func.grad(ours)(v.detach(), w.detach()), expected[0], rtol=1e-7, atol=1e-9
    )
    (g,) = torch.autograd.grad(ours(v, w), w, create_graph=True)
    with pytest.raises(NotImplementedError, match="spectral_radius: has first derivatives only"):
        g.sum().backward()
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


def test_the_weight_of_jacobi_learns_its_optimum():
    """2 / (lmin + lmax) of D^-1 A, where two eigenvalues have one modulus: a kink."""
    A = ls.problems.poisson((8, 8), stencil="q1")
    M = ls.preconditioners.Jacobi(A)
    ends = ls.analysis.extreme_eigenvalues(A, M)
    best = 2 / (ends.smallest + ends.largest)
    weight = torch.tensor(0.3, dtype=F64, requires_grad=True)
    for k in range(60):
        rho = spectral_radius(ErrorPropagator(A, M, weight)).value
        (g,) = torch.autograd.grad(rho, weight)
        with torch.no_grad():
            weight -= 0.5 * 0.88**k * g.sign()
    assert abs(weight.detach() - best) < 2e-3
    kappa = ends.largest / ends.smallest
    assert abs(rho.detach() - (kappa - 1) / (kappa + 1)) < 5e-3


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

    def _columns(self, R):
        return R.abs()


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda A: spectral_radius(lambda x: x), ValueError, "pass n="),
        (lambda A: spectral_radius(lambda x: x + 1, 10), ValueError, r"E must be linear, got E\(0\)"),
        (lambda A: spectral_radius(lambda X: X**2, 10), ValueError, r"linear, got E\(x - 2 y\) that differs"),
        (lambda A: spectral_radius(lambda X: X.relu(), 10), ValueError, r"linear, got E\(x - 2 y\)"),
        (lambda A: spectral_radius(A, rtol="a"), TypeError, "rtol must be a number, got str"),
        (lambda A: spectral_radius(A, rtol=torch.inf), ValueError, "finite and not negative, got inf"),
        (lambda A: ErrorPropagator(A, weight="0.5"), TypeError, "weight must be a number"),
        (lambda A: ErrorPropagator(A, weight=True), TypeError, "a number or a Tensor, got bool"),
        (lambda A: ErrorPropagator(A)(torch.ones(9, dtype=F64)), ValueError, "X must have shape"),
        (lambda A: ErrorPropagator(A)(torch.ones(10)), TypeError, "X must be torch.float64"),
        (lambda A: spectral_radius(A, method="qr"), ValueError, "method must be one of"),
        (lambda A: spectral_radius(A, maxiter=0), ValueError, "maxiter must be at least 1"),
        (lambda A: spectral_radius(lambda x: x[:3], 10), ValueError, "the result of A must have shape"),
        (lambda A: ErrorPropagator(A, Nonlinear()), ValueError, "Nonlinear is not linear"),
        (lambda A: ErrorPropagator(A, weight=torch.ones(3, dtype=F64)), ValueError, "weight must have shape"),
        (lambda A: ErrorPropagator(A, weight=torch.ones(10)), TypeError, "weight has dtype"),
        (lambda A: ErrorPropagator(A, sweeps=0), ValueError, "sweeps must be at least 1, got 0"),
        (
            lambda A: ErrorPropagator(A, weight=torch.ones(2, 1, dtype=F64), sweeps=2),
            ValueError,
            "sweeps is for one weight, got weights for 2 sweeps; leave it out",
        ),
        (
            lambda A: torch.vmap(lambda v: spectral_radius(A.with_values(v)).value)(A.values.expand(2, -1)),
            NotImplementedError,
            "vmap is not supported",
        ),
    ],
)  # fmt: skip
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call(ls.problems.poisson((10,)))


def test_a_map_that_cannot_be_differentiated_needs_no_transpose_without_gradient():
    A = ls.problems.poisson((300,))
    host = lambda X: torch.from_numpy(A.to_scipy() @ X.detach().numpy())  # noqa: E731
    assert spectral_radius(host, 300, rtol=1e-4).value > 3.9
