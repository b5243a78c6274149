"""Laplacians of weighted graphs, some nodes held at zero or not, and Delaunay graphs of random points."""

from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve.arguments import Index, NotNegative, Rule, at_least
from learnsolve.matrix import checks
from learnsolve.matrix.cache import makes_plain_tensors
from learnsolve.matrix.checks import real_tensor
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import to_numpy
from learnsolve.problems._grid import ElementPlan, MatrixProperties, check_sign, element_plan
from learnsolve.problems.meshes import triangle_edges, triangulate


def _weights(function: str, name: str, weights: Tensor, given: dict[str, Any]) -> Tensor:
    edge_index = given["edge_index"]
    checks.one_device(function, name, weights, edge_index, "edge_index")
    checks.last_axes(function, name, weights, m=edge_index.shape[1])
    return check_sign(function, name, weights, zero=True)


Weights = Annotated[Tensor, real_tensor(_weights, of="edge_index")]


def laplacian(
    function: str, edges: np.ndarray, both: bool, weights: Tensor, free: np.ndarray, shift: float = 0.0
) -> CSR:
    """The Laplacian on the `free` nodes, bool (nodes,). The other nodes are held at zero. `both`: edges are
    given in both directions, and each counts half."""
    plan, signs = _plan(function, edges.tobytes(), both, free.tobytes(), weights.device)
    return plan.matrix(signs, weights, shift)


@makes_plain_tensors
@lru_cache(maxsize=8)
def _plan(
    function: str, key: bytes, both: bool, free_nodes: bytes, device: torch.device
) -> tuple[ElementPlan, Tensor]:
    edges, free = checks.decode_edges(key), np.frombuffer(free_nodes, dtype=bool)
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
            f"and {[j, i]} {behind} times. For edges in one direction each, pass both_directions=False"
        )


def graph_laplacian(
    edge_index: checks.EdgeIndex,
    weights: Weights | None = None,
    *,
    n: Index | None = None,
    shift: NotNegative = 0.0,
    both_directions: bool = True,
) -> CSR:
    r"""The Laplacian of an undirected graph, :math:`L = D - W`.

    .. math:: x^T L x = \sum_{\text{edges } (i, j)} w_{ij} (x_i - x_j)^2 + \text{shift} \sum_i x_i^2

    Parameters
    ----------
    edge_index : integer Tensor, shape (2, m), each edge in both directions, as in PyTorch Geometric. Weights
        of repeated edges are added up, self-loops ignored, weights of the two directions averaged
    weights : Tensor, shape (m,) or (..., m) for a batch, float32 or float64, on the device of edge_index, not
        negative. Default: 1.0 each, float64
    n : number of nodes. Default: the largest node number in edge_index, plus one
    shift : added to the diagonal. A positive one makes the matrix positive definite
    both_directions : bool. If False, edge_index has each edge in one direction, whichever

    Returns
    -------
    CSR, shape (n, n). Every diagonal entry is stored, including nodes without edges.

    Raises
    ------
    ValueError
        for an edge without its reverse (with both_directions), a node outside 0 <= node < n, a wrong shape,
        or a weight that is negative or not finite (not checked on a CUDA device, in a `torch.func` transform
        or under `torch.compile`).

    Notes
    -----
    Symmetric positive semidefinite, for shift = 0 with constants on connected components as null space: solve
    with null_space="constants", as `ls.solve` does. Gradient with respect to the weights: any order, forward
    mode, vmap, deterministic. Cost: O(m log m) on the host for a new graph, then O(m + n).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> triangle = torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> L = ls.problems.graph_laplacian(triangle, torch.tensor([1.0, 2.0, 3.0]), both_directions=False)
    >>> L.to_dense()[0]
    tensor([ 4., -1., -3.])
    """
    edges, nodes = checks.edges("graph_laplacian", edge_index, n)
    if weights is None:
        weights = torch.ones(edge_index.shape[1], dtype=torch.float64, device=edge_index.device)
    return laplacian("graph_laplacian", edges, both_directions, weights, np.ones(nodes, dtype=bool), shift)


def _check_grounded(function: str, name: str, grounded: Any, given: dict[str, Any]) -> Tensor:
    checks.tensor(function, name, grounded)
    if grounded.dtype != torch.bool:
        raise TypeError(f"{function}: {name} must be bool, True at grounded nodes, got {grounded.dtype}")
    if grounded.dim() != 1:
        raise ValueError(f"{function}: {name} must have shape (nodes,), got {tuple(grounded.shape)}")
    checks.one_device(function, name, grounded, given["edge_index"], "edge_index")
    return grounded


