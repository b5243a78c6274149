"""Orthonormal bases in the inner product of B."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def lengths(X: Tensor, BX: Tensor) -> Tensor:
    """The norms sqrt(<x, B x>) of columns."""
    return (X * BX).sum(0).clamp(min=0).sqrt()


def orthonormal(X: Tensor, B: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(Q, B Q, S) with X = Q S, Q^T B Q = I; numerically dependent columns are dropped.

    Source: Stathopoulos and Wu, "A block orthogonalization procedure with constant synchronization
    requirements", SIAM J. Sci. Comput. 23 (2002) 2165-2182.
    """
    Q, BQ, S = X, B(X), torch.eye(X.shape[1], dtype=X.dtype, device=X.device)
    for _ in range(2):  # the second pass removes rounding errors of nearly dependent columns
        gram = Q.mT @ BQ
        scale = gram.diagonal().clamp(min=0).sqrt()
        scale = torch.where(scale > 0, scale, 1)
        d, E = torch.linalg.eigh(0.5 * (gram + gram.mT) / (scale * scale.unsqueeze(-1)))
        rank = d > 1e3 * torch.finfo(X.dtype).eps * d.max() if len(d) else d > 0
        root, E = d[rank].sqrt(), E[:, rank]
        Q, S = Q @ (E / (scale.unsqueeze(-1) * root)), (root.unsqueeze(-1) * E.mT * scale) @ S
        BQ = B(Q)
        if len(d) and bool(rank.all()) and d.min() > 1e-3 * d.max():
            break
    return Q, BQ, S


def columns(X: Tensor, chosen: Tensor) -> Tensor:
    """X[:, chosen], without the slow copy if all columns are chosen."""
    return X if bool(chosen.all()) else X[:, chosen]
