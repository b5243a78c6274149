"""Parameters of the stationary methods (weights, steps, momenta, bounds, omega): one rule for their shapes,
bounds of the spectrum of M A if none are given, and modules that train them.

With the batch axes of A and b (broadcast), N steps and n rows, the full shape is (*batch, N, n), with size 1
along each axis on which a parameter does not depend. A shape with as many axes is read as full; short forms:

    ()          one value                     (N,)         one per step
    (n,)        one per row                   (N, n)       one per step and row, ones allowed
    batch       one per member                (N, *batch)  one per step and member

A shape that matches two of these is an error. To a tolerance there is no axis N (1 in the full shape).
Parameters that cannot depend on the row have 1 for n in the full shape, and no short form with n.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.plain import readable
from learnsolve.ops.block_batch import BlockBatch
from learnsolve.ops.core import across
from learnsolve.preconditioners.polynomials import RATIO, largest_eigenvalue
from learnsolve.solvers.core.arguments import check_operands
from learnsolve.solvers.core.operators import as_operator, as_preconditioner
from learnsolve.solvers.options import MODULE, OF_MODULES, Options, described
from learnsolve.solvers.solution import Solution

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
        of_A, of_b = getattr(self.A, "batch_shape", torch.Size()), self.b.shape[:-2]
        if not of_A or not of_b:
            return of_A or of_b
        return torch.broadcast_shapes(check_operands(self.name, self.A, self.b), of_b)

    def read(self, key: str, value: Any, rows: bool = True) -> Any:
        """A float, or a tensor (..., 1 or N, 1 or n)."""
        self.values[key] = value
        value, shared = self._read(key, value, rows), across.of(self.A)
        if shared is None or not isinstance(value, Tensor):
            return value
        return shared.parameter(self.name, key, value, rows)

    def _read(self, key: str, value: Any, rows: bool) -> Any:
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
                f"{self.name}: {key} of shape {shape} may be {' or '.join(readings)}; give it in full, as "
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
        return self.A._layout.padded(value.mT) if rows else value.mT

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
            ("one a row", rows and shape == (self.n,), lambda: t.unsqueeze(0)),
            ("one a step", shape == (N,), lambda: t.unsqueeze(-1)),
            ("one a member of the batch", batch and shape == batch, lambda: t[..., None, None]),
            ("one a step and member", batch and shape == (N, *batch), lambda: t.movedim(0, -1)[..., None]),
            ("one a step and row", batch and len(shape) == 2 and _fits(shape, full[-2:]), lambda: t),
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
        remedy = "" if N else "; one a step needs iterations="
        return f"{text} or in full ({full}) with ones allowed{where}{remedy}"


def _fits(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    return all(s in (1, f) for s, f in zip(shape, full, strict=True))


def bounds(read: Parameters, lmin: Any, lmax: Any, options: Options) -> tuple[Any, Any]:
    """`lmin` and `lmax` as `read.read` returns them. Default: lmax is 1.1 times an estimate by 10 steps of
    Arnoldi's method, constant to every derivative; lmin is lmax / 30."""
    named = (("lmin", lmin), ("lmax", lmax))
    low, high = (None if value is None else read.read(key, value, rows=False) for key, value in named)
    low, high = _checked(read.name, low, high)
    high = _estimate(read, options) if high is None else high
    return high / RATIO if low is None else low, high


def given_bounds(name: str, lmin: Any, lmax: Any) -> tuple[Any, Any]:
    """The same for two given bounds, outside a call."""
    named = (("lmin", lmin), ("lmax", lmax))
    return _checked(name, *(t if isinstance(t, Tensor) else checks.number(name, key, t) for key, t in named))


def _checked(name: str, low: Any, high: Any) -> tuple[Any, Any]:
    """0 < lmin <= lmax < inf for floats. `readable` tensors: 0 < t < inf; learned bounds may cross during
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
                f"{name}: {key} must be positive and finite, got {wrong}; it bounds the spectrum of M A, "
                "which must be positive"
            )
    if isinstance(low, float) and isinstance(high, float) and low > high:
        raise ValueError(f"{name}: lmin must not be larger than lmax, got {low} and {high}; swap them")
    return low, high


def _estimate(read: Parameters, options: Options) -> Tensor:
    """The estimate in the full shape of Parameters, with one value per member of the batch; 1 if no estimate
    is positive, so that the solve reports what is wrong."""
    name, A, b, M = read.name, read.A, read.b, options.M
    for wrong, error, case in (
        (torch.compiler.is_dynamo_compiling(), NotImplementedError, "under torch.compile"),
        (across.of(A) is not None, NotImplementedError, "for rows in several processes"),
        (isinstance(M, (list, tuple)), ValueError, "for one M a block"),
    ):
        if wrong:
            raise error(
                f"{name}: the largest eigenvalue of M A is not estimated {case}; pass lmax= or, for "
                "richardson, weight="
            )
    A = A.matrix if isinstance(A, BlockBatch) else A
    apply = as_operator(name, A, b, options.transpose, tuple(options.parameters))
    inner = as_preconditioner(name, "M", M, b)
    whole = not hasattr(A, "batch_shape") or A.batch_shape or getattr(M, "batch_shape", ())
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
        cls.__doc__ = cls.__doc__ and described(
            cls.__doc__, inspect.signature(cls).parameters, MODULE, OF_MODULES
        )

    def __init__(self, iterations: int, gradient: str, **parameters: Any):
        super().__init__()
        name = type(self).__name__
        checks.one_of(name, "gradient", gradient, FIXED_GRADIENTS)
        self.iterations = checks.integer(name, "iterations", iterations, 0)
        self.gradient = gradient
        for key, value in parameters.items():
            setattr(self, key, torch.nn.Parameter(start(name, key, value)))

    def forward(self, A: Any, b: TensorLike, x0: TensorLike | None = None) -> Solution:
        """Call the function with the current parameters; arguments and result as for the function."""
        keywords = {key: getattr(self, key) for key in self.keywords}
        return type(self).function(A, b, x0, iterations=self.iterations, gradient=self.gradient, **keywords)

    def extra_repr(self) -> str:
        shapes = "".join(f"{key}={tuple(p.shape)}, " for key, p in self._parameters.items() if p is not None)
        return f"{shapes}iterations={self.iterations}, gradient={self.gradient!r}"


def start(name: str, key: str, value: Any) -> Tensor:
    """A float or tensor as the initial value of a parameter of the module `name`, which its function takes as
    the option `key`."""
    if not isinstance(value, Tensor):
        value = torch.tensor(checks.number(name, key, value))
    checks.dtype(name, key, value)
    function = f"solvers.{name.lower()}(..., {key}={key})"
    checks.start(name, key, value, f"call {function}, which differentiates with respect to it")
    return value.detach().clone()