_WRONG = (object(), [True], torch.ones(3), torch.ones(2, 2, dtype=torch.bool))


def grounded_laplacian(
    edge_index: checks.EdgeIndex,
    weights: Weights,
    grounded: Annotated[
        Tensor, Rule(_check_grounded, "a bool tensor of shape (nodes,)", _WRONG, "edge_index")
    ],
    *,
    both_directions: bool = True,
) -> CSR:
    r"""The Laplacian of an undirected graph without the rows and columns of its grounded nodes.

    .. math:: x^T A x = \sum_{\text{edges } (i, j)} w_{ij} (x_i - x_j)^2, \; x = 0 \text{ at grounded nodes}

    Parameters
    ----------
    edge_index : integer Tensor, shape (2, m), as for `graph_laplacian`
    weights : Tensor, shape (..., m), float32 or float64, on the device of edge_index, not negative. Leading
        axes make a batch of matrices on one pattern
    grounded : bool Tensor, shape (nodes,), on the device of edge_index
    both_directions : bool. If False, edge_index has each edge in one direction, whichever

    Returns
    -------
    CSR, shape (n, n): the n free nodes in their order. The weight of an edge to a grounded node is part of
    the diagonal. The weight of an edge between two grounded nodes is not used.

    Raises
    ------
    ValueError
        for an edge without its reverse (with both_directions), a node outside 0 <= node < nodes, a wrong
        shape, no free node, or a weight that is negative or not finite (not checked on a CUDA device, in a
        `torch.func` transform or under `torch.compile`).

    Notes
    -----
    Symmetric positive semidefinite, and definite if the weights are positive and every free node is connected
    to a grounded one. Gradient and cost are as for `graph_laplacian`. Sources: U. Miekkala, "Graph properties
    for splitting with grounded Laplacian matrices", BIT 33, 1993; I. Luz et al., ICML 2020.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> path = torch.tensor([[0, 1, 2], [1, 2, 3]])
    >>> ground, weights = torch.tensor([True, False, False, False]), torch.tensor([1.0, 2.0, 3.0])
    >>> ls.problems.grounded_laplacian(path, weights, ground, both_directions=False).to_dense()[0]
    tensor([ 3., -2.,  0.])
    """
    edges, _ = checks.edges("grounded_laplacian", edge_index, len(grounded))
    return laplacian("grounded_laplacian", edges, both_directions, weights, _free(grounded))


@makes_plain_tensors
def _free(grounded: Tensor) -> np.ndarray:
    free = ~to_numpy(grounded)
    if not free.any():
        raise ValueError("grounded_laplacian: all nodes are grounded. Leave at least one free")
    return free


class DelaunayGraph(NamedTuple):
    """Nodes and edges of a triangulation.

    Attributes
    ----------
    points : float64, shape (nodes, 2)
    edge_index : int64, shape (2, m): each edge in one direction, for ``both_directions=False``
    grounded : bool, shape (nodes,): the nodes on the boundary

    Examples
    --------
    >>> import learnsolve as ls
    >>> graph = ls.problems.delaunay_graph(50, seed=0)
    >>> graph.points.shape, graph.edge_index.shape[0], graph.grounded.dtype
    (torch.Size([50, 2]), 2, torch.bool)
    """

    points: Tensor
    edge_index: Tensor
    grounded: Tensor


