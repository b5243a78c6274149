"""The Kronecker product."""

import numpy as np
import torch

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.pattern_checks import matrix_shape
from learnsolve.ops.core.operands import fit
from learnsolve.ops.core.selection import Sorted, reordered, sorted_by_row


def kron(A: CSR, B: CSR) -> CSR:
    r"""Kronecker product: the block matrix with the blocks :math:`a_{ij} B`.

    Parameters
    ----------
    A, B : CSR of the same device and precision, real or complex; batch axes of their values broadcast

    Returns
    -------
    CSR, shape (A.shape[0] B.shape[0], A.shape[1] B.shape[1]), with one entry per pair of entries.

    Raises
    ------
    ValueError
        if batch axes do not broadcast, or the product has more than 2^60 rows or columns.
    TypeError
        if A or B is not a sparse matrix, or dtypes or devices do not match.

    Notes
    -----
    Gradient: :math:`\bar a_{ij} = \langle V_{ij}, B \rangle`, :math:`\bar B = \sum_{ij} a_{ij} V_{ij}` for
    the blocks :math:`V_{ij}` of the incoming gradient. Planned once per pair of patterns; then an outer
    product of values and a permutation. Any order, deterministic.

    Examples
    --------
    >>> import learnsolve as ls
    >>> T, I = ls.problems.poisson((2,)), ls.ops.eye(2).to(ls.problems.poisson((2,)).dtype)
    >>> (ls.ops.kron(T, I) + ls.ops.kron(I, T)).to_dense()[0]
    tensor([ 4., -1., -1.,  0.], dtype=torch.float64)
    """
    checks.matrix("kron", "A", A)
    checks.matrix("kron", "B", B)
    fit("kron", A, B)
    matrix_shape("kron", _product_shape(A.shape, B.shape))
    plan = A.pattern._planned(_plan_kron, B.pattern)
    outer = (A.values.unsqueeze(-1) * B.values.unsqueeze(-2)).flatten(-2)
    return CSR(reordered(outer, plan), plan.pattern)


def _plan_kron(P: SparsityPattern, Q: SparsityPattern) -> Sorted:
    i1, j1, i2, j2 = (
        as_numpy(t).astype(np.int64) for t in (P.row_indices, P.col_indices, Q.row_indices, Q.col_indices)
    )
    rows = (i1[:, None] * Q.shape[0] + i2).reshape(-1)
    columns = (j1[:, None] * Q.shape[1] + j2).reshape(-1)
    like = P if P.dtype == torch.int64 else Q
    return sorted_by_row(like, rows, columns, _product_shape(P.shape, Q.shape))


def _product_shape(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] * b[0], a[1] * b[1]
