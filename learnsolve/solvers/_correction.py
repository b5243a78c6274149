"""x' = x + S (b - A x) for a sweep S that is made of A: a step is one product with A and the triangular
solves of S. Steps run until a tolerance (the loop of all methods, _loop.py), or their number is fixed
(_fixed.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.preconditioners._relaxation import DIRECTIONS, Sweep, check_relaxation
from learnsolve.solvers import _units
from learnsolve.solvers._fixed import FIXED_GRADIENTS, Steps, with_last
from learnsolve.solvers._operator import Matrix
from learnsolve.solvers._options import (
    Options,
    check_b,
    check_operands,
    check_x0,
    refuse_parameters_that_learn,
)
from learnsolve.solvers._solve import columns, solve, with_zero_gradient
from learnsolve.solvers.base import Solution


class State(NamedTuple):
    x: Tensor
    r: Tensor
    values: Tensor  # of the triangles that S solves with


class Correction:
    """The method for the loop. For the operator A^T it takes S^T, which converges as fast:
    I - S^T A^T = (I - A S)^T, and A S has the eigenvalues of S A."""

    def __init__(self, sweep: Sweep, omega: float | Tensor):
        self.sweep, self.omega = sweep, omega

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor | None) -> State:
        return State(x, r, self.sweep.system(_matrix(A), self.omega).values)

    def step(self, A: Any, M: Any, b: Tensor, state: State, running: Tensor | None) -> tuple[State, Tensor]:
        x = state.x + self.sweep_of(A, state.values)(state.r)
        return State(x, b - A(x), state.values), torch.zeros_like(b[..., :1, :], dtype=torch.int64)

    def sweep_of(self, A: Any, values: Tensor) -> Any:
        """S as a function of r, for the values of its triangles."""
        operator: Any = A.A if isinstance(A, _units.InUnits) else A
        P = operator.A.pattern
        T = CSR(values, self.sweep.pattern(P))
        return lambda r: self.sweep.apply(T, P, self.omega, r, operator.transpose)


def _matrix(A: Any) -> CSR:
    """The matrix of an operator of the loops, or of its transpose, in the operator's units."""
    if isinstance(A, _units.InUnits):
        inner = _matrix(A.A)
        return inner.with_values(inner.values / A.unit.squeeze(-1))
    return A.A


def relax(
    name: str,
    A: CSR,
    b: Tensor,
    x0: Tensor | None,
    omega: float | Tensor,
    direction: str,
    multicolour: bool,
    iterations: int | None,
    gradient: str | None,
    **keywords: Any,
) -> Solution:
    """`sor` and its variants."""
    omega = check_relaxation(name, A, omega, multicolour)
    _check.one_of(name, "direction", direction, DIRECTIONS)
    method = Correction(Sweep(direction, multicolour), omega)
    if iterations is not None:
        gradient = "unrolled" if gradient is None else gradient
        return _fixed(name, method, A, b, x0, iterations, gradient, keywords)
    gradient = "implicit" if gradient is None else gradient
    refuse_parameters_that_learn(name, gradient, omega=omega)
    given = {key: value for key, value in keywords.items() if value is not None}
    solution = solve(name, method, A, b, x0, Options(gradient=gradient, **given))
    if gradient != "implicit" and isinstance(omega, Tensor) and solution.iterations == 0:
        solution.x = with_zero_gradient(solution.x, omega)
    return solution


def _fixed(
    name: str,
    method: Correction,
    A: CSR,
    b: Tensor,
    x0: Tensor | None,
    iterations: int,
    gradient: str,
    keywords: dict[str, Any],
) -> Solution:
    iterations = _check.integer(name, "iterations", iterations, 0)
    _check.flag(name, "throw", keywords["throw"])
    for key, value in keywords.items():
        if value is not None and value is not False:
            raise ValueError(
                f"{name}: iterations asks for exactly {iterations} sweeps, so {key} has no use, got "
                f"{value!r}; give one of them"
            )
    if gradient == "implicit":
        raise ValueError(
            f'{name}: gradient="implicit" belongs to a converged solution, not to a number of iterations; '
            'use "unrolled" or "checkpointed", or leave iterations out'
        )
    _check.one_of(name, "gradient", gradient, FIXED_GRADIENTS)
    check_b(name, b)
    rows = b.shape[0 if b.dim() == 1 else -2]
    if rows != A.shape[0]:
        raise ValueError(f"{name}: b must have A.shape[0] = {A.shape[0]} rows, got shape {tuple(b.shape)}")
    batch, vector = check_operands(name, A, b), b.dim() == 1
    check_x0(name, x0, b)
    B, operator = columns(b, vector, batch), Matrix(A)
    X = torch.zeros_like(B) if x0 is None else columns(x0, vector, batch)
    if iterations == 0:
        omega = (method.omega,) if isinstance(method.omega, Tensor) else ()
        X = with_zero_gradient(X.clone(), B, A.values, *omega)
    values = method.start(operator, None, X, B, None).values
    steps = Steps(operator, method.sweep_of(operator, values))
    known = B if x0 is None else None
    x, norms, _, _ = steps.run(B, X, iterations, gradient == "checkpointed", known)
    shown = x.squeeze(-1) if vector else x

    def complete() -> Tensor:
        norms_of_all = with_last(norms, B - operator(x))
        return norms_of_all.squeeze(-1) if vector else norms_of_all

    return Solution(shown, iterations, complete, -1 if vector else -2, (A.values, b, shown))
