"""Flexible conjugate gradients.

Source: Notay, "Flexible conjugate gradients", SIAM J. Sci. Comput. 22 (2000) 1444-1460, with one direction
kept.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from learnsolve._conversion import TensorLike
from learnsolve.solvers._options import Options
from learnsolve.solvers._solve import solve
from learnsolve.solvers.base import Iteration, Solution
from learnsolve.solvers.cg import ConjugateGradients


def fcg(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    rtol: float | None = 1e-5,
    atol: float | None = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Iteration], Any] | None = None,
    gradient: str = "implicit",
    throw: bool = False,
    adjoint_rtol: float | None = None,
    adjoint_maxiter: int | None = None,
    parameters: tuple[Tensor, ...] = (),
    null_space: Any = None,
) -> Solution:
    """Flexible conjugate gradients: `cg` for an M that is nonlinear, not quite symmetric, or learned.

    Where M differs from step to step, plain conjugate gradients stall; this form keeps each direction
    conjugate to the last at the cost of one more inner product.

    Parameters
    ----------
    A, b, x0, rtol, atol, maxiter : as for `cg`
    M : as for `cg`, but neither linear nor symmetric of necessity
    callback, gradient, throw, adjoint_rtol, adjoint_maxiter, parameters, null_space : as for `cg`

    Returns
    -------
    Solution

    Raises
    ------
    ValueError, TypeError, SolverError
        as `cg`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((10, 10))
    >>> b = torch.ones(100, dtype=torch.float64)
    >>> ls.solvers.fcg(A, b, M=lambda r: r + 0.1 * torch.tanh(r)).status.name
    'CONVERGED'
    """
    options = Options(
        rtol=rtol,
        atol=atol,
        maxiter=maxiter,
        M=M,
        callback=callback,
        gradient=gradient,
        throw=throw,
        adjoint_rtol=adjoint_rtol,
        adjoint_maxiter=adjoint_maxiter,
        parameters=parameters,
        null_space=null_space,
    )
    return solve("fcg", ConjugateGradients(flexible=True), A, b, x0, options, symmetric=True)
