"""Sparse triangular solve."""

import re

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.operands import plain_values
from learnsolve.ops.core.triangular import Side, solve


def sptrsv(
    L: CSR, b: Tensor, *, lower: bool = True, unit_diagonal: bool = False, transpose: bool = False
) -> Tensor:
    r"""Solve a sparse triangular system, :math:`L x = b` or :math:`L^T x = b`.

    .. math:: x_i = \Bigl(b_i - \sum_{j<i} l_{ij} x_j\Bigr) / l_{ii}

    Parameters
    ----------
    L : CSR, shape (n, n), float32 or float64, or complex; its values may have batch axes, (..., nnz). Only
        one triangle is read; the entries of the other are ignored, even NaN
    b : Tensor, shape (n,) or (..., n, k), of L's precision and device
    lower : use the lower triangle; otherwise the upper
    unit_diagonal : assume a unit diagonal; stored diagonal entries are not read
    transpose : solve with the transpose of that triangle, which is not formed

    Returns
    -------
    Tensor, shape (..., n) for a vector, (..., n, k) for a matrix; batch axes broadcast.

    Raises
    ------
    ValueError
        if L is not square, shapes do not match, or a row has no diagonal entry or, on the CPU, a zero
        diagonal entry (or one so small that its reciprocal overflows); the message names the row.
    TypeError
        if dtypes or devices do not match.

    Notes
    -----
    Gradient: :math:`\bar b = L^{-T} \bar x` and :math:`\bar L = -\bar b x^T` on the entries that are read,
    exactly zero elsewhere: a solve and a pass over the values. Any order; forward mode, vmap,
    `torch.compile`. Cost: 2 nnz k flops. The same bits on every run and for every number of threads.
    docs/operations.md describes the schedules on the CPU and on CUDA devices, where a row whose reciprocal is
    not finite becomes NaN instead of an error.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> L = ls.CSR.from_dense(torch.tensor([[2.0, 0.0], [1.0, 4.0]]))
    >>> ls.ops.sptrsv(L, torch.tensor([2.0, 9.0]))
    tensor([1., 2.])
    """
    checks.matrix("sptrsv", "L", L)
    for name, flag in (("lower", lower), ("unit_diagonal", unit_diagonal), ("transpose", transpose)):
        checks.flag("sptrsv", name, flag)
    values, pattern = L.values, L.pattern
    checks.dtype("sptrsv", "L.values", values, or_complex=True)
    checks.same_kind("sptrsv", "b", b, values, or_complex=True)
    checks.square("sptrsv", "L", pattern.shape)
    if b.dim() == 0:
        raise ValueError("sptrsv: b must have shape (n,) or (..., n, k), got a scalar")
    checks.rows("sptrsv", "b", b, "L", pattern.shape)
    checks.batches("sptrsv", values.shape[:-1], b.shape[:-2], "L.values and b")
    if not unit_diagonal and pattern._missing_diagonal >= 0:
        raise ValueError(
            f"sptrsv: L must have an entry on its diagonal in every row, row {pattern._missing_diagonal} has "
            "none; add it, or pass unit_diagonal=True"
        )
    side = Side(lower, unit_diagonal, transpose)
    if torch.compiler.is_dynamo_compiling():
        return solve(values, b, pattern, side)
    try:
        return solve(values, b, pattern, side)
    except RuntimeError as error:
        found = re.search(r"cannot divide by the diagonal: row (\d+) has (\S+)", str(error))
        if found is None:
            raise
        row, value = int(found[1]), found[2]
        at = f"row {row}{_which_matrix(values, pattern, row)}"
        if complex(value) == 0:
            raise ValueError(
                f"sptrsv: L must not have zeros on its diagonal, {at} has {value}; shift the diagonal, or "
                "pass unit_diagonal=True"
            ) from None
        raise ValueError(
            f"sptrsv: L must have a diagonal whose reciprocal does not overflow, {at} has {value}; scale L, "
            "or pass unit_diagonal=True"
        ) from None


def _which_matrix(values: Tensor, pattern: SparsityPattern, row: int) -> str:
    """The first matrix of a batch with an invalid diagonal entry in this row, for the message."""
    plain = plain_values(values)
    if values.dim() == 1 or plain.shape != values.shape:  # one matrix, or a torch.func transformation
        return ""
    d = plain[..., int(pattern.diagonal_positions[row])].flatten()
    found = (d.isfinite() & ~d.reciprocal().isfinite()).nonzero()
    return (
        "" if len(found) == 0 else f" of matrix {int(found[0])} of the batch (counted through all its axes)"
    )
