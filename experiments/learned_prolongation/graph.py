"""Luz's family: Laplacians of Delaunay graphs with log-normal weights; P of classical multigrid.

Source: I. Luz et al., "Learning algebraic multigrid using graph neural networks", ICML 2020; J. W. Ruge,
K. Stueben, "Algebraic multigrid", in S. F. McCormick (ed.), "Multigrid Methods" (1987).
"""

from typing import Any

import numpy as np
import pyamg
import torch
from network import Level, Sample
from torch import Tensor

import learnsolve as ls
from learnsolve.ops.spgemm import galerkin

NODE_FEATURES, EDGE_FEATURES = 2, 8
COARSEST = 20  # unknowns
CLASSICAL = "Ruge-Stueben"
CYCLES = {"two grids": 1200, "V": 1200}  # see grid.py
TRAINED = "900 points"


def matrices(n: int, count: int, split: Any) -> list[ls.CSR]:
    data = ls.problems.dataset("delaunay_laplacian", split, count, n=n, boundary="dirichlet")
    return [sample.A for sample in data]


def classical(A: ls.CSR) -> tuple[ls.CSR, Tensor] | None:
    """P and the coarse points. Both passes of the coarsening: fine points that are strongly connected then
    have a coarse one in common. Without the second, some rows of P are empty, and no values can mend that."""
    solver: Any = pyamg.ruge_stuben_solver(
        A.to_scipy(),
        CF=("RS", {"second_pass": True}),
        interpolation="classical",
        max_levels=2,
        max_coarse=1,
        coarse_solver="splu",
    )
    if len(solver.levels) < 2:
        return None
    first = solver.levels[0]
    return ls.CSR.from_scipy(first.P.tocsr()), torch.from_numpy(np.flatnonzero(first.splitting))


def smoothed(A: ls.CSR, P: ls.CSR, fine: Tensor) -> ls.CSR:
    """P - (2/3) D^-1 A P on P's pattern, in rows of fine points: a step to the ideal one, A P = 0 there."""
    change = ls.ops.spgemm(A, P, mask=P.pattern).scale_rows(2 / 3 / A.diagonal())
    return P.with_values(P.values - fine * change.values)


def level(A: ls.CSR) -> Level | None:
    if A.shape[0] <= COARSEST or (found := classical(A)) is None:
        return None
    P, coarse = found
    size, d = A.shape[0], A.diagonal()
    row, column = A.pattern.row_indices.long(), A.pattern.col_indices.long()
    point = P.pattern.row_indices.long()
    here = coarse[P.pattern.col_indices.long()]
    places = torch.searchsorted(row * size + column, point * size + here)
    fine = (point != here).to(A.dtype)
    is_coarse = torch.zeros_like(d).index_fill(0, coarse, 1)
    x = torch.stack((is_coarse, 10 * A.sum(1) / d), -1)

    def on_edges(values: Tensor) -> Tensor:
        return torch.zeros_like(A.values).index_copy(0, places, values * fine)

    changes, Q = [], P
    for steps in (1, 1, 2):
        for _ in range(steps):
            Q = smoothed(A, Q, fine)
        changes.append(on_edges((Q.values / P.values.clamp(min=1e-3) - 1).clamp(-2, 2)))
    scaled = A.values / (d[row] * d[column]).sqrt()
    first = (column < row).to(A.dtype)  # Gauss-Seidel's order
    e = [scaled, A.values / d[row], on_edges(P.values), on_edges(torch.ones_like(fine)), *changes, first]
    return Level(A, P, places, fine, x, torch.stack(e, -1))


def samples(quick: bool) -> list[Sample]:
    """Matrices of 900 points, some on the boundary, and their first coarse operators."""
    found = []
    for A in matrices(200 if quick else 900, 2 if quick else 30, "train"):
        for fine in (True, False):
            given = level(A)
            assert given is not None
            found.append(Sample(given))
            if fine:
                A = galerkin(given.P, A)
    return found


def tests(quick: bool) -> list[tuple[str, ls.CSR, Tensor | None]]:
    """Held out; ten at a time in a block diagonal matrix, whose blocks have nothing in common."""
    found: list[tuple[str, ls.CSR, Tensor | None]] = []
    for n, count in ((300, 2),) if quick else ((1024, 100),):
        given = matrices(n, count, "test")
        for first in range(0, count, 10):
            some = given[first : first + 10]
            sizes = torch.tensor([A.shape[0] for A in some])
            block = torch.arange(len(some)).repeat_interleave(sizes)
            found.append((f"{n} points", ls.ops.block_diag(some), block))
    return found
