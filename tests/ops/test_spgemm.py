"""spgemm and galerkin beyond the table: patterns, masks, batches, errors, and plans, with and without which
they are tested here."""

import copy
import functools
import gc
import itertools
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import (
    assert_same_bits,
    assert_within,
    banded,
    coordinates,
    densify,
    grid,
    matrix,
    normal,
    on_cuda,
    pattern_of,
    power_law,
    random,
    structures,
)
from scipy.sparse import csr_array

import learnsolve as ls
from learnsolve import CSR, ops
from learnsolve.matrix import device_analysis
from learnsolve.ops import sparse_products

STRUCTURES = structures() | {
    "long band": banded(150, 4),
    "grid of 7 points": grid(7, 7),
    "stencil": grid(5, 30),
}


def pairs(S):
    """Products that S takes part in, of every shape."""
    m, n = S.shape
    return [(S, S.T.tocsr()), (S, random(n, 6, 0.4, seed=3)), (random(5, m, 0.3, seed=4), S)]


def symbolic(S, T):
    """The pattern of the product by SciPy: no entry cancels that counts paths."""
    ones = [
        scipy.sparse.csr_array((np.ones(M.nnz, dtype=np.int64), M.indices, M.indptr), M.shape) for M in (S, T)
    ]
    C = scipy.sparse.csr_array(ones[0] @ ones[1])
    C.sort_indices()
    return C


def same_pattern(P, S):
    S = scipy.sparse.csr_array(S)
    return (
        P.shape == S.shape
        and np.array_equal(P.crow_indices.cpu().numpy(), S.indptr)
        and np.array_equal(P.col_indices.cpu().numpy(), S.indices)
    )


def random_mask(shape, seed=5):
    return pattern_of(random(*shape, 0.3, seed))


of_the_cpu = pytest.mark.skipif(on_cuda(), reason="of the CPU operators alone")


@pytest.mark.parametrize("structure", STRUCTURES)
def test_against_scipy(structure, planned, quick):
    types = list(itertools.product((torch.int32, torch.int64), (torch.float32, torch.float64)))
    types = types[:: 3 if quick else 1]
    for (S, T), (index, dtype) in itertools.product(pairs(STRUCTURES[structure]), types):
        A, B = matrix(S, 1, index, dtype), matrix(T, 2, index, dtype)
        C = ops.spgemm(A, B)
        assert C.dtype == dtype
        assert C.pattern.dtype == index
        terms = symbolic(S, T)
        assert same_pattern(C.pattern, terms)
        exact = [M.to_dense().double() for M in (A, B)]
        size = exact[0].abs() @ exact[1].abs()
        at = tuple(torch.as_tensor(i) for i in coordinates(C.pattern))
        assert_within(C.values, (exact[0] @ exact[1])[at], size[at], torch.as_tensor(terms.data), structure)
        # Both gradients, of a cotangent that is no outer product.
        g = normal((C.nnz,), dtype, 3)
        G = C.with_values(g).to_dense().double()
        a, b = (M.values.clone().requires_grad_() for M in (A, B))
        ops.spgemm(A.with_values(a), B.with_values(b)).values.backward(g)
        for v, M, dense, magnitude in (
            (a, A, G @ exact[1].T, G.abs() @ exact[1].abs().T),
            (b, B, exact[0].T @ G, exact[0].abs().T @ G.abs()),
        ):
            at = tuple(torch.as_tensor(i) for i in coordinates(M.pattern))
            most = torch.full(v.shape, float(max(*S.shape, *T.shape)))
            assert_within(v.grad, dense[at], magnitude[at], most, f"gradient, {structure}")


