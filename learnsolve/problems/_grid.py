"""Matrices of one stencil on a structured grid, with zeros beyond its boundary or periodic."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.pattern_checks import check_device
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.ops.stencil_matrix import stencil_entries

INT32_MAX = torch.iinfo(torch.int32).max


def grid_shape(function: str, shape: Any, dimensions: Sequence[int]) -> tuple[int, ...]:
    """`shape`, an int or a sequence of ints, as a tuple of positive ints, one per dimension."""
    try:
        sizes = tuple(operator.index(s) for s in (shape if isinstance(shape, Sequence) else (shape,)))
    except TypeError:
        raise TypeError(f"{function}: shape must be an int or a tuple of ints, got {shape!r}") from None
    if len(sizes) not in dimensions:
        allowed = " or ".join(str(d) for d in dimensions)
        raise ValueError(f"{function}: shape must have {allowed} dimensions, got {shape!r}")
    if min(sizes) < 1:
        raise ValueError(f"{function}: shape must have at least one grid point per dimension, got {shape!r}")
    return sizes


def check_dtype(function: str, dtype: torch.dtype) -> None:
    if dtype not in checks.SUPPORTED:
        raise TypeError(f"{function}: dtype must be torch.float32 or torch.float64, got {dtype}")


def index_dtype(rows: int, nnz: int) -> torch.dtype:
    """The narrowest index type that can count rows and entries: int32 halves the bytes of int64."""
    return torch.int32 if max(rows, nnz) <= INT32_MAX else torch.int64


def check_rows(function: str, rows: Any, n: int) -> tuple[int, int]:
    """`rows`, (lo, hi) of a matrix of n rows."""
    try:
        lo, hi = (operator.index(i) for i in rows)
    except (TypeError, ValueError):
        raise TypeError(f"{function}: rows must be two ints (lo, hi), got {rows!r}") from None
    if not 0 <= lo <= hi <= n:
        raise ValueError(f"{function}: rows must be (lo, hi) with 0 <= lo <= hi <= {n}, got {rows!r}")
    return lo, hi


def neighbors(
    offsets: np.ndarray, shape: tuple[int, ...], lo: int, hi: int, periodic: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the points at these offsets (K, d) from the points lo to hi - 1, and whether they exist:
    both (hi - lo, K)."""
    points = np.unravel_index(np.arange(lo, hi), shape)
    inside = np.ones((hi - lo, len(offsets)), dtype=bool)
    numbers = np.repeat(np.arange(lo, hi)[:, None], len(offsets), 1)
    for axis, (at, size) in enumerate(zip(points, shape, strict=True)):
        moved = at[:, None] + offsets[:, axis]
        if periodic:
            moved %= size
        inside &= (moved >= 0) & (moved < size)
        numbers += (moved - at[:, None]) * math.prod(shape[axis + 1 :])
    return numbers, inside


def pattern_of_rows(numbers: np.ndarray, inside: np.ndarray, n: int, device: Any) -> SparsityPattern:
    """Rows of a matrix with n columns, from their `neighbors` at ascending offsets."""
    index = index_dtype(n, int(inside.sum()))
    crow = torch.from_numpy(np.concatenate(([0], inside.sum(1).cumsum()))).to(device, index)
    col = torch.from_numpy(numbers[inside]).to(device, index)
    return SparsityPattern._trusted(crow, col, (len(numbers), n))


@makes_plain_tensors
def stencil_matrix(
    stencil: np.ndarray,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: Any,
    periodic: bool = False,
    rows_of: tuple[int, int] | None = None,
) -> CSR:
    """The matrix with A[i, i + o] = stencil[o + 1], o in {-1, 0, 1}^d; zeros are not stored. Periodic
    axes have at least 3 points. `rows_of`: only the rows lo to hi - 1."""
    check_device("problems", device)
    offsets = np.argwhere(stencil != 0) - 1
    n = math.prod(shape)
    if rows_of is not None:
        numbers, inside = neighbors(offsets, shape, *rows_of, periodic)
        each = np.broadcast_to(stencil[stencil != 0], inside.shape)
        if periodic:  # near the end of an axis columns do not ascend with the offsets
            order = numbers.argsort(1)
            numbers, each = (np.take_along_axis(a, order, 1) for a in (numbers, each))
        values = torch.from_numpy(each[inside]).to(device, dtype)
        return CSR(values, pattern_of_rows(numbers, inside, n, device))
    rows, columns, place = stencil_entries(offsets.tolist(), (periodic,) * len(shape), shape)
    index = index_dtype(n, len(rows))
    crow = torch.from_numpy(np.concatenate(([0], np.bincount(rows, minlength=n).cumsum()))).to(index)
    col = torch.from_numpy(columns).to(index)
    values = torch.from_numpy(stencil[stencil != 0]).to(dtype)[torch.from_numpy(place)]
    return CSR(values.to(device), SparsityPattern._trusted(crow.to(device), col.to(device), (n, n)))


def kronecker_sum(terms: Sequence[Sequence[Tensor]]) -> Tensor:
    """Eigenvalues sum_t prod_a terms[t][a][k_a], ascending, of sums of Kronecker products that share their
    eigenvectors along each axis."""
    total = torch.zeros(())
    for factors in terms:
        product = factors[0]
        for factor in factors[1:]:
            product = product.unsqueeze(-1) * factor
        total = total + product
    return total.flatten().sort().values


def sum_over_axes(lines: Sequence[Tensor]) -> Tensor:
    """Eigenvalues sum_a lines[a][k_a], ascending, of sums of one matrix along each axis."""
    total = torch.zeros(())
    for line in lines:
        total = total.unsqueeze(-1) + line
    return total.flatten().sort().values


def sine_angles(n: int) -> Tensor:
    """theta_k = k pi / (n + 1): a symmetric stencil (b, a, b) with Dirichlet ends has the eigenvectors
    sin(j theta_k) and the eigenvalues a + 2 b cos theta_k."""
    return torch.arange(1, n + 1, dtype=torch.float64) * (math.pi / (n + 1))


def periodic_angles(n: int) -> Tensor:
    """theta_k = 2 k pi / n: a periodic stencil (b, a, b) has the eigenvalues a + 2 b cos theta_k."""
    return torch.arange(n, dtype=torch.float64) * (2 * math.pi / n)
