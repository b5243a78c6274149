"""Anderson acceleration of x <- x - damping F(x).

Sources: Anderson, "Iterative procedures for nonlinear integral equations", J. ACM 12 (1965) 547-560; Walker
and Ni, "Anderson acceleration for fixed-point iterations", SIAM J. Numer. Anal. 49 (2011) 1715-1735.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learnsolve.nonlinear._implicit import Ended
from learnsolve.nonlinear._linear import norm, over
from learnsolve.nonlinear._newton import Progress, Settings
from learnsolve.nonlinear._residual import Residual

_RIDGE = 1e3  # in rounding units, for differences of norm one


def anderson(
    f: Residual, systems: Any, direction: Any, x: Tensor, p: tuple[Tensor, ...], r: Tensor, o: Settings
) -> Ended:
    """x_{k+1} = x_k - d F_k - sum_j gamma_j (Dx_j - d DF_j), with the damping d, where gamma minimizes
    ||F_k - sum_j gamma_j DF_j|| over the last `memory` differences."""
    size = norm(r, f.levels)
    progress = Progress(o, r, size)
    due = 0  # the number of norms from which an increase is looked at
    steps: list[Tensor] = []
    changes: list[Tensor] = []
    while len(progress.norms) <= o.maxiter and bool((running := progress.running).any()):
        x_next = x - o.damping * r
        if changes:
            dF, dx = (torch.stack([t.flatten(f.levels) for t in some], -1) for some in (changes, steps))
            gamma = _least_squares(dF, r.flatten(f.levels))
            x_next = x_next - ((dx - o.damping * dF) @ gamma.unsqueeze(-1)).reshape(x.shape)
        x_next = x_next if bool(running.all()) else torch.where(over(running, x), x_next, x)
        r_next = f(x_next, *p)
        steps, changes = [*steps, x_next - x][-o.memory :], [*changes, r_next - r][-o.memory :]
        if o.memory == 0:
            steps, changes = [], []
        before, size = size, norm(r_next, f.levels)
        x, r = x_next, r_next
        progress.step(x, r, size)
        if o.rtol > 0 and len(progress.norms) >= due and bool((rising := running & (size >= before)).any()):
            progress.rest(rising, f, x, p, r, stuck=False)
            due = 2 * len(progress.norms)
    return progress.ended(x)


def _least_squares(D: Tensor, r: Tensor) -> Tensor:
    """gamma, (..., m), for D (..., n, m); zero columns, as for systems that have stopped, get zero."""
    length = torch.linalg.vector_norm(D.detach(), dim=-2, keepdim=True)
    unit = D / torch.where(length > 0, length, 1)
    gram = unit.mT @ unit
    ridge = _RIDGE * torch.finfo(r.dtype).eps * torch.eye(D.shape[-1], dtype=r.dtype, device=r.device)
    gram = torch.where(torch.isfinite(gram), gram, 0) + ridge
    gamma = torch.linalg.solve(gram, (unit.mT @ r.unsqueeze(-1)).nan_to_num(0))
    return (gamma / torch.where(length > 0, length, 1).mT).squeeze(-1)
