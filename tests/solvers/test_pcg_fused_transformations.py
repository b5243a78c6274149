"""torch.compile through the compiled conjugate gradients."""

import pytest
import torch
from reference import grid
from solvers.dense_pcg import fused, system

from learnsolve.ops.pcg import KINDS

ITERATIONS = 3
S = grid(5, 2)


def call(s, checkpointed=False):
    return lambda *t: fused(s.with_inputs(*t), ITERATIONS, checkpointed)[:2]


def loss(f):
    def value(*a):
        x, norms = f(*a)
        return torch.sin(x).sum() + torch.sin(norms).sum()

    return value


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
