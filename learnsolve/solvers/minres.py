"""MINRES, for symmetric matrices that may be indefinite.

Sources: Paige and Saunders, "Solution of sparse indefinite systems of linear equations", SIAM J. Numer. Anal.
12 (1975) 617-629; Elman, Silvester and Wathen, "Finite Elements and Fast Iterative Solvers" (2014), algorithm
4.1.
"""

from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from learnsolve.matrix.convert import TensorLike
from learnsolve.ops.core.dots import scaled
from learnsolve.solvers.core.door import solve
from learnsolve.solvers.core.vectors import divide, dot, root, size
from learnsolve.solvers.options import SymmetricOptions, options_of, solver
from learnsolve.solvers.solution import CODE, Solution, Status


class State(NamedTuple):
    x: Tensor
    r: Tensor
    v_old: Tensor  # Lanczos vectors, not normalized
    v: Tensor
    z: Tensor  # M v
    w_older: Tensor  # directions of x
    w_old: Tensor
    Aw_older: Tensor  # and of r
    Aw_old: Tensor
    gamma_old: Tensor  # norms of v_old and v with respect to M
    gamma: Tensor
    c_old: Tensor  # Givens rotations
    c: Tensor
    s_old: Tensor
    s: Tensor
    eta: Tensor  # the remaining residual in the norm of M
    largest: Tensor  # entry of the tridiagonal matrix so far, a constant
    norm_A: Tensor  # the largest ||A z|| / ||z|| so far, a constant
    began: Tensor  # the initial ||r||, a constant


class MinimalResidual:
    """Lanczos's method with M, and a QR factorization of the tridiagonal matrix by rotations."""

    steps = (0, 9)  # see core/advance.py

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> State:
        z = r if M is None else M(r)
        gamma = root(dot(r, z))
        none, one, zero = torch.zeros_like(r), torch.ones_like(gamma), torch.zeros_like(gamma)
        # A negative <r, M r> is kept, and detected by the first step.
        gamma = torch.where(dot(r, z) < 0, -one, gamma)
        nil = zero.detach()
        return State(
            x, r, none, r, z, none, none, none, none, one, gamma, one, one, zero, zero, gamma,
            nil, nil, size(r),
        )  # fmt: skip

    def step(self, A: Any, M: Any, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        q = state
        z = divide(q.z, q.gamma, running & (q.gamma > 0))
        Az = A(z)
        delta = dot(Az, z)
        v = Az - scaled(divide(delta, q.gamma, running), q.v)
        v = v - scaled(divide(q.gamma, q.gamma_old, running), q.v_old)
        z_next = v if M is None else M(v)
        square = dot(v, z_next)
        gamma = root(square)
        eps = 10 * torch.finfo(v.dtype).eps
        largest = torch.maximum(torch.maximum(q.largest, delta.abs()), gamma).detach()
        # If the remainder of A z is only rounding errors, the basis is complete.
        gamma = torch.where(gamma <= eps * largest, 0, gamma)
        a0 = q.c * delta - q.c_old * q.s * q.gamma
        a1 = root(a0 * a0 + gamma * gamma)
        a2 = q.s * delta + q.c_old * q.c * q.gamma
        a3 = q.s_old * q.gamma
        c, s = divide(a0, a1, running), divide(gamma, a1, running)
        w = divide(z - scaled(a3, q.w_older) - scaled(a2, q.w_old), a1, running)
        Aw = divide(Az - scaled(a3, q.Aw_older) - scaled(a2, q.Aw_old), a1, running)
        length = c * q.eta
        x, r = q.x + scaled(length, w), q.r - scaled(length, Aw)
        norm_A = torch.maximum(q.norm_A, divide(size(Az), size(z), running))
        # Rounding errors can make <v, M v> slightly negative.
        slack = eps * dot(v.detach().abs(), z_next.detach().abs())
        indefinite = (q.gamma < 0) | (square < -slack)
        # ||A r|| / ||r|| (Paige and Saunders): where it is zero, r cannot be reduced further and x is a
        # least-squares solution.
        left = root(a0 * a0 + (q.c * gamma) ** 2).detach()
        stuck = left <= eps * largest
        new = State(
            x, r, q.v, v, z_next, q.w_old, w, q.Aw_old, Aw, q.gamma, gamma, q.c, c, q.s, s, -s * q.eta,
            largest, norm_A, q.began,
        )  # fmt: skip
        trouble = torch.where(stuck, CODE[Status.BREAKDOWN], 0)
        trouble = torch.where(indefinite, CODE[Status.INDEFINITE], trouble)
        return new, trouble

    def doubts(self, state: State, running: Tensor) -> Tensor:
        """Whether rounding errors may have outgrown r, which the recurrence for r does not show."""
        eps = torch.finfo(state.r.dtype).eps
        return running & (100 * eps * state.norm_A * size(state.x) > size(state.r))

    def mended(
        self, A: Any, M: Any, b: Tensor, old: State, new: State, doubt: Tensor
    ) -> tuple[State, Tensor]:
        """The old state where they have: the step is discarded."""
        lost = doubt & (size(b - A(new.x)) > 1.1 * size(old.r))
        fresh = self.start(A, M, old.x, b - A(old.x), doubt)
        state = State(*(torch.where(lost, f, n) for f, n in zip(fresh, new, strict=True)))
        stuck = lost & (fresh.began > 0.5 * old.began)
        return state, torch.where(stuck, CODE[Status.STAGNATED], 0)


@solver(SymmetricOptions)
def minres(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    **options: Unpack[SymmetricOptions],
) -> Solution:
    r"""MINRES for a symmetric A that may be indefinite, preconditioned by M.

    Each iterate minimizes :math:`\|b - A x\|` (with M: in the norm of M) over the Krylov space.
    It also solves consistent singular systems; `null_space` gives the solution of minimum norm.

    Parameters
    ----------
    A : symmetric; otherwise as for `cg`
    M : symmetric positive definite, even if A is not; otherwise as for `cg`
    b, x0 : as for `cg`
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
    Gradients are as for `cg`. Cost: one product with A and one with M per iteration.

    References
    ----------
    C. C. Paige, M. A. Saunders, "Solution of sparse indefinite systems of linear equations", SIAM J. Numer.
    Anal. 12 (1975) 617-629, doi:10.1137/0712047

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [1.0, -2.0]], dtype=torch.float64))
    >>> solution = ls.solvers.minres(A, torch.tensor([3.0, -1.0], dtype=torch.float64), rtol=1e-12)
    >>> solution.x
    tensor([1.0000, 1.0000], dtype=torch.float64)
    """
    return solve("minres", MinimalResidual(), A, b, x0, options_of("minres", options), symmetric=True)
