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
        assert structure != "many" or len(expected.starts) > 3, "chunks of the plan"
        arrays = (P.crow_indices, P.col_indices, Q.crow_indices, Q.col_indices)
        result = device_analysis.merge_patterns(*arrays, P.shape[1], index)
        assert equal(result.codes, expected.codes)
        assert equal(result.starts, expected.starts)
        if expected.pattern is not None:
            assert equal(result.crow, expected.pattern.crow_indices)
            assert equal(result.col, expected.pattern.col_indices)


@pytest.mark.few(2)
@both_indices
@pytest.mark.parametrize("masked", [None, "part", "none"])
@every_structure
def test_product(structure, masked, index):
    """The plan of A A^T: what kernels gather by it adds up to the product and its gradients."""
    S = STRUCTURES[structure]
    if S.nnz > 3000:
        S = S[:, :50]
    A, B = pattern_of(S, index), pattern_of(S.T, index)
    m = S.shape[0]
    mask = None
    if masked is not None:
        mask = pattern_of(random(m, m, 0.3 if masked == "part" else 0.0, seed=3), index)
    given = None if mask is None else (mask.crow_indices, mask.col_indices)
    first = device_analysis.first_products(A.col_indices, B.crow_indices)
    arrays = (A.crow_indices, A.col_indices, B.crow_indices, B.col_indices)
    plan = device_analysis.product_plan(*arrays, m, first, int(first[-1]), given)

    C = pattern_of(scipy.sparse.csr_array(_ones(A) @ _ones(B)), index) if mask is None else mask
    if mask is None:
        assert plan.crow is not None
        assert plan.col is not None
        assert torch.equal(plan.crow, C.crow_indices.long())
        assert torch.equal(plan.col, C.col_indices.long())
    a, b = torch.randn(A.nnz, dtype=torch.float64), torch.randn(B.nnz, dtype=torch.float64)
    g = torch.randn(C.nnz, dtype=torch.float64)
    c = ls.ops.spgemm(ls.CSR(a.requires_grad_(), A), ls.CSR(b.requires_grad_(), B), mask=mask).values
    c.backward(g)
    a, b, ga, gb = a.detach(), b.detach(), a.grad, b.grad
    assert len(plan.pair_starts) == C.nnz + 1
    p, q = plan.pairs.long().unbind(1)
    entries = torch.repeat_interleave(torch.arange(C.nnz), plan.pair_starts.diff())
    torch.testing.assert_close(torch.zeros_like(g).index_add(0, entries, a[p] * b[q]), c.detach())
    assert plan.incomplete == bool((plan.positions < 0).any())
    # Product f of entry p of A, with the entries of a row of B in their order.
    at, left, right = plan.positions.tolist(), torch.zeros_like(a), torch.zeros_like(b)
    for p in range(A.nnz):
        k = int(A.col_indices[p])
        for n in range(int(B.crow_indices[k + 1] - B.crow_indices[k])):
            t, q = at[int(plan.first[p]) + n], int(B.crow_indices[k]) + n
            if t >= 0:
                left[p] += g[t] * b[q]
                right[q] += a[p] * g[t]
    torch.testing.assert_close(left, ga)
    torch.testing.assert_close(right, gb)


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


def test_what_is_too_large_for_a_sort_there(monkeypatch):
    """Goes over the host, to the same results."""
    A, B = (ls.CSR.from_scipy(random(30, 20, 0.3, seed=s)) for s in (0, 1))
    expected = A.T.to_dense(), (A + B).to_dense()
    monkeypatch.setattr(device_analysis, "everywhere", True)
    monkeypatch.setattr(device_analysis, "MOST_SORTED", 10)
    for name in ("transpose", "merge_patterns"):
        monkeypatch.setattr(device_analysis, name, None)
    A.pattern.drop_caches()
    assert torch.equal(ls.CSR(A.values, A.pattern).T.to_dense(), expected[0])
    assert torch.equal((A + B).to_dense(), expected[1])


def test_a_product_with_more_places_than_numbers():
    """The pattern of C = A B is result on the host where row and column do not make a number of 62 bits."""
    A, B = (ls.CSR.from_scipy(random(9, 9, 0.3, seed=s)) for s in (0, 1))
    C = ls.ops.spgemm(A, B).pattern
    first = device_analysis.first_products(A.col_indices, B.crow_indices)
    crow, col = sparse_product._symbolic(A.pattern, B.pattern, first, int(first[-1]), False)
    assert equal(crow, C.crow_indices)
    assert equal(col, C.col_indices)


def _ones(P: ls.SparsityPattern) -> scipy.sparse.csr_array:
    arrays = (np.ones(P.nnz), P.col_indices.numpy(), P.crow_indices.numpy())
    return scipy.sparse.csr_array(arrays, shape=P.shape)
