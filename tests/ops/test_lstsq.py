"""Least squares by a direct solve."""

import numpy as np
import pytest
import torch
from reference import normal

import learnsolve as ls


@pytest.mark.parametrize("damp", [0.0, 0.7])
def test_least_squares(damp):
    """Against LAPACK on [W^1/2 A; damp I], also where A is badly scaled; and what has no solution."""
    D, b, w = normal((9, 4)), normal((9, 2), seed=1), normal((9,), seed=2).exp()
    for scale in (1.0, 1e6, 1e-6, 1e150, 1e-150):
        A = ls.CSR.from_dense(scale * D)
        stacked = torch.cat((w.sqrt()[:, None] * A.to_dense(), damp * scale * torch.eye(4, dtype=D.dtype)))
        rhs = torch.cat((w.sqrt()[:, None] * b, torch.zeros(4, 2, dtype=D.dtype)))
        wanted = torch.linalg.lstsq(stacked, rhs).solution
        for found in (
            ls.ops.lstsq(A, b, damp=damp * scale, weight=w),
            torch.stack([ls.ops.lstsq(A, c, damp=damp * scale, weight=w) for c in b.T], 1),
        ):
            torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12 / scale)
    tall = ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]))
    for bad, options, message in (
        (tall, {}, "the columns of A depend on each other .*; give damp, .* use solvers.lsqr"),
        (tall.T, {}, "A is 2 x 3, so that its columns depend on each other"),
        (tall, {"damp": -1.0}, "damp must be finite and at least 0, got -1.0"),
        (tall, {"weight": torch.tensor([1.0, 0.0, 1.0])}, "weight must be positive, got 0.0 in row 1"),
        (tall, {"weight": torch.ones(2)}, r"weight must have shape \(m,\) = \(3,\), got \(2,\)"),
    ):
        with pytest.raises(ValueError, match=f"^lstsq: {message}"):
            ls.ops.lstsq(bad, torch.ones(bad.shape[0]), **options)


def dependent(m: int, n: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Of rank below n: random numbers, small integers, or sparse with one column the sum of two."""
    rng = np.random.default_rng(seed)
    r = int(rng.integers(1, n))
    if seed % 3 == 0:
        D = rng.standard_normal((m, r)) @ rng.standard_normal((r, n))
    elif seed % 3 == 1:
        D = rng.integers(-2, 3, (m, r)) @ rng.integers(-2, 3, (r, n)) + 0.0
    else:
        D = rng.standard_normal((m, n)) * (rng.random((m, n)) < 0.5)
        D[:, -1] = 2 * D[:, 0] + D[:, -2]
    return torch.tensor(D * 10 ** rng.uniform(-4, 4, n) ** (seed % 2), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_least_squares_refuse_dependent_columns(dtype):
    """Whose last pivot is rounding, and with a damping that is; in batches and under transformations too."""
    message = "lstsq: the columns of .* depend on each other"
    for seed in range(30):
        m = 3 + seed % 17
        D = dependent(m, max(2, m - seed % 5), seed, dtype)
        A, b = ls.CSR.from_dense(D), normal((m,), seed=seed).to(dtype)
        with pytest.raises(ValueError, match=message):
            ls.ops.lstsq(A, b)
    f = lambda v: ls.ops.lstsq(A.with_values(v), b, damp=1e-16)  # noqa: E731
    for call in (
        lambda: f(A.values),
        lambda: f(torch.stack((A.values, A.values))),
        lambda: torch.vmap(f)(torch.stack((A.values, A.values))),
        lambda: torch.func.jacrev(f)(A.values),
        lambda: torch.func.jvp(f, (A.values,), (A.values,)),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("decades", [3, 5])
def test_least_squares_with_columns_of_any_size(decades):
    """Of a condition number below 1 / sqrt(eps), whatever the units of the unknowns."""
    for seed in range(8):
        U, V = (torch.linalg.qr(normal((k, 6), seed=seed + k))[0] for k in (9, 6))
        D = (U * torch.logspace(0, -decades, 6).double()) @ V.mT
        scale, x = torch.logspace(-8, 8, 6).double(), normal((6,), seed=seed)
        found = ls.ops.lstsq(ls.CSR.from_dense(D * scale), D @ x)
        torch.testing.assert_close(found * scale, x, rtol=1e-4, atol=1e-4)
