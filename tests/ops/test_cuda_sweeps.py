"""Triangular systems by levels on the CUDA operators, in one block or in many that hand results to one
another, on a device or emulated."""

import itertools
from fractions import Fraction

import cuda_promises
import numpy as np
import pytest
import scipy.sparse
import torch
from cuda_promises import DEVICE
from reference import normal, pattern_of

import learnsolve as ls
from learnsolve.ops.core import triangular

cuda_promises.skip_without_operators()

SIDES = tuple(itertools.product((True, False), repeat=3))  # lower, unit, transpose
ONE_BLOCK, HANDED = 10**9, 0  # rows per level below which one block takes them
both_ways = pytest.mark.parametrize("narrow", [ONE_BLOCK, HANDED], ids=["one block", "handed over"])


def with_offsets(n, *offsets):
    """Both triangles."""
    S = sum(scipy.sparse.eye_array(n, k=k) for d in {0, *offsets} if d < n for k in {d, -d})
    return scipy.sparse.csr_array(S)


def irregular(n):
    """Rows of 1 to 32 entries in each triangle."""
    S = scipy.sparse.random_array((n, n), density=6 / n, rng=np.random.default_rng(3))
    return scipy.sparse.csr_array(S + S.T + with_offsets(n))


STRUCTURES = {
    "a level a row": with_offsets(300, 1, 2, 5),
    "one level": with_offsets(700),
    "one row": with_offsets(1),
    "full chunks of entries": with_offsets(700, *range(3, 23)),
    "irregular": irregular(900),
}


def operands(S, columns=(), batch=(), dtype=torch.float64, index=torch.int64):
    T = pattern_of(S, index).to(DEVICE)
    v = normal((*batch, T.nnz), dtype, seed=4).to(DEVICE)
    v = torch.where(T.row_indices == T.col_indices, 1 + v.abs(), 0.05 * v)
    return T, v, normal((*batch, T.shape[0], *columns), dtype, seed=5).to(DEVICE)


def plan(T, lower=True, unit=False, transpose=False):
    return triangular._system(T, triangular.Side(lower, unit, transpose)).tensors[-1].tolist()


def solve(v, b, T, lower=True, unit=False, transpose=False):
    return ls.ops.sptrsv(ls.CSR(v, T), b, lower=lower, unit_diagonal=unit, transpose=transpose)


def dense(v, T, lower, unit, transpose):
    D = ls.CSR(v, T).to_dense().cpu()
    D = D.tril() if lower else D.triu()
    if unit:
        D.diagonal().fill_(1)
    return D.T if transpose else D


def exactly(v, b, T):
    """By the rule of csrc/kernels/triangular.cuh, a rounding for each operation of it."""
    v, b = v.tolist(), b.tolist()
    ptr, idx, x = T.crow_indices.tolist(), T.col_indices.tolist(), []
    for i in range(len(b)):
        at = {j: v[p] for p, j in zip(range(ptr[i], ptr[i + 1]), idx[ptr[i] : ptr[i + 1]], strict=True)}
        r = 1 / at[i]
        s = b[i] * r
        for j in sorted(j for j in at if j < i):
            s = float(Fraction(s) + Fraction(-(at[j] * r)) * Fraction(x[j]))
        x.append(s)
    return torch.tensor(x, dtype=torch.float64)


@both_ways
@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_side_with_columns_and_batches(structure, narrow, monkeypatch):
    monkeypatch.setattr(triangular, "_NARROW_LEVELS", narrow)
    for (columns, batch), side in itertools.product((((), ()), ((3,), ()), ((2,), (2,))), SIDES):
        T, v, b = operands(STRUCTURES[structure], columns, batch, index=torch.int32)
        assert (plan(T, *side)[2] > 0) == (narrow == ONE_BLOCK)
        x = solve(v, b, T, *side).cpu()
        for m in range(len(v) if batch else 1):
            D = dense(v[m] if batch else v, T, *side)
            c, found = (
                t.reshape(*batch, len(D), -1)[m] if batch else t.reshape(len(D), -1) for t in (b.cpu(), x)
            )
            torch.testing.assert_close(D @ found, c, rtol=1e-12, atol=1e-12)


