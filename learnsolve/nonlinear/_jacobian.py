"""`jacobian`: sparse Jacobians of functions, by compressed derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import scipy.sparse
import torch
from torch import Tensor

from learnsolve.matrix import checks, convert
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.nonlinear._compress import Plan, compressed_values, plan

MODES = ("auto", "forward", "reverse")


class Jacobian:
    """What `jacobian` returns: ``J(u, *args)`` is a CSR."""

    def __init__(self, f: Callable[..., Tensor], pattern: Any, mode: str):
        self.f, self.mode = f, mode
        self.pattern: SparsityPattern | None = None if pattern is None else as_pattern("jacobian", pattern)

    def __call__(self, u: Tensor, *args: Any) -> CSR:
        check_argument("jacobian", u)
        pattern = self.pattern
        assert pattern is not None
        mode, p = self._plan(pattern)

        def flat(x: Tensor) -> Tensor:
            return flat_output("jacobian", self.f(x.reshape(u.shape), *args), u)

        x = u.reshape(-1)
        if mode == "forward":
            values = compressed_values(lambda s: torch.func.jvp(flat, (x,), (s,))[1], p, u)
        else:
            _, pull = torch.func.vjp(flat, x)[:2]
            values = compressed_values(lambda s: pull(s)[0], p, u)
        return CSR(values, pattern)

    def _plan(self, pattern: SparsityPattern) -> tuple[str, Plan]:
        if self.mode != "auto":
            return self.mode, plan(pattern, self.mode)
        forward, reverse = plan(pattern, "forward"), plan(pattern, "reverse")
        return ("forward", forward) if forward.count <= reverse.count else ("reverse", reverse)


def jacobian(
    f: Callable[..., Tensor], pattern: Any = None, mode: Literal["auto", "forward", "reverse"] = "auto"
) -> Jacobian:
    checks.one_of("jacobian", "mode", mode, MODES)
    return Jacobian(f, pattern, mode)


def as_pattern(function: str, pattern: Any) -> SparsityPattern:
    if isinstance(pattern, CSR):
        return pattern.pattern
    if isinstance(pattern, SparsityPattern):
        return pattern
    if scipy.sparse.issparse(pattern):
        return convert.scipy_parts(pattern)[1]
    raise TypeError(
        f"{function}: pattern must be a SparsityPattern, a CSR or a SciPy matrix, got {type(pattern).__name__}"
    )


def check_argument(function: str, u: Any) -> None:
    checks.tensor(function, "u", u)
    checks.dtype(function, "u", u)


def flat_output(function: str, out: Any, u: Tensor) -> Tensor:
    if not isinstance(out, Tensor):
        raise TypeError(f"{function}: f must return a torch.Tensor, got {type(out).__name__}")
    if out.dtype != u.dtype:
        raise TypeError(
            f"{function}: f must return the dtype of u, {u.dtype}, got {out.dtype}; convert one with .to()"
        )
    return out.reshape(-1)