@pytest.mark.parametrize("structure", STRUCTURES)
def test_mask(structure, planned):
    """Only the entries of the mask are computed; gradients flow through them alone."""
    for k, (S, T) in enumerate(pairs(STRUCTURES[structure])):
        A, B = matrix(S, seed=1, grad=True), matrix(T, seed=2, grad=True)
        shape = (S.shape[0], T.shape[1])
        full = ops.spgemm(A, B)
        square = A.pattern if A.shape == shape else random_mask(shape)
        for mask in (random_mask(shape, k), square, full.pattern, pattern_of(scipy.sparse.csr_array(shape))):
            C = ops.spgemm(A, B, mask=mask)
            assert C.pattern is mask
            at = tuple(torch.as_tensor(i) for i in coordinates(mask))
            torch.testing.assert_close(C.values, full.to_dense()[at], rtol=1e-13, atol=1e-13)
            g = normal((mask.nnz,), seed=6)
            found = torch.autograd.grad(C.values, (A.values, B.values), g)
            wanted = torch.autograd.grad(full.to_dense()[at], (A.values, B.values), g, retain_graph=True)
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


STENCILS = {"1D": banded(60, 3), "2D": grid(5, 24), "2D, 9 points": grid(9, 20)}


@of_the_cpu
@pytest.mark.parametrize("structure", STENCILS)
@pytest.mark.usefixtures("isa")
def test_uniform_blocks_against_one_row_at_a_time(structure):
    """Grids are worked on by lanes, without a plan by rows."""
    S = STENCILS[structure]
    T = S.T.tocsr() if S.shape[0] != S.shape[1] else S
    for dtype, batch in itertools.product((torch.float32, torch.float64), ((), (2,))):
        results = []
        for limit in (2**30, 0):
            options = ls.set_options(spgemm_plan_bytes=limit)
            A, B = matrix(S, dtype=dtype), matrix(T, 1, dtype=dtype)
            a = normal((*batch, A.nnz), dtype, 2).requires_grad_()
            b = normal((*batch, B.nnz), dtype, 3).requires_grad_()
            c = ops.spgemm(A.with_values(a), B.with_values(b)).values
            uniform = A.pattern._plan_once(sparse_products._product_plan, B.pattern, None).blocks[:, 2]
            assert bool(uniform.any()) == (limit > 0)
            g = normal(c.shape, dtype, 4)
            both = torch.autograd.grad(c, (a, b), g, retain_graph=True)
            alone = [torch.autograd.grad(c, t, g, retain_graph=True)[0] for t in (a, b)]
            results.append((c.detach(), *both, *alone))
            options.__exit__()
        bound = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
        torch.testing.assert_close(results[0], results[1], rtol=bound, atol=bound)


@pytest.mark.parametrize(
    ("left", "right"),
    [((), (2,)), ((2,), ()), ((2,), (2,)), ((3, 1), (2,)), ((1,), (1,)), ((0,), ()), ((2, 0), (0,))],
)
def test_batches(left, right, planned):
    """Shared operands collect their gradients; the types of indices may differ."""
    for S in (random(7, 7, 0.4), grid(5, 12)):
        A, B = matrix(S, index=torch.int32), matrix(S)
        a, b = (normal((*batch, A.nnz), seed=i).requires_grad_() for i, batch in enumerate((left, right)))
        C = ops.spgemm(A.with_values(a), B.with_values(b))
        assert C.pattern.dtype == torch.int64
        wanted = A.with_values(a).to_dense() @ B.with_values(b).to_dense()
        torch.testing.assert_close(C.to_dense(), wanted, rtol=1e-12, atol=1e-12)
        g = normal(C.values.shape, seed=3)
        found = torch.autograd.grad(C.values, (a, b), g)
        loop = torch.autograd.grad(wanted, (a, b), C.with_values(g).to_dense())
        torch.testing.assert_close(found, loop, rtol=1e-12, atol=1e-12)


