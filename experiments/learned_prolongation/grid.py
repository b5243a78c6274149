"""Greenfeld's family: bilinear elements with log-normal coefficients; P of Black Box multigrid, 3 x 3 points.

Source: D. Greenfeld et al., "Learning to optimize multigrid PDE solvers", ICML 2019; J. E. Dendy, "Black box
multigrid", J. Comput. Phys. 48 (1982), doi:10.1016/0021-9991(82)90057-2.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from training import Sample

import learnsolve as ls
from learnsolve.ops.sparse_products import galerkin
from learnsolve.preconditioners import Hierarchy, NeuralAMG
from learnsolve.preconditioners.learned import Grids

CLASSICAL = "Black Box"
# Up to how many unknowns each is tested; of two grids the coarse one is solved directly.
CYCLES = {"two grids": 1200, "V": 20_000, "W": 4000}
TRAINED = "15 x 15"


def matrices(n: int, count: int, split: Any, first: int = 0) -> ls.CSR:
    data = ls.problems.dataset("q1_diffusion", split, first + count, n=n, boundary="dirichlet", period=None)
    return ls.CSR.stack([data[first + i].A for i in range(count)])


@cache
def linear(n: int) -> ls.CSR:
    return Hierarchy.linear((n, n), levels=2).prolongations[0]


def stencils(A: ls.CSR) -> Tensor:
    """Entries by the step to the column and the point of the row, (..., 3, 3, n, n)."""
    n = round(A.shape[0] ** 0.5)
    row, column = A.pattern.row_indices.long(), A.pattern.col_indices.long()
    step = 3 * (column // n - row // n + 1) + column % n - row % n + 1
    flat = A.values.new_zeros(*A.batch_shape, 9 * n * n).index_copy(-1, step * n * n + row, A.values)
    return flat.reshape(*A.batch_shape, 3, 3, n, n)


def black_box(A: ls.CSR) -> ls.CSR:
    """Between two coarse points by the stencil summed across; in the middle of four by the whole one."""
    S = stencils(A)
    n = S.shape[-1]
    m, P = (n - 1) // 2, linear(n)
    across_x, across_y = S.sum(-4), S.sum(-3)  # (..., 3, n, n)
    takes = {(0, 0): torch.ones_like(S[..., 0, 0, :, :])}
    for d in (-1, 1):
        takes[0, d] = -across_x[..., d + 1, :, :] / across_x[..., 1, :, :]
        takes[d, 0] = -across_y[..., d + 1, :, :] / across_y[..., 1, :, :]
    for dy in (-1, 1):
        for dx in (-1, 1):
            by_row = S[..., dy + 1, 1, :, :] * shifted(takes[0, dx], dy, 0)
            by_column = S[..., 1, dx + 1, :, :] * shifted(takes[dy, 0], 0, dx)
            takes[dy, dx] = -(S[..., dy + 1, dx + 1, :, :] + by_row + by_column) / S[..., 1, 1, :, :]
    row, column = P.pattern.row_indices.long(), P.pattern.col_indices.long()
    step = 3 * (2 * (column // m) + 2 - row // n) + 2 * (column % m) + 2 - row % n
    every = torch.stack([takes[dy, dx] for dy in (-1, 0, 1) for dx in (-1, 0, 1)], -3)
    return P.with_values(every.flatten(-3)[..., step * n * n + row])


def shifted(x: Tensor, dy: int, dx: int) -> Tensor:
    """x at the point (y + dy, x + dx); zero outside."""
    n = x.shape[-1]
    return torch.nn.functional.pad(x, (1, 1, 1, 1))[..., 1 + dy : 1 + dy + n, 1 + dx : 1 + dx + n]


class BlackBox(NeuralAMG):
    """On grids; takes batches."""

    node_features, edge_features, batches = 3, 5, True

    def interpolation(self, A: ls.CSR) -> tuple[ls.CSR, Tensor]:
        n, P = round(A.shape[0] ** 0.5), black_box(A)
        place = torch.arange(P.shape[1])
        m = (n - 1) // 2
        return P, (2 * (place // m) + 1) * n + 2 * (place % m) + 1

    def start(self, A: ls.CSR) -> Grids:
        """Kinds of points instead of whether they are coarse; of edges the step, and no smoothed P."""
        grids = super().start(A)
        n, graph = round(A.shape[0] ** 0.5), grids.graph
        row, column = A.pattern.row_indices.long(), A.pattern.col_indices.long()
        number, d = torch.arange(A.shape[0]), A.diagonal()
        assert graph.more is not None
        kind = torch.stack((number // n % 2, number % n % 2), -1).expand(*d.shape, 2)
        x = torch.cat((kind, (A.sum(1) / d).unsqueeze(-1)), -1)
        step = torch.stack((column // n - row // n, column % n - row % n), -1).expand(*graph.e.shape, 2)
        more = torch.cat((graph.more[..., [0, 3]], step), -1)
        return grids._replace(graph=graph._replace(x=x, more=more))


def network() -> NeuralAMG:
    return BlackBox(width=16, max_levels=20, max_coarse=9)


def samples(network: NeuralAMG, quick: bool, split: str) -> list[Sample]:
    """Batches on 15 x 15 points: of matrices, and of coarse operators of two and four times as many points a
    side, as the levels below have them."""
    found, batch = [], 8
    some = quick or split != "train"
    for doublings, batches in enumerate((1, 1, 1) if some else (16, 12, 8)):
        for number in range(batches):
            A = matrices(2 ** (4 + doublings) - 1, batch, split, batch * number)
            for _ in range(doublings):
                A = galerkin(black_box(A), A)
            found.append(Sample(network.start(A)))
    return found


def tests(quick: bool) -> list[tuple[str, ls.CSR, Tensor | None]]:
    """Held out: batches of matrices on larger grids."""
    if quick:
        return [("31 x 31", matrices(31, 2, "test"), None)]
    sizes = ((31, 100, 50), (63, 100, 25), (127, 10, 5))
    return [
        (f"{n} x {n}", matrices(n, at_once, "test", first), None)
        for n, count, at_once in sizes
        for first in range(0, count, at_once)
    ]
