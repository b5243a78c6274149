"""Stationary methods and semi-iterations, x' = x + a_k M (b - A x) + c_k (x - x before): `richardson`,
`heavyball`, `chebyshev`.

They stop in one of two ways. With `iterations`, that number of steps runs (fixed.py). With a tolerance, the
loop of all methods (loop.py) runs until every column has stopped; `Stationary` is the method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.ops._dots import scaled
from learnsolve.ops._steps import with_momentum
from learnsolve.ops.block_batch import BlockBatch
from learnsolve.solvers.core.arguments import check_b, refuse_parameters_that_learn
from learnsolve.solvers.core.door import solve
from learnsolve.solvers.core.fixed import FIXED_GRADIENTS, run_fixed
from learnsolve.solvers.core.parameters import Parameters
from learnsolve.solvers.options import Options, options_of
from learnsolve.solvers.solution import Solution


class State(NamedTuple):
    x: Tensor
    r: Tensor
    old: Tensor  # x before
    t: Tensor  # what the coefficients are made of


class Stationary:
    """One step; `coefficients(t)` are a, c (None: 0) and the next t, which is 0 at the start."""

    def __init__(self, coefficients: Callable[[Tensor], tuple[Any, Any, Tensor]]):
        self.coefficients = coefficients

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> State:
        return State(x, r, x, r.new_zeros(()))

    def step(self, A: Any, M: Any, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        a, c, t = self.coefficients(state.t)
        x = with_momentum(state.x + scaled(a, M(state.r)), c, state.x, state.old)
        return State(x, b - A(x), state.x, t), torch.zeros_like(running, dtype=torch.int64)


class _Identity:
    """M = 1, where none is given. In units (scaled.py) it is scaled like any other M, since no method here is
    invariant under scaling of M."""

    @property
    def T(self) -> _Identity:
        return self

    def __call__(self, r: Tensor) -> Tensor:
        return r


def run(
    name: str,
    A: Any,
    b: Tensor,
    x0: Tensor | None,
    iterations: int | None,
    options: Mapping[str, Any],
    fixed: Callable[[Parameters], tuple[Tensor, Tensor | None]],
    until: Callable[[Parameters], Callable[[Tensor], tuple[Any, Any, Tensor]]],
    **learned: Any,
) -> Solution:
    """With `iterations`, that number of steps, with the scales and momenta of fixed(read). Else steps to a
    tolerance, with the coefficients of until(read). `read` reads the method's parameters; `learned`: the
    arguments that both use."""
    check_b(name, b)
    if iterations is not None:
        iterations = _check.integer(name, "iterations", iterations, 0)
    settings = settings_of(name, iterations, options)
    read = Parameters(name, A, b, iterations)
    if iterations is not None:
        return run_fixed(name, A, b, x0, settings, iterations, *fixed(read))
    coefficients = until(read)
    if isinstance(A, BlockBatch):
        coefficients = _of_padded_rows(coefficients, A)
    refuse_parameters_that_learn(name, settings.gradient, **learned)
    settings = replace(settings, M=_Identity() if settings.M is None else settings.M)
    return solve(name, Stationary(coefficients), A, b, x0, settings)


def _of_padded_rows(coefficients: Callable[[Tensor], tuple[Any, Any, Tensor]], A: BlockBatch) -> Any:
    """Coefficients of which the first may be one a row, (n, 1)."""

    def padded(t: Tensor) -> tuple[Any, Any, Tensor]:
        a, c, t = coefficients(t)
        return A._layout.padded(a) if isinstance(a, Tensor) and a.dim() and a.shape[-2] > 1 else a, c, t

    return padded


def settings_of(name: str, iterations: int | None, given: Mapping[str, Any]) -> Options:
    """The options of a solve. With `iterations` those that belong to a tolerance are refused."""
    options = options_of(name, {key: value for key, value in given.items() if value is not None})
    if iterations is None:
        return options
    for key in ("rtol", "atol", "maxiter"):
        if given.get(key) is not None:
            raise ValueError(
                f"{name}: {key} must not be given beside iterations, which all run; leave out one"
            )
    for key in ("adjoint_rtol", "adjoint_maxiter", "adjoint_M"):
        if given.get(key) is not None:
            raise ValueError(f'{name}: {key} belongs to gradient="implicit", which iterations do not have')
    gradient = given.get("gradient")
    gradient = "unrolled" if gradient is None else gradient
    _check.one_of(name, "gradient", gradient, FIXED_GRADIENTS)
    return replace(options, gradient=gradient)
