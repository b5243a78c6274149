"""Classical coarsening and interpolation of one level, by pyamg.

Source: J. W. Ruge, K. Stueben, "Algebraic multigrid", in S. F. McCormick (ed.), "Multigrid Methods" (1987).
"""

from __future__ import annotations

import torch
from torch import Tensor

from learnsolve._plain import plain_tensors
from learnsolve.csr import CSR
from learnsolve.preconditioners._hierarchy import carried, mean, pyamg_module


def interpolation(A: CSR) -> tuple[CSR | None, Tensor]:
    """The first prolongation of pyamg's "ruge_stuben" with both passes of the coarsening, and the coarse
    points in increasing order; None if all points, or none, are coarse. From the numbers of A, without their
    graph.

    The second pass sees to it that two fine points with a strong connection have a strong coarse neighbour in
    common. After the first one alone, pyamg's default, some have no coarse neighbour, and an empty row of P.
    """
    options = {
        "CF": ("RS", {"second_pass": True}),
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
        return carried([(first.P, first.P.T)], [None], A).prolongations[0], coarse
