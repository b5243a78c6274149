"""The real form of a complex matrix with interleaved real and imaginary parts: each entry a + i b becomes the
block [[a, -b], [b, a]], so that triangles, bands and blocks are preserved. Vectors are as in `complex.tall`.

The real form of A^H is its transpose. Used for triangular solves and factors.
"""

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.ops.core import complex
from learnsolve.ops.core.selection import Sorted, reordered, sorted_by_row


def interleaved(values: Tensor, P: SparsityPattern) -> tuple[Tensor, SparsityPattern]:
    """Values (..., 4 nnz) and the pattern, (2 m, 2 n), of the real form; planned once, differentiable."""
    plan = P._planned(_plan)
    re, im = complex.parts(values).unbind(-1)
    upper, lower = torch.stack((re, -im), -1), torch.stack((im, re), -1)
    return reordered(torch.cat((upper.flatten(-2), lower.flatten(-2)), -1), plan), plan.pattern


def real_matrix(A: CSR) -> CSR:
    return CSR(*interleaved(A.values, A.pattern))


def real_pattern(P: SparsityPattern) -> SparsityPattern:
    return P._planned(_plan).pattern


def _plan(P: SparsityPattern) -> Sorted:
    rows, columns = (2 * np.repeat(as_numpy(t).astype(np.int64), 2) for t in (P.row_indices, P.col_indices))
    columns[1::2] += 1
    return sorted_by_row(
        P, np.concatenate((rows, rows + 1)), np.tile(columns, 2), (2 * P.shape[0], 2 * P.shape[1])
    )
