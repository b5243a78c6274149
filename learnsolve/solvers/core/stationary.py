"""The engine of stationary methods and semi-iterations,

    x' = x + a_k M (b - A x) + c_k (x - x before).

A method is defined by its coefficients a_k and c_k. `sor` and its variants are an M. With `iterations`,
exactly that number of steps runs, so that a loss on them is the same function of the parameters for every b:
through the compiled sweeps of ops/sweeps.py for a CSR and a diagonal M, otherwise through public
operations (ops/sweeps.py), which return the same values. To a tolerance, the loop of all methods (loop.py)
runs `Stationary`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.cache import readable
from learnsolve.matrix.checks import operands
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.csr import CSR
from learnsolve.ops import across
from learnsolve.ops.blocks import BlockBatch
from learnsolve.ops.products import multiply_columns, product, spread, times
from learnsolve.ops.sweeps import add_momentum, residual_norm, richardson_sweeps, stationary_steps
from learnsolve.preconditioners.polynomials import RATIO, largest_eigenvalue
from learnsolve.solvers.core.arguments import check_b, check_operands, check_x0, refuse_parameters_that_learn
from learnsolve.solvers.core.entry import solve
from learnsolve.solvers.core.gradient import checkpoint_run, transforms_active
from learnsolve.solvers.core.loop import Method
from learnsolve.solvers.core.operators import (
    Blocks,
    Columns,
    Map,
    combine_preconditioners,
    find_pcg_form,
    make_operator,
    make_preconditioner,
    says,
    split_options,
)
from learnsolve.solvers.options import (
    BESIDE_ITERATIONS,
    MODULE,
    OF_MODULES,
    Options,
    describe_options,
    read_options,
)
from learnsolve.solvers.solution import CODE, COMPILED, Iteration, Solution, SolverError, Status

# Parameters of the stationary methods (weights, steps, momenta, bounds, omega): one rule for their shapes,
# bounds of the spectrum of M A if none are given, and modules that train them.
#
# With the batch axes of A and b (broadcast), N steps and n rows, the full shape is (*batch, N, n), with
# size 1 along each axis on which a parameter does not depend. A shape with as many axes is read as full;
# short forms:
#
#     ()          one value                     (N,)         one per step
#     (n,)        one per row                   (N, n)       one per step and row, ones allowed
#     batch       one per member                (N, *batch)  one per step and member
#
# A shape that matches two of these is an error. To a tolerance there is no axis N (1 in the full shape).
# Parameters that cannot depend on the row have 1 for n in the full shape, and no short form with n.


Value = float | Tensor  # of a parameter
FIXED_GRADIENTS = ("unrolled", "checkpointed")  # of a fixed number of steps


class Parameters:
    """Reads the parameters of a call of `name` and records them in `values`; steps=None: to a tolerance."""

    def __init__(self, name: str, A: Any, b: Tensor, steps: int | None):
        self.name, self.A, self.b, self.steps = name, A, b, steps
        self.n = b.shape[0 if b.dim() == 1 else -2]
        self.values: dict[str, Any] = {}

    @property
    def batch(self) -> torch.Size:
        return torch.broadcast_shapes(check_operands(self.name, self.A, self.b), self.b.shape[:-2])

    def read(self, key: str, value: object, rows: bool = True) -> Any:
        """A float, or a tensor (..., 1 or N, 1 or n)."""
        self.values[key] = value
        value, shared = self._read(key, value, rows), across.find_processes(self.A)
        if shared is None or not isinstance(value, Tensor):
            return value
        return shared.parameter(self.name, key, value, rows)

    def _read(self, key: str, value: object, rows: bool) -> Any:
        if not isinstance(value, Tensor):
            return checks.number(self.name, key, value)
        checks.same_kind(self.name, key, value, self.b)
        if value.dim() == 0:
            return value.reshape(1, 1)
        shape, full = tuple(value.shape), self._full(rows)
        if len(shape) == len(full):
            if _fits(shape, full):
                return value
        elif value.numel() == 1 and len(shape) < len(full):
            return value.reshape(1, 1)
        readings = self._readings(value, full, rows)
        if not readings:
            raise ValueError(f"{self.name}: {key} must have shape {self._rule(rows)}, got {shape}")
        if len(readings) > 1 and value.numel():
            fulls = [(1,) * (len(full) - t.dim()) + tuple(t.shape) for t in readings.values()]
            raise ValueError(
                f"{self.name}: {key} of shape {shape} may be {' or '.join(readings)}. Pass it in full, as "
                f"{' or '.join(map(str, fulls))}"
            )
        return next(iter(readings.values()))

    def coefficient(self, key: str, value: Any) -> Any:
        """A parameter of all steps, (..., 1 or N, 1 or n); to a tolerance a float or (..., 1 or n, 1), for
        blocks of columns."""
        value = self.read(key, value)
        if self.steps is not None:
            return value if isinstance(value, Tensor) else self.b.new_full((1, 1), value)
        if not isinstance(value, Tensor):
            return value
        rows = isinstance(self.A, BlockBatch) and value.shape[-1] > 1
        return self.A._layout.pad(value.mT) if rows else value.mT

    def momentum(self, key: str, value: Any) -> Any:
        """A parameter that cannot depend on the row, (..., 1 or N); to a tolerance a float or (..., 1, 1)."""
        value = self.read(key, value, rows=False)
        if self.steps is None:
            return value
        return value.squeeze(-1) if isinstance(value, Tensor) else self.b.new_full((1,), value)

    def _full(self, rows: bool) -> tuple[int, ...]:
        return (*self.batch, 1 if self.steps is None else self.steps, self.n if rows else 1)

    def _readings(self, t: Tensor, full: tuple[int, ...], rows: bool) -> dict[str, Tensor]:
        shape, batch, N = tuple(t.shape), full[:-2], self.steps
        forms = [
            ("one per row", rows and shape == (self.n,), lambda: t.unsqueeze(0)),
            ("one per step", shape == (N,), lambda: t.unsqueeze(-1)),
            ("one per member of the batch", batch and shape == batch, lambda: t[..., None, None]),
            ("one per step and member", batch and shape == (N, *batch), lambda: t.movedim(0, -1)[..., None]),
            ("one per step and row", batch and len(shape) == 2 and _fits(shape, full[-2:]), lambda: t),
        ]
        return {words: view() for words, holds, view in forms if holds}

    def _rule(self, rows: bool) -> str:
        """The valid shapes, and the sizes behind their letters."""
        members = ["B"] if len(self.batch) == 1 else [f"B{i + 1}" for i in range(len(self.batch))]
        n, N = ["n"] * rows, ["N"] * (self.steps is not None)
        forms = [[], n, N, members, N + members, N + n if members else []]
        forms = [f for i, f in enumerate(forms) if f not in forms[:i]]
        text = ", ".join(f"({', '.join(f)}{',' * (len(f) == 1)})" for f in forms)
        full = ", ".join((*members, *(N or "1"), *(n or "1")))
        sizes = [f"n = {self.n}"] * rows + [f"N = {self.steps} iterations"] * len(N)
        sizes += [f"{B} = {size}" for B, size in zip(members, self.batch, strict=True)]
        where = f", with {', '.join(sizes)}" if sizes else ""
        remedy = "" if N else " (one per step needs iterations=)"
        return f"{text} or in full ({full}) with ones allowed{where}{remedy}"


def _fits(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    return all(s in (1, f) for s, f in zip(shape, full, strict=True))


def bounds(read: Parameters, lmin: object, lmax: object, options: Options) -> tuple[Any, Any]:
    """`lmin` and `lmax` as `read.read` returns them. Default: lmax is 1.1 times an estimate by 10 steps of
    Arnoldi's method, constant to every derivative, and lmin is lmax / 30."""
    named = (("lmin", lmin), ("lmax", lmax))
    low, high = (None if value is None else read.read(key, value, rows=False) for key, value in named)
    low, high = _check_bounds(read.name, low, high)
    high = _estimate(read, options) if high is None else high
    return high / RATIO if low is None else low, high


