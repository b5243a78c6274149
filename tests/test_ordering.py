"""Reverse Cuthill-McKee and colorings."""

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import coordinates, grid, pattern_of, power_law, random, structures

import learnsolve as ls
from learnsolve import ordering


def blocks(*parts):
    return scipy.sparse.csr_array(scipy.sparse.block_diag(parts))


def shuffled(S, seed=0):
    p = np.random.default_rng(seed).permutation(S.shape[0])
    return scipy.sparse.csr_array(S)[p][:, p]


SQUARE = {name: S for name, S in structures().items() if S.shape[0] == S.shape[1]} | {
    "nonsymmetric": random(30, 30, 0.1, seed=5),
    "upper triangle": scipy.sparse.csr_array(scipy.sparse.triu(random(20, 20, 0.3))),
    "diagonal only": scipy.sparse.csr_array(scipy.sparse.eye_array(7)),
    "no entries": scipy.sparse.csr_array((5, 5)),
    "disconnected": blocks(grid(5, 3), random(6, 6, 0.5), np.zeros((2, 2)), grid(9, 3)),
    "shuffled grid": shuffled(grid(5, 12)),
    "star": scipy.sparse.csr_array(np.eye(12) + (np.arange(12) == 0)[:, None]),
    "power law, larger": power_law(200),
}
every_square = pytest.mark.parametrize("name", SQUARE)
both_indices = pytest.mark.parametrize("index", [torch.int32, torch.int64])


def graph(P):
    """Coupled pairs (i, j), i != j, both ways, each once."""
    i, j = coordinates(P)
    pairs = np.concatenate([np.stack([i, j], 1), np.stack([j, i], 1)])
    return np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)


@every_square
@both_indices
@pytest.mark.parametrize("order", ["natural", "largest_first"])
def test_coloring(name, index, order):
    P = pattern_of(SQUARE[name], index)
    found = ordering.greedy_coloring(P, order)
    colors = found.colors.numpy()
    assert (colors == greedy(P, order)).all()
    assert found.colors.dtype == found.ptr.dtype == found.rows.dtype == index
    assert found.count == len(set(colors))
    # The rows by color, in order.
    assert (found.rows.numpy() == np.argsort(colors, kind="stable")).all()
    assert (np.diff(found.ptr.numpy()) == np.bincount(colors, minlength=found.count)).all()


def greedy(P, order):
    """The definition, row by row."""
    n, edges = P.shape[0], graph(P)
    near = [edges[edges[:, 0] == i, 1] for i in range(n)]
    rows = sorted(range(n), key=lambda i: -len(near[i]) if order == "largest_first" else 0)
    colors = np.full(n, -1)
    for i in rows:
        colors[i] = min(set(range(n)) - set(colors[near[i]]))
    return colors


@pytest.mark.parametrize("shape", [(17,), (9, 14), (5, 4, 6)])
def test_grids_are_red_and_black(shape):
    found = ordering.greedy_coloring(ls.problems.poisson(shape))
    assert found.count == 2
    parity = np.indices(shape).sum(0).ravel() % 2
    assert (found.colors.numpy() == parity).all()


def test_nine_points_take_four_colors():
    assert ordering.greedy_coloring(pattern_of(grid(9, 11))).count == 4


def test_rows_of_one_color_may_be_relaxed_together():
    """Gauss-Seidel by colors, all rows of one at once, is Gauss-Seidel in the order `rows`, row by row."""
    S = random(25, 25, 0.1, seed=3).toarray() + 10 * np.eye(25)
    A = ls.CSR.from_scipy(scipy.sparse.csr_array(S))
    _, count, ptr, rows = ordering.greedy_coloring(A)
    b = np.random.default_rng(0).standard_normal(25)
    at_once, one_by_one = np.zeros(25), np.zeros(25)
    for c in range(count):
        group = rows[ptr[c] : ptr[c + 1]].numpy()
        at_once[group] += ((b - S @ at_once) / S.diagonal())[group]
    for i in rows.tolist():
        one_by_one[i] += (b - S @ one_by_one)[i] / S[i, i]
    np.testing.assert_allclose(at_once, one_by_one, rtol=1e-14)


