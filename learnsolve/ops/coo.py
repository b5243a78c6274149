"""CSR from triples in any order."""

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.pattern_checks import as_numpy, matrix_shape, sorted_triples
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.ops.core.gather import added_up


def from_coo(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> CSR:
    """See `CSR.from_coo`. Sorting costs O(e log k) once, for e entries with at most k per row. Values then
    flow through a product with the 0/1 matrix that moves each entry to its position, and gradients flow back
    through its transpose.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> i, j = torch.tensor([1, 0, 1]), torch.tensor([0, 1, 0])
    >>> ls.CSR.from_coo(i, j, torch.tensor([1.0, 2.0, 3.0]), (2, 2)).to_dense()
    tensor([[0., 2.],
            [4., 0.]])
    """
    for name, t in (("rows", rows), ("columns", columns), ("values", values)):
        checks.tensor("from_coo", name, t)
    checks.dtype("from_coo", "values", values, or_complex=True)
    for t in (rows, columns):
        if t.is_floating_point() or t.is_complex() or t.dtype == torch.bool or t.dim() != 1:
            raise TypeError(
                "from_coo: rows and columns must be 1-D tensors of integers, got "
                f"{t.dtype} of shape {tuple(t.shape)}"
            )
    if not len(rows) == len(columns) == (values.shape[-1] if values.dim() else -1):
        raise ValueError(
            "from_coo: rows, columns and the last axis of values must have one length, got "
            f"{len(rows)}, {len(columns)} and shape {tuple(values.shape)}"
        )
    m, n = matrix_shape("from_coo", shape)
    pattern, gather = _sort(rows, columns, m, n, values.device)
    return CSR(added_up(values, gather), pattern)


@makes_plain_tensors
def _sort(
    rows: Tensor, columns: Tensor, m: int, n: int, device: torch.device
) -> tuple[SparsityPattern, SparsityPattern]:
    """The pattern of the triples, and the pattern of the 0/1 matrix (entries of the pattern x triples)."""
    narrow = rows.dtype == columns.dtype == torch.int32
    narrow = narrow and max(m, n, len(rows)) <= torch.iinfo(torch.int32).max
    dtype = torch.int32 if narrow else torch.int64
    # Duplicates are added in the order given.
    crow, col, order, first = sorted_triples("from_coo", as_numpy(rows), as_numpy(columns), (m, n))
    crow, col, order, ends = (
        torch.from_numpy(a).to(device, dtype) for a in (crow, col, order, np.append(first, len(order)))
    )
    pattern = SparsityPattern._trusted(crow, col, (m, n))
    return pattern, SparsityPattern._trusted(ends, order, (pattern.nnz, len(order)))
