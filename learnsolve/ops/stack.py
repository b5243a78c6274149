"""Matrices stacked horizontally, vertically, along a diagonal, in a grid, and as a batch."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import torch

from learnsolve.matrix import checks, interning
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.pattern_checks import matrix_shape
from learnsolve.ops.core.selection import Sorted, reordered, sorted_by_row


def hstack(matrices: Sequence[CSR]) -> CSR:
    """[A, B, ...]: matrices with the same number of rows, side by side.

    Planned once per sequence of patterns; then values are concatenated and permuted, and the gradient is
    permuted back and split. Batch axes broadcast. A single matrix is returned unchanged.

    Parameters
    ----------
    matrices : nonempty sequence of CSR with the same number of rows, precision and device

    Returns
    -------
    CSR, shape (m, n1 + n2 + ...)

    Raises
    ------
    ValueError, TypeError
        if the sequence is empty, or shapes, dtypes, devices or batch axes do not match.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.hstack([ls.ops.eye(2), 3.0 * ls.ops.eye(2)]).to_dense()
    tensor([[1., 0., 3., 0.],
            [0., 1., 0., 3.]], dtype=torch.float64)
    """
    return _placed("hstack", matrices, lambda i: (0, i))


def vstack(matrices: Sequence[CSR]) -> CSR:
    """[A; B; ...]: matrices with the same number of columns, on top of one another; see `hstack`.

    Parameters
    ----------
    matrices : nonempty sequence of CSR with the same number of columns, precision and device

    Returns
    -------
    CSR, shape (m1 + m2 + ..., n)

    Raises
    ------
    ValueError, TypeError
        if the sequence is empty, or shapes, dtypes, devices or batch axes do not match.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.vstack([ls.ops.eye(1, 2), 3.0 * ls.ops.eye(1, 2)]).to_dense()
    tensor([[1., 0.],
            [3., 0.]], dtype=torch.float64)
    """
    return _placed("vstack", matrices, lambda i: (i, 0))


def block_diag(matrices: Sequence[CSR]) -> CSR:
    """Matrices of any shapes along the diagonal, without entries elsewhere; see `hstack`.

    Parameters
    ----------
    matrices : nonempty sequence of CSR, of the same precision and device

    Returns
    -------
    CSR of the summed shapes; batch axes broadcast

    Raises
    ------
    ValueError, TypeError
        if the sequence is empty, or dtypes, devices or batch axes do not match.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.block_diag([ls.ops.eye(1), 3.0 * ls.ops.eye(1, 2)]).to_dense()
    tensor([[1., 0., 0.],
            [0., 3., 0.]], dtype=torch.float64)
    """
    return _placed("block_diag", matrices, lambda i: (i, i))


def block(blocks: Sequence[Sequence[CSR | None]]) -> CSR:
    """[[A, B], [C, None]]: matrices in a grid; None is a block without entries. See `hstack`.

    Parameters
    ----------
    blocks : sequence of rows of equal length, each a sequence of CSR, of the same precision and device, and
        None. Each row and column needs at least one matrix, which sets its size; `zeros` makes an empty one

    Returns
    -------
    CSR of the summed shapes; batch axes broadcast

    Raises
    ------
    ValueError, TypeError
        if a row or a column has no matrix, or shapes, dtypes, devices or batch axes do not match.

    Examples
    --------
    >>> import learnsolve as ls
    >>> B = ls.ops.eye(1, 2)
    >>> ls.ops.block([[3.0 * ls.ops.eye(2), B.T], [B, None]]).to_dense()
    tensor([[3., 0., 1.],
            [0., 3., 0.],
            [1., 0., 0.]], dtype=torch.float64)
    """
    if not isinstance(blocks, Sequence) or not all(isinstance(row, Sequence) for row in blocks):
        raise TypeError("block: expected a list of rows, each a list of CSR matrices and None")
    if len({len(row) for row in blocks}) > 1:
        raise ValueError(f"block: rows must have equal length, got {[len(row) for row in blocks]}")
    for kind, lines in (("row", blocks), ("column", zip(*blocks, strict=True))):
        for i, line in enumerate(lines):
            if all(A is None for A in line):
                raise ValueError(
                    f"block: {kind} {i} has no matrix that gives its size; put ops.zeros(rows, columns) there"
                )
    cells = [(i, j) for i, row in enumerate(blocks) for j, A in enumerate(row) if A is not None]
    matrices = [A for row in blocks for A in row if A is not None]
    return _placed("block", matrices, lambda i: cells[i])


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
        if not interning.equal(A.pattern, first.pattern):
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
    """Check that matrices have the same precision and device; the first of them."""
    if isinstance(matrices, CSR) or not isinstance(matrices, Sequence):
        raise TypeError(f"{function}: expected a list of CSR matrices, got {type(matrices).__name__}")
    if not matrices:
        raise ValueError(f"{function}: expected at least one matrix, got an empty {type(matrices).__name__}")
    for i, A in enumerate(matrices):
        checks.matrix(function, f"matrix {i}", A)
        checks.same_kind(function, f"matrix {i}", A.values, matrices[0].values, or_complex=True)
    return matrices[0]


def _placed(function: str, matrices: Sequence[CSR], cell: Callable[[int], tuple[int, int]]) -> CSR:
    """Matrix i in the block (row, column) = cell(i) of a grid, sorted by row, then column. Every row and
    every column of blocks has a matrix."""
    first = check_matrices(function, matrices)
    batch = torch.Size()
    heights: dict[int, int] = {}
    widths: dict[int, int] = {}
    for i, A in enumerate(matrices):
        checks.batches(function, batch, A.batch_shape, f"matrix {i} and those before it")
        batch = torch.broadcast_shapes(batch, A.batch_shape)
        for axis, sizes in enumerate((heights, widths)):
            if (size := sizes.setdefault(cell(i)[axis], A.shape[axis])) != A.shape[axis]:
                where, lines = (("side by side", "rows"), ("on top of one another", "columns"))[axis]
                raise ValueError(
                    f"{function}: matrices {where} must have {size} {lines} as the first, got "
                    f"{A.shape[axis]} in matrix {i}"
                )
    if len(matrices) == 1:
        return first
    top, left = ((0, *accumulate(sizes[k] for k in range(len(sizes)))) for sizes in (heights, widths))
    shape = matrix_shape(function, (top[-1], left[-1]))
    corners = tuple((top[cell(i)[0]], left[cell(i)[1]]) for i in range(len(matrices)))
    others = (A.pattern for A in matrices[1:])
    plan = first.pattern._planned(_plan_stack, shape, corners, *others)
    values = torch.cat([A.values.expand(batch + A.values.shape[-1:]) for A in matrices], -1)
    return CSR(reordered(values, plan), plan.pattern)


def _plan_stack(first: SparsityPattern, shape: tuple, corners: tuple, *others: SparsityPattern) -> Sorted:
    patterns = (first, *others)
    rows, columns = (
        np.concatenate(
            [
                as_numpy(getattr(P, name)).astype(np.int64) + corner[axis]
                for P, corner in zip(patterns, corners, strict=True)
            ]
        )
        for axis, name in enumerate(("row_indices", "col_indices"))
    )
    widest = next((P for P in patterns if P.dtype == torch.int64), first)
    return sorted_by_row(widest, rows, columns, shape)
