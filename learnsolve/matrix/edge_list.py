"""Edges of graphs as PyTorch Geometric has them: integers, shape (2, E)."""

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.pattern_checks import as_numpy, check_range
from learnsolve.matrix.plain import makes_plain_tensors


@makes_plain_tensors
def read(function: str, edge_index: Tensor, n: int | None) -> tuple[np.ndarray, int]:
    """(edges, n): a copy of the edges, int64, shape (2, E), and the number of nodes; by default that of the
    largest, plus one. The bytes of the edges are the key of what is computed from them: comparing these costs
    little compared with sorting edges again."""
    checks.tensor(function, "edge_index", edge_index)
    if edge_index.is_floating_point() or edge_index.is_complex() or edge_index.dtype == torch.bool:
        raise TypeError(f"{function}: edge_index must hold integers, got {edge_index.dtype}")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(
            f"{function}: edge_index must have shape (2, E), got {tuple(edge_index.shape)}; of pairs, "
            "(E, 2), give pairs.T"
        )
    edges = as_numpy(edge_index).astype(np.int64)
    if n is None and edges.size == 0:
        raise ValueError(f"{function}: without edges, n must give the number of nodes")
    n = max(int(edges.max()) + 1, 0) if n is None else checks.integer(function, "n", n, 0)
    for k in (0, 1):
        check_range(function, f"edge_index[{k}]", edges[k], n, "nodes")
    return edges, n


def edges_of(key: bytes) -> np.ndarray:
    """The edges, int64, (2, E), of their bytes."""
    return np.frombuffer(key, dtype=np.int64).reshape(2, -1)
