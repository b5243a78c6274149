"""BlockJacobi: dense blocks, partitions of all kinds, plans, memory, errors."""

import numpy as np
import pytest
import torch
from preconditioners.cases import general, spd
from reference import normal

import learnsolve as ls
from learnsolve.preconditioners import BlockJacobi, direct


def expected(A, labels):
    D, labels = A.to_dense(), torch.as_tensor(labels)
    return torch.linalg.inv(torch.where(labels[:, None] == labels, D, 0))


def cover(A, size):
    return np.arange(A.shape[0]) // size


LABELS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("A", [spd(), general()])
def test_the_inverses_of_the_blocks(A, index):
    A = ls.CSR(A.values, A.pattern.to(dtype=index))
    for size in (1, 2, 3, 5, 7, 20, 99):
        M = BlockJacobi(A, size)
        torch.testing.assert_close(M.matrix.to_dense(), expected(A, cover(A, size)), rtol=1e-12, atol=1e-14)
        assert M.matrix.pattern.dtype == index
        ls.SparsityPattern(M.matrix.crow_indices, M.matrix.col_indices, A.shape)  # is a valid one
    for labels in (
        LABELS,
        np.array(LABELS, dtype=np.int8),
        torch.tensor(LABELS),
        [-x for x in LABELS],
        [7] * 20,
    ):
        M = BlockJacobi(A, blocks=labels)
        torch.testing.assert_close(M.matrix.to_dense(), expected(A, labels), rtol=1e-12, atol=1e-14)
        ls.SparsityPattern(M.matrix.crow_indices, M.matrix.col_indices, A.shape)
        r = normal((20, 2))
        assert torch.allclose(M(r), M.matrix @ r)
        assert torch.allclose(M.T(r), M.matrix.T @ r)


def test_blocks_of_one_unknown_are_jacobi_and_one_block_is_the_inverse():
    A, r = general(), normal((20,))
    assert torch.allclose(BlockJacobi(A, 1)(r), ls.preconditioners.Jacobi(A)(r))
    assert torch.allclose(A @ BlockJacobi(A, 20)(r), r)


def test_missing_entries_are_zeros_and_need_no_diagonal():
    A = ls.CSR.from_dense(torch.tensor([[0.0, 2.0, 9.0], [4.0, 0.0, 0.0], [0.0, 0.0, 5.0]]))
    found = BlockJacobi(A, 2).matrix.to_dense()
    assert torch.allclose(found, torch.tensor([[0.0, 0.25, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.2]]))


def test_nothing_at_all():
    nothing = ls.ops.eye(0, dtype=torch.float64)
    for M in (BlockJacobi(nothing, 3), BlockJacobi(nothing, blocks=[])):
        assert M(normal((0, 2))).shape == (0, 2)
    A = spd()
    M = BlockJacobi(A.with_values(A.values.expand(0, -1)), 3)
    assert M(normal((0, 20, 2))).shape == (0, 20, 2)


def test_planned_once_for_each_partition(monkeypatch):
    A, calls, real = spd(), [], direct._plan
    monkeypatch.setattr(direct, "_plan", lambda *a: calls.append(a) or real(*a))
    patterns = [
        [BlockJacobi(A * s, 4).matrix.pattern for s in (1.0, 2.0)],
        [BlockJacobi(A * s, blocks=LABELS).matrix.pattern for s in (1.0, 2.0)],
        [BlockJacobi(A, blocks=[10 * x for x in LABELS]).matrix.pattern],  # the same partition
        [BlockJacobi(A, 5).matrix.pattern],
    ]
    assert len(calls) == 3
    assert patterns[0][0] is patterns[0][1]
    assert patterns[1][0] is patterns[1][1] is patterns[2][0]


def test_memory_is_that_of_the_blocks():
    """Blocks of very different sizes: not the largest for all."""
    n = 3000
    A = ls.problems.poisson((n,))
    labels = np.concatenate((np.zeros(100), 1 + np.arange(n - 100))).astype(int)
    M = BlockJacobi(A, blocks=labels)
    assert M.matrix.nnz == 100**2 + n - 100
    assert A.pattern.cache_bytes() < 8 * (12 * M.matrix.nnz + 30 * n)


A = spd()
