"""Complex systems as real ones, with the real and imaginary part of each row side by side: a complex entry
a + ib becomes the block ((a, -b), (b, a)). Norms, Hermitian matrices (as symmetric ones), definiteness,
conjugate transposes (as transposes) and products stay what they are."""

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy


def real_rows(x: Tensor) -> Tensor:
    """(..., 2 n, k) of complex x (..., n, k), and (2 n) of (n)."""
    x = torch.view_as_real(x.resolve_conj())
    return x.flatten() if x.dim() == 2 else x.movedim(-1, -2).flatten(-3, -2)


def complex_rows(x: Tensor) -> Tensor:
    """The inverse of `real_rows`."""
    pairs = x.unflatten(0 if x.dim() == 1 else -2, (-1, 2))
    return torch.view_as_complex((pairs if x.dim() == 1 else pairs.movedim(-2, -1)).contiguous())


def real_matrix(A: CSR) -> CSR:
    """(2 n, 2 n) of a complex A."""
    pattern, at = _expanded(A.pattern)
    re, im = A.values.real, A.values.imag
    return CSR(torch.stack((re, -im, im, re), -1).flatten(-2).index_select(-1, at), pattern)


def real_pattern(P: SparsityPattern) -> SparsityPattern:
    return _expanded(P)[0]


def _expanded(P: SparsityPattern) -> tuple[SparsityPattern, Tensor]:
    return P._planned(_plan)


def _plan(P: SparsityPattern) -> tuple[SparsityPattern, Tensor]:
    """The pattern, and for each entry its place among a, -b, b, a of all entries."""
    crow, col = (as_numpy(t).astype(np.int64) for t in (P.crow_indices, P.col_indices))
    lengths = np.diff(crow)
    first = np.repeat(4 * crow[:-1], lengths) + 2 * (np.arange(len(col)) - np.repeat(crow[:-1], lengths))
    place = np.stack((first, first + 1, *(first + 2 * np.repeat(lengths, lengths) + i for i in (0, 1))), -1)
    columns, at = np.empty((2, 4 * len(col)), np.int64)
    columns[place] = np.stack((2 * col, 2 * col + 1) * 2, -1)
    at[place] = np.arange(4 * len(col)).reshape(-1, 4)
    starts = np.concatenate(([0], np.cumsum(np.repeat(2 * lengths, 2))))
    shape = (2 * P.shape[0], 2 * P.shape[1])
    index = np.int64 if max(*shape, len(at)) > np.iinfo(np.int32).max else as_numpy(P.crow_indices).dtype
    arrays = (P._tensor(t.astype(index)) for t in (starts, columns))
    return SparsityPattern._trusted(*arrays, shape), P._tensor(at)
