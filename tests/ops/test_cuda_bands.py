"""Triangular systems with narrow bands by the CUDA operators' scan, on a device or compiled for the host."""

import cuda_promises
import numpy as np
import pytest
import scipy.sparse
import torch
from cuda_promises import DEVICE, ON_HOST
from reference import normal, pattern_of

import learnsolve as ls
from learnsolve.ops.core import triangular

cuda_promises.skip_without_operators()

# Around the borders of lanes and of chunks (csrc/ops/band_solve.cuh), one block or several.
SIZES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 49, 300)
if not ON_HOST:
    SIZES += (511, 512, 513, 1023, 1025, 2047, 2049, 4095, 4097, 5000)
BANDS = {
    "1": (1,),
    "2": (1, 2),
    "3": (1, 2, 3),
    "4": (1, 2, 3, 4),
    "only 2": (2,),
    "only 3": (3,),
    "1 and 4": (1, 4),
}
every_band = pytest.mark.parametrize("distances", BANDS.values(), ids=BANDS)
gaps_or_not = pytest.mark.parametrize("share", [1.0, 0.6], ids=["whole", "gaps"])


@pytest.fixture(autouse=True)
def scanned(monkeypatch):
    """Bands of any length."""
    monkeypatch.setattr(triangular, "_BAND_LEVELS", 1)
    monkeypatch.setattr(triangular, "_BAND_LEVEL_ROWS", 10**9)


def band(n, distances, share=1.0, index=torch.int64):
    """Both triangles, entries beside the diagonal there with a probability of `share`."""
    offsets = np.array(sorted({0, *distances, *(-d for d in distances)}))
    row, column = np.repeat(np.arange(n), len(offsets)), (np.arange(n)[:, None] + offsets).ravel()
    there = (column >= 0) & (column < n)
    there &= (row == column) | (np.random.default_rng(n).random(len(row)) < share)
    row, column = row[there], column[there]
    S = scipy.sparse.csr_array((np.ones(len(row)), (row, column)), (n, n))
    return pattern_of(S, index).to(DEVICE)


def operands(T, columns=(), batch=(), dtype=torch.float64):
    v = normal((*batch, T.nnz), dtype, seed=4).to(DEVICE)
    v = torch.where(T.row_indices == T.col_indices, 1 + v.abs(), 0.3 * v)
    return v, normal((*batch, T.shape[0], *columns), dtype, seed=5).to(DEVICE)


def dense_solve(v, b, T, lower, unit, transpose):
    """The same on the CPU, with gradients, by torch."""
    v, b = v.cpu(), b.cpu()
    A = v.new_zeros((*v.shape[:-1], *T.shape))
    A[..., T.row_indices.cpu().long(), T.col_indices.cpu().long()] = v
    A = A.tril() if lower else A.triu()
    if transpose:
        A = A.mT
    rhs = b if b.dim() > 1 else b.unsqueeze(1)
    x = torch.linalg.solve_triangular(A, rhs, upper=lower == transpose, unitriangular=unit)
    return x.reshape(b.shape)


def width_of(T, lower=True, unit=False, transpose=False):
    """Of the band that is scanned, or 0."""
    side = triangular.Side(lower, unit, transpose)
    return max(-int(triangular._system(T, side).tensors[-1][0]), 0)


@gaps_or_not
@every_band
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_all_sizes(distances, share, dtype):
    for n in SIZES:
        T = band(n, distances, share)
        v, b = operands(T, dtype=dtype)
        beside = (T.row_indices - T.col_indices).abs().cpu()
        assert width_of(T) == int(beside[(T.row_indices >= T.col_indices).cpu()].max())
        x = ls.ops.sptrsv(ls.CSR(v, T), b)
        exact = dense_solve(v.double(), b.double(), T, True, False, False)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-13
        torch.testing.assert_close(x.cpu().double(), exact, rtol=tolerance, atol=tolerance)


