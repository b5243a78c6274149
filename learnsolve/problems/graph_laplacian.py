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
    edge_index : integer Tensor, shape (2, m), as in PyTorch Geometric
        The edges, each in both directions; of a list of pairs, (m, 2), the transpose. The weights of an edge
        that is given more than once are added up, and edges from a node to itself count for nothing, as in
        PyTorch Geometric's `get_laplacian`. The two directions of an edge count with the mean of their
        weights.
    weights : Tensor, shape (m,) or (..., m), float32 or float64, on the device of edge_index; not negative
        Default: 1.0 each, float64. Leading axes give a batch of matrices on one pattern.
    n : number of nodes; default: the largest node number in edge_index, plus one
    shift : added to the diagonal; a positive one makes the matrix positive definite
    both_directions : bool; False: edge_index has each edge in one direction, whichever

    Returns
    -------
    CSR, shape (n, n); every diagonal entry is stored, including those of nodes without edges.

    Raises
    ------
    ValueError
        for an edge that is not given as often as its reverse (with both_directions), a node outside
        0 <= node < n, a wrong shape, a negative shift, or a weight that is negative or not finite (weights
        on a CUDA device, in a `torch.func` transform or under `torch.compile` are not checked).
    TypeError
        if edge_index does not hold integers, or weights not as described above.

    Notes
    -----
    Symmetric positive semidefinite; every vector that is constant on each connected component is in the
    null space (for shift = 0), and no other vector if the weights are positive: solve with
    null_space="constants", as `ls.solve` does on its own.

    Gradient with respect to the weights: any order, forward mode, vmap; deterministic. Cost: O(m log m), on
    the host, to sort the edges of a graph that was not used recently; then O(m + n). Matrices of one graph
    share one `SparsityPattern`, so a training loop analyses it once.

    References
    ----------
    F. R. K. Chung, "Spectral Graph Theory", AMS 1997, chapter 1.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> triangle = torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> weights = torch.tensor([1.0, 2.0, 3.0])
    >>> ls.problems.graph_laplacian(triangle, weights, both_directions=False).to_dense()
    tensor([[ 4., -1., -3.],
            [-1.,  3., -2.],
            [-3., -2.,  5.]])
    >>> L = ls.problems.graph_laplacian(torch.cat((triangle, triangle.flip(0)), 1))
    >>> ls.solvers.cg(L, torch.tensor([3.0, 0.0, 0.0]).double(), null_space="constants").x
    tensor([ 0.6667, -0.3333, -0.3333], dtype=torch.float64)
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