def given_bounds(name: str, lmin: object, lmax: object) -> tuple[Any, Any]:
    """The same for two given bounds, outside a call."""
    named = (("lmin", lmin), ("lmax", lmax))
    return _check_bounds(
        name, *(t if isinstance(t, Tensor) else checks.number(name, key, t) for key, t in named)
    )


def _check_bounds(name: str, low: Any, high: Any) -> tuple[Any, Any]:
    """0 < lmin <= lmax < inf for floats. `readable` tensors: 0 < t < inf. Learned bounds may cross during
    training, and then mean the same."""
    for key, value in (("lmin", low), ("lmax", high)):
        wrong = None
        if isinstance(value, Tensor):
            checks.dtype(name, key, value)
            if readable(value) and not (good := (value > 0) & (value < math.inf)).all():
                wrong = float(value.detach()[~good][0])
        elif value is not None and not 0 < value < math.inf:
            wrong = value
        if wrong is not None:
            raise ValueError(
                f"{name}: {key} must be positive and finite, got {wrong}. It bounds the spectrum of M A, "
                "which must be positive"
            )
    if isinstance(low, float) and isinstance(high, float) and low > high:
        raise ValueError(f"{name}: lmin must not be larger than lmax, got {low} and {high}. Swap them")
    return low, high


