"""Graphs in the form of PyTorch Geometric."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix import checks, inputs
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import makes_plain_tensors

_NAME = "pattern_from_edge_index"


def pattern_from_edge_index(edge_index: Tensor, n: int) -> tuple[SparsityPattern, Tensor]:
    """The sparsity pattern of a list of edges, and their order in it.

    Edge k is the entry (edge_index[0, k], edge_index[1, k]), as in PyTorch Geometric's
    ``from_scipy_sparse_matrix``. There, messages go to ``edge_index[1]``: aggregate by columns.

    Parameters
    ----------
    edge_index : integer Tensor, shape (2, E), without duplicate edges
    n : number of nodes

    Returns
    -------
    SparsityPattern, shape (n, n), int32 if edge_index is, otherwise int64; and order, int64, shape (E,):
    entry p is edge ``order[p]``, so edge features (..., E, f) become entry features as
    ``e[..., order, :]``.

    Raises
    ------
    ValueError
        for a duplicate edge, a node outside 0 <= node < n, n < 0, or a wrong shape.
    TypeError
        if edge_index is not a tensor of integers.

    Notes
    -----
    Cost: O(E log E), on the host, to sort edges not used recently, otherwise O(E) to compare. Equal
    edges return the same pattern object while they are among the last 8.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P, order = ls.nn.pattern_from_edge_index(torch.tensor([[1, 0, 0], [0, 2, 1]]), 3)
    >>> P.col_indices, order
    (tensor([1, 2, 0]), tensor([2, 1, 0]))
    """
    edges, n = inputs.edges(_NAME, edge_index, checks.integer(_NAME, "n", n, 0))
    dtype = torch.int32 if edge_index.dtype == torch.int32 else torch.int64
    pattern, order = _sorted(edges.tobytes(), n, dtype, edge_index.device)
    return pattern, order.clone()  # the caller may change it


@makes_plain_tensors
@lru_cache(maxsize=8)
def _sorted(key: bytes, n: int, dtype: torch.dtype, device: torch.device) -> tuple[SparsityPattern, Tensor]:
    edges = inputs.edges_of(key)
    crow, col, order, first = _analysis.sort_triples(edges[0], edges[1], n)
    twice = np.flatnonzero(np.diff(first, append=len(order)) > 1)
    if len(twice):
        a, b = order[first[twice[0]] :][:2]
        raise ValueError(
            f"{_NAME}: an edge must not be given twice, got {tuple(edges[:, a].tolist())} at {a} and at {b}; "
            "add their features up with CSR.from_coo"
        )
    crow, col = (torch.from_numpy(x).to(device, dtype) for x in (crow, col))
    return SparsityPattern._trusted(crow, col, (n, n)), torch.from_numpy(order).to(device)
