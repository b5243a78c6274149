r"""The heavy ball in closed form: the mean energy of a white error after it, and its best parameters.

On an eigenvector of A with eigenvalue :math:`\lambda` the method with b = 0 is the recurrence

.. math:: P_{k+1} = (1 - \alpha \lambda + \beta) P_k - \beta P_{k-1}, \quad P_0 = P_{-1} = 1,

so for e ~ N(0, I) the mean of :math:`h_L(e, 0)^T A\, h_L(e, 0)` is
:math:`\mathrm{tr}(P_L(A)^T A\, P_L(A)) = \sum_i \lambda_i P_L(\lambda_i)^2`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR

EIGENVALUE_LIMIT = 2048  # unknowns, dense: 32 MiB and a second
GRID = 61  # points per parameter of the initial search grid


def eigenvalues(A: CSR) -> Tensor | None:
    """All eigenvalues, (..., n) in float64 on the CPU, ascending; None if the matrix is too large."""
    if A.shape[0] > EIGENVALUE_LIMIT:
        return None
    return torch.linalg.eigvalsh(A.detach().to(device="cpu", dtype=torch.float64).to_dense())


def expected_energy(spectrum: Tensor, alpha: Any, beta: Any, sweeps: int) -> Tensor:
    """Mean of e^T A e after the sweeps over e ~ N(0, I), shape (...), for eigenvalues (..., n).

    `alpha` and `beta` are floats or Tensors that broadcast with (...). Differentiable.

    Examples
    --------
    >>> import torch
    >>> float(expected_energy(torch.tensor([1.0, 3.0]), 0.25, 0.0, 2))  # 0.75^4 + 3 * 0.25^4
    0.328125
    """
    a, c = (torch.as_tensor(t, dtype=spectrum.dtype).unsqueeze(-1) for t in (alpha, beta))
    before = P = torch.ones_like(spectrum * a)
    for _ in range(sweeps):
        before, P = P, (1 - a * spectrum + c) * P - c * before
    return (spectrum * P.square()).sum(-1)


def convergence_factor(spectrum: Tensor, alpha: float, beta: float) -> float:
    r"""The asymptotic factor by which an error shrinks: the largest root of
    :math:`z^2 - (1 + \beta - \alpha \lambda) z + \beta`.

    Examples
    --------
    >>> import torch
    >>> convergence_factor(torch.tensor([1.0, 9.0]), 0.25, 0.25)  # the best one: the root of beta
    0.5
    """
    t = 1 + beta - alpha * spectrum
    inside = t.square() - 4 * beta
    real = (t.abs() + inside.clamp(min=0).sqrt()) / 2
    return float(torch.where(inside < 0, abs(beta) ** 0.5, real).max())


def best_parameters(spectrum: Tensor, sweeps: int, scale: Tensor | float = 1.0) -> tuple[float, float]:
    """(alpha, beta) with the smallest energy after the sweeps, relative to that before them.

    Parameters
    ----------
    spectrum : (n,), or (matrices, n) for a common pair: the mean of their relative energies
    scale : alpha is multiplied by this for each matrix; () or (matrices,)

    Returns
    -------
    The best point of a grid, improved by BFGS on the logarithm: the same in every call.

    Examples
    --------
    >>> import torch
    >>> [round(p, 2) for p in best_parameters(torch.tensor([1.0, 2.0, 9.0]), 5)]
    [0.27, 0.37]
    """
    spectrum = spectrum.double()
    scale = torch.as_tensor(scale, dtype=torch.float64)
    whole = spectrum.sum(-1)

    def energy(a: Tensor, c: Tensor) -> Tensor:
        relative = expected_energy(spectrum, a.unsqueeze(-1) * scale, c.unsqueeze(-1), sweeps) / whole
        return relative.reshape(*a.shape, -1).mean(-1)

    high = 4 / float((spectrum[..., -1] * scale).max())
    alphas = torch.linspace(0, high, GRID + 2, dtype=torch.float64)[1:-1]
    betas = torch.linspace(0, 1, GRID, dtype=torch.float64)
    values = torch.stack([energy(alphas, c.expand(GRID)) for c in betas])
    c, a = np.unravel_index(int(torch.nan_to_num(values, nan=torch.inf).argmin()), values.shape)
    start = torch.stack((alphas[a], betas[c])).numpy()

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        value = energy(t[0].reshape(1), t[1].reshape(1)).sum().clamp(min=1e-300).log()
        (gradient,) = torch.autograd.grad(value, t)
        return float(value.detach()), gradient.numpy()

    minimum = scipy.optimize.minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-10})
    better = np.isfinite(minimum.fun) and minimum.fun <= objective(start)[0]
    alpha, beta = (minimum.x if better else start).tolist()
    return alpha, beta
