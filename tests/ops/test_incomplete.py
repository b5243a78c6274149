"""ic0, mic0 and ilu0: values, what they preserve, threads, memory."""

import itertools

import pytest
import scipy.sparse
import torch
from ops.incomplete_cases import STRUCTURES, dominant, every_kind, library, loops, small
from ops.test_memory import peak
from reference import assert_same_bits, densify, grid, normal, on_pattern, pattern_of

import learnsolve as ls

ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-13}


@every_kind
@pytest.mark.parametrize("structure", STRUCTURES)
def test_value_and_gradient(kind, structure):
    for index, dtype in itertools.product((torch.int32, torch.int64), (torch.float32, torch.float64)):
        P = pattern_of(STRUCTURES[structure], index)
        for batch in ((), (3,), (2, 2), (0,)):
            if batch and (index, dtype) != (torch.int32, torch.float64):
                continue
            v = dominant(P, batch, dtype).requires_grad_()
            exact = v.detach().double().requires_grad_()
            found, wanted = library(kind, P, v), loops(kind, P, exact)
            assert found.dtype == dtype
            tolerance = {"rtol": ROUNDING[dtype], "atol": ROUNDING[dtype]}
            torch.testing.assert_close(found.double(), wanted, **tolerance)
            g = normal(found.shape, dtype, seed=3)
            (grad,) = torch.autograd.grad(found, v, g)
            assert grad.dtype == dtype
            if P.nnz == 0 or 0 in batch:
                continue
            (reference,) = torch.autograd.grad(wanted, exact, g.double())
            torch.testing.assert_close(grad.double(), reference, **tolerance)


def dense_lower(kind, P, v):
    return getattr(ls.ops, kind)(ls.CSR(v, P)).L.to_dense()


