"""Conjugate gradients, preconditioned, and their flexible form.

Sources: Saad, "Iterative Methods for Sparse Linear Systems" (2003), algorithm 9.1; Notay, "Flexible conjugate
gradients", SIAM J. Sci. Comput. 22 (2000) 1444-1460, with one direction kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.solvers._loop import CODE, divide, dot
from learnsolve.solvers._operator import Operator
from learnsolve.solvers._solve import Options, solve
from learnsolve.solvers.base import Solution, Status


class State(NamedTuple):
    x: Tensor
    r: Tensor
    p: Tensor  # the direction
    rho: Tensor  # <r, M r>


class ConjugateGradients:
    """With q = A p: x += alpha p, r -= alpha q, alpha = rho / <p, q>; p = M r + beta p."""

    def __init__(self, name: str, flexible: bool):
        self.name, self.flexible = name, flexible

    def start(self, A: Operator, M: Any, b: Tensor, x: Tensor, r: Tensor, running: Tensor) -> State:
        z = r if M is None else M(r)
        return State(x, r, z, dot(r, z))

    def step(self, A: Operator, M: Any, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        x, r, p, rho = state
        q = A(p)
        curvature = dot(p, q)
        wrong = (curvature <= 0) | (rho <= 0)
        good = running & ~wrong
        alpha = divide(rho, curvature, good)
        x, r_old, r = x + alpha * p, r, r - alpha * q
        z = r if M is None else M(r)
        rho_old, rho = rho, dot(r, z)
        # Subtracting <r_old, M r> keeps p conjugate to the last direction when M is not the same in each step.
        beta = divide(rho - dot(r_old, z) if self.flexible else rho, rho_old, good)
        return State(x, r, z + beta * p, rho), torch.where(wrong, CODE[Status.INDEFINITE], 0)


def cg(
    A: Any,
    b: Tensor,
    x0: Tensor | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable | None = None,
    gradient: str = "implicit",
    throw: bool = False,
    adjoint_rtol: float | None = None,
    adjoint_maxiter: int | None = None,
    parameters: tuple[Tensor, ...] = (),
) -> Solution:
    r"""Conjugate gradients for a symmetric positive definite A, preconditioned by M.

    Stops a column when :math:`\|b - A x\| \le \max(\mathtt{rtol} \|b\|, \mathtt{atol})`, by the true residual.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz); or a scipy.sparse.linalg.LinearOperator; or a callable x -> A x
        on tensors of b's shape
    b : Tensor, shape (n,) or (..., n, k). Each of the k columns stops on its own.
    x0 : Tensor of b's shape; zero if not given
    rtol, atol : the tolerance
    maxiter : int, 10 n if not given
    M : an approximation of A^-1, symmetric positive definite: callable r -> M r, CSR or LinearOperator
    callback : called after every iteration with an `Iteration`; returning True stops
    gradient : "implicit", one adjoint solve at the solution, for A and b; "unrolled", the exact gradient of the
        iterations that ran, for everything that learns, M and x0 too, and of `residual_norms`; "checkpointed",
        the same numbers in O(sqrt(iterations)) memory
    throw : raise `SolverError` where a solve or its adjoint did not converge
    adjoint_rtol, adjoint_maxiter : of the adjoint solve; rtol and maxiter if not given
    parameters : tensors that a callable A computes with and that learn (gradient="implicit")

    Returns
    -------
    Solution

    Raises
    ------
    ValueError
        if shapes do not fit, or something learns that gradient="implicit" has no gradient for.
    TypeError
        if types, dtypes or devices do not fit.
    SolverError
        if `throw` and a column did not converge.

    Notes
    -----
    Implicit gradient: :math:`\bar b = \lambda`, :math:`\bar A = -\lambda x^T` on the pattern with
    :math:`A \lambda = \bar x`; any order, forward mode. Cost: one product with A and one with M an iteration.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((10, 10))
    >>> b = torch.ones(100, dtype=torch.float64, requires_grad=True)
    >>> solution = ls.solvers.cg(A, b, rtol=1e-10)
    >>> solution.status.name
    'CONVERGED'
    >>> solution.x.sum().backward()  # solves A y = 1 once more
    >>> torch.allclose(b.grad, solution.x)
    True
    """
    options = Options(
        rtol,
        atol,
        maxiter,
        M,
        callback,
        gradient,
        throw,
        adjoint_rtol,
        adjoint_maxiter,
        parameters=parameters,
    )
    return solve(ConjugateGradients("cg", False), A, b, x0, options, symmetric=True)


def fcg(
    A: Any,
    b: Tensor,
    x0: Tensor | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable | None = None,
    gradient: str = "implicit",
    throw: bool = False,
    adjoint_rtol: float | None = None,
    adjoint_maxiter: int | None = None,
    parameters: tuple[Tensor, ...] = (),
) -> Solution:
    """Flexible conjugate gradients: `cg` for an M that is nonlinear, not quite symmetric, or learned.

    Where M differs from step to step, plain conjugate gradients stall; this form keeps each direction conjugate
    to the last at the cost of one more inner product. Parameters, results and errors are those of `cg`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((10, 10))
    >>> b = torch.ones(100, dtype=torch.float64)
    >>> ls.solvers.fcg(A, b, M=lambda r: r + 0.1 * torch.tanh(r)).status.name
    'CONVERGED'
    """
    options = Options(
        rtol,
        atol,
        maxiter,
        M,
        callback,
        gradient,
        throw,
        adjoint_rtol,
        adjoint_maxiter,
        parameters=parameters,
    )
    return solve(ConjugateGradients("fcg", True), A, b, x0, options, symmetric=True)
