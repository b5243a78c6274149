"""Triangular solves, the dense ones to compare with, and matrices that reach every algorithm."""

import itertools

import numpy as np
import scipy.sparse as sp
import torch
from ops.case import EMPTY, SHAPES
from reference import coordinates, densify, grid, normal, pattern_of, random

import learnsolve as ls

F64 = torch.float64
SIDES = [
    {"lower": low, "unit_diagonal": unit, "transpose": t}
    for low, unit, t in itertools.product((True, False), (False, True), (False, True))
]


def with_diagonal(S):
    return sp.csr_array(S + sp.eye_array(S.shape[0]))


def small() -> ls.SparsityPattern:
    return pattern_of(with_diagonal(random(5, 5, 0.4)))


P = small()


def values_for(Q, *batch, dtype=F64, seed=0):
    """Solutions that stay of the size of the right-hand side."""
    rows, columns = coordinates(Q)
    off = torch.tensor(rows != columns)
    scale = 0.7 / max(np.bincount(rows, minlength=1).max(initial=1), 2)
    v = normal((*batch, Q.nnz), seed=seed)
    return torch.where(off, scale * v, torch.sign(v) * (1 + 0.2 * v.abs())).to(dtype)


def sparse(v, b, P=P, **side):
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


def dense(v, b, P=P, **side):
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


STRUCTURES = {
    "chain": band(45, -1, 0),
    "chain in a tridiagonal matrix": band(30, -1, 0, 1),
    "band of 2": band(29, -2, -1, 0),
    "band of 4": band(29, -4, -3, -2, -1, 0),
    "band of 6": band(29, *range(-6, 1)),
    "far couplings": band(31, -7, -2, 0, 3),
    "diagonal": sp.eye_array(21).tocsr(),
    "dense": sp.csr_array(np.ones((37, 37))),
    "random": with_diagonal(random(23, 23, 0.2)),
    "random triangle": sp.csr_array(sp.tril(with_diagonal(random(40, 40, 0.1, seed=1)))),
    "ILU(0), 5 points": sp.csr_array(sp.tril(grid(5, 11))),
    "ILU(0), 7 points": sp.csr_array(sp.tril(grid(7, 5))),
    "9 points, both triangles": grid(9, 10),
    "long rows": long_rows(40),
    "1 x 1": sp.csr_array(np.ones((1, 1))),
    "0 x 0": sp.csr_array((0, 0)),
}
