"""Matrices side by side, on top of one another, along a diagonal, and as a batch."""

from collections.abc import Sequence

import numpy as np
import torch

from learnsolve import _check
from learnsolve._arrivals import same
from learnsolve._pattern_checks import matrix_shape
from learnsolve.csr import CSR
from learnsolve.ops._selection import Sorted, reordered, sorted_by_row
from learnsolve.pattern import SparsityPattern, as_numpy


def hstack(matrices: Sequence[CSR]) -> CSR:
    """[A, B, ...]: matrices of as many rows as each other, side by side.

    Planned once for the patterns in this order; then values are joined and permuted, and the gradient is
    permuted back and cut. Batch axes broadcast. One matrix alone is returned as it is.

    Parameters
    ----------
    matrices : sequence of CSR with as many rows, of one dtype and device; at least one

    Returns
    -------
    CSR, shape (m, n1 + n2 + ...)

    Raises
    ------
    ValueError, TypeError
        if there is none, or shapes, dtypes, devices or batch axes do not fit.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.hstack([ls.ops.eye(2), 3.0 * ls.ops.eye(2)]).to_dense()
    tensor([[1., 0., 3., 0.],
            [0., 1., 0., 3.]])
    """
    return _stack("hstack", matrices, "horizontal")


def vstack(matrices: Sequence[CSR]) -> CSR:
    """[A; B; ...]: matrices of as many columns as each other, on top of one another; see `hstack`.

    Parameters
    ----------
    matrices : sequence of CSR with as many columns, of one dtype and device; at least one

    Returns
    -------
    CSR, shape (m1 + m2 + ..., n)

    Raises
    ------
    ValueError, TypeError
        if there is none, or shapes, dtypes, devices or batch axes do not fit.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.vstack([ls.ops.eye(1, 2), 3.0 * ls.ops.eye(1, 2)]).to_dense()
    tensor([[1., 0.],
            [3., 0.]])
    """
    return _stack("vstack", matrices, "vertical")


def block_diag(matrices: Sequence[CSR]) -> CSR:
    """Matrices of any shapes along the diagonal, no entries elsewhere; see `hstack`.

    Parameters
    ----------
    matrices : sequence of CSR, of one dtype and device; at least one

    Returns
    -------
    CSR of the summed shapes; batch axes broadcast

    Raises
    ------
    ValueError, TypeError
        if there is none, or dtypes, devices or batch axes do not fit.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.block_diag([ls.ops.eye(1), 3.0 * ls.ops.eye(1, 2)]).to_dense()
    tensor([[1., 0., 0.],
            [0., 3., 0.]])
    """
    return _stack("block_diag", matrices, "diagonal")


def stack(matrices: Sequence[CSR]) -> CSR:
    """See `CSR.stack`.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((3,))
    >>> ls.CSR.stack([A, 2.0 * A])
    CSR(shape=(3, 3), nnz=7, batch=(2,), dtype=float64, device=cpu, density=77.8%)
    """
    function = "CSR.stack"
    first = check_matrices(function, matrices)
    for i, A in enumerate(matrices):
        if not same(A.pattern, first.pattern):
            raise ValueError(
                f"{function}: the matrices must have one pattern, but that of matrix {i}, "
                f"{A.pattern}, differs from the first's, {first.pattern}; BlockBatch takes any, or give all "
                "the same with CSR.from_*(..., pattern=)"
            )
        if A.batch_shape != first.batch_shape:
            raise ValueError(
                f"{function}: the matrices must have one batch shape, got {tuple(A.batch_shape)} in matrix "
                f"{i}, {tuple(first.batch_shape)} in the first"
            )
    return first.with_values(torch.stack([A.values for A in matrices]))


def check_matrices(function: str, matrices: Sequence[CSR]) -> CSR:
    """The first of some matrices of one dtype and device."""
    if isinstance(matrices, CSR) or not isinstance(matrices, Sequence):
        raise TypeError(f"{function}: expected a list of CSR matrices, got {type(matrices).__name__}")
    if not matrices:
        raise ValueError(f"{function}: expected at least one matrix, got an empty {type(matrices).__name__}")
    for i, A in enumerate(matrices):
        _check.matrix(function, f"matrix {i}", A)
        _check.same_kind(function, f"matrix {i}", A.values, matrices[0].values)
    return matrices[0]


def _stack(function: str, matrices: Sequence[CSR], way: str) -> CSR:
    first = check_matrices(function, matrices)
    batch = torch.Size()
    side = {"horizontal": 0, "vertical": 1}.get(way)
    for i, A in enumerate(matrices):
        _check.batches(function, batch, A.batch_shape, f"matrix {i} and those before it")
        batch = torch.broadcast_shapes(batch, A.batch_shape)
        if side is not None and A.shape[side] != first.shape[side]:
            raise ValueError(
                f"{function}: matrices must have {first.shape[side]} {('rows', 'columns')[side]} as the "
                f"first, got {A.shape[side]} in matrix {i}"
            )
    if len(matrices) == 1:
        return first
    shapes = [A.shape for A in matrices]
    rows, columns = (sum(s) for s in zip(*shapes, strict=True))
    matrix_shape(function, (shapes[0][0] if side == 0 else rows, shapes[0][1] if side == 1 else columns))
    others = (A.pattern for A in matrices[1:])
    plan = first.pattern._planned(_plan_stack, way, *others)
    values = torch.cat([A.values.expand(batch + A.values.shape[-1:]) for A in matrices], -1)
    return CSR(reordered(values, plan), plan.pattern)


def _plan_stack(first: SparsityPattern, way: str, *others: SparsityPattern) -> Sorted:
    patterns = (first, *others)
    sizes = np.array([P.shape for P in patterns])
    starts = np.cumsum(sizes, axis=0) - sizes
    if way == "horizontal":
        starts[:, 0] = 0
    if way == "vertical":
        starts[:, 1] = 0
    rows = np.concatenate(
        [as_numpy(P.row_indices).astype(np.int64) + s[0] for P, s in zip(patterns, starts, strict=True)]
    )
    columns = np.concatenate(
        [as_numpy(P.col_indices).astype(np.int64) + s[1] for P, s in zip(patterns, starts, strict=True)]
    )
    widest = next((P for P in patterns if P.dtype == torch.int64), first)
    shape = (int(starts[-1, 0]) + others[-1].shape[0], int(starts[-1, 1]) + others[-1].shape[1])
    return sorted_by_row(widest, rows, columns, shape)
