"""GMRES with restarts, and its flexible form, for any square matrix.

Sources: Saad and Schultz, "GMRES", SIAM J. Sci. Stat. Comput. 7 (1986) 856-869; Saad, "A flexible inner-outer
preconditioned GMRES algorithm", SIAM J. Sci. Comput. 14 (1993) 461-469. The iterate is updated in every
iteration, with directions P = Z R^-1 (Saad, "Iterative Methods for Sparse Linear Systems" (2003), section
6.5.8), so that the method can stop after any iteration and callbacks can read its iterate.
"""

from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import TensorLike
from learnsolve.ops.core.dots import combination, scaled
from learnsolve.solvers.core.door import solve
from learnsolve.solvers.core.vectors import add_scaled, divide, dot, extended, root, size, square
from learnsolve.solvers.options import SolverOptions, options_of, solver
from learnsolve.solvers.solution import CODE, Solution, Status


class State(NamedTuple):
    x: Tensor
    r: Tensor
    V: Tensor  # the orthonormal basis, (j + 1, ..., n, k), with spare room if autograd does not record
    P: Tensor  # (j, ..., n, k), directions of x, likewise
    Q: Tensor | None  # (j + 1, j + 1, ..., 1, k), the product of the rotations; None: computed from c and s
    c: Tensor  # (j, ..., 1, k), cosines of the rotations
    s: Tensor  # and sines
    eta: Tensor  # the last entry of the rotated right-hand side
    largest: Tensor  # ||A z|| so far, a constant


class GeneralizedMinimalResidual:
    """Arnoldi's method with two orthogonalizations, right preconditioning. For complex values the rotations
    are ((conj(c), s), (-s, c)) with real sines."""

    steps = (2, 0)  # see core/advance.py
    takes_complex = True

    def __init__(self, restart: int):
        self.restart = restart

    def products(self, iterations: int) -> int:
        return iterations + max(iterations - 1, 0) // self.restart

    def start(self, A: Any, M: Any, x: Tensor, r: Tensor, running: Tensor) -> State:
        length = root(square(r))
        v = divide(r, length, running)
        none = length.new_empty((0, *length.shape))
        basis, directions = v.unsqueeze(0), v.new_empty((0, *v.shape))
        return State(x, r, basis, directions, None, none, none, length, torch.zeros_like(length).detach())

    def step(self, A: Any, M: Any, b: Tensor, state: State, running: Tensor) -> tuple[State, Tensor]:
        if len(state.c) == self.restart:
            state = self.start(A, M, state.x, b - A(state.x), running)
        x, r, V, P, Q, cosines, sines, eta, largest = state
        j, every = len(cosines), (V, P)
        if Q is None:
            Q = torch.ones_like(largest)[None, None]
            for c, s in zip(cosines, sines, strict=True):
                Q = _rotated(Q, c, s)
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
        x = add_scaled(x, c.conj() * eta, p)
        eta_next = -s * eta
        # r_j = s_j^2 r_{j-1} + conj(c_j) eta_{j+1} v_{j+1}
        r = add_scaled(scaled(s * s, r), c.conj() * eta_next, v)
        new = State(
            x,
            r,
            extended(every[0], j + 1, v, self.restart + 1),
            extended(every[1], j, p, self.restart),
            _rotated(Q, c, s),
            torch.cat((cosines, c.unsqueeze(0))),
            torch.cat((sines, s.unsqueeze(0))),
            eta_next,
            largest,
        )
        return new, torch.where(diagonal <= noise, CODE[Status.BREAKDOWN], 0)


def _rotated(Q: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Q with one more rotation, applied to the last row and a new one."""
    last = Q[-1:]
    rows = torch.cat((Q[:-1], c.conj() * last, -s * last))
    one = torch.zeros_like(rows[:, :1])
    one[-2:, 0] = torch.stack((s.to(c), c))
    return torch.cat((rows, one), 1)


def _restarted(name: str, restart: int | None) -> GeneralizedMinimalResidual:
    restart = 20 if restart is None else checks.integer(name, "restart", restart, 1)
    return GeneralizedMinimalResidual(restart)


@solver(SolverOptions)
def gmres(
    A: Any,
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
    A : CSR, BlockBatch, LinearOperator or callable, shape (n, n), as for `cg`; any nonsingular matrix
    b : Tensor or NumPy array, shape (n,) or (..., n, k)
    maxiter : int, 10 n if not given: iterations, each with one product (SciPy counts restarts)
    restart : int, iterations between restarts
    x0 : as for `cg`
    options : shared keywords

    Notes
    -----
    Implicit gradient: :math:`\bar b = \lambda`, :math:`\bar A = -\lambda x^T` on the pattern with
    :math:`A^T \lambda = \bar x`, solved by the same method. Cost: one product with A and one with M
    per iteration, up to 4 `restart` inner products; memory for 2 `restart` blocks of b's size.

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
    return solve("gmres", _restarted("gmres", restart), A, b, x0, options_of("gmres", options))


@solver(SolverOptions)
def fgmres(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    restart: int | None = 20,
    **options: Unpack[SolverOptions],
) -> Solution:
    r"""Flexible GMRES: for an M that is nonlinear, learned, or another iteration.

    The iterate is a combination of the vectors that M returned, so M may change from step to step. The
    recurrences are the same as in `gmres`, which stores the same vectors in this implementation; only the
    adjoint solve differs, since a nonlinear M has no transpose. Gradients and cost are as for `gmres`.

    Parameters
    ----------
    M : an approximation of A^-1: any callable r -> M r, applied to vectors of norm one; CSR or LinearOperator
    adjoint_M : preconditioner of the adjoint solve with A^T, for gradient="implicit". Default: M.T if M has
        it, otherwise none
    A, b, x0, restart : as for `gmres`
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
    method = _restarted("fgmres", restart)
    return solve("fgmres", method, A, b, x0, options_of("fgmres", options), needs_transposed_M=False)
