"""LOBPCG: the smallest eigenpairs from products with A, B and a preconditioner, all columns at once.

Each step minimizes the Rayleigh quotient over the span of [X W P]: the iterates, their preconditioned
residuals, and the previous steps. The block is kept orthonormal in the inner product of B, dependent columns
are dropped, and converged columns stay in X but add no direction ("soft locking").

Sources: Knyazev, "Toward the optimal preconditioned eigensolver", SIAM J. Sci. Comput. 23 (2001) 517-541;
Duersch, Shao, Yang and Gu, "A robust and efficient implementation of LOBPCG", SIAM J. Sci. Comput. 40 (2018)
C655-C676.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from learnsolve.eigen._basis import columns, lengths, orthonormal

Map = Callable[[Tensor], Tensor]


def lobpcg(
    A: Map,
    B: Map,
    M: Map | None,
    X: Tensor,
    k: int,
    tolerance: Callable[[Tensor, Tensor, Tensor], Tensor],
    most: int,
) -> tuple[Tensor, Tensor, int]:
    """The k smallest values, ascending, and their vectors, starting from the columns of X, at least k; and
    the number of steps. `tolerance(values, X, B X)` bounds the residual norms. NaN if M returns infinities.
    """
    X, BX, _ = orthonormal(X, B)
    m, P = X.shape[1], X[:, :0]
    values, C = _eigh(X.mT @ A(X))
    X = X @ C
    for step in range(most + 1):
        AX, BX = A(X), B(X)
        R = torch.addcmul(AX, BX, values, value=-1)
        norms = lengths(R, R)
        active = ~(norms <= tolerance(values, X, BX))  # true also for NaN
        if not bool(active[:k].any()) or step == most or not bool(norms.isfinite().all()):
            break
        W = columns(R, active)
        W = W if M is None else M(W)
        if not bool(W.sum().isfinite()) and not bool(W.isfinite().all()):
            values = values * torch.nan
            break
        Q = orthonormal(_against(X, BX, torch.cat((W, P), 1)), B)[0]
        size = lengths(Q, Q)
        Q = _against(X, BX, Q)  # removes rounding errors, all that remains of a column in span(X)
        Q = columns(Q, lengths(Q, Q) > 0.5 * size)
        XAQ = AX.mT @ Q
        T = torch.cat((torch.cat((X.mT @ AX, XAQ), 1), torch.cat((XAQ.mT, Q.mT @ A(Q)), 1)))
        values, C = _eigh(T)
        values, C = values[:m], C[:, :m]
        step_taken = Q @ C[m:]  # the part of the new iterates outside the span of the old ones
        X, P = torch.addmm(step_taken, X, C[:m]), columns(step_taken, active)
    return values[:k], X[:, :k], step


def _eigh(T: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.eigh(0.5 * (T + T.mT))


def _against(X: Tensor, BX: Tensor, Y: Tensor) -> Tensor:
    """Y without its components along X, in place."""
    return Y.addmm_(X, BX.mT @ Y, alpha=-1)