def _estimate(read: Parameters, options: Options) -> Tensor:
    """The estimate in the full shape of Parameters, with one value per member of the batch, or 1 if no
    estimate is positive, so that the solve reports what is wrong."""
    name, A, b, M = read.name, read.A, read.b, options.M
    for wrong, error, case in (
        (torch.compiler.is_dynamo_compiling(), NotImplementedError, "under torch.compile"),
        (across.find_processes(A) is not None, NotImplementedError, "for rows in several processes"),
        (isinstance(M, (list, tuple)), ValueError, "for one M per block"),
    ):
        if wrong:
            raise error(
                f"{name}: the largest eigenvalue of M A is not estimated {case}. Pass lmax= or, for "
                "richardson, weight="
            )
    A = A.matrix if isinstance(A, BlockBatch) else A
    apply = make_operator(name, A, b, options.transpose, options.parameters)
    inner = make_preconditioner(name, "M", M, b)
    whole = apply.watched or A.batch_shape or (M is not None and says(M, "batch_shape"))
    batch = read.batch if whole else torch.Size()
    if read.n == 0:
        return b.new_ones((*batch, 1, 1))
    start = torch.from_numpy(np.random.default_rng(0).standard_normal((read.n, 1)))
    start = start.to(dtype=b.dtype, device=b.device).expand(*batch, read.n, 1)
    largest = largest_eigenvalue(lambda X: apply(X) if inner is None else inner(apply(X)), start)
    good = largest.isfinite() & (largest > 0)
    return torch.where(good, largest, 1)[..., None, None]


class FixedNumber(torch.nn.Module):
    """A method for a fixed number of iterations with trainable parameters: calls `function` with its
    attributes named `keywords`."""

    function: ClassVar[Callable[..., Solution]]
    keywords: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        cls.__doc__ = cls.__doc__ and describe_options(
            cls.__doc__, inspect.signature(cls).parameters, MODULE, OF_MODULES
        )

    def __init__(self, iterations: int, gradient: str, **parameters: object):
        super().__init__()
        name = type(self).__name__
        checks.check_choice(name, "gradient", gradient, FIXED_GRADIENTS)
        self.iterations = checks.integer(name, "iterations", iterations, 0)
        self.gradient = gradient
        for key, value in parameters.items():
            setattr(self, key, torch.nn.Parameter(start(name, key, value)))

    def forward(self, A: Any, b: TensorLike, x0: TensorLike | None = None) -> Solution:
        """Call the function with the current parameters. Arguments and result are those of the function."""
        keywords = {key: getattr(self, key) for key in self.keywords}
        return type(self).function(A, b, x0, iterations=self.iterations, gradient=self.gradient, **keywords)

    def extra_repr(self) -> str:
        shapes = "".join(f"{key}={tuple(p.shape)}, " for key, p in self._parameters.items() if p is not None)
        return f"{shapes}iterations={self.iterations}, gradient={self.gradient!r}"


def start(name: str, key: str, value: object) -> Tensor:
    """A float or tensor as the initial value of a parameter of the module `name`, which its function takes as
    the option `key`."""
    if not isinstance(value, Tensor):
        value = torch.tensor(checks.number(name, key, value))
    checks.dtype(name, key, value)
    function = f"solvers.{name.lower()}(..., {key}={key})"
    checks.start(name, key, value, f"call {function}, which differentiates with respect to it")
    return value.detach().clone()


class State(NamedTuple):
    x: Tensor
    r: Tensor
    old: Tensor  # the previous x
    t: Tensor  # the state of the coefficients; 0 at the start


