"""Conjugate gradients, preconditioned.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), algorithm 9.1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve._conversion import TensorLike
from learnsolve.ops._dots import scaled
from learnsolve.solvers._in_graphs import traced_cg
from learnsolve.solvers._options import Options
from learnsolve.solvers._solve import solve
from learnsolve.solvers._vectors import divide, dot
from learnsolve.solvers.base import CODE, Iteration, Solution, Status


class State(NamedTuple):
    x: Tensor
    r: Tensor
    p: Tensor  # the direction
    rho: Tensor  # <r, M r>


class ConjugateGradients:
    """With q = A p: x += alpha p, r -= alpha q, alpha = rho / <p, q>; p = M r + beta p, beta = rho / rho_old.

    `flexible` takes <r_old, M r> off rho in beta, which is zero if M is linear and symmetric: p stays
    conjugate to the last direction when it is not (fcg.py).
    """

    compiled = True  # by _compiled_cg.py too

    def __init__(self, flexible: bool = False):
        self.flexible = flexible

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> State:
        z = r if M is None else M(r)
        return State(x, r, z, dot(r, z))

    def step(self, A: Any, M: Any, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        x, r, p, rho = state
        q = A(p)
        curvature = dot(p, q)
        wrong = (curvature <= 0) | (rho <= 0)
        good = running & ~wrong
        alpha = divide(rho, curvature, good)
        x, r_old, r = x + scaled(alpha, p), r, r - scaled(alpha, q)
        z = r if M is None else M(r)
        rho_old, rho = rho, dot(r, z)
        beta = divide(rho - dot(r_old, z) if self.flexible else rho, rho_old, good)
        return State(x, r, z + scaled(beta, p), rho), torch.where(wrong, CODE[Status.INDEFINITE], 0)


def cg(
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
    r"""Conjugate gradients for a symmetric positive definite A, preconditioned by M.

    Stops a column when :math:`\|b - A x\| \le \max(\mathtt{rtol} \|b\|, \mathtt{atol})`, by the true
    residual.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz); or a `BlockBatch`, of which each block is a system; or a
        scipy.sparse.linalg.LinearOperator; or a callable x -> A x on tensors of b's shape
    b : Tensor or NumPy array, shape (n,) or (..., n, k). Each of the k columns stops on its own.
    x0 : like b; zero if not given
    rtol, atol : the tolerance
    maxiter : int, 10 n if not given
    M : an approximation of A^-1, symmetric positive definite: callable r -> M r, CSR or LinearOperator; for a
        `BlockBatch` also a list of one a block. A torch.nn.Module must say that it is, by an attribute
        symmetric = True; else use `fcg`
    callback : called after every iteration with an `Iteration`; returning True stops
    gradient : "implicit", one adjoint solve at the solution, for A and b; "unrolled", the exact gradient of
        the iterations that ran, for all that requires grad, M and x0 too, and of `residual_norms`;
        "checkpointed", the same numbers in O(sqrt(iterations)) memory
    throw : raise `SolverError` where a solve or its adjoint did not converge
    adjoint_rtol, adjoint_maxiter : of the adjoint solve; rtol and maxiter if not given
    parameters : all tensors that a callable A computes with and that require grad (gradient="implicit"),
        except those that are made of named ones only
    null_space : of a singular A: "constants", on each connected component of A's graph (graph Laplacians,
        Neumann and periodic boundaries); or a Tensor (n, k), of A's batch axes if it has some, of k linearly
        independent vectors; of a `BlockBatch` its rows are null vectors of each block. x is then
        :math:`A^+ b`, of minimum norm, and the component of b along them is left out

    Returns
    -------
    Solution

    Raises
    ------
    ValueError
        if shapes do not fit, or something requires grad that gradient="implicit" has no gradient for; if
        A maps a vector of null_space to more than rounding (not checked on a device without a tolerance).
    TypeError
        if types, dtypes or devices do not fit.
    SolverError
        if `throw` and a column did not converge.

    Notes
    -----
    Implicit gradient: :math:`\bar b = \lambda`, :math:`\bar A = -\lambda x^T` on the pattern with
    :math:`A \lambda = \bar x`; any order, forward mode. The other two agree with it, at convergence, along
    symmetric changes of A: along others the iterations solve nothing, nor do those few that sufficed for an A
    of multiple eigenvalues suffice for its neighbours. Cost: one product with A and one with M an iteration.

    With `null_space` tolerance and residuals are those of :math:`A x = b - N N^T b`, and
    :math:`\bar b = \lambda = A^+ \bar x`: the gradient of :math:`A^+ b` for all changes of A that keep its
    null space. M need not know of it. Cost: two projections of b and of x, O(n k) each, and one product with
    A for every vector, none an iteration.

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
    >>> ring = ls.problems.poisson((6,), boundary="periodic")  # singular
    >>> ls.solvers.cg(ring, torch.arange(6.0).double(), null_space="constants").x.sum().abs() < 1e-12
    tensor(True)
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
    if torch.compiler.is_dynamo_compiling() and (traced := traced_cg(A, b, x0, options)) is not None:
        return traced
    return solve("cg", ConjugateGradients(), A, b, x0, options, symmetric=True)