@both_ways
@pytest.mark.parametrize("structure", STRUCTURES)
def test_bits_are_those_of_the_rule(structure, narrow, monkeypatch):
    monkeypatch.setattr(triangular, "_NARROW_LEVELS", narrow)
    T, v, b = operands(STRUCTURES[structure])
    wanted = exactly(v, b, T)
    assert torch.equal(solve(v, b, T).cpu(), wanted)
    columns = torch.stack([b.flip(0), b], dim=1)
    assert torch.equal(solve(v, columns, T)[:, 1].cpu(), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_levels_of_any_width(dtype, monkeypatch):
    """Narrow ones by a warp or a block, wide ones by many blocks: the same bits, forward and back."""
    for width in (1, 2, 3, 31, 32, 33, 63, 64, 65, 255, 256, 257, 300):
        S = with_offsets(3 * width + 5, width, width + 1)
        found = []
        for narrow in (triangular._NARROW_LEVELS, ONE_BLOCK, HANDED):
            with monkeypatch.context() as patch:
                patch.setattr(triangular, "_NARROW_LEVELS", narrow)
                T, v, b = operands(S, dtype=dtype)
                found.append([solve(v, b, T, transpose=t).cpu() for t in (False, True)])
                if narrow not in (ONE_BLOCK, HANDED):
                    assert (plan(T)[2] > 0) == (3 * width + 5 < 64 * 4)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-13
        for t, x in enumerate(found[0]):
            wanted = torch.linalg.solve(dense(v, T, True, False, bool(t)).double(), b.cpu().double())
            torch.testing.assert_close(x.double(), wanted, rtol=tolerance, atol=tolerance)
            assert torch.equal(found[1][t], x)
            assert torch.equal(found[2][t], x)


def test_the_shape_of_the_levels_decides():
    def way(S):
        lanes, levels, chunks = plan(operands(S)[0])
        return lanes, levels, chunks > 0

    assert way(with_offsets(640, 63)) == (1, 11, True)
    assert way(with_offsets(640, 64)) == (1, 10, False)
    assert way(with_offsets(50, *range(1, 32))) == (1, 50, True)
    assert way(with_offsets(50, *range(1, 33))) == (8, 50, False)
    assert way(with_offsets(600, *range(1, 600))) == (32, 600, False)


@both_ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("bits", [-1, -2, "quiet", "infinite"])
def test_what_is_not_finite_reaches_what_depends_on_it(bits, dtype, narrow, monkeypatch):
    """Among it the number that stands for one that is not there yet, which has all bits set."""
    monkeypatch.setattr(triangular, "_NARROW_LEVELS", narrow)
    T, v, b = operands(STRUCTURES["irregular"], dtype=dtype)
    clean, row = solve(v, b, T, unit=True).cpu(), 400
    whole = torch.int32 if dtype == torch.float32 else torch.int64
    special = {"quiet": float("nan"), "infinite": float("inf")}
    if bits in special:
        b[row] = special[bits]
    else:
        b.view(whole)[row] = bits
    reached = (torch.linalg.inv(dense(v, T, True, True, False).double())[:, row] != 0).clone()
    x = solve(v, b, T, unit=True).cpu()
    assert torch.equal(~x.isfinite(), reached)
    assert torch.equal(x[~reached], clean[~reached])
    assert 1 < int(reached.sum()) < len(b) - row


@both_ways
def test_nothing_to_solve(narrow, monkeypatch):
    monkeypatch.setattr(triangular, "_NARROW_LEVELS", narrow)
    T, v, b = operands(scipy.sparse.csr_array((0, 0)))
    assert solve(v, b, T).shape == (0,)
    T, v, b = operands(with_offsets(40, 3), (0,))
    assert solve(v, b, T).shape == (40, 0)
    T = pattern_of(scipy.sparse.csr_array((5, 5))).to(DEVICE)
    b = normal((5,), torch.float64).to(DEVICE)
    assert torch.equal(solve(torch.zeros(0, dtype=b.dtype, device=DEVICE), b, T, unit=True), b)
