"""x' = x + S (b - A x) for a sweep S that is made of A: a step is one product with A and the triangular
solves of S. Steps run until a tolerance (the loop of all methods, loop.py), or their number is fixed
(fixed.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve._conversion import TensorLike
from learnsolve._inputs import operands
from learnsolve.csr import CSR
from learnsolve.preconditioners.classical._relaxation import DIRECTIONS, Sweep, check_omega, check_sweep
from learnsolve.solvers.core.arguments import check_b, check_operands, check_x0, refuse_parameters_that_learn
from learnsolve.solvers.core.blocks import Columns
from learnsolve.solvers.core.door import solve
from learnsolve.solvers.core.fixed import FIXED_GRADIENTS, Steps, with_last
from learnsolve.solvers.core.gradient import with_zero_gradient
from learnsolve.solvers.core.operators import Matrix
from learnsolve.solvers.core.parameters import Parameters
from learnsolve.solvers.options import options_of
from learnsolve.solvers.solution import Solution


class State(NamedTuple):
    x: Tensor
    r: Tensor
    values: Tensor  # of the triangles that S solves with

    in_columns = False  # for the loop: the values are no column's


class Correction:
    """The method for the loop. For the operator A^T it takes S^T, which converges as fast:
    I - S^T A^T = (I - A S)^T, and A S has the eigenvalues of S A."""

    def __init__(self, sweep: Sweep, omega: float | Tensor):
        self.sweep, self.omega = sweep, omega

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor | None) -> State:
        return State(x, r, self.sweep.system(A.A, self.omega).values)

    def step(self, A: Any, M: Any, b: Tensor, state: State, running: Tensor | None) -> tuple[State, Tensor]:
        x = state.x + self.sweep_of(A, state.values)(state.r)
        return State(x, b - A(x), state.values), torch.zeros_like(b[..., :1, :], dtype=torch.int64)

    def sweep_of(self, A: Any, values: Tensor) -> Any:
        """S as a function of r, for the values of its triangles."""
        P = A.A.pattern
        T = CSR(values, self.sweep.pattern(P))
        return lambda r: self.sweep.apply(T, P, self.omega, r, A.transpose)


def relax(
    name: str,
    A: CSR,
    b: TensorLike,
    x0: TensorLike | None,
    omega: float | Tensor,
    direction: str,
    multicolour: bool,
    iterations: int | None,
    options: Mapping[str, Any],
) -> Solution:
    """`sor` and its variants."""
    given = {key: value for key, value in options.items() if value is not None}
    settings = options_of(name, given)
    A, b, x0 = operands(name, A, b, x0)
    check_sweep(name, A, multicolour)
    _check.one_of(name, "direction", direction, DIRECTIONS)
    check_b(name, b)
    if iterations is not None:
        iterations = _check.integer(name, "iterations", iterations, 0)
    of_steps = Parameters(name, A, b, iterations).read("omega", omega, rows=False)
    check_omega(name, of_steps)
    sweep = Sweep(direction, multicolour)
    if iterations is not None:
        methods = [Correction(sweep, of_step) for of_step in _of_steps(of_steps)]
        gradient = given.pop("gradient", "unrolled")
        return _fixed(name, methods, omega, A, b, x0, iterations, gradient, given)
    refuse_parameters_that_learn(name, settings.gradient, omega=omega)
    solution = solve(name, Correction(sweep, *_of_steps(of_steps)), A, b, x0, settings)
    if settings.gradient != "implicit" and isinstance(omega, Tensor) and solution.iterations == 0:
        solution.x = with_zero_gradient(solution.x, omega)
    return solution


def _of_steps(omega: float | Tensor) -> list[Any]:
    """The one omega of all steps, or that of each, numbers or of the shape of the batch."""
    if not isinstance(omega, Tensor):
        return [omega]
    omega = omega.squeeze(-1)
    # No unbind: where omega is changed in place before a backward, torch's error would be about its views.
    return [omega.select(-1, i) for i in range(omega.shape[-1])]


def _fixed(
    name: str,
    methods: list[Correction],
    omega: float | Tensor,
    A: CSR,
    b: Tensor,
    x0: Tensor | None,
    iterations: int,
    gradient: str,
    keywords: dict[str, Any],
) -> Solution:
    _check.flag(name, "throw", keywords.get("throw", False))
    for key, value in keywords.items():
        if value is not False:
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
    rows = b.shape[0 if b.dim() == 1 else -2]
    if rows != A.shape[0]:
        raise ValueError(f"{name}: b must have A.shape[0] = {A.shape[0]} rows, got shape {tuple(b.shape)}")
    columns = Columns(b.dim() == 1, check_operands(name, A, b))
    check_x0(name, x0, b)
    B, operator = columns.into(b), Matrix(A)
    X = torch.zeros_like(B) if x0 is None else columns.into(x0)
    if iterations == 0:
        X = with_zero_gradient(X.clone(), B, A.values, *((omega,) if isinstance(omega, Tensor) else ()))
    steps = Steps(name, operator, _sweeps(methods, operator))
    known = B if x0 is None else None
    x, norms, _, _ = steps.run(B, X, iterations, gradient == "checkpointed", known)
    shown, axis = columns.out_of(x)

    def complete() -> Tensor:
        norms_of_all = with_last(norms, B - operator(x))
        return norms_of_all.squeeze(-1) if columns.vector else norms_of_all

    return Solution(shown, iterations, complete, axis, (A.values, b, shown))


def _sweeps(methods: list[Correction], operator: Matrix) -> Any:
    """S of all steps, or of each: these are made when they are needed, and again by a backward that repeats
    them, so that checkpoints hold no more than they must."""

    def made(method: Correction) -> Any:
        return method.sweep_of(operator, method.sweep.system(operator.A, method.omega).values)

    if len(methods) == 1:
        return made(methods[0])
    return [lambda r, method=method: made(method)(r) for method in methods]
