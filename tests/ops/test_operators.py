"""`LinearOperator`: a subclass that defines `mv` has all products and all gradients of a solve."""

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

N = 12
F64 = torch.float64


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


class Convolution(ls.LinearOperator):
    """Not symmetric; the diagonal dominates."""

    def mv(self, x, kernel, shift):
        y = torch.nn.functional.conv1d(x.mT.flatten(0, -2).unsqueeze(-2), kernel.reshape(1, 1, -1), padding=1)
        return y.squeeze(-2).reshape(x.mT.shape).mT + shift * x


class Symmetric(Convolution):
    symmetric = True


class Weighted(ls.LinearOperator):
    """Products with the transpose defined, and counted."""

    count = 0

    def mv(self, x, w):
        return torch.cat((w.unsqueeze(-1) * x, x[..., :1, :]), -2)

    def rmv(self, y, w):
        type(self).count += 1
        return w.unsqueeze(-1) * y[..., :-1, :] + torch.cat(
            (y[..., -1:, :], torch.zeros_like(y[..., 2:, :])), -2
        )


KERNEL = torch.tensor([-1.0, 4.0, -0.5], dtype=F64)
SHIFT = torch.tensor(0.3, dtype=F64)
SYMMETRIC = torch.tensor([-1.0, 4.0, -1.0], dtype=F64)


def dense(A: ls.LinearOperator, dtype: torch.dtype = F64) -> Tensor:
    return A @ torch.eye(A.shape[1], dtype=dtype)


def test_products():
    A, x = Convolution((N, N), KERNEL, SHIFT), numbers(N)
    D = dense(A)
    assert (torch.count_nonzero(D), D[0, 1], D[1, 0]) == (3 * N - 2, -0.5, -1)
    torch.testing.assert_close(A @ x, D @ x)
    torch.testing.assert_close(A.T @ x, D.T @ x)
    torch.testing.assert_close(A.T.T @ x, D @ x)
    torch.testing.assert_close(A @ numbers(3, N, 2), D @ numbers(3, N, 2))
    torch.testing.assert_close(A.H @ x, D.T @ x)
    torch.testing.assert_close(x @ A, x @ D)
    torch.testing.assert_close(numbers(3, 2, N) @ A, numbers(3, 2, N) @ D)
    torch.testing.assert_close(A.T(x), D.T @ x)
    assert repr(A) == f"Convolution(shape=({N}, {N}))"


def test_a_product_with_the_transpose_that_is_defined_is_used():
    A = Weighted((N + 1, N), numbers(N))
    D, before = dense(A), Weighted.count
    torch.testing.assert_close(A.T @ numbers(N + 1), D.T @ numbers(N + 1))
    assert (A.T.shape, Weighted.count) == ((N, N + 1), before + 1)
    found = ls.solvers.lsqr(A, numbers(N + 1), btol=1e-13, atol=1e-13).x
    torch.testing.assert_close(found, torch.linalg.lstsq(D, numbers(N + 1).unsqueeze(-1)).solution[:, 0])


def test_the_conjugate_transpose():
    A = Convolution((N, N), KERNEL * (1 + 0.5j), SHIFT + 0.1j)
    D = A @ torch.eye(N, dtype=torch.complex128)
    y = numbers(N, 2, dtype=torch.complex128)
    torch.testing.assert_close(A.H @ y, D.mH @ y)
    torch.testing.assert_close(A.T @ y, D.mT @ y)
    torch.testing.assert_close(A.H.T @ y, D.conj() @ y)

    class Turn(ls.LinearOperator):  # complex without complex parameters
        def mv(self, x):
            return 1j * x

    torch.testing.assert_close(Turn((N, N)).H @ y, -1j * y)


