"""problems.graph_laplacian: against scipy.sparse.csgraph, with derivatives in the weights."""

import functools
import itertools
import math

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

graph_laplacian = functools.partial(ls.problems.graph_laplacian, both_directions=False)

# Two triangles that share a node, an edge given three times in both directions, a node (6) on its own.
EDGES = torch.tensor([[0, 1], [1, 2], [2, 0], [2, 3], [4, 3], [2, 4], [1, 0], [0, 1], [5, 4]]).T
N = 7


def weights(*batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*batch, EDGES.shape[1], dtype=torch.float64, generator=generator) + 0.1


def reference(edges, w, n):
    i, j = edges.numpy()
    W = scipy.sparse.coo_array((w.numpy(), (i, j)), shape=(n, n))
    return scipy.sparse.csgraph.laplacian((W + W.T).toarray())


def values(w):
    return graph_laplacian(EDGES, w, n=N).values


@pytest.mark.parametrize("index", [torch.int32, torch.int64, torch.int16])
def test_against_scipy(index):
    w = weights()
    L = graph_laplacian(EDGES.to(index), w, n=N)
    np.testing.assert_allclose(L.to_scipy().toarray(), reference(EDGES, w, N), rtol=1e-15, atol=1e-15)
    assert L.col_indices.dtype == torch.int32
    assert L.nnz == N + 2 * 7  # every diagonal entry, and two for each distinct edge


def test_two_edges_are_read_as_pyg_writes_them():
    """The one shape that both conventions have: edges 0-1 and 1-2."""
    L = graph_laplacian(torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, 5.0]))
    assert L.to_dense().tolist() == [[1, -1, 0], [-1, 6, -5], [0, -5, 5]]
    three = graph_laplacian(torch.tensor([[0, 2], [3, 1]]), torch.tensor([1.0, 5.0]))
    assert three.to_dense()[0].tolist() == [1, 0, 0, -1]


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
    w = (
        torch.cat((weights(), weights(), torch.ones(2)))[order]
        if weighted
        else torch.ones(len(order)).double()
    )
    L = ls.problems.graph_laplacian(edge_index, w if weighted else None, n=N)
    torch.testing.assert_close(L.to_dense(), pyg(edge_index, w, N))
    once = graph_laplacian(EDGES, weights() if weighted else None, n=N)
    torch.testing.assert_close(L.to_dense(), once.to_dense())
    free = torch.arange(N) != 4
    A = ls.problems.grounded_laplacian(edge_index, w, ~free)
    torch.testing.assert_close(A.to_dense(), pyg(edge_index, w, N)[free][:, free])


def test_two_directions_count_with_the_mean_of_their_weights():
    w = torch.tensor([1.0, 4.0], requires_grad=True)
    L = ls.problems.graph_laplacian(torch.tensor([[0, 1], [1, 0]]), w)
    assert L.to_dense().tolist() == [[2.5, -2.5], [-2.5, 2.5]]
    L.diagonal()[0].backward()
    assert w.grad.tolist() == [0.5, 0.5]


def test_weights_default_to_one():
    L = graph_laplacian(EDGES)
    assert L.shape == (6, 6)
    assert L.dtype == torch.float64
    assert torch.equal(
        L.to_dense(), torch.from_numpy(reference(EDGES, torch.ones(EDGES.shape[1]), 6)).double()
    )


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


def test_batch_is_a_loop():
    w = weights(2, 3)
    L = graph_laplacian(EDGES, w, n=N, shift=0.1)
    assert L.values.shape == (2, 3, L.nnz)
    for at in itertools.product(range(2), range(3)):
        one = graph_laplacian(EDGES, w[at], n=N, shift=0.1)
        assert torch.equal(L.values[at], one.values)


def test_derivatives():
    w = weights().requires_grad_()
    assert gradcheck(values, w, check_forward_ad=True, check_batched_grad=True)

    def nonlinear(w):
        return torch.linalg.slogdet(graph_laplacian(EDGES, w, n=N, shift=0.3).to_dense())[1]

    assert gradcheck(nonlinear, w)
    assert gradgradcheck(nonlinear, w)
    torch.testing.assert_close(
        torch.func.jacrev(values)(w.detach()), torch.func.jacfwd(values)(w.detach()), rtol=0, atol=0
    )


