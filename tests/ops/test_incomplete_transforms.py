"""ic0, mic0 and ilu0 under every transformation: derivatives of any order, vmap, torch.func, compile."""

import itertools

import pytest
import torch
from ops.incomplete_cases import KINDS, STRUCTURES, dominant, library, loops, small
from reference import gradients, normal, pattern_of
from torch.autograd import gradcheck, gradgradcheck

every_kind = pytest.mark.parametrize("kind", KINDS)
CLOSE = {"rtol": 1e-11, "atol": 1e-11}


@every_kind
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
def test_gradcheck(kind, batch):
    P = small()
    v = dominant(P, batch).requires_grad_()
    f = lambda v: library(kind, P, v)  # noqa: E731
    assert gradcheck(f, (v,), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    assert gradgradcheck(f, (v,), check_fwd_over_rev=True, check_batched_grad=True)


@every_kind
def test_torch_func(kind):
    P = small()
    v, t = dominant(P), normal((P.nnz,), seed=1)
    func = torch.func

    def both(transform):
        found, wanted = (transform(lambda v, f=f: f(kind, P, v)) for f in (library, loops))
        torch.testing.assert_close(found, wanted, **CLOSE)

    def loss(f):
        return lambda v: torch.sin(f(v)).sum()

    both(lambda f: func.grad(loss(f))(v))
    both(lambda f: func.jvp(f, (v,), (t,)))
    both(lambda f: func.jacrev(f)(v))
    both(lambda f: func.jacfwd(f)(v))
    both(lambda f: func.hessian(loss(f))(v))
    both(lambda f: func.jacrev(func.jacrev(loss(f)))(v))
    both(lambda f: func.jvp(func.grad(loss(f)), (v,), (t,)))
    both(lambda f: func.jvp(lambda v: func.jvp(f, (v,), (t,))[1], (v,), (t,)))


@every_kind
def test_third_derivatives(kind):
    P = small()
    v, t = dominant(P), normal((P.nnz,), seed=1)

    def third(f):
        def along(h):
            return lambda v: (torch.func.grad(h)(v) * t).sum()

        return torch.func.grad(along(along(lambda v: torch.sin(f(kind, P, v)).sum())))(v)

    torch.testing.assert_close(third(library), third(loops), **CLOSE)


@every_kind
def test_vmap(kind):
    P = small()
    f = lambda v: library(kind, P, v)  # noqa: E731
    gradient = torch.func.grad(lambda v: torch.sin(f(v)).sum())
    for dim, batch in itertools.product((0, -1), ((), (2,))):
        singles = [dominant(P, batch, seed=s) for s in range(3)]
        stack = torch.stack(singles, dim)
        for function in (f, gradient):
            wanted = torch.stack([function(s) for s in singles])
            torch.testing.assert_close(torch.vmap(function, in_dims=dim)(stack), wanted, **CLOSE)
        g = normal(torch.vmap(f, in_dims=dim)(stack).shape)
        (found,) = gradients(torch.vmap(f, in_dims=dim), [stack], g)
        (wanted,) = gradients(lambda s: torch.stack([f(t) for t in s.unbind(dim)]), [stack], g)  # noqa: B023
        torch.testing.assert_close(found, wanted, **CLOSE)
    nested = dominant(P, (3, 2))
    torch.testing.assert_close(torch.vmap(torch.vmap(gradient))(nested), gradient(nested), **CLOSE)


@every_kind
def test_any_layout(kind):
    P = small()
    v = dominant(P, (3,))
    wide = torch.full((3, P.nnz, 2), torch.nan, dtype=v.dtype)
    wide[..., 0] = v
    views = [wide[..., 0], v.mT.contiguous().mT, v[:1].expand(3, P.nnz), v[1].expand(2, 3, P.nnz)]
    for view in views:
        copy = view.clone(memory_format=torch.contiguous_format)
        assert torch.equal(library(kind, P, view), library(kind, P, copy))
        out = library(kind, P, copy)
        for g in (torch.ones((), dtype=v.dtype).expand_as(out), normal(out.shape).mT.contiguous().mT):
            found, wanted = (
                gradients(lambda v: library(kind, P, v), [view], c)[0] for c in (g, g.contiguous())
            )
            assert torch.equal(found, wanted)


@every_kind
def test_inputs_stay_as_they_are(kind):
    P = small()
    v = dominant(P)
    before = v.clone()
    out = library(kind, P, v)
    g = torch.ones_like(out)
    gradients(lambda v: library(kind, P, v), [v], g)
    assert torch.equal(v, before)
    assert torch.equal(g, torch.ones_like(g))


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@every_kind
@pytest.mark.usefixtures("fresh_compiler")
def test_compile(kind):
    """With a pattern that nothing has been computed for yet, then with the same one again."""
    P = small()
    f = torch.compile(lambda v: library(kind, P, v), fullgraph=True, backend="aot_eager")
    for seed in (0, 1):
        v = dominant(P, seed=seed)
        g = normal(loops(kind, P, v).shape, seed=seed)
        torch.testing.assert_close(f(v), loops(kind, P, v), **CLOSE)
        (found,), (wanted,) = gradients(f, [v], g), gradients(lambda v: loops(kind, P, v), [v], g)
        torch.testing.assert_close(found, wanted, **CLOSE)
    shift = torch.tensor(0.1, dtype=torch.float64)
    f = torch.compile(lambda v, s: library(kind, P, v, shift=s), fullgraph=True, backend="aot_eager")
    batch = dominant(P, (2,))
    torch.testing.assert_close(f(batch, shift), library(kind, P, batch, shift=shift), **CLOSE)


def _hessian_product(f, v, t):
    return torch.func.jvp(torch.func.grad(lambda v: (f(v) ** 3).sum()), (v,), (t,))[1]


@every_kind
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
