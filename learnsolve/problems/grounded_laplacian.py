"""The Laplacian of a graph with some of its nodes held at zero."""

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks, inputs
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import as_numpy
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.problems._graph import check_weights, laplacian
from learnsolve.problems.properties import MatrixProperties


def grounded_laplacian(
    edge_index: Tensor, weights: Tensor, grounded: Tensor, *, both_directions: bool = True
) -> CSR:
    r"""The Laplacian of an undirected graph without the rows and columns of its grounded nodes.

    .. math:: x^T A x = \sum_{\text{edges } (i, j)} w_{ij} (x_i - x_j)^2, \; x = 0 \text{ at grounded nodes}

    Parameters
    ----------
    edge_index : integer Tensor, shape (2, m), as for `graph_laplacian`
    weights : Tensor, shape (..., m), float32 or float64, on the device of edge_index; not negative. Leading
        axes give a batch of matrices on one pattern
    grounded : bool Tensor, shape (nodes,), on the device of edge_index
    both_directions : bool; False: edge_index has each edge in one direction, whichever

    Returns
    -------
    CSR, shape (n, n): the n free nodes in their order. The weight of an edge to a grounded node is part of
    the diagonal; the weight of an edge between two grounded nodes is not used.

    Raises
    ------
    ValueError
        for an edge without its reverse (with both_directions), a node outside 0 <= node < nodes, a wrong
        shape, no free node, or a weight that is negative or not finite (not checked on a CUDA device, in a
        `torch.func` transform or under `torch.compile`).
    TypeError
        if edge_index does not hold integers, grounded is not bool, or weights are not as described above.

    Notes
    -----
    Symmetric positive semidefinite; definite if the weights are positive and every free node is connected to
    a grounded one. Gradient and cost are as for `graph_laplacian`. Sources: U. Miekkala, "Graph properties
    for splitting with grounded Laplacian matrices", BIT 33, 1993; I. Luz et al., ICML 2020.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> path = torch.tensor([[0, 1, 2], [1, 2, 3]])
    >>> ground, weights = torch.tensor([True, False, False, False]), torch.tensor([1.0, 2.0, 3.0])
    >>> ls.problems.grounded_laplacian(path, weights, ground, both_directions=False).to_dense()[0]
    tensor([ 3., -2.,  0.])
    """
    _check_grounded(grounded)
    edges, _ = inputs.edges("grounded_laplacian", edge_index, len(grounded))
    check_weights("grounded_laplacian", weights, edge_index)
    if grounded.device != edge_index.device:
        raise TypeError(
            f"grounded_laplacian: grounded is on {grounded.device}, edge_index on {edge_index.device}; move "
            "one with .to()"
        )
    return laplacian("grounded_laplacian", edges, both_directions, weights, _free(grounded))


def _check_grounded(grounded: Tensor) -> None:
    checks.tensor("grounded_laplacian", "grounded", grounded)
    if grounded.dtype != torch.bool:
        raise TypeError(
            f"grounded_laplacian: grounded must be bool, True at grounded nodes, got {grounded.dtype}"
        )
    if grounded.dim() != 1:
        raise ValueError(
            f"grounded_laplacian: grounded must have shape (nodes,), got {tuple(grounded.shape)}"
        )


@makes_plain_tensors
def _free(grounded: Tensor) -> np.ndarray:
    free = ~as_numpy(grounded)
    if not free.any():
        raise ValueError("grounded_laplacian: all nodes are grounded; leave one free at least")
    return free


PROPERTIES = MatrixProperties(
    formula="D - W without the rows and columns of grounded nodes",
    symmetric=True,
    positive_definite=None,
    positive_semidefinite=True,
    null_space="vectors that are constant on each connected component without an edge to a grounded node",
    source="Miekkala, BIT 33, 1993; Luz et al., ICML 2020",
)
