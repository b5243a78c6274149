"""Random patterns, values and shapes against dense float64."""

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from reference import assert_within, densify, gradients, normal, on_pattern, pattern_of, transpose_order
from scipy.sparse import csr_array

import learnsolve as ls


@st.composite
def patterns(draw):
    """Any shape up to 12 x 12, any density, some rows and columns emptied."""
    m, n = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    density = draw(st.sampled_from([0.0, 0.1, 0.4, 0.9, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    mask = rng.random((m, n)) < density
    mask[rng.random(m) < draw(st.sampled_from([0.0, 0.3])), :] = False
    mask[:, rng.random(n) < draw(st.sampled_from([0.0, 0.3]))] = False
    return pattern_of(csr_array(mask.astype(float)), draw(st.sampled_from([torch.int32, torch.int64])))


dtypes = st.sampled_from([torch.float32, torch.float64])
widths = st.sampled_from([None, 0, 1, 2, 3, 5, 9])


def property_test(*strategies):
    """Two forms of a property: a quick one, and a long one with --slow."""

    def decorate(function):
        @pytest.mark.parametrize("examples", [60, pytest.param(2000, marks=pytest.mark.slow)])
        def test(examples):
            given = hypothesis.given(st.tuples(*strategies))(lambda drawn: function(*drawn))
            settings = hypothesis.settings(
                max_examples=examples, deadline=None, derandomize=True, database=None
            )
            settings(given)()

        return test

    return decorate


@property_test(patterns(), dtypes, widths, st.booleans())
def test_spmm(P, dtype, k, transpose):
    tail = () if k is None else (k,)
    m, n = P.shape[::-1] if transpose else P.shape
    v, x, g = normal((P.nnz,), dtype), normal((n, *tail), dtype, 1), normal((m, *tail), dtype, 2)

    def dense(v, x):
        D = densify(P, v)
        return (D.mT if transpose else D) @ x

    def sparse(v, x):
        return ls.ops.spmm(ls.CSR(v, P), x, transpose=transpose)

    exact, size = [v.double(), x.double()], [v.abs().double(), x.abs().double()]
    ones = [torch.ones_like(t) for t in size]
    assert_within(sparse(v, x), dense(*exact), dense(*size), dense(*ones))
    checks = zip(
        gradients(sparse, [v, x], g),
        gradients(dense, exact, g.double()),
        gradients(dense, size, g.double().abs()),
        gradients(dense, ones, torch.ones_like(g).double()),
        strict=True,
    )
    for check in checks:
        assert_within(*check)


@property_test(patterns(), dtypes, widths)
def test_sddmm(P, dtype, k):
    tail = () if k is None else (k,)
    u, w = normal((P.shape[0], *tail), dtype, 1), normal((P.shape[1], *tail), dtype, 2)

    def dense(u, w):
        outer = torch.outer(u, w) if k is None else u @ w.mT
        return on_pattern(P, outer)

    exact, size = (u.double(), w.double()), (u.abs().double(), w.abs().double())
    terms = torch.full((P.nnz,), float(1 if k is None else k))
    assert_within(ls.ops.sddmm(u, w, P), dense(*exact), dense(*size), terms)


@property_test(patterns())
def test_transpose(P):
    v = normal((P.nnz,))
    A = ls.CSR(v, P)
    assert A.T.shape == P.shape[::-1]
    assert torch.equal(A.T.values, v[transpose_order(P)])
    assert torch.equal(A.T.to_dense(), A.to_dense().mT)
    assert torch.equal(A.to_dense(), densify(P, v))
    # What is valid by construction passes the checks of the constructor.
    ls.SparsityPattern(P.T.crow_indices, P.T.col_indices, P.T.shape)


@property_test(st.integers(1, 12), st.integers(1, 12), st.integers(0, 40), st.integers(0, 2**32 - 1), dtypes)
def test_from_coo(m, n, entries, seed, dtype):
    rng = np.random.default_rng(seed)
    rows, columns = (
        torch.as_tensor(rng.integers(m, size=entries)),
        torch.as_tensor(rng.integers(n, size=entries)),
    )
    w, g = normal((entries,), dtype, 1), normal((m, n), dtype, 2)

    def dense(w):
        return torch.zeros(m, n, dtype=w.dtype).index_put((rows, columns), w, accumulate=True)

    A = ls.CSR.from_coo(rows, columns, w, (m, n))
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)
    assert A.nnz == len(set(zip(rows.tolist(), columns.tolist(), strict=True)))
    ones = torch.ones(entries, dtype=torch.float64)
    assert_within(A.to_dense(), dense(w.double()), dense(w.double().abs()), dense(ones))
    (found,) = gradients(lambda w: ls.CSR.from_coo(rows, columns, w, (m, n)).to_dense(), [w], g)
    assert torch.equal(found, g[rows, columns])


@property_test(patterns(), st.sampled_from([torch.float32, torch.float64, torch.int64]))
def test_round_trips(P, dtype):
    v = (normal((P.nnz,)) * 8).to(dtype)
    A = ls.CSR(v, P)
    for B in (
        ls.CSR.from_scipy(A.to_scipy()),
        ls.CSR.from_torch(A.to_torch()),
        ls.CSR(A.T.T.values, A.T.T.pattern),
    ):
        assert (B.shape, B.dtype) == (A.shape, A.dtype)
        assert torch.equal(B.values, v)
        assert torch.equal(B.crow_indices.long(), A.crow_indices.long())
        assert torch.equal(B.col_indices.long(), A.col_indices.long())
