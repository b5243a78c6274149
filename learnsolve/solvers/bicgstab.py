"""BiCGSTAB, a short-recurrence method for any square matrix.

Source: van der Vorst, "Bi-CGSTAB", SIAM J. Sci. Stat. Comput. 13 (1992) 631-644; with right
preconditioning.
"""

from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from learnsolve.matrix.convert import TensorLike
from learnsolve.solvers.core.door import solve
from learnsolve.solvers.core.vectors import add_scaled, divide, dot, size, square
from learnsolve.solvers.options import SolverOptions, options_of, solver
from learnsolve.solvers.solution import CODE, Solution, Status


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
    """One step of BiCG followed by one step of GMRES(1), which chooses omega.

    BiCG divides by rho = <shadow, r>, <shadow, v> and omega. If one of them is zero, the column restarts with
    its residual as the shadow vector; this is deterministic and keeps x. The column fails only if the first
    step after a restart does not change x.
    """

    @staticmethod
    def products(iterations: int) -> int:
        return 2 * iterations

    steps = (1, 5)  # see core/advance.py
    takes_complex = True

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> State:
        none, one = torch.zeros_like(r), torch.ones_like(r[..., :1, :])
        return State(x, r, r, none, none, one, torch.zeros_like(one), one)  # alpha = 0: start in the step

    def step(self, A: Any, M: Any, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        q = state
        rho = dot(q.shadow, q.r)
        again = _zero(rho, q.shadow, q.r) | (q.alpha == 0) | (q.omega == 0)
        shadow = torch.where(again, q.r, q.shadow)
        rho = torch.where(again, square(q.r).to(rho.dtype), rho)
        beta = divide(rho, q.rho, running & ~again) * divide(q.alpha, q.omega, running)
        p = add_scaled(q.r, beta, add_scaled(q.p, -q.omega, q.v))
        Mp = p if M is None else M(p)
        v = A(Mp)
        rv = dot(shadow, v)
        # Without this part the step is a pure GMRES(1) step, which never increases the residual.
        alpha = divide(rho, rv, running & ~_zero(rv, shadow, v))
        s = add_scaled(q.r, -alpha, v)
        Ms = s if M is None else M(s)
        t = A(Ms)
        ts = dot(t, s)
        omega = divide(ts, square(t), running & ~_zero(ts, t, s))
        x, r = add_scaled(add_scaled(q.x, alpha, Mp), omega, Ms), add_scaled(s, -omega, t)
        stuck = again & (alpha == 0) & (omega == 0)
        return State(x, r, shadow, p, v, rho, alpha, omega), torch.where(stuck, CODE[Status.BREAKDOWN], 0)


def _zero(product: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Whether u and v are orthogonal up to rounding."""
    return product.detach().abs() <= torch.finfo(u.dtype).eps * size(u) * size(v)


@solver(SolverOptions)
def bicgstab(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    **options: Unpack[SolverOptions],
) -> Solution:
    r"""BiCGSTAB for any square A, right-preconditioned by M. It uses little memory but may break down.

    Parameters
    ----------
    A : CSR, BlockBatch, LinearOperator or callable, shape (n, n), as for `cg`; any nonsingular matrix
    b : Tensor or NumPy array, shape (n,) or (..., n, k)
    x0 : as for `cg`
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
    Implicit gradient: :math:`\bar b = \lambda`, :math:`\bar A = -\lambda x^T` on the pattern with
    :math:`A^T \lambda = \bar x`, solved by the same method. Cost: two products with A and two with M per
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
    return solve("bicgstab", BiCGSTAB(), A, b, x0, options_of("bicgstab", options))
