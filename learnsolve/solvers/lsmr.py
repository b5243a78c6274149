"""LSMR, for least squares and for any rectangular system, by Fong and Saunders (2011)."""

from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from learnsolve.matrix.convert import TensorLike
from learnsolve.ops.core.dots import scaled
from learnsolve.solvers.core.least_squares import first_vectors, next_vectors, solve
from learnsolve.solvers.core.vectors import divide, root
from learnsolve.solvers.options import LeastSquaresOptions, options_of, solver
from learnsolve.solvers.solution import CODE, Solution, Status


class State(NamedTuple):
    x: Tensor
    r: Tensor
    u: Tensor
    v: Tensor
    alpha: Tensor
    Av: Tensor
    square: Tensor
    h: Tensor  # directions, and what A makes of them
    Ah: Tensor
    h_bar: Tensor
    Ah_bar: Tensor
    alpha_bar: Tensor  # rotations
    rho: Tensor
    rho_bar: Tensor
    c_bar: Tensor
    s_bar: Tensor
    zeta_bar: Tensor  # +-||A^T r||
    largest: Tensor  # of the diagonal of the second factor, and the smallest but for the last
    smallest: Tensor
    normal: Tensor
    A_norm: Tensor
    condition: Tensor


class LSMR:
    """MINRES for A^T A x = A^T b: two QR factorizations of bidiagonal matrices by rotations."""

    @staticmethod
    def products(iterations: int) -> int:
        return 2 * iterations

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> State:
        q, beta = first_vectors(A, r, running)
        one, zero, none = torch.ones_like(beta), torch.zeros_like(beta), torch.zeros_like(x)
        zeta_bar = q.alpha * beta
        return State(
            x, r, *q, q.v, q.Av, none, torch.zeros_like(q.Av), q.alpha, one, one, one, zero, zeta_bar,
            zero, torch.full_like(zero, torch.inf), zeta_bar.detach(), q.alpha.detach(), one,
        )  # fmt: skip

    def step(self, A: Any, M: Any, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        s = state
        q, beta = next_vectors(A, s, running)
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
        # The condition number is estimated by the diagonal of the second factor, without the 1 it begins
        # with.
        known = above.detach().abs()
        largest = torch.maximum(s.largest, known)
        smallest = torch.minimum(s.smallest, known)
        new = State(
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

    As `lsqr`, but each iterate minimizes :math:`\|A^T r\|`, which decreases steadily: better to stop early.

    Parameters
    ----------
    A, b, x0, damp, atol, btol, conlim, maxiter, callback, gradient, throw : as for `lsqr`
    adjoint_rtol, adjoint_maxiter, transpose, parameters : as for `lsqr`

    Returns
    -------
    Solution, as that of `lsqr`

    Raises
    ------
    ValueError, TypeError, SolverError
        as `cg`.

    Notes
    -----
    Gradients and cost are those of `lsqr`.

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
