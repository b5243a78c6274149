"""Structure that a problem analyzes once and caches: symmetric patterns, and the origin of their values."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.ops.core.gather import permuted
from learnsolve.problems._grid import index_dtype


class SymmetricPlan(NamedTuple):
    """A symmetric matrix from its diagonal d (n) and the entries c (u) above it.

    The values are a permutation of (d, c, c), so both triangles have the same bits, and the gradient is a
    permutation as well, without sums.
    """

    pattern: SparsityPattern
    forward: Tensor
    backward: Tensor

    def matrix(self, diagonal: Tensor, above: Tensor) -> CSR:
        """For d of shape (..., n) and c of shape (..., u)."""
        parts = torch.cat((diagonal, above, above), -1)
        return CSR(permuted(parts, self.forward, self.backward), self.pattern)


def symmetric_plan(n: int, rows: np.ndarray, columns: np.ndarray, device: torch.device) -> SymmetricPlan:
    """For the positions (rows[e], columns[e]) above the diagonal, each given once, and the whole diagonal."""
    nnz = n + 2 * len(rows)
    index = index_dtype(n, nnz)
    every = np.arange(n)
    i, j = np.concatenate((every, rows, columns)), np.concatenate((every, columns, rows))
    crow, col, forward, _ = _analysis.sort_triples(i, j, n)
    backward = np.empty_like(forward)
    backward[forward] = np.arange(nnz)
    crow, col = (torch.from_numpy(a).to(device, index) for a in (crow, col))
    forward, backward = (torch.from_numpy(a).to(device) for a in (forward, backward))
    return SymmetricPlan(SparsityPattern._trusted(crow, col, (n, n)), forward, backward)


# Few: a pattern of 10^6 cells and the caches of its operations take about 100 MB.
@makes_plain_tensors
@lru_cache(maxsize=8)
def grid_plan(shape: tuple[int, ...], device: torch.device) -> SymmetricPlan:
    """Each point of a grid with its neighbors. Couplings axis by axis, starting with the first, each in the
    order of its faces."""
    number = np.arange(math.prod(shape)).reshape(shape)
    lower = [number.take(range(n - 1), axis).ravel() for axis, n in enumerate(shape)]
    upper = [number.take(range(1, n), axis).ravel() for axis, n in enumerate(shape)]
    return symmetric_plan(number.size, np.concatenate(lower), np.concatenate(upper), device)
