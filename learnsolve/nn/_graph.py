"""The matrix of a graph that PyTorch Geometric's edge_index describes, with a self-loop at every node."""

from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks, inputs
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.ops import coo
from learnsolve.ops.core.gather import added_up


def is_edges(t: Any) -> TypeGuard[Tensor]:
    """Whether the tensor holds integers; features are real."""
    return isinstance(t, Tensor) and not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)


def with_loops(function: str, edge_index: Tensor, weights: Tensor | None, n: int | None) -> CSR:
    """Entry (edge_index[1, k], edge_index[0, k]) is weight k, repeated ones added up, and each diagonal
    entry is 1, or the weight of the node's last self-loop."""
    edges, n = inputs.edges(function, edge_index, n)
    if weights is None:
        weights = torch.ones(edges.shape[1], device=edge_index.device)
    checks.tensor(function, "edge_weight", weights)
    checks.dtype(function, "edge_weight", weights)
    if weights.dim() == 0 or weights.shape[-1] != edges.shape[1]:
        raise ValueError(
            f"{function}: edge_weight must have shape (..., E = {edges.shape[1]}), got {tuple(weights.shape)}"
        )
    if weights.device != edge_index.device:
        raise TypeError(
            f"{function}: edge_weight is on {weights.device}, edge_index on {edge_index.device}; move one "
            "with .to()"
        )
    pattern, gather, source = _planned(edges.tobytes(), n, edge_index.device)
    one = weights.new_ones((*weights.shape[:-1], 1))
    return CSR(added_up(torch.cat((weights, one), -1)[..., source], gather), pattern)


@makes_plain_tensors
@lru_cache(maxsize=8)
def _planned(key: bytes, n: int, device: torch.device) -> tuple[SparsityPattern, SparsityPattern, Tensor]:
    """The pattern, the sums of its entries, and the weight of each term; E stands for 1."""
    source, target = inputs.edges_of(key)
    loop = source == target
    kept, own, nodes = np.flatnonzero(~loop), np.full(n, len(loop)), np.arange(n)
    own[source[loop]] = np.flatnonzero(loop)
    rows, columns = (torch.from_numpy(np.append(ends[kept], nodes)) for ends in (target, source))
    pattern, gather = coo._sort(rows, columns, n, n, device)
    return pattern, gather, torch.from_numpy(np.append(kept, own)).to(device)
