"""Krylov methods for square matrices: conjugate gradients, MINRES, BiCGSTAB, GMRES, with their flexible
forms."""

from collections.abc import Callable
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import TensorLike
from learnsolve.ops.operators import Map
from learnsolve.ops.products import combination, multiply_columns
from learnsolve.solvers.core.arguments import check_options
from learnsolve.solvers.core.entry import solve
from learnsolve.solvers.core.loop import Method
from learnsolve.solvers.core.operators import axpy, divide, dot, root, size, square, store_vector
from learnsolve.solvers.options import (
    Options,
    SolverOptions,
    SymmetricOptions,
    fix_iterations,
    read_options,
    solver,
)
from learnsolve.solvers.solution import CODE, Solution, Status

# Preconditioned conjugate gradients: `cg`, the flexible `fcg`, and the module `CG`.
#
# Sources: Saad, "Iterative Methods for Sparse Linear Systems" (2003), algorithm 9.1; Notay, "Flexible
# conjugate gradients", SIAM J. Sci. Comput. 22 (2000) 1444-1460, with one direction kept.


class CGState(NamedTuple):
    x: Tensor
    r: Tensor
    p: Tensor  # the direction
    rho: Tensor  # <r, M r>


class ConjugateGradients(Method):
    """With q = A p: x += alpha p, r -= alpha q, alpha = rho / <p, q>; p = M r + beta p, beta = rho / rho_old.

    `flexible` subtracts <r_old, M r> from rho in beta. The term is zero if M is linear and symmetric. For any
    other M it keeps p conjugate to the previous direction.
    """

    cg_state = CGState  # core/advance.py

    def __init__(self, flexible: bool = False):
        self.flexible = flexible

    def start(self, A: Map, M: Map | None, x: Tensor, r: Tensor, running: Tensor) -> CGState:
        z = r if M is None else M(r)
        return CGState(x, r, z, dot(r, z))

    def step(
        self, A: Map, M: Map | None, b: Tensor, state: CGState, running: Tensor
    ) -> tuple[CGState, Tensor]:
        x, r, p, rho = state
        q = A(p)
        curvature = dot(p, q)
        wrong = (curvature <= 0) | (rho <= 0)
        good = running & ~wrong
        alpha = divide(rho, curvature, good)
        x, r_old, r = x + multiply_columns(alpha, p), r, r - multiply_columns(alpha, q)
        z = r if M is None else M(r)
        rho_old, rho = rho, dot(r, z)
        beta = divide(rho - dot(r_old, z) if self.flexible else rho, rho_old, good)
        return CGState(x, r, z + multiply_columns(beta, p), rho), torch.where(
            wrong, CODE[Status.INDEFINITE], 0
        )


@solver(SymmetricOptions)
def cg(
    A: object,
    b: TensorLike,
    x0: TensorLike | None = None,
    **options: Unpack[SymmetricOptions],
) -> Solution:
    r"""Conjugate gradients for a symmetric positive definite A, preconditioned by M.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz); a `BlockBatch`, each block of which is a system; a
        scipy.sparse.linalg.LinearOperator; or a callable x -> A x on tensors of b's shape
    b : Tensor or NumPy array, shape (n,) or (..., n, k). Each column stops by its own true residual.
    x0 : like b, or zero if not given
    M : an approximation of A^-1, symmetric positive definite: callable r -> M r, CSR or LinearOperator. For a
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
    return solve("cg", ConjugateGradients(), A, b, x0, read_options("cg", options), symmetric=True)


@solver(SymmetricOptions)
def fcg(
    A: object,
    b: TensorLike,
    x0: TensorLike | None = None,
    **options: Unpack[SymmetricOptions],
) -> Solution:
    """Flexible conjugate gradients: `cg` for an M that is nonlinear, not quite symmetric, or learned.

    If M changes from step to step, plain conjugate gradients stall. This method keeps each direction
    conjugate to the previous one at the cost of one more inner product.

    Parameters
    ----------
    A, b, x0 : see `cg`
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
    return solve("fcg", method, A, b, x0, read_options("fcg", options), symmetric=True)