@gaps_or_not
@pytest.mark.parametrize("distances", [(1,), (1, 2), (1, 4)], ids=["1", "2", "1 and 4"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_every_side_with_gradients(distances, share, index):
    """Unit, upper, transposed; one column, some, and batches of matrices."""
    T = band(45, distances, share, index)
    for columns, batch in (((), ()), ((3,), ()), ((2,), (3,))):
        for lower in (True, False):
            for unit in (True, False):
                for transpose in (False, True):
                    assert width_of(T, lower, unit, transpose) == max(distances)
                    v, b = (t.requires_grad_() for t in operands(T, columns, batch))
                    x = ls.ops.sptrsv(
                        ls.CSR(v, T), b, lower=lower, unit_diagonal=unit, transpose=transpose
                    ).cpu()
                    exact = dense_solve(v, b, T, lower, unit, transpose)
                    torch.testing.assert_close(x, exact, rtol=1e-12, atol=1e-12)
                    g = normal(x.shape, torch.float64, seed=6)
                    found = torch.autograd.grad(x, (v, b), g)
                    torch.testing.assert_close(
                        found, torch.autograd.grad(exact, (v, b), g), rtol=1e-11, atol=1e-11
                    )


@gaps_or_not
@every_band
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_reaches_what_depends_on_it(distances, share, number):
    n = 3000 if not ON_HOST else 150
    T = band(n, distances, share)
    v, b = operands(T)
    S = scipy.sparse.tril(ls.CSR(torch.ones_like(v), T).to_scipy()).tocsr()
    clean = ls.ops.sptrsv(ls.CSR(v, T), b).cpu()
    for row in (0, n // 2, n - 3):
        b_row = b.clone()
        b_row[row] = number
        x = ls.ops.sptrsv(ls.CSR(v, T), b_row).cpu()
        reached = torch.zeros(n, dtype=torch.bool)
        reached[row] = True
        for i in range(row + 1, n):
            reached[i] = bool(reached[S.indices[S.indptr[i] : S.indptr[i + 1]]].any())
        assert torch.equal(~x.isfinite(), reached)
        torch.testing.assert_close(x[~reached], clean[~reached], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("distance", [1, 2] if ON_HOST else [1, 2, 4])
def test_factors_that_overflow(distance):
    """Their products over a chunk leave the range, the solution does not. It is huge^-1 in the first chunk,
    and goes through huge^0, 1, 0 and -1 in each of the others."""
    n, huge, chunk = 20_000, 1e200, 16 if ON_HOST else 512 if distance == 4 else 1024
    level = np.array([0.0, 1.0, 0.0, -1.0])[np.arange(n) * 4 // chunk % 4]
    level[:chunk] = -1
    factors = -(huge ** (level[distance:] - level[:-distance]))
    S = scipy.sparse.diags_array([factors, np.ones(n)], offsets=[-distance, 0], shape=(n, n))
    L = ls.CSR.from_scipy(scipy.sparse.csr_array(S)).to(DEVICE)
    assert width_of(L.pattern) == distance
    b = torch.zeros(n, dtype=torch.float64, device=DEVICE)
    b[:distance] = 1 / huge
    x = ls.ops.sptrsv(L, b).cpu()
    torch.testing.assert_close(x, torch.from_numpy(huge**level), rtol=1e-10, atol=0.0)


def test_a_band_with_a_gap_has_the_bits_of_one_without():
    """Places that follow from the shape, and those that are read."""
    n = 200
    whole = ls.CSR.from_scipy(scipy.sparse.diags_array([0.5, 0.25, 2.0], offsets=[-2, -1, 0], shape=(n, n)))
    S = whole.to_scipy().tolil()
    S[n - 1, n - 3] = 0
    gap = ls.CSR.from_scipy(scipy.sparse.csr_array(S))
    assert gap.nnz == whole.nnz - 1
    b = normal((n,), torch.float64).to(DEVICE)
    x, y = (ls.ops.sptrsv(L.to(DEVICE), b) for L in (whole, gap))
    assert torch.equal(x[:-1], y[:-1])
    assert x[-1] != y[-1]


def test_only_narrow_bands_of_many_narrow_levels_are_scanned(monkeypatch):
    monkeypatch.setattr(triangular, "_BAND_LEVELS", 16)
    monkeypatch.setattr(triangular, "_BAND_LEVEL_ROWS", 1024)
    assert [width_of(band(100, d)) for d in ((1, 4), (4,), (1, 5), ())] == [4, 4, 0, 0]
    assert [width_of(band(n, (1,))) for n in (15, 16)] == [0, 1]
    assert [width_of(band(n, (4,))) for n in (60, 61)] == [0, 4]  # 15 levels, and 16

    def blocks(n, rows):
        """A bidiagonal matrix that falls into pieces of this number of rows."""
        S = scipy.sparse.diags_array(
            [np.arange(1, n) % rows != 0, np.ones(n)], offsets=[-1, 0], shape=(n, n), dtype=np.float64
        ).tocsr()
        S.eliminate_zeros()
        return pattern_of(S).to(DEVICE)

    assert [width_of(blocks(20_000, rows)) for rows in (4, 16, 20)] == [0, 0, 1]
