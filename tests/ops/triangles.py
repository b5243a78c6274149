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

    narrow = scipy.sparse.diags_array([1.0] * 3, offsets=(-3, -2, 0), shape=(500, 500))
    wide = scipy.sparse.random_array((9000, 9000), density=3e-4, rng=np.random.default_rng(2))
    wide = scipy.sparse.csr_array(scipy.sparse.eye_array(9000) + scipy.sparse.tril(wide, -1))
    long_rows = np.eye(300)
    long_rows[[50, 299]] = long_rows[:, 7] = 1
    return {
        "short chain": (tridiagonal(900), ()),
        "long chain": (tridiagonal(40_000), ()),
        "chains": (tridiagonal(5000), (3,)),
        "narrow levels": (pattern_of(narrow.tocsr()).to(device), ()),
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
