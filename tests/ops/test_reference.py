"""The tests' own tools: a comparer that passes everything would prove nothing."""

import pytest
import scipy.sparse
import torch
from ops.cases import BRANCHES, CASES
from reference import assert_within, banded, densify, grid, normal, pattern_of, power_law, random


@pytest.fixture
def product():
    S = random(20, 30, 0.3)
    S.data[:] = normal((S.nnz,)).numpy()
    x = normal((30,), seed=1)
    D = torch.from_numpy(S.toarray())
    return (D @ x).float(), D @ x, D.abs() @ x.abs(), (D != 0).double() @ torch.ones(30, dtype=torch.float64)


def test_accepts_what_rounding_explains(product):
    assert_within(*product)


@pytest.mark.parametrize("corruption", [1e-4, -1e-5, float("nan"), float("inf")])
def test_rejects_one_corrupted_entry(product, corruption):
    actual, *rest = product
    actual[7] += corruption
    with pytest.raises(AssertionError, match=r"1 of 20 entries are off; at \(7,\)"):
        assert_within(actual, *rest)


def test_rejects_another_precision_or_shape_and_anything_but_zero_in_an_empty_row(product):
    actual, *rest = product
    with pytest.raises(AssertionError, match="entries are off"):
        assert_within(actual.double(), *rest)
    with pytest.raises(AssertionError, match="shape"):
        assert_within(actual[:, None], *rest)
    zero = torch.zeros(1, dtype=torch.float64)
    with pytest.raises(AssertionError):
        assert_within(torch.tensor([1e-30], dtype=torch.float64), zero, zero, zero)


def test_densify_agrees_with_scipy():
    S = random(6, 9, 0.4)
    S.data[:] = normal((S.nnz,)).numpy()
    found = densify(pattern_of(S), torch.from_numpy(S.data))
    torch.testing.assert_close(found, torch.from_numpy(S.toarray()), rtol=0, atol=0)


def test_matrices_are_what_they_are_called():
    assert set(banded(20, 7).indptr[1:] - banded(20, 7).indptr[:-1]) == {7}
    for points, side, n in ((5, 6, 36), (9, 6, 36), (7, 4, 64)):
        S = grid(points, side)
        assert S.shape == (n, n)
        assert max(S.indptr[1:] - S.indptr[:-1]) == points
        assert abs(S - S.T).nnz == 0
    lengths = power_law(50).indptr[1:] - power_law(50).indptr[:-1]
    assert max(lengths) == 50
    assert min(lengths) == 1
    assert scipy.sparse.issparse(power_law(50))


def test_the_table_names_its_branches():
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.name for case in CASES} >= BRANCHES
