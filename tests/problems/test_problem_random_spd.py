"""problems.random_spd: M M^T + alpha I, and the statistics of M."""

import math

import numpy as np
import pytest
import torch

import learnsolve as ls


def test_against_dense():
    """The same draws, the product written as an outer sum."""
    n, seed, density, alpha = 50, 3, 0.08, 0.25
    rng = np.random.default_rng(seed)
    M = np.zeros((n, n))
    places = np.unique(rng.integers(0, n * n, 200))
    M.flat[places] = rng.standard_normal(len(places))
    A = ls.problems.random_spd(n, seed, density=density, alpha=alpha)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)
    wanted = alpha * np.eye(n) + sum(np.outer(column, column) for column in M.T)
    np.testing.assert_allclose(A.to_scipy().toarray(), wanted, rtol=0, atol=1e-14)
    single = ls.problems.random_spd(n, seed, density=density, alpha=alpha, dtype=torch.float32)
    assert torch.equal(single.values, A.values.float())


def test_symmetric_positive_definite():
    A = ls.problems.random_spd(200, 0, density=0.02)
    D = A.to_dense()
    assert torch.equal(D, D.T)
    assert float(torch.linalg.eigvalsh(D)[0]) > 1e-3 - 1e-13
    assert not torch.equal(ls.problems.random_spd(200, 1, density=0.02).diagonal(), A.diagonal())


def test_statistics():
    """trace(A) - n alpha is the sum of squares of N(0, 1), one for each distinct position: chi square. Off
    the diagonal, an entry is there where two of the rows' columns agree."""
    n, density = 1000, 1e-2
    A = ls.problems.random_spd(n, 11, density=density)
    count = n * n * -math.expm1(-density)  # distinct positions among density n^2, up to +- sqrt(density) n
    squares = float(A.trace()) - n * 1e-3
    # Standard deviations: sqrt(2 count) of the squares, less than density n of the count.
    assert abs(squares - count) < 5 * (math.sqrt(2 * count) + density * n)
    share = (A.nnz - n) / (n * n - n)
    expected = -math.expm1(-n * (count / n**2) ** 2)
    assert abs(share / expected - 1) < 0.05  # standard deviation of the share: 1 %


@pytest.mark.slow
def test_published_density():
    A = ls.problems.random_spd(10_000, 0)
    assert 0.0098 < A.nnz / 10_000**2 < 0.0102


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"n": 0}, ValueError, "n must be at least 1"),
        ({"n": 2.0}, TypeError, "n must be an int"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"density": 0.0}, ValueError, "density must lie in 0 < density <= 1, got 0.0"),
        ({"density": 1.5}, ValueError, "density must lie in"),
        ({"alpha": 0.0}, ValueError, "alpha must be positive and finite, got 0.0"),
        ({"alpha": math.nan}, ValueError, "alpha must be positive"),
        ({"dtype": torch.float16}, TypeError, "dtype must be"),
    ],
)
def test_errors(options, error, words):
    with pytest.raises(error, match="random_spd: .*" + words):
        ls.problems.random_spd(**{"n": 10, "seed": 0, **options})
