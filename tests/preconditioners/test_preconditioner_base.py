"""What every preconditioner shares: checks, transposes, SciPy's form, what solvers require of it."""

import numpy as np
import pytest
import scipy.sparse.linalg as spla
import torch
from reference import normal

import learnsolve as ls
from learnsolve.preconditioners import Jacobi, Preconditioner, Trainable
from learnsolve.solvers.options import KRYLOV

N = 12


class Shift(Preconditioner):
    """r, and its first entry added to the last: linear, not symmetric."""

    def __init__(self, A):
        self.shape, self.depends_on = A.shape, (A.values,)

    def _columns(self, R):
        return torch.cat((R[..., :-1, :], R[..., -1:, :] + R[..., :1, :]), dim=-2)

    def _transposed(self, R):
        return torch.cat((R[..., :1, :] + R[..., -1:, :], R[..., 1:, :]), dim=-2)


class RowSums(Preconditioner):
    """omega times the inverse of the absolute row sums."""

    symmetric = True

    def __init__(self, A, omega=1.0):
        super().__init__(A, omega)
        self.inverse = omega / ls.ops.sum(A.with_values(A.values.abs()), 1)

    def _columns(self, R):
        return self.inverse.unsqueeze(-1) * R


class Times(Preconditioner):
    """Made of nothing but its size and, perhaps, a number that it does not name."""

    symmetric, shape = True, (N, N)

    def __init__(self, number=1.0):
        self.number = number

    def _columns(self, R):
        return self.number * R


class Scale(Trainable):
    symmetric = True

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((N,), 0.5, dtype=torch.float64))
        self.shape = (N, N)

    def _columns(self, R):
        return self.weight.unsqueeze(-1) * R


class Bent(Scale):
    linear = False

    def _columns(self, R):
        return torch.tanh(R)


class Rows:
    """A number for each row, in an attribute: no constructor of the library is called."""

    symmetric = True

    def __init__(self, weight=None):
        self.shape = (N, N)
        self.weight = torch.linspace(0.5, 1, N).double() if weight is None else weight

    def _columns(self, R):
        return self.weight.unsqueeze(-1) * R


class Computed(Rows, Preconditioner):
    pass


class Module(Rows, Trainable):
    pass


class Named(Rows, Trainable):
    def __init__(self, weight=None):
        super().__init__(weight)
        self.depends_on = [self.weight]


class General(Computed):
    symmetric = False

    def _transposed(self, R):
        return self._columns(R)


