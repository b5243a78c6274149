"""`SparsityPattern`: what it refuses, what it computes, how its rows are distributed."""

import copy
import itertools
import pickle
import weakref

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import banded, coordinates, grid, normal, on_cuda, pattern_of, power_law, random, structures
from torch.utils import _pytree as pytree

import learnsolve as ls
from learnsolve.matrix import device_analysis
from learnsolve.ops import sparse_products
from learnsolve.ops.arithmetic import union_plan

STRUCTURES = structures()
every_structure = pytest.mark.parametrize("structure", STRUCTURES)
both_indices = pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


MALFORMED = {
    "length": ((0, 1, 2), (0, 1), (3, 2), r"crow_indices must have rows \+ 1 = 4 entries, got 3"),
    "empty": ((), (), (0, 0), r"crow_indices must have rows \+ 1 = 1 entries, got 0"),
    "first": ((1, 1, 2), (0, 1), (2, 2), r"begin with 0, got crow_indices\[0\] = 1"),
    "negative first": ((-1, 1, 2), (0, 1), (2, 2), r"crow_indices\[0\] = -1"),
    "decreasing": ((0, 2, 1, 2), (0, 1), (3, 2), r"must not decrease, but crow_indices\[2\] = 1"),
    "decreasing to the end": ((0, 5, 2), (0, 1), (2, 2), r"crow_indices\[2\] = 2"),
    "last too small": ((0, 1, 1), (0, 1), (2, 2), r"len\(col_indices\) = 2, got crow_indices\[2\] = 1"),
    "last too large": ((0, 1, 3), (0, 1), (2, 2), r"len\(col_indices\) = 2, got crow_indices\[2\] = 3"),
    "column too large": ((0, 1, 2), (0, 2), (2, 2), r"0 <= column < 2, got col_indices\[1\] = 2"),
    "column negative": ((0, 1, 2), (-1, 0), (2, 2), r"0 <= column < 2, got col_indices\[0\] = -1"),
    "column of nothing": ((0, 1), (0,), (1, 0), r"0 <= column < 0, got col_indices\[0\] = 0"),
    "duplicate": ((0, 1, 4), (0, 0, 1, 1), (2, 2), r"twice, got col_indices\[3\] = 1 again\. CSR.from_coo"),
    "unsorted": ((0, 1, 3), (0, 1, 0), (2, 2), r"sorted within a row, got col_indices\[2\] = 0 .*from_coo"),
    "negative shape": ((0,), (), (-1, 3), r"shape must not be negative, got \(-1, 3\)"),
    "shape of fractions": ((0, 1, 2), (0, 1), (2.9, 2.9), "shape must be"),
}


@both_indices
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name, index):
    crow, col, shape, message = MALFORMED[name]
    with pytest.raises(ValueError, match=rf"^SparsityPattern: .*{message}"):
        ls.SparsityPattern(ints(*crow, dtype=index), ints(*col, dtype=index), shape)


CROW, COL = ints(0, 1), ints(0)


@pytest.mark.parametrize(
    ("crow", "col", "kind", "message"),
    [
        (CROW, COL.bool(), TypeError, "col_indices must be int32 or int64, got torch.bool"),
        (CROW, COL.int(), TypeError, ".* the same dtype and device, got torch.int64 on cpu and torch.int32"),
        (CROW, COL.to("meta"), TypeError, ".* the same dtype and device, got .* on meta"),
        (CROW[None], COL, ValueError, r"crow_indices must have one dimension, got shape \(1, 2\)"),
    ],
)
def test_wrong_arrays(crow, col, kind, message):
    with pytest.raises(kind, match=rf"^SparsityPattern: {message}"):
        ls.SparsityPattern(crow, col, (1, 1))


