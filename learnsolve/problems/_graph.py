"""Laplacians of graphs: their arguments, checked, and their assembly from edges."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from learnsolve import _check, _edges
from learnsolve._plain import makes_plain_tensors
from learnsolve.csr import CSR
from learnsolve.problems._coefficients import check_sign
from learnsolve.problems._elements import ElementPlan, element_plan


def read_edges(function: str, edge_index: Tensor, n: int | None) -> tuple[np.ndarray, int]:
    """(edges, number of nodes), without loops."""
    edges, n = _edges.read(function, edge_index, n)
    loops = np.flatnonzero(edges[0] == edges[1])
    if len(loops):
        at = int(loops[0])
        raise ValueError(
            f"{function}: an edge must join two nodes, got edge_index[:, {at}] = {edges[:, at].tolist()}; "
            "drop self-loops with edge_index[:, edge_index[0] != edge_index[1]] (and their weights likewise)"
        )
    return edges, n


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
    check_sign(function, "weights", weights, zero=True)


def laplacian(edges: np.ndarray, weights: Tensor, free: np.ndarray, shift: float = 0.0) -> CSR:
    """Of the nodes that are `free`, bool (nodes,); those that are not are held at zero."""
    plan, signs = _plan(edges.tobytes(), free.tobytes(), weights.device)
    return plan.matrix(signs, weights, shift)


@makes_plain_tensors
@lru_cache(maxsize=8)
def _plan(key: bytes, free_nodes: bytes, device: torch.device) -> tuple[ElementPlan, Tensor]:
    free = np.frombuffer(free_nodes, dtype=bool)
    n = int(np.count_nonzero(free))
    row = np.full(len(free), -1)
    row[free] = np.arange(n)
    plan = element_plan(row[_edges.edges_of(key).T], n, device)
    return plan, plan.weights(torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64, device=device))
