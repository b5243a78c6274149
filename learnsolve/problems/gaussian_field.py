"""Gaussian random fields on structured grids by circulant embedding."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.problems._grid import check_dtype, grid_shape

# The maximum error of the covariance, as a fraction of the variance.
_TOLERANCE = 1e-10
_LARGEST = 2**24  # points of the torus: 256 MB in complex128


def gaussian_field(
    shape: int | Sequence[int],
    seed: int,
    *,
    length: float = 0.05,
    variance: float = 1.0,
    covariance: Literal["gaussian", "exponential"] = "gaussian",
    spacing: float | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    r"""A stationary Gaussian random field of mean zero on a grid.

    The covariance at distance r is :math:`v \exp(-(r / l)^2)` ("gaussian") or :math:`v \exp(-r / l)`
    ("exponential"), with the variance v and the length l.

    Parameters
    ----------
    shape : int, or tuple of 1, 2 or 3 ints: points along each axis
    seed : the same seed gives the same field; at least 0
    length : correlation length; :math:`\sqrt 2` l for the convention :math:`\exp(-r^2 / (2 l^2))`
    variance : not negative
    covariance : "gaussian" or "exponential"
    spacing : distance of neighboring points; default: 1 / n along an axis of n points, cells of the unit cube
    dtype : torch.float32 or torch.float64
    device : device of the field

    Returns
    -------
    Tensor of the given shape

    Raises
    ------
    ValueError
        if an argument is not as described above, or if length is so large, compared with the grid, that no
        torus of affordable size has a valid covariance.

    Notes
    -----
    Circulant embedding on a torus of at least twice the size, exact up to 1e-10 of the variance. Cost: O(N
    log N) for N points of the torus. The bits depend on the seed and on NumPy's random generator and FFT
    only.

    Source: C. R. Dietrich, G. N. Newsam, "Fast and exact simulation of stationary Gaussian processes through
    circulant embedding of the covariance matrix", SIAM J. Sci. Comput. 18(4), 1997.

    Examples
    --------
    >>> import learnsolve as ls
    >>> k = ls.problems.gaussian_field((64, 64), seed=0, variance=0.5)
    >>> kappa = k.exp()  # log-normal coefficients, for `diffusion`
    """
    sizes = grid_shape("gaussian_field", shape, (1, 2, 3))
    seed = checks.integer("gaussian_field", "seed", seed, 0)
    variance = checks.real("gaussian_field", "variance", variance, "finite and not negative")
    check_dtype("gaussian_field", dtype)
    field, _ = two_fields(np.random.default_rng(seed), sizes, length, covariance, spacing)
    return torch.from_numpy(math.sqrt(variance) * field).to(device, dtype)


@makes_plain_tensors  # torch.compile would trace NumPy, random numbers included
def two_fields(
    rng: np.random.Generator, shape: tuple[int, ...], length: Any, covariance: str, spacing: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Two independent fields of variance 1: the real and imaginary part of one transform."""
    checks.one_of("gaussian_field", "covariance", covariance, ("gaussian", "exponential"))
    rule = "positive and finite"
    length = checks.real("gaussian_field", "length", length, rule)
    if spacing is not None:
        spacing = checks.real("gaussian_field", "spacing", spacing, rule)
    steps = [spacing or 1 / n for n in shape]
    amplitudes = _amplitudes(shape, tuple(step / length for step in steps), covariance)
    noise = rng.standard_normal((2, *amplitudes.shape))
    field = np.fft.fftn(amplitudes * (noise[0] + 1j * noise[1]))
    field = field[tuple(slice(n) for n in shape)]
    return np.ascontiguousarray(field.real), np.ascontiguousarray(field.imag)


@lru_cache(maxsize=4)
def _amplitudes(shape: tuple[int, ...], steps: tuple[float, ...], covariance: str) -> np.ndarray:
    """Square roots of the eigenvalues of the covariance on a torus, divided by its number of points. `steps`
    are distances of neighbors in correlation lengths."""
    torus = [_fast_length(max(2 * (n - 1), 1)) for n in shape]
    while math.prod(torus) <= _LARGEST:
        lags = [np.minimum(np.arange(m), m - np.arange(m)) * h for m, h in zip(torus, steps, strict=True)]
        squares = sum(np.square(lag) for lag in np.meshgrid(*lags, indexing="ij", sparse=True))
        c = np.exp(-squares if covariance == "gaussian" else -np.sqrt(squares))
        eigenvalues = np.fft.fftn(c).real / c.size
        if -eigenvalues[eigenvalues < 0].sum() <= _TOLERANCE:
            amplitudes = np.sqrt(np.maximum(eigenvalues, 0))
            amplitudes.flags.writeable = False  # shared by all callers
            return amplitudes
        torus = [_fast_length(2 * m) if n > 1 else m for m, n in zip(torus, shape, strict=True)]
    raise ValueError(
        f"gaussian_field: the correlation length is too large for the grid {shape} (neighbors are "
        f"{max(steps):.3g} lengths apart): no torus of up to {_LARGEST} points has a covariance without "
        "negative eigenvalues; pass a shorter length or fewer points"
    )


def _fast_length(n: int) -> int:
    from scipy.fft import next_fast_len  # takes long to import

    return next_fast_len(n)  # type: ignore[return-value]
