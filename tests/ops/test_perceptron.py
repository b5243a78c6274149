"""Narrow perceptrons on edges and nodes against torch's matrix products."""

import pytest
import torch
from reference import normal, pattern_of, random
from torch.autograd import gradcheck, gradgradcheck

from learnsolve.ops.core.perceptron import composed, perceptron

GRAPH = pattern_of(random(9, 9, 0.4))


def operands(k, f, o, dtype=torch.float64, batch=(), n=None):
    """z, ends, W1, b1, W2, b2; on the edges of GRAPH without n, with one layer for o = 0."""
    edges = n is None
    shapes = ((*batch, GRAPH.nnz if edges else n, k), (*batch, 18, f) if edges else (0,), (f, k), (f,))
    shapes += ((o, f), (o,)) if o else ((0,), (0,))
    return [normal(shape, dtype, seed) for seed, shape in enumerate(shapes)]


def ours(P):
    def f(z, ends, w1, b1, w2, b2):
        return perceptron(z, (w1, b1), (w2, b2) if w2.numel() else None, None if P is None else ends, P)

    return f


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=len)
@pytest.mark.parametrize(
    "n", [None, 1, 40, 1100], ids=["edges", "1", "40", "1100"]
)  # a tile has 32, a chunk 512
def test_equal_to_the_composition(n, batch, dtype):
    P = GRAPH if n is None else None
    for k, f, o in ((1, 8, 8), (8, 8, 1), (24, 8, 8), (3, 5, 2), (9, 17, 0), (8, 16, 0), (2, 1, 3)):
        given = [t.requires_grad_() for t in operands(k, f, o, dtype, batch, n)]
        y, (wanted,) = ours(P)(*given), composed(P)(*given)
        tolerance = {"rtol": 0, "atol": (1e-5 if dtype == torch.float32 else 1e-14) * (k + f)}
        torch.testing.assert_close(y, wanted, **tolerance)
        g = normal(y.shape, dtype, 9)
        both = (torch.autograd.grad(out, given, g, allow_unused=True) for out in (y, wanted))
        for a, b in zip(*both, strict=True):
            if b is not None and b.numel():
                torch.testing.assert_close(a, b, rtol=0, atol=tolerance["atol"] * float(b.abs().max() + 1))


def test_gradients_of_any_order():
    for P, n in ((GRAPH, None), (None, 4)):
        for o in (2, 0):
            given = [t.requires_grad_(t.numel() > 0) for t in operands(2, 3, o, n=n)]
            assert gradcheck(ours(P), given, check_forward_ad=True, check_batched_grad=True, fast_mode=True)
            assert gradgradcheck(ours(P), given, check_fwd_over_rev=True, fast_mode=True)


def test_gradients_that_are_asked_for():
    """Without the others: of no operand alone is anything lost, in the second derivative neither."""
    given = [t.requires_grad_() for t in operands(3, 5, 2)]
    wanted = torch.autograd.grad(ours(GRAPH)(*given).sin().sum(), given, create_graph=True)
    for i in range(6):
        alone = [t.detach().requires_grad_(i == j) for j, t in enumerate(given)]
        (found,) = torch.autograd.grad(ours(GRAPH)(*alone).sin().sum(), alone[i], create_graph=True)
        assert torch.equal(found, wanted[i])
        (again,) = torch.autograd.grad(wanted[i].square().sum(), given[i], retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(found.square().sum(), alone[i])[0], again)


def test_vmap_over_all_operands():
    given = operands(3, 4, 2, batch=(3,))
    given[2:] = [torch.stack([t, 2 * t, -t]) for t in given[2:]]
    wanted = torch.stack([ours(GRAPH)(*(t[i] for t in given)) for i in range(3)])
    torch.testing.assert_close(torch.vmap(ours(GRAPH))(*given), wanted)
    gradient = torch.func.grad(lambda *t: ours(GRAPH)(*t).sin().sum(), argnums=(0, 2))
    one_by_one = [gradient(*(t[i] for t in given)) for i in range(3)]
    for a, b in zip(torch.vmap(gradient)(*given), zip(*one_by_one, strict=True), strict=True):
        torch.testing.assert_close(a, torch.stack(b))


def test_nan_and_infinity_as_with_torch():
    given = operands(3, 8, 2, n=5)
    given[0][1, 0], given[0][2, 1] = torch.nan, torch.inf
    given[0].requires_grad_()
    y, (wanted,) = ours(None)(*given), composed(None)(*given)
    torch.testing.assert_close(y, wanted, equal_nan=True)
    (a,), (b,) = (torch.autograd.grad(out.sum(), given[0]) for out in (y, wanted))
    torch.testing.assert_close(a, b, equal_nan=True)


def test_no_rows():
    for batch in ((), (0,)):
        given = [t.requires_grad_() for t in operands(3, 8, 2, batch=batch, n=0)]
        y = ours(None)(*given)
        assert y.shape == (*batch, 0, 2)
        y.sum().backward()
        assert all(not t.grad.any() for t in given[2:])
