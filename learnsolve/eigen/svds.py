"""Some singular triplets of a sparse matrix, from the eigenpairs of a symmetric matrix."""

from __future__ import annotations

from typing import Any

from learnsolve import ops
from learnsolve.eigen._singular import SingularRequest
from learnsolve.eigen.eigenpairs import SingularTriplets
from learnsolve.eigen.eigsh import _check, computed
from learnsolve.matrix import checks, inputs


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
        as for `eigsh`.

    Notes
    -----
    Eigenpairs of :math:`\begin{pmatrix} 0 & A \\ A^T & 0 \end{pmatrix}`, which are s with vectors (u, v): by
    LAPACK's decomposition of A if min(m, n) <= 256 or 3 k > min(m, n); else "largest" by Lanczos's method,
    "smallest" from the space of the smallest eigenvectors of :math:`A^T A`, or :math:`A A^T` if A has
    fewer rows. The accuracy is relative to the largest singular value. Vectors of zero complete the bases.

    Gradient, including clusters, as for `eigsh`, any order; of a value of zero :math:`u v^T`, a subgradient.
    Where A and its transpose have different null spaces, the vectors of zero have no derivative: a warning.
    Cost: as for `eigsh`; "smallest" forms the product, in which a dense row of A becomes a dense block.

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
    H = ops.block([[None, A], [A.T, None]])
    _check(name, H, k, None, which, None, "auto", rtol, maxiter, throw)
    pairs = computed(SingularRequest(name, H, None, k, which, None, "auto", rtol, maxiter, throw, m))
    U, V = (2**0.5 * pairs.vectors.flip(-1)).split([m, n], -2)
    return SingularTriplets(U, pairs.values.flip(-1), V, pairs)
