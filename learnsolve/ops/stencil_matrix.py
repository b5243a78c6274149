"""The matrix of a stencil."""

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.ops.core.gather import added_up
from learnsolve.ops.core.selection import first_of_each
from learnsolve.ops.core.stencil import Neighbors
from learnsolve.ops.stencil import by_offset, grid_sizes, neighbors, window

# Patterns in use: a matrix that is rebuilt with other coefficients keeps its pattern.
_patterns: weakref.WeakValueDictionary[Any, SparsityPattern] = weakref.WeakValueDictionary()


def stencil_matrix(
    coefficients: Tensor,
    grid: Sequence[int],
    *,
    offsets: Sequence[Sequence[int]] | None = None,
    boundary: str | Sequence[str] = "zero",
) -> CSR:
    r"""The matrix of a stencil operator, for which :math:`A x` is `stencil` of x, flattened.

    .. math:: A_{i, i + o_k} = c_k(i)

    Parameters
    ----------
    coefficients, offsets, boundary : as for `stencil`
    grid : sequence of int, its sizes; points are numbered with the last axis fastest

    Returns
    -------
    CSR, shape (n, n), n the number of points; int32 indices if they can count the entries, otherwise int64.
    Its values have the batch axes of the coefficients. Zero coefficients are entries. If offsets coincide, on
    a small periodic grid, their coefficients are added.

    Raises
    ------
    ValueError, TypeError
        as for `stencil`.

    Notes
    -----
    Gradient: :math:`\bar c_k(i) = \bar A_{i, i + o_k}`, summed over the grid if the coefficient is the
    same for all points. Any order.

    Cost: O(K n log(K n)) to make the pattern. While a matrix with this pattern lives, later ones share it and
    only gather their values, O(K n). Not supported under `torch.compile`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.ops.stencil_matrix(torch.tensor([-1.0, 2.0, 0.0]), (4,), boundary="periodic").to_dense()
    tensor([[ 2.,  0.,  0., -1.],
            [-1.,  2.,  0.,  0.],
            [ 0., -1.,  2.,  0.],
            [ 0.,  0., -1.,  2.]])
    """
    checks.tensor("stencil_matrix", "coefficients", coefficients)
    checks.dtype("stencil_matrix", "coefficients", coefficients, or_complex=True)
    if offsets is None:
        c, where = window("stencil_matrix", coefficients, boundary)
    else:
        c, where = coefficients, neighbors("stencil_matrix", offsets, boundary)
    sizes = grid_sizes("stencil_matrix", grid, len(where.periodic))
    return matrix_of(by_offset("stencil_matrix", c, where, sizes), where, sizes)


def matrix_of(c: Tensor, where: Neighbors, grid: torch.Size) -> CSR:
    """`stencil_matrix` for checked coefficients (..., K, *grid) or (..., K, 1, ..., 1)."""
    d = len(grid)
    constant = c.shape[-d:].numel() == 1 and grid.numel() != 1
    pattern, gather = _plan(where, tuple(grid), constant, c.device)
    return CSR(added_up(c.flatten(-d - 1), gather), pattern)


@makes_plain_tensors
def _plan(
    where: Neighbors, grid: tuple[int, ...], constant: bool, device: torch.device
) -> tuple[SparsityPattern, SparsityPattern]:
    """The patterns of the matrix and of the 0/1 matrix from the coefficients (K or K n) to its entries."""
    key = (where, grid, device)
    pattern = _patterns.get(key)
    if pattern is None:
        pattern = _patterns[key] = _pattern(where, grid, device)
    return pattern, pattern._planned(_gather, where.offsets, where.periodic, grid, constant)[0]


def stencil_entries(
    offsets: Sequence[Sequence[int]], periodic: Sequence[int | bool], grid: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, column, offset) of each neighbor on the grid, sorted by row, column, offset."""
    n, count = math.prod(grid), len(offsets)
    narrow = n <= np.iinfo(np.int32).max // 4  # room for columns outside the grid, which are dropped
    inside = np.ones((*grid, count), dtype=bool)
    column = np.empty((*grid, count), dtype=np.int32 if narrow else np.int64)
    column[:] = np.arange(n).reshape(*grid, 1)
    for k, offset in enumerate(offsets):
        for axis, (step, size) in enumerate(zip(offset, grid, strict=True)):
            stride = math.prod(grid[axis + 1 :])
            at: list[slice | int] = [*(slice(None),) * len(grid), k]
            step = step % max(size, 1) if periodic[axis] else step
            # The points whose neighbor lies beyond the end of the axis.
            at[axis] = slice(0, min(-step, size)) if step < 0 else slice(max(size - step, 0), size)
            if periodic[axis]:
                column[tuple(at)] -= size * stride
            else:
                inside[tuple(at)] = False
            column[..., k] += step * stride if abs(step) < size else 0
    mask = inside.reshape(n, count)
    i, k = np.nonzero(mask)
    j = column.reshape(n, count)[mask]
    if not any(periodic) and list(map(tuple, offsets)) == sorted(map(tuple, offsets)):
        return i, j, k  # neighbors in lexicographic order have ascending columns
    order = np.lexsort((k, j, i))
    return i[order], j[order], k[order]


def _triples(where: Neighbors, grid: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    d = len(grid)
    offsets = [where.offsets[k : k + d] for k in range(0, len(where.offsets), d)]
    return stencil_entries(offsets, where.periodic, grid)


def _index(array: np.ndarray, largest: int, device: torch.device) -> Tensor:
    narrow = largest <= torch.iinfo(torch.int32).max
    return torch.from_numpy(array.astype(np.int32 if narrow else np.int64)).to(device)


def _pattern(where: Neighbors, grid: tuple[int, ...], device: torch.device) -> SparsityPattern:
    i, j, _ = _triples(where, grid)
    first, n = first_of_each(i, j), math.prod(grid)
    crow = np.searchsorted(i[first], np.arange(n + 1))
    largest = max(n, len(first))
    return SparsityPattern._trusted(_index(crow, largest, device), _index(j[first], largest, device), (n, n))


def _gather(
    pattern: SparsityPattern,
    offsets: tuple[int, ...],
    periodic: tuple[int, ...],
    grid: tuple[int, ...],
    constant: bool,
) -> tuple[SparsityPattern]:
    i, j, k = _triples(Neighbors(offsets, periodic), grid)
    n = math.prod(grid)
    source = k if constant else k * n + i
    sources = len(offsets) // len(grid) * (1 if constant else n)
    crow = np.append(first_of_each(i, j), len(i))
    largest = max(len(i), sources)
    return (
        SparsityPattern._trusted(
            _index(crow, largest, pattern.device),
            _index(source, largest, pattern.device),
            (pattern.nnz, sources),
        ),
    )
