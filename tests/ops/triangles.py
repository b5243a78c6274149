"""Triangular systems, for each way in which a CUDA device solves them (csrc/ops/triangular.cuh)."""

from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from reference import normal, pattern_of

import learnsolve as ls


class Way(NamedTuple):
    """The lanes that solve a row, or 0 for a scan. Does one block take all levels?"""

    lanes: int
    narrow: bool = False


TRIANGLES = {
    "short chain": Way(0),
    "long chain": Way(0),
    "chains": Way(0),
    "band of 2": Way(1, narrow=True),
    "narrow levels": Way(1, narrow=True),
    "levels of a grid": Way(1, narrow=True),
    "columns of a grid": Way(1, narrow=True),
    "wide levels": Way(1),
    "long rows": Way(8),
    "columns of long rows": Way(8),
    "columns of longest rows": Way(32),
}


def triangles(device):
    """A pattern and the columns of a right-hand side for each of them."""

    def tridiagonal(n):
        return ls.problems.poisson((n,)).pattern.to(device)

    def band(n, *offsets):
        return scipy.sparse.csr_array(sum(scipy.sparse.eye_array(n, k=k) for k in offsets))

    def arrow(n):
        S = np.eye(n)
        S[[50, n - 1]] = S[:, 7] = 1
        return pattern_of(scipy.sparse.csr_array(S)).to(device)

    wide = scipy.sparse.random_array((1800, 1800), density=1e-3, rng=np.random.default_rng(2))
    wide = scipy.sparse.csr_array(scipy.sparse.eye_array(1800) + scipy.sparse.tril(wide, -1))
    return {
        "short chain": (tridiagonal(900), ()),
        "long chain": (tridiagonal(6000), ()),
        "chains": (tridiagonal(5000), (3,)),
        "band of 2": (pattern_of(band(300, -2, -1, 0, 1, 2)).to(device), ()),
        "narrow levels": (pattern_of(band(500, 0, -2, -5)).to(device), ()),
        "levels of a grid": (ls.problems.poisson((8, 9, 10)).pattern.to(device, torch.int32), ()),
        "columns of a grid": (ls.problems.poisson((40, 35)).pattern.to(device), (40,)),
        "wide levels": (pattern_of(wide, torch.int32).to(device), (2,)),
        "long rows": (arrow(300), ()),
        "columns of long rows": (arrow(300), (4,)),
        "columns of longest rows": (arrow(600), (2,)),
    }


def triangular_operands(T, columns, dtype=torch.float64):
    """Values whose solutions stay of the size of the right-hand side."""
    v = normal((T.nnz,), dtype, seed=8).to(T.device)
    v = torch.where(T.row_indices == T.col_indices, 1 + v.abs(), 0.1 * v)
    return v.requires_grad_(), normal((T.shape[0], *columns), dtype, seed=9).to(T.device).requires_grad_()
