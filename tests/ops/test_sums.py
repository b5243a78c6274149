"""Features reduced over rows and columns: values and gradients on every structure, ties, NaN, errors."""

import itertools
import time

import numpy as np
import pytest
import scipy.sparse
import torch
from ops.rows import BY, dense_max, dense_softmax, dense_sum, segments
from reference import (
    UNIT_ROUNDOFF,
    assert_same_bits,
    gradients,
    matrix,
    normal,
    pattern_of,
    power_law,
    random,
    structures,
)

import learnsolve as ls
from learnsolve import ops
from learnsolve.ops import segments as _segments

STRUCTURES = structures()
FEATURES = (None, 1, 3, 8, 37)  # part of a vector, vectors of each length, several tiles
KINDS = [(torch.int32, torch.float32), (torch.int64, torch.float64)]


def _row(n):
    return ls.CSR.from_dense(torch.ones(1, n)).pattern


def features(P, f, dtype, seed=0, scale=1.0):
    return scale * normal((P.nnz,) if f is None else (P.nnz, f), dtype, seed)


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_maximum_is_exact(structure, by):
    for index, dtype in KINDS:
        P = pattern_of(STRUCTURES[structure], index)
        for f in FEATURES:
            e = features(P, f, dtype)
            out = ops.segment_max(e, P, by)
            assert torch.equal(out, dense_max(by)(P, e))
            g = normal(out.shape, dtype, seed=1)
            (found,) = gradients(lambda e: ops.segment_max(e, P, by), [e], g)  # noqa: B023
            assert torch.equal(found, gradients(lambda e: dense_max(by)(P, e), [e], g)[0])  # noqa: B023


def assert_softmax(P, by, e, g):
    """Within a first-order bound: exp(d) for d = e - max errs by |d| u for the rounding of d and 2 u of its
    own, a sum of n terms by n u; the gradient y (g - sum y g) by as much again."""
    u, exact, cotangent = UNIT_ROUNDOFF[e.dtype], e.double(), g.double()
    wanted = dense_softmax(by)(P, exact)
    tiny = torch.finfo(e.dtype).tiny * 2
    # Below -750 the exponential is 0, whatever d.
    worst = min(float((exact.max() - exact.min()) if e.numel() else 0), 750.0) + max(P.shape) + 8
    y = ops.segment_softmax(e, P, by)
    assert y.dtype == e.dtype
    assert ((y - wanted).abs() <= worst * u * wanted + tiny).all()
    (found,) = gradients(lambda e: ops.segment_softmax(e, P, by), [e], g)
    (reference,) = gradients(lambda e: dense_softmax(by)(P, e), [exact], cotangent)
    size = ops.gather(dense_sum(by)(P, wanted * cotangent.abs()), P, by) + cotangent.abs()
    assert ((found - reference).abs() <= 3 * worst * u * wanted * size + tiny * (1 + size)).all()


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_softmax(structure, by):
    for index, dtype in KINDS:
        P = pattern_of(STRUCTURES[structure], index)
        for f in FEATURES:
            e = features(P, f, dtype, scale=5.0)
            assert_softmax(P, by, e, normal(e.shape, dtype, seed=2))


def hub(n):
    """A row and a column of n entries among short ones, and a row of as many as a device has in one piece."""
    S = scipy.sparse.lil_array((n, n))
    S[3, :], S[:, 5], S[7, :1024] = 1, 1, 1
    S.setdiag(1)
    return pattern_of(S.tocsr(), torch.int32)


