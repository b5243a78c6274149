"""Fixed points, with derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.nonlinear._anderson import anderson
from learnsolve.nonlinear._residual import if_alike
from learnsolve.nonlinear._solve import outside, settings_of, solve
from learnsolve.solvers.solution import Iteration, Solution


@outside
def fixed_point(
    g: Callable[..., Tensor],
    x0: Tensor,
    *args: Any,
    memory: int = 5,
    damping: float | Tensor = 1.0,
    jacobian: Any = "auto",
    linear: Any = "auto",
    M: Any = "auto",
    rtol: float | None = None,
    atol: float = 0.0,
    maxiter: int = 1000,
    callback: Callable[[Iteration], Any] | None = None,
    gradient: str = "implicit",
    throw: bool = False,
    adjoint_rtol: float | None = None,
    adjoint_maxiter: int | None = None,
) -> Solution:
    r"""Solve :math:`x = g(x, \mathtt{args})` by Anderson acceleration.

    Parameters
    ----------
    g : callable ``(x, *args)`` -> Tensor of x's shape, dtype and device
    x0 : Tensor of any shape, float32 or float64
    args : as for `root`
    memory : int >= 0, the number of differences that a step combines; 0: plain iteration x <- g(x)
    damping : float, or Tensor, which gradient="unrolled" differentiates: the factor of g(x) - x in a step
    jacobian, linear, M : for the derivative of :math:`x - g(x)`, as for `root`
    rtol, atol : the tolerance for :math:`\|g(x) - x\|`, as for `root`
    maxiter, callback, gradient, throw, adjoint_rtol, adjoint_maxiter : as for `root`

    Returns
    -------
    Solution, with :math:`\|g(x_i) - x_i\|` as `residual_norms`

    Raises
    ------
    ValueError, TypeError, SolverError
        as for `root`.

    Notes
    -----
    Gradient: as for `root`, for :math:`f(x) = x - g(x)`. Cost per iteration: one call of g; 2 `memory`
    vectors.

    References
    ----------
    H. F. Walker, P. Ni, "Anderson acceleration for fixed-point iterations", SIAM J. Numer. Anal. 49 (2011)
    1715-1735, doi:10.1137/10078356X

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> a = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    >>> x0 = torch.zeros(1, dtype=torch.float64)
    >>> solution = ls.nonlinear.fixed_point(lambda x, a: a * torch.cos(x), x0, a)
    >>> solution.x.detach()
    tensor([0.4502], dtype=torch.float64)
    >>> solution.x.sum().backward()
    >>> a.grad
    tensor(0.7395, dtype=torch.float64)
    """
    settings = settings_of("fixed_point", "x0", x0, rtol, atol, maxiter, callback)
    settings.memory = checks.integer("fixed_point", "memory", memory, 0)
    settings.damping = (
        damping if isinstance(damping, Tensor) else checks.number("fixed_point", "damping", damping)
    )

    def residual(x: Tensor, *args: Any) -> Any:
        return if_alike(g(x, *args), x, lambda y: x - y)

    return solve(
        "fixed_point",
        g,
        x0,
        args,
        anderson,
        settings,
        jacobian=jacobian,
        linear=linear,
        M=M,
        gradient=gradient,
        throw=throw,
        adjoint_rtol=adjoint_rtol,
        adjoint_maxiter=adjoint_maxiter,
        residual=residual,
        words="g x",
    )