def test_a_batch_of_many_adds_up(planned):
    """Gradients of shared values, and a product summed over its batch: more members than a device's
    groups."""
    A, B = matrix(random(6, 6, 0.4)), matrix(random(6, 6, 0.4, 1), 1)
    for left, right in (((71,), ()), ((), (71,)), ((71,), (71,))):
        a, b = (
            normal((*batch, M.nnz), seed=i).requires_grad_()
            for i, (batch, M) in enumerate(((left, A), (right, B)))
        )
        C = ops.spgemm(A.with_values(a), B.with_values(b))
        wanted = A.with_values(a).to_dense() @ B.with_values(b).to_dense()
        g = normal(C.values.shape, seed=3).requires_grad_()
        G = C.with_values(g).to_dense()
        found = torch.autograd.grad(C.values, (a, b), g, create_graph=True)
        dense = torch.autograd.grad(wanted, (a, b), G, create_graph=True)
        torch.testing.assert_close(found, dense, rtol=1e-12, atol=1e-12)
        weights = [normal(t.shape, seed=4) for t in found]
        again, exact = (torch.autograd.grad(x, (a, b, g), weights) for x in (found, dense))
        torch.testing.assert_close(again, exact, rtol=1e-11, atol=1e-11)


def test_entries_that_are_zero_stay_entries(planned):
    ones = torch.ones((), dtype=torch.float64)
    A = CSR.from_dense(torch.tensor([[1.0, 1.0]], dtype=torch.float64))
    B = CSR.from_dense(torch.tensor([[1.0, 2.0], [-1.0, 3.0]], dtype=torch.float64))
    C = A @ B
    assert C.nnz == 2
    assert C.values.tolist() == [0, 5]
    zeros = A.with_values(0 * A.values)
    assert ops.spgemm(zeros, B).nnz == 2
    assert ops.spgemm(A.with_values(ones.expand(2)), B).pattern is C.pattern
    # Zero times infinity is not skipped either.
    assert torch.isnan(ops.spgemm(zeros, B.with_values(B.values / 0)).values).all()


def test_more_entries_than_the_index_type_can_number(monkeypatch):
    monkeypatch.setitem(sparse_products._MOST, torch.int32, 9_999)
    column = pattern_of(scipy.sparse.csr_array(np.ones((100, 1))), torch.int32)
    with pytest.raises(ValueError, match=r"spgemm: the result has more entries .* int64"):
        ops.spgemm(CSR(torch.ones(100), column), CSR(torch.ones(100), column.T))
    wide = column.to(dtype=torch.int64)
    assert ops.spgemm(CSR(torch.ones(100), wide), CSR(torch.ones(100), wide.T)).nnz == 10_000


def test_errors():
    A = matrix(random(4, 5, 0.5))
    batches = A.with_values(normal((2, A.nnz))), A.T.with_values(normal((3, A.nnz)))
    for call, error, message in (
        (lambda: A @ A, ValueError, r"spgemm: A.shape\[1\] must equal B.shape\[0\], got .*\(4, 5\)"),
        (
            lambda: ops.spgemm(A, A.T, mask=A.pattern),
            ValueError,
            r"mask must have the shape \(4, 4\), got \(4, 5\)",
        ),
        (lambda: ops.spgemm(*batches), ValueError, "the batch axes of A.values and B.values must broadcast"),
    ):
        with pytest.raises(error, match=message):
            call()


# --- plans ---


def test_a_plan_is_made_once(monkeypatch):
    made = []
    analysis, names = sparse_products._analysis, ("positions_of_products", "row_product_blocks")
    names = (*names, "column_product_blocks", "product_starts")
    if on_cuda():
        analysis, names = device_analysis, ("product_pattern", "product_segments")
    for name in names:
        real = getattr(analysis, name)
        monkeypatch.setattr(analysis, name, lambda *a, real=real, name=name: made.append(name) or real(*a))
    A = matrix(random(9, 9, 0.4), grad=True)
    P = matrix(random(9, 4, 0.4), grad=True)
    results = []
    for step in range(3):
        C = A.with_values(A.values * (1 + step)) @ A
        coarse = ops.galerkin(P, A)
        torch.autograd.grad(C.values.sum() + coarse.values.sum(), (A.values, P.values))
        results.append((C.pattern, coarse.pattern))
        if step == 0:
            first = len(made)
            assert made.count(names[0]) == 3
    assert len(made) == first
    assert all(r[0] is results[0][0] and r[1] is results[0][1] for r in results)


