"""Some singular triplets of a sparse matrix, from the eigenpairs of a symmetric matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learnsolve import ops
from learnsolve.eigen.eigenpairs import SingularTriplets
from learnsolve.eigen.eigsh import eigsh
from learnsolve.matrix import checks, inputs
from learnsolve.matrix.plain import numbers


def svds(
    A: Any,
    k: int,
    *,
    which: str = "largest",
    rtol: float | None = None,
    maxiter: int | None = None,
    throw: bool = False,
) -> SingularTriplets:
    r"""k singular triplets of a sparse matrix, :math:`A v = s u`, :math:`A^T u = s v`.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz); or a SciPy, torch or NumPy matrix
    k : int, 1 to min(m, n)
    which : "largest" or "smallest" singular values
    rtol, maxiter, throw : as for `eigsh`

    Returns
    -------
    SingularTriplets: U (..., m, k), S (..., k), descending, V (..., n, k)

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        as for `eigsh`; if a singular value is zero up to rounding (for "smallest", up to half of the digits).

    Notes
    -----
    "largest": the largest eigenvalues of :math:`\begin{pmatrix} 0 & A \\ A^T & 0 \end{pmatrix}`, which are s,
    with vectors (u, v). "smallest": the smallest eigenvalues, :math:`s^2`, of :math:`A^T A`, or of :math:`A
    A^T` if it has fewer rows: singular values below :math:`10^{-8}` of the largest (float64) are rounding
    errors.

    Gradient, including clusters, as for `eigsh`, any order. Cost: as for `eigsh`; "smallest" forms the
    product, in which a dense row of A becomes a dense block.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((12, 12)).tril()
    >>> U, S, V, _ = ls.svds(A, 2)
    >>> bool((A @ V - S * U).norm() < 1e-10 * S[0])
    True
    """
    name = "svds"
    A = inputs.matrix(A)
    checks.matrix(name, "A", A)
    checks.dtype(name, "A.values", A.values)
    m, n = A.shape
    if checks.integer(name, "k", k, 1) > min(m, n):
        raise ValueError(f"{name}: k must be at most min(m, n) = {min(m, n)}, got {k}")
    checks.one_of(name, "which", which, ("largest", "smallest"))
    options: dict[str, Any] = {"rtol": rtol, "maxiter": maxiter, "throw": throw}
    if which == "largest":
        pairs = eigsh(ops.block([[None, A], [A.T, None]]), k, which="largest", **options)
        S, X = pairs.values.flip(-1), 2**0.5 * pairs.vectors.flip(-1)
        _check_rank(S, 100 * torch.finfo(S.dtype).eps)
        U, V = X.split([m, n], -2)
        return SingularTriplets(U, S, V, pairs)
    wide = m < n
    pairs = eigsh(ops.spgemm(A, A.T) if wide else ops.spgemm(A.T, A), k, **options)
    S = pairs.values.clamp(min=0).sqrt().flip(-1)
    _check_rank(S, 0.0)
    X = pairs.vectors.flip(-1)
    Y = (A.T if wide else A) @ X / S.unsqueeze(-2)
    return SingularTriplets(X, S, Y, pairs) if wide else SingularTriplets(Y, S, X, pairs)


def _check_rank(S: Tensor, rounding: float) -> None:
    """Reject singular values of zero: their vectors are not vectors of the symmetric matrix."""
    if bool((numbers(S) <= rounding * numbers(S).amax(-1, keepdim=True)).any()):
        raise ValueError(
            "svds: some of the requested singular values are zero to rounding; ask for fewer, or use "
            "torch.linalg.svd(A.to_dense())"
        )
