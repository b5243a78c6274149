"""The engine of stationary methods and semi-iterations,

    x' = x + a_k M (b - A x) + c_k (x - x before).

A method is defined by its coefficients a_k and c_k; `sor` and its variants are an M. With `iterations`,
exactly that number of steps runs, so that a loss on them is the same function of the parameters for every b:
through the compiled sweeps of ops/richardson.py for a CSR and a diagonal M, otherwise through public
operations (ops/core/steps.py), which give the same values. To a tolerance, the loop of all methods (loop.py)
runs `Stationary`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.inputs import operands
from learnsolve.ops.core import across
from learnsolve.ops.core.dots import scaled, spread, times
from learnsolve.ops.core.product import product
from learnsolve.ops.core.steps import residual_norm, stationary_steps, with_momentum
from learnsolve.ops.richardson import richardson_sweeps
from learnsolve.solvers.core.arguments import check_b, check_operands, check_x0, refuse_parameters_that_learn
from learnsolve.solvers.core.door import solve
from learnsolve.solvers.core.gradient import repeated, transformed
from learnsolve.solvers.core.operators import (
    Blocks,
    as_operator,
    as_preconditioner,
    compiled_form,
    joined,
    systems_of,
)
from learnsolve.solvers.core.parameters import FIXED_GRADIENTS, Parameters
from learnsolve.solvers.core.system import Columns, Map
from learnsolve.solvers.options import Options, options_of
from learnsolve.solvers.solution import CODE, COMPILED, Iteration, Solution, SolverError, Status


class State(NamedTuple):
    x: Tensor
    r: Tensor
    old: Tensor  # the previous x
    t: Tensor  # the state of the coefficients; 0 at the start


class Stationary:
    """The method for the loop, with constant coefficients a and c (None: 0)."""

    def __init__(self, a: Any, c: Any = None):
        self.a, self.c = a, c

    def coefficients(self, t: Tensor) -> tuple[Any, Any, Tensor]:
        """a, c and the next t."""
        return self.a, self.c, t

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> State:
        return State(x, r, x, r.new_zeros(()))

    def step(self, A: Any, M: Any, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        a, c, t = self.coefficients(state.t)
        x = with_momentum(state.x + scaled(a, M(state.r)), c, state.x, state.old)
        return State(x, b - A(x), state.x, t), torch.zeros_like(running, dtype=torch.int64)


class _Identity:
    """The M of a call without one. It is scaled with A like any other (units.py), since these methods are not
    invariant under scaling of M."""

    T = property(lambda self: self)

    def __call__(self, r: Tensor) -> Tensor:
        return r


def run(
    name: str,
    A: Any,
    b: TensorLike,
    x0: TensorLike | None,
    iterations: int | None,
    options: Mapping[str, Any],
    coefficients: Callable[[Parameters, Options], tuple[Any, Any]],
    method: Callable[[Any, Any], Stationary] = Stationary,
) -> Solution:
    """`coefficients`: of all steps, (..., 1 or iterations, 1 or n) and (..., 1 or iterations); to a tolerance
    the arguments of `method`."""
    A, b, x0 = operands(name, A, b, x0)
    check_b(name, b)
    check_operands(name, A, b)
    if iterations is not None:
        iterations = checks.integer(name, "iterations", iterations, 0)
    settings = settings_of(name, iterations, options)
    read = Parameters(name, A, b, iterations)
    a, c = coefficients(read, settings)
    if iterations is not None:
        return run_fixed(name, A, b, x0, settings, iterations, a, c)
    refuse_parameters_that_learn(name, settings.gradient, **read.values)
    settings = replace(settings, M=_Identity() if settings.M is None else settings.M)
    return solve(name, method(a, c), A, b, x0, settings)


_BESIDE = {
    **dict.fromkeys(
        ("rtol", "atol", "maxiter"), "{key} must not be given beside iterations, which all run; leave out one"
    ),
    **dict.fromkeys(
        ("adjoint_rtol", "adjoint_maxiter", "adjoint_M"),
        '{key} belongs to gradient="implicit", which cannot be combined with iterations',
    ),
}


def settings_of(
    name: str, iterations: int | None, arguments: Mapping[str, Any], beside: Mapping[str, str] = _BESIDE
) -> Options:
    """The options of a call; a keyword that `iterations` excludes raises an error."""
    keywords = {key: value for key, value in arguments.items() if value is not None}
    if iterations is None:
        return options_of(name, keywords)
    keywords.setdefault("gradient", "unrolled")
    options = options_of(name, keywords)
    for key, rule in beside.items():
        if key in keywords:
            rule = rule.format(key=key, value=keywords[key], iterations=iterations)
            raise ValueError(f"{name}: {rule}")
    checks.one_of(name, "gradient", options.gradient, FIXED_GRADIENTS)
    return options


def run_fixed(
    name: str, A: Any, b: Tensor, x0: Tensor | None, options: Options, iterations: int, a: Tensor, c: Any
) -> Solution:
    """a (..., 1 or iterations, 1 or n), c (..., 1 or iterations) or None, with batch axes that broadcast to
    those of A and b."""
    if not (options.callback is None or callable(options.callback)):
        raise TypeError(f"{name}: callback must be callable, got {type(options.callback).__name__}")
    checks.flag(name, "throw", options.throw)
    operator = as_operator(name, A, b, options.transpose, options.parameters, blocks=True)
    layout = operator.layout if isinstance(operator, Blocks) else None
    batch = check_operands(name, A, b)
    check_x0(name, x0, b)
    x0 = torch.zeros_like(b) if x0 is None else x0
    checkpointed = options.gradient == "checkpointed"
    kind, m, _ = compiled_form(options.M) or ("", None, None)
    has_kernel = isinstance(A, CSR) and (A.values.is_cpu or A.values.is_cuda)
    if has_kernel and kind in ("none", "diagonal") and options.callback is None:
        scale = spread(a, A.shape[0]) if m is None else times(m.unsqueeze(-2), a)
        solution = compiled(A, b, x0, scale, iterations, checkpointed, c)
    else:
        columns, systems = Columns(b.dim() == 1, batch, layout), systems_of(name, options, b, layout)
        M = joined(layout, [as_preconditioner(name, "M", own.M, part) for own, part in systems])
        if layout is not None and a.shape[-1] != 1:
            a = layout.padded(a.mT).mT
        steps = Steps(name, operator, M, columns, a, c, columns.callback(options.callback))
        solution = steps.solution(columns.into(b), columns.into(x0), iterations, checkpointed)
    if options.throw and solution.status in (Status.NON_FINITE, Status.DIVERGED):
        raise SolverError(name, solution)
    return solution


def compiled(
    A: CSR, b: Tensor, x0: Tensor, scale: Tensor, iterations: int, checkpointed: bool, momenta: Any = None
) -> Solution:
    """`richardson_sweeps` for scale (n,) or (..., rows, n) and momenta (..., rows); all batch axes (of these,
    A and b) are merged into the one axis of the kernel."""
    values, pattern = A.values, A.pattern
    single = values.dim() == 1 and b.dim() <= 2 and scale.dim() <= 2
    if single and (momenta is None or momenta.dim() == 1):
        x, norms = richardson_sweeps(values, scale, b, x0, pattern, iterations, checkpointed, momenta)
        return solution_of(A, b, x, norms, iterations)
    batch = torch.broadcast_shapes(A.batch_shape, b.shape[:-2], scale.shape[:-2])

    B, X = (t.expand(batch + t.shape[-2:]) for t in (b, x0))

    def flat(t: Any, inner: int) -> Any:
        if t is None or t.dim() <= inner:
            return t
        tail = t.shape[t.dim() - inner :]
        return t.expand(batch + tail).reshape((batch.numel(), *tail))

    operands = flat(values, 1), flat(scale, 2), flat(B, 2), flat(X, 2)
    parts = richardson_sweeps(*operands, pattern, iterations, checkpointed, flat(momenta, 1))
    x, norms = (t.reshape(batch + t.shape[1:]) for t in parts)
    return solution_of(A, b, x, norms, iterations)


def solution_of(
    A: CSR,
    b: Tensor,
    x: Tensor,
    norms: Tensor | Callable[[], Tensor],
    iterations: int,
    execution: str = COMPILED,
) -> Solution:
    """`norms`: before each step. The norm of the last residual is computed on demand."""
    values, pattern = A.values, A.pattern

    def complete() -> Tensor:
        return _with_last(norms() if callable(norms) else norms, b - product(values, x, pattern, False))

    return Solution(x, iterations, complete, 0 if b.dim() == 1 else -2, (values, b, x), execution=execution)


def _with_last(norms: Tensor, r: Tensor) -> Tensor:
    """The norms before each step, and the norm of the last residual."""
    return torch.cat((norms, residual_norm(r, -2, keepdim=True)), 0 if r.dim() == 1 else -2)


@dataclass
class Steps:
    """Steps by public operations on blocks of columns (..., n, k). M: one map, or one per step; `counts`: the
    number of steps of each segment, which a callback may have ended."""

    function: str
    A: Map
    M: Map | Sequence[Map] | None
    columns: Columns
    a: Tensor | None = None
    c: Tensor | None = None
    callback: Callable[[Iteration], Any] | None = None
    counts: dict[int, int] = field(default_factory=dict)

    def solution(
        self, b: Tensor, x: Tensor, iterations: int, checkpointed: bool, r: Any = None, sources: tuple = ()
    ) -> Solution:
        """`r`: b - A x, if it is known. With `sources`, the tensors that b - A x depends on, the last norm is
        computed on demand."""
        x, norms, count, stopped = self._run(b, x, iterations, checkpointed, r)
        x = x if count else x.clone()  # x0 is the caller's
        shared, codes = across.of(self.A), []

        def complete() -> Tensor:
            with across.over(shared):
                history = _with_last(norms, b - self.A(x))
            return history if shared is None else shared.shown(history)

        if sources:
            shown, axis = self.columns.out_of(x)
            lazy = lambda: complete().squeeze(-1) if self.columns.vector else complete()  # noqa: E731
            return Solution(shown, count, lazy, axis, (*sources, shown))
        history = complete()
        if not stopped:
            stopped = self._stops(count, x, history[..., -1:, :])
        if stopped:
            lost = ~torch.isfinite(history.detach()[..., -1, :])
            codes = [torch.where(lost, CODE[Status.NON_FINITE], CODE[Status.STOPPED_BY_CALLBACK])]
        x, history, *codes, axis = self.columns.out_of(x, history, *codes)
        return Solution(x, count, history, axis, codes=codes[0] if codes else None)

    def _run(
        self, b: Tensor, x: Tensor, iterations: int, checkpointed: bool, r: Tensor | None
    ) -> tuple[Tensor, Tensor, int, bool]:
        """x, the norms before each step, the number of steps, and whether the callback stopped them. With
        `checkpointed` the graph holds O(sqrt(iterations)) iterates, and the backward pass repeats the steps
        in between."""
        # Checkpoints use hooks on saved tensors, which transformations of torch.func do not support.
        segments = checkpointed and torch.is_grad_enabled() and not transformed()
        length = max(1, round(iterations**0.5) if segments else iterations)
        before, norms, count, stopped = x, [], 0, False
        while count < iterations and not stopped:
            most = min(length, iterations - count)
            segment = partial(self._segment, count, most)
            if segments:
                x, before, part = repeated(self.function, segment, b, x, before, r)
            else:
                x, before, part = segment(b, x, before, r)
            norms.append(part)
            self.counts[count] = ran = part.shape[-2]
            stopped = ran < most
            count, r = count + ran, None
        return x, torch.cat(norms, -2) if norms else b.new_empty(b[..., :0, :].shape), count, stopped

    def _segment(self, first: int, most: int, b: Tensor, x: Tensor, before: Tensor, r: Tensor | None):
        """Steps from `first` on. When the backward pass repeats them, the callback is not called."""
        end = first + self.counts.get(first, most)
        stops = (lambda number, *_: number == end) if first in self.counts else self._stops
        numbers = range(first, first + most)
        with across.over(across.of(self.A)):
            return stationary_steps(self.A, self.M, self.a, self.c, b, x, before, numbers, r, stops)

    def _stops(self, number: int, x: Tensor, norm: Tensor) -> bool:
        if self.callback is None or number == 0:
            return False
        x, norm = x.detach(), norm.detach().squeeze(-2)
        return self.callback(Iteration(number, x, norm, torch.zeros_like(norm, dtype=torch.bool))) is True
