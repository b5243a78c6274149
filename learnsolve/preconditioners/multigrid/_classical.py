"""Classical coarsening and interpolation of one level: pyamg chooses, and the entries are ours.

Source: J. W. Ruge, K. Stueben, "Algebraic multigrid", in S. F. McCormick (ed.), "Multigrid Methods" (1987).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.plain import plain_tensors
from learnsolve.ops.spgemm import spgemm
from learnsolve.preconditioners.multigrid._hierarchy import carried, mean, pyamg_module


def interpolation(A: CSR) -> tuple[CSR | None, Tensor]:
    r"""The first prolongation of pyamg's "ruge_stuben" with both passes of the coarsening, and the coarse
    points in increasing order; None if all points, or none, are coarse.

    With the strong connections of i to coarse points, C_i, and to fine ones with a strong coarse point in
    common, F_i, and with :math:`a^-` where the sign differs from the diagonal's (as pyamg's "modified"):

    .. math:: p_{ij} = -\frac{a_{ij} + \sum_{k \in F_i} a_{ik} a^-_{kj} / \sum_{l \in C_i} a^-_{kl}}
                             {\sum_{m \notin C_i \cup F_i} a_{im}}

    The choice is by values; the entries have the graph of A.

    The second pass sees to it that two fine points with a strong connection have a strong coarse neighbor in
    common. After only the first one, pyamg's default, some have no coarse neighbor, and an empty row of P.
    """
    options = {
        "CF": ("RS", {"second_pass": True}),
        "keep": True,
        "presmoother": None,
        "postsmoother": None,
        "coarse_solver": "splu",
    }
    solver = pyamg_module().ruge_stuben_solver(mean(A), max_levels=2, max_coarse=1, **options)
    with plain_tensors():
        if len(solver.levels) < 2:
            return None, torch.zeros(0, dtype=torch.long, device=A.device)
        first = solver.levels[0]
        coarse = torch.from_numpy(first.splitting.nonzero()[0].astype("int64")).to(A.device)
        P = carried([(first.P, first.P.T)], [None], A).prolongations[0]
        to_coarse, to_fine = (_flags(A, *pairs) for pairs in _strong(first.C, first.splitting))
    weights = _weights(A, to_coarse, to_fine).index_select(-1, positions(A, P, coarse))
    is_coarse = torch.zeros(A.shape[0], dtype=torch.bool, device=A.device).index_fill(0, coarse, True)
    return P.with_values(torch.where(is_coarse[P.pattern.row_indices], 1.0, weights)), coarse


def _weights(A: CSR, to_coarse: Tensor, to_fine: Tensor) -> Tensor:
    """The formula, for each entry of A."""
    row, v = A.pattern.row_indices, A.values
    opposite = A.with_values(torch.where(v * A.diagonal()[row] < 0, v, 0))
    sums = spgemm(A.with_values(to_coarse.to(v.dtype)), opposite.T, mask=A.pattern).values
    used = to_fine & (sums.abs() > 1e-15 * v.abs())
    shares = A.with_values(torch.where(used, v / torch.where(used, sums, 1), 0))
    through = spgemm(shares, opposite, mask=A.pattern).values
    rest = A.with_values(torch.where(to_coarse | to_fine, 0, v)).sum(1)[row]
    return -(v + through) / torch.where(to_coarse, rest, 1)


def _strong(strength: Any, splitting: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Rows and columns of the strong connections of fine points: to C_i, and to F_i."""
    i, j = strength.nonzero()
    inside = (i != j) & ~splitting[i]
    i, j = i[inside], j[inside]
    C, F = (
        csr_array((np.ones(part.sum()), (i[part], j[part])), shape=strength.shape)
        for part in (splitting[j], ~splitting[j])
    )
    return C.nonzero(), F.multiply(C @ C.T).nonzero()


def _flags(A: CSR, rows: np.ndarray, columns: np.ndarray) -> Tensor:
    at = _find(A, torch.from_numpy(rows).to(A.device), torch.from_numpy(columns).to(A.device))
    return torch.zeros(A.nnz, dtype=torch.bool, device=A.device).index_fill(0, at, True)


def positions(A: CSR, P: CSR, coarse: Tensor) -> Tensor:
    """Where (i, f(c)) is among the entries of A, for the entries (i, c) of P, f(c) the coarse point c."""
    return _find(A, P.pattern.row_indices, coarse[P.pattern.col_indices.long()])


def _find(A: CSR, rows: Tensor, columns: Tensor) -> Tensor:
    keys = A.pattern.row_indices.long() * A.shape[1] + A.pattern.col_indices  # increasing
    wanted = rows.long() * A.shape[1] + columns
    at = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    if not torch.equal(keys[at], wanted):
        raise ValueError("NeuralAMG: A must have an entry for each pair that its interpolation couples")
    return at
