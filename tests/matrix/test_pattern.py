"""`SparsityPattern`: what it refuses, what it computes, what it keeps."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import torch
from reference import coordinates, normal, pattern_of, random, structures
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
    "last too small": (
        (0, 1, 1),
        (0, 1),
        (2, 2),
        r"end with len\(col_indices\) = 2, got crow_indices\[2\] = 1",
    ),
    "last too large": ((0, 1, 3), (0, 1), (2, 2), r"len\(col_indices\) = 2, got crow_indices\[2\] = 3"),
    "column too large": ((0, 1, 2), (0, 2), (2, 2), r"0 <= column < 2, got col_indices\[1\] = 2"),
    "column negative": ((0, 1, 2), (-1, 0), (2, 2), r"0 <= column < 2, got col_indices\[0\] = -1"),
    "column of nothing": ((0, 1), (0,), (1, 0), r"0 <= column < 0, got col_indices\[0\] = 0"),
    "duplicate": ((0, 1, 4), (0, 0, 1, 1), (2, 2), r"twice, got col_indices\[3\] = 1 again; CSR.from_coo"),
    "unsorted": (
        (0, 1, 3),
        (0, 1, 0),
        (2, 2),
        r"sorted within a row, got col_indices\[2\] = 0 .*CSR.from_coo",
    ),
    "negative shape": ((0,), (), (-1, 3), r"shape must not be negative, got \(-1, 3\)"),
    "shape of three": ((0,), (), (0, 1, 2), r"shape must be \(rows, columns\), got \(0, 1, 2\)"),
    "shape of one number": ((0,), (), 3, r"shape must be \(rows, columns\), got 3"),
}


@both_indices
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name, index):
    crow, col, shape, message = MALFORMED[name]
    with pytest.raises(ValueError, match=rf"^SparsityPattern: .*{message}"):
        ls.SparsityPattern(ints(*crow, dtype=index), ints(*col, dtype=index), shape)


@pytest.mark.parametrize(
    ("crow", "col", "kind", "message"),
    [
        ([0, 1], ints(0), TypeError, "crow_indices must be a torch.Tensor, got list"),
        (
            ints(0, 1),
            np.zeros(1, dtype=np.int64),
            TypeError,
            "col_indices must be a torch.Tensor, got ndarray",
        ),
        (ints(0, 1).float(), ints(0), TypeError, "crow_indices must be int32 or int64, got torch.float32"),
        (ints(0, 1), ints(0).bool(), TypeError, "col_indices must be int32 or int64, got torch.bool"),
        (
            ints(0, 1).short(),
            ints(0).short(),
            TypeError,
            "crow_indices must be int32 or int64, got torch.int16",
        ),
        (
            ints(0, 1),
            ints(0).int(),
            TypeError,
            ".* one dtype and device, got torch.int64 on cpu and torch.int32",
        ),
        (ints(0, 1), ints(0).to("meta"), TypeError, ".* one dtype and device, got .* on meta"),
        (ints(0, 1)[None], ints(0), ValueError, r"crow_indices must have one dimension, got shape \(1, 2\)"),
        (ints(0, 1), ints(0)[None], ValueError, r"col_indices must have one dimension, got shape \(1, 1\)"),
        (torch.tensor(0), ints(0), ValueError, r"crow_indices must have one dimension, got shape \(\)"),
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
    crow, col = ints(0, 9, 1, 9, 3, 9)[::2], ints(0, 9, 0, 9, 1, 9)[::2]
    P = ls.SparsityPattern(crow, col, (2, 2))
    assert P.crow_indices.tolist() == [0, 1, 3]
    assert P.col_indices.tolist() == [0, 0, 1]
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
    assert P == P
    assert P != Q
    assert {P: 1, Q: 2}[P] == 1
    assert copy.copy(P) is P
    assert copy.deepcopy(P) is P


def test_repr():
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
    P = Q
    A, B = pickle.loads(pickle.dumps((ls.CSR(normal((P.nnz,)), P), ls.CSR(normal((P.nnz,)), P))))
    assert A.pattern is B.pattern


def test_torch_save(tmp_path):
    A = ls.CSR.from_scipy(random(6, 4, 0.5))
    torch.save(A, tmp_path / "A.pt")
    B = torch.load(tmp_path / "A.pt", weights_only=False)
    assert torch.equal(A.to_dense(), B.to_dense())


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


def test_caches():
    P = pattern_of(random(30, 20, 0.3))
    assert P.cache_bytes() == 0
    _ = P.row_indices
    assert P.cache_bytes() == P.nnz * 8
    _ = P.T
    # The row of each entry; the transposed arrays and their permutation.
    assert P.cache_bytes() >= (P.nnz + 21 + 2 * P.nnz) * 8
    before = P.row_indices
    P.drop_caches()
    assert P.cache_bytes() == 0
    assert torch.equal(P.row_indices, before)


def test_cache_bytes_with_every_cache_there_is():
    P = pattern_of(random(30, 20, 0.3))
    A = ls.CSR(normal((P.nnz,)).requires_grad_(), P)
    (A @ torch.ones(20, dtype=torch.float64)).sum().backward()
    _ = A.T.diagonal(), P.T.row_blocks, P.to(dtype=torch.int32).T.row_indices, P.T.to(dtype=torch.int32).T
    assert P.cache_bytes() > 0
    assert P.T.cache_bytes() > 0


@pytest.mark.parametrize("which", ["P", "P.T"])
def test_transposing_twice_after_dropping_caches(which):
    P = pattern_of(random(6, 4, 0.5))
    (P if which == "P" else P.T).drop_caches()
    assert P.T.T is P
    A = ls.CSR(normal((P.nnz,)), P)
    assert torch.equal((A + A.T.T).values, 2 * A.values)


def test_patterns_are_freed():
    P = pattern_of(random(6, 4, 0.5), torch.int32)
    coordinates.cache_clear()
    P.T.T.row_blocks.sum()
    gone = weakref.ref(P)
    del P
    gc.collect()
    assert gone() is None


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


@pytest.mark.parametrize("shape", ["22", (2.9, 2.9)], ids=str)
def test_a_shape_that_is_none(shape):
    crow, col = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="shape must be"):
        ls.SparsityPattern(crow, col, shape)


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