def test_every_single_corruption_is_found():
    """Each index of a valid pattern, replaced by each nearby or far-off number: refused, or valid indeed."""
    P = pattern_of(random(5, 6, 0.4))
    for array in (P.crow_indices, P.col_indices):
        for i in range(len(array)):
            for value in (-(2**40), -1, *range(P.nnz + 2), 2**40):
                crow, col = P.crow_indices.clone(), P.col_indices.clone()
                (crow if array is P.crow_indices else col)[i] = value
                try:
                    Q = ls.SparsityPattern(crow, col, P.shape)
                except ValueError:
                    continue
                rows, columns = coordinates(Q)
                flat = rows * 6 + columns
                assert len(rows) == P.nnz
                assert (np.diff(flat) > 0).all()
                assert columns.min() >= 0
                assert columns.max() < 6


def test_immutable():
    P = pattern_of(random(4, 4, 0.5))
    for name in ("crow_indices", "col_indices", "shape", "nnz", "_entries", "something"):
        with pytest.raises(AttributeError, match=name):
            setattr(P, name, 1)
    with pytest.raises(AttributeError):
        del P.shape


def test_identity():
    P, Q = pattern_of(random(4, 4, 0.5)), pattern_of(random(4, 4, 0.5))
    assert P != Q
    assert {P: 1, Q: 2}[P] == 1
    assert copy.copy(P) is copy.deepcopy(P) is P
    P = pattern_of(random(4, 7, 0.5), torch.int32)
    assert repr(P) == f"SparsityPattern(shape=(4, 7), nnz={P.nnz}, indices=int32, device=cpu)"


@both_indices
def test_pickle(index):
    P = ls.CSR.from_scipy(random(13, 4, 0.5)).pattern.to(dtype=index)
    crow, col, data = P.crow_indices.clone(), P.col_indices.clone(), pickle.dumps(P)
    _ = P.T, P.row_indices
    assert len(pickle.dumps(P)) == len(data), "what is cached does not travel"
    Q = pickle.loads(data)
    assert Q is P
    del P, Q
    Q = pickle.loads(data)
    assert torch.equal(crow, Q.crow_indices)
    assert torch.equal(col, Q.col_indices)
    assert (Q.shape, Q.dtype, Q.nnz, Q.cache_bytes()) == ((13, 4), index, len(col), 0)


@both_indices
@every_structure
def test_what_is_computed(structure, index):
    P = pattern_of(STRUCTURES[structure], index)
    rows, columns = coordinates(P)
    assert P.row_indices.dtype == index
    assert P.row_indices.tolist() == rows.tolist()

    order = np.lexsort((rows, columns))
    assert P.transpose_permutation.dtype == index
    assert P.transpose_permutation.tolist() == order.tolist()
    assert P.T.shape == P.shape[::-1]
    assert P.T.row_indices.tolist() == columns[order].tolist()
    assert P.T.col_indices.tolist() == rows[order].tolist()
    assert P.T.transpose_permutation.tolist() == np.argsort(order).tolist()
    assert P.T.T is P
    ls.SparsityPattern(P.T.crow_indices, P.T.col_indices, P.T.shape)

    place = {(i, j): p for p, (i, j) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True))}
    assert P.diagonal_positions.tolist() == [place.get((i, i), -1) for i in range(min(P.shape))]


@pytest.mark.parametrize("which", ["P", "P.T"])
def test_transposing_twice_after_dropping_caches(which):
    P = pattern_of(random(6, 4, 0.5))
    (P if which == "P" else P.T).drop_caches()
    assert P.T.T is P
    A = ls.CSR(normal((P.nnz,)), P)
    assert torch.equal((A + A.T.T).values, 2 * A.values)


def test_to():
    P = pattern_of(random(6, 4, 0.5))
    assert P.to() is P
    assert P.to("cpu") is P
    Q = P.to(dtype=torch.int32)
    assert Q.dtype == torch.int32
    assert P.to(dtype=torch.int32) is Q
    assert Q.col_indices.tolist() == P.col_indices.tolist()
    with pytest.raises(
        TypeError, match=r"SparsityPattern.to: indices must be int32 or int64, got torch.int16"
    ):
        P.to(dtype=torch.int16)
    huge = ls.SparsityPattern(ints(0), ints(), (0, 2**31))
    with pytest.raises(ValueError, match=r"do not fit int32"):
        huge.to(dtype=torch.int32)


