"""Matrices that reach every algorithm of the triangular solve."""

import numpy as np
import scipy.sparse as sp
from ops.triangular import with_diagonal
from reference import grid, random


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