@pytest.mark.parametrize("solver", ["bicgstab", "gmres", "cg", "lsqr"])
def test_complex_systems(solver):
    """Those of `cg` and `lsqr` by their real form."""
    b, w = (numbers(N, 2, seed=i, dtype=torch.complex128) for i in (0, 1))

    def solution(kernel, b):
        A = Convolution((N, N), kernel, SHIFT + 0j)
        tolerance = {"atol": 1e-13, "btol": 1e-13} if solver == "lsqr" else {"rtol": 1e-13}
        return getattr(ls.solvers, solver)(A.H @ A if solver == "cg" else A, b, **tolerance).x

    def known(kernel, b):
        D = dense(Convolution((N, N), kernel, SHIFT + 0j), torch.complex128)
        return torch.linalg.solve(D.mH @ D if solver == "cg" else D, b)

    inputs = ((KERNEL * (1 + 0.5j)).requires_grad_(), b.requires_grad_())
    found, expected = (torch.autograd.grad((f(*inputs) * w).sum().real, inputs) for f in (solution, known))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
    kernel, change = inputs[0].detach(), numbers(3, dtype=torch.complex128)
    found, expected = (
        torch.func.jvp(lambda k, f=f: f(k, b.detach()), (kernel,), (change,))[1] for f in (solution, known)
    )
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def test_operators_made_of_others():
    A, B, x = Convolution((N, N), KERNEL, SHIFT), ls.problems.poisson((N,)), numbers(N)
    P, a = Weighted((N + 1, N), numbers(N)), torch.tensor(0.7, dtype=F64)
    for made, expected in (
        (A + B, dense(A) + B.to_dense()),
        (B + A, dense(A) + B.to_dense()),
        (A - B, dense(A) - B.to_dense()),
        (-A, -dense(A)),
        (2 * A, 2 * dense(A)),
        (A * a, a * dense(A)),
        (A / a, dense(A) / a),
        (A @ B.to_scipy(), dense(A) @ B.to_dense()),
        (P.T @ P, dense(P).T @ dense(P)),
        (A @ B, dense(A) @ B.to_dense()),
        (B @ A, B.to_dense() @ dense(A)),
    ):
        torch.testing.assert_close(made @ x, expected @ x)
        torch.testing.assert_close(made.T @ x, expected.T @ x)


SOLVERS = ["bicgstab", "gmres", "fgmres"]


@pytest.mark.parametrize("solver", ["cg", "minres", *SOLVERS])
@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
def test_gradients_of_a_solve(solver, gradient):
    kernel = SYMMETRIC if solver in ("cg", "minres") else KERNEL
    kind = Symmetric if solver in ("cg", "minres") else Convolution
    inputs = tuple(t.clone().requires_grad_() for t in (kernel, SHIFT, numbers(N, 2)))
    more = {} if gradient == "implicit" else {"maxiter": N}

    def solution(kernel, shift, b):
        A = kind((N, N), (kernel + kernel.flip(0)) / 2 if kind is Symmetric else kernel, shift)
        return getattr(ls.solvers, solver)(A, b, rtol=1e-13, gradient=gradient, **more).x

    def expected(kernel, shift, b):
        A = kind((N, N), (kernel + kernel.flip(0)) / 2 if kind is Symmetric else kernel, shift)
        return torch.linalg.solve(dense(A), b)

    w = numbers(N, 2, seed=1)
    found = torch.autograd.grad((solution(*inputs) * w).sum(), inputs)
    known = torch.autograd.grad((expected(*inputs) * w).sum(), inputs)
    torch.testing.assert_close(found, known, rtol=1e-8, atol=1e-9)
    if gradient == "implicit":
        assert gradcheck(solution, inputs, atol=1e-6, check_forward_ad=True)
        assert gradgradcheck(solution, inputs, atol=1e-5)


def test_transformations_reach_the_parameters():
    b, w = numbers(N), numbers(N, seed=1)

    def loss(kernel, shift, solve=ls.solvers.bicgstab):
        A = Convolution((N, N), kernel, shift)
        return (w * (solve(A, b, rtol=1e-13).x if solve else torch.linalg.solve(dense(A), b))).sum()

    def known(kernel, shift):
        return loss(kernel, shift, None)

    kernels = KERNEL + 0.1 * numbers(3, 3)
    torch.testing.assert_close(
        torch.func.vmap(torch.func.grad(loss), (0, None))(kernels, SHIFT),
        torch.stack([torch.func.grad(known)(k, SHIFT) for k in kernels]),
    )
    torch.testing.assert_close(
        torch.func.hessian(loss)(KERNEL, SHIFT),
        torch.func.hessian(known)(KERNEL, SHIFT),
        rtol=1e-7,
        atol=1e-8,
    )
    shifts = torch.stack((SHIFT, 2 * SHIFT))
    both = torch.func.vmap(torch.func.vmap(loss, (0, None)), (None, 0))(kernels, shifts)
    each = [[known(k, s) for k in kernels] for s in shifts]
    torch.testing.assert_close(both, torch.tensor(each, dtype=F64))