def test_a_pattern_is_freed_at_once():
    P = ls.problems.poisson((5,)).pattern
    P._structure(True), P.T.transpose_permutation
    gone = weakref.ref(P)
    T = P.T
    del P
    assert gone() is None  # no cycle with its transpose
    assert T.T.shape == (5, 5)


def _transformed():
    """Transformations of a function of values, each applied to some."""
    v = normal((3,))
    return {
        "grad": lambda f: torch.func.grad(f)(v),
        "jvp": lambda f: torch.func.jvp(f, (v,), (v,)),
        "vmap": lambda f: torch.vmap(f)(torch.stack((v, v))),
        "vmap of grad": lambda f: torch.vmap(torch.func.grad(f))(torch.stack((v, v))),
        "hessian": lambda f: torch.func.hessian(f)(v),
    }


@pytest.mark.parametrize("transform", _transformed().values(), ids=list(_transformed()))
def test_index_arrays_that_are_constants_of_a_transformation(transform):
    """Given from outside, and made inside of the function, where torch.func tracks every tensor."""
    crow, col, x = ints(0, 1, 3), ints(0, 0, 1), normal((2,))

    def known(v):
        return (ls.CSR(v, ls.SparsityPattern(crow, col, (2, 2))) @ x).square().sum()

    def computed(v):
        A = ls.CSR(v, ls.SparsityPattern(crow + 0, torch.tensor([0, 0, 1]), (2, 2)))
        B = ls.CSR.from_coo(torch.tensor([0, 1, 1]) + 0, col + 0, v, (2, 2))
        order = torch.arange(2) + 0
        return (ls.ops.permute(A, order)[order] @ x * (B @ x)).sum()

    P = ls.SparsityPattern(crow, col, (2, 2))
    expected = transform(lambda v: (ls.CSR(v, P) @ x).square().sum())
    for f in (known, computed):
        assert all(map(torch.equal, *(pytree.tree_leaves(t) for t in (transform(f), expected))))


def test_index_arrays_that_vmap_maps_over():
    v, cols = normal((3,)), torch.tensor([[0, 0, 1], [1, 0, 1]])
    for make in (
        lambda col: ls.CSR(v, ls.SparsityPattern(ints(0, 1, 3), col, (2, 2))),
        lambda col: ls.CSR.from_coo(col, col, v, (2, 2)),
        lambda col: ls.problems.poisson((3,))[col],
        lambda D: ls.CSR.from_dense(torch.diag(D).double()),
    ):
        message = r"torch\.func\.vmap maps over\. Make them outside .* learnsolve\.CSR\(values, pattern\)"
        with pytest.raises(NotImplementedError, match=message):
            torch.vmap(lambda col, make=make: make(col).values)(cols)


# --- the distribution of rows over threads ---

BLOCKS = STRUCTURES | {
    "long bands": banded(9000, 7),
    "wide bands": banded(300, 31),
    "grid": grid(5, 120),
    "cube": grid(7, 20),
    "power law": power_law(3000),
    "random": random(2000, 2000, 0.02),
}

# A device deals rows out otherwise (below).
of_the_cpu = pytest.mark.skipif(on_cuda(), reason="of the CPU operators alone")


