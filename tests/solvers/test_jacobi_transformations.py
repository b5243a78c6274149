"""torch.compile through the sweeps, and errors inside transformations."""

import pytest
import torch
from reference import gradients, normal
from solvers.dense_jacobi import dense_jacobi, inputs_on, small_square, sparse_jacobi, values_on
from torch import func

import learnsolve as ls

P, K = small_square(), 3
EVERY = (0, 1, 2, 3)


def loss(f):
    """Not polynomial: every term of every second derivative is there."""

    def value(*a):
        x, norms = f(*a)
        return torch.sin(x).sum() + torch.sin(norms).sum()

    return value


def library(gradient="unrolled"):
    return lambda *a: sparse_jacobi(P, *a, K, gradient)


def dense(*a):
    return dense_jacobi(P, *a, K)


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.few
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize(("shape", "K"), [("vector", 1), ("vector", 3), ("columns", 3), ("batch of both", 3)])
def test_compile(shape, K, gradient):
    inputs = inputs_on(P, "row and sweep", shape, K)
    f = torch.compile(lambda *a: sweep(*a, K, gradient), fullgraph=True, backend="aot_eager")
    g = normal(inputs[2].shape, seed=9)
    same(f(*inputs), dense_jacobi(P, *inputs, K)[0])
    same(gradients(f, inputs, g), gradients(lambda *a: dense_jacobi(P, *a, K)[0], inputs, g))


def sweep(v, w, b, x0, K, gradient):
    return ls.solvers.jacobi(ls.CSR(v, P), b, x0, weight=w, iterations=K, gradient=gradient).x


@pytest.mark.usefixtures("fresh_compiler")
def test_compile_a_loss_of_residual_norms():
    inputs = inputs_on(P, "row and sweep", "columns", K)
    f = torch.compile(loss(library()), fullgraph=True, backend="aot_eager")
    g = torch.ones((), dtype=torch.float64)
    same(f(*inputs), loss(dense)(*inputs))
    same(gradients(f, inputs, g), gradients(loss(dense), inputs, g))


def test_a_zero_on_the_diagonal_is_seen_through_transformations():
    v = values_on(P)
    v[P.diagonal_positions[2]] = 0
    b = normal((4,))

    def f(v):
        return ls.solvers.jacobi(ls.CSR(v, P), b, iterations=2).x.sum()

    for call in (
        lambda: func.grad(f)(v),
        lambda: torch.vmap(f)(torch.stack((values_on(P), v))),
        lambda: torch.vmap(func.grad(f))(torch.stack((values_on(P), v))),
        lambda: func.jvp(f, (v,), (v,)),
    ):
        with pytest.raises(ValueError, match="jacobi: A must not have zeros on its diagonal, row 2 has one"):
            call()
