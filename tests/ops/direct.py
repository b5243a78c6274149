"""Matrices for the tests of the direct solve, and a dense solve to compare with."""

import numpy as np
import scipy.sparse
import torch
from reference import UNIT_ROUNDOFF, densify, grid, normal, pattern_of
from torch import Tensor

import learnsolve as ls


def dominant(S: scipy.sparse.sparray, seed: int = 0) -> scipy.sparse.csr_array:
    """Random values on a pattern, its diagonal added and as large as the rest of the row: no pivoting."""
    rng = np.random.default_rng(seed)
    S = scipy.sparse.csr_array(S, dtype=float)
    S.data = rng.standard_normal(S.nnz)
    return scipy.sparse.csr_array(S + scipy.sparse.diags_array(2 * abs(S).sum(1) + 1))


def without_diagonal(n: int) -> scipy.sparse.csr_array:
    """A nonsymmetric matrix that no elimination gets through without pivoting: its diagonal is not stored."""
    S = dominant(scipy.sparse.random_array((n, n), density=0.3, rng=3), seed=4)
    S = scipy.sparse.csr_array(S.tocsr()[np.roll(np.arange(n), 1)])
    keep = S.tocoo()
    off = keep.row != keep.col
    return scipy.sparse.csr_array((keep.data[off], (keep.row[off], keep.col[off])), shape=(n, n))


def convection(side: int, speed: float = 3.0) -> scipy.sparse.csr_array:
    """Diffusion and an upwind wind on a square: nonsymmetric, diagonally dominant."""
    S = grid(5, side)
    S.setdiag(0)
    S.eliminate_zeros()
    rows, columns = S.tocoo().coords
    S.data = np.where(columns < rows, -1.0 - speed, -1.0)
    return scipy.sparse.csr_array(S + scipy.sparse.diags_array(np.full(side**2, 4.0 + 2 * speed)))


def matrices() -> dict[str, scipy.sparse.csr_array]:
    zeros = without_diagonal(8)
    zeros = scipy.sparse.csr_array(zeros + scipy.sparse.eye_array(8))
    zeros.data[zeros.tocoo().row == zeros.tocoo().col] = 0  # stays an entry
    return {
        "dominant": dominant(scipy.sparse.random_array((7, 7), density=0.3, rng=1)),
        "no diagonal": without_diagonal(9),
        "zeros on the diagonal": zeros,
        "full": scipy.sparse.csr_array(np.random.default_rng(5).standard_normal((6, 6))),
        "triangular": scipy.sparse.csr_array(scipy.sparse.tril(dominant(np.ones((6, 6))))),
        "permutation": scipy.sparse.csr_array(np.eye(5)[[3, 0, 4, 1, 2]]),
        "convection": convection(6),
        "1 x 1": scipy.sparse.csr_array([[-3.0]]),
        "0 x 0": scipy.sparse.csr_array((0, 0)),
    }


def pair(
    S: scipy.sparse.csr_array, index=torch.int64, dtype=torch.float64
) -> tuple[ls.SparsityPattern, Tensor]:
    S.sort_indices()
    return pattern_of(S, index), torch.tensor(S.data).to(dtype)


# 5 x 5, nonsymmetric, without diagonal, with an entry that is zero: for derivatives.
P, VALUES = pair(
    scipy.sparse.csr_array(
        (
            [2.0, 0.5, -3.0, 1.0, 0.0, 2.5, -2.0, 0.7, 1.0, 3.0, -0.4],
            ([0, 0, 1, 1, 1, 2, 3, 3, 3, 4, 4], [1, 3, 2, 4, 0, 0, 4, 1, 2, 3, 0]),
        ),
        shape=(5, 5),
    )
)


def batch_of_values(*batch: int) -> Tensor:
    """Different, well-conditioned matrices on P."""
    return VALUES * (1 + 0.1 * normal((*batch, P.nnz), seed=6))


def sparse(v: Tensor, b: Tensor, transpose: bool = False, pattern: ls.SparsityPattern = P) -> Tensor:
    return ls.ops.spsolve(ls.CSR(v, pattern), b, transpose=transpose)


def dense(v: Tensor, b: Tensor, transpose: bool = False, pattern: ls.SparsityPattern = P) -> Tensor:
    D = densify(pattern, v)
    D = D.mT if transpose else D
    # Not torch.linalg.solve, which under vmap takes some batches of matrices for batches of vectors.
    inverse = torch.linalg.inv(D)
    return (inverse @ b.unsqueeze(-1)).squeeze(-1) if b.dim() == 1 else inverse @ b


def assert_solves(x: Tensor, exact: Tensor, D: Tensor, what: str = "") -> None:
    """||x - exact|| <= 8 n u cond(A) ||exact||, for each column: what a backward stable solve with growth
    near 1 reaches (Higham, Accuracy and Stability of Numerical Algorithms, sections 7.1 and 9.3)."""
    assert x.shape == exact.shape, what
    if not x.numel():
        return
    n = D.shape[-1]
    axis = 0 if x.dim() == 1 else -2
    bound = 8 * n * UNIT_ROUNDOFF[x.dtype] * torch.linalg.cond(D.double(), torch.inf).max()
    error = (x.detach().double() - exact).abs().amax(axis)
    size = exact.abs().amax(axis)
    assert (error <= bound * size).all(), (
        f"{what}: relative error {(error / size).max():.2g}, bound {bound:.2g}"
    )


def small() -> ls.SparsityPattern:
    """P again, that nothing was computed for."""
    return pattern_of(ls.CSR(torch.ones_like(VALUES), P).to_scipy())