@of_the_cpu
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("structure", BLOCKS)
def test_row_blocks(structure, transposed):
    """Blocks hold every row once, in order; uniform blocks are uniform; none is much heavier than most."""
    P = pattern_of(BLOCKS[structure])
    if transposed:
        ptr, idx, perm, blocks = P._structure(True)
    else:
        ptr, idx, perm, blocks = *P._structure(False)[:3], P.row_blocks
    rows = len(ptr) - 1
    first, length = blocks[:, 0], blocks[:, 1]
    assert blocks[-1].tolist() == [rows, 0]
    assert rows == 0 or first[0] == 0
    assert (first.diff() > 0).all()
    for b in range(len(blocks) - 1):
        r0, r1, size = int(first[b]), int(first[b + 1]), int(length[b])
        weight = int(ptr[r1] - ptr[r0]) + r1 - r0
        assert weight <= 8192 or r1 == r0 + 1
        if size:
            lengths = ptr[r0 : r1 + 1].diff()
            assert (lengths == size).all()
            columns = idx[ptr[r0] : ptr[r1]].view(-1, size)
            assert (columns.diff(dim=0) == 1).all()
            if perm is not None:
                assert (perm[ptr[r0] : ptr[r1]].view(-1, size).diff(dim=0) == size).all()


@of_the_cpu
def test_grids_are_uniform_nearly_everywhere():
    """What the fast path lives on: if detection breaks, nothing but speed tells."""
    for S in (banded(500, 5), grid(5, 100)):
        blocks = pattern_of(S).row_blocks
        uniform = blocks[:-1, 0].new_zeros(())
        for b in range(len(blocks) - 1):
            uniform += (blocks[b + 1, 0] - blocks[b, 0]) * (blocks[b, 1] > 0)
        assert uniform >= 0.95 * S.shape[0]


LONG_AND_SHORT = {
    **structures(),
    "power law": power_law(60),
    "one giant row": scipy.sparse.csr_array(np.eye(40, 3000) + (np.arange(40) == 7)[:, None]),
    "all in the last row": scipy.sparse.csr_array((np.arange(50) == 49)[:, None] * np.ones((50, 4000))),
}
long_and_short = pytest.mark.parametrize("structure", LONG_AND_SHORT)


def about_a_piece() -> scipy.sparse.csr_array:
    lengths = [0, 1023, 1024, 1025, 0, 2047, 2048, 2049, 1, 3000]
    return scipy.sparse.csr_array(np.arange(3000) < np.array(lengths)[:, None])


def equal(result: torch.Tensor, expected: torch.Tensor) -> bool:
    return result.dtype == expected.dtype and torch.equal(result, expected)


@both_indices
@long_and_short
def test_one_pattern(structure, index):
    P = pattern_of(LONG_AND_SHORT[structure], index)
    crow, col, columns = P.crow_indices, P.col_indices, P.shape[1]
    assert device_analysis.is_valid(crow, col, columns)
    assert equal(device_analysis.row_indices(crow, P.nnz), P.row_indices)
    assert equal(device_analysis.diagonal_positions(crow, col, columns), P.diagonal_positions)
    expected = (P.T.crow_indices, P.T.col_indices, P.transpose_permutation)
    for a, b in zip(device_analysis.transpose(crow, col, columns), expected, strict=True):
        assert equal(a, b)


@both_indices
@long_and_short
def test_every_fault_is_seen(structure, index):
    """One number of the arrays changed to any of some others: `is_valid` says what the constructor does."""
    P = pattern_of(LONG_AND_SHORT[structure], index)
    generator = np.random.default_rng(0)
    for array in (0, 1):
        for _ in range(60):
            arrays = [P.crow_indices.clone(), P.col_indices.clone()]
            if len(arrays[array]) == 0:
                continue
            at = generator.integers(len(arrays[array]))
            other = generator.integers(-2, max(P.nnz, P.shape[1]) + 2)
            arrays[array][at] = generator.choice([other, arrays[array][at] + generator.integers(-2, 3)])
            try:
                ls.SparsityPattern(*arrays, P.shape)
                expected = True
            except ValueError:
                expected = False
            assert device_analysis.is_valid(*arrays, P.shape[1]) == expected, (arrays, at)


