"""problems.gaussian_field: the covariance, exactly and over many seeds; the same bits everywhere."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from learnsolve.problems import gaussian_field
from learnsolve.problems.stochastic import _amplitudes, two_fields

COVARIANCES = {"gaussian": lambda r: np.exp(-(r**2)), "exponential": lambda r: np.exp(-r)}


def distances(shape, spacing):
    axes = [np.arange(n) * h for n, h in zip(shape, spacing, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(shape))
    return np.linalg.norm(points[:, None] - points, axis=2)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize(("shape", "length"), [((40,), 0.1), ((9, 12), 0.2), ((6, 6), 0.6), ((4, 5, 3), 0.3)])
def test_the_covariance_is_exact(shape, length, covariance):
    """The field is linear in white noise. Its covariance, from the response to each noise variable, is the
    stated one in every entry."""
    steps = tuple(1 / n / length for n in shape)
    amplitudes = _amplitudes(shape, steps, covariance)
    torus = amplitudes.shape
    size = math.prod(torus)
    responses = np.fft.fftn(amplitudes * np.eye(size).reshape(size, *torus), axes=range(1, len(shape) + 1))[
        (slice(None), *(slice(n) for n in shape))
    ].reshape(size, -1)
    # The real part of the transform of white noise a + i b is sum_k a_k Re(response) - b_k Im(response).
    found = responses.real.T @ responses.real + responses.imag.T @ responses.imag
    wanted = COVARIANCES[covariance](distances(shape, steps))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-10)
    # The two fields of a transform are independent: Cov(Re, Im) = 0.
    both = responses.real.T @ responses.imag
    np.testing.assert_allclose(both, both.T, rtol=0, atol=2e-10)


def test_statistics_over_seeds():
    """Mean, variance and covariances at a lag, within four standard deviations of their estimates, which
    follow from the covariance (Isserlis): Var(u_p u_q, u_r u_s) = c_pr c_qs + c_ps c_qr."""
    shape, length, variance, seeds = (12, 12), 0.15, 0.7, 400
    fields = np.stack(
        [gaussian_field(shape, s, length=length, variance=variance).numpy() for s in range(seeds)]
    )
    c = variance * COVARIANCES["gaussian"](distances(shape, [1 / 12 / length] * 2))
    u = fields.reshape(seeds, -1)
    assert abs(u.mean()) < 4 * math.sqrt(c.mean() / seeds)
    number = np.arange(144).reshape(shape)
    for dx, dy in [(0, 0), (1, 0), (0, 2), (2, 1)]:
        p, q = number[: 12 - dx, : 12 - dy].ravel(), number[dx:, dy:].ravel()
        found = (u[:, p] * u[:, q]).mean()
        deviation = math.sqrt(
            (c[np.ix_(p, p)] * c[np.ix_(q, q)] + c[np.ix_(p, q)] * c[np.ix_(q, p)]).mean() / seeds
        )
        assert abs(found - c[p[0], q[0]]) < 4 * deviation
        assert deviation < 0.05 * variance  # the test can fail


def test_the_two_fields_are_independent():
    pairs = [two_fields(np.random.default_rng(s), (8, 8), 0.2, "gaussian") for s in range(400)]
    c = COVARIANCES["gaussian"](distances((8, 8), [1 / 8 / 0.2] * 2))
    product = np.mean([(a * b).mean() for a, b in pairs])
    assert abs(product) < 4 * math.sqrt((c * c).mean() / 400)


def test_the_range_of_the_published_fields():
    """PreCorrector's fields on 65 x 65 cells, variance 0.5: contrasts exp(max - min) of 103 on average
    after fields outside 46 to 199 are drawn again. parafields gives exp(4.69) as the geometric mean of all,
    with a deviation of 0.48 of the logarithm."""
    ranges = [np.ptp(gaussian_field((65, 65), s, variance=0.5).numpy()) for s in range(60)]
    assert abs(np.mean(ranges) - 4.69) < 4 * 0.48 * math.sqrt(2 / 60)
    accepted = [r for r in np.exp(ranges) if 46 <= r <= 199]
    assert abs(np.mean(accepted) - 103) < 4 * 40 / math.sqrt(len(accepted))


def test_scale_and_spacing():
    one = gaussian_field((6, 7), 5)
    assert torch.equal(gaussian_field((6, 7), 5, variance=4.0), 2 * one)
    assert torch.equal(gaussian_field((6, 7), 5, variance=0.0), 0 * one)
    wide = gaussian_field((8, 8), 5, length=1.0, spacing=0.5)
    assert torch.equal(wide, gaussian_field((8, 8), 5, length=2.0, spacing=1.0))
    assert torch.equal(gaussian_field((8, 8), 5), gaussian_field((8, 8), 5, spacing=1 / 8))
    assert gaussian_field(5, 0).shape == (5,)
    single = gaussian_field((6, 7), 5, dtype=torch.float32)
    assert torch.equal(single, one.float())


def test_the_same_in_threads_and_after_other_random_numbers():
    wanted = [gaussian_field((20, 20), s) for s in range(16)]
    np.random.standard_normal(3)  # noqa: NPY002
    torch.randn(3)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda s: gaussian_field((20, 20), s), range(16)))
    assert all(map(torch.equal, found, wanted))
    assert not torch.equal(wanted[0], wanted[1])


@pytest.mark.slow
def test_too_long_a_correlation():
    with pytest.raises(ValueError, match="correlation length is too large for the grid"):
        gaussian_field((16, 16), 0, length=30.0)
