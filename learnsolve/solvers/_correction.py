"""x <- x + S r with r = b - A x, for a sweep S that is made of A: one product with A and the solves of S a
step, whether steps go on to a tolerance (the general loop) or their number is fixed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from learnsolve.csr import CSR
from learnsolve.ops.richardson import residual_norm
from learnsolve.preconditioners._relaxation import Sweep
from learnsolve.solvers import _units
from learnsolve.solvers._implicit import transformed
from learnsolve.solvers._operator import Matrix
from learnsolve.solvers._solve import with_zero_gradient


class State(NamedTuple):
    x: Tensor
    r: Tensor
    values: Tensor  # of the triangles that S solves with


class Correction:
    """The method for the general loop. For the operator A^T it takes S^T, which converges as fast:
    I - S^T A^T = (I - A S)^T, and A S has the eigenvalues of S A."""

    def __init__(self, sweep: Sweep, omega: float | Tensor):
        self.sweep, self.omega = sweep, omega

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor | None) -> State:
        return State(x, r, self.sweep.system(_matrix(A), self.omega).values)

    def step(self, A: Any, M: Any, b: Tensor, state: State, running: Tensor | None) -> tuple[State, Tensor]:
        x = self.corrected(A, state.x, state.r, state.values)
        return State(x, b - A(x), state.values), torch.zeros_like(b[..., :1, :], dtype=torch.int64)

    def corrected(self, A: Any, x: Tensor, r: Tensor, values: Tensor) -> Tensor:
        operator: Any = A.A if isinstance(A, _units.InUnits) else A
        P = operator.A.pattern
        T = CSR(values, self.sweep.pattern(P))
        return x + self.sweep.apply(T, P, self.omega, r, operator.transpose)


def _matrix(A: Any) -> CSR:
    """What an operator of the loops, or its transpose, is made of, in its units."""
    if isinstance(A, _units.InUnits):
        inner = _matrix(A.A)
        return inner.with_values(inner.values / A.unit.squeeze(-1))
    return A.A


def fixed_number(
    method: Correction, A: Matrix, b: Tensor, x0: Tensor | None, iterations: int, checkpointed: bool
) -> tuple[Tensor, Tensor]:
    """x after `iterations` steps, and ||r|| before each of them, (..., iterations, k). Nothing stops them.

    `checkpointed`: the graph keeps O(sqrt(iterations)) iterates and repeats the steps between them."""
    x = torch.zeros_like(b) if x0 is None else x0
    if iterations == 0:
        learns = (b, *A.parameters, *(t for t in (method.omega,) if isinstance(t, Tensor)))
        x = with_zero_gradient(x.clone(), *learns)
    values = method.start(A, None, x, b, None).values

    def steps(count: int, first: bool, x: Tensor, values: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        norms = []
        for i in range(count):
            r = b if first and i == 0 and x0 is None else b - A(x)
            norms.append(residual_norm(r, -2, keepdim=True))
            x = method.corrected(A, x, r, values)
        return x, torch.cat(norms, dim=-2)

    # Checkpoints work by hooks on saved tensors, which transformations of torch.func do not have.
    whole = not checkpointed or not torch.is_grad_enabled() or transformed()
    stride = max(1, iterations if whole else round(iterations**0.5))
    norms = []
    for done in range(0, iterations, stride):
        args = (min(stride, iterations - done), done == 0, x, values, b)
        x, some = steps(*args) if whole else checkpoint(steps, *args, use_reentrant=False)  # type: ignore
        norms.append(some)
    empty = b.new_empty((*b.shape[:-2], 0, b.shape[-1]))
    return x, torch.cat(norms, dim=-2) if norms else empty
