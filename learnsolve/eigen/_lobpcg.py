"""LOBPCG: the smallest eigenpairs from products with A, B and a preconditioner, all columns at once.

Each step minimizes the Rayleigh quotient over the span of [X W P]: the iterates, their preconditioned
residuals, the last steps. The block is kept orthonormal in the inner product of B, dependent columns are left
out, and columns that have converged stay in X, but add no direction ("soft locking").

Sources: Knyazev, "Toward the optimal preconditioned eigensolver", SIAM J. Sci. Comput. 23 (2001) 517-541;
Duersch, Shao, Yang and Gu, "A robust and efficient implementation of LOBPCG", SIAM J. Sci. Comput. 40 (2018)
C655-C676.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from learnsolve.eigen._basis import orthonormal

Map = Callable[[Tensor], Tensor]


def lobpcg(
    A: Map, B: Map, M: Map | None, X: Tensor, k: int, tolerance: Callable[[Tensor, Tensor], Tensor], most: int
) -> tuple[Tensor, Tensor, int]:
    """The k smallest values, ascending, and their vectors, from the columns of X, at least k; and steps.
    `tolerance(values, B X)` bounds the norms of the residuals. NaN where M gives no finite numbers."""
    X = orthonormal(X, B)[0]
    values, C = _ritz(X, A(X), X.shape[1])
    X, P = X @ C, X[:, :0]
    for step in range(most + 1):
        BX = B(X)
        R = A(X) - BX * values
        norms = R.norm(dim=0)
        active = ~(norms <= tolerance(values[:k], BX))  # of NaN too
        if not bool(active[:k].any()) or step == most or not bool(norms.isfinite().all()):
            break
        W = R[:, active] if M is None else M(R[:, active])
        if not bool(W.isfinite().all()):
            values = values * torch.nan
            break
        Q = _against(X, BX, torch.cat((W, P), 1))
        Q = orthonormal(Q, B)[0]
        again = _against(X, BX, Q)  # for what rounding left: of a column in the span of X, all of it
        Q = again[:, again.norm(dim=0) > 0.5 * Q.norm(dim=0)]
        S = torch.cat((X, Q), 1)
        values, C = _ritz(S, A(S), X.shape[1])
        P = Q @ C[X.shape[1] :, active]  # what the new iterates have beyond the span of the old ones
        X = S @ C
    return values[:k], X[:, :k], step


def _ritz(S: Tensor, AS: Tensor, m: int) -> tuple[Tensor, Tensor]:
    T = S.mT @ AS
    values, C = torch.linalg.eigh(0.5 * (T + T.mT))
    return values[:m], C[:, :m]


def _against(X: Tensor, BX: Tensor, Y: Tensor) -> Tensor:
    """Y without its components along X."""
    return torch.addmm(Y, X, BX.mT @ Y, alpha=-1)
