"""The Laplacian of a graph with some of its nodes held at zero."""

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
from learnsolve.problems.facts import Facts


def grounded_laplacian(edges: Tensor, weights: Tensor, grounded: Tensor) -> CSR:
    r"""The Laplacian of an undirected graph without the rows and columns of its grounded nodes.

    .. math:: x^T A x = \sum_{\text{edges } (i, j)} w_{ij} (x_i - x_j)^2, \; x = 0 \text{ at grounded nodes}

    Parameters
    ----------
    edges : integer Tensor, shape (m, 2)
        The two nodes of each edge, in any order. The weights of an edge that is given more than once, in
        either direction, are added up.
    weights : Tensor, shape (..., m), float32 or float64, on the device of edges; not negative
        Leading axes give a batch of matrices on one pattern.
    grounded : bool Tensor, shape (nodes,), on the device of edges

    Returns
    -------
    CSR, shape (n, n): the n free nodes in their order. The weight of an edge to a grounded node is part of
    the diagonal; that of an edge between two grounded nodes is not used.

    Raises
    ------
    ValueError
        for an edge from a node to itself, a node outside 0 <= node < nodes, a wrong shape, no free node, or
        a weight that is negative or not finite (weights on a CUDA device, in a `torch.func` transform or
        under `torch.compile` are not checked).
    TypeError
        if edges are not integers, grounded is not bool, or weights are not as described above.

    Notes
    -----
    Symmetric positive semidefinite; definite if the weights are positive and every free node is connected
    to a grounded one. Without grounded nodes this is `graph_laplacian`.

    Gradient with respect to the weights: any order, forward mode, vmap; deterministic. Cost: O(m log m), on
    the host, for a graph that was not used recently; then O(m). Matrices of one graph share one
    `SparsityPattern`.

    References
    ----------
    U. Miekkala, "Graph properties for splitting with grounded Laplacian matrices", BIT 33, 1993.
    I. Luz et al., "Learning algebraic multigrid using graph neural networks", ICML 2020.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> path = torch.tensor([[0, 1], [1, 2], [2, 3]])
    >>> ground = torch.tensor([True, False, False, False])
    >>> ls.problems.grounded_laplacian(path, torch.tensor([1.0, 2.0, 3.0]), ground).to_dense()
    tensor([[ 3., -2.,  0.],
            [-2.,  5., -3.],
            [ 0., -3.,  3.]])
    """
    _check_graph(edges, grounded)
    _check.tensor("grounded_laplacian", "weights", weights)
    _check.dtype("grounded_laplacian", "weights", weights)
    if not edges.device == weights.device == grounded.device:
        raise TypeError(
            f"grounded_laplacian: edges are on {edges.device}, weights on {weights.device}, grounded on "
            f"{grounded.device}; move them to one device with .to()"
        )
    if weights.dim() == 0 or weights.shape[-1] != len(edges):
        raise ValueError(
            f"grounded_laplacian: weights must have shape (..., m = {len(edges)}), got {tuple(weights.shape)}"
        )
    remedy = "an unconstrained parameter can go through torch.exp or softplus"
    check_sign("grounded_laplacian", "weights", weights, zero=True, remedy=remedy)
    plan, local = _plan(*_contents(edges, grounded), edges.device)
    return plan.matrix(local, weights)


def _check_graph(edges: Tensor, grounded: Tensor) -> None:
    for name, t in (("edges", edges), ("grounded", grounded)):
        _check.tensor("grounded_laplacian", name, t)
    if edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool:
        raise TypeError(f"grounded_laplacian: edges must be integers, got {edges.dtype}")
    if edges.dim() != 2 or edges.shape[1] != 2:
        raise ValueError(f"grounded_laplacian: edges must have shape (m, 2), got {tuple(edges.shape)}")
    if grounded.dtype != torch.bool:
        raise TypeError(
            f"grounded_laplacian: grounded must be bool, True at grounded nodes, got {grounded.dtype}"
        )
    if grounded.dim() != 1:
        raise ValueError(
            f"grounded_laplacian: grounded must have shape (nodes,), got {tuple(grounded.shape)}"
        )


@makes_plain_tensors
def _contents(edges: Tensor, grounded: Tensor) -> tuple[bytes, bytes]:
    return as_numpy(edges).astype(np.int64).tobytes(), as_numpy(grounded).tobytes()


# Keyed by the contents, as graph_laplacian: comparing them costs little compared with sorting them again.
@makes_plain_tensors
@lru_cache(maxsize=8)
def _plan(edges: bytes, grounded: bytes, device: torch.device) -> tuple[ElementPlan, Tensor]:
    pairs = np.frombuffer(edges, dtype=np.int64).reshape(-1, 2)
    free = ~np.frombuffer(grounded, dtype=bool)
    for rule, bad in (
        (f"nodes must lie in 0 <= node < {len(free)}", ((pairs < 0) | (pairs >= len(free))).any(1)),
        ("an edge must join two nodes", pairs[:, 0] == pairs[:, 1]),
    ):
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise ValueError(f"grounded_laplacian: {rule}, got edges[{at}] = {pairs[at].tolist()}")
    n = int(np.count_nonzero(free))
    if n == 0:
        raise ValueError("grounded_laplacian: all nodes are grounded; leave one free at least")
    row = np.full(len(free), -1)
    row[free] = np.arange(n)
    local = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64, device=device)
    return element_plan(row[pairs], n, device), local


FACTS = Facts(
    formula="D - W without the rows and columns of grounded nodes",
    symmetric=True,
    positive_definite=None,
    positive_semidefinite=True,
    null_space="vectors that are constant on each connected component without an edge to a grounded node",
    source="Miekkala, BIT 33, 1993; Luz et al., ICML 2020",
)
