"""Classical coarsening and interpolation.

Source: J. W. Ruge, K. Stueben, "Algebraic multigrid", in S. F. McCormick (ed.), "Multigrid Methods" (1987);
K. Stueben, in U. Trottenberg, C. Oosterlee, A. Schueller, "Multigrid" (2001), A.7 (aggressive coarsening).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.plain import plain_tensors
from learnsolve.ops.spgemm import spgemm
from learnsolve.preconditioners.multigrid._level import Levels, Step, arrays, coarsened, diagonal, like, mean

THETA = 0.25  # an entry is strong if it is at least this fraction of the largest in its row
INTERPOLATIONS = ("classical", "extended+i")
_MULTIPASS = -1  # in place of a number of entries


def ruge_stuben(
    function: str,
    A: CSR,
    max_levels: int,
    max_coarse: int,
    theta: float = THETA,
    second_pass: bool = False,
    most: int = 0,
    aggressive: int = 0,
) -> Levels:
    """The levels of A, with classical interpolation or, for `most` entries per row, extended+i; on the first
    `aggressive` levels, with two splittings and multipass interpolation."""
    left = aggressive

    def step(A: CSR) -> Step | None:
        nonlocal left
        left, twice = left - 1, left > 0
        strong, coarse = _analysis.classical_splitting(*arrays(A), theta, second_pass, twice)
        P = _prolongation(A, strong, coarse, _MULTIPASS if twice else most)
        return None if P is None else Step(P)

    return coarsened(function, A, max_levels, max_coarse, step)


def _prolongation(A: CSR, strong: np.ndarray, coarse: np.ndarray, most: int) -> CSR | None:
    """The prolongation; None if all points, or none, are coarse."""
    columns = int(coarse.sum())
    if not 0 < columns < A.shape[0]:
        return None
    return like(A, _analysis.interpolation(*arrays(A), diagonal(A), strong, coarse, most), columns)


def interpolation(A: CSR) -> tuple[CSR | None, Tensor]:
    r"""The first prolongation of "ruge_stuben" with both passes of the coarsening, and the coarse points in
    increasing order; None if all points, or none, are coarse.

    With the strong connections of i to coarse points, C_i, and to fine points that share a strong coarse
    point, F_i, and with :math:`a^-` for entries whose sign differs from the diagonal's (called modified in
    pyamg):

    .. math:: p_{ij} = -\frac{a_{ij} + \sum_{k \in F_i} a_{ik} a^-_{kj} / \sum_{l \in C_i} a^-_{kl}}
                             {\sum_{m \notin C_i \cup F_i} a_{im}}

    The choice depends on values; the entries have the graph of A.

    The second pass ensures that two strongly connected fine points share a strong coarse neighbor. After only
    the first pass, the default of `AMG`, some fine points have no coarse neighbor, and an empty row.
    """
    with plain_tensors():
        S = mean("NeuralAMG", A)
        found, coarse = _analysis.classical_splitting(*arrays(S), THETA, True, False)
        P = _prolongation(S, found, coarse, 0)
        if P is None:
            return None, torch.zeros(0, dtype=torch.long, device=A.device)
        rows, columns = A.pattern.row_indices.long(), A.pattern.col_indices.long()
        strong, is_coarse = (torch.from_numpy(t).to(A.device).bool() for t in (found, coarse))
        strong &= ~is_coarse[rows]
        to_coarse = strong & is_coarse[columns]
        C = A.with_values(to_coarse.to(torch.float32))
        to_fine = strong & ~to_coarse & (spgemm(C, C.T, mask=A.pattern).values > 0)
        points = is_coarse.nonzero().squeeze(1)
    weights = _weights(A, to_coarse, to_fine).index_select(-1, positions(A, P, points))
    return P.with_values(torch.where(is_coarse[P.pattern.row_indices], 1.0, weights)), points


def _weights(A: CSR, to_coarse: Tensor, to_fine: Tensor) -> Tensor:
    """The formula for each entry of A."""
    row, v = A.pattern.row_indices, A.values
    opposite = A.with_values(torch.where(v * A.diagonal()[row] < 0, v, 0))
    sums = spgemm(A.with_values(to_coarse.to(v.dtype)), opposite.T, mask=A.pattern).values
    used = to_fine & (sums.abs() > 1e-15 * v.abs())
    shares = A.with_values(torch.where(used, v / torch.where(used, sums, 1), 0))
    through = spgemm(shares, opposite, mask=A.pattern).values
    rest = A.with_values(torch.where(to_coarse | to_fine, 0, v)).sum(1)[row]
    return -(v + through) / torch.where(to_coarse, rest, 1)


def positions(A: CSR, P: CSR, coarse: Tensor) -> Tensor:
    """Positions of (i, f(c)) in A for the entries (i, c) of P, where f(c) is the coarse point c."""
    return _find(A, P.pattern.row_indices, coarse[P.pattern.col_indices.long()])


def _find(A: CSR, rows: Tensor, columns: Tensor) -> Tensor:
    keys = A.pattern.row_indices.long() * A.shape[1] + A.pattern.col_indices  # increasing
    wanted = rows.long() * A.shape[1] + columns
    at = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    if not torch.equal(keys[at], wanted):
        raise ValueError("NeuralAMG: A must have an entry for each pair that its interpolation couples")
    return at
