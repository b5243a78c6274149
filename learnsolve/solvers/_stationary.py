"""Stationary methods and semi-iterations, x' = x + a_k M (b - A x) + c_k (x - x before): `richardson`,
`heavyball`, `chebyshev`.

Two ways of stopping. A number of `iterations`: all of them run, whatever b is, so that losses on them mean
what they say; by the compiled loop of ops/richardson.py where it knows A and M, else by `_steps`, which gives
the same numbers. A tolerance: the general loop of _loop.py, for which `Stationary` is the method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops._product import product
from learnsolve.ops.richardson import residual_norm, richardson_sweeps
from learnsolve.solvers._operator import as_operator, as_preconditioner, compiled_form
from learnsolve.solvers._options import Options, check_operands, check_x0, refuse_parameters_that_learn
from learnsolve.solvers._solve import columns, solve
from learnsolve.solvers.base import CODE, Iteration, Solution, SolverError, Status

FIXED_GRADIENTS = ("unrolled", "checkpointed")


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
        x = state.x + a * M(state.r)
        if c is not None:
            x = x + c * (state.x - state.old)
        return State(x, b - A(x), state.x, t), torch.zeros_like(running, dtype=torch.int64)


class _Identity:
    """In units (_units.py) even this M is not 1: no method here is indifferent to a factor of M."""

    @property
    def T(self) -> _Identity:
        return self

    def __call__(self, r: Tensor) -> Tensor:
        return r


def make_options(name: str, iterations: int | None, gradient: str | None, **keywords: Any) -> Options:
    """Those of a solve; with `iterations` none that belong to a tolerance."""
    if iterations is None:
        for key, default in (("rtol", 1e-5), ("atol", 0.0)):
            keywords[key] = default if keywords[key] is None else keywords[key]
        return Options(gradient="implicit" if gradient is None else gradient, **keywords)
    for key in ("rtol", "atol", "maxiter"):
        if keywords.pop(key) is not None:
            raise ValueError(
                f"{name}: {key} must not be given beside iterations, which all run; leave out one"
            )
    for key in ("adjoint_rtol", "adjoint_maxiter", "adjoint_M"):
        if keywords.pop(key) is not None:
            raise ValueError(f'{name}: {key} belongs to gradient="implicit", which iterations do not have')
    gradient = "unrolled" if gradient is None else gradient
    _check.one_of(name, "gradient", gradient, FIXED_GRADIENTS)
    return Options(gradient=gradient, **keywords)


def until_tolerance(
    name: str, A: Any, b: Tensor, x0: Tensor | None, options: Options, method: Stationary, **learned: Any
) -> Solution:
    """`learned`: what the coefficients are made of, by name."""
    refuse_parameters_that_learn(name, options.gradient, **learned)
    options = replace(options, M=_Identity() if options.M is None else options.M)
    return solve(name, method, A, b, x0, options)


def number(name: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: {key} must be a number or a torch.Tensor, got {type(value).__name__}")
    return float(value)


def scalar(name: str, key: str, value: Any, b: Tensor) -> Any:
    """A number or a tensor of shape ()."""
    if not isinstance(value, Tensor):
        return number(name, key, value)
    _check.same_kind(name, key, value, b)
    if value.dim():
        raise ValueError(f"{name}: {key} must have shape (), got {tuple(value.shape)}")
    return value


def steps_of(name: str, key: str, value: Any, b: Tensor, iterations: int) -> Tensor:
    """As (1 or iterations, 1 or n)."""
    if not isinstance(value, Tensor):
        return b.new_full((1, 1), number(name, key, value))
    _check.same_kind(name, key, value, b)
    n, shape = b.shape[0 if b.dim() == 1 else -2], tuple(value.shape)
    if shape == ():
        return value.reshape(1, 1)
    if shape == (n,) and shape == (iterations,) and n > 1:
        raise ValueError(
            f"{name}: {key} of shape {shape} may be one a row or one a step; give it as (1, {n}) or ({n}, 1)"
        )
    if shape == (n,):
        return value.unsqueeze(0)
    if shape == (iterations,):
        return value.unsqueeze(1)
    if shape in {(1, 1), (1, n), (iterations, 1), (iterations, n)}:
        return value
    raise ValueError(
        f"{name}: {key} must have shape (), (iterations,), (n,), (iterations, 1) or (iterations, n) with "
        f"n = {n} and iterations = {iterations}, got {shape}"
    )


def rows_of(name: str, key: str, value: Any, b: Tensor) -> Any:
    """A number, or a factor for blocks of columns: shape () or (n, 1)."""
    if not isinstance(value, Tensor):
        return number(name, key, value)
    _check.same_kind(name, key, value, b)
    n, shape = b.shape[0 if b.dim() == 1 else -2], tuple(value.shape)
    if shape not in {(), (n,)}:
        raise ValueError(
            f"{name}: {key} must have shape () or (n,) with n = {n}, got {shape}; one a step needs "
            "iterations="
        )
    return value.unsqueeze(-1) if shape else value


def momenta_of(name: str, key: str, value: Any, b: Tensor, iterations: int) -> Tensor:
    """As (1 or iterations,)."""
    if not isinstance(value, Tensor):
        return b.new_full((1,), number(name, key, value))
    _check.same_kind(name, key, value, b)
    if tuple(value.shape) not in {(), (1,), (iterations,)}:
        raise ValueError(
            f"{name}: {key} must have shape () or (iterations,) = ({iterations},), got {tuple(value.shape)}"
        )
    return value if value.dim() else value.unsqueeze(0)


def learning(name: str, key: str, value: Any) -> torch.nn.Parameter:
    """A number or tensor as a parameter."""
    if not isinstance(value, Tensor):
        value = torch.tensor(number(name, key, value))
    if not value.is_floating_point():
        raise TypeError(f"{name}: {key} must be a floating-point tensor to learn, got {value.dtype}")
    return torch.nn.Parameter(value.detach().clone())


def run_fixed(
    name: str,
    A: Any,
    b: Tensor,
    x0: Tensor | None,
    options: Options,
    iterations: int,
    steps: Tensor,
    momenta: Tensor | None,
) -> Solution:
    """`iterations` steps: `steps` (1 or iterations, 1 or n), `momenta` (1 or iterations,) or None."""
    if not (options.callback is None or callable(options.callback)):
        raise TypeError(f"{name}: callback must be callable, got {type(options.callback).__name__}")
    operator = as_operator(name, A, b, options.transpose, tuple(options.parameters))
    batch = check_operands(name, A, b)
    check_x0(name, x0, b)
    x0 = torch.zeros_like(b) if x0 is None else x0
    checkpointed = options.gradient == "checkpointed"
    form = compiled_form(options.M)
    known = form is not None and form[0] in ("none", "diagonal")
    if form is not None and known and _has_loop(A) and options.callback is None:
        solution = _compiled(A, b, x0, iterations, steps, momenta, form[1], checkpointed)
    else:
        M = as_preconditioner(name, "M", options.M, b)
        run = _Steps(operator, M, steps, momenta, options.callback, b.dim() == 1)
        vector = b.dim() == 1
        solution = run(columns(b, vector, batch), columns(x0, vector, batch), iterations, checkpointed)
    if options.throw and solution.status in (Status.NON_FINITE, Status.DIVERGED):
        raise SolverError(name, solution)
    return solution


def _has_loop(A: Any) -> TypeGuard[CSR]:
    return isinstance(A, CSR) and (A.values.is_cpu or A.values.is_cuda)


def _compiled(
    A: CSR,
    b: Tensor,
    x0: Tensor,
    iterations: int,
    steps: Tensor,
    momenta: Tensor | None,
    m: Tensor | None,
    checkpointed: bool,
) -> Solution:
    values, pattern = A.values, A.pattern
    scale = steps.expand(steps.shape[0], pattern.shape[0]) if m is None else steps * m.unsqueeze(-2)
    x, norms = sweeps(A, scale, b, x0, iterations, checkpointed, momenta)
    axis = 0 if b.dim() == 1 else -2

    def complete() -> Tensor:
        last = residual_norm(b - product(values, x, pattern, False), axis, keepdim=True)
        return torch.cat((norms, last), dim=axis)

    return Solution(x, iterations, complete, axis, (values, b, x))


def sweeps(
    A: CSR,
    scale: Tensor,
    b: Tensor,
    x0: Tensor,
    iterations: int,
    checkpointed: bool,
    momenta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`richardson_sweeps` for any batch axes, on A's values, on scale (..., rows, n) and on b, as the one
    axis of the kernel."""
    if A.values.dim() == 1 and b.dim() <= 2 and scale.dim() <= 2:
        return richardson_sweeps(A.values, scale, b, x0, A.pattern, iterations, checkpointed, momenta)
    batch = torch.broadcast_shapes(A.batch_shape, b.shape[:-2], scale.shape[:-2])

    def flat(t: Tensor, inner: int) -> Tensor:
        tail = t.shape[t.dim() - inner :]
        return t.expand(batch + tail).reshape((batch.numel(), *tail))

    b, x0, values = flat(b, 2), flat(x0, 2), A.values
    values = flat(values, 1) if values.dim() > 1 else values
    scale = flat(scale, 2) if scale.dim() > 2 else scale
    x, norms = richardson_sweeps(values, scale, b, x0, A.pattern, iterations, checkpointed, momenta)
    return x.reshape(batch + x.shape[1:]), norms.reshape(batch + norms.shape[1:])


