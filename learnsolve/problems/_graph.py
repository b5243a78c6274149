"""Laplacians of graphs: their arguments, checked, and their assembly from edges."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from learnsolve import _check
from learnsolve._plain import makes_plain_tensors
from learnsolve.csr import CSR
from learnsolve.pattern import as_numpy
from learnsolve.problems._coefficients import check_sign
from learnsolve.problems._elements import ElementPlan, element_plan


def check_edges(function: str, edge_index: Tensor, n: int | None) -> int:
    """Check edge_index and n; return the number of nodes."""
    _check.tensor(function, "edge_index", edge_index)
    if edge_index.is_floating_point() or edge_index.is_complex() or edge_index.dtype == torch.bool:
        raise TypeError(f"{function}: edge_index must hold integers, got {edge_index.dtype}")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(
            f"{function}: edge_index must have shape (2, m), got {tuple(edge_index.shape)}; of pairs, "
            "(m, 2), give pairs.T"
        )
    if n is not None:
        n = _check.integer(function, "n", n, 0)
    elif edge_index.shape[1] == 0:
        raise ValueError(f"{function}: without edges, n must give the number of nodes")
    nodes = int(edge_index.max()) + 1 if n is None else n
    outside = ((edge_index < 0) | (edge_index >= nodes)).any(0).nonzero()
    if len(outside):
        at = int(outside[0])
        raise ValueError(
            f"{function}: nodes must lie in 0 <= node < {nodes}, got edge_index[:, {at}] = "
            f"{edge_index[:, at].tolist()}"
        )
    loops = (edge_index[0] == edge_index[1]).nonzero()
    if len(loops):
        at = int(loops[0])
        raise ValueError(
            f"{function}: an edge must join two nodes, got edge_index[:, {at}] = "
            f"{edge_index[:, at].tolist()}; drop self-loops with edge_index[:, edge_index[0] != "
            "edge_index[1]] (and their weights likewise)"
        )
    return nodes


def check_weights(function: str, weights: Tensor, edge_index: Tensor) -> None:
    _check.tensor(function, "weights", weights)
    _check.dtype(function, "weights", weights)
    if weights.device != edge_index.device:
        raise TypeError(
            f"{function}: weights are on {weights.device}, edge_index on {edge_index.device}; move one "
            "with .to()"
        )
    m = edge_index.shape[1]
    if weights.dim() == 0 or weights.shape[-1] != m:
        raise ValueError(f"{function}: weights must have shape (..., m = {m}), got {tuple(weights.shape)}")
    remedy = "an unconstrained parameter can go through torch.exp or softplus"
    check_sign(function, "weights", weights, zero=True, remedy=remedy)


def laplacian(edge_index: Tensor, weights: Tensor, free: np.ndarray, shift: float = 0.0) -> CSR:
    """Of the nodes that are `free`, bool (nodes,); those that are not are held at zero."""
    plan, local = _plan(_contents(edge_index), free.tobytes(), edge_index.device)
    return plan.matrix(local, weights, shift)


@makes_plain_tensors
def _contents(edge_index: Tensor) -> bytes:
    """The key of a graph's plan: comparing it costs little compared with sorting the edges again."""
    return as_numpy(edge_index).astype(np.int64).tobytes()


@makes_plain_tensors
@lru_cache(maxsize=8)
def _plan(edges: bytes, free_nodes: bytes, device: torch.device) -> tuple[ElementPlan, Tensor]:
    pairs = np.frombuffer(edges, dtype=np.int64).reshape(2, -1).T
    free = np.frombuffer(free_nodes, dtype=bool)
    n = int(np.count_nonzero(free))
    row = np.full(len(free), -1)
    row[free] = np.arange(n)
    local = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64, device=device)
    return element_plan(row[pairs], n, device), local
