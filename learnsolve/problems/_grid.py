"""Matrices of one stencil on a structured grid, with zeros beyond its boundary."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve import _check
from learnsolve._plain import makes_plain_tensors
from learnsolve.csr import CSR
from learnsolve.pattern import SparsityPattern

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
    if dtype not in _check.SUPPORTED:
        raise TypeError(f"{function}: dtype must be torch.float32 or torch.float64, got {dtype}")


def index_dtype(rows: int, nnz: int) -> torch.dtype:
    """The narrowest index type that can count rows and entries: int32 halves the bytes of int64."""
    return torch.int32 if max(rows, nnz) <= INT32_MAX else torch.int64


def stencil_entries(offsets: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entries of a stencil matrix: (crow, col, position of each entry in `offsets`).

    Points are numbered with the last axis fastest. `offsets`, shape (k, d), must be in lexicographic order:
    then the neighbours of a point are too, and the columns of a row are sorted, on a grid of any size.
    """
    n, k = math.prod(shape), len(offsets)
    inside = np.ones((*shape, k), dtype=bool)
    for j, offset in enumerate(offsets):
        for axis, step in enumerate(offset):
            size = shape[axis]
            at = [slice(None)] * len(shape) + [j]
            at[axis] = slice(0, min(-step, size)) if step < 0 else slice(max(size - step, 0), size)
            inside[tuple(at)] = False
    inside = inside.reshape(n, k)
    nnz = int(np.count_nonzero(inside))
    index = np.int32 if index_dtype(n, nnz) == torch.int32 else np.int64
    crow = np.zeros(n + 1, dtype=index)
    np.cumsum(np.count_nonzero(inside, axis=1), out=crow[1:])
    strides = np.array([math.prod(shape[axis + 1 :]) for axis in range(len(shape))])
    points = np.arange(n, dtype=index)[:, None]
    col = (points + (offsets @ strides).astype(index))[inside]
    place = np.broadcast_to(np.arange(k, dtype=np.int8), (n, k))[inside]
    return crow, col, place


@makes_plain_tensors
def stencil_matrix(stencil: np.ndarray, shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> CSR:
    """The matrix with A[i, i + o] = stencil[o + 1], o in {-1, 0, 1}^d; zeros are not stored."""
    offsets = np.argwhere(stencil != 0) - 1
    crow, col, place = (torch.from_numpy(a) for a in stencil_entries(offsets, shape))
    values = torch.from_numpy(stencil[stencil != 0]).to(dtype)[place.int()]
    n = len(crow) - 1
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


def sine_angles(n: int) -> Tensor:
    """theta_k = k pi / (n + 1): a symmetric stencil (b, a, b) with Dirichlet ends has the eigenvectors
    sin(j theta_k) and the eigenvalues a + 2 b cos theta_k."""
    return torch.arange(1, n + 1, dtype=torch.float64) * (math.pi / (n + 1))