@pytest.mark.parametrize("structure", ["tridiagonal", "full", "diagonal", "arrow"])
@pytest.mark.parametrize("kind", ["ic0", "mic0"])
def test_without_fill_it_is_cholesky(kind, structure):
    S = STRUCTURES[structure]
    if structure == "arrow":  # numbered from the tips, an arrow has no fill
        S = scipy.sparse.csr_array(S.toarray()[::-1, ::-1])
    P = pattern_of(S)
    v = dominant(P).requires_grad_()
    A = densify(P, v).tril()
    L, wanted = dense_lower(kind, P, v), torch.linalg.cholesky(A + A.tril(-1).mT)
    torch.testing.assert_close(L, wanted, rtol=1e-14, atol=1e-14)
    g = normal(L.shape, seed=1).tril()
    found, reference = (torch.autograd.grad(out, v, g)[0] for out in (L, wanted))
    torch.testing.assert_close(found, reference, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("structure", ["tridiagonal", "full", "lower", "upper"])
def test_without_fill_it_is_lu(structure):
    P = pattern_of(STRUCTURES[structure])
    v = dominant(P)
    L, U, _ = ls.ops.ilu0(ls.CSR(v, P))
    A = densify(P, v)
    # torch's LU without pivoting is for CUDA only; a dominant diagonal in columns needs no exchange.
    permutation, wanted_L, wanted_U = torch.linalg.lu(A)
    assert torch.equal(permutation, torch.eye(P.shape[0], dtype=v.dtype))
    torch.testing.assert_close(L.to_dense(), wanted_L, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(U.to_dense(), wanted_U, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_what_is_preserved(structure):
    P = pattern_of(STRUCTURES[structure])
    v = dominant(P)
    A = ls.CSR(v, P)
    close = {"rtol": 1e-13, "atol": 1e-13}
    L, U, shift = ls.ops.ilu0(A)
    torch.testing.assert_close(on_pattern(P, L.to_dense() @ U.to_dense()), v, **close)
    x = normal((P.shape[0],))
    torch.testing.assert_close(L @ (U @ x), L.to_dense() @ (U.to_dense() @ x), **close)
    assert float(shift) == 0
    lower = densify(P, v).tril()
    symmetric = lower + lower.tril(-1).mT
    Q = L.pattern
    L = ls.ops.ic0(A).L
    torch.testing.assert_close(on_pattern(Q, L.to_dense() @ L.to_dense().mT), on_pattern(Q, lower), **close)
    M = ls.ops.mic0(A).L.to_dense()
    off = densify(Q, torch.ones(Q.nnz, dtype=v.dtype)).tril(-1) > 0
    torch.testing.assert_close((M @ M.mT)[off], lower[off], **close)
    torch.testing.assert_close((M @ M.mT).sum(1), symmetric.sum(1), **close)


def test_modified_differs_from_plain():
    A = ls.problems.poisson((5, 5))
    plain, modified = (op(A).L.values for op in (ls.ops.ic0, ls.ops.mic0))
    assert (plain - modified).abs().max() > 0.05


@every_kind
def test_patterns_are_the_same_objects_in_every_call(kind):
    P = small()
    first, second = (getattr(ls.ops, kind)(ls.CSR(dominant(P, seed=s), P)) for s in (0, 1))
    assert first.L.pattern is second.L.pattern
    assert first.L.pattern is ls.CSR(dominant(P), P).tril().pattern
    if kind == "ilu0":
        assert first.U.pattern is second.U.pattern is ls.CSR(dominant(P), P).triu().pattern
    assert first.L.pattern.dtype == P.dtype
    ls.SparsityPattern(first.L.crow_indices, first.L.col_indices, first.L.shape)  # valid


@pytest.mark.parametrize("kind", ["ic0", "mic0"])
def test_the_upper_triangle_is_not_read(kind):
    P = small()
    v = dominant(P)
    upper = densify(P, torch.arange(P.nnz) + 1.0).triu(1)[densify(P, torch.ones(P.nnz)) > 0] > 0
    spoiled = torch.where(upper, torch.nan, v).requires_grad_()
    L = library(kind, P, spoiled)
    assert torch.equal(L, library(kind, P, v))
    (grad,) = torch.autograd.grad(L.sum(), spoiled)
    assert upper.any()
    assert (grad[upper] == 0).all()
    assert (grad[~upper] != 0).any()


def test_stored_ones_of_L_have_no_effect_on_the_gradient():
    P = small()
    v = dominant(P).requires_grad_()
    L = ls.ops.ilu0(ls.CSR(v, P)).L
    assert torch.equal(L.diagonal(), torch.ones(5, dtype=v.dtype))
    (grad,) = torch.autograd.grad(L.diagonal().sum(), v)
    assert torch.equal(grad, torch.zeros_like(v))


@every_kind
def test_explicit_zeros_stay_entries(kind):
    P = small()
    v = dominant(P)
    v[P.diagonal_positions[3] - 1] = 0  # (3, 1)
    v[P.diagonal_positions[4] - 1] = 0  # (4, 3)
    v.requires_grad_()
    L = library(kind, P, v)
    assert len(L) == len(library(kind, P, dominant(P)))
    (grad,) = torch.autograd.grad(L.sum(), v)
    assert (grad[v.detach() == 0] != 0).all()


@every_kind
def test_adjoint_is_scale_invariant(kind):
    P = small()
    v = dominant(P).requires_grad_()
    L = library(kind, P, v)
    g = normal(L.shape)
    large, tiny = (torch.autograd.grad(L, v, g * s, retain_graph=True)[0] for s in (1.0, 2.0**-40))
    assert torch.equal(large * 2.0**-40, tiny)
    assert (tiny != 0).any()


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_same_bits_for_any_number_of_threads_and_batch(kind, dtype):
    P = pattern_of(grid(5, 60), torch.int32)
    v = dominant(P, (5,), dtype)

    def results(v):
        v = v.clone().requires_grad_()
        f = library(kind, P, v)
        (grad,) = torch.autograd.grad(f, v, f.detach(), create_graph=True)
        return [t.detach() for t in (f, grad, *torch.autograd.grad(grad, v, v.detach()))]

    alone = [torch.stack(t) for t in zip(*(results(one) for one in v), strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(results(v), alone, strict=True))
    assert_same_bits(lambda: results(v))


@every_kind
def test_memory(kind):
    P = pattern_of(grid(9, 60), torch.int32)
    entries, products = P.nnz, 9 * P.nnz
    v = dominant(P).requires_grad_()
    library(kind, P, v)
    # The plan: 16 bytes an entry, 8 a product; and the patterns of the factors.
    assert P.cache_bytes() <= 4 * (8 * entries + 2 * products + 8 * P.shape[0])
    factors = getattr(ls.ops, kind)
    A = ls.CSR(v, P)
    size = entries + P.shape[0] if kind == "ilu0" else (entries + P.shape[0]) // 2
    assert peak(lambda: factors(A)) <= 8 * (size + 4096)
    result = factors(A)
    outputs = [M.values for M in result[:-1]]
    gs = [torch.ones_like(t) for t in outputs]
    # The gradient, the working copy of the incoming one and, for LU, the two parts of that put together.
    found = peak(lambda: torch.autograd.grad(outputs, v, gs))
    assert found <= 8 * (entries + (2 if kind == "ilu0" else 1) * size + 4096)