def test_as_a_preconditioner():
    A, b = Convolution((N, N), KERNEL, SHIFT), numbers(N).requires_grad_()
    M = ls.problems.poisson((N,)) * 0.01 + 0.1 * A + _identity()
    x = ls.solvers.gmres(A, b, M=M, rtol=1e-13).x
    (g,) = torch.autograd.grad(x.sum(), b)
    torch.testing.assert_close(g, torch.linalg.solve(dense(A).T, torch.ones(N, dtype=F64)))
    learned = M * torch.tensor(1.0, dtype=F64, requires_grad=True)
    with pytest.raises(ValueError, match="gmres: M requires grad, but a converged solution does not"):
        ls.solvers.gmres(A, b, M=learned)
    unrolled = ls.solvers.gmres(A, b, M=learned, iterations=2, gradient="unrolled").x
    assert torch.autograd.grad(unrolled.sum(), learned.parameters[-1])[0].isfinite()


def test_a_symmetric_preconditioner():
    S, b = Symmetric((N, N), SYMMETRIC, SHIFT), numbers(N)
    assert ls.solvers.cg(S, b, M=2 * S + S).converged
    with pytest.raises(ValueError, match=r"_Product does not say that it is.*set M.symmetric = True"):
        ls.solvers.cg(S, b, M=S @ S)
    M = S @ S
    M.symmetric = True
    assert ls.solvers.cg(S, b, M=M).converged
    A = ls.problems.poisson((N,)) * (1 + 0j)
    assert ls.solvers.cg(A, b + 0j, M=Symmetric((N, N), SYMMETRIC + 0j, SHIFT + 0j)).converged


def _identity() -> ls.LinearOperator:
    return ls.ops.StencilOperator(torch.tensor([0.0, 1.0, 0.0], dtype=F64), (N,))


def test_tensors_that_are_not_parameters_are_found():
    hidden = torch.tensor(4.0, dtype=F64, requires_grad=True)

    class Hiding(ls.LinearOperator):
        def mv(self, x):
            return hidden * x

    with pytest.raises(ValueError, match="cg: A computes with tensors that require grad"):
        ls.solvers.cg(Hiding((N, N)), numbers(N))


class Held(ls.LinearOperator):
    """Uses a parameter by another name, which no derivative would reach."""

    def __init__(self, scale):
        super().__init__((N, N), scale)
        self.scale = scale

    def mv(self, x, _):
        return self.scale * x


def test_parameters_that_mv_does_not_take_from_its_arguments_are_found():
    def loss(scale, gradient="implicit"):
        return ls.solvers.cg(Held(scale), numbers(N), gradient=gradient).x.sum()

    scale = torch.tensor(4.0, dtype=F64, requires_grad=True)
    with pytest.raises(ValueError, match=r"other tensors that require grad\. Pass them to super"):
        loss(scale)
    with pytest.raises(ValueError, match="lsqr: A computes with other tensors"):
        ls.solvers.lsqr(Held(scale), numbers(N))
    with pytest.raises(ValueError, match=r"torch\.func transforms .* Pass them to super"):
        torch.func.grad(loss)(scale.detach())
    with pytest.raises(ValueError, match=r"torch\.func transforms"):
        torch.func.jvp(loss, (scale.detach(),), (torch.ones((), dtype=F64),))
    known = -numbers(N).sum() / 16
    torch.testing.assert_close(torch.autograd.grad(loss(scale, "unrolled"), scale)[0], known)


def test_attributes_may_have_any_name():
    class Named(ls.LinearOperator):
        def __init__(self, coefficients):
            super().__init__((N, N), coefficients)
            self.coefficients, self.size, self.values = coefficients, N, None

        def mv(self, x, coefficients):
            return coefficients * x

    c = torch.tensor(4.0, dtype=F64, requires_grad=True)
    x = ls.solvers.cg(Named(c), numbers(N)).x
    torch.testing.assert_close(torch.autograd.grad(x.sum(), c)[0], -numbers(N).sum() / 16)


