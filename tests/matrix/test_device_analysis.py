"""The analysis of CUDA patterns on their device, run on the CPU and compared with `learnsolve._analysis`."""

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import pattern_of, power_law, random, structures

import learnsolve as ls
from learnsolve.matrix import device_analysis
from learnsolve.ops.add import union_plan
from learnsolve.ops.core import sparse_product

STRUCTURES = {
    **structures(),
    "power law": power_law(60),
    "one giant row": scipy.sparse.csr_array(np.eye(40, 3000) + (np.arange(40) == 7)[:, None]),
    "all in the last row": scipy.sparse.csr_array((np.arange(50) == 49)[:, None] * np.ones((50, 4000))),
}
every_structure = pytest.mark.parametrize("structure", STRUCTURES)
both_indices = pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])


def equal(result: torch.Tensor, expected: torch.Tensor) -> bool:
    return result.dtype == expected.dtype and torch.equal(result, expected)


@both_indices
@every_structure
def test_one_pattern(structure, index):
    P = pattern_of(STRUCTURES[structure], index)
    crow, col, columns = P.crow_indices, P.col_indices, P.shape[1]
    assert device_analysis.is_valid(crow, col, columns)
    assert equal(device_analysis.row_indices(crow, P.nnz), P.row_indices)
    assert equal(device_analysis.diagonal_positions(crow, col, columns), P.diagonal_positions)
    expected = (P.T.crow_indices, P.T.col_indices, P.transpose_permutation)
    for a, b in zip(device_analysis.transpose(crow, col, columns), expected, strict=True):
        assert equal(a, b)


@both_indices
@every_structure
def test_every_fault_is_seen(structure, index):
    """One number of the arrays changed to any of some others: `is_valid` says what the constructor does."""
    P = pattern_of(STRUCTURES[structure], index)
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
@pytest.mark.parametrize("structure", [*STRUCTURES, "about a piece"])
def test_row_schedule(structure, index):
    """Row and first entry of every piece of a row but its first, in order."""
    lengths = [0, 1023, 1024, 1025, 0, 2047, 2048, 2049, 1, 3000]
    about = scipy.sparse.csr_array(np.arange(3000) < np.array(lengths)[:, None])
    P = pattern_of({**STRUCTURES, "about a piece": about}[structure], index)
    table = device_analysis.row_schedule(P.crow_indices, P.nnz)
    assert table.dtype == index
    crow, piece = P.crow_indices.tolist(), device_analysis.PIECE
    further = [[i, p] for i in range(P.shape[0]) for p in range(crow[i] + piece, crow[i + 1], piece)]
    assert table.tolist() == [*further, [P.shape[0], P.nnz]]
    assert structure not in ("about a piece", "one giant row", "all in the last row") or further


@both_indices
@pytest.mark.parametrize("structure", [*STRUCTURES, "many"])
def test_union(structure, index):
    S = {**STRUCTURES, "many": random(300, 300, 0.3)}[structure]
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


@pytest.mark.few(2)
@both_indices
@pytest.mark.parametrize("stretch", [1, 7, 100, 2**24])
@every_structure
def test_pattern_of_a_product_in_stretches(structure, stretch, index, monkeypatch):
    """Sorts of this number of products, also within rows, and the pattern of all products at once."""
    monkeypatch.setattr(device_analysis, "SORTED", stretch)
    S = STRUCTURES[structure]
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


@both_indices
@pytest.mark.parametrize("masked", [False, True])
@every_structure
def test_segments_of_a_product(structure, masked, index, monkeypatch):
    """The three derivatives of the sum of a_p b_q g_t over all products, in stretches."""
    monkeypatch.setattr(device_analysis, "SORTED", 300)
    S = STRUCTURES[structure][:, :50]
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
    crow, col = sparse_product._symbolic(A.pattern, B.pattern, False)
    assert equal(crow, C.crow_indices)
    assert equal(col, C.col_indices)


def _ones(P: ls.SparsityPattern) -> scipy.sparse.csr_array:
    arrays = (np.ones(P.nnz), P.col_indices.numpy(), P.crow_indices.numpy())
    return scipy.sparse.csr_array(arrays, shape=P.shape)
