"""Roots of nonlinear systems, with derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.nonlinear.linear import LINEAR
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
    settings = settings_of(
        "root", u0, rtol, atol, maxiter, callback, line_search=line_search, pseudo_transient=pseudo_transient,
        forcing=forcing, chord=method == "chord",
    )
    if not callable(linear):
        checks.one_of("root", "linear", linear, LINEAR)
    return solve(
        "root", f, u0, args, newton, settings, jacobian=jacobian, linear=linear, M=M, gradient=gradient, throw=throw,
        adjoint_rtol=adjoint_rtol, adjoint_maxiter=adjoint_maxiter,
    )