class CG(torch.nn.Module):
    """`cg`, or `fcg`, with a trainable preconditioner.

    Parameters
    ----------
    M : callable r -> M r, usually a torch.nn.Module, whose parameters become parameters of this module
    flexible : use `fcg`, for an M that is nonlinear or not symmetric
    rtol, atol, maxiter, iterations : see `cg`
    gradient : "unrolled" or "checkpointed" for the gradient of M; "implicit" for an M that is not trained
    throw, null_space : see `cg`

    Raises
    ------
    ValueError
        if gradient is not one of the three, rtol, atol, maxiter or iterations is negative, or iterations is
        given with one of the others.
    TypeError
        if M is not callable, or an argument is of another type. null_space is checked in the forward call.

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
    >>> solver = ls.solvers.CG(Scale(), iterations=4)
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
        iterations: int | None = None,
        gradient: str = "unrolled",
        throw: bool = False,
        null_space: object = None,
    ):
        super().__init__()
        if not callable(M):
            raise TypeError(f"CG: M must be a callable r -> M r, got {type(M).__name__}. Without M use cg")
        checks.flag("CG", "flexible", flexible)
        check_options(
            "CG",
            fix_iterations("CG", Options(rtol, atol, maxiter, iterations, gradient=gradient, throw=throw)),
        )
        self.M = M
        self.flexible = flexible
        self.rtol, self.atol, self.maxiter, self.iterations = rtol, atol, maxiter, iterations
        self.gradient, self.throw, self.null_space = gradient, throw, null_space

    def forward(self, A: object, b: TensorLike, x0: TensorLike | None = None) -> Solution:
        """Solve A x = b by `cg` with the current parameters. Arguments and result are those of `cg`."""
        return (fcg if self.flexible else cg)(
            A,
            b,
            x0,
            rtol=self.rtol,
            atol=self.atol,
            maxiter=self.maxiter,
            iterations=self.iterations,
            M=self.M,
            gradient=self.gradient,
            throw=self.throw,
            null_space=self.null_space,
        )

    def extra_repr(self) -> str:
        ends = f"iterations={self.iterations}"
        if self.iterations is None:
            ends = f"rtol={self.rtol}, atol={self.atol}, maxiter={self.maxiter}"
        return f"flexible={self.flexible}, {ends}, gradient={self.gradient!r}"


# MINRES, for symmetric matrices that may be indefinite.
#
# Sources: Paige and Saunders, "Solution of sparse indefinite systems of linear equations", SIAM J. Numer.
# Anal. 12 (1975) 617-629; Elman, Silvester and Wathen, "Finite Elements and Fast Iterative Solvers" (2014),
# algorithm 4.1.


class MinresState(NamedTuple):
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


class MinimalResidual(Method):
    """Lanczos's method with M, and a QR factorization of the tridiagonal matrix by rotations."""

    state, state_vectors = MinresState, 9  # see core/advance.py

    def start(self, A: Map, M: Map | None, x: Tensor, r: Tensor, running: Tensor) -> MinresState:
        z = r if M is None else M(r)
        gamma = root(dot(r, z))
        none, one, zero = torch.zeros_like(r), torch.ones_like(gamma), torch.zeros_like(gamma)
        # A negative <r, M r> is kept, and detected by the first step.
        gamma = torch.where(dot(r, z) < 0, -one, gamma)
        nil = zero.detach()
        return MinresState(
            x, r, none, r, z, none, none, none, none, one, gamma, one, one, zero, zero, gamma,
            nil, nil, size(r),
        )  # fmt: skip

    def step(
        self, A: Map, M: Map | None, b: Tensor, state: MinresState, running: Tensor
    ) -> tuple[MinresState, Tensor]:
        q = state
        z = divide(q.z, q.gamma, running & (q.gamma > 0))
        Az = A(z)
        delta = dot(Az, z)
        v = Az - multiply_columns(divide(delta, q.gamma, running), q.v)
        v = v - multiply_columns(divide(q.gamma, q.gamma_old, running), q.v_old)
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
        w = divide(z - multiply_columns(a3, q.w_older) - multiply_columns(a2, q.w_old), a1, running)
        Aw = divide(Az - multiply_columns(a3, q.Aw_older) - multiply_columns(a2, q.Aw_old), a1, running)
        length = c * q.eta
        x, r = q.x + multiply_columns(length, w), q.r - multiply_columns(length, Aw)
        norm_A = torch.maximum(q.norm_A, divide(size(Az), size(z), running))
        # Rounding errors can make <v, M v> slightly negative.
        slack = eps * dot(v.detach().abs(), z_next.detach().abs())
        indefinite = (q.gamma < 0) | (square < -slack)
        # ||A r|| / ||r|| (Paige and Saunders): where it is zero, r cannot be reduced further and x is a
        # least-squares solution.
        left = root(a0 * a0 + (q.c * gamma) ** 2).detach()
        stuck = left <= eps * largest
        new = MinresState(
            x, r, q.v, v, z_next, q.w_old, w, q.Aw_old, Aw, q.gamma, gamma, q.c, c, q.s, s, -s * q.eta,
            largest, norm_A, q.began,
        )  # fmt: skip
        trouble = torch.where(stuck, CODE[Status.BREAKDOWN], 0)
        trouble = torch.where(indefinite, CODE[Status.INDEFINITE], trouble)
        return new, trouble

    def is_inaccurate(self, state: MinresState, running: Tensor) -> Tensor:
        """Whether rounding errors may have outgrown r, which the recurrence for r does not show."""
        eps = torch.finfo(state.r.dtype).eps
        return running & (100 * eps * state.norm_A * size(state.x) > size(state.r))

    def lost(self, A: Map, b: Tensor, old: MinresState, new: MinresState) -> Tensor:
        """Whether they have."""
        return size(b - A(new.x)) > 1.1 * size(old.r)

    def restart_inaccurate(
        self, A: Map, M: Map | None, b: Tensor, old: MinresState, new: MinresState, doubt: Tensor
    ) -> tuple[MinresState, Tensor]:
        """The old state where they have: the step is discarded."""
        lost = doubt & self.lost(A, b, old, new)
        fresh = self.start(A, M, old.x, b - A(old.x), doubt)
        state = MinresState(*(torch.where(lost, f, n) for f, n in zip(fresh, new, strict=True)))
        stuck = lost & (fresh.began > 0.5 * old.began)
        return state, torch.where(stuck, CODE[Status.STAGNATED], 0)