class _Steps:
    """The same steps by public operations, on blocks of columns (..., n, k)."""

    def __init__(self, A, M, steps, momenta, callback, vector):
        self.A, self.M, self.steps, self.momenta = A, M, steps, momenta
        self.callback, self.vector = callback, vector
        self.ran: dict[int, int] = {}  # steps of each segment; a callback may have ended it

    def __call__(self, b: Tensor, x: Tensor, iterations: int, checkpointed: bool) -> Solution:
        length = max(1, round(iterations**0.5)) if checkpointed else max(iterations, 1)
        old, norms, done, stopped = x, [], 0, False
        while done < iterations and not stopped:
            count = min(length, iterations - done)
            if checkpointed:
                x, old, part = checkpoint(self._segment, b, x, old, done, count, use_reentrant=False)  # type: ignore[misc]
            else:
                x, old, part = self._segment(b, x, old, done, count)
            norms.append(part)
            stopped = self.ran[done] < count
            done += self.ran[done]
        norm = residual_norm(b - self.A(x), -2, keepdim=True)
        if not stopped and done:
            stopped = self._told(done, x, norm)
        history, codes = torch.cat((*norms, norm), -2), None
        if stopped:
            lost = ~torch.isfinite(norm.detach().squeeze(-2))
            codes = torch.where(lost, CODE[Status.NON_FINITE], CODE[Status.STOPPED_BY_CALLBACK])
        if self.vector and x.dim() == 2:
            x, history = x.squeeze(-1), history.squeeze(-1)
            return Solution(x, done, history, -1, codes=None if codes is None else codes.squeeze(-1))
        return Solution(x, done, history, -2, codes=codes)

    def _segment(self, b: Tensor, x: Tensor, old: Tensor, first: int, count: int):
        end = self.ran.get(first)  # of a segment that is repeated, which asks the callback nothing
        norms = []
        for i in range(first, first + count):
            r = b - self.A(x)
            norm = residual_norm(r, -2, keepdim=True)
            if len(norms) == end or (end is None and i > 0 and self._told(i, x, norm)):
                break
            norms.append(norm)
            step = self.steps[i if self.steps.shape[0] > 1 else 0].unsqueeze(-1)
            z = step * (r if self.M is None else self.M(r))
            if self.momenta is not None:
                z = z + self.momenta[i if self.momenta.shape[0] > 1 else 0] * (x - old)
            x, old = x + z, x
        self.ran[first] = len(norms)
        return x, old, torch.cat(norms, -2) if norms else b[..., :0, :]

    def _told(self, i: int, x: Tensor, norm: Tensor) -> bool:
        if self.callback is None:
            return False
        x, norm = x.detach(), norm.detach().squeeze(-2)
        if self.vector and x.dim() == 2:
            x, norm = x.squeeze(-1), norm.squeeze(-1)
        return self.callback(Iteration(i, x, norm, torch.zeros_like(norm, dtype=torch.bool))) is True