@pytest.mark.rows(2)
@pytest.mark.parametrize("f", [None, 3, 8])
@pytest.mark.parametrize("by", BY)
def test_a_hub(by, f):
    """Pieces of a long segment are combined: the first of equal maxima and the first NaN win, whatever piece
    they are in; sums have all pieces, members of a batch their own, and every run the same bits."""
    P = hub(2600)
    long = next(s for s in segments(P, by) if len(s) == 2600)
    e = normal((2, P.nnz, 1 if f is None else f), seed=3)
    e[0, long[[700, 1300, 2599]], 0] = 9  # in pieces 0, 1 and 2
    e[1, long[[1024, 1023]], 0] = 9
    e[1, long[[1500, 2500]], -1] = torch.nan
    e = e[0, :, 0].clone() if f is None else e
    g = normal((*e.shape[:-2], P.shape[0], f) if f else (P.shape[0],), seed=4)
    top = ops.segment_max(e, P, by)
    assert torch.equal(top.nan_to_num(7), dense_max(by)(P, e).nan_to_num(7))
    (found,) = gradients(lambda e: ops.segment_max(e, P, by), [e], g)
    for member, values in enumerate(e if f else [e.unsqueeze(-1)]):
        for c in range(values.shape[1]):
            column = values[long, c]
            first = column.isnan().nonzero()[0] if column.isnan().any() else column.argmax()
            at = found[member, long, c] if f else found[long]
            assert at.nonzero().tolist() == [[int(first)]]
    e = e.nan_to_num(0)
    w = normal(e.shape, seed=5)
    for values, cotangent in zip(e, w, strict=True) if f else [(e, w)]:
        assert_softmax(P, by, values, cotangent)
    y, dense = ops.segment_softmax(e, P, by), dense_softmax(by)(P, e)
    torch.testing.assert_close(y, dense, rtol=1e-12, atol=1e-15)
    assert torch.equal(y, ops.segment_softmax(e, P, by))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_every_instruction_set(isa, dtype):
    P = pattern_of(STRUCTURES["power law"])
    for by in BY:
        for f in FEATURES:
            e = features(P, f, dtype, scale=5.0)
            assert torch.equal(ops.segment_max(e, P, by), dense_max(by)(P, e))
            assert_softmax(P, by, e, normal(e.shape, dtype, seed=2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_softmax_over_the_whole_range(dtype):
    """Of differences to the maximum from 0 to where the exponential underflows, and far beyond."""
    lowest = -87 if dtype == torch.float32 else -708
    e = torch.cat((torch.linspace(1.2 * lowest, 0, 4001, dtype=dtype), torch.full((3,), -1e30, dtype=dtype)))
    assert_softmax(_row(len(e)), "row", e, normal(e.shape, dtype))
    # Shifts by a power of two that costs no digits change no bit, however large the entries.
    coarse = (e[2000:4000] * 16).round() / 16
    assert torch.equal(
        ops.segment_softmax(coarse + 1024, _row(2000)), ops.segment_softmax(coarse, _row(2000))
    )


def test_the_first_of_equal_entries_gets_the_gradient():
    P = _row(5)
    e = torch.tensor([1.0, 3.0, 3.0, -1.0, 3.0])
    for scale in (1.0, 0.0):  # all equal
        (g,) = gradients(lambda e: ops.segment_max(e, P), [scale * e], torch.ones(1))
        assert g.tolist() == [scale == 0, scale == 1, 0, 0, 0]


@pytest.mark.parametrize("f", [None, 3, 8])
@pytest.mark.parametrize("by", BY)
def test_nan_and_infinity(by, f):
    """A NaN stays in its own segment and feature, and the first one gets the gradient of a maximum."""
    P = pattern_of(STRUCTURES["full"])
    e = features(P, f, torch.float64)
    bad = [int(s) for s in segments(P, by)[2][[1, 3]]]
    for at in bad:
        e.view(P.nnz, -1)[at, 0] = torch.nan
    top, y = ops.segment_max(e, P, by), ops.segment_softmax(e, P, by)
    assert torch.equal(top.isnan(), dense_max(by)(P, e).isnan())
    assert int(top.isnan().sum()) == 1
    assert torch.equal(y.isnan(), dense_softmax(by)(P, e).isnan())
    (g,) = gradients(lambda e: ops.segment_max(e, P, by), [e], torch.ones_like(top))
    assert g.view(P.nnz, -1)[bad[0], 0] == 1
    assert g.view(P.nnz, -1)[bad[1], 0] == 0
    assert int(ops.segment_sum(e, P, by).isnan().sum()) == 1
    for value in (torch.inf, -torch.inf):
        e = features(P, f, torch.float64)
        e.view(P.nnz, -1)[bad[0], 0] = value
        torch.testing.assert_close(ops.segment_max(e, P, by), dense_max(by)(P, e))
        torch.testing.assert_close(ops.segment_softmax(e, P, by), dense_softmax(by)(P, e), equal_nan=True)


@pytest.mark.parametrize("by", ["row", "column"])
def test_a_large_gather(by, monkeypatch):
    """It goes another way to the same bits."""
    P = pattern_of(random(7, 9, 0.4))
    x = normal((2, 7 if by == "row" else 9, 3)).requires_grad_()
    wanted = ops.gather(x, P, by)
    monkeypatch.setattr(_segments, "LARGE", 0)
    found = ops.gather(x, P, by)
    assert torch.equal(found, wanted)
    assert torch.equal(*(torch.autograd.grad(y.sin().sum(), x)[0] for y in (found, wanted)))
    nothing = ls.SparsityPattern(torch.zeros(1, dtype=torch.int32), torch.empty(0, dtype=torch.int32), (0, 0))
    assert ops.gather(x[:, :0], nothing, by).shape == (2, 0, 3)


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


def test_a_transpose_costs_no_pass_for_each_column():
    """200,000 columns and 600,000 entries: 1.2e11 steps for who goes through all of them for each column."""
    n = 200_000
    S = scipy.sparse.diags_array([1.0, 2.0, 3.0], offsets=(-1, 0, 1), shape=(n, n)).tocsr()
    A, B = ls.CSR.from_scipy(S), ls.CSR.from_scipy(scipy.sparse.eye_array(n, format="csr"))
    start = time.perf_counter()
    C = A.T + B
    assert time.perf_counter() - start < 30
    assert C.pattern is A.T.pattern
