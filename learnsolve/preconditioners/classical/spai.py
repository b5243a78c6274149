"""Sparse approximate inverse on a static pattern.

Sources: Grote and Huckle, "Parallel preconditioning with sparse approximate inverses", SIAM J. Sci. Comput.
18, 1997, doi:10.1137/S1064827594276552; Saad, "Iterative Methods for Sparse Linear Systems" (2003), 10.5.1.
"""

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.add import add
from learnsolve.ops.core.local_solve import NotPositive, local_solve
from learnsolve.ops.diagonals import eye
from learnsolve.ops.spgemm import spgemm
from learnsolve.ops.spmm import spmm
from learnsolve.ops.structure import transpose
from learnsolve.preconditioners.base import Part, Preconditioner


class SPAI(Preconditioner):
    r"""Sparse approximate inverse: the M on a static pattern that minimizes :math:`\|A M - I\|_F`.

    Each column of M solves a separate small least-squares problem, :math:`\min \|A\, m_j - e_j\|_2` over the
    m_j on column j of the pattern. Linear; generally not symmetric, even if A is: for `gmres`, `bicgstab`,
    `fgmres`.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64; its values may be (..., nnz)
    pattern : SparsityPattern of M, with an entry in every column; default: A's pattern
    side : "right" as above; "left" minimizes :math:`\|M A - I\|_F`, row by row

    Attributes
    ----------
    matrix : CSR, M on the pattern, differentiable in A's values

    Raises
    ------
    ValueError
        if shapes do not match, a column of the pattern (a row for "left") is empty, or its least-squares
        problem is rank-deficient to working precision (the message names it).

    Notes
    -----
    Gradient: for A's values and r, to any order: with R = I - A M and W the solutions of the normal equations
    for :math:`\bar M`, :math:`\bar A = R W^T - A W M^T` on the pattern. Cost: the product :math:`A^T A`, and
    for each column with s entries the Cholesky factorization of an s x s block of it in float64; then one
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

    def __init__(self, A: CSR, *, pattern: SparsityPattern | None = None, side: str = "right"):
        super().__init__(A, finite=False)
        checks.one_of("SPAI", "side", side, ("right", "left"))
        pattern = A.pattern if pattern is None else pattern
        if not isinstance(pattern, SparsityPattern):
            raise TypeError(f"SPAI: pattern must be a SparsityPattern, got {type(pattern).__name__}")
        if pattern.shape != A.shape:
            raise ValueError(f"SPAI: the pattern must have A's shape {A.shape}, got {pattern.shape}")
        # M A ~ I is equivalent to A^T M^T ~ I.
        right = side == "right"
        wide = A.to(dtype=torch.float64)
        M = _minimize(wide if right else transpose(wide), pattern if right else pattern.T, right)
        self.matrix = (M if right else transpose(M)).to(dtype=A.dtype)

    def _learnable(self) -> dict[str, Part]:
        return {"matrix": Part(self.matrix)}

    def _columns(self, R: Tensor) -> Tensor:
        return spmm(self.matrix, R)

    def _transposed(self, R: Tensor) -> Tensor:
        return spmm(self.matrix, R, transpose=True)


def _identity_like(A: CSR) -> CSR:
    return eye(A.shape[0], dtype=A.dtype, device=A.device, index_dtype=A.pattern.dtype)


def _minimize(A: CSR, S: SparsityPattern, right: bool) -> CSR:
    line = "column" if right else "row"
    empty = (S.T.crow_indices.diff() == 0).nonzero()
    if len(empty):
        raise ValueError(
            f"SPAI: the pattern must have an entry in every {line}, {line} {int(empty[0])} has none; add its "
            "diagonal"
        )
    At = transpose(A)
    K, I = spgemm(At, A), _identity_like(A)  # noqa: E741
    try:
        M = local_solve(K, spgemm(At, I, mask=S))
        with torch.no_grad():
            R = add(I, spgemm(A.detach(), M.detach()), beta=-1)
            change = local_solve(K.detach(), spgemm(At.detach(), R, mask=S))
    except NotPositive as error:
        raise ValueError(
            f"SPAI: the least-squares problem of {line} {error.column} of the pattern is rank-deficient to "
            "working precision, or not finite; use a smaller pattern, or a nonsingular matrix"
        ) from None
    return CSR(M.values + change.values, S)
