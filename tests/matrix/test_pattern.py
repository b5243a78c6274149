"""`SparsityPattern`: what it refuses, what it computes, how its rows are distributed."""

import copy
import pickle
import weakref

import numpy as np
import pytest
import torch
from reference import banded, coordinates, grid, normal, on_cuda, pattern_of, power_law, random, structures
from torch.utils import _pytree as pytree

import learnsolve as ls

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
    "duplicate": ((0, 1, 4), (0, 0, 1, 1), (2, 2), r"twice, got col_indices\[3\] = 1 again; CSR.from_coo"),
    "unsorted": ((0, 1, 3), (0, 1, 0), (2, 2), r"sorted within a row, got col_indices\[2\] = 0 .*from_coo"),
    "negative shape": ((0,), (), (-1, 3), r"shape must not be negative, got \(-1, 3\)"),
    "shape of three": ((0,), (), (0, 1, 2), r"shape must be \(rows, columns\), got \(0, 1, 2\)"),
    "shape of one number": ((0,), (), 3, r"shape must be \(rows, columns\), got 3"),
    "shape in words": ((0, 1, 2), (0, 1), "22", "shape must be"),
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
        ([0, 1], COL, TypeError, "crow_indices must be a torch.Tensor, got list"),
        (CROW, np.zeros(1, dtype=int), TypeError, "col_indices must be a torch.Tensor, got ndarray"),
        (CROW.float(), COL, TypeError, "crow_indices must be int32 or int64, got torch.float32"),
        (CROW, COL.bool(), TypeError, "col_indices must be int32 or int64, got torch.bool"),
        (CROW.short(), COL.short(), TypeError, "crow_indices must be int32 or int64, got torch.int16"),
        (CROW, COL.int(), TypeError, ".* one dtype and device, got torch.int64 on cpu and torch.int32"),
        (CROW, COL.to("meta"), TypeError, ".* one dtype and device, got .* on meta"),
        (CROW[None], COL, ValueError, r"crow_indices must have one dimension, got shape \(1, 2\)"),
        (CROW, COL[None], ValueError, r"col_indices must have one dimension, got shape \(1, 1\)"),
        (CROW[0], COL, ValueError, r"crow_indices must have one dimension, got shape \(\)"),
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


def test_strided_arrays():
    P = ls.SparsityPattern(ints(0, 9, 1, 9, 3, 9)[::2], ints(0, 9, 0, 9, 1, 9)[::2], (2, 2))
    assert (ls.CSR(torch.ones(3), P) @ torch.ones(2)).tolist() == [1, 2]


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
        message = r"torch\.func\.vmap maps over: make them outside .* learnsolve\.CSR\(values, pattern\)"
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

# A device deals rows out otherwise (test_device_analysis.py).
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