@both_indices
@pytest.mark.parametrize("structure", [*LONG_AND_SHORT, "about a piece"])
def test_row_schedule(structure, index):
    """Row and first entry of every piece of a row but its first, in order, after the tiles."""
    P = pattern_of({**LONG_AND_SHORT, "about a piece": about_a_piece()}[structure], index)
    table = device_analysis.row_schedule(P.crow_indices, P.nnz)
    assert table.dtype == index
    crow, piece = P.crow_indices.tolist(), device_analysis.PIECE
    further = [[i, p] for i in range(P.shape[0]) for p in range(crow[i] + piece, crow[i + 1], piece)]
    tiles = torch.cat(device_analysis.tiles(P.crow_indices, P.nnz))
    assert table.tolist() == [*tiles.tolist(), *further]
    assert structure not in ("about a piece", "one giant row", "all in the last row") or further


@both_indices
@pytest.mark.parametrize("structure", [*LONG_AND_SHORT, "about a piece", "dense chunks", "empty chunks"])
def test_tiles_hold_every_entry_once(structure, index):
    """And fit their room, end where rows or chunks end, and cut only long rows; their number follows from the
    sizes."""
    rng = np.random.default_rng(0)
    dense = scipy.sparse.csr_array(np.arange(90) < rng.integers(0, 90, 700)[:, None])
    gaps = scipy.sparse.csr_array((np.arange(1000) // 150 % 2 == 0)[:, None] * np.ones((1000, 30)))
    shapes = {**LONG_AND_SHORT, "about a piece": about_a_piece(), "dense chunks": dense, "empty chunks": gaps}
    P = pattern_of(shapes[structure], index)
    rows, crow = P.shape[0], P.crow_indices.tolist()
    tiles, chunks = (t.tolist() for t in device_analysis.tiles(P.crow_indices, P.nnz))
    bounds = [min(c * device_analysis.chunk_rows(rows), rows) for c in range(max(len(chunks), 1) + 1)]
    assert bounds[-1] == rows
    assert tiles[-1] == [rows, P.nnz]
    assert len(tiles) == len(chunks) + P.nnz // device_analysis.TILE + 1
    for c, (first, end) in enumerate(chunks):
        assert first < end
        assert [tiles[first], tiles[end]] == [[row, crow[row]] for row in bounds[c : c + 2]]
    held = [0] * rows
    for (row, begin), (next_row, end) in itertools.pairwise(tiles):
        assert begin <= end < begin + device_analysis.TILE + device_analysis.PIECE
        assert begin == crow[row] or crow[row] + device_analysis.PIECE < crow[row + 1]
        for i in range(row, next_row + (end > crow[next_row])):
            held[i] += min(crow[i + 1], end) - max(crow[i], begin)
            assert max(crow[i], begin) <= min(crow[i + 1], end)
    assert held == P.crow_indices.diff().tolist()


@both_indices
@pytest.mark.parametrize("structure", [*LONG_AND_SHORT, "many"])
def test_union(structure, index):
    S = {**LONG_AND_SHORT, "many": random(300, 300, 0.3)}[structure]
    T = random(*S.shape, 0.3, seed=4)
    for other in (T, S, random(*S.shape, 0.0)):
        P, Q = pattern_of(S, index), pattern_of(other, index)
        expected = union_plan(P, Q)
        arrays = (P.crow_indices, P.col_indices, Q.crow_indices, Q.col_indices)
        crow, col, places = device_analysis.merge_patterns(*arrays, P.shape[1], index)
        assert equal(places, expected.places())
        C = expected.pattern or (P if expected.lies in ("A", "both") else Q)
        assert equal(crow, C.crow_indices)
        assert equal(col, C.col_indices)


@both_indices
@pytest.mark.parametrize("stretch", [1, 7, 100, 2**24])
@long_and_short
def test_pattern_of_a_product_in_stretches(structure, stretch, index, monkeypatch):
    """Sorts of this number of products, also within rows, and the pattern of all products at once."""
    monkeypatch.setattr(device_analysis, "SORTED", stretch)
    S = LONG_AND_SHORT[structure]
    if S.nnz > 3000:
        S = S[:, :50]
    for left, right in ((S, S.T), (S.T, S[:, :6])):
        A, B = pattern_of(left, index), pattern_of(right, index)
        arrays = (A.crow_indices, A.col_indices, B.crow_indices, B.col_indices)
        first = device_analysis.first_products(A.col_indices, B.crow_indices)
        C = pattern_of(scipy.sparse.csr_array(_ones(A) @ _ones(B)), index)
        made = device_analysis.product_pattern(*arrays, B.shape[1], first, C.nnz)
        assert made is not None
        assert equal(made[0], C.crow_indices)
        assert equal(made[1], C.col_indices)
        if C.nnz:
            assert device_analysis.product_pattern(*arrays, B.shape[1], first, C.nnz - 1) is None


@pytest.mark.rows(2)
@both_indices
@pytest.mark.parametrize("masked", [False, True])
@long_and_short
def test_segments_of_a_product(structure, masked, index, monkeypatch):
    """The three derivatives of the sum of a_p b_q g_t over all products, in stretches."""
    monkeypatch.setattr(device_analysis, "SORTED", 300)
    S = LONG_AND_SHORT[structure][:200, :50]
    A, B = pattern_of(S, index), pattern_of(S.T.tocsr(), index)
    C = ls.ops.spgemm(*(ls.CSR(torch.ones(P.nnz).double(), P) for P in (A, B))).pattern
    if masked:
        C = pattern_of(random(*C.shape, 0.3, seed=1), index)
    matrices = [ls.CSR(torch.arange(1.0, P.nnz + 1).double(), P) for P in (A, B, C)]
    values, (a, b, g) = [M.values for M in matrices], [M.to_dense() for M in matrices]
    arrays = tuple(t for P in (A, B, C) for t in (P.crow_indices, P.col_indices))
    first = device_analysis.first_products(A.col_indices, B.crow_indices)
    for wanted, (P, expected) in enumerate(((A, g @ b.T), (B, a.T @ g), (C, a @ b))):
        u, v = (t for i, t in enumerate(values) if i != wanted)
        found = torch.zeros(P.nnz).double()
        for stretch in device_analysis.stretches(first):
            made = device_analysis.product_segments(arrays, first, wanted, stretch)
            ptr, idx, perm = made
            assert all(t.dtype == index for t in made)
            rows = device_analysis.row_indices(ptr, len(idx)).long()
            found.index_add_(0, rows, u[perm.long()] * v[idx.long()])
        torch.testing.assert_close(found, expected[P.row_indices.long(), P.col_indices.long()])


def test_what_is_too_large_for_a_sort_there(monkeypatch):
    """Goes over the host, to the same results."""
    A, B = (ls.CSR.from_scipy(random(30, 20, 0.3, seed=s)) for s in (0, 1))
    monkeypatch.setattr(device_analysis, "everywhere", True)
    expected = A.T.to_dense(), union_plan(A.pattern, B.pattern).codes
    monkeypatch.setattr(device_analysis, "MOST_SORTED", 10)
    for name in ("transpose", "merge_patterns"):
        monkeypatch.setattr(device_analysis, name, None)
    A.pattern.drop_caches()
    assert torch.equal(ls.CSR(A.values, A.pattern).T.to_dense(), expected[0])
    assert equal(union_plan(A.pattern, B.pattern).codes, expected[1])


def test_a_product_with_more_places_than_numbers():
    """The pattern of C = A B is result on the host where row and column do not make a number of 62 bits."""
    A, B = (ls.CSR.from_scipy(random(9, 9, 0.3, seed=s)) for s in (0, 1))
    C = ls.ops.spgemm(A, B).pattern
    crow, col = sparse_products._symbolic(A.pattern, B.pattern, False)
    assert equal(crow, C.crow_indices)
    assert equal(col, C.col_indices)


def _ones(P: ls.SparsityPattern) -> scipy.sparse.csr_array:
    arrays = (np.ones(P.nnz), P.col_indices.numpy(), P.crow_indices.numpy())
    return scipy.sparse.csr_array(arrays, shape=P.shape)
