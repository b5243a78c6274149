"""Least squares of any rank: derivatives against those of torch.linalg.pinv, and the stopping rule."""

import warnings

import pytest
import torch
from reference import normal
from solvers.krylov import RECTANGULAR
from torch import Tensor
from torch.autograd import grad

import learnsolve as ls

S = ls.solvers
TIGHT = {"atol": 1e-14, "btol": 1e-14}
every = pytest.mark.parametrize("name", RECTANGULAR)
SHAPES = [(1, 2, 1), (4, 7, 4), (7, 4, 2), (4, 7, 2), (5, 5, 3), (7, 4, 4), (6, 1, 1)]  # and the rank
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def of_rank(m: int, n: int, rank: int, batch: tuple[int, ...] = (), dtype=torch.float64) -> Tensor:
    """Every nonzero singular value between 1 and 2."""
    real, complex = dtype.to_real(), dtype.is_complex

    def basis(k: int, seed: int) -> Tensor:
        Z = normal((2, *batch, k, rank), real, seed)
        return torch.linalg.qr(torch.complex(Z[0], Z[1]) if complex else Z[0])[0]

    parts = basis(m, 1), basis(n, 3)
    return (parts[0] * torch.linspace(1, 2, rank, dtype=real)) @ parts[1].mH


def full(m: int, n: int) -> ls.SparsityPattern:
    return ls.CSR.from_dense(torch.ones(m, n)).pattern


def pinv(D: Tensor, b: Tensor, damp: float = 0.0) -> Tensor:
    if b.dim() == 1:
        return pinv(D, b.unsqueeze(-1), damp).squeeze(-1)
    eye = damp * torch.eye(D.shape[-1], dtype=D.dtype).expand(*D.shape[:-2], -1, -1)
    return torch.linalg.pinv(torch.cat((D, eye), -2), rtol=1e-8)[..., : b.shape[-2]] @ b


def pair(name: str, D: Tensor, damp: float = 0.0, **options):
    """The solution as a function of the entries and b, and its reference."""
    m, n = D.shape[-2:]
    P = full(m, n)

    def sparse(v: Tensor, b: Tensor) -> Tensor:
        return getattr(S, name)(ls.CSR(v, P), b, damp=damp, **{**TIGHT, **options}).x

    return sparse, lambda v, b: pinv(v.unflatten(-1, (m, n)), b, damp)


def close(found, wanted, tolerance: float = 1e-10) -> None:
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f, w, rtol=tolerance, atol=tolerance)


