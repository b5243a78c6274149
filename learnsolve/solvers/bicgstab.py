"""BiCGSTAB, for any square matrix, in short recurrences.

Source: van der Vorst, "Bi-CGSTAB", SIAM J. Sci. Stat. Comput. 13 (1992) 631-644; preconditioned from the
right.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve._conversion import TensorLike
from learnsolve.ops._dots import scaled
from learnsolve.solvers._options import Options
from learnsolve.solvers._solve import solve
from learnsolve.solvers._vectors import divide, dot, size
from learnsolve.solvers.base import CODE, Iteration, Solution, Status


class State(NamedTuple):
    x: Tensor
    r: Tensor
    shadow: Tensor  # the residual at the last start
    p: Tensor
    v: Tensor  # A M p
    rho: Tensor
    alpha: Tensor
    omega: Tensor


class BiCGSTAB:
    """A step of BiCG, and one of GMRES(1), which chooses omega.

    BiCG divides by rho = <shadow, r>, <shadow, v> and omega. Where one of them is zero the column starts
    again, with its residual as the shadow: deterministic, and it keeps x. It is lost only if the first step
    from there does not move x.
    """

    @staticmethod
    def products(iterations: int) -> int:
        return 2 * iterations

    steps = (1, 5)  # see _steps.py

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> State:
        none, one = torch.zeros_like(r), torch.ones_like(r[..., :1, :])
        return State(x, r, r, none, none, one, torch.zeros_like(one), one)  # alpha = 0: start in the step

    def step(self, A: Any, M: Any, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        q = state
        rho = dot(q.shadow, q.r)
        again = _zero(rho, q.shadow, q.r) | (q.alpha == 0) | (q.omega == 0)
        shadow = torch.where(again, q.r, q.shadow)
        rho = torch.where(again, dot(q.r, q.r), rho)
        beta = divide(rho, q.rho, running & ~again) * divide(q.alpha, q.omega, running)
        p = q.r + scaled(beta, q.p - scaled(q.omega, q.v))
        Mp = p if M is None else M(p)
        v = A(Mp)
        rv = dot(shadow, v)
        # Without this part the step is one of GMRES(1) alone, which never increases the residual.
        alpha = divide(rho, rv, running & ~_zero(rv, shadow, v))
        s = q.r - scaled(alpha, v)
        Ms = s if M is None else M(s)
        t = A(Ms)
        omega = divide(dot(t, s), dot(t, t), running & ~_zero(dot(t, s), t, s))
        x, r = q.x + scaled(alpha, Mp) + scaled(omega, Ms), s - scaled(omega, t)
        stuck = again & (alpha == 0) & (omega == 0)
        return State(x, r, shadow, p, v, rho, alpha, omega), torch.where(stuck, CODE[Status.BREAKDOWN], 0)


def _zero(product: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Are u and v orthogonal to rounding?"""
    return product.detach().abs() <= torch.finfo(u.dtype).eps * size(u) * size(v)


def bicgstab(
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
    adjoint_M: Any = None,
    transpose: Callable[[Tensor], Tensor] | None = None,
    parameters: tuple[Tensor, ...] = (),
    null_space: Any = None,
) -> Solution:
    r"""BiCGSTAB for any square A, in short recurrences, preconditioned by M from the right.

    It needs little memory, and may break down; `gmres` does not.

    Parameters
    ----------
    A : CSR, BlockBatch, LinearOperator or callable, shape (n, n), as for `cg`; any nonsingular matrix
    b : Tensor or NumPy array, shape (n,) or (..., n, k)
    maxiter : int, 10 n if not given
    M : an approximation of A^-1, linear: callable r -> M r, CSR or LinearOperator
    x0, rtol, atol, callback, gradient, throw, adjoint_rtol, adjoint_maxiter, parameters : as for `cg`
    adjoint_M : of the adjoint solve with A^T, gradient="implicit"; the transpose of M (M.T) if not given
    transpose : callable x -> A^T x, if A is a callable and gradient="implicit" is to be differentiated
    null_space : as for `cg`, of A and A^T both; or a pair (N, N_left) of different ones, as (v, "constants")
        for I - P^T of a Markov chain with the stationary distribution v

    Returns
    -------
    Solution

    Raises
    ------
    ValueError, TypeError, SolverError
        as `cg`.

    Notes
    -----
    Implicit gradient: :math:`\bar b = \lambda`, :math:`\bar A = -\lambda x^T` on the pattern with
    :math:`A^T \lambda = \bar x`, solved by the same method. Cost: two products with A and two with M an
    iteration.

    References
    ----------
    H. A. van der Vorst, "Bi-CGSTAB", SIAM J. Sci. Stat. Comput. 13 (1992) 631-644, doi:10.1137/0913035

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [0.0, -2.0]], dtype=torch.float64))
    >>> b = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
    >>> solution = ls.solvers.bicgstab(A, b, rtol=1e-12)
    >>> solution.x.detach()
    tensor([1.0000, 1.0000], dtype=torch.float64)
    >>> solution.x[1].backward()
    >>> b.grad
    tensor([ 0.0000, -0.5000], dtype=torch.float64)
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
        adjoint_M=adjoint_M,
        transpose=transpose,
        parameters=parameters,
        null_space=null_space,
    )
    return solve("bicgstab", BiCGSTAB(), A, b, x0, options)
