"""`jacobian`: sparse Jacobians of functions, by compressed derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import scipy.sparse
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from learnsolve.matrix import checks, convert
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.nonlinear._compress import Plan, compressed_values, plan
from learnsolve.nonlinear._pattern import check_argument, find_pattern, flat_output, outside, random_like
from learnsolve.nonlinear._trace import Watch

_MODES = ("auto", "forward", "reverse")


class Analysis(NamedTuple):
    """What a first call finds out."""

    pattern: SparsityPattern
    plan: Plan
    mode: str
    """"forward" or "reverse"."""
    by_vmap: bool
    """Else the derivatives are computed one by one: f holds an operation that cannot be mapped."""
    arguments: tuple
    """Integer tensors among args, held so that their addresses are not reused."""


class Jacobian:
    """What `jacobian` returns: ``J(u, *args)`` is a CSR."""

    function = "jacobian"

    def __init__(self, f: Callable[..., Tensor], pattern: Any = None, mode: str = "auto"):
        checks.one_of(self.function, "mode", mode, self.modes)
        if not callable(f):
            raise TypeError(f"{self.function}: f must be a function of u and args, got {type(f).__name__}")
        self.f, self.mode = f, mode
        self.pattern = None if pattern is None else _as_pattern(self.function, pattern)
        self._analyses: dict[Any, Analysis] = {}

    modes: tuple[str, ...] = _MODES

    def __call__(self, u: Tensor, *args: Any) -> CSR:
        check_argument(self.function, u)
        return self._matrix(self.analysis(u, *args), u, args)

    def analysis(self, u: Tensor, *args: Any) -> Analysis:
        """Pattern and coloring for these arguments, found at the first call with their shapes."""
        check_argument(self.function, u)
        key, held = _key(u, args)
        analysis = self._analyses.get(key)
        if analysis is None:
            with outside(u, args) as (plain, plain_args):
                analysis = self._analyze(plain, plain_args)._replace(arguments=held)
            if len(self._analyses) >= 8:
                self._analyses.pop(next(iter(self._analyses)))
            self._analyses[key] = analysis
        return analysis

    def _analyze(self, u: Tensor, args: tuple) -> Analysis:
        pattern, mode = self._pattern(u, args)
        self._check_shape(pattern, u, args)
        first = None
        for compression, direction in self._plans(pattern, mode):
            for by_vmap in (True, False):
                analysis = Analysis(pattern, compression, direction, by_vmap, ())
                try:
                    self._verify(analysis, u, args)
                    return analysis
                except (RuntimeError, NotImplementedError) as error:
                    first = first or error
        assert first is not None
        raise first

    def _pattern(self, u: Tensor, args: tuple) -> tuple[SparsityPattern, str]:
        """And the mode to compute it in."""
        mode = self.mode if self.mode in _MODES else "auto"
        if self.pattern is not None:
            return self.pattern, mode
        return find_pattern(self.function, self._flat, u, args, mode)

    def _plans(self, pattern: SparsityPattern, mode: str) -> list[tuple[Plan, str]]:
        """In the order in which they are tried: that with fewer colors first."""
        if mode != "auto":
            return [(plan(pattern, mode), mode)]
        # No coloring has fewer colors than the longest row, or column, has entries.
        fewest = {"forward": _longest(pattern), "reverse": _longest(pattern.T)}
        one, other = sorted(fewest, key=fewest.__getitem__)
        plans = [(plan(pattern, one), one)]
        if fewest[other] < plans[0][0].count:
            plans.append((plan(pattern, other), other))
            plans.sort(key=lambda p: p[0].count)
        return plans

    def _flat(self, x: Tensor, shape: torch.Size, args: tuple) -> Tensor:
        """f as a function of vectors."""
        return flat_output(self.function, self.f(x.reshape(shape), *args), x)

    def _derivative(self, analysis: Analysis, u: Tensor, args: tuple) -> Callable[[Tensor], Tensor]:
        x = u.reshape(-1)

        def flat(x: Tensor) -> Tensor:
            return self._flat(x, u.shape, args)

        if analysis.mode == "forward":
            return lambda s: torch.func.jvp(flat, (x,), (s,))[1]
        pull = torch.func.vjp(flat, x)[1]
        return lambda s: pull(s)[0]

    def _matrix(self, analysis: Analysis, u: Tensor, args: tuple) -> CSR:
        derivative = self._derivative(analysis, u, args)
        return CSR(compressed_values(derivative, analysis.plan, u, analysis.by_vmap), analysis.pattern)

    def _check_shape(self, pattern: SparsityPattern, u: Tensor, args: tuple) -> None:
        with torch.no_grad(), Watch(self.function, u):
            out = self._flat(u.reshape(-1), u.shape, args)
        if pattern.shape != (out.numel(), u.numel()):
            raise ValueError(
                f"{self.function}: pattern must have shape {(out.numel(), u.numel())}, a row for each element "
                f"of f(u) and a column for each element of u, got {pattern.shape}"
            )

    def _verify(self, analysis: Analysis, u: Tensor, args: tuple) -> None:
        """One product of J with a random vector, against the derivative of f along it."""
        with torch.no_grad():
            A = self._matrix(analysis, u, args)
            derivative = self._derivative(analysis, u, args)
            A = A if analysis.mode == "forward" else A.T
            v = random_like(u.new_empty(A.shape[1]))
            true = derivative(v)
            tolerance = torch.finfo(u.dtype).eps ** 0.5 * (abs(A) @ v.abs() + true.abs())
            wrong = ((A @ v - true).abs() > tolerance).nonzero()
        if len(wrong):
            self._missed(analysis, u, args, int(wrong[0]))

    def _missed(self, analysis: Analysis, u: Tensor, args: tuple, line: int) -> None:
        pattern, forward = analysis.pattern, analysis.mode == "forward"
        lines = pattern if forward else pattern.T
        other = self._derivative(analysis._replace(mode="reverse" if forward else "forward"), u, args)
        unit = u.new_zeros(lines.shape[0])
        unit[line] = 1
        whole = other(unit).detach()
        whole[lines.col_indices[lines.crow_indices[line] : lines.crow_indices[line + 1]].long()] = 0
        at = int(whole.abs().argmax())
        i, j = (line, at) if forward else (at, line)
        remedy = (
            "leave pattern= out, so that f's program decides" if self.pattern is not None else "give pattern="
        )
        raise ValueError(
            f"{self.function}: the pattern has no entry ({i}, {j}), but f depends on u there: the derivative "
            f"is {float(whole[at]):.3g}; add it, or {remedy}"
        )


def jacobian(
    f: Callable[..., Tensor], pattern: Any = None, mode: Literal["auto", "forward", "reverse"] = "auto"
) -> Jacobian:
    return Jacobian(f, pattern, mode)


def _longest(pattern: SparsityPattern) -> int:
    return int(pattern.crow_indices.diff().max()) if pattern.shape[0] else 0


def _key(u: Tensor, args: tuple) -> tuple[Any, tuple]:
    """Arguments with equal keys have one pattern: floating-point numbers may differ."""
    key: list[Any] = [tuple(u.shape), u.dtype, u.device]
    held = []
    for leaf in pytree.tree_leaves(args):
        if isinstance(leaf, Tensor):
            key.append(tuple(leaf.shape))
            if not leaf.is_floating_point():
                key += [id(leaf), leaf._version]
                held.append(leaf)
        elif isinstance(leaf, (bool, int, str, type(None))):
            key.append(leaf)
    return tuple(key), tuple(held)


def _as_pattern(function: str, pattern: Any) -> SparsityPattern:
    if isinstance(pattern, CSR):
        return pattern.pattern
    if isinstance(pattern, SparsityPattern):
        return pattern
    if scipy.sparse.issparse(pattern):
        return convert.scipy_parts(pattern)[1]
    raise TypeError(
        f"{function}: pattern must be a SparsityPattern, a CSR or a SciPy matrix, got "
        f"{type(pattern).__name__}"
    )
