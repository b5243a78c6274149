"""Roots of nonlinear systems, with derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.nonlinear._anderson import anderson
from learnsolve.nonlinear._levenberg import levenberg_marquardt
from learnsolve.nonlinear._newton import newton
from learnsolve.nonlinear._solve import outside, settings_of, solve
from learnsolve.solvers.solution import Iteration, Solution

METHODS = ("newton", "newton-krylov", "chord", "lm", "anderson")


@outside
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
    r"""Solve :math:`f(u, \mathtt{args}) = 0` for u by Newton's method, differentiably in args.

    Parameters
    ----------
    f : callable ``(u, *args)`` -> Tensor of u's shape, dtype and device; also a torch.nn.Module or its method
    u0 : Tensor of any shape, float32 or float64: the initial guess
    args : the arguments of f, in any nesting: tensors, CSR, modules (their parameters), constants
    method : "newton"; "newton-krylov", with products only; "chord", which keeps the Jacobian while a step
        halves the residual; "lm", see `least_squares`; "anderson", for u <- u - f(u), see `fixed_point`
    jacobian : "auto", on the pattern of f's program (`jacobian_pattern`); its pattern, a SparsityPattern,
        CSR or SciPy matrix; a callable ``(u, *args)`` -> CSR, such as `jacobian(f)`, which keeps its pattern
        for the calls of a loop; None for products only
    linear : "auto", "direct", "cg", "minres", "bicgstab", "gmres", or a callable (J, b) -> J^-1 b, also
        called with J.T
    M : "auto"; None; or a callable J -> preconditioner, such as `preconditioners.AMG`, reused while good
    rtol, atol : the tolerance, :math:`\|f(u)\| \le \max(\mathtt{rtol} \|f(u_0)\|, \mathtt{atol})`; default
        rtol: the square root of the rounding unit. With rtol > 0 rounding errors of f are small enough
    maxiter : int >= 0, steps
    line_search : "backtracking", Armijo's rule on 1/2 ||f||^2; None, full steps; float or Tensor, a
        damping; or a callable (step, u, f(u), d) -> damping
    pseudo_transient : float > 0, the first time step of pseudo-transient continuation, in place of a line
        search, for f with stable du/dt = -f(u)
    forcing : float, relative tolerance of inexact linear solves; default: Eisenstat and Walker's
    callback, throw, adjoint_rtol, adjoint_maxiter : as for `solvers.cg`; one iterate per step
    gradient : "implicit", one adjoint solve; "unrolled", through the steps, also for u0 and a damping

    Returns
    -------
    Solution; with gradient="implicit" u0 gets no gradient, since u does not depend on it.

    Raises
    ------
    ValueError, TypeError, SolverError
        if arguments are invalid; if f is not a function of u and args only, changes them or is not finite
        at u0.

    Notes
    -----
    Gradient: with :math:`J^T \lambda = \bar u` it is :math:`-\lambda^T \partial f / \partial \mathtt{args}`;
    any order, forward mode, vmap (each system stops independently). docs/nonlinear.md has the rules of
    "auto", and costs.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> a = torch.tensor([4.0, 9.0], dtype=torch.float64, requires_grad=True)
    >>> u = ls.nonlinear.root(lambda u, a: u * u - a, torch.ones(2, dtype=torch.float64), a).x
    >>> u.detach(), torch.autograd.grad(u.sum(), a)[0]
    (tensor([2.0000, 3.0000], dtype=torch.float64), tensor([0.2500, 0.1667], dtype=torch.float64))
    """
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
        "root",
        "u0",
        u0,
        rtol,
        atol,
        maxiter,
        callback,
        line_search=_line_search(line_search, u0),
        pseudo_transient=pseudo_transient,
        forcing=forcing,
        chord=method == "chord",
    )
    return solve(
        "root",
        f,
        u0,
        args,
        _LOOPS.get(method, newton),
        settings,
        jacobian=None if krylov else jacobian,
        linear=linear,
        M=M,
        gradient=gradient,
        throw=throw,
        adjoint_rtol=adjoint_rtol,
        adjoint_maxiter=adjoint_maxiter,
    )


_LOOPS = {"lm": levenberg_marquardt, "anderson": anderson}


def _line_search(rule: Any, u0: Tensor) -> Any:
    if isinstance(rule, Tensor) and rule.shape not in (torch.Size(), torch.Size([1]), u0.shape):
        raise ValueError(
            f"root: line_search, a Tensor, must have one element or u0's shape {tuple(u0.shape)}, got "
            f"{tuple(rule.shape)}"
        )
    if rule is None or rule == "backtracking" or isinstance(rule, Tensor) or callable(rule):
        return rule
    if isinstance(rule, str):
        checks.one_of("root", "line_search", rule, ("backtracking", None))
    return checks.number("root", "line_search", rule)
