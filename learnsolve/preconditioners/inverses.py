"""Sparse approximate inverses: of the matrix, or as a product M = L L^T."""

from typing import Annotated, Literal

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve.arguments import Count
from learnsolve.matrix.checks import RealSystem, SquarePattern, pattern_like
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops.arithmetic import add
from learnsolve.ops.blocks import eye
from learnsolve.ops.indexing import construct_pattern
from learnsolve.ops.products import spmm
from learnsolve.ops.sparse_products import NotPositive, local_solve, spgemm
from learnsolve.ops.structure import diagonal, scale_columns, transpose
from learnsolve.ops.triangular import triangle_pattern
from learnsolve.preconditioners.base import Part, Preconditioner
from learnsolve.preconditioners.factors import FactorPreconditioner

PatternOfA = Annotated[SparsityPattern, pattern_like("A")]

# Factorized sparse approximate inverses, M = L L^T, and patterns for their factors.
#
# Source: Kolotilina and Yeremin, "Factorized sparse approximate inverse preconditionings I. Theory", SIAM
# J. Matrix Anal. Appl. 14, 1993, doi:10.1137/0614004.


class FSAI(FactorPreconditioner):
    r"""The factorized sparse approximate inverse on a triangular pattern, :math:`M = L L^T`.

    Linear, symmetric, positive definite, applied as two products. Column j of L, on its rows J, is :math:`l_j
    = y / \sqrt{y_j}` with :math:`A_{JJ}\, y = e_j`. Of all L on the pattern, it minimizes Kaporin's condition
    number of :math:`L^T A L`, whose diagonal is one.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), positive definite. Its symmetric part is used
    pattern : SparsityPattern, lower or upper triangular, with its diagonal. Default: the pattern of tril(A).
        `lower_pattern` makes larger ones

    Attributes
    ----------
    L : CSR, the factor

    Raises
    ------
    ValueError
        if A is not finite, the pattern is not triangular or lacks a diagonal entry, or a block
        :math:`A_{JJ}` is not numerically positive definite.

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

    def __init__(self, A: RealSystem, *, pattern: PatternOfA | None = None):
        Preconditioner.__init__(self, A)
        self.L = _fsai("FSAI", A, lower_pattern(A) if pattern is None else pattern)


def lower_pattern(A: SquarePattern, power: Count = 1) -> SparsityPattern:
    """The entries on and below the diagonal of a power of A's pattern.

    ``power=1`` is tril(A), ``power=2`` also has the neighbors of neighbors, and so on. The result is the same
    object in every call. For ``power=1`` it is the pattern of `ops.tril` and of the factors of `ops.ic`.

    Parameters
    ----------
    A : CSR or SparsityPattern, square
    power : the power of the pattern

    Returns
    -------
    SparsityPattern

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((8, 8))
    >>> ls.preconditioners.lower_pattern(A).nnz, ls.preconditioners.lower_pattern(A, power=2).nnz
    (176, 370)
    """
    P = A.pattern if isinstance(A, CSR) else A
    return triangle_pattern(P, "lower") if power == 1 else P._plan_once(_plan_lower, power)[0]


def _plan_lower(P: SparsityPattern, power: int) -> tuple[SparsityPattern]:
    crow, col = to_numpy(P.crow_indices), to_numpy(P.col_indices)
    S = scipy.sparse.csr_array((np.ones(P.nnz), col, crow), shape=P.shape)
    product = S
    for _ in range(power - 1):
        product = (product @ S).astype(bool).astype(float)
    lower = scipy.sparse.csr_array(scipy.sparse.tril(product, format="csr"))
    lower.sort_indices()
    return (construct_pattern(P, lower.indptr, lower.indices, P.shape),)


def _fsai(function: str, A: CSR, S: SparsityPattern) -> CSR:
    if S._missing_diagonal >= 0:
        raise ValueError(
            f"{function}: the pattern must have its diagonal, row {S._missing_diagonal} has no entry there"
        )
    below = S.col_indices <= S.row_indices
    if not (bool(below.all()) or bool((S.col_indices >= S.row_indices).all())):
        raise ValueError(
            f"{function}: the pattern must be lower or upper triangular, {int(below.sum())} of its {S.nnz} "
            "entries are on or below the diagonal. Use ops.tril, or lower_pattern(A)"
        )
    unit = (S.row_indices == S.col_indices).to(A.dtype)
    K = add(A, transpose(A), alpha=0.5, beta=0.5)  # the blocks read one triangle of it
    try:
        y = local_solve(K, CSR(unit, S))
    except NotPositive as error:
        raise ValueError(
            f"{function}: A must be positive definite, its block for column {error.column} of the pattern is "
            "not, to working precision. Shift A's diagonal"
        ) from None
    return scale_columns(y, diagonal(y).rsqrt())


# Sparse approximate inverse on a static pattern.
#
# Sources: Grote and Huckle, "Parallel preconditioning with sparse approximate inverses", SIAM J. Sci. Comput.
# 18, 1997, doi:10.1137/S1064827594276552; Saad, "Iterative Methods for Sparse Linear Systems" (2003), 10.5.1.


class SPAI(Preconditioner):
    r"""Sparse approximate inverse: the M on a static pattern that minimizes :math:`\|A M - I\|_F`.

    Each column of M solves a separate small least-squares problem, :math:`\min \|A\, m_j - e_j\|_2` over the
    m_j on column j of the pattern. Linear, and generally not symmetric, even if A is: for `gmres`,
    `bicgstab`, `fgmres`.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64. Its values may be (..., nnz)
    pattern : SparsityPattern of M, with an entry in every column. Default: A's pattern
    side : "right" as above; "left" minimizes :math:`\|M A - I\|_F`, row by row

    Attributes
    ----------
    matrix : CSR, M on the pattern, differentiable in A's values

    Raises
    ------
    ValueError
        if a column of the pattern (a row for "left") is empty, or its least-squares problem is rank-deficient
        to working precision (the message names it).

    Notes
    -----
    Gradient: for A's values and r, to any order: with R = I - A M and W the solutions of the normal equations
    for :math:`\bar M`, :math:`\bar A = R W^T - A W M^T` on the pattern. Cost: the product :math:`A^T A`, and
    for each column with s entries the Cholesky factorization of an s x s block of it in float64, then one
    product per call. docs/preconditioners.md discusses accuracy and memory.

    Source: M. J. Grote and T. Huckle, "Parallel preconditioning with sparse approximate inverses", SIAM J.
    Sci. Comput. 18, 1997, doi:10.1137/S1064827594276552.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((16, 16)), torch.ones(256, dtype=torch.float64)
    >>> M = ls.preconditioners.SPAI(A)
    >>> ls.solvers.gmres(A, b, M=M).iterations < ls.solvers.gmres(A, b).iterations
    True
    """

    def __init__(
        self,
        A: RealSystem,
        *,
        pattern: PatternOfA | None = None,
        side: Literal["right", "left"] = "right",
    ):
        super().__init__(A, finite=False)
        pattern = A.pattern if pattern is None else pattern
        # M A ~ I is equivalent to A^T M^T ~ I.
        right = side == "right"
        wide = A.to(dtype=torch.float64)
        M = _minimize(wide if right else transpose(wide), pattern if right else pattern.T, right)
        self.matrix = (M if right else transpose(M)).to(dtype=A.dtype)

    def learnable(self) -> dict[str, Part]:
        return {"matrix": Part(self.matrix)}

    def mv(self, R: Tensor) -> Tensor:
        return spmm(self.matrix, R)

    def rmv(self, R: Tensor) -> Tensor:
        return spmm(self.matrix, R, transpose=True)


def _minimize(A: CSR, S: SparsityPattern, right: bool) -> CSR:
    line = "column" if right else "row"
    empty = (S.T.crow_indices.diff() == 0).nonzero()
    if len(empty):
        raise ValueError(
            f"SPAI: the pattern must have an entry in every {line}, {line} {int(empty[0])} has none. Add its "
            "diagonal"
        )
    At = transpose(A)
    K, I = spgemm(At, A), eye(A.shape[0], dtype=A.dtype, device=A.device, index_dtype=A.pattern.dtype)  # noqa: E741
    try:
        M = local_solve(K, spgemm(At, I, mask=S))
        with torch.no_grad():
            R = add(I, spgemm(A.detach(), M.detach()), beta=-1)
            change = local_solve(K.detach(), spgemm(At.detach(), R, mask=S))
    except NotPositive as error:
        raise ValueError(
            f"SPAI: the least-squares problem of {line} {error.column} of the pattern is rank-deficient to "
            "working precision, or not finite. Use a smaller pattern, or a nonsingular matrix"
        ) from None
    return CSR(M.values + change.values, S)
