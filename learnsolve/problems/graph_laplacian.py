"""The Laplacian of a weighted graph."""

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks, inputs
from learnsolve.matrix.csr import CSR
from learnsolve.problems._graph import check_weights, laplacian
from learnsolve.problems.properties import MatrixProperties


def graph_laplacian(
    edge_index: Tensor,
    weights: Tensor | None = None,
    *,
    n: int | None = None,
    shift: float = 0.0,
    both_directions: bool = True,
) -> CSR:
    r"""The Laplacian of an undirected graph, :math:`L = D - W`.

    .. math:: x^T L x = \sum_{\text{edges } (i, j)} w_{ij} (x_i - x_j)^2 + \text{shift} \sum_i x_i^2

    Parameters
    ----------
    edge_index : integer Tensor, shape (2, m), each edge in both directions, as in PyTorch Geometric. Weights
        of repeated edges are added up, self-loops ignored, weights of the two directions averaged
    weights : Tensor, shape (m,) or (..., m) for a batch, float32 or float64, on the device of edge_index; not
        negative. Default: 1.0 each, float64
    n : number of nodes; default: the largest node number in edge_index, plus one
    shift : added to the diagonal; a positive one makes the matrix positive definite
    both_directions : bool; False: edge_index has each edge in one direction, whichever

    Returns
    -------
    CSR, shape (n, n); every diagonal entry is stored, including nodes without edges.

    Raises
    ------
    ValueError
        for an edge without its reverse (with both_directions), a node outside 0 <= node < n, a wrong shape, a
        negative shift, or a weight that is negative or not finite (not checked on a CUDA device, in a
        `torch.func` transform or under `torch.compile`).
    TypeError
        if edge_index does not hold integers, or weights not as described above.

    Notes
    -----
    Symmetric positive semidefinite, for shift = 0 with constants on connected components as null space: solve
    with null_space="constants", as `ls.solve` does. Gradient with respect to the weights: any order, forward
    mode, vmap; deterministic. Cost: O(m log m) on the host for a new graph, then O(m + n).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> triangle = torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> L = ls.problems.graph_laplacian(triangle, torch.tensor([1.0, 2.0, 3.0]), both_directions=False)
    >>> L.to_dense()[0]
    tensor([ 4., -1., -3.])
    """
    edges, nodes = inputs.edges("graph_laplacian", edge_index, n)
    if weights is None:
        weights = torch.ones(edge_index.shape[1], dtype=torch.float64, device=edge_index.device)
    else:
        check_weights("graph_laplacian", weights, edge_index)
    shift = checks.real("graph_laplacian", "shift", shift, "finite and not negative")
    return laplacian("graph_laplacian", edges, both_directions, weights, np.ones(nodes, dtype=bool), shift)


PROPERTIES = MatrixProperties(
    formula="L = D - W (+ shift I)",
    symmetric=True,
    positive_definite=None,
    positive_semidefinite=True,
    null_space="for shift = 0: vectors that are constant on each connected component",
    source="Chung, Spectral Graph Theory, AMS 1997",
)
