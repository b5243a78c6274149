"""Sums on unions of patterns: SciPy as reference, the pattern that comes out, and errors found in other
libraries."""

import itertools
import time

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import assert_same_bits, gradients, matrix, normal, pattern_of, power_law, random, structures

import learnsolve as ls

STRUCTURES = structures()
INT32, INT64 = torch.int32, torch.int64


def others(S):
    """Second operands: part of it, none of it, all of it and more, something else."""
    m, n = S.shape
    half = S.copy()
    half.data[::2] = 0
    half.eliminate_zeros()
    yield from (half, scipy.sparse.csr_array((m, n)), scipy.sparse.csr_array(np.ones((m, n))))
    yield random(m, n, 0.3, seed=7)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_agrees_with_scipy(structure, dtype):
    for index, T in ((i, T) for i in (INT32, INT64) for T in others(STRUCTURES[structure])):
        A, B = matrix(STRUCTURES[structure], 1, index, dtype), matrix(T, 2, index, dtype)
        for C, wanted in (
            (A + B, A.to_scipy() + B.to_scipy()),
            (A - B, A.to_scipy() - B.to_scipy()),
            (A * B, A.to_scipy() * B.to_scipy()),
            (ls.ops.add(A, B, alpha=3, beta=-0.5), 3 * A.to_scipy() - 0.5 * B.to_scipy()),
        ):
            assert C.dtype == dtype
            assert C.pattern.dtype == index
            np.testing.assert_allclose(C.to_scipy().toarray(), wanted.toarray(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n", [60, 3000])
def test_many_chunks_on_any_number_of_threads(n):
    """More entries than one chunk of the plan has, operands that end early or begin late."""
    A = matrix(power_law(n))
    late, early = np.zeros(n), np.zeros(n)
    late[-3:], early[:3] = 1, 1
    for S in (random(n, n, 9 / n, seed=3), *(scipy.sparse.diags_array(d).tocsr() for d in (late, early))):
        S.eliminate_zeros()
        for X, Y in itertools.permutations((A, matrix(S, 1))):
            C = X + Y
            difference = abs(C.to_scipy() - (X.to_scipy() + Y.to_scipy()))
            assert difference.max() == 0
            g = normal(C.values.shape, seed=5)

            def results(X=X, Y=Y, g=g):
                x, y = (M.values.clone().requires_grad_() for M in (X, Y))
                values = ls.ops.add(ls.CSR(x, X.pattern), ls.CSR(y, Y.pattern), beta=2).values
                return [values.detach(), *torch.autograd.grad(values, (x, y), g)]

            assert_same_bits(results, (2, 3))
            V = ls.CSR(g, C.pattern).to_scipy()
            for M, grad, factor in zip((X, Y), results()[1:], (1, 2), strict=True):
                at = (i.cpu().numpy().copy() for i in (M.pattern.row_indices, M.col_indices))
                np.testing.assert_array_equal(grad.cpu().numpy(), factor * np.asarray(V[*at]))


def test_where_the_sum_lies():
    S = random(9, 8, 0.5)
    P, part, other = pattern_of(S), pattern_of(next(others(S))), pattern_of(random(9, 8, 0.3, seed=7))
    A, B, C = (ls.CSR(normal((Q.nnz,)), Q) for Q in (P, part, other))
    assert (A + A).pattern is P
    assert (A + B).pattern is P
    assert (B + A).pattern is P
    assert (A * B).pattern is part
    assert (B * A).pattern is part
    assert (A + C).pattern is (A - A.with_values(A.values + 1) + C).pattern
    assert (A + C).pattern is not (C + A).pattern
    assert (A * C).pattern is (A * C).pattern
    equal = ls.CSR(A.values, pattern_of(S))
    assert (A + equal).pattern is P
    assert (A * equal).pattern is P
    torch.testing.assert_close((A - equal).values, torch.zeros_like(A.values))
    zero = [M.with_values(torch.zeros_like(M.values)) for M in (A, C)]
    assert (zero[0] + zero[1]).pattern is (A + C).pattern, "explicit zeros stay"
    assert (zero[0] * C).nnz == (A * C).nnz
    wide = ls.CSR(C.values, pattern_of(random(9, 8, 0.3, seed=7), INT32))
    for D in (A + wide, wide + A, A * wide):
        assert D.pattern.dtype == INT64


def test_absent_entries_meet_no_factor():
    """An infinite factor of A makes no NaN where A has no entry, nor does a NaN of B."""
    A, B = matrix(random(30, 30, 0.3)), matrix(random(30, 30, 0.3, seed=7))
    C = ls.ops.add(A, B, alpha=float("inf"), beta=float("nan"))
    only_a = (C.with_values(torch.ones(C.nnz).double()).to_dense() == 1) & (B.to_dense() == 0)
    assert C.to_dense()[only_a].isinf().all()
    v = B.values.clone()
    v[4] = float("nan")
    assert int((A + B.with_values(v)).values.isnan().sum()) == 1


def test_gradients_use_the_incoming_gradient():
    """<V, A> and <V, B> for V that is no tensor of ones; a predecessor summed A and B instead."""
    A, B = matrix(random(9, 8, 0.5)), matrix(random(9, 8, 0.3, seed=7), 1)
    for X, Y in ((A, B), (A, A)):
        alpha, beta = (torch.tensor(s, dtype=torch.float64, requires_grad=True) for s in (0.7, -0.2))
        C = ls.ops.add(X, Y, alpha=alpha, beta=beta)
        for scale in (1.0, 1e-12):
            V = scale * normal((C.nnz,), seed=3)
            ga, gb = torch.autograd.grad(C.values, (alpha, beta), V, retain_graph=True)
            D = C.with_values(V).to_dense()
            torch.testing.assert_close(ga, (D * X.to_dense()).sum(), rtol=1e-12, atol=1e-12 * scale)
            torch.testing.assert_close(gb, (D * Y.to_dense()).sum(), rtol=1e-12, atol=1e-12 * scale)
            assert ga != 0


def test_a_transpose_costs_no_pass_for_each_column():
    """200,000 columns and 600,000 entries: 1.2e11 steps for who goes through all of them for each column."""
    n = 200_000
    S = scipy.sparse.diags_array([1.0, 2.0, 3.0], offsets=(-1, 0, 1), shape=(n, n)).tocsr()
    A, B = ls.CSR.from_scipy(S), ls.CSR.from_scipy(scipy.sparse.eye_array(n, format="csr"))
    start = time.perf_counter()
    C = A.T + B
    assert time.perf_counter() - start < 30
    assert C.pattern is A.T.pattern


@pytest.mark.parametrize(
    "other", ["union", *(pytest.param(o, marks=pytest.mark.slow) for o in ("contained", "intersection"))]
)
@pytest.mark.usefixtures("fresh_compiler")
def test_compile(other):
    P = pattern_of(random(9, 8, 0.5))
    Q = pattern_of(random(9, 8, 0.3, seed=7) if other != "contained" else next(others(random(9, 8, 0.5))))

    def f(v, w, s):
        A, B = ls.CSR(v, P), ls.CSR(w, Q)
        C = A * B if other == "intersection" else ls.ops.add(A, B, alpha=s, beta=3) - B
        return torch.sin(C.values) * s

    inputs = [normal((P.nnz,)), normal((Q.nnz,), seed=1), normal((), seed=2)]
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    found = compiled(*inputs)
    torch.testing.assert_close(found, f(*inputs))
    g = normal(found.shape, seed=3)
    torch.testing.assert_close(gradients(compiled, inputs, g), gradients(f, inputs, g))
