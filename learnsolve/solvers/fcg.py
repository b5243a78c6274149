"""Flexible conjugate gradients.

Source: Notay, "Flexible conjugate gradients", SIAM J. Sci. Comput. 22 (2000) 1444-1460, with one direction
kept.
"""

from typing import Any, Unpack

from learnsolve._conversion import TensorLike
from learnsolve.solvers.cg import ConjugateGradients
from learnsolve.solvers.core.door import solve
from learnsolve.solvers.options import SymmetricOptions, options_of, solver
from learnsolve.solvers.solution import Solution


@solver(SymmetricOptions)
def fcg(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    **options: Unpack[SymmetricOptions],
) -> Solution:
    """Flexible conjugate gradients: `cg` for an M that is nonlinear, not quite symmetric, or learned.

    Where M differs from step to step, plain conjugate gradients stall; this form keeps each direction
    conjugate to the last at the cost of one more inner product.

    Parameters
    ----------
    A, b, x0 : as for `cg`
    M : as for `cg`, but neither linear nor symmetric of necessity
    options : shared keywords

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
    method = ConjugateGradients(flexible=True)
    return solve("fcg", method, A, b, x0, options_of("fcg", options), symmetric=True)