RECTANGULAR = {name: S for name, S in structures().items() if name not in SQUARE} | {
    "wide": random(7, 40, 0.1),
    "full row": scipy.sparse.csr_array(np.vstack([np.ones(300), np.eye(300)[5:9]])),
    "full column": scipy.sparse.csr_array(np.ones((200, 1))),
    "two long rows": scipy.sparse.csr_array(
        np.vstack([np.arange(300) < 200, np.arange(300) > 140, np.eye(300)])
    ),
}
ORDERS = ["best", "natural", "largest_first", "smallest_last"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
def test_columns_of_one_color_share_no_row(name, order):
    P = pattern_of((SQUARE | RECTANGULAR)[name])
    found = ordering.column_coloring(P, order)
    i, j = coordinates(P)
    colors = found.colors.numpy()
    assert found.colors.shape == (P.shape[1],)
    assert set(colors) == set(range(found.count))
    assert len(set(zip(i, colors[j], strict=True))) == P.nnz
    assert found.count >= np.bincount(i).max(initial=0)
    assert (found.rows.numpy() == np.argsort(colors, kind="stable")).all()
    if order != "best":  # greedy: a smaller color is taken, in a row of the column
        taken = {(int(row), int(c)) for row, c in zip(i, colors[j], strict=True)}
        for k in range(P.shape[1]):
            assert all(any((row, c) in taken for row in i[j == k]) for c in range(colors[k]))


def test_the_orders_of_columns():
    """Natural as defined; the others have their first and last columns by degree."""
    P = pattern_of(random(25, 25, 0.12, seed=3))
    S = scipy.sparse.csr_array((np.ones(P.nnz), P.col_indices.numpy(), P.crow_indices.numpy()), shape=P.shape)
    shared = pattern_of(scipy.sparse.csr_array(S.T @ S))
    assert (ordering.column_coloring(P, "natural").colors.numpy() == greedy(shared, "natural")).all()
    star = np.eye(9)
    star[:, 8] = 1  # the last column shares a row with all others
    hub = pattern_of(scipy.sparse.csr_array(star))
    assert int(ordering.column_coloring(hub, "largest_first").colors[8]) == 0
    assert int(ordering.column_coloring(hub, "natural").colors[8]) == 1


@pytest.mark.parametrize(
    ("shape", "colors"), [((50,), 3), ((40, 50), 5), ((33, 64), 5), ((9, 11), 5), ((12, 13, 14), 7)]
)
def test_grids_take_as_many_colors_as_the_stencil_has_points(shape, colors):
    P = ls.problems.poisson(shape).pattern
    assert ordering.column_coloring(P).count == colors
    assert ordering.column_coloring(P.T).count == colors


def test_other_grids():
    P = ls.problems.poisson((30, 40)).to_scipy()
    several = {"nine": grid(9, 30), "fields": scipy.sparse.kron(np.ones((2, 2)), P)}
    several |= {
        "components": scipy.sparse.kron(P, np.ones((2, 2))),
        "a part": scipy.sparse.csr_array(P)[100:900],
    }
    for S in several.values():
        pattern = pattern_of(scipy.sparse.csr_array(S))
        assert ordering.column_coloring(pattern).count == int(pattern.crow_indices.diff().max())


def symmetric(name):
    S = scipy.sparse.csr_array(SQUARE[name])
    return pattern_of(scipy.sparse.csr_array(abs(S) + abs(S.T)))


def pairs_of_colors(P, colors):
    """The graph of each two colors, as (connected component of each row, edges)."""
    edges = graph(P)
    edges = edges[edges[:, 0] < edges[:, 1]]
    kinds = np.sort(colors[edges], axis=1)
    for kind in np.unique(kinds, axis=0):
        some = edges[(kinds == kind).all(1)]
        S = scipy.sparse.coo_array((np.ones(len(some)), some.T), shape=P.shape)
        yield scipy.sparse.csgraph.connected_components(S, directed=False)[1], some


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("method", ["star", "acyclic"])
@every_square
def test_symmetric_colorings(name, method, order):
    """Each connected part of two colors is a star or a tree: one edge fewer than rows; of a star all edges
    meet in one row."""
    P = symmetric(name)
    colors = ordering.symmetric_coloring(P, method, order).colors.numpy()
    for parts, edges in pairs_of_colors(P, colors):
        assert (colors[edges[:, 0]] != colors[edges[:, 1]]).all()
        for part in np.unique(parts[edges]):
            mine = edges[parts[edges[:, 0]] == part]
            assert len(mine) == (parts == part).sum() - 1
            if method == "star":
                assert np.bincount(mine.ravel()).max() == len(mine)


def test_arrows_take_two_colors():
    arrow = scipy.sparse.lil_array(scipy.sparse.eye_array(3000))
    arrow[-1] = arrow[:, [-1]] = 1
    P = pattern_of(scipy.sparse.csr_array(arrow))
    assert ordering.symmetric_coloring(P).count == 2
    assert ordering.symmetric_coloring(P, "acyclic").count == 2
    assert ordering.column_coloring(P).count == 3000


def bandwidth(S):
    i, j = scipy.sparse.coo_array(S).coords
    return abs(i - j).max(initial=0)


@every_square
@both_indices
def test_cuthill_mckee_is_a_permutation(name, index):
    P = pattern_of(SQUARE[name], index)
    p = ordering.reverse_cuthill_mckee(P)
    assert p.dtype == index
    assert p.sort().values.tolist() == list(range(P.shape[0]))


@pytest.mark.parametrize("seed", [0, 1])
def test_cuthill_mckee_makes_the_band_narrow(seed):
    S = shuffled(grid(5, 12), seed)
    p = ordering.reverse_cuthill_mckee(pattern_of(S)).numpy()
    assert bandwidth(S) > 100
    assert bandwidth(S[p][:, p]) <= 13


def test_cuthill_mckee_sees_both_triangles():
    """A one-sided chain, shuffled: tridiagonal again only if (i, j) and (j, i) count alike."""
    S = shuffled(scipy.sparse.diags_array([np.ones(39)], offsets=[1], shape=(40, 40)).tocsr())
    p = ordering.reverse_cuthill_mckee(pattern_of(S)).numpy()
    assert bandwidth(S[p][:, p]) == 1


def test_explicit_zeros_are_entries():
    A = ls.problems.poisson((5, 5))
    zeros = A.with_values(torch.zeros_like(A.values))
    assert ordering.greedy_coloring(zeros).count == 2
    assert torch.equal(ordering.reverse_cuthill_mckee(zeros), ordering.reverse_cuthill_mckee(A.pattern))


def test_results_are_kept_with_the_pattern():
    A = ls.problems.poisson((6, 6))
    assert A.pattern.cache_bytes() == 0
    assert ordering.greedy_coloring(A) is ordering.greedy_coloring(A.pattern)
    assert ordering.greedy_coloring(A, "largest_first") is not ordering.greedy_coloring(A)
    assert ordering.reverse_cuthill_mckee(A) is ordering.reverse_cuthill_mckee(A)
    assert A.pattern.cache_bytes() > 0


def test_errors_of_other_colorings():
    P = pattern_of(grid(5, 3))
    with pytest.raises(ValueError, match=r"greedy_coloring: order must be one of .*, got 'smallest_last'"):
        ordering.greedy_coloring(P, "smallest_last")
    with pytest.raises(ValueError, match=r"symmetric_coloring: P must be square, got shape \(3, 4\)"):
        ordering.symmetric_coloring(pattern_of(random(3, 4, 0.5)))
    with pytest.raises(
        ValueError, match=r"an entry \(j, i\) for each entry \(i, j\). Use the pattern of A \+ A\^T"
    ):
        ordering.symmetric_coloring(pattern_of(SQUARE["upper triangle"]))


@every_square
@both_indices
def test_minimum_degree(name, index):
    P = pattern_of(SQUARE[name], index)
    order = ordering.minimum_degree(P)
    assert order.dtype == index
    assert torch.equal(order.sort().values.long(), torch.arange(P.shape[0]))
    assert ordering.minimum_degree(P) is order


def test_minimum_degree_has_little_fill():
    A = ls.problems.poisson((30, 30))
    natural, found = (ls.ops.cholesky(A, ordering=o).L.nnz for o in ("natural", "minimum_degree"))
    assert found < 0.5 * natural
    star = pattern_of(SQUARE["star"], torch.int32)
    assert (
        ls.ops.lu(ls.CSR(torch.ones(star.nnz), star) + 20.0 * ls.ops.eye(12, dtype=torch.float32)).L.nnz == 23
    )
