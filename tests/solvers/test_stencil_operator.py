"""A stencil as the A of solvers, compared with the matrix that has its entries."""

import pytest
import torch
from reference import normal
from solvers.krylov import SQUARE
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

OFFSETS = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
GRID = (3, 4)
N = 12


def coefficients(kind: str) -> torch.Tensor:
    base = torch.tensor([5.0, -1.0, -1.2, -0.8, -1.0], dtype=torch.float64)
    scale = torch.tensor([1.0, 1.3], dtype=torch.float64)
    return {
        "constant": base,
        "variable": base.reshape(5, 1, 1) * (1 + 0.1 * torch.rand(5, *GRID, dtype=torch.float64)),
        "constant, batch": (scale.unsqueeze(-1) * base).reshape(2, 5, 1, 1),
        "variable, batch": base.reshape(5, 1, 1) * (1 + 0.1 * torch.rand(2, 5, *GRID, dtype=torch.float64)),
    }[kind]


KINDS = ("constant", "variable", "constant, batch", "variable, batch")


@pytest.fixture(params=KINDS)
def A(request):
    return ls.ops.StencilOperator(coefficients(request.param), GRID, offsets=OFFSETS)


def test_products_are_those_of_the_matrix(A):
    C, x = A.to_csr(), normal((*A.batch_shape, N, 3))
    assert A.shape == C.shape
    assert torch.allclose(A @ x, C @ x)
    assert torch.allclose(A.T @ x, C.T @ x)
    assert torch.allclose(A.T.T @ x, C @ x)
    assert torch.allclose(A.T.to_csr().to_dense(), C.to_dense().mT)


def test_the_window_and_periodic_boundaries():
    window = torch.tensor([[0.0, -1, 0], [-2, 7, -1], [0, -1, 0]], dtype=torch.float64)
    A = ls.ops.StencilOperator(window, (4, 5), boundary="periodic")
    x = normal((20,))
    assert torch.allclose(A @ x, ls.ops.stencil(window, x.reshape(4, 5), boundary="periodic").flatten())
    assert torch.allclose(ls.solvers.gmres(A, A @ x, rtol=1e-12).x, x)


def test_gradients_of_products(A):
    c, x = A.coefficients.clone().requires_grad_(), normal((*A.batch_shape, N, 2)).requires_grad_()
    for turn in (False, True):

        def apply(c, x, turn=turn):
            B = A.with_coefficients(c)
            return (B.T if turn else B) @ x

        assert gradcheck(apply, (c, x))
        assert gradgradcheck(apply, (c, x))


@pytest.mark.few
@pytest.mark.parametrize("gradient", ["implicit", "unrolled", "checkpointed"])
def test_gradients_of_a_solve(A, gradient):
    c, b = A.coefficients.clone().requires_grad_(), normal((*A.batch_shape, N, 2)).requires_grad_()

    def solve(c, b):
        return ls.solvers.bicgstab(A.with_coefficients(c), b, rtol=1e-13, gradient=gradient).x

    assert gradcheck(solve, (c, b), rtol=1e-4, atol=1e-6, fast_mode=True)
    D = A.with_coefficients(c).to_csr().to_dense()
    exact = torch.autograd.grad(torch.linalg.solve(D, b).square().sum(), (c, b))
    found = torch.autograd.grad(solve(c, b).square().sum(), (c, b))
    assert all(torch.allclose(f, e, rtol=1e-7, atol=1e-10) for f, e in zip(found, exact, strict=True))
    if gradient == "implicit":
        assert gradgradcheck(solve, (c, b), rtol=1e-4, atol=1e-5, fast_mode=True)


def test_forward_mode_and_vmap():
    A = ls.ops.StencilOperator(coefficients("constant"), GRID, offsets=OFFSETS)
    c, b = A.coefficients, normal((N,))

    def solve(c, b):
        return ls.solvers.gmres(A.with_coefficients(c), b, rtol=1e-13).x

    tangent = normal(c.shape)
    _, found = torch.func.jvp(solve, (c, b), (tangent, torch.zeros_like(b)))
    D, dD = A.to_csr().to_dense(), A.with_coefficients(tangent).to_csr().to_dense()
    assert torch.allclose(found, -torch.linalg.solve(D, dD @ torch.linalg.solve(D, b)), rtol=1e-7)
    many = torch.stack((c, 1.5 * c))
    mapped = torch.vmap(solve, in_dims=(0, None))(many, b)
    assert torch.allclose(mapped, torch.stack([solve(c, b) for c in many]), rtol=1e-9)


@pytest.mark.parametrize("name", SQUARE)
def test_every_method_takes_one(name):
    A = ls.ops.StencilOperator(
        torch.tensor([4.0, -1, -1, -1, -1], dtype=torch.float64), (5, 6), offsets=OFFSETS
    )
    b = normal((30,))
    ours, matrix = (getattr(ls.solvers, name)(B, b, rtol=1e-10) for B in (A, A.to_csr()))
    assert ours.converged
    assert abs(ours.iterations - matrix.iterations) <= 1
    assert torch.allclose(ours.x, matrix.x, rtol=1e-6)


def test_least_squares_takes_one():
    A = ls.ops.StencilOperator(coefficients("variable"), GRID, offsets=OFFSETS)
    b = normal((N,)).requires_grad_()
    solution = ls.solvers.lsqr(A, b, atol=1e-12, btol=1e-12, damp=0.1)
    D = A.to_csr().to_dense()
    right = torch.linalg.solve(D.T @ D + 0.01 * torch.eye(N, dtype=torch.float64), D.T @ b)
    assert torch.allclose(solution.x, right, rtol=1e-7)
    (found,) = torch.autograd.grad(solution.x.sum(), b)
    (exact,) = torch.autograd.grad(right.sum(), b)
    assert torch.allclose(found, exact, rtol=1e-7)


def test_extreme_sizes_are_no_breakdown():
    A = ls.ops.StencilOperator(1e-30 * coefficients("variable").float(), GRID, offsets=OFFSETS)
    solution = ls.solvers.gmres(A, torch.full((N,), 1e-30))
    assert solution.converged, solution.summary()


T, S3 = ls.ops.StencilOperator, torch.ones(3)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: T([1.0], (3,)), TypeError, "StencilOperator: coefficients must be a torch"),
        (lambda: T(torch.ones(2), (3,)), ValueError, "odd sizes"),
        (lambda: T(S3, (3, 3)), ValueError, "grid must have 1 sizes"),
        (lambda: T(S3, (3,)) @ torch.ones(4), ValueError, r"shape \(3,\)"),
        (lambda: T(S3, (3,)) @ S3.double(), TypeError, "dtype"),
        (lambda: T(torch.ones(2, 3, 1), (3,), offsets=[(0,), (1,), (2,)]) @ S3, ValueError, "unsqueeze"),
        (lambda: ls.solvers.cg(T(S3, (3,)), torch.ones(4)), ValueError, "cg: b must have"),
        (
            lambda: ls.solvers.cg(T(S3, (3,)), S3, parameters=(S3,)),
            ValueError,
            "parameters belong to a callable A; StencilOperator has its own",
        ),
    ],
)
def test_bad_input(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_coefficients_learn_where_asked_and_bring_their_dtype():
    A = ls.ops.StencilOperator(torch.tensor([-1.0, 2.0, -1.0], dtype=torch.float64), (5,))
    assert not A.requires_grad
    assert A.requires_grad_() is A
    assert A.requires_grad
    (A @ torch.ones(5, dtype=torch.float64)).sum().backward()
    assert A.coefficients.grad is not None
    assert A.with_coefficients(A.coefficients.detach().float()).dtype == torch.float32