class Network(torch.nn.Module):
    """A nonlinear M, which says nothing of itself."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.1, dtype=torch.float64))

    def forward(self, r):
        return r + self.scale * torch.tanh(r)


@pytest.fixture
def A():
    return ls.problems.poisson((N,))


def test_vectors_columns_and_batches_agree(A):
    M, R = Shift(A), normal((2, N, 3))
    together = M(R)
    for i in range(2):
        for j in range(3):
            assert torch.equal(together[i, :, j], M(R[i, :, j]))


def test_transpose(A):
    M, x, y = Shift(A), normal((N,), seed=1), normal((N,), seed=2)
    assert torch.allclose(M(x) @ y, x @ M.T(y))
    assert M.T.T is M
    assert Jacobi(A).T.T(x).equal(Jacobi(A)(x))


def test_of_a_nonlinear_one_there_is_no_transpose():
    with pytest.raises(ValueError, match="not linear"):
        _ = Bent().T
    with pytest.raises(ValueError, match="not linear"):
        Bent().to_scipy_linear_operator()


def test_for_scipy(A):
    op, X = Shift(A).to_scipy_linear_operator(), np.random.default_rng(0).standard_normal((N, 2))
    D = op @ np.eye(N)
    assert np.allclose(op @ X, D @ X)
    assert np.allclose(op.rmatvec(X[:, 0]), D.T @ X[:, 0])
    assert np.allclose(op.rmatmat(X), D.T @ X)
    x, info = spla.cg(A.to_scipy_linear_operator(), np.ones(N), M=Jacobi(A).to_scipy_linear_operator())
    assert info == 0
    assert np.allclose(A.to_scipy() @ x, 1)


@pytest.mark.parametrize("M", [Jacobi, lambda A: Scale()], ids=["computed", "learned"])
@pytest.mark.parametrize(
    ("r", "error", "words"),
    [
        (torch.ones(N, dtype=torch.float32), TypeError, "float64"),
        (torch.ones(N + 1, dtype=torch.float64), ValueError, r"shape \(12,\)"),
        (torch.ones(N, N + 1, 2, dtype=torch.float64), ValueError, r"\(\.\.\., 12, k\)"),
        (torch.tensor(1.0, dtype=torch.float64), ValueError, "shape"),
        ([1.0], TypeError, "torch.Tensor"),
    ],
)
def test_bad_operands(A, M, r, error, words):
    with pytest.raises(error, match=words):
        M(A)(r)


def test_a_vector_for_a_batch_of_matrices(A):
    M = Jacobi(A.with_values(A.values.expand(2, -1)))
    with pytest.raises(ValueError, match=r"unsqueeze\(-1\)"):
        M(torch.ones(N, dtype=torch.float64))
    assert M(torch.ones(N, 1, dtype=torch.float64)).shape == (2, N, 1)


@pytest.mark.parametrize("solver", ["cg", "minres"])
def test_solvers_that_need_a_symmetric_one_say_so(A, solver):
    b = torch.ones(N, dtype=torch.float64)
    with pytest.raises(ValueError, match="Shift is not symmetric; use fcg"):
        getattr(ls.solvers, solver)(A, b, M=Shift(A))
    with pytest.raises(ValueError, match="Bent is not linear"):
        getattr(ls.solvers, solver)(A, b, M=Bent(), gradient="unrolled")


def test_the_adjoint_solve_uses_the_transpose(A):
    b = torch.ones(N, dtype=torch.float64, requires_grad=True)
    solution = ls.solvers.gmres(A, b, M=Shift(A), rtol=1e-12)
    solution.x.sum().backward()
    assert b.grad is not None
    assert torch.allclose(b.grad, torch.linalg.solve(A.to_dense(), torch.ones(N, dtype=torch.float64)))


def test_implicit_gradient_with_a_preconditioner_of_the_same_matrix(A):
    A = A.requires_grad_()
    b = torch.ones(N, dtype=torch.float64)
    ls.solvers.cg(A, b, M=Jacobi(A), rtol=1e-12).x.sum().backward()
    with_M = A.values.grad.clone()
    A.values.grad = None
    ls.solvers.cg(A, b, rtol=1e-12).x.sum().backward()
    assert torch.allclose(with_M, A.values.grad)


def test_implicit_gradient_refuses_what_learns_elsewhere(A):
    other = ls.problems.poisson((N,)).requires_grad_()
    b = torch.ones(N, dtype=torch.float64)
    for M in (Jacobi(other), Scale()):
        with pytest.raises(ValueError, match="unrolled"):
            ls.solvers.cg(A, b, M=M)


def test_a_class_of_ones_own_is_made_of_a_matrix(A):
    omega = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    M, R = RowSums(A, omega), normal((2, N, 3))
    assert (M.shape, M.batch_shape, M.dtype, M.T) == (A.shape, torch.Size(), torch.float64, M)
    D = A.to_dense().abs().sum(1)
    assert torch.allclose(M(R), 1.5 * R / D[:, None])
    assert np.allclose(M.to_scipy_linear_operator() @ np.ones(N), 1.5 / D)
    batch = RowSums(A.with_values(torch.stack((A.values, 2 * A.values))))
    assert torch.allclose(batch(R)[1], 0.5 * R[1] / D[:, None])
    b = torch.ones(N, dtype=torch.float64)
    ls.solvers.richardson(A, b, M=M, iterations=3).residual_norms[-1].backward()
    assert omega.grad is not None
    with pytest.raises(ValueError, match="cg: M requires grad"):
        ls.solvers.cg(A, b, M=M)
    with pytest.raises(TypeError, match="RowSums: A must be a CSR, got list"):
        RowSums(A.to_dense().tolist())
    assert torch.equal(RowSums(A.to_dense())(R), RowSums(A)(R))
    with pytest.raises(ValueError, match="RowSums: A must be square"):
        RowSums(A[:5])
    with pytest.raises(ValueError, match="RowSums: A's values must be finite"):
        RowSums(A * float("nan"))


def test_a_class_of_ones_own_that_is_given_no_matrix(A):
    class Forgetful(Preconditioner):
        def __init__(self, A):
            super().__init__()

    for make in (type("Forgetful", (Preconditioner,), {}), lambda: Forgetful(A)):
        with pytest.raises(TypeError, match=r"^Forgetful: A is missing.* call Forgetful\(A\), or, .*super"):
            make()


def test_a_class_of_ones_own_needs_no_matrix(A):
    M, b = Times(), torch.ones(N, dtype=torch.float64, requires_grad=True)
    for dtype in (torch.float32, torch.float64):
        assert M(torch.ones(N, 2, dtype=dtype)).dtype == dtype
    with pytest.raises(ValueError, match=r"Times: r must have shape \(12,\)"):
        M(torch.ones(N + 1))
    with pytest.raises(TypeError, match="Times: has no dtype and device; set depends_on"):
        _ = M.dtype
    assert np.array_equal(M.to_scipy_linear_operator() @ np.ones(N), np.ones(N))
    ls.solvers.cg(A, b, M=M).x.sum().backward()
    assert b.grad is not None
    hidden = Times(torch.tensor(2.0, dtype=torch.float64, requires_grad=True))
    with pytest.raises(ValueError, match="cg: M requires grad"):
        ls.solvers.cg(A, b, M=hidden)


@pytest.mark.parametrize("kind", [Computed, Module, Named, General])
def test_a_class_of_ones_own_works_everywhere(A, kind):
    """Found: AttributeError: 'Module' object has no attribute 'depends_on'."""
    M, b = kind(), torch.ones(N, dtype=torch.float64)
    x = torch.linalg.solve(A.to_dense(), b)
    methods = KRYLOV if M.symmetric else ("bicgstab", "gmres")
    for name in methods:
        learns = b.clone().requires_grad_()
        for gradient in ("implicit", "unrolled"):
            solution = getattr(ls.solvers, name)(A, learns, M=M, rtol=1e-12, gradient=gradient)
            (g,) = torch.autograd.grad(solution.x.sum(), learns)
            assert torch.allclose(solution.x, x), name
            assert gradient == "unrolled" or torch.allclose(g, x), name
    assert torch.allclose(ls.solvers.bicgstab(A, b, M=M.T, rtol=1e-12).x, x)
    evaluated = ls.evaluate(A, b, {"M": M}, solver="gmres", rtol=1e-6, repeats=1)
    assert evaluated.rows[0].converged == 1
    assert np.array_equal(M.to_scipy_linear_operator() @ b.numpy(), M(b).numpy())
    assert (M.dtype, M.device) == (b.dtype, b.device)
    assert torch.equal(ls.preconditioners.Neumann(A, degree=0, M=M)(b), M(b))


@pytest.mark.parametrize("kind", [Computed, Module, Named])
def test_a_tensor_that_requires_grad_is_found_in_a_class_of_ones_own(A, kind):
    weight, b = torch.ones(N, dtype=torch.float64, requires_grad=True), torch.ones(N, dtype=torch.float64)
    with pytest.raises(ValueError, match="cg: M requires grad"):
        ls.solvers.cg(A, b, M=kind(weight))
    ls.solvers.cg(A, b, M=kind(weight), rtol=0, maxiter=3, gradient="unrolled").x.sum().backward()
    assert weight.grad is not None


def test_a_network_is_for_flexible_methods(A):
    """One rule: what needs a symmetric M refuses a module that does not say that it is; the others take it,
    where no gradient of it is asked for that the implicit gradient does not have."""
    network, b = Network(), torch.ones(N, dtype=torch.float64)
    words = (
        r"needs a linear, symmetric M, and a torch.nn.Module, as Network is, .* use fcg .*M.symmetric = True"
    )
    for method in ("cg", "minres"):
        for gradient in ("implicit", "unrolled"):
            with pytest.raises(ValueError, match=f"{method}: {words}"):
                getattr(ls.solvers, method)(A, b, M=network, gradient=gradient)
    with pytest.raises(ValueError, match=f"cg: {words}"):
        ls.solvers.PCG(network)(A, b)
    with pytest.raises(ValueError, match=f"extreme_eigenvalues: {words}"):
        ls.analysis.extreme_eigenvalues(A, network)
    for method in ("fcg", "fgmres"):
        solve = getattr(ls.solvers, method)
        with pytest.raises(
            ValueError, match=r"M requires grad, .*torch.no_grad\(\).*M.requires_grad_\(False\)"
        ):
            solve(A, b, M=network)
        with torch.no_grad():
            assert solve(A, b, M=network).converged
        solve(A, b, M=network, gradient="unrolled").residual_norms[-1].backward()
        assert network.scale.grad is not None
    with pytest.raises(ValueError, match=r"x0 requires grad, .*torch.no_grad\(\), or detach x0 \(x0.detach"):
        ls.solvers.cg(A, b, b.clone().requires_grad_())
    network.requires_grad_(False)
    learns = b.clone().requires_grad_()
    solution = ls.solvers.fcg(A, learns, M=network, rtol=1e-12)
    solution.x.sum().backward()
    assert torch.allclose(learns.grad, torch.linalg.solve(A.to_dense(), b))


def test_what_says_that_it_is_symmetric_is_trusted(A):
    b = torch.ones(N, dtype=torch.float64)
    network = Network().requires_grad_(False)
    network.symmetric = True
    assert ls.solvers.cg(A, b, M=network).iterations > 0
    network.linear = False
    with pytest.raises(ValueError, match=r"cg: .*Network is not linear; use fcg"):
        ls.solvers.cg(A, b, M=network)

    class Callable:
        symmetric = False

        def __call__(self, r):
            return r

    with pytest.raises(ValueError, match=r"minres: .*Callable is not symmetric; use fcg"):
        ls.solvers.minres(A, b, M=Callable())
