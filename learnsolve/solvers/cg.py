"""Preconditioned conjugate gradients: `cg`, the flexible `fcg`, and the module `PCG`.

Sources: Saad, "Iterative Methods for Sparse Linear Systems" (2003), algorithm 9.1; Notay, "Flexible conjugate
gradients", SIAM J. Sci. Comput. 22 (2000) 1444-1460, with one direction kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import TensorLike
from learnsolve.ops.core.dots import scaled
from learnsolve.solvers.core.arguments import check_options
from learnsolve.solvers.core.door import solve
from learnsolve.solvers.core.vectors import divide, dot
from learnsolve.solvers.options import Options, SymmetricOptions, options_of, solver
from learnsolve.solvers.solution import CODE, Solution, Status


class State(NamedTuple):
    x: Tensor
    r: Tensor
    p: Tensor  # the direction
    rho: Tensor  # <r, M r>


class ConjugateGradients:
    """With q = A p: x += alpha p, r -= alpha q, alpha = rho / <p, q>; p = M r + beta p, beta = rho / rho_old.

    `flexible` subtracts <r_old, M r> from rho in beta; the term is zero if M is linear and symmetric. For any
    other M it keeps p conjugate to the previous direction.
    """

    cg_state = State  # core/advance_cg.py

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


@solver(SymmetricOptions)
def cg(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    **options: Unpack[SymmetricOptions],
) -> Solution:
    r"""Conjugate gradients for a symmetric positive definite A, preconditioned by M.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz); or a `BlockBatch`, each block of which is a system; or a
        scipy.sparse.linalg.LinearOperator; or a callable x -> A x on tensors of b's shape
    b : Tensor or NumPy array, shape (n,) or (..., n, k). Each column stops by its own true residual.
    x0 : like b; zero if not given
    M : an approximation of A^-1, symmetric positive definite: callable r -> M r, CSR or LinearOperator; for a
        `BlockBatch` also a list of one per block. A torch.nn.Module needs an attribute symmetric = True
    options : shared keywords

    Returns
    -------
    Solution

    Raises
    ------
    ValueError
        if shapes do not match, a tensor that gradient="implicit" does not cover requires grad, or A does not
        map null_space to zero up to rounding (not checked on a device without a tolerance).
    TypeError
        if a type, dtype or device is wrong.
    SolverError
        if `throw` and a column did not converge.

    Notes
    -----
    Implicit gradient: :math:`\bar b = \lambda`, :math:`\bar A = -\lambda x^T` on the pattern with
    :math:`A \lambda = \bar x`; any order, forward mode. `null_space` and comparison with the other
    gradients: docs/solvers.md. Cost: one product with A and one with M per iteration.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((10, 10)), torch.ones(100, dtype=torch.float64, requires_grad=True)
    >>> solution = ls.solvers.cg(A, b, rtol=1e-10)
    >>> solution.x.sum().backward()  # solves A y = 1 once more
    >>> torch.allclose(b.grad, solution.x)
    True
    """
    return solve("cg", ConjugateGradients(), A, b, x0, options_of("cg", options), symmetric=True)


@solver(SymmetricOptions)
def fcg(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    **options: Unpack[SymmetricOptions],
) -> Solution:
    """Flexible conjugate gradients: `cg` for an M that is nonlinear, not quite symmetric, or learned.

    If M changes from step to step, plain conjugate gradients stall; this method keeps each direction
    conjugate to the previous one at the cost of one more inner product.

    Parameters
    ----------
    A, b, x0 : as for `cg`
    M : as for `cg`, but it need not be linear or symmetric
    options : shared keywords

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


class PCG(torch.nn.Module):
    """`cg`, or `fcg`, with a trainable preconditioner.

    Parameters
    ----------
    M : callable r -> M r, usually a torch.nn.Module, whose parameters become parameters of this module
    flexible : use `fcg`, for an M that is nonlinear or not symmetric
    rtol, atol, maxiter : as for `cg`; rtol=0 for exactly `maxiter` iterations
    gradient : "unrolled" or "checkpointed" for the gradient of M; "implicit" for an M that is not trained
    throw, null_space : as for `cg`

    Raises
    ------
    ValueError
        if gradient is not one of the three, or rtol, atol or maxiter is negative.
    TypeError
        if M is not callable, or an argument is of another type; null_space is checked in the forward call.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> class Scale(torch.nn.Module):
    ...     symmetric = True  # else `cg` rejects a module
    ...
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = torch.nn.Parameter(torch.linspace(0.5, 1, 64, dtype=torch.float64))
    ...     def forward(self, r):
    ...         return self.weight * r
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> solver = ls.solvers.PCG(Scale(), rtol=0.0, maxiter=4)
    >>> solver(A, b).residual_norms[-1].backward()
    >>> solver.M.weight.grad.shape
    torch.Size([64])
    """

    def __init__(
        self,
        M: Callable[[Tensor], Tensor],
        *,
        flexible: bool = False,
        rtol: float | None = 1e-5,
        atol: float | None = 0.0,
        maxiter: int | None = None,
        gradient: str = "unrolled",
        throw: bool = False,
        null_space: Any = None,
    ):
        super().__init__()
        if not callable(M):
            raise TypeError(f"PCG: M must be a callable r -> M r, got {type(M).__name__}; without M use cg")
        checks.flag("PCG", "flexible", flexible)
        check_options("PCG", Options(rtol, atol, maxiter, gradient=gradient, throw=throw))
        self.M = M
        self.flexible = flexible
        self.rtol, self.atol, self.maxiter = rtol, atol, maxiter
        self.gradient, self.throw, self.null_space = gradient, throw, null_space

    def forward(self, A: Any, b: TensorLike, x0: TensorLike | None = None) -> Solution:
        """Solve A x = b by `cg` with the current parameters; arguments and result as for `cg`."""
        return (fcg if self.flexible else cg)(
            A,
            b,
            x0,
            rtol=self.rtol,
            atol=self.atol,
            maxiter=self.maxiter,
            M=self.M,
            gradient=self.gradient,
            throw=self.throw,
            null_space=self.null_space,
        )

    def extra_repr(self) -> str:
        return (
            f"flexible={self.flexible}, rtol={self.rtol}, atol={self.atol}, maxiter={self.maxiter}, "
            f"gradient={self.gradient!r}"
        )
