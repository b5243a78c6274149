"""Delaunay graphs of random points."""

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.problems._triangles import triangle_edges, triangulate


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
    n: int, seed: int, *, boundary: Literal["dirichlet", "periodic"] = "dirichlet", blocks: int = 4
) -> DelaunayGraph:
    """The edges of the Delaunay triangulation of uniformly random points in the unit square.

    Parameters
    ----------
    n : points in the unit square, at least 3
    seed : the same seed gives the same graph; at least 0
    boundary : "dirichlet" or "periodic"
        "dirichlet": the points are triangulated together with others of the same density in the rest of
        [-1, 2]^2; those with a neighbor outside the unit square are grounded. "periodic": the points
        repeat in blocks x blocks unit squares, opposite sides of which are joined; none is grounded.
    blocks : at least 3, for "periodic" only

    Returns
    -------
    DelaunayGraph of n nodes, or blocks^2 n for "periodic": node i of block (x, y) has the number
    (blocks x + y) n + i, and the edges of each block come in the same order, block after block.

    Raises
    ------
    ValueError
        if an argument is not as described above, or if no node is left free.

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
    n = checks.integer("delaunay_graph", "n", n, 3)
    seed = checks.integer("delaunay_graph", "seed", seed, 0)
    blocks = checks.integer("delaunay_graph", "blocks", blocks, 3)
    checks.one_of("delaunay_graph", "boundary", boundary, ("dirichlet", "periodic"))
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
            f"delaunay_graph: each of the n = {n} points has a neighbor outside the unit square; pass a "
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
