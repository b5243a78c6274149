"""Compiled steps of `minres`, `bicgstab`, `gmres` and `fgmres` for the loop of all methods (loop.py): many
iterations a call, for one right-hand side, where autograd records nothing, on the CPU, without M or with a
diagonal.

They run until the column seems done, and end before an iteration in which it breaks down, leaves the finite
numbers or is in doubt: the loop takes that one op by op, so that everything that decides is there alone. 2D
Poisson, one thread, microseconds an iteration, op by op and compiled:

    n          900        2,500      10,000     90,000
    minres     285, 15    290, 19    354, 48    1371, 463
    bicgstab   200, 17    208, 22    281, 56     951, 443
    gmres      322, 20    379, 26    669, 78    5010, 832

`gmres` and `fgmres` call any other M between steps of one iteration each: with a nonlinear M of four
operations an iteration takes 0.42 to 0.46 of its time op by op for n = 900 and 2,500, 0.61 for 10,000.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learnsolve import _device_analysis
from learnsolve.ops._autograd import tracked
from learnsolve.ops.krylov import GMRES, krylov_steps
from learnsolve.solvers.core.criterion import ResidualNorm
from learnsolve.solvers.core.functions import Watched
from learnsolve.solvers.core.operators import Matrix, compiled_form
from learnsolve.solvers.core.vectors import extended
from learnsolve.solvers.solution import COMPILED, M_APART

# Numbers that a call may read, so that Python handles an interrupt in time: half a second.
_MOST = 5 * 10**8


class Steps:
    """`steps` of a method: its number in csrc/ops/schema.cpp, and how many of its state are vectors, which
    come first; of gmres the state is V and P, of any size."""

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
        self.loop = COMPILED if M is None else M_APART
        self.criterion, self.bounds = criterion, None

    def __call__(self, state: Any, count: int) -> tuple[Any, tuple[Tensor, ...]]:
        """The state after up to `count` iterations, and their norms, (1, 1) each; perhaps none."""
        if self.bounds is None:
            target, floor, limit = self.criterion.target, self.criterion.floor, self.criterion.limit
            self.bounds = (float(torch.maximum(target, floor)), float(limit))
        count = min(count, self.most)
        vectors, scalars = state[: self.vectors], state[self.vectors :]
        if self.number == GMRES:
            x, r, V, P, _, c, s, eta, largest = state
            vectors, scalars = (x, r, V[: len(c) + 1], P[: len(c)]), (eta, largest, c, s)
            if len(c) == self.restart:  # it starts from x
                if self.M is not None:
                    return state, ()  # M of a vector that is not there yet
                vectors, scalars = (x, r), (eta, largest)
            elif self.M is not None:
                vectors, count = (*vectors, self.M(V[len(c)])), 1
        vectors, scalars, norms, counts = krylov_steps(
            *self.fixed, vectors, scalars, *self.bounds, count, self.restart
        )
        ran, j = counts.tolist()
        if ran == 0:
            return state, ()
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
        return state, norms[:ran].reshape(-1, 1, 1).unbind(0)


def fitting_steps(method: Any, A: Any, M: Any, b: Tensor, x0: Tensor | None, criterion: Any) -> Steps | None:
    """None where the loop goes op by op."""
    if not hasattr(method, "steps") or not isinstance(A, Matrix) or not isinstance(criterion, ResidualNorm):
        return None
    values, given = A.A.values, M.function if isinstance(M, Watched) else M
    if not (
        b.is_cpu
        and values.is_cpu
        and not _device_analysis.here(b)
        and b.dim() == 2
        and b.shape[1] == 1
        and values.dim() == 1
        and len(b)
    ):
        return None
    given = getattr(given, "given", given)
    # Another form would be computed here, and not used.
    form = compiled_form(given) if given is None or getattr(given, "is_diagonal", False) else None
    if form is None and (method.steps[0] != GMRES or torch.is_grad_enabled()):
        return None
    diagonal, apart = (None, M) if form is None else (form[1], None)
    if diagonal is not None:
        if diagonal.shape != b.shape[:1] or diagonal.dtype != b.dtype or not diagonal.is_cpu:
            return None
        if tracked(diagonal) or (diagonal.requires_grad and isinstance(M, Watched)):
            return None
    if tracked(b, values) or (x0 is not None and tracked(x0)):
        return None
    return Steps(method, A, diagonal, apart, b, criterion)
