"""SciPy's ARPACK: Lanczos's method with implicit restarts, on A or on (A - sigma B)^-1."""

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
    B^-1; their vectors, and the number of products. NaN for pairs that did not converge."""
    n, count = len(A.indptr) - 1, 0

    def operator(apply: Callable[[Any], Any]) -> Any:
        def matvec(x: np.ndarray) -> np.ndarray:
            nonlocal count
            count += 1
            return apply(x)

        return scipy.sparse.linalg.LinearOperator(A.shape, matvec=matvec, dtype=np.float64)  # type: ignore

    options: dict[str, Any] = {"which": "LA"}
    matrix: Any = operator(lambda x: A @ x)
    if sigma is not None:
        options = {"which": "LM", "sigma": sigma, "OPinv": operator(inverse)}  # type: ignore[arg-type]
        matrix = A
    elif B is not None:
        options["Minv"] = scipy.sparse.linalg.LinearOperator(A.shape, matvec=inverse, dtype=np.float64)  # type: ignore
    start = np.random.default_rng(0).standard_normal(n)
    eigsh: Any = scipy.sparse.linalg.eigsh
    try:
        values, vectors = eigsh(matrix, k, M=B, v0=start, tol=tol, maxiter=maxiter, **options, **SEEDED)
    except scipy.sparse.linalg.ArpackError as error:
        # Not converged, or too few distinct values to build a basis.
        values = np.asarray(getattr(error, "eigenvalues", ()))
        vectors = np.asarray(getattr(error, "eigenvectors", np.empty((n, 0))))
    order = np.argsort(values)
    full, block = np.full(k, np.nan), np.full((n, k), np.nan)
    full[: len(order)], block[:, : len(order)] = values[order], vectors[:, order]
    return torch.from_numpy(full), torch.from_numpy(block), count
