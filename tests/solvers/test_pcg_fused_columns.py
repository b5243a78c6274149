"""Columns that stop, and columns without a cotangent."""

import pytest
import torch
from reference import normal, pattern_of
from scipy.sparse import eye_array
from solvers.dense_pcg import dense, fused, gradients, system, unfused
from solvers.test_pcg_fused import close

import learnsolve as ls
from learnsolve.ops._pcg_unfused import Stop
from learnsolve.ops.pcg import KINDS, pcg_iterations


def agree(s, iterations, tolerance=1e-10):
    """Fused and unfused stop for the same reason at the same time, and agree in everything."""
    assert torch.equal(fused(s, iterations)[2], unfused(s, iterations)[2])
    close(gradients(s, fused, iterations), gradients(s, unfused, iterations), tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_level(kind):
    """Zero at once; solved by x0; solved in one iteration (an eigenvector); after many; not at all."""
    s = system(kind, "columns")
    n = s.P.shape[0]
    b, x0 = normal((n, 4), seed=3), normal((n, 4), seed=4)
    b[:, 0] = x0[:, 0] = 0
    A = ls.CSR(s.values, s.P)
    b[:, 1] = A @ x0[:, 1]
    s = s._replace(b=b, x0=x0)
    x, norms, status = fused(s, 3)
    assert status[:, :2].tolist() == [[Stop.ROUNDING, Stop.ROUNDING], [0, 0]]
    assert status[:, 2:].tolist() == [[Stop.RUNNING, Stop.RUNNING], [0, 0]]
    assert torch.equal(x[:, :2], x0[:, :2])
    agree(s, 3)
    x, norms, status = fused(s, 200)
    assert (status[0] == Stop.ROUNDING).all()
    assert (status[1, 2:] > 0).all()
    assert (status[1, 2:] < 100).all()
    torch.testing.assert_close(A @ x, b, rtol=0, atol=1e-13)
    for c in range(4):  # what comes after adds nothing
        assert (norms[status[1, c] :, c] == norms[-1, c]).all()
    stop = int(status[1].max())
    for f, w in zip(
        gradients(s, fused, 200, gnorms=False), gradients(s, fused, stop, gnorms=False), strict=True
    ):
        assert torch.equal(f, w) or f.dim() == 2  # norms have other lengths


def test_an_eigenvector_takes_one_iteration():
    P = pattern_of(eye_array(5), torch.int32)
    values, b = torch.full((5,), 4.0).double(), normal((5, 2))
    x, norms, status = pcg_iterations(values, b, None, P, 4)
    assert status.tolist() == [[Stop.ROUNDING] * 2, [1, 1]]
    torch.testing.assert_close(x, b / 4, rtol=1e-15, atol=0)
    assert (norms[1:] == 0).all()


@pytest.mark.parametrize("shape", ["vector", "columns"])
def test_curvature(shape):
    """A column meets it, the others go on."""
    s = system("none", shape)
    positions = s.P.diagonal_positions.long()
    values = s.values.clone()
    values[positions[0]] = -20
    b = normal(s.b.shape, seed=3)
    if shape == "columns":
        b[:, 0] = 0
        b[0, 0] = 1
    else:
        b[:] = 0
        b[0] = 1
    s = s._replace(values=values, b=b, x0=None)
    x, _, status = fused(s, 3)
    first = status if shape == "vector" else status[:, 0]
    assert first.tolist() == [Stop.CURVATURE, 0]
    assert (x if shape == "vector" else x[:, 0]).count_nonzero() == 0
    agree(s, 3)


def test_a_preconditioner_that_is_not_positive():
    s = system("diagonal", "columns")
    m = s.m.clone()
    m[0] = -5
    b = normal(s.b.shape, seed=3)
    b[:, 1] = 0
    b[0, 1] = 1
    s = s._replace(m=m, b=b, x0=None)
    status = fused(s, 4)[2]
    assert status[:, 1].tolist() == [Stop.PRECONDITIONER, 0]
    agree(s, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
def test_not_finite(kind, bad):
    """A column that leaves the numbers does not spoil the others, nor any gradient."""
    s = system(kind, "columns")
    b = s.b.clone()
    b[3, 1] = bad
    s = s._replace(b=b, x0=None).leaves()
    x, norms, status = fused(s, 5)
    assert status[:, 1].tolist() == [Stop.NON_FINITE, 0]
    assert torch.equal(x[:, 1], torch.zeros_like(x[:, 1]))
    assert not norms[:, 1].isfinite().any()
    clean = s._replace(b=torch.where(torch.arange(3) == 1, 0, s.b.detach())).leaves()
    keep = torch.tensor([1.0, 0.0, 1.0]).double()
    found = torch.autograd.grad((x * normal(x.shape)).sum() + norms[:, ::2].sum(), s.inputs)
    y, history, _ = fused(clean, 5)
    wanted = torch.autograd.grad((y * normal(x.shape)).sum() + history[:, ::2].sum(), clean.inputs)
    close(found[:-1], wanted[:-1], 1e-14)
    close([found[-1] * keep], [wanted[-1] * keep], 1e-14)


def test_overflow_on_the_way():
    """The last good iterate is what comes back."""
    P = pattern_of(eye_array(3), torch.int32)
    values = torch.tensor([1e-30, 1.0, 2.0])
    b = torch.tensor([[1e-10, 1.0], [1.0, 1.0], [1.0, 1.0]])
    for v in (values, values * 1e30):
        x, norms, status = pcg_iterations(v, b, None, P, 8)
        assert x.isfinite().all()
        assert norms[0].isfinite().all()
        assert (status[0] != Stop.RUNNING).all()


def test_divergence_is_named():
    """Not symmetric: one step may grow the residual by any factor."""
    A = ls.CSR.from_dense(torch.tensor([[1, 1e17], [-1e17, 1]], dtype=torch.float64))
    b = torch.tensor([1.0, 0.0]).double()
    x, norms, status = pcg_iterations(A.values, b, None, A.pattern, 4)
    assert status.tolist() == [Stop.DIVERGED, 1]
    assert norms.tolist() == [1, 1e17, 1e17, 1e17, 1e17]
    assert x.tolist() == [1, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learning", [[0], [5], [1, 2], [0, 3, 4, 7], [0, 1, 2, 3, 4, 6, 7]])
def test_columns_without_a_cotangent(kind, learning):
    """Left out of the adjoint, so that the others are computed among fewer: not a bit of theirs changes."""
    s = system(kind, "columns")
    n = s.P.shape[0]
    s = s._replace(b=normal((n, 8), seed=3), x0=normal((n, 8), seed=4)).leaves()
    x, norms, _ = fused(s, 20)
    gx, gnorms = normal(x.shape, seed=8), normal(norms.shape, seed=9)
    every = torch.autograd.grad((x, norms), s.inputs, (gx, gnorms), retain_graph=True)
    some = torch.zeros(8, dtype=torch.float64)
    some[learning] = 1
    found = torch.autograd.grad((x, norms), s.inputs, (gx * some, gnorms * some))
    for f, w in zip(found[-2:], every[-2:], strict=True):  # of b and x0
        assert torch.equal(f[:, learning], w[:, learning])
        assert (f[:, some == 0] == 0).all()
    alone = s._replace(b=s.b.detach()[:, learning], x0=s.x0.detach()[:, learning]).leaves()
    y, history = dense(alone, 20)
    wanted = torch.autograd.grad((y, history), alone.inputs, (gx[:, learning], gnorms[:, learning]))
    close(found[:-2], wanted[:-2], 1e-7)


def test_no_cotangent_at_all():
    s = system("product", "columns").leaves()
    x, _, _ = fused(s, 5)
    assert all((g == 0).all() for g in torch.autograd.grad(x, s.inputs, torch.zeros_like(x)))


def test_items_of_a_batch_without_a_cotangent():
    s = system("diagonal", "batch of all").leaves()
    x, _, _ = fused(s, 5)
    g = torch.zeros_like(x)
    g[1] = normal(g[1].shape)
    grads = torch.autograd.grad(x, s.inputs, g)
    assert all((t[0] == 0).all() and (t[1] != 0).any() for t in grads)
