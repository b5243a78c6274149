"""Matrices for the tests of direct and of triangular solves, and dense solves to compare with."""

import itertools
from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse as sp
import torch
from ops.rows import EMPTY, SHAPES
from reference import UNIT_ROUNDOFF, coordinates, densify, grid, normal, pattern_of, random
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


F64 = torch.float64
SIDES = [
    {"lower": low, "unit_diagonal": unit, "transpose": t}
    for low, unit, t in itertools.product((True, False), (False, True), (False, True))
]


def with_ones(S):
    return sp.csr_array(S + sp.eye_array(S.shape[0]))


def small_triangular() -> ls.SparsityPattern:
    return pattern_of(with_ones(random(5, 5, 0.4)))


TRIANGULAR = small_triangular()


def values_for(Q, *batch, dtype=F64, seed=0):
    """Solutions that stay of the size of the right-hand side."""
    rows, columns = coordinates(Q)
    off = torch.tensor(rows != columns)
    scale = 0.7 / max(np.bincount(rows, minlength=1).max(initial=1), 2)
    v = normal((*batch, Q.nnz), seed=seed)
    return torch.where(off, scale * v, torch.sign(v) * (1 + 0.2 * v.abs())).to(dtype)


def solve_triangular(v, b, P=TRIANGULAR, **side):
    return ls.ops.sptrsv(ls.CSR(v, P), b, **side)


def full(Q, v):
    """The dense matrix. `densify` holds nnz n^2 numbers, but every transformation knows it."""
    if v.dim() > 1 or Q.shape[0] < 10:
        return densify(Q, v)
    return torch.zeros(Q.shape, dtype=v.dtype).index_put(tuple(map(torch.from_numpy, coordinates(Q))), v)


def triangle(D, lower=True, unit_diagonal=False, transpose=False):
    T = torch.tril(D) if lower else torch.triu(D)
    if unit_diagonal:
        T = T - torch.diag_embed(torch.diagonal(T, dim1=-2, dim2=-1)) + torch.eye(T.shape[-1], dtype=T.dtype)
    return T.mT if transpose else T


def dense_triangular(v, b, P=TRIANGULAR, **side):
    T = triangle(full(P, v), **side)
    B = b.unsqueeze(-1) if b.dim() == 1 else b
    batch = torch.broadcast_shapes(T.shape[:-2], B.shape[:-2])
    T, B = T.expand(*batch, *T.shape[-2:]), B.expand(*batch, *B.shape[-2:])
    x = torch.linalg.solve(T, B)
    return x.squeeze(-1) if b.dim() == 1 else x


# Every shape with one side, every side with the shape that has all axes.
COMBINATIONS = [
    (shape, SIDES[i % 8]) for i, shape in enumerate(SHAPES) if shape not in (*EMPTY, "batch of both")
] + [("batch of both", side) for side in SIDES]


def band(n, *offsets):
    return sp.diags_array([1.0] * len(offsets), offsets=offsets, shape=(n, n)).tocsr()


def long_rows(n):
    D = np.eye(n) + np.eye(n, k=-1)
    D[-3:] = 1
    D[:, :2] = 1
    return sp.csr_array(D)


TRIANGULAR_MATRICES = {
    "chain": band(45, -1, 0),
    "chain in a tridiagonal matrix": band(30, -1, 0, 1),
    "band of 2": band(29, -2, -1, 0),
    "band of 4": band(29, -4, -3, -2, -1, 0),
    "band of 6": band(29, *range(-6, 1)),
    "far couplings": band(31, -7, -2, 0, 3),
    "diagonal": sp.eye_array(21).tocsr(),
    "dense": sp.csr_array(np.ones((37, 37))),
    "random": with_ones(random(23, 23, 0.2)),
    "random triangle": sp.csr_array(sp.tril(with_ones(random(40, 40, 0.1, seed=1)))),
    "ILU(0), 5 points": sp.csr_array(sp.tril(grid(5, 11))),
    "ILU(0), 7 points": sp.csr_array(sp.tril(grid(7, 5))),
    "9 points, both triangles": grid(9, 10),
    "long rows": long_rows(40),
    "1 x 1": sp.csr_array(np.ones((1, 1))),
    "0 x 0": sp.csr_array((0, 0)),
}


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
