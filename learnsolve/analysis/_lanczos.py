"""Lanczos for M A, in the inner product of M^-1, without applying M^-1.

Source: Parlett, "The Symmetric Eigenvalue Problem" (1998), chapters 13 and 15; Saad, "Iterative Methods for
Sparse Linear Systems" (2003), section 9.2.1 for the inner product.

A M is symmetric in <u, v>_M = u^T M v and has the eigenvalues of M A. With Y = M V, V^T M V = I:

    A Y_k = V_k T_k + beta_k v_(k+1) e_k^T,  T_k s = theta s  =>  an eigenvalue is in theta +- beta_k |s_k|

and M A u ~ theta u for u = Y_k s, A u ~ theta z for z = V_k s.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from learnsolve.analysis._operands import Map, Space
from learnsolve.matrix.plain import plain_tensors


class Ends(NamedTuple):
    """The smallest and the largest Ritz value, with their vectors as columns (n, 2)."""

    theta: Tensor  # (2,)
    error: Tensor  # (2,), bounds of the distance to an eigenvalue
    u: Tensor
    z: Tensor
    steps: int
    converged: bool


def lanczos(name: str, A: Map, M: Map | None, space: Space, most: int, rtol: float) -> list[Ends | None]:
    """Up to `most` steps for each matrix of a batch, the products of all in one call; see `_steps`."""
    start = space.start()
    runs = [_steps(name, M is not None, start, most, rtol) for _ in range(space.batch.numel())]
    results: list[Ends | None] = [None] * len(runs)
    asked = {i: next(run) for i, run in enumerate(runs)}
    shape = (*space.batch, *start.shape)
    by_M = M is not None  # the runs request products with M and with A alternately
    while asked:
        with plain_tensors():
            columns = [asked.get(i, start) for i in range(len(runs))]
            X = torch.stack(columns).reshape(shape) if space.batch else columns[0]
        Y = (M if by_M else A)(X).reshape(len(runs), *start.shape)  # type: ignore[misc]
        by_M = M is not None and not by_M
        for i in list(asked):
            try:
                asked[i] = runs[i].send(Y[i])
            except StopIteration as stop:
                results[i] = stop.value
                del asked[i]
    return results


def _steps(
    name: str, with_M: bool, start: Tensor, most: int, rtol: float
) -> Generator[Tensor, Tensor, Ends | None]:
    """Up to `most` steps, until both extreme eigenvalues are known to a relative accuracy of `rtol`. Yields
    the vectors to multiply by M, if given, and by A alternately. None if a product is not finite."""
    n, eps = start.shape[0], torch.finfo(start.dtype).eps
    with plain_tensors():  # inference tensors could not be modified here
        V = start.new_empty(most + 1, n)
        Y = torch.empty_like(V) if with_M else V
    alpha, beta = [], []  # of the tridiagonal matrix
    size = length = 0.0  # size: its largest entry in magnitude
    w = start
    for k in range(most + 1):
        y = (yield w) if with_M else w
        with plain_tensors():  # A and M may run in a transformation of torch.func, this does not
            length = _length(name, w, y)
            if not length < torch.inf:
                return None
            if k:
                beta.append(length)
            # The space is exhausted: the Ritz values are eigenvalues.
            exhausted = k == n or (k > 0 and length <= 10 * eps * size)
            if exhausted or k == most or k == 5 or (k > 0 and k % 10 == 0):
                rest = 0.0 if exhausted else length
                ends = _ends(V[:k], Y[:k], alpha, beta, rest, eps * size * k, rtol)
                if exhausted or ends.converged or k == most:
                    return ends._replace(converged=ends.converged or exhausted)
            V[k] = w[:, 0] / length
            if with_M:
                Y[k] = y[:, 0] / length
            y = Y[k].unsqueeze(-1)
        w = yield y
        with plain_tensors():
            # Orthogonalize against all, twice: the vectors stay orthogonal to rounding, so no eigenvalue
            # appears twice.
            first = Y[: k + 1] @ w
            w = w - V[: k + 1].T @ first
            again = Y[: k + 1] @ w
            w = w - V[: k + 1].T @ again
            h = (first + again)[:, 0].tolist()
        size = max(size, *map(abs, h))
        _symmetric(name, h, beta, size, eps)
        alpha.append(h[k])
    raise AssertionError("the last step returns")


def _length(name: str, w: Tensor, y: Tensor) -> float:
    square = float((w * y).sum())
    if square < 0 and -square > 1e-8 * float(w.norm() * y.norm()):
        raise ValueError(
            f"{name}: M must be positive definite, got <r, M r> = {square:.3g}; use spectral_radius otherwise"
        )
    return max(square, 0.0) ** 0.5 if square == square else torch.inf


def _symmetric(name: str, h: list[float], beta: list[float], size: float, eps: float) -> None:
    """<A v_k, v_i> is <v_k, A v_i>: zero for i < k - 1, beta for i = k - 1."""
    k = len(h) - 1
    off = max([abs(t) for t in h[: max(k - 1, 0)]] + ([abs(h[k - 1] - beta[k - 1])] if k else [0.0]))
    if off > eps**0.5 * size:
        raise ValueError(
            f"{name}: A and M must be symmetric, got <u, A v> and <v, A u> that differ by {off / size:.2g} "
            "of the largest; use spectral_radius otherwise"
        )


def _ends(
    V: Tensor, Y: Tensor, alpha: list[float], beta: list[float], length: float, rounding: float, rtol: float
) -> Ends:
    k = len(alpha)
    # Two pairs of many: O(k) flops, where all pairs of a few thousand would take seconds. Bisection squares
    # entries, hence the scale, which is exact.
    scale = 2.0 ** (math.frexp(max(map(abs, alpha + beta)))[1] - 1)
    diagonal, off = np.array(alpha) / scale, np.array(beta[: k - 1]) / scale
    pairs = [
        scipy.linalg.eigh_tridiagonal(diagonal, off, select="i", select_range=(i, i)) for i in (0, k - 1)
    ]
    theta = torch.from_numpy(np.concatenate([p[0] for p in pairs])) * scale
    S = torch.from_numpy(np.concatenate([p[1] for p in pairs], 1))
    error = length * S[-1].abs() + rounding
    known = error <= torch.clamp(rtol * theta.abs(), min=2 * rounding)
    S = S.to(V.dtype).to(V.device)
    to = {"dtype": V.dtype, "device": V.device}
    return Ends(theta.to(**to), error.to(**to), Y.T @ S, V.T @ S, k, bool(known.all()))
