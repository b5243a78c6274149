"""Stationary methods and semi-iterations, x' = x + a_k M (b - A x) + c_k (x - x before): `richardson`,
`heavyball`, `chebyshev`.

They stop in one of two ways. With `iterations`, that number of steps runs (fixed.py). With a tolerance, the
loop of all methods (loop.py) runs until every column has stopped; `Stationary` is the method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
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
from learnsolve.solvers.options import Options
from learnsolve.solvers.solution import Solution

# Of Krylov methods alone: a singular A.
KEYWORDS = tuple(field.name for field in fields(Options) if field.name != "null_space")


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
    given: dict[str, Any],
    fixed: Callable[[Parameters], tuple[Tensor, Tensor | None]],
    until: Callable[[Parameters], Callable[[Tensor], tuple[Any, Any, Tensor]]],
    *learned: str,
) -> Solution:
    """A method called with the arguments `given`, by name. With `iterations`, that number of steps, with the
    scales and momenta of fixed(read). Else steps to a tolerance, with the coefficients of until(read). `read`
    reads the method's parameters; `learned`: the arguments that both use."""
    A, b, x0, iterations = (given[key] for key in ("A", "b", "x0", "iterations"))
    check_b(name, b)
    if iterations is not None:
        iterations = _check.integer(name, "iterations", iterations, 0)
    options = make_options(name, iterations, **{key: given[key] for key in KEYWORDS})
    read = Parameters(name, A, b, iterations)
    if iterations is not None:
        return run_fixed(name, A, b, x0, options, iterations, *fixed(read))
    coefficients = until(read)
    if isinstance(A, BlockBatch):
        coefficients = _of_padded_rows(coefficients, A)
    method = Stationary(coefficients)
    refuse_parameters_that_learn(name, options.gradient, **{key: given[key] for key in learned})
    options = replace(options, M=_Identity() if options.M is None else options.M)
    return solve(name, method, A, b, x0, options)


def _of_padded_rows(coefficients: Callable[[Tensor], tuple[Any, Any, Tensor]], A: BlockBatch) -> Any:
    """Coefficients of which the first may be one a row, (n, 1)."""

    def padded(t: Tensor) -> tuple[Any, Any, Tensor]:
        a, c, t = coefficients(t)
        return A._layout.padded(a) if isinstance(a, Tensor) and a.dim() and a.shape[-2] > 1 else a, c, t

    return padded


def make_options(name: str, iterations: int | None, gradient: str | None, **keywords: Any) -> Options:
    """The keywords of a solve. With `iterations` those that belong to a tolerance are refused."""
    if iterations is None:
        return Options(gradient="implicit" if gradient is None else gradient, **keywords)
    for key in ("rtol", "atol", "maxiter"):
        if keywords.pop(key) is not None:
            raise ValueError(
                f"{name}: {key} must not be given beside iterations, which all run; leave out one"
            )
    for key in ("adjoint_rtol", "adjoint_maxiter", "adjoint_M"):
        if keywords.pop(key, None) is not None:
            raise ValueError(f'{name}: {key} belongs to gradient="implicit", which iterations do not have')
    gradient = "unrolled" if gradient is None else gradient
    _check.one_of(name, "gradient", gradient, FIXED_GRADIENTS)
    return Options(gradient=gradient, **keywords)
