"""LSQR, for least squares and for any rectangular system.

Source: Paige and Saunders, "LSQR: An algorithm for sparse linear equations and sparse least squares", ACM
Trans. Math. Softw. 8 (1982) 43-71.
"""

from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from learnsolve._conversion import TensorLike
from learnsolve.ops._dots import scaled
from learnsolve.solvers.core.least_squares import solve
from learnsolve.solvers.core.vectors import divide, dot, root, size
from learnsolve.solvers.options import LeastSquaresOptions, options_of, solver
from learnsolve.solvers.solution import CODE, Solution, Status


class Bidiagonal(NamedTuple):
    """Golub and Kahan: A V = U B, with the lower bidiagonal B of the alphas and betas."""

    u: Tensor
    v: Tensor
    alpha: Tensor
    Av: Tensor  # A v
    square: Tensor  # ||B||^2, Frobenius


def first_vectors(A: Any, r: Tensor, running: Tensor) -> tuple[Bidiagonal, Tensor]:
    """beta u = r, alpha v = A^T u; and beta."""
    beta = root(dot(r, r))
    u = divide(r, beta, running)
    v = A.T(u)
    alpha = root(dot(v, v))
    v = divide(v, alpha, running)
    return Bidiagonal(u, v, alpha, A(v), alpha.detach() ** 2), beta


def next_vectors(A: Any, q: Bidiagonal, running: Tensor) -> tuple[Bidiagonal, Tensor]:
    """beta u = A v - alpha u, alpha v = A^T u - beta v; and beta."""
    u = q.Av - scaled(q.alpha, q.u)
    beta = root(dot(u, u))
    u = divide(u, beta, running)
    v = A.T(u) - scaled(beta, q.v)
    alpha = root(dot(v, v))
    v = divide(v, alpha, running)
    return Bidiagonal(u, v, alpha, A(v), q.square + beta.detach() ** 2 + alpha.detach() ** 2), beta


class State(NamedTuple):
    x: Tensor
    r: Tensor
    u: Tensor
    v: Tensor
    alpha: Tensor
    Av: Tensor
    square: Tensor
    w: Tensor  # the direction
    Aw: Tensor
    rho_bar: Tensor
    phi_bar: Tensor  # ||r||
    directions: Tensor  # sum of ||w / rho||^2
    normal: Tensor  # ||A^T r||
    A_norm: Tensor
    condition: Tensor


class LSQR:
    """QR factorisation of the bidiagonal matrix by rotations."""

    @staticmethod
    def products(iterations: int) -> int:
        return 2 * iterations

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> State:
        q, beta = first_vectors(A, r, running)
        zero = torch.zeros_like(beta)
        return State(
            x, r, *q, q.v, q.Av, q.alpha, beta, zero, (q.alpha * beta).detach(), q.alpha.detach(), zero + 1
        )  # fmt: skip

    def step(self, A: Any, M: Any, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        s = state
        q, beta = next_vectors(A, Bidiagonal(s.u, s.v, s.alpha, s.Av, s.square), running)
        rho = root(s.rho_bar * s.rho_bar + beta * beta)
        cosine, sine = divide(s.rho_bar, rho, running), divide(beta, rho, running)
        step = divide(cosine * s.phi_bar, rho, running)
        x, r = s.x + scaled(step, s.w), s.r - scaled(step, s.Aw)
        phi_bar = sine * s.phi_bar
        turn = divide(sine * q.alpha, rho, running)
        w, Aw = q.v - scaled(turn, s.w), q.Av - scaled(turn, s.Aw)
        directions = s.directions + divide(size(s.w), rho.detach(), running) ** 2
        A_norm = (q.square - q.alpha.detach() ** 2).clamp(min=0).sqrt()  # of what the QR has seen
        new = State(
            x, r, *q, w, Aw, -cosine * q.alpha, phi_bar, directions,
            (q.alpha * cosine * phi_bar).detach(), A_norm, A_norm * directions.sqrt(),
        )  # fmt: skip
        return new, torch.where(rho == 0, CODE[Status.BREAKDOWN], 0)


@solver(LeastSquaresOptions)
def lsqr(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    damp: float = 0.0,
    atol: float | None = 1e-6,
    btol: float | None = 1e-6,
    conlim: float | None = 1e8,
    **options: Unpack[LeastSquaresOptions],
) -> Solution:
    r"""LSQR: x that minimises :math:`\|b - A x\|^2 + \mathtt{damp}^2 \|x\|^2`, for A of any shape.

    Stops a column, by SciPy's rules and with the true residual r, when
    :math:`\|r\| \le \mathtt{btol} \|b\| + \mathtt{atol} \|A\| \|x\|` or
    :math:`\|A^T r\| \le \mathtt{atol} \|A\| \|r\|`, with the Frobenius norm of A, as the method estimates it
    where A's entries are not known (a callable, a LinearOperator, a StencilOperator).

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz); or a scipy.sparse.linalg.LinearOperator; or a callable x -> A x,
        with `transpose`
    b : Tensor or NumPy array, shape (m,) or (..., m, k). Each of the k columns stops on its own.
    x0 : Tensor or NumPy array, shape (n,) or (..., n, k); zero if not given
    damp : number, of the problem, damping of x (not of x - x0 as in SciPy)
    atol, btol : the tolerances; less than the rounding unit counts as that. None: 1e-6
    conlim : gives up (ILL_CONDITIONED) when the estimate of the condition number of A exceeds it; 0 for never
    gradient : "implicit", one adjoint solve with A^T A + damp^2 I by conjugate gradients; "unrolled", the
        exact gradient of the iterations that ran; "checkpointed", the same numbers in O(sqrt(iterations))
        memory
    adjoint_rtol, adjoint_maxiter : of the adjoint solve; atol and maxiter if not given
    options : shared keywords

    Returns
    -------
    Solution
        `residual_norms` are of the whole problem, :math:`\sqrt{\|b - A x\|^2 + \mathtt{damp}^2 \|x\|^2}`;
        `normal_residual_norm` is :math:`\|A^T (b - A x) - \mathtt{damp}^2 x\|` at the end.

    Raises
    ------
    ValueError, TypeError, SolverError
        as `cg`.

    Notes
    -----
    Implicit gradient: with :math:`(A^T A + \mathtt{damp}^2 I) w = \bar x` and r = b - A x,

    .. math:: \bar b = A w, \quad \bar A = r w^T - (A w) x^T \text{ on the pattern},

    which needs full column rank, or damp > 0. Any order, forward mode. Cost: one product with A, one with its
    transpose an iteration. If A does not have full column rank, x is the solution of least norm (from x0 = 0)
    and the adjoint solve has in general no solution, which is reported.

    References
    ----------
    C. C. Paige, M. A. Saunders, "LSQR: An algorithm for sparse linear equations and sparse least squares",
    ACM Trans. Math. Softw. 8 (1982) 43-71, doi:10.1145/355984.355989

    Examples
    --------
    A line through three points:

    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]], dtype=torch.float64))
    >>> b = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64, requires_grad=True)
    >>> solution = ls.solvers.lsqr(A, b, atol=1e-12, btol=1e-12)
    >>> solution.x.detach()
    tensor([1.0000, 0.5000], dtype=torch.float64)
    >>> solution.x[1].backward()
    >>> bool(torch.allclose(b.grad, torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64)))
    True
    """
    return solve("lsqr", LSQR(), A, b, x0, damp, atol, btol, conlim, options_of("lsqr", options))
