"""Diffusion with a coefficient per cell, differentiable in the coefficient."""

import math

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.problems._coefficients import check_sign, grid_axes
from learnsolve.problems._grid import check_rows, neighbors, pattern_of_rows, sum_over_axes
from learnsolve.problems._plan import grid_plan
from learnsolve.problems.properties import MatrixProperties


def diffusion(kappa: Tensor, *, dimensions: int | None = None, rows: tuple[int, int] | None = None) -> CSR:
    r"""The operator :math:`-\nabla \cdot (\kappa \nabla u)` with one coefficient per cell of a uniform grid.

    Cell-centered finite volumes, u = 0 on the boundary:

    .. math:: (A u)_i = \sum_{j \sim i} \frac{2 \kappa_i \kappa_j}{\kappa_i + \kappa_j} (u_i - u_j)
              + \sum_{\text{boundary faces of } i} 2 \kappa_i u_i

    Parameters
    ----------
    kappa : Tensor, shape (..., nx, ny) or (..., nx, ny, nz), float32 or float64, positive; last axis fastest
    dimensions : 2 or 3, axes of the grid, default all axes of kappa; the axes before them make a batch
    rows : (lo, hi): make rows lo to hi - 1 only, a CSR of shape (hi - lo, n), for a process (`petsc.Matrix`);
        kappa is of the whole grid, without a batch

    Returns
    -------
    CSR, shape (n, n), n the number of cells; values of shape (..., nnz) in kappa's dtype, on its device.

    Raises
    ------
    ValueError
        if kappa has too few axes or no cells, or an entry that is not positive and finite (not checked in a
        batch of `torch.func.vmap`, on a CUDA device and under `torch.compile`).
    TypeError
        if kappa is not a float32 or float64 tensor.

    Notes
    -----
    Symmetric positive definite; :math:`h^2` times the operator, second-order accurate. Gradient: any order,
    forward mode, vmap; deterministic. Matrices of one grid share one `SparsityPattern`. Cost: O(n). Source:
    Eymard, Gallouet, Herbin, "Finite Volume Methods", North-Holland 2000, chapter 3.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> kappa = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    >>> ls.problems.diffusion(kappa).sum().backward()
    >>> kappa.grad
    tensor([[4., 4.],
            [4., 4.]], dtype=torch.float64)
    """
    d = _checked(kappa, dimensions)
    if rows is not None:
        return _rows(kappa, d, rows)
    diagonal = torch.zeros_like(kappa)
    couplings = []
    for axis in range(-d, 0):
        n = kappa.shape[axis]
        first, last = kappa.narrow(axis, 0, 1), kappa.narrow(axis, n - 1, 1)
        left, right = kappa.narrow(axis, 0, n - 1), kappa.narrow(axis, 1, n - 1)
        # Divide before multiplying: the square of kappa = 1e-20 (permeabilities) underflows in float32.
        between = left * (2 * (right / (left + right)))
        faces = torch.cat((2 * first, between, 2 * last), axis)
        diagonal = diagonal + faces.narrow(axis, 0, n) + faces.narrow(axis, 1, n)
        couplings.append(-between.flatten(-d))
    plan = grid_plan(tuple(kappa.shape[-d:]), kappa.device)
    return plan.matrix(diagonal.flatten(-d), torch.cat(couplings, -1))


def _rows(kappa: Tensor, d: int, rows: tuple[int, int]) -> CSR:
    """The rows lo to hi - 1, with the same arithmetic cell by cell, hence the same bits."""
    if kappa.dim() != d:
        raise ValueError(
            f"diffusion: rows are of one grid, but kappa has a batch, got shape {tuple(kappa.shape)}"
        )
    lo, hi = check_rows("diffusion", rows, kappa.numel())
    unit = np.eye(d, dtype=np.int64)
    offsets = np.concatenate((-unit, np.zeros((1, d), np.int64), unit[::-1]))  # ascending columns
    numbers, inside = neighbors(offsets, tuple(kappa.shape), lo, hi)
    there = torch.from_numpy(inside).to(kappa.device)
    beside = torch.from_numpy(np.where(inside, numbers, np.arange(lo, hi)[:, None])).to(kappa.device)
    cells = kappa.reshape(-1)[beside]  # (hi - lo, 2 d + 1)
    own, diagonal = cells[:, d], torch.zeros_like(cells[:, d])
    entries: list[Tensor] = [own] * (2 * d + 1)
    for axis in range(d):
        for k in (axis, 2 * d - axis):
            left, right = (cells[:, k], own) if k < d else (own, cells[:, k])
            between = left * (2 * (right / (left + right)))
            entries[k] = -between
            diagonal = diagonal + torch.where(there[:, k], between, 2 * own)
    entries[d] = diagonal
    pattern = pattern_of_rows(numbers, inside, kappa.numel(), kappa.device)
    return CSR(torch.stack(entries, 1)[there], pattern)


def _checked(kappa: Tensor, dimensions: int | None) -> int:
    d = grid_axes("diffusion", "kappa", kappa, dimensions, (2, 3))
    check_sign("diffusion", "kappa", kappa, zero=False)
    return d


def _eigenvalues(kappa: Tensor, *, dimensions: int | None = None) -> Tensor:
    d = _checked(kappa, dimensions)
    if kappa.dim() != d or not bool((kappa == kappa.flatten()[0]).all()):
        raise ValueError("diffusion: the eigenvalues are known for one grid of constant kappa only")
    # The boundary is half a cell outside both ends: eigenvectors sin((j + 1/2) k pi / n).
    lines = [
        4 * torch.sin(torch.arange(1, n + 1, dtype=torch.float64) * (math.pi / (2 * n))) ** 2
        for n in kappa.shape
    ]
    return float(kappa.flatten()[0]) * sum_over_axes(lines)


PROPERTIES = MatrixProperties(
    formula="-div(kappa grad u), zero on the boundary",
    symmetric=True,
    positive_definite=True,
    positive_semidefinite=True,
    source="Eymard, Gallouet, Herbin, Finite Volume Methods, 2000",
    eigenvalues=_eigenvalues,
)
