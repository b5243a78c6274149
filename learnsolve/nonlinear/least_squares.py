"""Nonlinear least squares, with derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.nonlinear._implicit import Ended
from learnsolve.nonlinear._levenberg import Normal, levenberg_marquardt
from learnsolve.nonlinear._linear import Systems
from learnsolve.nonlinear._residual import Assembled, Residual
from learnsolve.nonlinear._solve import DENSE, Root, dense, outside, settings_of, solve
from learnsolve.ops.core.autograd import pullback
from learnsolve.solvers.solution import Iteration, Solution


@dataclass(frozen=True, eq=False)
class Minimum(Root):
    """J(u)^T r(u) = 0, whose Jacobian is the Hessian H of 1/2 ||r||^2: solved by cg with M from J^T J."""

    hessian: Any = None  # Systems
    square = False

    def F(self, x: Tensor, *p: Tensor) -> Tensor:
        return self.hessian.residual(x, *p)

    def solve(self, x: Tensor, p: tuple[Tensor, ...], b: Tensor, transpose: bool) -> Ended:
        self.hessian.at(x, p)
        if self.hessian.how == "cg" and self.f.assembled(x, p):
            self.systems.at(x, p)
            self.hessian.kept = self.systems.inverse()
        return self.reported(self.hessian.solve(b, *self.adjoint), transpose)

    def mapped(self, dims: tuple[int | None, ...]) -> Minimum:
        systems = self.systems.mapped(dims)
        return replace(self, f=systems.residual, systems=systems, hessian=self.hessian.mapped(dims))


def _minimum(r: Residual, systems: Systems, *rest: Any, few: bool) -> Minimum:
    def gradient(u: Tensor, *p: Tensor) -> Tensor:
        value, pull = pullback(lambda z: r(z, *p), u)
        return pull(value)[0]

    assembled = Assembled(r.name, dense(gradient)) if few else None
    hessian = Systems(Residual(r.name, gradient, assembled), "direct" if few else "cg", None)
    return Minimum(r, systems, *rest, hessian=hessian)


@outside
def least_squares(
    r: Callable[..., Tensor],
    u0: Tensor,
    *args: Any,
    method: str = "lm",
    jacobian: Any = "auto",
    linear: Any = "auto",
    M: Any = "auto",
    rtol: float | None = None,
    atol: float = 0.0,
    maxiter: int = 100,
    callback: Callable[[Iteration], Any] | None = None,
    gradient: str = "implicit",
    throw: bool = False,
    adjoint_rtol: float | None = None,
    adjoint_maxiter: int | None = None,
) -> Solution:
    r"""u that minimizes :math:`\frac12 \|r(u, \mathtt{args})\|^2`, by Levenberg-Marquardt or Gauss-Newton.

    Each step solves the normal equations :math:`(J^T J + \mu I) d = -J^T r`.

    Parameters
    ----------
    r : callable ``(u, *args)`` -> Tensor of any shape, with u's dtype and device
    u0 : Tensor of any shape, float32 or float64
    args : as for `root`
    method : "lm", or "gauss-newton", which starts with mu = 0 and increases it if a step does not decrease r
    jacobian : as for `root`, with rows for the entries of r
    linear, M : as for `root`, for the normal equations: "auto" factors them, or runs `cg` if J is not
        assembled; "lsmr", without M, uses J and does not square its condition number
    rtol, atol : the tolerance, :math:`\|J^T r\| \le \max(\mathtt{rtol} \|J_0^T r_0\|, \mathtt{atol})`;
        default rtol: the square root of the rounding unit
    maxiter : int >= 0, steps, including rejected ones
    callback, throw, adjoint_rtol, adjoint_maxiter : as for `root`
    gradient : "implicit"

    Returns
    -------
    Solution, with :math:`\|r(u_i)\|` as `residual_norms`, and `normal_residual_norm` :math:`\|J^T r\|` at
    the end

    Raises
    ------
    ValueError, TypeError, SolverError
        as for `root`.

    Notes
    -----
    Gradient: as for `root`, for :math:`f(u) = J^T r`, whose Jacobian is the full Hessian (dense up to 200
    unknowns, otherwise products, with `cg`). Any order. Normal equations square the condition number of J.

    References
    ----------
    D. W. Marquardt, "An algorithm for least-squares estimation of nonlinear parameters", J. SIAM 11 (1963)
    431-441, doi:10.1137/0111030

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> t = torch.linspace(0, 1, 5, dtype=torch.float64)
    >>> y = 2 * torch.exp(-3 * t)
    >>> r = lambda u, y: u[0] * torch.exp(-u[1] * t) - y
    >>> solution = ls.nonlinear.least_squares(r, torch.ones(2, dtype=torch.float64), y)
    >>> solution.x
    tensor([2.0000, 3.0000], dtype=torch.float64)
    """
    name = "least_squares"
    checks.one_of(name, "method", method, ("lm", "gauss-newton"))
    if gradient != "implicit":
        checks.one_of(name, "gradient", gradient, ("implicit",))
    settings = settings_of(name, "u0", u0, rtol, atol, maxiter, callback, normal=True)
    settings.gauss_newton = method == "gauss-newton"
    return solve(
        name,
        r,
        u0,
        args,
        levenberg_marquardt,
        settings,
        jacobian=jacobian,
        linear=linear,
        M=M,
        gradient=gradient,
        throw=throw,
        adjoint_rtol=adjoint_rtol,
        adjoint_maxiter=adjoint_maxiter,
        words="r u",
        kind=functools.partial(_minimum, few=u0.numel() <= DENSE),
        systems=Normal,
    )
