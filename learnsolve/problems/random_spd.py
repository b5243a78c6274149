"""Random sparse symmetric positive definite matrices."""

import numpy as np
import scipy.sparse
import torch

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.problems._grid import check_dtype
from learnsolve.problems.properties import MatrixProperties


def random_spd(
    n: int,
    seed: int,
    *,
    density: float = 1e-3,
    alpha: float = 1e-3,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> CSR:
    r""":math:`A = M M^T + \alpha I` with normally distributed entries of M at uniformly random positions.

    Parameters
    ----------
    n : rows
    seed : the same seed gives the same matrix; at least 0
    density : M has an entry N(0, 1) at each distinct one of :math:`\lfloor \text{density}\; n^2 \rfloor`
        positions drawn independently
    alpha : shift, positive
    dtype : torch.float32 or torch.float64
    device : device of the matrix

    Returns
    -------
    CSR, shape (n, n); each seed has its own pattern.

    Raises
    ------
    ValueError
        if n or seed is too small, density not in 0 < density <= 1, or alpha not positive and finite.

    Notes
    -----
    Symmetric bit for bit, positive definite: all eigenvalues are at least alpha, up to rounding, and a row of
    M without an entry gives the eigenvalue alpha. Distributed as NeuralIF's training data; the random values
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
    n = checks.integer("random_spd", "n", n, 1)
    seed = checks.integer("random_spd", "seed", seed, 0)
    density = checks.real("random_spd", "density", density)
    if not 0 < density <= 1:
        raise ValueError(f"random_spd: density must lie in 0 < density <= 1, got {density}")
    alpha = checks.real("random_spd", "alpha", alpha, "positive and finite")
    check_dtype("random_spd", dtype)
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


PROPERTIES = MatrixProperties(
    formula="M M^T + alpha I, M random and sparse",
    symmetric=True,
    positive_definite=True,
    positive_semidefinite=True,
    source="Häusner, Öktem, Sjölund, TMLR 2024",
)
