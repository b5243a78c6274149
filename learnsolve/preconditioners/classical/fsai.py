"""Factorized sparse approximate inverses, M = L L^T, and patterns for their factors.

Source: Kolotilina and Yeremin, "Factorized sparse approximate inverse preconditionings I. Theory", SIAM J.
Matrix Anal. Appl. 14, 1993, doi:10.1137/0614004.
"""

import numpy as np
import scipy.sparse

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.ops.add import add
from learnsolve.ops.core.local_solve import NotPositive, local_solve
from learnsolve.ops.core.selection import trusted
from learnsolve.ops.diagonal import diagonal
from learnsolve.ops.structure import scale_columns, transpose
from learnsolve.ops.triangle import triangle_of
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.classical.factored import Factored


class FSAI(Factored):
    r"""The factorized sparse approximate inverse on a triangular pattern, :math:`M = L L^T`.

    Linear, symmetric, positive definite, applied as two products. Column j of L, on its rows J, is :math:`l_j
    = y / \sqrt{y_j}` with :math:`A_{JJ}\, y = e_j`. Of all L on the pattern, it minimizes Kaporin's condition
    number of :math:`L^T A L`, whose diagonal is one.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), positive definite; its symmetric part is used
    pattern : SparsityPattern, lower or upper triangular, with its diagonal; default: of tril(A).
        `lower_pattern` gives larger ones

    Attributes
    ----------
    L : CSR, the factor

    Raises
    ------
    ValueError
        if A is not square or not finite, the pattern is invalid, or a block :math:`A_{JJ}` is not
        numerically positive definite.
    TypeError
        if a type or dtype is wrong.

    Notes
    -----
    Gradient: exact, for A's values and r, to any order. Setup: one Cholesky factorization of a dense block
    per column. Cost of a call: 4 nnz flops per column of r.

    References
    ----------
    L. Yu. Kolotilina, A. Yu. Yeremin, SIAM J. Matrix Anal. Appl. 14, 1993, doi:10.1137/0614004

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((20, 20)), torch.ones(400, dtype=torch.float64)
    >>> M = ls.preconditioners.FSAI(A, pattern=ls.preconditioners.lower_pattern(A, power=2))
    >>> ls.solvers.cg(A, b, M=M).iterations < ls.solvers.cg(A, b).iterations
    True
    """

    form = "product"

    def __init__(self, A: CSR, *, pattern: SparsityPattern | None = None):
        Preconditioner.__init__(self, A)
        self.L = _fsai("FSAI", A, lower_pattern(A) if pattern is None else pattern)


def lower_pattern(A: CSR | SparsityPattern, power: int = 1) -> SparsityPattern:
    """The entries on and below the diagonal of a power of A's pattern.

    ``power=1`` is tril(A), ``power=2`` also has the neighbors of neighbors, and so on. The result is the same
    object in every call; for ``power=1`` it is the pattern of `ops.tril` and of the factors of `ops.ic0`.

    Parameters
    ----------
    A : CSR or SparsityPattern, square
    power : int, at least 1: the power of the pattern

    Returns
    -------
    SparsityPattern

    Raises
    ------
    ValueError, TypeError
        if A is not square, or `power` is not a positive int.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((8, 8))
    >>> ls.preconditioners.lower_pattern(A).nnz, ls.preconditioners.lower_pattern(A, power=2).nnz
    (176, 370)
    """
    P = A.pattern if isinstance(A, CSR) else A
    if not isinstance(P, SparsityPattern):
        raise TypeError(f"lower_pattern: A must be a CSR or a SparsityPattern, got {type(A).__name__}")
    checks.square("lower_pattern", "A", P.shape)
    power = checks.integer("lower_pattern", "power", power, 1)
    return triangle_of(P, "lower") if power == 1 else P._planned(_plan_lower, power)[0]


def _plan_lower(P: SparsityPattern, power: int) -> tuple[SparsityPattern]:
    crow, col = as_numpy(P.crow_indices), as_numpy(P.col_indices)
    S = scipy.sparse.csr_array((np.ones(P.nnz), col, crow), shape=P.shape)
    product = S
    for _ in range(power - 1):
        product = (product @ S).astype(bool).astype(float)
    lower = scipy.sparse.csr_array(scipy.sparse.tril(product, format="csr"))
    lower.sort_indices()
    return (trusted(P, lower.indptr, lower.indices, P.shape),)


def _fsai(function: str, A: CSR, S: SparsityPattern) -> CSR:
    if not isinstance(S, SparsityPattern):
        raise TypeError(f"{function}: pattern must be a SparsityPattern, got {type(S).__name__}")
    if S.shape != A.shape:
        raise ValueError(f"{function}: the pattern must have A's shape {A.shape}, got {S.shape}")
    if S._missing_diagonal >= 0:
        raise ValueError(
            f"{function}: the pattern must have its diagonal, row {S._missing_diagonal} has no entry there"
        )
    below = S.col_indices <= S.row_indices
    if not (bool(below.all()) or bool((S.col_indices >= S.row_indices).all())):
        raise ValueError(
            f"{function}: the pattern must be lower or upper triangular, {int(below.sum())} of its {S.nnz} "
            "entries are on or below the diagonal; use ops.tril, or lower_pattern(A)"
        )
    unit = (S.row_indices == S.col_indices).to(A.dtype)
    K = add(A, transpose(A), alpha=0.5, beta=0.5)  # the blocks read one triangle of it
    try:
        y = local_solve(K, CSR(unit, S))
    except NotPositive as error:
        raise ValueError(
            f"{function}: A must be positive definite, its block for column {error.column} of the pattern is "
            "not, to working precision; shift A's diagonal"
        ) from None
    return scale_columns(y, diagonal(y).rsqrt())