def test_a_batch_of_operators():
    d, b = numbers(3, N).abs() + 1, numbers(3, N, 2)
    x = ls.solvers.cg(Diagonal((N, N), d), b, rtol=1e-12).x
    torch.testing.assert_close(x, b / d.unsqueeze(-1))
    singular = torch.cat((torch.zeros(3, 1, dtype=F64), d[:, 1:]), -1)
    null = torch.eye(N, 1, dtype=F64)
    assert ls.solvers.cg(Diagonal((N, N), singular), b, null_space=null).converged
    for columns in (b[0, :, 0], b[0]):
        with pytest.raises(ValueError, match="For a batch of operators b must have shape"):
            ls.solvers.cg(Diagonal((N, N), d), columns)


class Tridiagonal(Convolution):
    """Knows its entries."""

    def csr(self, kernel, shift):
        return ls.ops.stencil_matrix(kernel, (N,)) + ls.ops.diag(shift.expand(N))


class Diagonal(ls.LinearOperator):
    symmetric = True

    def mv(self, x, d):
        return d.unsqueeze(-1) * x


def test_entries_that_a_class_knows():
    A, B = Tridiagonal((N, N), KERNEL, SHIFT), Convolution((N, N), KERNEL, SHIFT)
    S, a = ls.problems.poisson((N,)), torch.tensor(0.7, dtype=F64)
    for made in (A, A.T, A @ A.T, A + 2 * A, S @ A, a * A - S, -A.T):
        torch.testing.assert_close(made.to_csr().to_dense(), dense(made))
    for made in (B, A + B, A @ B, 2 * B):
        with pytest.raises(TypeError, match=r"to_csr: the operator must be a CSR, .* define csr\(\*param"):
            made.to_csr()

    class Wrong(Convolution):
        def csr(self, kernel, shift):
            return S[1:]

    with pytest.raises(ValueError, match=r"Wrong.csr: its result must have shape \(12, 12\), as mv has"):
        ls.preconditioners.Jacobi(Wrong((N, N), KERNEL, SHIFT))


def test_what_reads_entries_takes_operators_that_have_them():
    A, b = Tridiagonal((N, N), KERNEL.clone().requires_grad_(), SHIFT), numbers(N)
    C = A.to_csr()
    torch.testing.assert_close(ls.ops.spsolve(A, b), ls.ops.spsolve(C, b))
    torch.testing.assert_close(ls.preconditioners.ILU(A)(b), ls.preconditioners.ILU(C)(b))
    for solver in (ls.solvers.jacobi, ls.solvers.sor):
        torch.testing.assert_close(solver(A, b, iterations=3).x, solver(C, b, iterations=3).x)
    found = ls.compare_preconditioners(A, b, {"Jacobi": ls.preconditioners.Jacobi}, solver="gmres", repeats=1)
    assert found.rows[-1].converged
    solution = ls.solve(A, b)
    assert solution.method == "direct"
    (g,) = torch.autograd.grad(solution.x.sum(), A.parameters[0])
    torch.testing.assert_close(
        g, torch.autograd.grad(torch.linalg.solve(C.to_dense(), b).sum(), A.parameters[0])[0]
    )


@pytest.mark.parametrize(
    ("make", "method"),
    [
        (lambda d: Diagonal((N, N), d), "cg"),
        (lambda d: Diagonal((N, N), d - 2.5), "minres"),
        (lambda d: Convolution((N, N), KERNEL, d[3]), "gmres"),
        (lambda d: Weighted((N + 1, N), d), "lsqr"),
    ],
)
def test_solve_by_products(make, method):
    d = torch.linspace(1, 3, N, dtype=F64).requires_grad_()
    b = numbers(make(d).shape[0])
    solution = ls.solve(make(d), b, rtol=1e-10)
    assert (solution.method, "products only" in solution.reason) == (method, True)
    assert solution.converged
    known = torch.linalg.lstsq(dense(make(d)), b.unsqueeze(-1)).solution.squeeze(-1)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), d)[0] for x in (solution.x, known)))


@pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")
def test_solve_by_products_says_how_it_ended():
    A = scipy.sparse.linalg.aslinearoperator(np.eye(N, k=1))
    assert ls.solve(A, numbers(N), rtol=1e-10).method == "gmres"
    assert not ls.solve(A, numbers(N), rtol=1e-10).converged
    B = Convolution((N, N), KERNEL, SHIFT)
    assert ls.solve(B, numbers(N), method="bicgstab").method == "bicgstab"
    assert ls.solve(B, numbers(N), maxiter=1).status is ls.solvers.Status.MAX_ITERATIONS
    for call in (
        lambda: ls.solve(B, numbers(N), method="direct"),
        lambda: ls.solve(lambda x: x, numbers(N)),
        lambda: ls.solvers.sor(B, numbers(N)),
        lambda: ls.preconditioners.IC(B),
        lambda: ls.compare_preconditioners(B, numbers(N), {"IC": ls.preconditioners.IC}),
    ):
        with pytest.raises(TypeError, match=r"A must be a CSR, got .*, which gives products only, and ent"):
            call()


@pytest.mark.parametrize(
    ("product", "error", "message"),
    [
        (
            lambda x: x[..., 1:, :],
            ValueError,
            r"Wrong: a product with x of shape \(12, 1\) must",
        ),
        (lambda x: x.float(), TypeError, "Wrong: a product must be torch.float64 on cpu, as x is"),
        (lambda x: 3.0, TypeError, "Wrong: a product must be a torch.Tensor, got float"),
    ],
)
def test_wrong_products(product, error, message):
    class Wrong(ls.LinearOperator):
        def mv(self, x):
            return product(x)

    with pytest.raises(error, match=message):
        ls.solvers.cg(Wrong((N, N)), numbers(N))


class Bare(ls.LinearOperator):
    def __init__(self):
        pass


def test_wrong_operands():
    A = Convolution((N, N), KERNEL, SHIFT)
    for call, message in (
        (lambda: ls.LinearOperator((3, -1)), "LinearOperator: shape must be at least 0, got -1"),
        (lambda: ls.LinearOperator((3,)), r"LinearOperator: shape must be \(rows, columns\)"),
        (lambda: ls.LinearOperator((3, 3)) @ numbers(3), r"LinearOperator must define mv\(x, \*parameters\)"),
        (lambda: A @ numbers(5), r"Convolution: x must have A.shape\[1\] = 12 rows"),
        (lambda: A(numbers(1, 2)), r"Convolution: x must have A.shape\[1\] = 12 rows"),
        (lambda: A @ numbers(N).numpy(), "Convolution: x must be a torch.Tensor, got ndarray"),
        (lambda: numbers(N).numpy() @ A, "LinearOperator: A must be a CSR, got ndarray"),
        (
            lambda: Symmetric((3, 3), torch.ones(3, dtype=torch.int64)),
            r"parameters\[0\] must be a tensor of fl",
        ),
        (lambda: ls.solvers.cg(Bare(), numbers(N)), r"cg: A has no shape. Bare.__init__ must call super"),
        (lambda: ls.solvers.cg(Bare, numbers(N)), "cg: A is the class Bare, not a matrix"),
        (lambda: A + ls.problems.poisson((3,)), r"LinearOperator: A \+ B needs equal shapes"),
        (lambda: A @ ls.problems.poisson((3,)), "LinearOperator: A @ B needs fitting shapes"),
        (lambda: A * numbers(2), "LinearOperator: a factor must have one element"),
        (lambda: 3.0 - A, "LinearOperator: A must be a CSR, got float"),
        (lambda: A + 3.0, "LinearOperator: A must be a CSR, got float"),
        (lambda: ls.solvers.cg(Weighted((N + 1, N), numbers(N)), numbers(N + 1)), "cg: A must be square"),
        (lambda: ls.solvers.cg(A, numbers(5)), r"cg: b must have A.shape\[0\] = 12 rows"),
    ):
        with pytest.raises((TypeError, ValueError, NotImplementedError), match=message):
            call()