@of_the_cpu
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.usefixtures("isa")
def test_the_first_call_has_the_bits_of_later_ones(threads):
    """One pass finds columns and values together; the plan comes with the second call."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    types = itertools.product((torch.int32, torch.int64), (torch.float32, torch.float64))
    fits = lambda S, T: symbolic(S, T).data.sum() <= 16 * (S.nnz + T.nnz)  # noqa: E731
    larger = [(S, S) for S in (grid(5, 160), random(2000, 2000, 0.006), power_law(1500))]
    small = [pair for S in STRUCTURES.values() for pair in pairs(S) if fits(*pair)]
    assert len(small) > 20
    try:
        for (index, dtype), (S, T) in itertools.product(types, small + larger):
            A, B = matrix(S, 1, index, dtype), matrix(T, 2, index, dtype)
            first = A @ B
            assert not A.pattern._has_plan(sparse_products._product_plan, B.pattern, None)
            later = A @ B
            assert A.pattern._has_plan(sparse_products._product_plan, B.pattern, None)
            assert later.pattern is first.pattern
            assert same_pattern(first.pattern, symbolic(S, T))
            assert sparse_products._result(A.pattern, B.pattern).equals(first.pattern)
            assert torch.equal(first.values, later.values)
            assert first.values.signbit().equal(later.values.signbit())
    finally:
        torch.set_num_threads(before)


@of_the_cpu
def test_the_first_call_under_transformations():
    """What records operations gets them: values of a first call are no constants of the record."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def new():
        A = matrix(random(7, 7, 0.4))
        B = matrix(random(7, 7, 0.4, 1), 1)
        return A.values, lambda a: (A.with_values(a) @ B).values

    a, f = new()
    wanted = f(a)
    torch.testing.assert_close(make_fx(new()[1])(a)(2 * a), 2 * wanted)
    torch.testing.assert_close(torch.func.vmap(new()[1])(torch.stack((a, 3 * a)))[1], 3 * wanted)
    torch.testing.assert_close(torch.func.jvp(new()[1], (a,), (a,))[1], wanted)
    torch.testing.assert_close(torch.func.vjp(new()[1], a)[1](wanted)[0], torch.func.vjp(f, a)[1](wanted)[0])


@of_the_cpu
def test_a_first_call_without_room_for_its_products_is_planned(monkeypatch):
    S = random(9, 9, 0.4)
    wanted = (matrix(S) @ matrix(S)).values
    monkeypatch.setattr(sparse_products, "_MOST_FUSED", int(symbolic(S, S).data.sum()) - 1)
    A, B = matrix(S), matrix(S)
    assert torch.equal((A @ B).values, wanted)
    assert A.pattern._has_plan(sparse_products._product_plan, B.pattern, None)
    monkeypatch.undo()
    monkeypatch.setattr(sparse_products._library, "spgemm_fused", lambda *_: False)  # no memory
    A, B = matrix(S), matrix(S)
    assert torch.equal((A @ B).values, wanted)


def test_plans_die_with_either_pattern():
    A, B = matrix(random(9, 9, 0.4)), matrix(random(9, 7, 0.4))
    mask = random_mask((9, 7))
    ops.spgemm(A, B, mask=mask)
    result = weakref.ref(ops.spgemm(A, B).pattern)
    blocks = weakref.ref(A.pattern._plan_once(sparse_products._product_plan, B.pattern, None).blocks)
    assert A.pattern.cache_bytes() > 0
    coordinates.cache_clear()
    others = weakref.ref(B.pattern), weakref.ref(mask)
    del mask
    gc.collect()
    assert others[1]() is None
    assert result() is not None
    del B
    gc.collect()
    assert others[0]() is None
    assert result() is None
    assert blocks() is None
    assert A.pattern.cache_bytes() == 0
    owner = weakref.ref(A.pattern)
    A @ A
    del A
    gc.collect()
    assert owner() is None


