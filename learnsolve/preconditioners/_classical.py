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
    """The first prolongation of pyamg's "ruge_stuben" and the coarse points in increasing order; None if all
    points, or none, are coarse. From the numbers of A, without their graph.

    Both passes of the coarsening, of which pyamg makes the first alone if not told otherwise: without the
    second some rows of P are empty on graphs, since fine points that are strongly connected have no coarse
    one in common, and no values on the pattern can mend that."""
    unused = {"presmoother": None, "postsmoother": None, "coarse_solver": "splu"}
    solver = pyamg_module().ruge_stuben_solver(
        mean(A),
        CF=("RS", {"second_pass": True}),
        interpolation="classical",
        max_levels=2,
        max_coarse=1,
        **unused,
    )
    with plain_tensors():
        if len(solver.levels) < 2:
            return None, torch.zeros(0, dtype=torch.long, device=A.device)
        first = solver.levels[0]
        coarse = torch.from_numpy(first.splitting.nonzero()[0].astype("int64")).to(A.device)
        return carried([(first.P, first.P.T)], [None], A).prolongations[0], coarse
