"""The backward in the order of the rows, which large irregular matrices with few columns take."""

import pytest
import torch
from scipy.sparse import random_array

import learnsolve as ls


@pytest.fixture(scope="module")
def A():
    S = random_array((60000, 300), density=0.06, format="csr", dtype=float, rng=0)
    A = ls.CSR.from_scipy(S)
    assert A.pattern._prefers_scatter
    return A


def gradients(A, x, needs=(True, True)):
    v = A.values.clone().requires_grad_(needs[0])
    x = x.clone().requires_grad_(needs[1])
    y = ls.ops.spmm(A.with_values(v), x)
    g = torch.linspace(-1, 1, len(y), dtype=y.dtype)
    return torch.autograd.grad(y, [t for t in (v, x) if t.requires_grad], g), g


def test_gradients(A):
    x = torch.linspace(1, 2, 300, dtype=torch.float64)
    (gv, gx), g = gradients(A, x)
    torch.testing.assert_close(gv, g[A.pattern.row_indices.long()] * x[A.col_indices.long()])
    torch.testing.assert_close(gx, torch.from_numpy(A.to_scipy().T @ g.numpy()), rtol=1e-12, atol=1e-10)
    (alone,), _ = gradients(A, x, (False, True))
    assert torch.equal(alone, gx)
    assert "transposed" not in A.pattern._entries  # it is not needed: no time, no memory for it


def test_same_bits_for_any_number_of_threads(A):
    x = torch.linspace(1, 2, 300, dtype=torch.float64)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        found.append(gradients(A, x)[0])
    torch.set_num_threads(before)
    for gv, gx in found[1:]:
        assert torch.equal(gv, found[0][0])
        assert torch.equal(gx, found[0][1])


@pytest.mark.parametrize("shape", [(60000,), (60000, 1)], ids=str)
def test_the_transposed_product_goes_the_same_way(A, shape):
    fresh = A.to(dtype=torch.float32).to(dtype=torch.float64)
    g = torch.linspace(-1, 1, 60000, dtype=torch.float64).reshape(shape).requires_grad_()
    v = fresh.values.clone().requires_grad_()
    y = ls.ops.spmm(fresh.with_values(v), g, transpose=True)
    assert y.shape == (300, *shape[1:])
    torch.testing.assert_close(
        y.detach(), torch.from_numpy(fresh.to_scipy().T @ g.detach().numpy()), rtol=1e-12, atol=1e-10
    )
    c = torch.linspace(1, 2, 300, dtype=torch.float64).reshape(y.shape)
    gv, gg = torch.autograd.grad(y, (v, g), c)
    torch.testing.assert_close(gg, ls.ops.spmm(fresh, c))
    P = fresh.pattern
    torch.testing.assert_close(gv, g.detach().flatten()[P.row_indices] * c.flatten()[P.col_indices])
    _, tangent = torch.func.jvp(lambda g: ls.ops.spmm(fresh, g, transpose=True), (g.detach(),), (g.detach(),))
    torch.testing.assert_close(tangent, y.detach())


def test_a_column_is_a_vector(A):
    x = torch.linspace(1, 2, 300, dtype=torch.float64)
    (_, gx), g = gradients(A, x)
    column = x.unsqueeze(-1).requires_grad_()
    (found,) = torch.autograd.grad(ls.ops.spmm(A, column), column, g.unsqueeze(-1))
    assert torch.equal(found.squeeze(-1), gx)


def test_second_derivative(A):
    x = torch.linspace(1, 2, 300, dtype=torch.float64, requires_grad=True)
    v = A.values.clone().requires_grad_()
    y = ls.ops.spmm(A.with_values(v), x)
    (gx,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gx.sum(), x)
    S = A.to_scipy()
    torch.testing.assert_close(second, torch.from_numpy(2 * S.T @ (S @ torch.ones(300).double().numpy())))


@pytest.mark.parametrize("shape", [(16,), (64, 64)], ids=str)
def test_who_does_not(shape):
    assert not ls.problems.poisson(shape).pattern._prefers_scatter