def test_batched_gradients_on_another_thread():
    """As on the thread of a CUDA device, which does not know of the batches of the one that asks."""
    from torch._vmap_internals import _vmap  # what is_grads_batched uses

    A = matrix(random(5, 5, 0.5), grad=True)
    y = (A @ A.detach()).values
    gradient = functools.partial(torch.autograd.grad, y, A.values, retain_graph=True)

    def vjp(g):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(gradient, g).result()[0]

    g = normal((2, 3, *y.shape))
    wanted = torch.stack([torch.stack([gradient(row)[0] for row in rows]) for rows in g])
    torch.testing.assert_close(_vmap(vjp)(g[0]), wanted[0])
    torch.testing.assert_close(_vmap(_vmap(vjp))(g), wanted)


def test_plan_cache_limit():
    """The bound is on 4 bytes a product, no byte more; on a device on the indices of its two factors."""
    S = random(9, 9, 0.4)
    products, device = int(symbolic(S, S).data.sum()), on_cuda()
    bytes = products * (2 * matrix(S).col_indices.element_size() if device else 4)
    for limit, kept in ((bytes, True), (bytes - 1, False)):
        with ls.set_options(spgemm_plan_bytes=limit):
            A = matrix(S)
            for _ in range(2):
                ops.spgemm(A, A)
        P = A.pattern
        if device:
            plan = P._plan_once(sparse_products._segments, P, None, sparse_products.PRODUCT)
        else:
            plan = P._plan_once(sparse_products._product_plan, P, None).positions
        assert (plan is not None and len(plan) > 0) == kept


# --- memory and threads ---

MEMORY = """
import resource, numpy as np, torch, learnsolve as ls
n, wide = 10_000, 40
torch.set_num_threads(1)
def banded(offsets):
    i = np.repeat(np.arange(n), len(offsets)); j = (i + np.tile(offsets, n)) % n
    order = np.lexsort((j, i))
    crow = torch.arange(0, n * len(offsets) + 1, len(offsets), dtype=torch.int32)
    return ls.SparsityPattern(crow, torch.as_tensor(j[order]).int(), (n, n))
P = banded(np.arange(wide))
A = ls.CSR(torch.ones(P.nnz, requires_grad=True), P)
P._structure(True)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def products(limit):
    ls.set_options(spgemm_plan_bytes=limit)
    P.drop_caches(); P._structure(True)
    start = peak()
    C = A @ A
    C.values.backward(torch.ones_like(C.values))
    return peak() - start, C.nnz
used, nnz = products(0)
F = P.nnz * wide
bound = 60 * (P.nnz + nnz)
assert used < bound, (used, bound)
assert bound < 8 * F, "the bound does not tell O(nnz) from O(F)"
used, _ = products(2**34)
assert used < bound + 4 * F, (used, bound + 4 * F)
"""


@pytest.mark.slow
def test_memory():
    """O(nnz) without a plan, O(nnz + F) with one: a process of its own, whose peak is measured."""
    subprocess.run([sys.executable, "-c", MEMORY], check=True)


def test_same_bits_for_any_number_of_threads(planned):
    for S in (grid(5, 70), random(1500, 1500, 0.006), power_law(1200)):
        A = matrix(S, dtype=torch.float32, grad=True)
        B = matrix(S, 1, dtype=torch.float32, grad=True)

        def results(A=A, B=B):
            for mask in (None, A.pattern):
                C = ops.spgemm(A, B, mask=mask)
                g = normal((C.nnz,), torch.float32, 2)
                yield C.values
                for wanted in ((A.values, B.values), (A.values,), (B.values,)):
                    yield from torch.autograd.grad(C.values, wanted, g, retain_graph=True)

        assert_same_bits(results, (2, 3))


F64 = torch.float64
form, inverse_diagonal = ls.ops.quadratic_form, ls.ops.inverse_diagonal
P = pattern_of(random(5, 5, 0.5))


