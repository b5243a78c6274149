"""Eigenvalues of largest modulus, from a dense matrix or from products with a map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve.analysis._operands import Map, Space, as_array, constant
from learnsolve.eigen._arpack import SEEDED


class Pair(NamedTuple):
    """An eigenvalue and its eigenvector of norm 1, on the host."""

    value: complex
    vector: np.ndarray
    converged: bool


# Finds an eigenvalue, of the transpose or not: the dominant one, or the one nearest to a given value. None if
# a product is not finite.
Search = Callable[[bool, complex | None], Pair | None]


def dense(D: np.ndarray) -> Search:

    def search(transpose: bool, near: complex | None) -> Pair | None:
        if not np.isfinite(D).all():
            return None
        return _pick(*np.linalg.eig(D.T if transpose else D), near, True)

    return search


def arnoldi(name: str, apply: Map, space: Space, rtol: float, maxiter: int | None) -> Search:
    def search(transpose: bool, near: complex | None) -> Pair | None:
        f = _transpose(name, apply, space.start()) if transpose else constant(name, apply)
        return _dominant(name, f, space, rtol, maxiter, near)

    return search


def _pick(values: np.ndarray, vectors: np.ndarray, near: complex | None, converged: bool) -> Pair:
    at = int(np.argmax(np.abs(values)) if near is None else np.argmin(np.abs(values - near)))
    vector = vectors[:, at].astype(np.complex128)
    return Pair(complex(values[at]), vector / np.linalg.norm(vector), converged)


def _dominant(
    name: str, apply: Map, space: Space, rtol: float, maxiter: int | None, near: complex | None
) -> Pair | None:
    kind = np.float32 if space.dtype == torch.float32 else np.float64
    lost = False

    def matvec(x: np.ndarray) -> np.ndarray:
        nonlocal lost
        X = torch.from_numpy(np.array(x, dtype=kind).reshape(-1, 1)).to(space.device)
        y = as_array(name, apply(X))[:, 0]
        lost = lost or not np.isfinite(y).all()
        return np.zeros_like(y) if lost else y

    start = as_array(name, space.start())[:, 0]
    first = matvec(start)
    if lost:
        return None
    if not first.any():  # a random vector is mapped to zero, hence all are
        return Pair(0.0, start / np.linalg.norm(start), True)
    operator = scipy.sparse.linalg.LinearOperator((space.n, space.n), matvec=matvec, dtype=kind)  # type: ignore
    converged, ncv = True, min(space.n, 40)
    eigs: Any = scipy.sparse.linalg.eigs
    try:
        # Four, since up to four may share one modulus: complex pairs of both signs.
        pairs: Any = eigs(operator, k=4, ncv=ncv, v0=start, tol=rtol, maxiter=maxiter, which="LM", **SEEDED)
    except scipy.sparse.linalg.ArpackError as error:
        pairs, converged = (getattr(error, "eigenvalues", ()), getattr(error, "eigenvectors", None)), False
    if lost:
        return None
    if len(pairs[0]) == 0:
        pairs = _ritz(matvec, start, ncv)
    return _pick(pairs[0], pairs[1], near, converged)


def _ritz(
    matvec: Callable[[np.ndarray], np.ndarray], start: np.ndarray, m: int
) -> tuple[np.ndarray, np.ndarray]:
    """The Ritz pairs of one Arnoldi process, reported where ARPACK returns nothing."""
    V, H = [start.astype(float) / np.linalg.norm(start)], np.zeros((m + 1, m))
    for k in range(m):
        w = matvec(V[k]).astype(float)
        for _ in range(2):
            for i, v in enumerate(V):
                h = v @ w
                H[i, k] += h
                w = w - h * v
        H[k + 1, k] = np.linalg.norm(w)
        if H[k + 1, k] <= 1e-14 * np.abs(H).max():
            m = k + 1
            break
        V.append(w / H[k + 1, k])
    values, S = np.linalg.eig(H[:m, :m])
    return values, np.stack(V[:m], 1) @ S


def _transpose(name: str, apply: Map, start: Tensor) -> Map:
    """x -> E^T x, the derivative of <x, E(y)> with respect to y."""
    try:
        y, pull = torch.func.vjp(apply, torch.zeros_like(start))[:2]
        pull(torch.zeros_like(y))
    except RuntimeError as error:
        raise ValueError(
            f"{name}: the gradient needs the transpose of E, but E is not differentiable with respect to its "
            f'argument ({error}); write E with differentiable operations, or use method="dense"'
        ) from error
    return constant(name, lambda X: pull(X)[0])
