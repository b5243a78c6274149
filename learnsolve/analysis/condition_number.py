"""The condition number of A, or of M A."""

from __future__ import annotations

from typing import Any

import torch

from learnsolve.analysis._estimate import Estimate, warn
from learnsolve.analysis.extreme_eigenvalues import _extreme


def condition_number(
    A: Any,
    M: Any = None,
    *,
    steps: int = 200,
    rtol: float | None = None,
    n: int | None = None,
    dtype: torch.dtype | None = None,
) -> Estimate:
    r"""The condition number of M A, :math:`\kappa = \lambda_{\max} / \lambda_{\min}`, A and M symmetric
    positive definite.

    In each iteration, conjugate gradients with M reduce the error by
    :math:`(\sqrt\kappa - 1) / (\sqrt\kappa + 1)` or less.

    Parameters
    ----------
    A, M, steps, rtol, n, dtype : as for `extreme_eigenvalues`

    Returns
    -------
    Estimate, with shape () or the batch shape; its `error` follows from the eigenvalue errors:
        :math:`(\lambda_{\max} + e_2) / (\lambda_{\min} - e_1) - \kappa`. For a matrix that is singular up to
        rounding the value is infinite and has no gradient.

    Raises
    ------
    ValueError
        if an eigenvalue is negative, or as for `extreme_eigenvalues`, including its warnings; also warns if
        the matrix is singular up to the error.

    Notes
    -----
    Gradient and cost are as for `extreme_eigenvalues`. As a loss, its logarithm is better scaled.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.anisotropic((10, 10), 0.1, 0.3)
    >>> weight = torch.ones(100, dtype=torch.float64, requires_grad=True)
    >>> kappa = ls.analysis.condition_number(A, lambda r: weight.unsqueeze(-1) * r)
    >>> kappa.value.detach(), kappa.converged
    (tensor(50.5109, dtype=torch.float64), True)
    >>> kappa.value.log().backward()  # descend to learn a diagonal preconditioner
    >>> weight.grad.shape
    torch.Size([100])
    """
    name = "condition_number"
    extremes = _extreme(name, A, M, steps, rtol, n, dtype)
    low, high = extremes.smallest.detach(), extremes.largest.detach()
    off_low, off_high = extremes.errors.unbind(-1)
    if (low < -off_low).any():
        i = int((low < -off_low).reshape(-1).nonzero()[0])
        raise ValueError(
            f"{name}: A must be positive definite, got an eigenvalue {float(low.reshape(-1)[i]):.4g} "
            f"+- {float(off_low.reshape(-1)[i]):.2g}{_which(low, i)}; see extreme_eigenvalues"
        )
    error = (high + off_high) / (low - off_low) - high / low
    singular = low <= off_low
    if not singular.any():
        return Estimate(extremes.largest / extremes.smallest, error, extremes.converged)
    i = int(singular.reshape(-1).nonzero()[0])
    warn(
        name,
        f"the smallest eigenvalue, {float(low.reshape(-1)[i]):.3g} +- {float(off_low.reshape(-1)[i]):.2g}"
        f"{_which(low, i)}, may be zero: A is singular, or more steps are needed; an infinite value has no "
        "gradient",
    )
    infinite = torch.full_like(low, torch.inf)
    lost = singular if extremes.converged else singular & (low <= 0)
    if lost.all():
        return Estimate(infinite, infinite, False)
    # Divided by one where the value is replaced: no infinity reaches the gradient.
    value = torch.where(lost, infinite, extremes.largest / torch.where(lost, 1, extremes.smallest))
    return Estimate(value, torch.where(singular, infinite, error), False)


def _which(low: torch.Tensor, i: int) -> str:
    return f" of matrix {i} of the batch" if low.dim() else ""
