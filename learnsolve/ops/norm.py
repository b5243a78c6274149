"""Norms of matrices, rows and columns."""

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core import complex
from learnsolve.ops.core.selection import used_columns
from learnsolve.ops.richardson import residual_norm
from learnsolve.ops.structure import sum as sum_


def norm(A: CSR, ord: float | str | None = None, dim: int | None = None) -> Tensor:
    r"""Norm of the matrix (`dim` None), of each column (0 or -2) or of each row (1 or -1).

    Parameters
    ----------
    A : CSR, float32 or float64, or complex; its values may have batch axes
    ord : for a matrix None or "fro" (Frobenius), 1 (largest column sum of magnitudes) or infinity (largest
        row sum); for rows and columns None or 2 (Euclidean), or 1 (sum of magnitudes)
    dim : as in `sum`

    Returns
    -------
    Tensor, shape (...), (..., n) or (..., m).

    Raises
    ------
    ValueError
        for other norms; the spectral norm, for example, needs an eigenvalue solver.

    Notes
    -----
    Euclidean norms sum unscaled squares: entries below 1e-154 in magnitude (1e-19 in float32) lose digits,
    entries below 1e-161 (1e-22) count as zeros, with a zero gradient, and a norm above 1.3e154 (1.8e19) is
    infinite. If that matters, scale the matrix: ``(A * s).norm() / s``.

    Gradient of a Euclidean norm: :math:`\bar a = \bar\nu\, a / \nu`, and zero (with all further derivatives)
    where the norm is zero. The gradient of a largest sum goes to the largest, split equally among ties.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((3,))
    >>> ls.ops.norm(A), ls.ops.norm(A, 1, dim=1)
    (tensor(4., dtype=torch.float64), tensor([3., 4., 3.], dtype=torch.float64))
    """
    checks.matrix("norm", "A", A)
    checks.dtype("norm", "A.values", A.values, or_complex=True)
    checks.one_of("norm", "dim", dim, (None, 0, 1, -1, -2))
    if dim is None:
        checks.one_of("norm", "ord", ord, (None, "fro", 1, float("inf")))
        if ord in (None, "fro"):
            return residual_norm(A.values, -1)
        A = CSR(A.values.abs(), used_columns(A.pattern))  # an empty column is never the largest
        sums = sum_(A, 0 if ord == 1 else 1)
        return sums.amax(-1) if sums.shape[-1] else sums.sum(-1)
    checks.one_of("norm", "ord", ord, (None, 2, 1))
    if ord == 1:
        return sum_(A.abs(), dim)
    values = A.values
    squares = complex.parts(values).square().sum(-1) if values.is_complex() else values * values
    square = sum_(A.with_values(squares), dim)
    zero = square == 0
    return torch.where(zero, 0, torch.where(zero, 1, square).sqrt())
