"""Matrices to multiply, and the pattern of their product by SciPy."""

import numpy as np
import scipy.sparse
import torch
from reference import banded, grid, normal, pattern_of, random, structures

from learnsolve import CSR

STRUCTURES = structures() | {
    "long band": banded(150, 4),
    "grid of 7 points": grid(7, 7),
    "stencil": grid(5, 30),
}


def pairs(S):
    """Products that S takes part in, of every shape."""
    m, n = S.shape
    return [(S, S.T.tocsr()), (S, random(n, 6, 0.4, seed=3)), (random(5, m, 0.3, seed=4), S)]


def symbolic(S, T):
    """The pattern of the product by SciPy: no entry cancels that counts paths."""
    ones = [
        scipy.sparse.csr_array((np.ones(M.nnz, dtype=np.int64), M.indices, M.indptr), M.shape) for M in (S, T)
    ]
    C = scipy.sparse.csr_array(ones[0] @ ones[1])
    C.sort_indices()
    return C


def with_normal_values(S, dtype=torch.float64, index=torch.int64, seed=0, grad=False):
    P = pattern_of(S, index)
    return CSR(normal((P.nnz,), dtype, seed).requires_grad_(grad), P)


def same_pattern(P, S):
    S = scipy.sparse.csr_array(S)
    return (
        P.shape == S.shape
        and np.array_equal(P.crow_indices.cpu().numpy(), S.indptr)
        and np.array_equal(P.col_indices.cpu().numpy(), S.indices)
    )


def random_mask(shape, seed=5):
    return pattern_of(random(*shape, 0.3, seed))
