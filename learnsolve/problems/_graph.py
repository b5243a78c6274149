"""Laplacians of graphs: their arguments, checked, and their assembly from edges."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks, inputs
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.problems._coefficients import check_sign
from learnsolve.problems._elements import ElementPlan, element_plan


def check_weights(function: str, weights: Tensor, edge_index: Tensor) -> None:
    checks.tensor(function, "weights", weights)
    checks.dtype(function, "weights", weights)
    if weights.device != edge_index.device:
        raise TypeError(
            f"{function}: weights are on {weights.device}, edge_index on {edge_index.device}; move one "
            "with .to()"
        )
    m = edge_index.shape[1]
    if weights.dim() == 0 or weights.shape[-1] != m:
        raise ValueError(f"{function}: weights must have shape (..., m = {m}), got {tuple(weights.shape)}")
    check_sign(function, "weights", weights, zero=True)


def laplacian(
    function: str, edges: np.ndarray, both: bool, weights: Tensor, free: np.ndarray, shift: float = 0.0
) -> CSR:
    """The Laplacian on the `free` nodes, bool (nodes,); the other nodes are held at zero. `both`: edges are
    given in both directions, and each counts half."""
    checks.flag(function, "both_directions", both)
    plan, signs = _plan(function, edges.tobytes(), both, free.tobytes(), weights.device)
    return plan.matrix(signs, weights, shift)


@makes_plain_tensors
@lru_cache(maxsize=8)
def _plan(
    function: str, key: bytes, both: bool, free_nodes: bytes, device: torch.device
) -> tuple[ElementPlan, Tensor]:
    edges, free = inputs.edges_of(key), np.frombuffer(free_nodes, dtype=bool)
    if both:
        _check_reverses(function, edges, len(free))
    n = int(np.count_nonzero(free))
    row = np.full(len(free), -1)
    row[free] = np.arange(n)
    ends = np.where(edges[0] == edges[1], -1, row[edges])  # a self-loop joins nothing
    plan = element_plan(ends.T, n, device)
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64, device=device)
    return plan, plan.weights(signs / 2 if both else signs)


def _check_reverses(function: str, edges: np.ndarray, n: int) -> None:
    there, back = (np.sort(i * n + j) for i, j in (edges, edges[::-1]))
    differ = np.flatnonzero(there != back)
    if len(differ):
        i, j = divmod(int(min(there[differ[0]], back[differ[0]])), n)
        ahead, behind = (
            int(np.count_nonzero((edges[0] == a) & (edges[1] == b))) for a, b in ((i, j), (j, i))
        )
        raise ValueError(
            f"{function}: edge_index must have each edge in both directions, got {[i, j]} {ahead} times "
            f"and {[j, i]} {behind} times; for edges in one direction each, pass both_directions=False"
        )
