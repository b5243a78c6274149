"""The direct solve: values, derivatives and transformations, against dense matrices and SciPy."""

import itertools
import tracemalloc

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from ops.direct import (
    VALUES,
    P,
    assert_solves,
    batch_of_values,
    convection,
    dense,
    matrices,
    pair,
    sparse,
    without_diagonal,
)
from reference import UNIT_ROUNDOFF, densify, gradients, layouts, normal, peak
from torch import func
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

MATRICES = matrices()
EITHER = pytest.mark.parametrize("transpose", [False, True], ids=["", "transpose"])
# Of values and of b.
BATCHES = {
    "vector": ((), (5,)),
    "matrix": ((), (5, 3)),
    "batch of b": ((), (2, 5, 3)),
    "batch of values": ((2,), (5, 3)),
    "batch of values, vector": ((2,), (5,)),
    "batch of both": ((2,), (2, 5, 3)),
    "broadcast": ((3, 1), (2, 5, 2)),
    "one of one": ((1,), (1, 5, 1)),
}
EVERY_BATCH = pytest.mark.parametrize("shapes", BATCHES.values(), ids=BATCHES.keys())


def inputs_of(shapes, requires_grad=False):
    values, b = shapes
    v = batch_of_values(*values) if values else VALUES.clone()
    return [t.requires_grad_(requires_grad) for t in (v, normal(b, seed=1))]


@EITHER
@pytest.mark.parametrize("name", MATRICES)
def test_value_and_gradients(name, transpose):
    for index, dtype, k in itertools.product(
        (torch.int32, torch.int64), (torch.float32, torch.float64), ((), (1,), (3,), (0,))
    ):
        Q, v = pair(MATRICES[name], index, dtype)
        b = normal((Q.shape[0], *k), dtype, seed=1)
        D = densify(Q, v.double())
        D = D.mT if transpose else D
        what = f"{name}, {index}, {dtype}, {k}"

        x = sparse(v, b, transpose, Q)
        assert x.dtype == dtype
        exact = dense(v.double(), b.double(), transpose, Q)
        assert_solves(x, exact, D, what)

        g = normal(x.shape, dtype, seed=2)
        gv, gb = gradients(lambda v, b: sparse(v, b, transpose, Q), [v, b], g)  # noqa: B023
        wv, wb = gradients(lambda v, b: dense(v, b, transpose, Q), [v.double(), b.double()], g.double())  # noqa: B023
        assert gv.dtype == gb.dtype == dtype
        assert_solves(gb, wb, D, f"gradient for b, {what}")
        if x.numel():
            # y x^T summed over the columns: the errors of both solves.
            bound = 32 * len(D) * UNIT_ROUNDOFF[dtype] * torch.linalg.cond(D, torch.inf)
            size = (wb.abs() * exact.abs().amax(0)).amax(0).sum()
            assert (gv.double() - wv).abs().max() <= bound * size, what


def poisson(side):
    S = ls.problems.poisson((side, side)).to_scipy()
    return scipy.sparse.csr_array(S)


@pytest.mark.parametrize(
    "S",
    [poisson(60), convection(60), without_diagonal(60), scipy.sparse.csr_array(convection(40)[::-1])],
    ids=["poisson", "convection", "no diagonal", "rows upside down"],
)
@EITHER
def test_against_scipy(S, transpose):
    A = ls.CSR.from_scipy(S)
    M = S.T if transpose else S
    size = abs(M)
    b = np.random.default_rng(0).standard_normal((S.shape[0], 4))
    x = ls.ops.spsolve(A, torch.from_numpy(b), transpose=transpose).numpy()
    # Backward stable: the residual is small against |A||x|, row by row of the norm.
    assert np.abs(M @ x - b).max() <= 1e-13 * (size @ np.abs(x)).max()
    wanted = scipy.sparse.linalg.spsolve(M.tocsc(), b)
    np.testing.assert_allclose(x, wanted, rtol=1e-9, atol=1e-11 * np.abs(wanted).max())


