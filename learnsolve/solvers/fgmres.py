"""Flexible GMRES.

Source: Saad, "A flexible inner-outer preconditioned GMRES algorithm", SIAM J. Sci. Comput. 14 (1993) 461-469.
"""

from typing import Any, Unpack

from learnsolve import _check
from learnsolve._conversion import TensorLike
from learnsolve.solvers.core.door import solve
from learnsolve.solvers.gmres import GeneralisedMinimalResidual
from learnsolve.solvers.options import SolverOptions, options_of, solver
from learnsolve.solvers.solution import Solution


@solver(SolverOptions)
def fgmres(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    restart: int | None = 20,
    **options: Unpack[SolverOptions],
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
    A, b, x0, restart : as for `gmres`
    options : shared keywords

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
    method = GeneralisedMinimalResidual(restart)
    return solve("fgmres", method, A, b, x0, options_of("fgmres", options), transposed_M=False)
