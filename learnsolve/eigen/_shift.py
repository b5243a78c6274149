"""(A - sigma B)^-1 on the host in float64: a shift below all eigenvalues, and the factor there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve.ops.core.superlu import _NO_PIVOTING

Sparse = scipy.sparse.csr_array


def inverse(function: str, A: Sparse, B: Sparse | None, sigma: float, definite: bool) -> Callable[[Any], Any]:
    """X -> (A - sigma B)^-1 X for arrays and tensors. Where the matrix is `definite` without pivoting."""
    try:
        return _solver(_factor(A, B, sigma, definite))
    except RuntimeError as error:
        if "singular" not in str(error):
            raise
        raise ValueError(
            f"{function}: A - sigma B is singular for sigma = {sigma:.6g}, which is an eigenvalue; pass a sigma "
            "that is a little larger or smaller"
        ) from None


def below_all(function: str, A: Sparse, B: Sparse | None) -> tuple[float, Callable[[Any], Any]]:
    """(sigma, X -> (A - sigma B)^-1 X) with all eigenvalues above sigma: a little below 0 where A is positive
    semidefinite, by Gershgorin's theorem or by its pivots; else below Gershgorin's bound."""
    n = A.shape[0]
    off = abs(A).sum(1)
    diagonal = A.diagonal()
    lowest, norm = float((diagonal - (off - abs(diagonal))).min()), float(off.max())
    unit = 1.0 if B is None else float(B.diagonal().mean())
    sigma = -(np.finfo(np.float64).eps ** 0.5) * max(norm, 1e-300) / unit
    if lowest >= 0:
        return sigma, inverse(function, A, B, sigma, True)
    try:
        lu: Any = _factor(A, B, sigma, True)
        # By Sylvester's law as many eigenvalues lie below sigma as pivots are negative, if all are on the
        # diagonal.
        if (lu.perm_r == lu.perm_c).all() and float(lu.U.diagonal().min(initial=np.inf)) > 0:
            return sigma, _solver(lu)
    except RuntimeError as error:
        if "singular" not in str(error):
            raise
    if B is not None:
        diagonal = B.diagonal()
        unit = float((2 * diagonal - abs(B).sum(1)).min())
        if not unit > 0:
            raise ValueError(
                f"{function}: a bound of the eigenvalues of this pair is not known, since A is not positive "
                f"semidefinite; pass sigma=, a number below the smallest, of {n} rows"
            )
    sigma = lowest / unit + sigma
    return sigma, inverse(function, A, B, sigma, True)


def _factor(A: Sparse, B: Sparse | None, sigma: float, definite: bool) -> Any:
    S = A
    if sigma:
        other = scipy.sparse.eye_array(A.shape[0], format="csr") if B is None else B
        S = scipy.sparse.csr_array(A - sigma * other)
    # The arrays of a symmetric matrix by rows are those by columns.
    S = scipy.sparse.csc_array((S.data, S.indices, S.indptr), shape=S.shape)
    return scipy.sparse.linalg.splu(S, **(_NO_PIVOTING if definite else {}))


def _solver(lu: Any) -> Callable[[Any], Any]:
    def solve(X: Any) -> Any:
        if isinstance(X, Tensor):
            return torch.from_numpy(np.ascontiguousarray(lu.solve(X.numpy())))
        return lu.solve(X)

    return solve