def delaunay_graph(
    n: Annotated[int, at_least(3)],
    seed: Index,
    *,
    boundary: Literal["dirichlet", "periodic"] = "dirichlet",
    blocks: Annotated[int, at_least(3)] = 4,
) -> DelaunayGraph:
    """The edges of the Delaunay triangulation of uniformly random points in the unit square.

    Parameters
    ----------
    n : points in the unit square, at least 3
    seed : at least 0. The same seed yields the same graph
    boundary : "dirichlet" or "periodic"
        "dirichlet": the points are triangulated together with others of the same density in the rest of
        [-1, 2]^2. Those with a neighbor outside the unit square are grounded. "periodic": the points
        repeat in blocks x blocks unit squares, opposite sides of which are joined, and none is grounded.
    blocks : at least 3, for "periodic" only

    Returns
    -------
    DelaunayGraph of n nodes, or blocks^2 n for "periodic": node i of block (x, y) has the number
    (blocks x + y) n + i, and the edges of each block come in the same order, block after block.

    Raises
    ------
    ValueError
        if no node is left free.

    Notes
    -----
    Cost: O(n log n), SciPy's Delaunay on 9 n points.

    References
    ----------
    I. Luz, M. Galun, H. Maron, R. Basri, I. Yavneh, "Learning algebraic multigrid using graph neural
    networks", ICML 2020: trained on n = 64, "periodic", blocks = 4; tested on "dirichlet".

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> points, edge_index, grounded = ls.problems.delaunay_graph(200, seed=0)
    >>> w = torch.ones(edge_index.shape[1], dtype=torch.float64)
    >>> A = ls.problems.grounded_laplacian(edge_index, w, grounded, both_directions=False)
    """
    return random_graph(np.random.default_rng(seed), n, boundary, blocks)


@makes_plain_tensors
def random_graph(rng: np.random.Generator, n: int, boundary: str, blocks: int) -> DelaunayGraph:
    points = rng.random((n, 2))
    if boundary == "periodic":
        return _periodic(points, blocks)
    others = rng.uniform(-1, 2, (9 * n, 2))
    outside = ((others < 0) | (others > 1)).any(1)
    edges, _ = triangle_edges(triangulate(np.concatenate((points, others[outside]))))
    inside = edges < n
    grounded = np.zeros(n, dtype=bool)
    grounded[edges[inside.any(1) & ~inside.all(1)].min(1)] = True
    if grounded.all():
        raise ValueError(
            f"delaunay_graph: each of the n = {n} points has a neighbor outside the unit square. Pass a "
            "larger n"
        )
    return _graph(points, edges[inside.all(1)], grounded)


def _graph(points: np.ndarray, edges: np.ndarray, grounded: np.ndarray) -> DelaunayGraph:
    edge_index = np.ascontiguousarray(edges.T, dtype=np.int64)
    return DelaunayGraph(*(torch.from_numpy(a) for a in (points, edge_index, grounded)))


def _periodic(points: np.ndarray, blocks: int) -> DelaunayGraph:
    n = len(points)
    shifts = np.stack(np.meshgrid([-1, 0, 1], [-1, 0, 1], indexing="ij"), -1).reshape(9, 1, 2)
    edges, _ = triangle_edges(triangulate((points + shifts).reshape(-1, 2)))
    edges = edges[(edges // n == 4).any(1)]  # an end in the middle block
    # An edge as (i, j, step from i's block to j's): the same for all its copies if i < j, or the step leads
    # forward where a point is joined to its own copy.
    i, j = edges.T % n
    step = shifts[edges[:, 1] // n, 0] - shifts[edges[:, 0] // n, 0]
    turned = (i > j) | ((i == j) & (step @ np.array([4, 1]) < 0))
    low, high = np.where(turned, j, i), np.where(turned, i, j)
    step = np.where(turned[:, None], -step, step)
    low, high, sx, sy = np.unique(np.stack((low, high, *step.T), -1), axis=0).T
    x, y = (a.reshape(-1, 1) for a in np.divmod(np.arange(blocks**2), blocks))
    first = (blocks * x + y) * n + low
    second = (blocks * ((x + sx) % blocks) + (y + sy) % blocks) * n + high
    tiles = (points + np.concatenate((x, y), 1).reshape(-1, 1, 2)).reshape(-1, 2)
    pairs = np.stack((first.ravel(), second.ravel()), -1)
    return _graph(tiles, pairs, np.zeros(len(tiles), dtype=bool))


PROPERTIES = {
    "graph_laplacian": MatrixProperties(
        formula="L = D - W (+ shift I)",
        symmetric=True,
        positive_definite=None,
        positive_semidefinite=True,
        null_space="for shift = 0: vectors that are constant on each connected component",
        source="Chung, Spectral Graph Theory, AMS 1997",
    ),
    "grounded_laplacian": MatrixProperties(
        formula="D - W without the rows and columns of grounded nodes",
        symmetric=True,
        positive_definite=None,
        positive_semidefinite=True,
        null_space="vectors that are constant on each connected component without an edge to a grounded node",
        source="Miekkala, BIT 33, 1993; Luz et al., ICML 2020",
    ),
}
