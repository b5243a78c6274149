"""Flexible GMRES.

Source: Saad, "A flexible inner-outer preconditioned GMRES algorithm", SIAM J. Sci. Comput. 14 (1993) 461-469.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from learnsolve import _check
from learnsolve._conversion import TensorLike
from learnsolve.solvers._options import Options
from learnsolve.solvers._solve import solve
from learnsolve.solvers.base import Iteration, Solution
from learnsolve.solvers.gmres import GeneralisedMinimalResidual


def fgmres(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    rtol: float | None = 1e-5,
    atol: float | None = 0.0,
    maxiter: int | None = None,
    restart: int | None = 20,
    M: Any = None,
    callback: Callable[[Iteration], Any] | None = None,
    gradient: str = "implicit",
    throw: bool = False,
    adjoint_rtol: float | None = None,
    adjoint_maxiter: int | None = None,
    adjoint_M: Any = None,
    transpose: Callable[[Tensor], Tensor] | None = None,
    parameters: tuple[Tensor, ...] = (),
    null_space: Any = None,
) -> Solution:
    r"""Flexible GMRES: for an M that is nonlinear, learned, or another iteration.

    The iterate is made of what M returned, so M may differ from step to step. The recurrences are those of
    `gmres`, which keeps the same vectors here; what differs is the adjoint solve, for which a nonlinear M has
    no transpose.

    Parameters
    ----------
    M : an approximation of A^-1: any callable r -> M r, given vectors of length one; CSR or LinearOperator
    adjoint_M : of the adjoint solve with A^T, gradient="implicit". If not given it is M.T where M has one,
        else the adjoint solve goes without.
    A, b, x0, rtol, atol, maxiter, restart, callback, gradient, throw, adjoint_rtol, adjoint_maxiter,
        transpose, parameters, null_space : as for `gmres`

    Returns
    -------
    Solution

    Raises
    ------
    ValueError, TypeError, SolverError
        as `cg`.

    Notes
    -----
    Gradients and cost are those of `gmres`.

    References
    ----------
    Y. Saad, "A flexible inner-outer preconditioned GMRES algorithm", SIAM J. Sci. Comput. 14 (1993) 461-469,
    doi:10.1137/0914028

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((10, 10))
    >>> b = torch.ones(100, dtype=torch.float64)
    >>> inner = lambda r: ls.solvers.cg(A, r, rtol=0.1).x  # not linear in r
    >>> ls.solvers.fgmres(A, b, M=inner).status.name
    'CONVERGED'
    """
    restart = 20 if restart is None else _check.integer("fgmres", "restart", restart, 1)
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
        adjoint_M=adjoint_M,
        transpose=transpose,
        parameters=parameters,
        null_space=null_space,
    )
    method = GeneralisedMinimalResidual(restart)
    return solve("fgmres", method, A, b, x0, options, transposed_M=False)
