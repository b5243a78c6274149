"""Preconditioned conjugate gradients to a tolerance, by the compiled loop of pcg.py, without a gradient.

The loop stops a column where its residual falls to the rounding level of the first one, a number that it
keeps (`Carry` in csrc/ops/pcg.h). Raised to the tolerance, the same test ends a solve.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from learnsolve.ops.pcg import KINDS, Stop, _calls, _factor_structures, _raw, _wide
from learnsolve.pattern import SparsityPattern

_LOW, _HIGH, _STOP = 2, 3, 4  # rows of the state of a column
_FIRST_CALL = 32  # iterations; later calls take twice as many, up to what an interrupt may wait for


class Solved(NamedTuple):
    x: Tensor
    norms: Tensor  # (..., iterations + 1, k), by the recurrence
    why: Tensor  # (..., k), a `Stop`; ROUNDING also where the limit was reached
    when: Tensor  # (..., k), the number of iterations of each column


def pcg_solve(
    values: Tensor,
    b: Tensor,
    x0: Tensor | None,
    pattern: SparsityPattern,
    maxiter: int,
    limits: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
    check_every: int | None = None,
    *,
    kind: str = "none",
    m: Tensor | None = None,
    factor: SparsityPattern | None = None,
) -> Solved:
    """Iterate until every column has stopped. Arguments are as of `pcg_iterations`, b (..., n, k), and not
    checked; no tensor may need a gradient.

    `limits(r, norm)`, given the first residual and its norm (..., 1, k), tells of each column whether it is
    done already, below which norm it is to stop, and above which. `check_every`: iterations of each call, at
    the end of which is looked whether all have stopped; None: 32, 64, 128, ...
    """
    if factor is not None and factor.dtype != pattern.dtype:
        pattern, factor = _wide(pattern), _wide(factor)
    number = KINDS.index(kind)
    ptr, idx, _, blocks = pattern._structure(False)
    fixed = (ptr, idx, blocks, values, number, m, _factor_structures(factor, number))
    x, r, p, _, carry, history, *_ = _raw(*fixed, x0, b, None, None, 0, 0, False)
    columns = b.shape[-1]
    state = carry.reshape(*b.shape[:-2], carry.shape[-2], columns)
    done, low, high = limits(r, history)
    stopped = state[..., _STOP, :]
    # A column of zeros has reached rounding level too: no limit would have it run.
    state[..., _LOW, :], state[..., _HIGH, :] = low.squeeze(-2), high.squeeze(-2)
    state[..., _STOP, :] = torch.where(done.squeeze(-2) & (stopped == 0), float(Stop.ROUNDING), stopped)
    norms, first = [history], 0
    longest = _calls(values, b.new_empty(0) if m is None else m, b, max(maxiter, 1), False)[0]
    length, growth = (_FIRST_CALL, 2) if check_every is None else (check_every, 1)
    while first < maxiter and bool((carry[..., _STOP, :] == 0).any()):
        count = min(length, longest, maxiter - first)
        x, r, p, _, carry, history, *_ = _raw(*fixed, x, r, p, carry, first, count, False)
        norms.append(history)
        first, length = first + count, growth * length
    ends = carry.reshape(*b.shape[:-2], carry.shape[-2], columns)[..., _STOP:, :].to(torch.int64)
    why, when = ends.unbind(-2)
    when = torch.where(why == Stop.RUNNING, first, when)
    ran = int(when.max()) if when.numel() else 0
    return Solved(x, torch.cat(norms, dim=-2).narrow(-2, 0, ran + 1), why, when)
