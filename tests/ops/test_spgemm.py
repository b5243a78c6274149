"""spgemm and galerkin beyond the table: patterns, masks, batches, errors. The table has their
derivatives on a plan; here they are tested without one too."""

import itertools

import numpy as np
import pytest
import scipy.sparse
import torch
from ops.spgemm_cases import STRUCTURES, pairs, random_mask, same_pattern, symbolic, with_normal_values
from reference import assert_within, banded, coordinates, grid, normal, pattern_of, random
from torch.autograd import gradcheck, gradgradcheck

from learnsolve import CSR, ops
from learnsolve.matrix import device_analysis
from learnsolve.ops.core import sparse_product

of_the_cpu = pytest.mark.skipif(device_analysis.everywhere, reason="of the CPU operators alone")


@pytest.mark.parametrize("structure", STRUCTURES)
def test_against_scipy(structure, planned):
    types = itertools.product((torch.int32, torch.int64), (torch.float32, torch.float64))
    for (S, T), (index, dtype) in itertools.product(pairs(STRUCTURES[structure]), types):
        A, B = with_normal_values(S, dtype, index, 1), with_normal_values(T, dtype, index, 2)
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
        A, B = with_normal_values(S, seed=1, grad=True), with_normal_values(T, seed=2, grad=True)
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


