"""LSQR and LSMR, for least squares and for any rectangular system.

Sources: Paige and Saunders, "LSQR: An algorithm for sparse linear equations and sparse least squares", ACM
Trans. Math. Softw. 8 (1982) 43-71, doi:10.1145/355984.355989; Fong and Saunders, "LSMR", SIAM J. Sci. Comput.
33 (2011) 2950-2971.
"""

from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from learnsolve.matrix.convert import TensorLike
from learnsolve.ops.core.dots import scaled
from learnsolve.solvers.core.least_squares import solve
from learnsolve.solvers.core.vectors import divide, dot, root, size
from learnsolve.solvers.options import LeastSquaresOptions, options_of, solver
from learnsolve.solvers.solution import CODE, Solution, Status


class _Bidiagonal(NamedTuple):
    """Golub and Kahan: A V = U B, with the lower bidiagonal B of the alphas and betas."""

    u: Tensor
    v: Tensor
    alpha: Tensor
    Av: Tensor  # A v
    square: Tensor  # ||B||^2, Frobenius


def _first_vectors(A: Any, r: Tensor, running: Tensor) -> tuple[_Bidiagonal, Tensor]:
    """beta u = r, alpha v = A^T u; and beta."""
    u, beta = _unit(r, running)
    v, alpha = _unit(A.T(u), running)
    return _Bidiagonal(u, v, alpha, A(v), alpha.detach() ** 2), beta


def _next_vectors(A: Any, state: Any, running: Tensor) -> tuple[_Bidiagonal, Tensor]:
    """beta u = A v - alpha u, alpha v = A^T u - beta v, from a state with the previous vectors; and beta."""
    u, beta = _unit(state.Av - scaled(state.alpha, state.u), running)
    v, alpha = _unit(A.T(u) - scaled(beta, state.v), running)
    return _Bidiagonal(u, v, alpha, A(v), state.square + beta.detach() ** 2 + alpha.detach() ** 2), beta


def _unit(u: Tensor, running: Tensor) -> tuple[Tensor, Tensor]:
    length = root(dot(u, u))
    return divide(u, length, running), length


