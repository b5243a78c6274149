"""Luz's family: Laplacians of Delaunay graphs with log-normal weights; P of classical multigrid.

Source: I. Luz et al., "Learning algebraic multigrid using graph neural networks", ICML 2020; J. W. Ruge,
K. Stueben, "Algebraic multigrid", in S. F. McCormick (ed.), "Multigrid Methods" (1987).
"""

from typing import Any

import torch
from torch import Tensor
from training import Sample

import learnsolve as ls
from learnsolve.ops.sparse_products import galerkin
from learnsolve.preconditioners import NeuralAMG

CLASSICAL = "Ruge-Stueben"
CYCLES = {"two grids": 1200, "V": 5000, "W": 5000}  # see grid.py
TRAINED = "900 points"
LEVELS = 3  # of a training matrix: itself, and coarse operators


def network() -> NeuralAMG:
    return NeuralAMG(width=16, max_levels=20, max_coarse=20)


def matrices(n: int, count: int, split: Any) -> list[ls.CSR]:
    data = ls.problems.dataset("delaunay_laplacian", split, count, n=n, boundary="dirichlet")
    return [sample.A for sample in data]


def samples(network: NeuralAMG, quick: bool, split: str) -> list[Sample]:
    """Matrices of 900 points, some on the boundary, and in the training their coarse operators."""
    found, train = [], split == "train"
    for A in matrices(200 if quick else 900, 2 if quick else 30 if train else 10, split):
        for _ in range(LEVELS if train else 1):
            grids = network.start(A)
            assert grids.P is not None
            found.append(Sample(grids))
            A = galerkin(grids.P, A)
    return found


def tests(quick: bool) -> list[tuple[str, ls.CSR, Tensor | None]]:
    """Held out; ten at a time in a block diagonal matrix, whose blocks have nothing in common."""
    found: list[tuple[str, ls.CSR, Tensor | None]] = []
    for n, count in ((300, 2),) if quick else ((1024, 100), (4096, 30)):
        given = matrices(n, count, "test")
        for first in range(0, count, 10):
            some = given[first : first + 10]
            sizes = torch.tensor([A.shape[0] for A in some])
            block = torch.arange(len(some)).repeat_interleave(sizes)
            found.append((f"{n} points", ls.ops.block_diag(some), block))
    return found
