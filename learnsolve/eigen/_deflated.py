r"""(A - lambda_i B) y_i = r_i up to a multiple of B U, with U^T B y_i = 0, without derivatives.

For the derivatives of the eigenvectors U. Their span is excluded from the space, so the systems are
nonsingular, although each lambda_i is an eigenvalue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from learnsolve.eigen._basis import lengths, orthonormal
from learnsolve.solvers.core.report import quiet
from learnsolve.solvers.minres import minres
from learnsolve.solvers.solution import Status

Map = Callable[[Tensor], Tensor]
# (values (c,), R (n, c)) -> Y, and a message on failures, empty if there are none.
Solve = Callable[[Tensor, Tensor], tuple[Tensor, str]]
_STEPS = 40  # of `Shifted`, in blocks; it restarts when the basis has `_BASIS` columns
_BASIS = 240


class Deflated(NamedTuple):
    """Data shared by the methods: U, W = B U, and products with B."""

    U: Tensor
    W: Tensor
    B: Map
    rtol: float

    def out_of(self, X: Tensor) -> Tensor:
        """P X for vectors, P = I - U W^T."""
        return torch.addmm(X, self.U, self.W.mT @ X, alpha=-1)

    def without_W(self, R: Tensor) -> Tensor:
        """P^T R."""
        return torch.addmm(R, self.W, self.U.mT @ R, alpha=-1)

    def into(self, R: Tensor) -> Tensor:
        """P^T R for right-hand sides; zero if it is only rounding, as for R that depends only on span(U)."""
        P = self.without_W(R)
        return P.where(P.norm(dim=0) > 1e3 * torch.finfo(R.dtype).eps * R.norm(dim=0), 0)


def by_all_pairs(space: Deflated, others: Tensor, V: Tensor) -> Solve:
    """Solves with all other eigenpairs of a dense matrix."""

    def solve(values: Tensor, R: Tensor) -> tuple[Tensor, str]:
        return V @ ((V.mT @ R) / (others.unsqueeze(-1) - values)), ""

    return solve


def by_factor(space: Deflated, inverse: Map, sigma: float) -> Solve:
    """Solves with T = (A - sigma B)^-1, by Galerkin's method in a Krylov space shared by all columns:

        y - (lambda_i - sigma) T B y = T r.

    T B is symmetric in <u, B v>, and the spectrum of the left side clusters at 1: few products with blocks.
    Source: O'Leary, "The block conjugate gradient algorithm and related methods", Linear Algebra Appl. 29
    (1980).
    """

    def solve(values: Tensor, R: Tensor) -> tuple[Tensor, str]:
        Y = torch.zeros_like(R)
        mu = values - sigma
        W0 = space.out_of(inverse(space.into(R)))
        active = (W0 != 0).any(0)
        target = space.rtol * lengths(W0, space.B(W0))
        residual, left = W0, torch.zeros_like(target)
        for _ in range(3):  # repeated to remove rounding errors
            if not bool(active.any()):
                break
            Y[:, active] += _galerkin(space, inverse, mu[active], residual[:, active], target[active])
            residual = W0 - Y + mu * space.out_of(inverse(space.B(Y)))
            left = lengths(residual, space.B(residual))
            active = left > 10 * target
        lost = ~(left <= 1e3 * target)
        return Y, f"{int(lost.sum())} of {len(mu)} columns" if bool(lost.any()) else ""

    return solve


def _galerkin(space: Deflated, inverse: Map, mu: Tensor, W0: Tensor, target: Tensor) -> Tensor:
    Q, BQ, S = orthonormal(W0, space.B)
    basis, images, start = [Q], [BQ], S
    H = S.new_zeros(0, 0)
    while True:
        size, width = sum(q.shape[1] for q in basis), basis[-1].shape[1]
        Z = space.out_of(inverse(images[-1]))
        column = [Z.new_zeros(q.shape[1], width) for q in basis]
        # Like Lanczos, only against the last two blocks: a restart handles the rounding errors.
        for i in range(max(0, len(basis) - 2), len(basis)):
            column[i] = images[i].mT @ Z
            Z.addmm_(basis[i], column[i], alpha=-1)
        grown = S.new_zeros(size, size)
        grown[: H.shape[0], : H.shape[0]] = H
        grown[:, size - width :] = torch.cat(column)
        grown[size - width :, :] = torch.cat(column).mT
        H = grown
        Q, BQ, beta = orthonormal(Z, space.B)
        theta, V = torch.linalg.eigh(0.5 * (H + H.mT))
        c = V @ ((V[: start.shape[0]].mT @ start) / (1 - mu * theta.unsqueeze(-1)))
        left = mu.abs() * (beta @ c[size - width :]).norm(dim=0)
        done = bool((left <= target).all()) or Q.shape[1] == 0
        if done or size + Q.shape[1] > max(_BASIS, 4 * len(mu)) or len(basis) == _STEPS:
            Y = torch.zeros_like(W0)
            for q, part in zip(basis, c.split([q.shape[1] for q in basis]), strict=True):
                Y.addmm_(q, part)
            return Y
        basis.append(Q)
        images.append(BQ)


def by_minres(
    space: Deflated, A: Map, M: Map | None, most: int, otherwise: Callable[[], Solve] | None = None
) -> Solve:
    """MINRES on P^T (A - lambda_i B) P, all columns in one call; M approximates A^-1. Columns that take more
    than `most` steps are passed to `otherwise`, if given."""

    made: list[Solve] = []

    def solve(values: Tensor, R: Tensor) -> tuple[Tensor, str]:
        def operator(X: Tensor) -> Tensor:
            X = space.out_of(X)
            return space.without_W(A(X) - space.B(X) * values)

        def precondition(X: Tensor) -> Tensor:
            assert M is not None
            return space.out_of(M(space.without_W(X)))

        size = R.norm(dim=0)
        size = size.where(size > 0, 1)
        with quiet():  # accuracy relative to R, which may be almost in the span of W
            solution = minres(
                operator,
                space.into(R) / size,
                M=precondition if M else None,
                rtol=0.0,
                atol=space.rtol,
                maxiter=most,
            )
        Y = space.out_of(solution.x) * size
        # STAGNATED: the accuracy is limited by rounding errors.
        good = (Status.CONVERGED, Status.STAGNATED)
        left = torch.tensor([status not in good for status in solution.statuses], device=R.device)
        if not bool(left.any()):
            return Y, ""
        if otherwise is None:
            return Y, solution.summary()
        made[:] = made or [otherwise()]
        Y[:, left], trouble = made[0](values[left], R[:, left])
        return Y, trouble

    return solve