class LSQRState(NamedTuple):
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
    """QR factorization of the bidiagonal matrix by rotations."""

    @staticmethod
    def products(iterations: int) -> int:
        return 2 * iterations

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> LSQRState:
        q, beta = _first_vectors(A, r, running)
        zero = torch.zeros_like(beta)
        return LSQRState(
            x, r, *q, q.v, q.Av, q.alpha, beta, zero, (q.alpha * beta).detach(), q.alpha.detach(), zero + 1
        )  # fmt: skip

    def step(self, A: Any, M: Any, b: Tensor, state: LSQRState, running: Tensor) -> tuple[LSQRState, Tensor]:
        s = state
        q, beta = _next_vectors(A, s, running)
        rho = root(s.rho_bar * s.rho_bar + beta * beta)
        cosine, sine = divide(s.rho_bar, rho, running), divide(beta, rho, running)
        step = divide(cosine * s.phi_bar, rho, running)
        x, r = s.x + scaled(step, s.w), s.r - scaled(step, s.Aw)
        phi_bar = sine * s.phi_bar
        turn = divide(sine * q.alpha, rho, running)
        w, Aw = q.v - scaled(turn, s.w), q.Av - scaled(turn, s.Aw)
        directions = s.directions + divide(size(s.w), rho.detach(), running) ** 2
        A_norm = (q.square - q.alpha.detach() ** 2).clamp(min=0).sqrt()  # of the columns processed so far
        new = LSQRState(
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
    r"""LSQR: x that minimizes :math:`\|b - A x\|^2 + \mathtt{damp}^2 \|x\|^2`, for A of any shape.

    A column stops, as in SciPy, when :math:`\|r\| \le \mathtt{btol} \|b\| + \mathtt{atol} \|A\| \|x\|` or
    :math:`\|A^T r\| \le \mathtt{atol} \|A\| \|r\|`, with the true residual r and the Frobenius norm of A, or
    the estimate of it by the method if the entries of A are not known.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz); or a SciPy LinearOperator, or a callable with `transpose`
    b : Tensor or NumPy array, shape (m,) or (..., m, k)
    x0 : Tensor or NumPy array, shape (n,) or (..., n, k); zero if not given
    damp : float, the damping of x (SciPy damps x - x0)
    atol, btol : the tolerances, at least the rounding unit. None: 1e-6
    conlim : stop (ILL_CONDITIONED) when the estimate of the condition number of A exceeds it; 0: never
    adjoint_rtol, adjoint_maxiter : of the adjoint solves, atol and btol too. Default: atol and maxiter
    options : shared keywords

    Returns
    -------
    Solution, with `residual_norms` :math:`\sqrt{\|b - A x\|^2 + \mathtt{damp}^2 \|x\|^2}`, and, at the end,
    `normal_residual_norm` :math:`\|A^T (b - A x) - \mathtt{damp}^2 x\|`

    Raises
    ------
    ValueError, TypeError, SolverError : as `cg`

    Notes
    -----
    x has the least norm (from x0 = 0). Implicit gradient of any order, forward mode, with r = b - A x:
    :math:`\bar b = A^{+T} \bar x`, :math:`\bar A = -\bar b x^T + r (A^+ \bar b)^T + (A^{+T} x) (\bar x - A^T
    \bar b)^T` on the pattern: up to three solves, for changes of A that keep its rank (docs/gradients.md).
    Cost per iteration: one product with A and one with its transpose.

    Examples
    --------
    >>> import torch, learnsolve as ls  # a line through three points
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]], dtype=torch.float64))
    >>> b = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    >>> ls.solvers.lsqr(A, b, atol=1e-12, btol=1e-12).x
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    return solve("lsqr", LSQR(), A, b, x0, damp, atol, btol, conlim, options_of("lsqr", options))


class LSMRState(NamedTuple):
    x: Tensor
    r: Tensor
    u: Tensor
    v: Tensor
    alpha: Tensor
    Av: Tensor
    square: Tensor
    h: Tensor  # directions and their products with A
    Ah: Tensor
    h_bar: Tensor
    Ah_bar: Tensor
    alpha_bar: Tensor  # rotations
    rho: Tensor
    rho_bar: Tensor
    c_bar: Tensor
    s_bar: Tensor
    zeta_bar: Tensor  # +-||A^T r||
    largest: Tensor  # on the diagonal of the second factor; smallest: without the last
    smallest: Tensor
    normal: Tensor
    A_norm: Tensor
    condition: Tensor


class LSMR:
    """MINRES for A^T A x = A^T b: two QR factorizations of bidiagonal matrices by rotations."""

    @staticmethod
    def products(iterations: int) -> int:
        return 2 * iterations

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> LSMRState:
        q, beta = _first_vectors(A, r, running)
        one, zero, none = torch.ones_like(beta), torch.zeros_like(beta), torch.zeros_like(x)
        zeta_bar = q.alpha * beta
        return LSMRState(
            x, r, *q, q.v, q.Av, none, torch.zeros_like(q.Av), q.alpha, one, one, one, zero, zeta_bar,
            zero, torch.full_like(zero, torch.inf), zeta_bar.detach(), q.alpha.detach(), one,
        )  # fmt: skip

    def step(self, A: Any, M: Any, b: Tensor, state: LSMRState, running: Tensor) -> tuple[LSMRState, Tensor]:
        s = state
        q, beta = _next_vectors(A, s, running)
        rho = root(s.alpha_bar * s.alpha_bar + beta * beta)
        c, theta = divide(s.alpha_bar, rho, running), divide(beta, rho, running) * q.alpha
        theta_bar, above = s.s_bar * rho, s.c_bar * rho
        rho_bar = root(above * above + theta * theta)
        c_bar, s_bar = divide(above, rho_bar, running), divide(theta, rho_bar, running)
        zeta, zeta_bar = c_bar * s.zeta_bar, -s_bar * s.zeta_bar
        back = divide(theta_bar * rho, s.rho * s.rho_bar, running)
        h_bar, Ah_bar = s.h - scaled(back, s.h_bar), s.Ah - scaled(back, s.Ah_bar)
        step = divide(zeta, rho * rho_bar, running)
        turn = divide(theta, rho, running)
        # The condition number is estimated from the diagonal of the second factor, without its initial 1.
        known = above.detach().abs()
        largest = torch.maximum(s.largest, known)
        smallest = torch.minimum(s.smallest, known)
        new = LSMRState(
            s.x + scaled(step, h_bar), s.r - scaled(step, Ah_bar),
            *q, q.v - scaled(turn, s.h), q.Av - scaled(turn, s.Ah), h_bar, Ah_bar,
            c * q.alpha, rho, rho_bar, c_bar, s_bar, zeta_bar,
            torch.maximum(s.largest, rho_bar.detach()), torch.minimum(s.smallest, rho_bar.detach()),
            zeta_bar.detach(), (q.square - q.alpha.detach() ** 2).clamp(min=0).sqrt(), largest / smallest,
        )  # fmt: skip
        return new, torch.where(rho * rho_bar == 0, CODE[Status.BREAKDOWN], 0)


@solver(LeastSquaresOptions)
def lsmr(
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
    r"""LSMR: x that minimizes :math:`\|b - A x\|^2 + \mathtt{damp}^2 \|x\|^2`, for A of any shape.

    Like `lsqr`, but each iterate minimizes :math:`\|A^T r\|`, which decreases steadily: safer to stop early.

    Parameters
    ----------
    A, b, x0, damp, atol, btol, conlim, maxiter, callback, gradient, throw : as for `lsqr`
    adjoint_rtol, adjoint_maxiter, transpose, parameters : as for `lsqr`

    Returns
    -------
    Solution, as for `lsqr`

    Raises
    ------
    ValueError, TypeError, SolverError
        as `cg`.

    Notes
    -----
    Gradients and cost are as for `lsqr`.

    References
    ----------
    D. C.-L. Fong, M. A. Saunders, "LSMR: An iterative algorithm for sparse least-squares problems", SIAM J.
    Sci. Comput. 33 (2011) 2950-2971, doi:10.1137/10079687X

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]], dtype=torch.float64))
    >>> b = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    >>> ls.solvers.lsmr(A, b, atol=1e-12, btol=1e-12).x
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    return solve("lsmr", LSMR(), A, b, x0, damp, atol, btol, conlim, options_of("lsmr", options))
