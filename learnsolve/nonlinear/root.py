"""Roots of nonlinear systems, with derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.nonlinear.anderson import anderson
from learnsolve.nonlinear.levenberg import levenberg_marquardt
from learnsolve.nonlinear.newton import newton
from learnsolve.nonlinear.solve import settings_of, solve
from learnsolve.solvers.solution import Iteration, Solution

METHODS = ("newton", "newton-krylov", "chord", "lm", "anderson")


def root(
    f: Callable[..., Tensor],
    u0: Tensor,
    *args: Any,
    method: str = "newton",
    jacobian: Any = "auto",
    linear: Any = "auto",
    M: Any = "auto",
    rtol: float | None = None,
    atol: float = 0.0,
    maxiter: int = 50,
    line_search: Any = "backtracking",
    pseudo_transient: float | None = None,
    forcing: float | None = None,
    callback: Callable[[Iteration], Any] | None = None,
    gradient: str = "implicit",
    throw: bool = False,
    adjoint_rtol: float | None = None,
    adjoint_maxiter: int | None = None,
) -> Solution:
    checks.one_of("root", "method", method, METHODS)
    krylov = method == "newton-krylov"
    if method not in ("newton", "newton-krylov", "chord"):
        for key, value, default in (
            ("line_search", line_search, "backtracking"),
            ("pseudo_transient", pseudo_transient, None),
        ):
            if value != default:
                raise ValueError(
                    f'root: {key} belongs to Newton\'s method, method="{method}" has none; leave it out'
                )
    if method == "lm" and gradient == "unrolled":
        raise NotImplementedError(
            'root: gradient="unrolled" takes method="newton", "chord" or "anderson", not "lm"'
        )
    if method == "chord" and pseudo_transient is not None:
        raise ValueError(
            'root: pseudo_transient changes the matrix in every step; use method="newton", not "chord"'
        )
    if pseudo_transient is not None:
        checks.real("root", "pseudo_transient", pseudo_transient, "positive and finite")
    if forcing is not None:
        checks.real("root", "forcing", forcing, "positive and finite")
    settings = settings_of(
        "root", "u0", u0, rtol, atol, maxiter, callback, line_search=_line_search(line_search),
        pseudo_transient=pseudo_transient, forcing=forcing, chord=method == "chord",
    )  # fmt: skip
    return solve(
        "root", f, u0, args, _LOOPS.get(method, newton), settings, jacobian=None if krylov else jacobian, linear=linear,
        M=M, gradient=gradient, throw=throw, adjoint_rtol=adjoint_rtol, adjoint_maxiter=adjoint_maxiter,
    )  # fmt: skip


_LOOPS = {"lm": levenberg_marquardt, "anderson": anderson}


def _line_search(rule: Any) -> Any:
    if rule is None or rule == "backtracking" or isinstance(rule, Tensor) or callable(rule):
        return rule
    if isinstance(rule, str):
        checks.one_of("root", "line_search", rule, ("backtracking", None))
    return checks.number("root", "line_search", rule)