def test_vmap():
    w = weights(4)
    torch.testing.assert_close(torch.func.vmap(values)(w), torch.stack([values(one) for one in w]))


def test_the_first_call_may_be_anywhere():
    """What is kept for later calls belongs neither to inference mode nor to a transformation."""

    def total(w, n):
        return (graph_laplacian(EDGES, w, n=n).values ** 2).sum()

    with torch.inference_mode():
        total(weights(), 11)
    w = weights().requires_grad_()
    (wanted,) = torch.autograd.grad(total(w, 11), w)
    torch.testing.assert_close(torch.func.grad(total)(weights(), 12), wanted)
    (again,) = torch.autograd.grad(total(w, 12), w)
    torch.testing.assert_close(again, wanted)
    patterns = {graph_laplacian(EDGES, w.to(t), n=12).pattern for t in (torch.float32, torch.float64)}
    assert len(patterns) == 1


def test_no_edges():
    L = graph_laplacian(torch.zeros(2, 0, dtype=torch.int64), n=3)
    assert torch.equal(L.to_dense(), torch.zeros(3, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("edges", "arguments", "error", "words"),
    [
        (
            [[0, 1, 1, 2], [1, 0, 2, 2]],
            {"both_directions": True},
            ValueError,
            r"in both directions, got \[1, 2\] 1 times and \[2, 1\] 0 times; .* pass both_directions=False",
        ),
        ([[0], [1]], {"both_directions": 1}, TypeError, "both_directions must be True or False, got 1"),
        ([[0, 1], [1, 3]], {"n": 3}, ValueError, r"nodes .* 0 <= index < 3, got edge_index\[1\]\[1\] = 3"),
        ([[0], [-1]], {}, ValueError, r"0 <= index < 1, got edge_index\[1\]\[0\] = -1"),
        ([[0, 1, 2]], {}, ValueError, r"shape \(2, E\), got \(1, 3\)"),
        ([[0, 1], [1, 2], [2, 0]], {}, ValueError, r"shape \(2, E\), got \(3, 2\); of pairs, .* pairs.T"),
        ([[0.0], [1.0]], {}, TypeError, "edge_index must hold integers, got torch.float32"),
        ([[0], [1]], {"n": 2.0}, TypeError, "n must be an int"),
        ([[0], [1]], {"n": -1}, ValueError, "n must be at least 0"),
        ([[0], [1]], {"shift": -1.0}, ValueError, "shift must be finite and not negative, got -1.0"),
        ([[0], [1]], {"shift": math.nan}, ValueError, "shift must be finite and not negative, got nan"),
        ([[0], [1]], {"shift": torch.tensor(1.0)}, TypeError, "shift must be a number, got Tensor"),
        (
            [[0], [1]],
            {"weights": torch.ones(2)},
            ValueError,
            r"weights must have shape \(..., m = 1\), got \(2,\)",
        ),
        ([[0], [1]], {"weights": torch.tensor(1.0)}, ValueError, "weights must have shape"),
        ([[0], [1]], {"weights": torch.ones(1).long()}, TypeError, "weights must be float32 or float64"),
        ([[0], [1]], {"weights": [1.0]}, TypeError, "weights must be a torch.Tensor, got list"),
        ([[0], [1]], {"weights": torch.tensor([[1.0], [-2.0]])}, ValueError, r"weights\[1, 0\] = -2.0"),
        ([[0], [1]], {"weights": torch.tensor([math.nan])}, ValueError, r"weights\[0\] = nan"),
        (
            [[0], [1]],
            {"weights": torch.ones(1, device="meta")},
            TypeError,
            "weights are on meta, edge_index on cpu",
        ),
    ],
)
def test_errors(edges, arguments, error, words):
    with pytest.raises(error, match="graph_laplacian: .*" + words):
        graph_laplacian(torch.tensor(edges), **arguments)


def test_empty_without_n():
    with pytest.raises(ValueError, match="graph_laplacian: without edges, n must give the number of nodes"):
        graph_laplacian(torch.zeros(2, 0, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"graph_laplacian: edge_index must be a torch.Tensor, got list"):
        graph_laplacian([[0, 1]])  # type: ignore[arg-type]