@solver(SymmetricOptions)
def minres(
    A: object,
    b: TensorLike,
    x0: TensorLike | None = None,
    **options: Unpack[SymmetricOptions],
) -> Solution:
    r"""MINRES for a symmetric A that may be indefinite, preconditioned by M.

    Each iterate minimizes :math:`\|b - A x\|` (with M: in the norm of M) over the Krylov space.
    It also solves consistent singular systems, with `null_space` for the solution of minimum norm.

    Parameters
    ----------
    A : symmetric, otherwise as for `cg`
    M : symmetric positive definite, even if A is not, otherwise as for `cg`
    b, x0 : see `cg`
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
    return solve("minres", MinimalResidual(), A, b, x0, read_options("minres", options), symmetric=True)


# BiCGSTAB, a short-recurrence method for any square matrix.
#
# Source: van der Vorst, "Bi-CGSTAB", SIAM J. Sci. Stat. Comput. 13 (1992) 631-644; with right
# preconditioning.


class BicgstabState(NamedTuple):
    x: Tensor
    r: Tensor
    shadow: Tensor  # the residual at the last start
    p: Tensor
    v: Tensor  # A M p
    rho: Tensor
    alpha: Tensor
    omega: Tensor


class BiCGSTAB(Method):
    """One step of BiCG followed by one step of GMRES(1), which chooses omega.

    BiCG divides by rho = <shadow, r>, <shadow, v> and omega. If one of them is zero, the column restarts with
    its residual as the shadow vector. This is deterministic and keeps x. The column fails only if the first
    step after a restart does not change x.
    """

    def products(self, iterations: int) -> int:
        return 2 * iterations

    state, state_vectors = BicgstabState, 5  # see core/advance.py
    takes_complex = True

    def start(self, A: Map, M: Map | None, x: Tensor, r: Tensor, running: Tensor) -> BicgstabState:
        none, one = torch.zeros_like(r), torch.ones_like(r[..., :1, :])
        return BicgstabState(
            x, r, r, none, none, one, torch.zeros_like(one), one
        )  # alpha = 0: start in the step

    def step(
        self, A: Map, M: Map | None, b: Tensor, state: BicgstabState, running: Tensor
    ) -> tuple[BicgstabState, Tensor]:
        q = state
        rho = dot(q.shadow, q.r)
        again = _zero(rho, q.shadow, q.r) | (q.alpha == 0) | (q.omega == 0)
        shadow = torch.where(again, q.r, q.shadow)
        rho = torch.where(again, square(q.r).to(rho.dtype), rho)
        beta = divide(rho, q.rho, running & ~again) * divide(q.alpha, q.omega, running)
        p = axpy(q.r, beta, axpy(q.p, -q.omega, q.v))
        Mp = p if M is None else M(p)
        v = A(Mp)
        rv = dot(shadow, v)
        # Without this part the step is a pure GMRES(1) step, which never increases the residual.
        alpha = divide(rho, rv, running & ~_zero(rv, shadow, v))
        s = axpy(q.r, -alpha, v)
        Ms = s if M is None else M(s)
        t = A(Ms)
        ts = dot(t, s)
        omega = divide(ts, square(t), running & ~_zero(ts, t, s))
        x, r = axpy(axpy(q.x, alpha, Mp), omega, Ms), axpy(s, -omega, t)
        stuck = again & (alpha == 0) & (omega == 0)
        return BicgstabState(x, r, shadow, p, v, rho, alpha, omega), torch.where(
            stuck, CODE[Status.BREAKDOWN], 0
        )


def _zero(product: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Whether u and v are orthogonal up to rounding."""
    return product.detach().abs() <= torch.finfo(u.dtype).eps * size(u) * size(v)