def test_pivots_where_dominance_does_not_hold():
    """[[tiny, 1], [1, 1]] eliminated in order loses everything."""
    D = torch.tensor([[1e-20, 1.0], [1.0, 1.0]], dtype=torch.float64)
    x = ls.ops.spsolve(ls.CSR.from_dense(D), torch.tensor([1.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(x, torch.ones(2, dtype=torch.float64), rtol=1e-15, atol=0)


def test_nonsymmetric_adjoint():
    """The default adjoint is that of A^T. With A in its place this would be off by much."""
    v, b = VALUES.clone(), normal((5,)).requires_grad_()
    g = normal((5,), seed=1)
    (gb,) = torch.autograd.grad(sparse(v, b), b, g)
    D = densify(P, v)
    torch.testing.assert_close(gb, torch.linalg.solve(D.mT, g), rtol=1e-13, atol=1e-13)
    assert (gb - torch.linalg.solve(D, g)).abs().max() > 0.1


@EITHER
def test_small_cotangents_are_not_zero(transpose):
    """The adjoint is linear in the cotangent: scaled by a power of two, it scales to the bit."""
    inputs = inputs_of(BATCHES["matrix"])
    g = normal((5, 3), seed=2)
    wanted = gradients(lambda *a: sparse(*a, transpose), inputs, g)
    for scale in (2.0**-40, 2.0**-200, 2.0**60):
        found = gradients(lambda *a: sparse(*a, transpose), inputs, g * scale)
        assert all(torch.equal(f, w * scale) for f, w in zip(found, wanted, strict=True))
    found = gradients(lambda *a: sparse(*a, transpose), inputs, 1e-12 * g)
    assert all((f != 0).any() for f in found)


def test_float32_is_solved_in_float32_and_float64_is_not():
    for dtype in (torch.float32, torch.float64):
        x = sparse(VALUES.to(dtype), torch.ones(5, dtype=dtype))
        error = (x.double() - dense(VALUES, torch.ones(5, dtype=torch.float64))).abs().max()
        assert x.dtype == dtype
        assert (error > 1e-12) == (dtype == torch.float32)
        kind = ls.ops.factorized(ls.CSR(VALUES.to(dtype), P))._factors._kept[0][1][0].factors.L.dtype
        assert kind == torch.empty(0, dtype=dtype).numpy().dtype


@EVERY_BATCH
@EITHER
def test_derivatives(shapes, transpose):
    inputs = inputs_of(shapes, requires_grad=True)

    def f(*a):
        return sparse(*a, transpose)

    torch.testing.assert_close(f(*inputs), dense(*inputs, transpose), rtol=1e-12, atol=1e-12)
    assert gradcheck(
        f, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    if len(shapes[1]) < 3 or shapes[0] == (2,):
        assert gradgradcheck(f, inputs, check_fwd_over_rev=True, check_batched_grad=True)


@EVERY_BATCH
@EITHER
def test_torch_func(shapes, transpose):
    inputs = tuple(inputs_of(shapes))
    tangents = tuple(normal(t.shape, seed=20 + i) for i, t in enumerate(inputs))

    def both(transform):
        found = transform(lambda *a: sparse(*a, transpose))
        wanted = transform(lambda *a: dense(*a, transpose))
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)

    def loss(f):
        return lambda *a: torch.sin(f(*a)).sum()

    g = normal(dense(*inputs).shape, seed=30)
    both(lambda f: func.grad(loss(f), argnums=(0, 1))(*inputs))
    both(lambda f: func.vjp(f, *inputs)[1](g))
    both(lambda f: func.jvp(f, inputs, tangents))
    both(lambda f: func.jacrev(f, argnums=(0, 1))(*inputs))
    both(lambda f: func.jacfwd(f, argnums=(0, 1))(*inputs))
    both(lambda f: func.hessian(loss(f), argnums=(0, 1))(*inputs))
    both(lambda f: func.jacrev(func.jacrev(loss(f), argnums=(0, 1)), argnums=(0, 1))(*inputs))
    both(lambda f: func.jvp(lambda *a: func.grad(loss(f), argnums=(0, 1))(*a), inputs, tangents))


@EVERY_BATCH
def test_vmap(shapes):
    values, b = inputs_of(shapes)
    V = torch.stack([values * s for s in (1.0, 1.5, -0.7)])
    B = torch.stack([normal(b.shape, seed=s) for s in (3, 4, 5)])

    def gradient(*a):
        return func.grad(lambda *c: torch.sin(sparse(*c)).sum(), argnums=(0, 1))(*a)

    for (v, v_dim), (c, c_dim), out in itertools.product(
        ((values, None), (V, 0), (V.movedim(0, -1), -1)), ((b, None), (B, 0), (B.movedim(0, -1), -1)), (0, -1)
    ):
        if v_dim is None and c_dim is None:
            continue
        dims = (v_dim, c_dim)
        ones = [(V[i] if v_dim is not None else v, B[i] if c_dim is not None else c) for i in range(3)]
        found = torch.vmap(sparse, in_dims=dims, out_dims=out)(v, c)
        wanted = torch.stack([sparse(*one) for one in ones], out)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        if out == 0:
            found = torch.vmap(gradient, in_dims=dims)(v, c)
            wanted = tuple(torch.stack(t) for t in zip(*(gradient(*one) for one in ones), strict=True))
            torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)
            g = normal(torch.vmap(sparse, in_dims=dims)(v, c).shape, seed=8)
            found = gradients(torch.vmap(sparse, in_dims=dims), [v, c], g)
            wanted = gradients(torch.vmap(dense, in_dims=dims), [v, c], g)
            torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


def test_nested_vmap():
    values, b = inputs_of(BATCHES["vector"])
    for outer, inner in itertools.product(range(2), repeat=2):
        stacks = [values, b]
        stacks[inner] = torch.stack([stacks[inner] * s for s in (1, 2, -3)])
        stacks[outer] = torch.stack([stacks[outer] * s for s in (1, -0.5)])

        def nested(f):
            inside = torch.vmap(f, in_dims=tuple(0 if i == inner else None for i in range(2)))  # noqa: B023
            return torch.vmap(inside, in_dims=tuple(0 if i == outer else None for i in range(2)))  # noqa: B023

        torch.testing.assert_close(nested(sparse)(*stacks), nested(dense)(*stacks), rtol=1e-12, atol=1e-12)


@EITHER
def test_a_batch_is_a_loop(transpose):
    V, B = batch_of_values(3, 2), normal((4, 1, 2, 5, 3))
    x = sparse(V, B, transpose)
    assert x.shape == (4, 3, 2, 5, 3)
    for i, j, k in itertools.product(range(4), range(3), range(2)):
        one = sparse(V[j, k], B[i, 0, k], transpose)
        torch.testing.assert_close(x[i, j, k], one, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("n", "values", "b"),
    [
        (0, (), (0,)),
        (0, (), (0, 3)),
        (0, (2,), (0, 3)),
        (0, (2,), (0,)),
        (0, (), (2, 0, 3)),
        (5, (), (5, 0)),
        (5, (2,), (5, 0)),
        (5, (0,), (5,)),
        (5, (0,), (0, 5, 2)),
        (5, (), (0, 5, 2)),
        (5, (3, 0), (5, 2)),
    ],
)
def test_empty(n, values, b):
    Q = P if n else pair(scipy.sparse.csr_array((0, 0)))[0]
    v = VALUES.expand((*values, P.nnz)) if n else torch.empty((*values, 0), dtype=torch.float64)
    v, c = v.clone().requires_grad_(), normal(b).requires_grad_()
    x = sparse(v, c, False, Q)
    batch = torch.broadcast_shapes(values, b[:-2])
    assert x.shape == (*batch, *(b if len(b) == 1 else b[-2:]))
    gv, gb = torch.autograd.grad(x.sum(), (v, c), create_graph=True)
    assert torch.equal(gv, torch.zeros_like(v))
    assert gb.shape == c.shape
    ls.ops.factorized(ls.CSR(v, Q))(c)


@EVERY_BATCH
def test_gradient_of_some_inputs_only(shapes):
    inputs = inputs_of(shapes)
    out = sparse(*inputs)
    assert not out.requires_grad
    g = normal(out.shape, seed=9)
    together = gradients(sparse, inputs, g)
    for i in (0, 1):
        some = [t.clone().requires_grad_(j == i) for j, t in enumerate(inputs)]
        sparse(*some).backward(g)
        assert torch.equal(some[i].grad, together[i])
        assert some[1 - i].grad is None


def test_any_layout():
    for name in ("vector", "matrix", "batch of both"):
        inputs = inputs_of(BATCHES[name])
        for what, b in layouts(inputs[1]):
            copy = b.clone(memory_format=torch.contiguous_format)
            assert torch.equal(sparse(inputs[0], b), sparse(inputs[0], copy)), what
        for what, v in layouts(inputs[0]):
            if "expanded" in what or "overlapping" in what:
                continue  # singular, or two matrices that are one: below
            copy = v.clone(memory_format=torch.contiguous_format)
            b = inputs[1]
            pairs = zip(gradients(sparse, [v, b], b), gradients(sparse, [copy, b], b), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), what
        for what, g in layouts(normal(inputs[1].shape, seed=9)):
            copy = g.clone(memory_format=torch.contiguous_format)
            pairs = zip(gradients(sparse, inputs, g), gradients(sparse, inputs, copy), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), f"cotangent, {what}"
    one = VALUES.expand(3, P.nnz)
    b = normal((5, 2))
    torch.testing.assert_close(sparse(one, b), sparse(VALUES, b).expand(3, 5, 2), rtol=0, atol=0)
    assert sparse(VALUES, normal((5, 4)).mT.contiguous().mT).is_contiguous()


def test_inputs_stay_as_they_are_and_share_nothing():
    inputs = inputs_of(BATCHES["matrix"])
    before = [t.clone() for t in inputs]
    g = torch.ones(5, 3, dtype=torch.float64)
    gradients(sparse, inputs, g)
    x = sparse(*inputs)
    x.zero_()
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
    assert torch.equal(g, torch.ones_like(g))


def test_explicit_zeros_stay_entries():
    v, b = VALUES.clone().requires_grad_(), normal((5,))
    x = sparse(v, b)
    (gv,) = torch.autograd.grad(x, v, normal((5,), seed=1))
    assert (gv[(VALUES == 0).nonzero()] != 0).all()


def test_modes():
    v, b = inputs_of(BATCHES["vector"], requires_grad=True)
    wanted = sparse(v, b).detach()
    with torch.no_grad():
        assert torch.equal(sparse(v, b), wanted)
    with torch.inference_mode():
        assert torch.equal(sparse(v, b), wanted)
        F = ls.ops.factorized(ls.CSR(VALUES.clone(), P))
        assert torch.equal(F(b), wanted)
    assert torch.equal(F(b.detach()), wanted)


def test_the_graph_that_torch_records_solves():
    """Not a constant: the operator stands in it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    v, b = inputs_of(BATCHES["matrix"])
    graph = make_fx(func.grad(lambda v, b: (sparse(v, b) ** 2).sum(), argnums=(0, 1)))(v, b)
    w, c = batch_of_values(1)[0], normal((5, 3), seed=7)
    wanted = func.grad(lambda v, b: (dense(v, b) ** 2).sum(), argnums=(0, 1))(w, c)
    torch.testing.assert_close(graph(w, c), wanted, rtol=1e-11, atol=1e-11)


def test_memory():
    """O(nnz of A and of its factors + n k): no dense matrix, no column for each entry."""
    n, k = 20_000, 16
    A = ls.problems.poisson((n,))
    v, b = A.values.clone().requires_grad_(), normal((n, k)).requires_grad_()
    g = torch.ones(n, k, dtype=torch.float64)

    def call():
        return torch.autograd.grad(ls.ops.spsolve(A.with_values(v), b), (v, b), g)

    call()
    tracemalloc.start()  # what NumPy holds; SuperLU and torch hold theirs elsewhere
    call()
    numpy_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    word = 8
    assert numpy_peak <= (6 * n * k + 12 * A.nnz) * word
    assert peak(call) <= (6 * n * k + 12 * A.nnz) * word