@every
def test_gradient_of_one_equation_with_two_unknowns(name):
    v, b = torch.ones(2, dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    v.requires_grad_(), b.requires_grad_()
    x = getattr(S, name)(ls.CSR(v, full(1, 2)), b).x
    of_v, of_b = grad(x[0], (v, b))
    close((of_v, of_b), (torch.tensor([0.0, -1.0]).double(), torch.tensor([0.5]).double()))


@every
@shapes
@pytest.mark.parametrize("damp", [0.0, 0.4])
def test_gradient_of_the_solution_of_least_norm(name, shape, damp):
    """Whatever the rank, for several columns; forward mode; second derivatives."""
    D = of_rank(*shape)
    sparse, dense = pair(name, D, damp)
    inputs = [D.flatten(), normal((shape[0], 2), seed=5)]
    tangents = [normal(t.shape, seed=6) for t in inputs]
    g = normal((shape[1], 2), seed=7)

    def derivatives(f):
        v, b, c = (t.clone().requires_grad_() for t in (*inputs, g))
        plain = grad(f(v, b), (v, b), g)
        graph = grad(f(v, b), (v, b), c, create_graph=True)
        inner = sum((d * t).sum() for d, t in zip(graph, tangents, strict=True))
        return (*plain, *graph, *grad(inner, (v, b, c)), torch.func.jvp(f, (*inputs,), (*tangents,))[1])

    close(derivatives(sparse), derivatives(dense))


@every
def test_gradient_of_least_norm_in_batches_and_transformations(name):
    D = of_rank(3, 5, 2, (2,))
    sparse, dense = pair(name, D)
    v, b = D.flatten(-2), normal((2, 3, 2), seed=4)
    loss = lambda f: lambda v, b: f(v, b).square().sum()  # noqa: E731
    close(*(torch.func.grad(loss(f), (0, 1))(v, b) for f in (sparse, dense)))
    close(*(torch.vmap(torch.func.grad(loss(f), (0, 1)))(v, b) for f in (sparse, dense)))
    close([torch.func.hessian(loss(sparse))(v, b)], [torch.func.hessian(loss(dense))(v, b)], 1e-8)


@every
def test_gradient_of_a_complex_solution_of_least_norm(name):
    D = of_rank(4, 6, 3, dtype=torch.complex128)
    b = torch.complex(normal((4,), seed=5), normal((4,), seed=6))
    found = []
    for f in pair(name, D):
        v, c = D.flatten().requires_grad_(), b.clone().requires_grad_()
        found.append(grad((f(v, c).abs() ** 2).sum() + f(v, c)[0].imag, (v, c)))
    close(*found)


@every
def test_gradient_from_a_start_outside_of_the_row_space(name):
    """x = x0 + A^+ (b - A x0): the part of x0 that A maps to zero stays. Where b = 0, x = 0."""
    D, x0, b = of_rank(4, 6, 3), normal((6, 2), seed=8), normal((4, 2), seed=9)
    b[:, 1] = 0
    sparse, _ = pair(name, D, x0=x0)
    start = x0 * torch.tensor([1.0, 0.0])
    A = ls.CSR.from_dense(D)
    solve = lambda A: getattr(S, name)(A, b, 1e6 * x0, **TIGHT).x  # noqa: E731
    assert torch.equal(solve(A), solve(A.detach().requires_grad_()).detach())  # to the last bit
    found = []
    for f in (sparse, lambda v, b: start + pinv(v.view(4, 6), b - v.view(4, 6) @ start)):
        v, c = D.flatten().requires_grad_(), b.clone().requires_grad_()
        found.append((f(v, c), *grad(f(v, c).square().sum(), (v, c))))
    close(*found)


@every
def test_gradient_of_least_norm_for_a_callable(name):
    D, b = of_rank(4, 6, 3), normal((4,), seed=9)
    v, w = (D.flatten().requires_grad_() for _ in range(2))
    options = {"transpose": lambda y: v.view(4, 6).T @ y, "parameters": (v,)}
    x = getattr(S, name)(lambda x: v.view(4, 6) @ x, b, **TIGHT, **options).x
    of_dense = pinv(w.view(4, 6), b)
    found, wanted = (grad(y[0] + y[1] ** 2, t, create_graph=True) for y, t in ((x, v), (of_dense, w)))
    close(found, wanted)
    close(grad(found[0].square().sum(), v), grad(wanted[0].square().sum(), w))


def test_gradient_of_potentials_from_differences():
    """Weights of edges keep the rank of an incidence matrix: its gradient is that of differences."""
    C = ls.CSR.from_dense(torch.tensor([[1, -1, 0, 0], [0, 1, -1, 0], [1, 0, -1, 0], [0, 0, 1, -1]]).double())
    b, g = normal((4,), seed=2), normal((4,), seed=3)
    weights = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64, requires_grad=True)
    potentials = lambda w: S.lsqr(C.with_values(C.values * w.repeat_interleave(2)), b, **TIGHT).x  # noqa: E731
    assert torch.autograd.gradcheck(lambda w: potentials(w) @ g, weights)


@every
@shapes
def test_nothing_warns_at_the_default_tolerance(name, shape):
    sparse, _ = pair(name, of_rank(*shape), atol=None, btol=None)
    v, b = of_rank(*shape).flatten().requires_grad_(), normal((shape[0],), seed=5).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparse(v, b).sum().backward()


def test_the_worst_of_the_adjoint_solves_is_reported():
    """Of the two the first takes one iteration, and the second, for A, as many as there are rows."""
    D = torch.cat((torch.diag(torch.arange(1.0, 7.0)), torch.zeros(6, 2)), 1).double()
    A, g = ls.CSR.from_dense(D).requires_grad_(), torch.eye(8, dtype=D.dtype)
    solution = S.lsqr(A, normal((6,)), adjoint_maxiter=1, **TIGHT)
    with pytest.warns(S.ConvergenceWarning, match="adjoint solve"):
        solution.x.backward(g[0] + g[7])
    assert solution.adjoint.status is S.Status.MAX_ITERATIONS


@every
def test_complex_least_squares_stop_by_the_norm_of_the_complex_matrix(name):
    """Not earlier, by a factor of sqrt(2), as by that of the real form."""
    for seed in range(8):
        parts = normal((2, 30, 20), seed=seed) * torch.logspace(0, -2, 20, dtype=torch.float64)
        D, b = torch.complex(*parts), torch.complex(*normal((2, 30), seed=seed + 50))
        solution = getattr(S, name)(ls.CSR.from_dense(D), b, atol=1e-5, btol=0.0, conlim=0.0, maxiter=400)
        r = b - D @ solution.x
        assert solution.converged
        assert (D.mH @ r).norm() <= 1.0001e-5 * D.norm() * r.norm()