@solver(SolverOptions)
def bicgstab(
    A: object,
    b: TensorLike,
    x0: TensorLike | None = None,
    **options: Unpack[SolverOptions],
) -> Solution:
    r"""BiCGSTAB for any square A, right-preconditioned by M. It uses little memory but may break down.

    Parameters
    ----------
    A : CSR, BlockBatch, LinearOperator or callable, shape (n, n), as for `cg`, but any nonsingular matrix
    b : Tensor or NumPy array, shape (n,) or (..., n, k)
    x0 : see `cg`
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
    return solve("bicgstab", BiCGSTAB(), A, b, x0, read_options("bicgstab", options))


# GMRES with restarts, and its flexible form, for any square matrix.
#
# Sources: Saad and Schultz, "GMRES", SIAM J. Sci. Stat. Comput. 7 (1986) 856-869; Saad, "A flexible
# inner-outer preconditioned GMRES algorithm", SIAM J. Sci. Comput. 14 (1993) 461-469. The iterate is
# updated in every iteration, with directions P = Z R^-1 (Saad, "Iterative Methods for Sparse Linear
# Systems" (2003), section 6.5.8), so that the method can stop after any iteration and callbacks can read
# its iterate.


class GmresState(NamedTuple):
    x: Tensor
    r: Tensor
    V: Tensor  # the orthonormal basis, (j + 1, ..., n, k), with spare room if autograd does not record
    P: Tensor  # (j, ..., n, k), directions of x, likewise
    Q: Tensor | None  # (j + 1, j + 1, ..., 1, k), the product of the rotations; None: computed from c and s
    c: Tensor  # (j, ..., 1, k), cosines of the rotations
    s: Tensor  # and sines
    eta: Tensor  # the last entry of the rotated right-hand side
    largest: Tensor  # ||A z|| so far, a constant


class GeneralizedMinimalResidual(Method):
    """Arnoldi's method with two orthogonalizations, right preconditioning. For complex values the rotations
    are ((conj(c), s), (-s, c)) with real sines."""

    takes_complex = True

    def __init__(self, restart: int):
        self.restart = restart

    def products(self, iterations: int) -> int:
        return iterations + max(iterations - 1, 0) // self.restart

    def start(self, A: Map, M: Map | None, x: Tensor, r: Tensor, running: Tensor) -> GmresState:
        length = root(square(r))
        v = divide(r, length, running)
        none = length.new_empty((0, *length.shape))
        basis, directions = v.unsqueeze(0), v.new_empty((0, *v.shape))
        return GmresState(
            x, r, basis, directions, None, none, none, length, torch.zeros_like(length).detach()
        )

    def step(
        self, A: Map, M: Map | None, b: Tensor, state: GmresState, running: Tensor
    ) -> tuple[GmresState, Tensor]:
        if len(state.c) == self.restart:
            state = self.start(A, M, state.x, b - A(state.x), running)
        x, r, V, P, Q, cosines, sines, eta, largest = state
        j, every = len(cosines), (V, P)
        if Q is None:
            Q = torch.ones_like(largest)[None, None]
            for c, s in zip(cosines, sines, strict=True):
                Q = _rotate(Q, c, s)
        V, P = V[: j + 1], P[:j]
        z = V[j] if M is None else M(V[j])
        w = A(z)
        largest = torch.maximum(largest, size(w))
        h = dot(V, w)
        w = w - combination(h, V)
        again = dot(V, w)
        w = w - combination(again, V)
        h = h + again
        below = root(square(w))
        # If the remainder of A z is only rounding errors, the basis is complete.
        noise = 10 * torch.finfo(w.dtype).eps * largest
        below = torch.where(below.detach() <= noise, 0, below)
        column = (Q * h).sum(1)
        diagonal = root((column[-1] * column[-1].conj()).real + below * below)
        c, s = divide(column[-1], diagonal, running), divide(below, diagonal, running)
        direction = z
        if j:
            direction = z - combination(column[:-1], P)
        p = divide(direction, diagonal, running)
        v = divide(w, below, running)
        x = axpy(x, c.conj() * eta, p)
        eta_next = -s * eta
        # r_j = s_j^2 r_{j-1} + conj(c_j) eta_{j+1} v_{j+1}
        r = axpy(multiply_columns(s * s, r), c.conj() * eta_next, v)
        new = GmresState(
            x,
            r,
            store_vector(every[0], j + 1, v, self.restart + 1),
            store_vector(every[1], j, p, self.restart),
            _rotate(Q, c, s),
            torch.cat((cosines, c.unsqueeze(0))),
            torch.cat((sines, s.unsqueeze(0))),
            eta_next,
            largest,
        )
        return new, torch.where(diagonal <= noise, CODE[Status.BREAKDOWN], 0)


def _rotate(Q: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Q with one more rotation, applied to the last row and a new one."""
    last = Q[-1:]
    rows = torch.cat((Q[:-1], c.conj() * last, -s * last))
    one = torch.zeros_like(rows[:, :1])
    one[-2:, 0] = torch.stack((s.to(c), c))
    return torch.cat((rows, one), 1)


