"""Many columns on a CPU, in tiles that are worked on one after another: blocks of all of them do not fit the
cache, and the compiled steps of some methods take a single column.

Tiles are chosen by the method, its M, n and k alone, because the rounding errors of a column depend on them.
In each the loop runs as if there were no others. The compiled loop of cg has columns one by one by itself
(ops/core/sweep_calls.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from learnsolve.ops.core.across import across
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.solvers.core.advance import fitting
from learnsolve.solvers.core.functions import Function
from learnsolve.solvers.core.operators import Matrix, source
from learnsolve.solvers.core.system import Outcome, System
from learnsolve.solvers.solution import COMPILED

# Columns that torch operations work on together; rows from which on that is faster than all at once, and from
# which on two or three columns take longer together.
_WIDTH, _MANY_ROWS, _ROWS = 8, 2**15, 2**13


def tiles(method: Any, system: System, gradient: str) -> list[int]:
    """The numbers of columns of the tiles; empty: all at once."""
    b = system.b
    n, k = b.shape[-2:]
    if k == 1 or b.numel() == 0 or not b.is_cpu or gradient != "implicit" or torch.is_grad_enabled():
        return []  # autograd would record every tile
    if system.callback is not None or across() is not None or not _splits(system):
        return []
    few = k < 4 and n >= _ROWS
    if hasattr(method, "cg_state") and isinstance(system.A, Matrix):  # compiled, or M between compiled steps
        here = few and (compiled := fitting(method, system, gradient)) is not None
        return [1] * k if here and compiled.execution != COMPILED else []
    # A solve of its own costs a column more than it saves where both are small.
    if hasattr(method, "steps") and k <= max(8, n // 16):
        one = fitting(method, next(columns_of(system, [1, k - 1])), gradient)
        if one is not None and (one.execution == COMPILED or n >= _ROWS):
            return [1] * k
    if k > _WIDTH and n >= _MANY_ROWS:
        rest = k % _WIDTH
        return [_WIDTH] * (k // _WIDTH) + ([rest] if rest > 3 else [1] * rest)
    return [1] * k if few else []


def _splits(system: System) -> bool:
    """A user's function may be made for all columns, and so is what scales them (units.py)."""
    A, M = system.A, source(system.M)
    while hasattr(A, "A"):  # made of another
        A = A.A
    known = M is None or isinstance(M, (Matrix, Preconditioner))
    return known and not isinstance(A, Function) and not isinstance(system.criterion.negligible, torch.Tensor)


def columns_of(system: System, widths: list[int]) -> Iterator[System]:
    if not widths:
        yield system
        return
    starts = [None] * len(widths) if system.x0 is None else system.x0.split(widths, -1)
    for b, x0 in zip(system.b.split(widths, -1), starts, strict=True):
        x0 = None if x0 is None else x0.contiguous()
        yield replace(system, b=b.contiguous(), x0=x0, criterion=system.criterion.fresh())


def side_by_side(outs: list[Outcome]) -> Outcome:
    """The outcome of all columns. Histories end with the last norm of a column that has stopped."""
    if len(outs) == 1:
        return outs[0]
    length = max(out.norms.shape[-2] for out in outs)
    norms = [
        torch.cat((h, h[..., -1:, :].expand(*h.shape[:-2], length - h.shape[-2], -1)), -2)
        for h in (out.norms for out in outs)
    ]
    x, codes = torch.cat([out.x for out in outs], -1), torch.cat([out.codes for out in outs], -1)
    return Outcome(x, torch.cat(norms, -1), codes, "", outs[0].execution)