@pytest.mark.parametrize("masked", [False, True])
def test_derivatives(masked, planned):
    A, B = with_normal_values(random(5, 6, 0.4)), with_normal_values(random(6, 4, 0.4, 1), seed=1)
    mask = random_mask((5, 4)) if masked else None
    inputs = [M.values.clone().requires_grad_() for M in (A, B)]

    def f(a, b):
        return ops.spgemm(A.with_values(a), B.with_values(b), mask=mask).values

    assert gradcheck(f, inputs, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(f, inputs, check_fwd_over_rev=True, check_batched_grad=True)


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
            before = ops.set_spgemm_plan_limit(limit)
            A, B = with_normal_values(S, dtype), with_normal_values(T, dtype, seed=1)
            a = normal((*batch, A.nnz), dtype, 2).requires_grad_()
            b = normal((*batch, B.nnz), dtype, 3).requires_grad_()
            c = ops.spgemm(A.with_values(a), B.with_values(b)).values
            uniform = A.pattern._planned(sparse_product._plan, B.pattern, None).blocks[:, 2]
            assert bool(uniform.any()) == (limit > 0)
            g = normal(c.shape, dtype, 4)
            both = torch.autograd.grad(c, (a, b), g, retain_graph=True)
            alone = [torch.autograd.grad(c, t, g, retain_graph=True)[0] for t in (a, b)]
            results.append((c.detach(), *both, *alone))
            ops.set_spgemm_plan_limit(before)
        bound = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
        torch.testing.assert_close(results[0], results[1], rtol=bound, atol=bound)


def test_batches(planned):
    """A batch is what its members are one by one; shared operands collect their gradients."""
    for S in (random(7, 7, 0.4), grid(5, 12)):
        A, B = with_normal_values(S), with_normal_values(S)
        shapes = [
            ((), (2,)),
            ((2,), ()),
            ((2,), (2,)),
            ((3, 1), (2,)),
            ((1,), (1,)),
            ((0,), ()),
            ((2, 0), (0,)),
        ]
        for left, right in shapes:
            a, b = (
                normal((*left, A.nnz), seed=1).requires_grad_(),
                normal((*right, B.nnz), seed=2).requires_grad_(),
            )
            C = ops.spgemm(A.with_values(a), B.with_values(b))
            wanted = A.with_values(a).to_dense() @ B.with_values(b).to_dense()
            torch.testing.assert_close(C.to_dense(), wanted, rtol=1e-12, atol=1e-12)
            g = normal(C.values.shape, seed=3)
            found = torch.autograd.grad(C.values, (a, b), g)
            loop = torch.autograd.grad(wanted, (a, b), C.with_values(g).to_dense())
            torch.testing.assert_close(found, loop, rtol=1e-12, atol=1e-12)


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


def test_small_cotangents_count(planned):
    A = with_normal_values(random(8, 8, 0.4), grad=True)
    C = A @ A
    g = normal((C.nnz,))
    (one,) = torch.autograd.grad(C.values, A.values, g, retain_graph=True)
    (small,) = torch.autograd.grad(C.values, A.values, 1e-150 * g)
    torch.testing.assert_close(small * 1e150, one, rtol=1e-12, atol=0)


def test_index_types_may_differ(planned):
    S = random(6, 6, 0.5)
    A, B = with_normal_values(S, index=torch.int32), with_normal_values(S, index=torch.int64)
    C = ops.spgemm(A, B)
    assert C.pattern.dtype == torch.int64
    torch.testing.assert_close(C.to_dense(), A.to_dense() @ B.to_dense())
    M = ops.spgemm(A, A, mask=B.pattern)
    assert M.pattern is B.pattern


def test_more_entries_than_the_index_type_can_number(monkeypatch):
    monkeypatch.setitem(sparse_product._MOST, torch.int32, 9_999)
    column = pattern_of(scipy.sparse.csr_array(np.ones((100, 1))), torch.int32)
    with pytest.raises(ValueError, match=r"spgemm: the result has more entries .* int64"):
        ops.spgemm(CSR(torch.ones(100), column), CSR(torch.ones(100), column.T))
    wide = column.to(dtype=torch.int64)
    assert ops.spgemm(CSR(torch.ones(100), wide), CSR(torch.ones(100), wide.T)).nnz == 10_000


def test_errors():
    A = with_normal_values(random(4, 5, 0.5))
    with pytest.raises(ValueError, match=r"spgemm: A.shape\[1\] must equal B.shape\[0\], got .*\(4, 5\)"):
        A @ A
    with pytest.raises(TypeError, match=r"spgemm: B.values has dtype torch.float32"):
        ops.spgemm(A, CSR(A.values.float(), A.pattern).T)
    with pytest.raises(TypeError, match=r"spgemm: A.values must be float32 or float64"):
        ops.spgemm(CSR(A.values.half(), A.pattern), A.T)
    with pytest.raises(TypeError, match="spgemm: B must be a CSR, got Tensor"):
        ops.spgemm(A, A.to_dense().T)
    with pytest.raises(TypeError, match="on meta, the matrix on cpu"):
        ops.spgemm(A, A.T.to("meta"))
    with pytest.raises(TypeError, match="spgemm: mask must be a SparsityPattern, got CSR"):
        ops.spgemm(A, A.T, mask=A)
    with pytest.raises(ValueError, match=r"spgemm: mask must have the shape of A B, \(4, 4\), got \(4, 5\)"):
        ops.spgemm(A, A.T, mask=A.pattern)
    with pytest.raises(ValueError, match=r"spgemm: the batch axes of A.values and B.values must broadcast"):
        ops.spgemm(A.with_values(normal((2, A.nnz))), A.T.with_values(normal((3, A.nnz))))
    with pytest.raises(ValueError, match="galerkin: A must be square"):
        ops.galerkin(A, A)
    with pytest.raises(TypeError, match="galerkin: P must be a CSR"):
        ops.galerkin(A.to_dense(), A)
    with pytest.raises(TypeError, match="set_spgemm_plan_limit: bytes must be an int, got float"):
        ops.set_spgemm_plan_limit(1e9)
    with pytest.raises(ValueError, match="set_spgemm_plan_limit: bytes must not be negative"):
        ops.set_spgemm_plan_limit(-1)


# --- compile, galerkin ---


@pytest.mark.usefixtures("fresh_compiler", "planned")
def test_compile_through_a_product():
    def f(A, B, x):
        return ops.spmm(ops.spgemm(A, ops.spgemm(B, A), mask=B.pattern), x)

    A, B = with_normal_values(random(7, 7, 0.4)), with_normal_values(random(7, 7, 0.4, 1))
    a, b, x = (t.clone().requires_grad_() for t in (A.values, B.values, normal((7,))))
    run = torch.compile(f, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        found = run(A.with_values(a), B.with_values(b), x)
        wanted = f(A.with_values(a), B.with_values(b), x)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(
            torch.autograd.grad(found, (a, b, x), torch.ones(7).double()),
            torch.autograd.grad(wanted, (a, b, x), torch.ones(7).double()),
        )


def test_galerkin_against_scipy(planned):
    S, T = grid(5, 9), random(81, 20, 0.1, 2)
    A, P = with_normal_values(S, grad=True), with_normal_values(T, seed=1, grad=True)
    C = ops.galerkin(P, A)
    a, p = A.to_scipy(), P.to_scipy()
    assert same_pattern(C.pattern, symbolic(T.T.tocsr(), symbolic(S, T)))
    np.testing.assert_allclose(C.to_scipy().toarray(), (p.T @ a @ p).toarray(), rtol=1e-12, atol=1e-12)
    g = normal((C.nnz,), seed=3)
    found = torch.autograd.grad(C.values, (P.values, A.values), g)
    dense = P.to_dense().mT @ A.to_dense() @ P.to_dense()
    wanted = torch.autograd.grad(dense, (P.values, A.values), C.with_values(g).to_dense())
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