class Stationary(Method):
    """The method for the loop, with constant coefficients a and c (None: 0)."""

    def __init__(self, a: object, c: object = None):
        self.a, self.c = a, c

    def coefficients(self, t: Tensor) -> tuple[Any, Any, Tensor]:
        """a, c and the next t."""
        return self.a, self.c, t

    def start(self, A: Map, M: Map, x: Tensor, r: Tensor, running: Tensor) -> State:
        return State(x, r, x, r.new_zeros(()))

    def step(self, A: Map, M: Map, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        a, c, t = self.coefficients(state.t)
        x = add_momentum(state.x + multiply_columns(a, M(state.r)), c, state.x, state.old)
        return State(x, b - A(x), state.x, t), torch.zeros_like(running, dtype=torch.int64)


class _Identity:
    """The M of a call without one. It is scaled with A like any other (problem.py), since these methods are
    not invariant under scaling of M."""

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
    settings = read_fixed_options(name, iterations, options)
    read = Parameters(name, A, b, iterations)
    a, c = coefficients(read, settings)
    if iterations is not None:
        return run_iterations(name, A, b, x0, settings, iterations, a, c)
    refuse_parameters_that_learn(name, settings.gradient, **read.values, A=a)
    settings = replace(settings, M=_Identity() if settings.M is None else settings.M)
    return solve(name, method(a, c), A, b, x0, settings)


_BESIDE = {
    **dict.fromkeys(("rtol", "atol", "maxiter"), BESIDE_ITERATIONS),
    **dict.fromkeys(
        ("adjoint_rtol", "adjoint_maxiter", "adjoint_M"),
        '{key} is only used by gradient="implicit", which cannot be combined with iterations',
    ),
}


def read_fixed_options(
    name: str, iterations: int | None, arguments: Mapping[str, Any], beside: Mapping[str, str] = _BESIDE
) -> Options:
    """The options of a call. A keyword that `iterations` excludes raises an error."""
    keywords = {key: value for key, value in arguments.items() if value is not None}
    if iterations is None:
        return read_options(name, keywords)
    keywords.setdefault("gradient", "unrolled")
    options = read_options(name, keywords)
    for key, rule in beside.items():
        if key in keywords:
            rule = rule.format(key=key, value=keywords[key], iterations=iterations)
            raise ValueError(f"{name}: {rule}")
    checks.check_choice(name, "gradient", options.gradient, FIXED_GRADIENTS)
    return options


def run_iterations(
    name: str, A: Any, b: Tensor, x0: Tensor | None, options: Options, iterations: int, a: Tensor, c: Any
) -> Solution:
    """a (..., 1 or iterations, 1 or n), c (..., 1 or iterations) or None, with batch axes that broadcast to
    those of A and b."""
    if not (options.callback is None or callable(options.callback)):
        raise TypeError(f"{name}: callback must be callable, got {type(options.callback).__name__}")
    checks.flag(name, "throw", options.throw)
    operator = make_operator(name, A, b, options.transpose, options.parameters, blocks=True)
    layout = operator.layout if isinstance(operator, Blocks) else None
    batch = check_operands(name, A, b)
    check_x0(name, x0, b)
    x0 = torch.zeros_like(b) if x0 is None else x0
    checkpointed = options.gradient == "checkpointed"
    kind, m, _ = find_pcg_form(options.M) or ("", None, None)
    has_kernel = isinstance(A, CSR) and (A.values.is_cpu or A.values.is_cuda)
    if has_kernel and kind in ("none", "diagonal") and options.callback is None:
        scale = spread(a, A.shape[0]) if m is None else times(m.unsqueeze(-2), a)
        solution = run_kernel(name, A, b, x0, scale, iterations, checkpointed, c)
    else:
        columns, systems = Columns(b.dim() == 1, batch, layout), split_options(name, options, b, layout)
        M = combine_preconditioners(
            layout, [make_preconditioner(name, "M", own.M, part) for own, part in systems]
        )
        if layout is not None and a.shape[-1] != 1:
            a = layout.pad(a.mT).mT
        steps = Steps(name, operator, M, columns, a, c, columns.callback(options.callback))
        solution = steps.solution(columns.pack(b), columns.pack(x0), iterations, checkpointed)
    if options.throw and solution.status in (Status.NON_FINITE, Status.DIVERGED):
        raise SolverError(name, solution)
    return solution


def run_kernel(
    name: str,
    A: CSR,
    b: Tensor,
    x0: Tensor,
    scale: Tensor,
    iterations: int,
    checkpointed: bool,
    momenta: Any = None,
) -> Solution:
    """`richardson_sweeps` for scale (n,) or (..., rows, n) and momenta (..., rows). All batch axes (of these,
    A and b) are merged into the one axis of the kernel."""
    values, pattern = A.values, A.pattern
    single = values.dim() == 1 and b.dim() <= 2 and scale.dim() <= 2
    if single and (momenta is None or momenta.dim() == 1):
        x, norms = richardson_sweeps(values, scale, b, x0, pattern, iterations, checkpointed, momenta)
        return make_solution(name, A, b, x, norms, iterations)
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
    return make_solution(name, A, b, x, norms, iterations)


def make_solution(
    name: str,
    A: CSR,
    b: Tensor,
    x: Tensor,
    norms: Tensor | Callable[[], Tensor],
    iterations: int,
    backend: str = COMPILED,
) -> Solution:
    """`norms`: before each step. The norm of the last residual is computed on demand."""
    values, pattern = A.values, A.pattern

    def complete() -> Tensor:
        return _append_norm(norms() if callable(norms) else norms, b - product(values, x, pattern, False))

    axis = 0 if b.dim() == 1 else -2
    return Solution(x, iterations, complete, axis, (values, b, x), backend=backend, method=name)


def _append_norm(norms: Tensor, r: Tensor) -> Tensor:
    """The norms before each step, and the norm of the last residual."""
    return torch.cat((norms, residual_norm(r, -2, keepdim=True)), 0 if r.dim() == 1 else -2)


@dataclass
class Steps:
    """Steps by public operations on blocks of columns (..., n, k). M: one map, or one per step. `counts`: the
    number of steps of each segment, which a callback may have ended."""

    function: str
    A: Map
    M: Map | Sequence[Map] | None
    columns: Columns
    a: Tensor | None = None
    c: Tensor | None = None
    callback: Callable[[Iteration], object] | None = None
    counts: dict[int, int] = field(default_factory=dict)

    def solution(
        self, b: Tensor, x: Tensor, iterations: int, checkpointed: bool, r: Any = None, sources: tuple = ()
    ) -> Solution:
        """`r`: b - A x, if it is known. With `sources`, the tensors that b - A x depends on, the last norm is
        computed on demand."""
        x, norms, count, stopped = self._run(b, x, iterations, checkpointed, r)
        x = x if count else x.clone()  # x0 is the caller's
        shared, codes = across.find_processes(self.A), []

        def complete() -> Tensor:
            with across.include_processes(shared):
                history = _append_norm(norms, b - self.A(x))
            return history if shared is None else shared.shown(history)

        if sources:
            shown, axis = self.columns.unpack(x)
            lazy = lambda: complete().squeeze(-1) if self.columns.vector else complete()  # noqa: E731
            return Solution(shown, count, lazy, axis, (*sources, shown), method=self.function)
        history = complete()
        if not stopped:
            stopped = self._stops(count, x, history[..., -1:, :])
        if stopped:
            lost = ~torch.isfinite(history.detach()[..., -1, :])
            codes = [torch.where(lost, CODE[Status.NON_FINITE], CODE[Status.STOPPED_BY_CALLBACK])]
        x, history, *codes, axis = self.columns.unpack(x, history, *codes)
        ended = codes[0] if codes else None
        return Solution(x, count, history, axis, codes=ended, method=self.function)

    def _run(
        self, b: Tensor, x: Tensor, iterations: int, checkpointed: bool, r: Tensor | None
    ) -> tuple[Tensor, Tensor, int, bool]:
        """x, the norms before each step, the number of steps, and whether the callback stopped them. With
        `checkpointed` the graph holds O(sqrt(iterations)) iterates, and the backward pass repeats the steps
        in between."""
        # Checkpoints use hooks on saved tensors, which transformations of torch.func do not support.
        segments = checkpointed and torch.is_grad_enabled() and not transforms_active()
        length = max(1, round(iterations**0.5) if segments else iterations)
        before, norms, count, stopped = x, [], 0, False
        while count < iterations and not stopped:
            most = min(length, iterations - count)
            segment = partial(self._segment, count, most)
            if segments:
                x, before, part = checkpoint_run(self.function, segment, b, x, before, r)
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
        with across.include_processes(across.find_processes(self.A)):
            return stationary_steps(self.A, self.M, self.a, self.c, b, x, before, numbers, r, stops)

    def _stops(self, number: int, x: Tensor, norm: Tensor) -> bool:
        if self.callback is None or number == 0:
            return False
        x, norm = x.detach(), norm.detach().squeeze(-2)
        return self.callback(Iteration(number, x, norm, torch.zeros_like(norm, dtype=torch.bool))) is True
