"""ic0, mic0 and ilu0: derivatives of the third order, on larger patterns, with a shift."""

import pytest
import torch
from ops.incomplete_cases import STRUCTURES, dominant, every_elimination, library, loops, small
from reference import normal, pattern_of

CLOSE = {"rtol": 1e-11, "atol": 1e-11}


@every_elimination
def test_third_derivatives(kind):
    P = small()
    v, t = dominant(P), normal((P.nnz,), seed=1)

    def third(f):
        def along(h):
            return lambda v: (torch.func.grad(h)(v) * t).sum()

        return torch.func.grad(along(along(lambda v: torch.sin(f(kind, P, v)).sum())))(v)

    torch.testing.assert_close(third(library), third(loops), **CLOSE)


@every_elimination
@pytest.mark.usefixtures("fresh_compiler")
def test_compile_with_a_shift(kind):
    P, shift = small(), torch.tensor(0.1, dtype=torch.float64)
    f = torch.compile(lambda v, s: library(kind, P, v, shift=s), fullgraph=True, backend="aot_eager")
    batch = dominant(P, (2,))
    torch.testing.assert_close(f(batch, shift), library(kind, P, batch, shift=shift), **CLOSE)


def _hessian_product(f, v, t):
    return torch.func.jvp(torch.func.grad(lambda v: (f(v) ** 3).sum()), (v,), (t,))[1]


@every_elimination
@pytest.mark.parametrize("structure", ["9 points", "power law", "random symmetric"])
def test_second_derivatives_on_larger_patterns(kind, structure):
    """In float32 too: what the derivative checks do not reach."""
    P = pattern_of(STRUCTURES[structure])
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        v, t = dominant(P, dtype=dtype), normal((P.nnz,), dtype, seed=1)

        found = _hessian_product(lambda v: library(kind, P, v), v, t)
        wanted = _hessian_product(lambda v: loops(kind, P, v), v.double(), t.double())
        scale = float(wanted.abs().max())
        torch.testing.assert_close(found.double() / scale, wanted / scale, rtol=tolerance, atol=tolerance)
