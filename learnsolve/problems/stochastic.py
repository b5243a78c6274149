"""Random sparse symmetric positive definite matrices, and Gaussian random fields by circulant embedding."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve.arguments import Count, Index, NotNegative, Positive, within
from learnsolve.matrix.cache import makes_plain_tensors
from learnsolve.matrix.checks import RealDtype
from learnsolve.matrix.csr import CSR
from learnsolve.problems._grid import MatrixProperties, grid_sizes, sizes


def random_spd(
    n: Count,
    seed: Index,
    *,
    density: Annotated[float, within("0 < {} <= 1", lambda density: 0 < density <= 1, 0.0)] = 1e-3,
    alpha: Positive = 1e-3,
    dtype: RealDtype = torch.float64,
    device: torch.device | str | None = None,
) -> CSR:
    r""":math:`A = M M^T + \alpha I` with normally distributed entries of M at uniformly random positions.

    Parameters
    ----------
    n : rows
    seed : at least 0. The same seed yields the same matrix
    density : M has an entry N(0, 1) at each distinct one of :math:`\lfloor \text{density}\; n^2 \rfloor`
        positions drawn independently
    alpha : shift, positive
    dtype : torch.float32 or torch.float64
    device : device of the matrix

    Returns
    -------
    CSR, shape (n, n). Each seed has its own pattern.

    Notes
    -----
    Symmetric bit for bit, positive definite: all eigenvalues are at least alpha, up to rounding, and a row of
    M without an entry yields the eigenvalue alpha. Distributed as NeuralIF's training data. The random values
    differ. With the default parameters and n = 10,000 a row of M has 10 entries, and A has 10^6, 1 % of all.
    In float32 the product is computed in float64 and rounded.

    References
    ----------
    P. Häusner, O. Öktem, J. Sjölund, "Neural incomplete factorization: learning preconditioners for the
    conjugate gradient method", TMLR 2024.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.random_spd(1000, seed=0)
    >>> A.shape, bool((A.diagonal() >= 1e-3).all())
    ((1000, 1000), True)
    """
    return CSR.from_scipy(_draw(n, seed, density, alpha), dtype=dtype, device=device)


@makes_plain_tensors
def _draw(n: int, seed: int, density: float, alpha: float) -> scipy.sparse.csr_array:
    rng = np.random.default_rng(seed)
    places = np.unique(rng.integers(0, n * n, int(density * n * n)))
    crow = np.searchsorted(places, np.arange(n + 1) * n)
    entries = rng.standard_normal(len(places))
    # Columns are sorted in M: entries (i, j) and (j, i) of M M^T add the same products in the same order.
    M = scipy.sparse.csr_array((entries, places % n, crow), shape=(n, n))
    return scipy.sparse.csr_array(M @ M.T + alpha * scipy.sparse.eye_array(n))


# The maximum error of the covariance, as a fraction of the variance.
_TOLERANCE = 1e-10
_LARGEST = 2**24  # points of the torus: 256 MB in complex128


def gaussian_field(
    shape: Annotated[int | Sequence[int], sizes(1, 2, 3)],
    seed: Index,
    *,
    length: Positive = 0.05,
    variance: NotNegative = 1.0,
    covariance: Literal["gaussian", "exponential"] = "gaussian",
    spacing: Positive | None = None,
    dtype: RealDtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    r"""A stationary Gaussian random field of mean zero on a grid.

    The covariance at distance r is :math:`v \exp(-(r / l)^2)` ("gaussian") or :math:`v \exp(-r / l)`
    ("exponential"), with the variance v and the length l.

    Parameters
    ----------
    shape : int, or tuple of 1, 2 or 3 ints: points along each axis
    seed : at least 0. The same seed yields the same field
    length : correlation length; :math:`\sqrt 2` l for the convention :math:`\exp(-r^2 / (2 l^2))`
    variance : not negative
    covariance : "gaussian" or "exponential"
    spacing : distance of neighboring points. Default: 1 / n along an axis of n points, cells of the unit cube
    dtype : torch.float32 or torch.float64
    device : device of the field

    Returns
    -------
    Tensor of the given shape

    Raises
    ------
    ValueError
        if length is so large, compared with the grid, that no torus of affordable size has a valid
        covariance.

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
    generator = np.random.default_rng(seed)
    field, _ = two_fields(generator, grid_sizes(shape), length, covariance, spacing)
    return torch.from_numpy(math.sqrt(variance) * field).to(device, dtype)


@makes_plain_tensors  # torch.compile would trace NumPy, random numbers included
def two_fields(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    length: float,
    covariance: str,
    spacing: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Two independent fields of variance 1: the real and imaginary part of one transform."""
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
        "negative eigenvalues. Pass a shorter length or fewer points"
    )


def _fast_length(n: int) -> int:
    from scipy.fft import next_fast_len  # takes long to import

    return next_fast_len(n)  # type: ignore[return-value]


PROPERTIES = {
    "random_spd": MatrixProperties(
        formula="M M^T + alpha I, M random and sparse",
        symmetric=True,
        positive_definite=True,
        positive_semidefinite=True,
        source="Häusner, Öktem, Sjölund, TMLR 2024",
    ),
}
