"""Higher derivatives, forward mode, torch.func and torch.compile through the compiled conjugate gradients."""

import pytest
import torch
from reference import grid, normal
from solvers.dense_pcg import dense, fused, system
from solvers.test_pcg_fused import close
from torch import func

from learnsolve.ops.pcg import KINDS

ITERATIONS = 3
S = grid(5, 2)


def call(s, checkpointed=False):
    return lambda *t: fused(s.with_inputs(*t), ITERATIONS, checkpointed)[:2]


def reference(s):
    return lambda *t: dense(s.with_inputs(*t), ITERATIONS)


def loss(f):
    def value(*a):
        x, norms = f(*a)
        return torch.sin(x).sum() + torch.sin(norms).sum()

    return value


@pytest.mark.few
@pytest.mark.parametrize("shape", ["vector", "columns"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind, shape):
    s = system(kind, shape, S).leaves()
    assert torch.autograd.gradcheck(call(s), s.inputs, check_forward_ad=True)
    mixed = (kind, shape) == ("diagonal", "vector")
    assert torch.autograd.gradgradcheck(call(s), s.inputs, check_fwd_over_rev=mixed, fast_mode=not mixed)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_func(kind):
    for shape in ("vector", "batch of b"):
        s = system(kind, shape, S)
        inputs, every = tuple(s.inputs), tuple(range(len(s.inputs)))
        tangents = tuple(normal(t.shape, seed=20 + i) for i, t in enumerate(inputs))
        for transform in (
            lambda f: func.grad(loss(f), argnums=every)(*inputs),  # noqa: B023
            lambda f: sum(func.jvp(f, inputs, tangents), ()),  # noqa: B023
            lambda f: sum(func.jacrev(f, argnums=every)(*inputs), ()),  # noqa: B023
            lambda f: func.jvp(lambda *a: func.grad(loss(f), argnums=every)(*a), inputs, tangents)[1],  # noqa: B023
        ):
            close(transform(call(s)), transform(reference(s)), 1e-10)


@pytest.mark.few
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["vector", "columns", "batch of b"])
def test_vmap(kind, shape):
    """Over each input alone and over all: values, gradients per sample, gradients of the map."""
    s = system(kind, shape, S)
    every = tuple(range(len(s.inputs)))
    for mapped in (*((i,) for i in every), every):
        stacks = [torch.stack((t, 1.1 * t), -1) if i in mapped else t for i, t in enumerate(s.inputs)]
        in_dims = tuple(-1 if i in mapped else None for i in every)
        for transform in (
            lambda f: torch.vmap(f, in_dims)(*stacks),  # noqa: B023
            lambda f: torch.vmap(func.grad(loss(f), argnums=every), in_dims)(*stacks),  # noqa: B023
            lambda f: func.grad(loss(torch.vmap(f, in_dims)), argnums=every)(*stacks),  # noqa: B023
        ):
            close(transform(call(s)), transform(reference(s)), 1e-10)


def test_nested_vmap():
    s = system("product", "vector", S)
    for outer in range(4):
        for inner in range(4):
            stacks = list(s.inputs)
            for i in (inner, outer):
                stacks[i] = torch.stack((stacks[i], 1.1 * stacks[i]))
            dims = [tuple(0 if i == at else None for i in range(4)) for at in (inner, outer)]
            for f, w in zip(
                torch.vmap(torch.vmap(call(s), dims[0]), dims[1])(*stacks),
                torch.vmap(torch.vmap(reference(s), dims[0]), dims[1])(*stacks),
                strict=True,
            ):
                torch.testing.assert_close(f, w, rtol=1e-11, atol=1e-11)


@pytest.mark.few
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_compile(kind, checkpointed):
    for shape in ("vector", "batch of b"):
        s = system(kind, shape, S).leaves()
        torch._dynamo.reset()
        f = call(s, checkpointed)
        compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
        for wanted, found in zip(f(*s.inputs), compiled(*s.inputs), strict=True):
            assert torch.equal(wanted, found)
        wanted = torch.autograd.grad(loss(f)(*s.inputs), s.inputs)
        found = torch.autograd.grad(loss(compiled)(*s.inputs), s.inputs)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
