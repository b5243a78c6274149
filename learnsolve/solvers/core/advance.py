"""Compiled code that advances the state of a method by many iterations per call. The loop (loop.py) decides;
`fitting` finds the code that supports a system.

    start        None if the state is the state of the method; otherwise how its own state begins
    __call__     the state after up to `count` iterations of columns that are `running` (None: all); their
                 norms (..., iterations, k), none if the loop must run the next one with torch operations;
                 and for each column its code (STANDS: to be judged by its true residual), and since when;
                 or None. It returns early where its only column seems done, and before an iteration that
                 breaks down, is not finite or is in doubt
    released     the method's state, for the loop to go on with
    due          when the loop measures stagnation
    execution    as `Solution.execution`

Here: `minres`, `bicgstab`, `gmres` and `fgmres` for one right-hand side on the CPU, without autograd, without
M or with a diagonal M; `gmres` and `fgmres` call any other M between steps of one iteration each. Conjugate
gradients: advance_cg.py. The gain: `python -m benchmarks loops`.

`tiles`: many columns on a CPU run in tiles, one after another, because blocks of all of them do not fit the
cache, and the compiled steps take a single column. Tiles are chosen by the method, its M, n and k alone,
because the rounding errors of a column depend on them. In each the loop runs as if there were no others. The
compiled loop of cg has columns one by one by itself (ops/core/sweep_calls.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from learnsolve.matrix import device_analysis
from learnsolve.ops.core.across import across
from learnsolve.ops.core.autograd import tracked
from learnsolve.ops.core.steps import GMRES, krylov_steps
from learnsolve.ops.core.sweep_calls import separate
from learnsolve.solvers.core.advance_cg import fitting_cg
from learnsolve.solvers.core.criterion import LOOP_SCHEDULE, ResidualNorm, Schedule
from learnsolve.solvers.core.functions import Function, Watched
from learnsolve.solvers.core.operators import Matrix, compiled_form, source
from learnsolve.solvers.core.system import Outcome, System
from learnsolve.solvers.core.vectors import extended
from learnsolve.solvers.solution import COMPILED, PYTHON_M

# Entries that a call may read, so that Python handles an interrupt in time: half a second.
_MOST = 5 * 10**8

# Columns that torch operations work on together; rows from which on that is faster than all at once, and from
# which on two or three columns take longer together.
_WIDTH, _MANY_ROWS, _ROWS = 8, 2**15, 2**13


class Advance(Protocol):
    """See above."""

    execution: str
    due: Schedule

    @property
    def start(self) -> Callable[[Tensor, Tensor], Any] | None: ...

    def __call__(
        self, state: Any, count: int, done: int, running: Tensor | None
    ) -> tuple[Any, Tensor, tuple[Tensor, Tensor | int] | None]: ...
    def released(self, state: Any) -> Any: ...


def fitting(method: Any, system: System, gradient: str) -> Advance | None:
    """The code that advances this method on this system; None if the loop uses torch operations."""
    if system.callback is not None or gradient == "checkpointed":
        return None
    if hasattr(method, "cg_state"):
        return fitting_cg(method, system) if gradient == "implicit" else None
    return _fitting_steps(method, system) if hasattr(method, "steps") else None


class CompiledSteps:
    """`steps` of a method: its number in csrc/ops/schema.cpp, and how many fields of its state are vectors,
    which come first; for gmres the state is V and P, of any size."""

    def __init__(
        self,
        method: Any,
        A: Matrix,
        diagonal: Tensor | None,
        M: Callable[[Tensor], Tensor] | None,
        b: Tensor,
        criterion: ResidualNorm,
    ):
        (self.number, self.vectors), self.restart = method.steps, getattr(method, "restart", 1)
        pattern, values = A.A.pattern, A.A.values.detach()
        self.fixed = (pattern._structure(A.transpose), values, self.number, diagonal, b.detach().squeeze(-1))
        self.most = max(_MOST // (pattern.nnz + (20 + 3 * min(self.restart, 100)) * len(b)), 1)
        self.M = M  # called before each iteration, if it is not a diagonal
        self.execution = COMPILED if M is None else PYTHON_M
        self.due: Schedule = LOOP_SCHEDULE
        self.criterion, self.bounds = criterion, None
        self.none = b.new_empty(0, 1)

    def __call__(self, state: Any, count: int, done: int, running: Any) -> tuple[Any, Tensor, None]:
        if self.bounds is None:
            target, floor, limit = self.criterion.target, self.criterion.floor, self.criterion.limit
            self.bounds = (float(torch.maximum(target, floor)), float(limit))
        count = min(count, self.most)
        vectors, scalars = state[: self.vectors], state[self.vectors :]
        if self.number == GMRES:
            x, r, V, P, _, c, s, eta, largest = state
            vectors, scalars = (x, r, V[: len(c) + 1], P[: len(c)]), (eta, largest, c, s)
            if len(c) == self.restart:  # a restart from x
                if self.M is not None:
                    return state, self.none, None  # M needs a vector that does not exist yet
                vectors, scalars = (x, r), (eta, largest)
            elif self.M is not None:
                vectors, count = (*vectors, self.M(V[len(c)])), 1
        vectors, scalars, norms, counts = krylov_steps(
            *self.fixed, vectors, scalars, *self.bounds, count, self.restart
        )
        ran, j = counts.tolist()
        if ran == 0:
            return state, self.none, None
        vectors, scalars = vectors.unsqueeze(-1), scalars.reshape(-1, 1, 1)
        if self.number == GMRES:
            room = len(scalars) // 2 - 1
            if self.M is None:
                V, P = vectors[2 : 3 + j], vectors[3 + room : 3 + room + j]
            else:
                V, P = state.V, state.P
                V, P = (
                    extended(V, j, vectors[2], self.restart + 1),
                    extended(P, j - 1, vectors[3], self.restart),
                )
            c, s = scalars[2 : 2 + j], scalars[2 + room : 2 + room + j]
            state = type(state)(vectors[0], vectors[1], V, P, None, c, s, scalars[0], scalars[1])
        else:
            state = type(state)(*vectors.unbind(0), *scalars.unbind(0))
        return state, norms[:ran].unsqueeze(-1), None

    @property
    def start(self) -> None:
        """The state is the state of the method."""

    def released(self, state: Any) -> Any:
        return state


def _fitting_steps(method: Any, system: System) -> CompiledSteps | None:
    A, b, x0 = system.A, system.b, system.x0
    if not isinstance(A, Matrix) or not isinstance(system.criterion, ResidualNorm):
        return None
    values, M = A.A.values, source(system.M)
    if not (
        b.is_cpu
        and values.is_cpu
        and not device_analysis.here(b)
        and b.dim() == 2
        and b.shape[1] == 1
        and values.dim() == 1
        and not values.is_complex()
        and len(b)
    ):
        return None
    # Any other form would be computed here in vain.
    form = compiled_form(M) if M is None or getattr(M, "is_diagonal", False) else None
    if form is None and (method.steps[0] != GMRES or torch.is_grad_enabled()):
        return None
    diagonal, between = (None, system.M) if form is None else (form[1], None)
    if diagonal is not None:
        if diagonal.shape != b.shape[:1] or diagonal.dtype != b.dtype or not diagonal.is_cpu:
            return None
        if tracked(diagonal) or (diagonal.requires_grad and isinstance(system.M, Watched)):
            return None
    if tracked(b, values) or (x0 is not None and tracked(x0)):
        return None
    return CompiledSteps(method, A, diagonal, between, b, system.criterion)


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
        own = fitting(method, system, gradient) if n >= _ROWS and (few or separate(b)) else None
        return [1] * k if own is not None and (few or own.execution == COMPILED) else []
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
    """A user's function, other than a `Preconditioner`, may be made for all columns, and so is what scales
    them (units.py)."""
    A, M = system.A, source(system.M)
    while hasattr(A, "A"):  # made of another
        A = A.A
    known = M is None or isinstance(M, Matrix) or hasattr(M, "_columns")
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
