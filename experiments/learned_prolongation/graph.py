"""Luz's family: Laplacians of Delaunay graphs with log-normal weights; `NeuralAMG` corrects classical P.

Source: I. Luz et al., "Learning algebraic multigrid using graph neural networks", ICML 2020; J. W. Ruge,
K. Stueben, "Algebraic multigrid", in S. F. McCormick (ed.), "Multigrid Methods" (1987).
"""

from typing import Any

import torch
from network import ROUNDS, WIDTH, Sample
from torch import Tensor

import learnsolve as ls
from learnsolve.ops.spgemm import galerkin
from learnsolve.preconditioners import NeuralAMG

COARSEST = 20  # unknowns
CLASSICAL = "Ruge-Stueben"
CYCLES = {"two grids": 1200, "V": 5000, "W": 5000}  # see grid.py
TRAINED = "900 points"


def make() -> NeuralAMG:
    return NeuralAMG(rounds=ROUNDS, width=WIDTH, max_coarse=COARSEST)


READER = make()


def matrices(n: int, count: int, split: Any) -> list[ls.CSR]:
    data = ls.problems.dataset("delaunay_laplacian", split, count, n=n, boundary="dirichlet")
    return [sample.A for sample in data]


def level(A: ls.CSR) -> Any:
    if A.shape[0] <= COARSEST:
        return None
    grids = READER.start(A)
    return None if grids.P is None else grids


def samples(quick: bool) -> list[Sample]:
    """Matrices of 900 points, some on the boundary, and their first coarse operators."""
    return drawn(200 if quick else 900, 2 if quick else 30, "train")


def validation(quick: bool) -> list[Sample]:
    return drawn(200 if quick else 900, 1 if quick else 6, "validation")


def drawn(n: int, count: int, split: Any) -> list[Sample]:
    found = []
    for A in matrices(n, count, split):
        first = level(A)
        found += [Sample(first), Sample(level(galerkin(first.P, A)))]
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
