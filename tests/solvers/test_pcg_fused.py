"""Values and first gradients of the compiled conjugate gradients: against their twin, made of public
operations, and against dense autograd."""

import pytest
import torch
from reference import banded, normal, random
from scipy.sparse import eye_array
from solvers.dense_pcg import SHAPES, System, dense, fused, gradients, system, unfused

import learnsolve as ls
from learnsolve import _device_analysis
from learnsolve.ops._pcg_unfused import Stop
from learnsolve.ops.pcg import KINDS, pcg_iterations

N = 6


def close(found, wanted, tolerance):
    for i, (f, w) in enumerate(zip(found, wanted, strict=True)):
        # Some are zero but for rounding.
        scale = max(float(w.detach().abs().max()), 1e-3) if w.numel() else 1.0
        torch.testing.assert_close(f / scale, w / scale, rtol=0, atol=tolerance, msg=lambda m: f"{i}: {m}")  # noqa: B023


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_as_dense(kind, shape):
    for start in (True, False):
        s = system(kind, shape, start=start)
        wanted = gradients(s, dense, N)
        close(gradients(s, fused, N), wanted, 1e-11)
        close(gradients(s, unfused, N), wanted, 1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_not_symmetric(kind):
    """The adjoint is that of the iterations, whatever A is."""
    s = system(kind, "columns", symmetric=False)
    close(gradients(s, fused, N), gradients(s, dense, N), 1e-10)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", ["vector", "columns"])
@pytest.mark.parametrize("kind", KINDS)
def test_types(kind, shape, index):
    s = system(kind, shape, index=index)
    wanted = gradients(s, dense, N)
    close(gradients(s, fused, N), wanted, 1e-11)
    single = system(kind, shape, dtype=torch.float32, index=index)
    found = gradients(single, fused, N)
    assert all(t.dtype == torch.float32 for t in found)
    close([t.double() for t in found], wanted, 2e-4)


def test_factor_of_another_index_type():
    s = system("product", index=torch.int64)
    for name in ("P", "factor"):
        other = s._replace(**{name: getattr(s, name).to(dtype=torch.int32)})
        for f, w in zip(gradients(other, fused, N), gradients(s, fused, N), strict=True):
            assert torch.equal(f, w)


def test_rectangular_factor():
    P = system("none").P
    factor = ls.CSR.from_dense(torch.from_numpy(random(25, 40, 0.2).toarray()) + torch.eye(25, 40)).pattern
    m = normal((factor.nnz,), seed=5)
    s = system("none")._replace(m=m, factor=factor, kind="product")
    assert s.P.shape == P.shape
    close(gradients(s, fused, 4), gradients(s, dense, 4), 1e-9)


def test_entries_above_the_diagonal_are_not_read():
    s = system("triangular", index=torch.int64)
    m = torch.where(s.P.row_indices == s.P.col_indices, 2.0, 0.1).double()
    full = s._replace(m=m, factor=s.P)
    below = s.P.col_indices <= s.P.row_indices
    found, wanted = gradients(full, fused, N), gradients(s._replace(m=m[below]), fused, N)
    close([*found[:3], found[3][below], *found[4:]], wanted, 1e-12)
    assert (found[3][~below] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("gx", "gnorms"), [(True, False), (False, True)])
def test_one_of_the_cotangents(kind, gx, gnorms):
    for shape in ("vector", "columns"):
        s = system(kind, shape)
        close(gradients(s, fused, N, gx, gnorms), gradients(s, dense, N, gx, gnorms), 1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_asked_for(kind):
    s = system(kind, "columns")
    wanted = gradients(s, fused, N)[2:]
    for i in range(len(s.inputs)):
        inputs = [t.detach().clone().requires_grad_(j == i) for j, t in enumerate(s.inputs)]
        x, norms, _ = fused(s.with_inputs(*inputs), N)
        loss = (x * normal(x.shape, seed=8)).sum() + (norms * normal(norms.shape, seed=9)).sum()
        (found,) = torch.autograd.grad(loss, inputs[i])
        assert torch.equal(found, wanted[i])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "S", [eye_array(1), eye_array(2), banded(40, 3)[:, :40] + eye_array(40)], ids=["1", "2", "40"]
)
def test_small_and_uniform(kind, S):
    for shape in ("vector", "columns"):
        for iterations in (0, 1, 17, 33):
            s = system(kind, shape, S, symmetric=False)
            close(gradients(s, fused, iterations), gradients(s, unfused, iterations), 1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_empty(kind):
    s = system(kind, "columns")
    for b in (s.b[:, :0], s.b[None, :, :0], s.b.expand(0, *s.b.shape)):
        t = s._replace(b=b, x0=torch.zeros_like(b)).leaves()
        x, norms, status = fused(t, 3)
        assert x.shape == b.shape
        assert norms.shape == (*b.shape[:-2], 4, b.shape[-1])
        assert status.shape == (*b.shape[:-2], 2, b.shape[-1])
        grads = torch.autograd.grad(x.sum() + norms.sum(), t.inputs)
        assert all((g == 0).all() and g.shape == u.shape for g, u in zip(grads, t.inputs, strict=True))
    none = ls.SparsityPattern(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), (0, 0))
    v = torch.zeros(0, dtype=torch.float64)
    x, norms, status = pcg_iterations(v, v, None, none, 2)
    assert x.shape == (0,)
    assert norms.tolist() == [0, 0, 0]
    assert status.tolist() == [Stop.ROUNDING, 0]


def test_not_contiguous():
    s = system("product", "columns")
    spread = [torch.stack((t, t), -1)[..., 0] for t in s.inputs]
    assert not any(t.is_contiguous() for t in spread)
    for f, w in zip(gradients(s.with_inputs(*spread), fused, N), gradients(s, fused, N), strict=True):
        assert torch.equal(f, w)
    wide = s._replace(b=s.b[:, :1].expand(-1, 3), x0=None)
    close(gradients(wide, fused, N)[:2], dense(wide, N), 1e-11)


def test_a_zero_on_the_diagonal_of_the_factor():
    s = system("triangular")
    m = s.m.clone()
    m[0] = 0
    if _device_analysis.everywhere:  # a CUDA operator does not look: nothing is divided, and x0 stays
        x, _, status = fused(s._replace(m=m), 2)
        assert torch.equal(x, s.x0)
        assert status.tolist() == [Stop.NON_FINITE, 0]
        return
    with pytest.raises(RuntimeError, match="diagonal of the factor: row 0 has 0"):
        fused(s._replace(m=m), 2)


def test_a_small_cotangent_is_not_zero():
    s: System = system("product", "columns").leaves()
    x, _, _ = fused(s, N)
    g = normal(x.shape, seed=8)
    large = torch.autograd.grad(x, s.inputs, g, retain_graph=True)
    small = torch.autograd.grad(x, s.inputs, g * 2.0**-60)
    assert all(torch.equal(a * 2.0**-60, b) for a, b in zip(large, small, strict=True))
