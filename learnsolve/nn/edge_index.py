"""Graphs as PyTorch Geometric has them."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from learnsolve import _check
from learnsolve._plain import makes_plain_tensors
from learnsolve.pattern import SparsityPattern, as_numpy


def pattern_from_edge_index(edge_index: Tensor, n: int) -> tuple[SparsityPattern, Tensor]:
    """The sparsity pattern of a list of edges, and their order in it.

    Edge k is the entry (edge_index[0, k], edge_index[1, k]), as in PyTorch Geometric's
    ``from_scipy_sparse_matrix``. There, messages go to ``edge_index[1]``: aggregate by columns.

    Parameters
    ----------
    edge_index : Tensor of int64 or int32, shape (2, E), no edge twice
    n : number of nodes

    Returns
    -------
    SparsityPattern, shape (n, n), and order, int64, shape (E,): entry p is edge ``order[p]``, so features of
    edges, (..., E, f), become those of entries by ``e[..., order, :]``.

    Raises
    ------
    ValueError
        for an edge that is given twice, a node outside 0 <= node < n, or a wrong shape.
    TypeError
        if edge_index is not a tensor of integers.

    Notes
    -----
    Cost: O(E log E), on the host, to sort edges that were not used recently, then O(E) to compare. Equal
    edges give one pattern object while they are among the last 8.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P, order = ls.nn.pattern_from_edge_index(torch.tensor([[1, 0, 0], [0, 2, 1]]), 3)
    >>> P.col_indices, order
    (tensor([1, 2, 0]), tensor([2, 1, 0]))
    """
    name = "pattern_from_edge_index"
    _check.tensor(name, "edge_index", edge_index)
    if edge_index.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: edge_index must be int32 or int64, got {edge_index.dtype}")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"{name}: edge_index must have shape (2, E), got {tuple(edge_index.shape)}")
    n = _check.integer(name, "n", n, 0)
    return _sorted(_contents(edge_index), n, edge_index.dtype, edge_index.device)


@makes_plain_tensors
def _contents(edge_index: Tensor) -> bytes:
    return as_numpy(edge_index).astype(np.int64).tobytes()


@makes_plain_tensors
@lru_cache(maxsize=8)
def _sorted(edges: bytes, n: int, dtype: torch.dtype, device: torch.device) -> tuple[SparsityPattern, Tensor]:
    name = "pattern_from_edge_index"
    rows, columns = np.frombuffer(edges, dtype=np.int64).reshape(2, -1)
    outside = np.flatnonzero((np.minimum(rows, columns) < 0) | (np.maximum(rows, columns) >= n))
    if len(outside):
        k = int(outside[0])
        raise ValueError(
            f"{name}: nodes must lie in 0 <= node < {n}, got edge_index[:, {k}] = [{rows[k]}, {columns[k]}]"
        )
    order = np.lexsort((columns, rows))
    i, j = rows[order], columns[order]
    twice = np.flatnonzero((i[1:] == i[:-1]) & (j[1:] == j[:-1]))
    if len(twice):
        p = int(twice[0])
        raise ValueError(
            f"{name}: an edge must not be given twice, got ({i[p]}, {j[p]}) at {order[p]} and at "
            f"{order[p + 1]}; add their features up with CSR.from_coo"
        )
    crow = np.searchsorted(i, np.arange(n + 1))
    crow, col = (torch.from_numpy(np.ascontiguousarray(a)).to(device, dtype) for a in (crow, j))
    return SparsityPattern._trusted(crow, col, (n, n)), torch.from_numpy(order).to(device)
