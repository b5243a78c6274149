"""CSR from triples in any order."""

import numpy as np
import torch
from torch import Tensor

from learnsolve import _check
from learnsolve._plain import makes_plain_tensors
from learnsolve.csr import CSR
from learnsolve.ops._gather import added_up
from learnsolve.ops._selection import first_of_each
from learnsolve.pattern import SparsityPattern, as_numpy, matrix_shape


def from_coo(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> CSR:
    """See `CSR.from_coo`. Sorting costs O(e log e) for e entries, once; values then flow through a product
    with the 0/1 matrix that sends each entry to its place, whose gradient hands each its own back.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> i, j = torch.tensor([1, 0, 1]), torch.tensor([0, 1, 0])
    >>> ls.CSR.from_coo(i, j, torch.tensor([1.0, 2.0, 3.0]), (2, 2)).to_dense()
    tensor([[0., 2.],
            [4., 0.]])
    """
    for name, t in (("rows", rows), ("columns", columns), ("values", values)):
        _check.tensor("from_coo", name, t)
    _check.dtype("from_coo", "values", values)
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
    """The pattern of the triples, and that of the 0/1 matrix (entries of the pattern x triples)."""
    i, j = as_numpy(rows).astype(np.int64), as_numpy(columns).astype(np.int64)
    for name, places, size in (("rows", i, m), ("columns", j, n)):
        outside = np.flatnonzero((places < 0) | (places >= size))
        if len(outside):
            at = int(outside[0])
            raise ValueError(
                f"from_coo: {name} must lie in 0 <= index < {size}, got {name}[{at}] = {int(places[at])}"
            )
    order = np.lexsort((j, i))  # stable: duplicates are added in the order given
    i, j = i[order], j[order]
    first = first_of_each(i, j)
    narrow = rows.dtype == columns.dtype == torch.int32 and max(m, n, len(i)) <= torch.iinfo(torch.int32).max
    dtype = torch.int32 if narrow else torch.int64

    def index(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, dtype)

    crow = np.searchsorted(i[first], np.arange(m + 1))
    pattern = SparsityPattern._trusted(index(crow), index(j[first]), (m, n))
    gather = SparsityPattern._trusted(index(np.append(first, len(i))), index(order), (len(first), len(i)))
    return pattern, gather
