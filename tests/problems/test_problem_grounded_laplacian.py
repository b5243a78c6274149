"""problems.grounded_laplacian and delaunay_graph: against dense statements, with derivatives."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

graph_laplacian = functools.partial(ls.problems.graph_laplacian, both_directions=False)
grounded_laplacian = functools.partial(ls.problems.grounded_laplacian, both_directions=False)

# A triangle and a tail; an edge given twice; an edge between grounded nodes; node 6 on its own.
EDGES = torch.tensor([[0, 1], [1, 2], [2, 0], [3, 2], [3, 4], [1, 0], [4, 5]]).T
GROUNDED = torch.tensor([True, False, False, False, True, True, False])


def weights(*batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*batch, EDGES.shape[1], dtype=torch.float64, generator=generator) + 0.1


def reference(edges, w, grounded):
    L = np.zeros((len(grounded),) * 2)
    for (i, j), weight in zip(edges.T.tolist(), w.tolist(), strict=True):
        L[i, i] += weight
        L[j, j] += weight
        L[i, j] -= weight
        L[j, i] -= weight
    free = ~grounded.numpy()
    return L[np.ix_(free, free)]


def values(w):
    return grounded_laplacian(EDGES, w, GROUNDED).values


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_against_dense(index):
    w = weights()
    A = grounded_laplacian(EDGES.to(index), w, GROUNDED)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)
    np.testing.assert_allclose(A.to_scipy().toarray(), reference(EDGES, w, GROUNDED), rtol=1e-15, atol=0)
    assert A.nnz == 4 + 2 * 2  # the diagonal, (1, 2) and (2, 3)


def test_two_edges_are_read_as_pyg_writes_them():
    """The one shape that both conventions have: edges 0-3 and 2-1."""
    ground = torch.tensor([False, True, False, False])
    A = grounded_laplacian(torch.tensor([[0, 2], [3, 1]]), torch.tensor([1.0, 5.0]), ground)
    assert A.to_dense().tolist() == [[1, 0, -1], [0, 5, 0], [-1, 0, 1]]


def test_without_ground_it_is_the_graph_laplacian():
    w, none = weights(), torch.zeros(7, dtype=torch.bool)
    A = grounded_laplacian(EDGES, w, none)
    L = graph_laplacian(EDGES, w, n=7)
    torch.testing.assert_close(A.to_dense(), L.to_dense(), rtol=1e-15, atol=0)


def test_batch_is_a_loop_and_patterns_are_shared():
    w = weights(2, 3)
    A = grounded_laplacian(EDGES, w, GROUNDED)
    for at in itertools.product(range(2), range(3)):
        one = grounded_laplacian(EDGES.clone(), w[at], GROUNDED.clone())
        assert one.pattern is A.pattern
        assert torch.equal(A.values[at], one.values)


def test_derivatives():
    w = weights().requires_grad_()
    assert gradcheck(values, w, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda w: values(w).square(), w)
    many = weights(4)
    torch.testing.assert_close(torch.func.vmap(values)(many), torch.stack([values(one) for one in many]))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"edge_index": torch.tensor([[0, 1], [1, 7]])}, ValueError, r"< 7, got edge_index\[1\]\[1\] = 7"),
        ({"edge_index": torch.tensor([[-1], [0]])}, ValueError, r"got edge_index\[0\]\[0\] = -1"),
        ({"edge_index": EDGES.double()}, TypeError, "edge_index must hold integers"),
        ({"edge_index": EDGES.T}, ValueError, r"shape \(2, E\), got \(7, 2\); of pairs, .* pairs.T"),
        ({"weights": torch.ones(3)}, ValueError, r"weights must have shape \(..., m = 7\)"),
        ({"weights": -torch.ones(7)}, ValueError, r"weights\[0\] = -1.0"),
        ({"weights": torch.full((7,), math.nan)}, ValueError, r"weights\[0\] = nan"),
        ({"weights": torch.ones(7, device="meta")}, TypeError, "weights are on meta, edge_index on cpu"),
        ({"grounded": GROUNDED.to("meta")}, TypeError, "grounded is on meta, edge_index on cpu"),
        ({"grounded": GROUNDED.long()}, TypeError, "grounded must be bool"),
        ({"grounded": GROUNDED[None]}, ValueError, r"grounded must have shape \(nodes,\)"),
        ({"grounded": torch.ones(7, dtype=torch.bool)}, ValueError, "all nodes are grounded"),
    ],
)
def test_errors(change, error, words):
    arguments = {"edge_index": EDGES, "weights": torch.ones(7), "grounded": GROUNDED, **change}
    with pytest.raises(error, match="grounded_laplacian: .*" + words):
        grounded_laplacian(**arguments)


# --- Delaunay graphs ---


def circumcircles_are_empty(points, edges):
    """Each edge of a Delaunay triangulation has a circle through its ends without points inside. Among the
    circles through p and q, centered at their middle plus t times the normal, a point r excludes an interval
    of t that ends where the circle passes through r."""
    for p, q in points[edges]:
        middle, normal = (p + q) / 2, np.array([p[1] - q[1], q[0] - p[0]])
        d = points - middle
        side = d @ normal
        at = ((d * d).sum(1) - (p - middle) @ (p - middle)) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            t = at / side
        above, below = side > 1e-12, side < -1e-12
        # |d|^2 - 2 t side >= r^2: t <= at / side above the edge, t >= at / side below it.
        low, high = t[below].max(initial=-np.inf), t[above].min(initial=np.inf)
        if low > high + 1e-9 * (1 + abs(high)):
            return False
    return True


@pytest.mark.cpu_only  # graphs are on the CPU
def test_dirichlet_graph():
    """An edge joins two points of the square; a grounded node is one with an edge that leaves it."""
    graph = ls.problems.delaunay_graph(300, seed=1)
    points, edges = graph.points.numpy(), graph.edge_index.T.numpy()
    assert points.shape == (300, 2)
    assert points.min() >= 0
    assert points.max() <= 1
    assert (edges[:, 0] < edges[:, 1]).all()
    assert len(np.unique(edges, axis=0)) == len(edges)
    # Points outside make circles smaller, so this holds among the points inside as well.
    assert circumcircles_are_empty(points, edges)
    # Triangulated: a free node is enclosed by its neighbors, and each of them is joined to the next.
    free = np.flatnonzero(~graph.grounded.numpy())
    joined = {tuple(edge) for edge in edges.tolist()}
    for node in free:
        around = np.concatenate((edges[edges[:, 0] == node, 1], edges[edges[:, 1] == node, 0]))
        angles = np.arctan2(*(points[around] - points[node]).T)
        around, angles = around[np.argsort(angles)], np.sort(angles)
        assert np.diff(np.append(angles, angles[0] + 2 * np.pi)).max() < np.pi
        pairs = np.sort(np.stack((around, np.roll(around, 1)), -1), 1)
        assert joined.issuperset(map(tuple, pairs.tolist()))
    # About 4 sqrt(300) nodes next to the boundary.
    assert 40 < 300 - len(free) < 110


@pytest.mark.cpu_only
def test_dirichlet_laplacian_is_positive_definite():
    _, edge_index, grounded = ls.problems.delaunay_graph(200, seed=2)
    w = torch.rand(edge_index.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    A = grounded_laplacian(edge_index, w, grounded)
    np.testing.assert_allclose(A.to_scipy().toarray(), reference(edge_index, w, grounded), rtol=1e-14, atol=0)
    assert torch.linalg.eigvalsh(A.to_dense())[0] > 0


@pytest.mark.cpu_only
@pytest.mark.parametrize("blocks", [3, 4])
def test_periodic_graph(blocks):
    n = 40
    points, edge_index, grounded = ls.problems.delaunay_graph(n, seed=3, boundary="periodic", blocks=blocks)
    edges = edge_index.T
    assert len(points) == blocks**2 * n
    assert not grounded.any()
    # Euler on the torus: n points, 3 n edges, 2 n triangles.
    assert len(edges) == 3 * n * blocks**2
    assert len(torch.unique(edges.sort(1).values, dim=0)) == len(edges)
    # Every edge is the shortest of its copies, and short.
    x = points[edges]
    step = (x[:, 0] - x[:, 1] + blocks / 2) % blocks - blocks / 2
    assert step.norm(dim=1).max() < 1
    # Node i of a block has as many neighbors as node i of the next.
    degree = torch.bincount(edges.flatten(), minlength=len(points)).view(-1, n)
    assert (degree == degree[0]).all()
    # The torus does not depend on where a block begins.
    A = grounded_laplacian(edge_index, torch.ones(len(edges), dtype=torch.float64), grounded)
    D = A.to_dense().view(blocks, blocks, n, blocks, blocks, n)
    assert torch.equal(D, D.roll((1, 1), (0, 3)))
    assert torch.equal(D, D.roll((1, 1), (1, 4)))
    assert torch.equal(A @ torch.ones(len(points), dtype=torch.float64), torch.zeros(len(points)).double())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((2, 0), "n must be at least 3"),
        ((10, -1), "seed must be at least 0"),
        ((10, 0, "neumann"), "boundary must be one of"),
        ((10, 0, "periodic", 2), "blocks must be at least 3"),
        ((3, 0), "each of the n = 3 points has a neighbor outside"),
    ],
)
def test_graph_errors(arguments, words):
    n, seed, *rest = arguments
    options = dict(zip(("boundary", "blocks"), rest, strict=False))
    with pytest.raises(ValueError, match="delaunay_graph: .*" + words):
        ls.problems.delaunay_graph(n, seed, **options)