def _make_gmres(name: str, restart: int | None) -> GeneralizedMinimalResidual:
    restart = 20 if restart is None else checks.integer(name, "restart", restart, 1)
    return GeneralizedMinimalResidual(restart)


@solver(SolverOptions)
def gmres(
    A: object,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    restart: int | None = 20,
    **options: Unpack[SolverOptions],
) -> Solution:
    r"""GMRES for any square A, restarted, preconditioned by M from the right.

    Each iterate minimizes :math:`\|b - A x\|` over the Krylov space of the last `restart` iterations at most.

    Parameters
    ----------
    A : CSR, BlockBatch, LinearOperator or callable, shape (n, n), as for `cg`, but any nonsingular matrix
    b : Tensor or NumPy array, shape (n,) or (..., n, k)
    maxiter : int, 10 n if not given: iterations, each with one product (SciPy counts restarts)
    restart : int, iterations between restarts
    x0 : see `cg`
    options : shared keywords

    Notes
    -----
    Implicit gradient: :math:`\bar b = \lambda`, :math:`\bar A = -\lambda x^T` on the pattern with
    :math:`A^T \lambda = \bar x`, solved by the same method. Cost: one product with A and one with M
    per iteration, up to 4 `restart` inner products, and memory for 2 `restart` blocks of b's size.

    References
    ----------
    Y. Saad, M. H. Schultz, "GMRES", SIAM J. Sci. Stat. Comput. 7 (1986) 856-869, doi:10.1137/0907058

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [0.0, -2.0]], dtype=torch.float64))
    >>> b = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
    >>> solution = ls.solvers.gmres(A, b, rtol=1e-12)
    >>> solution.x.detach()
    tensor([1.0000, 1.0000], dtype=torch.float64)
    >>> solution.x[1].backward()
    >>> b.grad
    tensor([ 0.0000, -0.5000], dtype=torch.float64)
    """
    return solve("gmres", _make_gmres("gmres", restart), A, b, x0, read_options("gmres", options))


@solver(SolverOptions)
def fgmres(
    A: object,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    restart: int | None = 20,
    **options: Unpack[SolverOptions],
) -> Solution:
    r"""Flexible GMRES: for an M that is nonlinear, learned, or another iteration.

    The iterate is a combination of the vectors that M returned, so M may change from step to step. The
    recurrences are the same as in `gmres`, which stores the same vectors in this implementation. Only the
    adjoint solve differs, since a nonlinear M has no transpose. Gradients and cost are as for `gmres`.

    Parameters
    ----------
    M : an approximation of A^-1: any callable r -> M r, applied to vectors of norm one; CSR or LinearOperator
    adjoint_M : preconditioner of the adjoint solve with A^T, for gradient="implicit". Default: M.T if M has
        it, otherwise none
    A, b, x0, restart : see `gmres`
    options : shared keywords

    References
    ----------
    Y. Saad, "A flexible inner-outer preconditioned GMRES algorithm", SIAM J. Sci. Comput. 14 (1993) 461-469,
    doi:10.1137/0914028

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((10, 10))
    >>> b = torch.ones(100, dtype=torch.float64)
    >>> inner = lambda r: ls.solvers.cg(A, r, rtol=0.1).x  # not linear in r
    >>> ls.solvers.fgmres(A, b, M=inner).status.name
    'CONVERGED'
    """
    method = _make_gmres("fgmres", restart)
    return solve("fgmres", method, A, b, x0, read_options("fgmres", options), needs_transposed_M=False)
