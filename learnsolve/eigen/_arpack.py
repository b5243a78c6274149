"""SciPy's ARPACK: Lanczos's method with implicit restarts, on A or on (A - sigma B)^-1.

A Krylov space holds one vector of each eigenspace. Further copies of a multiple eigenvalue enter only by
rounding errors, and some are missed. So another run, from another vector and with the found pairs deflated,
looks for one that should be among them, until there is none: with probability one a random vector has a
component in every eigenspace.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

Sparse = scipy.sparse.csr_array
# In an invariant subspace SciPy's ARPACK continues with random numbers, system-seeded since 1.17.
SEEDED: dict[str, Any] = (
    {"rng": 0} if "rng" in inspect.signature(scipy.sparse.linalg.eigsh).parameters else {}
)


_LOOK = 1e-8  # accuracy of a vector that only shows whether a pair is missing: its value has its square


def lanczos(
    A: Sparse,
    B: Sparse | None,
    k: int,
    sigma: float | None,
    inverse: Callable[[Any], Any] | None,
    tol: float,
    maxiter: int | None,
) -> tuple[Tensor, Tensor, int]:
    """The k values nearest to sigma, where `inverse` is (A - sigma B)^-1, or the largest, where `inverse` is
    B^-1, with all copies; their vectors, and the number of products. NaN for pairs that did not converge, or
    are not known to be among the k."""
    n, random = len(A.indptr) - 1, np.random.default_rng(0)
    values, U, count = _run(A, B, k, sigma, inverse, tol, maxiter, random.standard_normal(n))
    for _ in range(k + 1):
        if len(values) < k or k == n:
            break
        start = random.standard_normal(n)
        new, u, more = _run(A, B, 1, sigma, inverse, _LOOK, None, start, values, U)
        count += more
        # The distances from sigma, or from the upper end: a new pair replaces the one that is farthest.
        far, at = (-values, -new) if sigma is None else (abs(values - sigma), abs(new - sigma))
        last = int(np.argmax(far))
        if not len(new):
            values = new
            break
        if not at[0] < far[last] - 1e-10 * abs(far).max():
            break
        new, u, more = _run(A, B, 1, sigma, inverse, tol, maxiter, u[:, 0], values, U)
        count += more
        values, U = np.append(np.delete(values, last), new), np.append(np.delete(U, last, 1), u, 1)
    else:
        values = values[:0]
    order = np.argsort(values)
    full, block = np.full(k, np.nan), np.full((n, k), np.nan)
    full[: len(order)], block[:, : len(order)] = values[order], U[:, order]
    return torch.from_numpy(full), torch.from_numpy(block), count


def _run(
    A: Sparse,
    B: Sparse | None,
    k: int,
    sigma: float | None,
    inverse: Callable[[Any], Any] | None,
    tol: float,
    maxiter: int | None,
    start: np.ndarray,
    known: np.ndarray | None = None,
    U: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, int]:
    """One run of ARPACK, among the vectors that are orthogonal to U in the product of B, with the values
    `known`. Only the pairs that converged."""
    count = 0
    W = U if B is None or U is None else B @ U
    # ARPACK's criterion is absolute for values below 1e-11: in its units those sought are not small.
    largest = abs(A).sum(1).max() + abs(sigma or 0.0)
    unit = 2.0 ** round(np.log2(largest)) if largest > 0 else 1.0
    moved = 0.0 if U is None or sigma is not None else 2.0

    def operator(apply: Callable[[Any], Any]) -> Any:
        def matvec(x: np.ndarray) -> np.ndarray:
            nonlocal count
            count += 1
            return apply(x)

        return scipy.sparse.linalg.LinearOperator(A.shape, matvec=matvec, dtype=np.float64)  # type: ignore

    def without(X: Any, Y: Any, x: np.ndarray) -> np.ndarray:
        return x if U is None else x - X @ (Y.T @ x)

    options: dict[str, Any] = {"which": "LA"}
    if sigma is not None:
        # In terms of nu = (lambda - sigma) / unit, the shift is zero.
        solve = operator(lambda x: unit * without(U, W, inverse(without(W, U, x))))  # type: ignore[misc]
        options, matrix = {"which": "LM", "sigma": 0.0, "OPinv": solve}, A
        # Of a random vector, rows with huge entries would keep rounding errors.
        start = inverse(start if B is None else B @ start)  # type: ignore[misc]
    else:
        if B is not None:
            options["Minv"] = scipy.sparse.linalg.LinearOperator(A.shape, matvec=inverse, dtype=np.float64)  # type: ignore

        def product(x: np.ndarray) -> np.ndarray:
            y = without(W, U, A @ without(U, W, x)) / unit
            if U is None:
                return y
            # The known vectors get a value below all that could be missing, which is not near zero.
            y = y - (abs(known).max() - known.min()) / unit * (W @ (W.T @ x))  # type: ignore
            return y + moved * (x if B is None else B @ x)

        matrix = operator(product)
    start, eigsh = without(U, W, start), scipy.sparse.linalg.eigsh
    try:
        found: Any = eigsh(matrix, k, M=B, v0=start, tol=tol, maxiter=maxiter, **options, **SEEDED)  # type: ignore
    except scipy.sparse.linalg.ArpackError as error:
        # Not converged, or too few distinct values to build a basis.
        found = getattr(error, "eigenvalues", ()), getattr(error, "eigenvectors", np.empty((len(start), 0)))
    return (sigma or 0.0) + unit * (np.asarray(found[0]) - moved), np.asarray(found[1]), count
