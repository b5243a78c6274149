"""Sums of columns in an order of their own: values, and derivatives of long vectors, which take the compiled
form (here those of any length do)."""

import pytest
import torch
from reference import assert_within, inputs_for, normal
from torch.autograd import gradcheck, gradgradcheck

from learnsolve.ops.core import dots

# Of operands a (..., k), u and v (..., n, k).
BATCHES = {"one": ((), ()), "batch": ((3,), (3,)), "shared": ((3,), ()), "two axes": ((2, 1), (1, 3))}


@pytest.fixture(autouse=True)
def always_compiled(monkeypatch):
    monkeypatch.setattr(dots, "SPLIT", 0)


def scaled(u, v):
    return dots.scaled(u[..., :1, :], v)


def combination(u, v):
    a = u[..., :1, :]
    return dots.combination(torch.stack((a, a * a)), torch.stack((v, -v)))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 33])
@pytest.mark.parametrize("n", [0, 1, 7, 150, 5000])
def test_values(n, k, dtype):
    u, v = normal((2, n, k), dtype), normal((2, n, k), dtype, seed=1)
    terms = torch.tensor(float(n))
    for a, b in (
        (u, v),
        (u[0], v[0]),
        (u, v[0]),
        (u[0], v),
        (u, torch.ones((), dtype=dtype).expand(v.shape)),
    ):
        wanted, size = ((f(a.double()) * f(b.double())).sum(-2) for f in (torch.clone, torch.abs))
        assert_within(dots.dots(a, b), wanted, size, terms)
    a = normal((2, 1, k), dtype, seed=2)
    wanted, size = ((f(a.double()) * f(v.double())).sum(0) for f in (torch.clone, torch.abs))
    assert_within(dots.combination(a, v), wanted, size, torch.tensor(2.0))


@pytest.mark.parametrize(
    ("function", "batch"),
    [(f, b) for f in (dots.dots, scaled) for b in BATCHES] + [(combination, b) for b in ("one", "batch")],
)
def test_derivatives(function, batch):
    inputs = inputs_for(tuple((*axes, 4, 2) for axes in BATCHES[batch]), requires_grad=True)
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("function", [dots.dots, scaled, combination])
def test_transformations(function):
    u, v = inputs_for(((3, 4, 2), (3, 4, 2)))
    wanted = torch.stack([function(a, b) for a, b in zip(u, v, strict=True)])
    torch.testing.assert_close(torch.vmap(function)(u, v), wanted)
    shared = torch.stack([function(a, v[0]) for a in u])
    torch.testing.assert_close(torch.vmap(function, (0, None))(u, v[0]), shared)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("function", [dots.dots, scaled, combination])
def test_compiled(function):
    u, v = inputs_for(((4, 2), (4, 2)), requires_grad=True)
    wanted = function(u, v)
    found = torch.compile(function, fullgraph=True, backend="aot_eager")(u, v)
    torch.testing.assert_close(found, wanted)
    for g, h in zip(*(torch.autograd.grad(t.sum(), (u, v)) for t in (found, wanted)), strict=True):
        torch.testing.assert_close(g, h)
