"""Bidiagonal systems by the CUDA operators' scan, on a device or emulated."""

import itertools

import cuda_promises
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from cuda_promises import DEVICE
from reference import normal, pattern_of

import learnsolve as ls
from learnsolve.ops.core import triangular

cuda_promises.skip_without_operators()

# Around the borders of the threads' rows and of chunks (csrc/kernels/band.cuh), for one block or for several.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 33, 1023, 1024, 1025, 2049, 4095, 4096, 4097, 5120, 6000)
SHORT, LONG = 150, 4500
SIDES = tuple(itertools.product((True, False), repeat=3))  # lower, unit, transpose


@pytest.fixture(autouse=True)
def scanned(monkeypatch):
    """Systems of any length."""
    monkeypatch.setattr(triangular, "_SCANNED_ROWS", 1)


def chain(n, index=torch.int64, missing=()):
    """Both triangles, without the entries that couple these rows to the ones before."""
    beside = np.ones(n - 1)
    beside[np.array(missing, dtype=int) - 1] = 0
    S = scipy.sparse.csr_array(scipy.sparse.diags_array([beside, np.ones(n), beside], offsets=[-1, 0, 1]))
    S.eliminate_zeros()
    return pattern_of(S, index).to(DEVICE)


def operands(T, columns=(), batch=(), dtype=torch.float64):
    v = normal((*batch, T.nnz), dtype, seed=4).to(DEVICE)
    v = torch.where(T.row_indices == T.col_indices, 1 + v.abs(), 0.3 * v)
    return v, normal((*batch, T.shape[0], *columns), dtype, seed=5).to(DEVICE)


def is_scanned(T, lower=True, unit=False, transpose=False):
    return triangular._system(T, triangular.Side(lower, unit, transpose)).tensors[-1].tolist() == [0]


def by_scipy(v, b, T, lower, unit, transpose):
    """The solution, on the CPU in float64."""
    if v.dim() == 2:
        return torch.stack([by_scipy(*one, T, lower, unit, transpose) for one in zip(v, b, strict=True)])
    S = ls.CSR(v.detach().double(), T).to_scipy()
    S = scipy.sparse.csr_array(scipy.sparse.tril(S) if lower else scipy.sparse.triu(S))
    if unit:
        S.setdiag(1)
    S = scipy.sparse.csr_array(S.T) if transpose else S
    return torch.from_numpy(
        scipy.sparse.linalg.spsolve_triangular(S, b.detach().cpu().double().numpy(), lower=lower != transpose)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_all_sizes(dtype):
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    for n in SIZES:
        T = chain(n)
        assert is_scanned(T)
        v, b = operands(T, dtype=dtype)
        x = ls.ops.sptrsv(ls.CSR(v, T), b).cpu().double()
        wanted = by_scipy(v, b, T, True, False, False)
        torch.testing.assert_close(x, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("n", [SHORT, LONG])
def test_every_side_with_gradients(n, index):
    """Unit, upper, transposed; one column, some, and batches of matrices."""
    T = chain(n, index)
    for (columns, batch), side in itertools.product((((), ()), ((3,), ()), ((2,), (3,))), SIDES):
        lower, unit, transpose = side
        assert is_scanned(T, *side)
        v, b = (t.requires_grad_() for t in operands(T, columns, batch))
        x = ls.ops.sptrsv(ls.CSR(v, T), b, lower=lower, unit_diagonal=unit, transpose=transpose)
        g = normal(x.shape, torch.float64, seed=6).to(DEVICE)
        found = torch.autograd.grad(x, (v, b), g)
        x, y = x.detach().cpu(), by_scipy(v, g, T, lower, unit, not transpose)
        torch.testing.assert_close(x, by_scipy(v, b, T, *side), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found[1].cpu(), y, rtol=1e-12, atol=1e-12)
        rows, cols = T.row_indices.cpu().long(), T.col_indices.cpu().long()
        read = (cols <= rows if lower else cols >= rows) & ((cols != rows) | (not unit))
        u, w = (t if columns else t.unsqueeze(-1) for t in ((x, y) if transpose else (y, x)))
        wanted = -(u[..., rows, :] * w[..., cols, :]).sum(-1) * read
        torch.testing.assert_close(found[0].cpu(), wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("n", [SHORT, LONG])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_reaches_what_depends_on_it(n, number):
    T = chain(n)
    v, b = operands(T)
    clean = ls.ops.sptrsv(ls.CSR(v, T), b).cpu()
    for row in (0, n // 2, n - 3):
        b_row = b.clone()
        b_row[row] = number
        x = ls.ops.sptrsv(ls.CSR(v, T), b_row).cpu()
        assert torch.equal(~x.isfinite(), torch.arange(n) >= row)
        torch.testing.assert_close(x[:row], clean[:row], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("n", [4000, 20_000])
def test_factors_that_overflow(n):
    """Their products over a chunk leave the range, the solution does not. It is huge^-1 in the first chunk,
    and goes through huge^0, 1, 0 and -1 in each of the others."""
    huge, chunk = 1e200, 1024
    level = np.array([0.0, 1.0, 0.0, -1.0])[np.arange(n) * 4 // chunk % 4]
    level[:chunk] = -1
    factors = -(huge ** (level[1:] - level[:-1]))
    S = scipy.sparse.diags_array([factors, np.ones(n)], offsets=[-1, 0], shape=(n, n))
    L = ls.CSR.from_scipy(scipy.sparse.csr_array(S)).to(DEVICE)
    assert is_scanned(L.pattern)
    b = torch.zeros(n, dtype=torch.float64, device=DEVICE)
    b[0] = 1 / huge
    x = ls.ops.sptrsv(L, b).cpu()
    torch.testing.assert_close(x, torch.from_numpy(huge**level), rtol=1e-10, atol=0.0)


def test_more_chunks_than_a_block_has_threads():
    n = 270_000
    T = chain(n)
    v, b = operands(T)
    assert is_scanned(T)
    x = ls.ops.sptrsv(ls.CSR(v, T), b).cpu()
    torch.testing.assert_close(x, by_scipy(v, b, T, True, False, False), rtol=1e-12, atol=1e-12)


def test_only_long_bidiagonal_systems_without_gaps_are_scanned(monkeypatch):
    monkeypatch.setattr(triangular, "_SCANNED_ROWS", 16)
    assert [is_scanned(chain(n)) for n in (15, 16)] == [False, True]
    assert not is_scanned(chain(100, missing=[50]))
    S = scipy.sparse.csr_array(sum(scipy.sparse.eye_array(100, k=-d) for d in (0, 2)))
    assert not is_scanned(pattern_of(S).to(DEVICE))
    S = scipy.sparse.lil_array(scipy.sparse.diags_array([1.0, 1.0], offsets=[-1, 0], shape=(100, 100)))
    S[50, 49], S[50, 40] = 0, 1  # as many entries, one of them elsewhere
    assert not is_scanned(pattern_of(scipy.sparse.csr_array(S)).to(DEVICE))