@pytest.mark.parametrize("columns", [(), (3,)], ids=str)
def test_symmetric(columns):
    """The same value and gradients of a symmetric A. If A breaks the promise the gradient is 2 g A x, where
    it should be g (A + A^T) x: the keyword is used."""
    A = ls.problems.poisson((4, 3))
    for which in ((0, 1), (1,), (0,)):
        results = []
        for symmetric in (False, True):
            a, y = (
                t.clone().requires_grad_(i in which) for i, t in enumerate((A.values, normal((12, *columns))))
            )
            q = form(A.with_values(a), y, symmetric=symmetric)
            results.append((q, *torch.autograd.grad(q, [(a, y)[i] for i in which])))
        torch.testing.assert_close(*results, rtol=1e-14, atol=1e-14)
    v, x = normal((P.nnz,)), normal((5, *columns), seed=1).requires_grad_()
    found, general = (
        torch.autograd.grad(3 * form(ls.CSR(v, P), x, symmetric=symmetric), x)[0]
        for symmetric in (True, False)
    )
    torch.testing.assert_close(found, 6 * (densify(P, v) @ x.detach()), rtol=1e-13, atol=1e-13)
    assert not torch.allclose(found, general)


def test_symmetric_second_derivatives_are_those_of_the_general_form():
    A = ls.problems.poisson((5,))
    h = torch.arange(5.0, dtype=F64)

    def mixed(symmetric):
        v = A.values.clone().requires_grad_()
        x = torch.linspace(1, 2, 5, dtype=F64, requires_grad=True)
        q = form(A.with_values(v), x, symmetric=symmetric)
        (gx,) = torch.autograd.grad(q, x, create_graph=True)
        return torch.autograd.grad(gx @ h, (v, x))

    torch.testing.assert_close(mixed(True), mixed(False), rtol=1e-14, atol=1e-14)


A, X = ls.CSR(normal((P.nnz,)), P), normal((5, 2))


# --- the inverse diagonal, and that what is kept of it is never stale ---

D = pattern_of(csr_array(np.array([[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 1]])))


def values(*batch, dtype=F64):
    return normal((*batch, D.nnz), dtype).abs() + 0.5


def test_what_is_kept_follows_the_values():
    A = ls.CSR(values(), D)
    first = inverse_diagonal(A)
    kept = first.clone()
    assert torch.equal(first, torch.diagonal(densify(D, A.values)).reciprocal())
    first.zero_()  # it is the caller's: what is kept must not follow
    assert torch.equal(inverse_diagonal(A), kept)
    A.values.mul_(2)
    assert torch.equal(inverse_diagonal(A), kept / 2)
    assert torch.equal(inverse_diagonal(A.with_values(A.values * 2)), kept / 4)
    A.values.mul_(2)
    for twin in (copy.deepcopy(A), torch.utils._pytree.tree_map(lambda t: t, A)):  # have nothing kept
        assert torch.equal(inverse_diagonal(twin), kept / 4)
    A.requires_grad_()
    assert inverse_diagonal(A).requires_grad


def test_kept_in_inference_mode_and_learned_after():
    A = ls.problems.poisson((4,))
    with torch.inference_mode():
        ls.solvers.jacobi(A, torch.ones(4, dtype=F64))
        B = ls.CSR(values(), D)
        assert torch.equal(inverse_diagonal(B), inverse_diagonal(B))
    w = torch.ones(4, dtype=F64, requires_grad=True)
    ls.solvers.jacobi(A, torch.ones(4, dtype=F64), weight=w).x.sum().backward()
    assert torch.equal(w.grad, torch.full_like(w, 0.5))


@pytest.mark.cpu_only
def test_errors_of_the_diagonal():
    with pytest.raises(ValueError, match=r"inverse_diagonal: .* row 1 has none"):
        inverse_diagonal(ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 0.0]])))
    v = values(2)
    v[1, int(D.diagonal_positions[2])] = 0
    for learns in (False, True):
        with pytest.raises(ValueError, match=r"inverse_diagonal: .* row 2 has one"):
            inverse_diagonal(ls.CSR(v.clone().requires_grad_(learns), D))
    with pytest.raises(ValueError, match="row 2 has one"):
        torch.func.grad(lambda v: inverse_diagonal(ls.CSR(v, D)).sum())(v[1])
