"""The diagonal of a matrix, its sum and its reciprocals, differentiable in the values."""

import contextlib

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.plain import plain_tensors
from learnsolve.ops.core.autograd import tracked
from learnsolve.ops.core.dots import total
from learnsolve.ops.core.operands import plain_values


def diagonal(A: CSR, k: int = 0) -> Tensor:
    """Diagonal k, the entries (i, i + k), shape (..., length); zero where the pattern has no entry.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    k : int, above the main diagonal if positive

    Returns
    -------
    Tensor

    Raises
    ------
    TypeError
        if A is neither a CSR nor a sparse matrix of another library, or k not an int.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.diagonal(ls.problems.poisson((3,)), 1)
    tensor([-1., -1.], dtype=torch.float64)
    """
    checks.matrix("diagonal", "A", A)
    k = checks.integer("diagonal", "k", k, -(2**62))
    at = A.pattern.diagonal_positions if k == 0 else A.pattern._planned(_plan_diagonal, k)
    if A.nnz == 0:
        return A.values.sum(-1, keepdim=True).expand(A.batch_shape + at.shape)  # zeros with a graph
    if k == 0 and not torch.compiler.is_dynamo_compiling() and A.pattern._missing_diagonal < 0:
        return A.values.index_select(-1, at)
    return torch.where(at >= 0, A.values.index_select(-1, at.clamp(min=0)), 0)


def _plan_diagonal(P: SparsityPattern, k: int) -> Tensor:
    rows, columns = P.shape
    first = max(0, -k)
    at = np.full(max(0, min(rows - first, columns - max(0, k))), -1, dtype=np.int64)
    i = as_numpy(P.row_indices).astype(np.int64)
    here = np.flatnonzero(as_numpy(P.col_indices) == i + k)
    at[i[here] - first] = here
    return P._tensor(at).to(P.dtype)


def trace(A: CSR) -> Tensor:
    """The sum of the main diagonal, shape (...).

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)

    Returns
    -------
    Tensor, shape (...)

    Raises
    ------
    TypeError
        if A is neither a CSR nor a sparse matrix of another library.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.trace(ls.problems.poisson((3,)))
    tensor(6., dtype=torch.float64)
    """
    checks.matrix("trace", "A", A)
    return total(diagonal(A))


def inverse_diagonal(A: CSR) -> Tensor:
    """1 / diag(A), shape (..., n), for a square A without zeros on its diagonal.

    A missing entry is always an error; a stored zero is an error on the CPU. On a CUDA device the check would
    synchronize, so a zero becomes an infinity, which `Solution.status` reports.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)

    Returns
    -------
    Tensor, shape (..., n)

    Raises
    ------
    ValueError
        if A is not square, or has no entry or, on the CPU, a zero on its diagonal.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.inverse_diagonal(ls.problems.poisson((2,)))
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    checks.matrix("inverse_diagonal", "A", A)
    return shared_inverse_diagonal(A, "inverse_diagonal").clone()


def shared_inverse_diagonal(A: CSR, function: str) -> Tensor:
    """`inverse_diagonal` for solvers; do not modify the result.

    It is cached with A and reused while the diagonal has the same values; versions do not suffice, because
    fused optimizers and ``.data`` change values without a new version. Not cached for values on a device:
    other streams would have to wait for it, and a graph would hold it indefinitely."""
    values, traced = A.values, torch.compiler.is_dynamo_compiling()
    keeps = not traced and values.is_cpu and not tracked(values)
    kept = getattr(A, "_inverse_diagonal", None) if keeps else None
    if kept is not None and kept[0].dtype == values.dtype:
        d = values.index_select(-1, A.pattern.diagonal_positions)
        if torch.equal(kept[0], d):
            return kept[1]
    checks.square(function, "A", A.shape)
    row = A.pattern._missing_diagonal
    if row >= 0:
        raise ValueError(
            f"{function}: A must have an entry on its diagonal in every row, row {row} has none; permute the "
            "rows, or add the entry"
        )
    with plain_tensors() if keeps else contextlib.nullcontext():
        d = diagonal(A)
        if not traced:
            _nonzero(function, d)
        inverse = d.reciprocal()
    if keeps:
        object.__setattr__(A, "_inverse_diagonal", (d, inverse))
    return inverse


def _nonzero(function: str, d: Tensor) -> None:
    d = plain_values(d)
    if d.is_cpu and (zero := d == 0).any():
        at = zero.nonzero()[0].tolist()
        raise ValueError(
            f"{function}: A must not have zeros on its diagonal, row {at[-1]} has one; permute the rows or "
            "shift the diagonal"
        )
