"""Triangular systems, one for each way in which a CUDA device solves them (csrc/ops/triangular.cuh)."""

import numpy as np
import scipy.sparse
import torch
from reference import normal, pattern_of

import learnsolve as ls

TRIANGLES = (
    "short chain",
    "long chain",
    "chains",
    "short band of 2",
    "band with gaps of 3",
    "long band of 4",
    "narrow levels",
    "wide levels",
    "levels by ticket",
    "columns by ticket",
    "long rows",
)


def triangles(device):
    """A pattern and the columns of a right-hand side for each way to solve a triangular system."""

    def tridiagonal(n):
        return ls.problems.poisson((n,)).pattern.to(device)

    def band(n, *offsets):
        return scipy.sparse.csr_array(sum(scipy.sparse.eye_array(n, k=k) for k in offsets))

    narrow = band(500, 0, -2, -5)
    gaps = band(3000, 0, -1, -2, -3).tocoo()
    kept = (gaps.row == gaps.col) | (np.random.default_rng(3).random(gaps.nnz) < 0.6)
    gaps = scipy.sparse.csr_array((gaps.data[kept], (gaps.row[kept], gaps.col[kept])), gaps.shape)
    wide = scipy.sparse.random_array((9000, 9000), density=3e-4, rng=np.random.default_rng(2))
    wide = scipy.sparse.csr_array(scipy.sparse.eye_array(9000) + scipy.sparse.tril(wide, -1))
    long_rows = np.eye(300)
    long_rows[[50, 299]] = long_rows[:, 7] = 1
    return {
        "short chain": (tridiagonal(900), ()),
        "long chain": (tridiagonal(40_000), ()),
        "chains": (tridiagonal(5000), (3,)),
        "short band of 2": (pattern_of(band(900, -2, -1, 0, 1, 2)).to(device), ()),
        "band with gaps of 3": (pattern_of(gaps, torch.int32).to(device), (3,)),
        "long band of 4": (pattern_of(band(20_000, 0, -1, -4)).to(device), ()),
        "narrow levels": (pattern_of(narrow).to(device), ()),
        "wide levels": (pattern_of(wide, torch.int32).to(device), (2,)),
        "levels by ticket": (ls.problems.poisson((16, 17, 18)).pattern.to(device, torch.int32), ()),
        "columns by ticket": (ls.problems.poisson((100, 200)).pattern.to(device), (40,)),
        "long rows": (pattern_of(scipy.sparse.csr_array(long_rows)).to(device), ()),
    }


def triangular_operands(T, columns, dtype=torch.float64):
    """Values whose solutions stay of the size of the right-hand side."""
    v = normal((T.nnz,), dtype, seed=8).to(T.device)
    v = torch.where(T.row_indices == T.col_indices, 1 + v.abs(), 0.1 * v)
    return v.requires_grad_(), normal((T.shape[0], *columns), dtype, seed=9).to(T.device).requires_grad_()
