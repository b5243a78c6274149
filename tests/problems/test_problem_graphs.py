"""Laplacians of graphs beyond their contract: PyTorch Geometric's convention, shifts; Delaunay graphs."""

import numpy as np
import pytest
import torch
from problems.graphs import EDGES, assembled

import learnsolve as ls

N = 7
P = ls.problems


def graph_laplacian(*arguments, **options):
    return P.graph_laplacian(*arguments, both_directions=False, **options)


def weights(size=EDGES.shape[1], seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(size, dtype=torch.float64, generator=generator) + 0.1


def test_two_edges_are_read_as_pyg_writes_them():
    """The one shape that both conventions have: edges 0-1 and 1-2."""
    L = graph_laplacian(torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, 5.0]))
    assert L.to_dense().tolist() == [[1, -1, 0], [-1, 6, -5], [0, -5, 5]]
    edges, w, ground = torch.tensor([[0, 2], [3, 1]]), torch.tensor([1.0, 5.0]), torch.arange(4) == 1
    assert graph_laplacian(edges, w).to_dense()[0].tolist() == [1, 0, 0, -1]
    A = P.grounded_laplacian(edges, w, ground, both_directions=False)
    assert A.to_dense().tolist() == [[1, 0, -1], [0, 5, 0], [-1, 0, 1]]


def pyg(edge_index, w, n):
    """PyTorch Geometric's utils.get_laplacian(edge_index, w, num_nodes=n): without loops, D - A with the row
    sums D of A, which adds up the entries of edge_index."""
    inside = edge_index[0] != edge_index[1]
    A = torch.zeros(n, n, dtype=w.dtype).index_put(tuple(edge_index[:, inside]), w[inside], accumulate=True)
    return A.sum(1).diag() - A


@pytest.mark.parametrize("weighted", [False, True])
def test_of_an_undirected_edge_index_it_is_that_of_pyg(weighted):
    """Each edge in both directions, in any order, some of them twice; and loops."""
    loops = torch.tensor([[1, 6], [1, 6]])
    order = torch.randperm(2 * EDGES.shape[1] + 2, generator=torch.Generator().manual_seed(0))
    edge_index = torch.cat((EDGES, EDGES.flip(0), loops), 1)[:, order]
    w = torch.cat((weights(), weights(), torch.ones(2)))[order]
    w = w if weighted else torch.ones_like(w)
    L = P.graph_laplacian(edge_index, w if weighted else None, n=N)
    torch.testing.assert_close(L.to_dense(), pyg(edge_index, w, N))
    once = graph_laplacian(EDGES, weights() if weighted else None, n=N)
    torch.testing.assert_close(L.to_dense(), once.to_dense())
    free = torch.arange(N) != 4
    A = P.grounded_laplacian(edge_index, w, ~free)
    torch.testing.assert_close(A.to_dense(), pyg(edge_index, w, N)[free][:, free])


def test_two_directions_count_with_the_mean_of_their_weights():
    w = torch.tensor([1.0, 4.0], requires_grad=True)
    L = P.graph_laplacian(torch.tensor([[0, 1], [1, 0]]), w)
    assert L.to_dense().tolist() == [[2.5, -2.5], [-2.5, 2.5]]
    L.diagonal()[0].backward()
    assert w.grad.tolist() == [0.5, 0.5]


def test_the_matrix_of_pyg_for_two_weights_of_an_edge():
    """docs/migration.md; PyG takes the sums over the weights that leave a node."""
    edge_index, w = torch.tensor([[0, 1, 1, 2, 2], [1, 0, 2, 1, 2]]), torch.arange(1.0, 6)
    W = ls.CSR.from_coo(*edge_index, w, (3, 3))
    L = ls.ops.diag(W.sum(1)) - W
    assert L.to_dense().tolist() == [[1, -1, 0], [-2, 5, -3], [0, -4, 4]]
    mean = P.graph_laplacian(edge_index, w).to_dense()
    assert torch.equal(mean - mean.diag().diag(), (L + L.T).to_dense() / 2 - L.diagonal().diag())


def test_weights_default_to_one_and_no_edges_to_zero():
    L = graph_laplacian(EDGES)
    assert L.shape == (6, 6)
    assert L.dtype == torch.float64
    assert torch.equal(L.to_dense(), graph_laplacian(EDGES, torch.ones(EDGES.shape[1])).to_dense().double())
    none = graph_laplacian(EDGES[:, :0], n=3)
    assert torch.equal(none.to_dense(), torch.zeros(3, 3, dtype=torch.float64))


def test_symmetric_bit_for_bit_with_duplicates():
    """Edges in random order and direction, many of them several times, weights of very different size."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(0, 5, (2, 200), generator=generator)
    edges = edges[:, edges[0] != edges[1]]
    w = torch.randn(edges.shape[1], dtype=torch.float64, generator=generator).mul(8).exp()
    D = graph_laplacian(edges, w).to_dense()
    assert torch.equal(D, D.T)


def test_quadratic_form():
    w, x = weights(), torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    L = graph_laplacian(EDGES, w, n=N, shift=0.25)
    form = (w * (x[EDGES[0]] - x[EDGES[1]]) ** 2).sum() + 0.25 * (x * x).sum()
    torch.testing.assert_close(x @ (L @ x), form)


def test_shift_makes_it_positive_definite():
    L = graph_laplacian(EDGES, weights(), n=N)
    shifted = graph_laplacian(EDGES, weights(), n=N, shift=0.5)
    torch.testing.assert_close(shifted.to_dense(), L.to_dense() + 0.5 * torch.eye(N, dtype=torch.float64))
    assert torch.linalg.eigvalsh(shifted.to_dense())[0] > 0.5 - 1e-14


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
    graph = P.delaunay_graph(300, seed=1)
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
    _, edge_index, grounded = P.delaunay_graph(200, seed=2)
    w = weights(edge_index.shape[1])
    A = P.grounded_laplacian(edge_index, w, grounded, both_directions=False)
    wanted = assembled(edge_index, w.numpy(), grounded)
    np.testing.assert_allclose(A.to_scipy().toarray(), wanted, rtol=1e-14, atol=0)
    assert torch.linalg.eigvalsh(A.to_dense())[0] > 0


@pytest.mark.cpu_only
@pytest.mark.parametrize("blocks", [3, 4])
def test_periodic_graph(blocks):
    n = 40
    points, edge_index, grounded = P.delaunay_graph(n, seed=3, boundary="periodic", blocks=blocks)
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
    one = torch.ones(len(edges), dtype=torch.float64)
    A = P.grounded_laplacian(edge_index, one, grounded, both_directions=False)
    D = A.to_dense().view(blocks, blocks, n, blocks, blocks, n)
    assert torch.equal(D, D.roll((1, 1), (0, 3)))
    assert torch.equal(D, D.roll((1, 1), (1, 4)))
    assert torch.equal(A @ torch.ones(len(points), dtype=torch.float64), torch.zeros(len(points)).double())
