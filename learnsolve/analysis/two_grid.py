"""Two-grid analysis of block-periodic problems by block Fourier transforms.

Source: D. Greenfeld, M. Galun, R. Basri, I. Yavneh, R. Kimmel, "Learning to optimize multigrid PDE solvers",
ICML 2019, theorem 1; Trottenberg, Oosterlee, Schueller, "Multigrid" (2001), chapter 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from learnsolve.arguments import Index, ints
from learnsolve.matrix import checks
from learnsolve.matrix.checks import RealMatrix, per_row
from learnsolve.matrix.csr import CSR
from learnsolve.ops.arithmetic import plain_values

NAME = "two_grid_symbols"
Sizes = Annotated[Sequence[int], ints(2)]
_STEPS = 2  # each from a constant: derivatives up to the third order


class _Grid(NamedTuple):
    """The number of points on each axis, of points of a block, and of blocks."""

    points: tuple[int, ...]
    period: tuple[int, ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(n // b for n, b in zip(self.points, self.period, strict=True))

    @property
    def coarse(self) -> _Grid:
        return _Grid(tuple(n // 2 for n in self.points), tuple(b // 2 for b in self.period))

    def positions(self, index: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The index of points within their block, and the index of the block on each axis."""
        local, blocks, step = torch.zeros_like(index), [], 1
        for n, b in zip(reversed(self.points), reversed(self.period), strict=True):
            at, index = index % n, index // n
            local = local + step * (at % b)
            blocks.insert(0, at // b)
            step *= b
        return local, blocks


def two_grid_symbols(
    A: RealMatrix,
    P: RealMatrix,
    *,
    grid: Sizes,
    period: Sizes,
    weight: Annotated[float | Tensor, per_row("A")] = 2 / 3,
    presweeps: Index = 1,
    postsweeps: Index = 1,
    R: RealMatrix | None = None,
    without_constants: bool = False,
) -> Tensor:
    r"""The Fourier transform of a two-grid cycle on a periodic grid whose problem repeats in blocks:

    .. math::
        \hat E(\theta) = \hat S^{\nu_2} (I - \hat P (\hat R \hat A \hat P)^{-1} \hat R \hat A) \hat S^{\nu_1},
        \quad \hat S = I - w \hat D^{-1} \hat A, \quad
        \hat A(\theta)_{ij} = \sum_\delta a_{(0, i), (\delta, j)} e^{\mathrm{i} \theta \cdot \delta}

    with points i, j of a block, blocks at a distance :math:`\delta`, :math:`\theta_a = 2 \pi k / c_a`.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), float32 or float64, on a periodic grid
    P, R : CSR, (n, n') and (n', n), default R = :math:`P^T`; half as many points on each axis
    grid, period : points per axis, numbered as in `problems.poisson`, and points per block, even divisors of
        these
    weight : of damped Jacobi: float, or Tensor of shape () or (..., n)
    presweeps, postsweeps : of the smoother
    without_constants : exclude constant errors, for a singular A. P must interpolate constants exactly

    Returns
    -------
    Tensor, complex, shape (..., c_1 c_2 ..., m, m), m points in a block. Together they have E's eigenvalues.

    Raises
    ------
    ValueError, TypeError
        if shapes, dtypes or devices do not match, values are not periodic, or a coarse block is singular.

    Notes
    -----
    Gradient: exact, to any order, in the values and the weight. An entry's gradient is spread evenly over its
    repetitions. Cost: O(c m^3) flops, c blocks. Losses: `two_grid_factor`, or the mean squares of entries.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.dataset("q1_diffusion", "train", 1, n=16, period=8, shift=0.1)[0].A
    >>> (P,) = ls.preconditioners.Hierarchy.linear((16, 16), periodic=True, levels=2).prolongations
    >>> ls.analysis.two_grid_symbols(A, P, grid=(16, 16), period=(8, 8)).shape
    torch.Size([4, 64, 64])
    """
    fine = _check_grids(A, P, R, grid, period)
    A_hat, P_hat = _symbols("A", A, fine, fine), _symbols("P", P, fine, fine.coarse)
    R_hat = P_hat.mH if R is None else _symbols("R", R, fine.coarse, fine)
    coarse = R_hat @ A_hat @ P_hat
    if without_constants:
        coarse = _regular(coarse)
    inverse, failed = torch.linalg.inv_ex(coarse)
    size = plain_values(coarse).abs().sum(-1).amax(-1) * plain_values(inverse).abs().sum(-1).amax(-1)
    if bool(plain_values(failed).any()) or not bool((16 * torch.finfo(A.dtype).eps * size < 1).all()):
        raise ValueError(
            f"{NAME}: a coarse block is singular up to rounding, like the block of constants for an A "
            "without a shift. Pass without_constants=True"
        )
    one = torch.eye(A_hat.shape[-1], dtype=A_hat.dtype, device=A.device)
    S = one - _jacobi_scaling(A, weight, fine) * A_hat
    E = one - P_hat @ inverse @ R_hat @ A_hat
    for _ in range(presweeps):
        E = E @ S
    for _ in range(postsweeps):
        E = S @ E
    return _without_constants(E) if without_constants else E


def two_grid_factor(
    A: RealMatrix,
    P: RealMatrix,
    *,
    grid: Sizes,
    period: Sizes,
    weight: Annotated[float | Tensor, per_row("A")] = 2 / 3,
    presweeps: Index = 1,
    postsweeps: Index = 1,
    R: RealMatrix | None = None,
    without_constants: bool = False,
) -> Tensor:
    r"""The spectral radius of a two-grid cycle, the factor by which it reduces errors asymptotically, for a
    periodic problem that repeats in blocks.

    Parameters
    ----------
    A, P, grid, period, weight, presweeps, postsweeps, R, without_constants : see `two_grid_symbols`

    Returns
    -------
    Tensor, shape (...), the largest modulus of an eigenvalue of all blocks.

    Raises
    ------
    ValueError, TypeError
        see `two_grid_symbols`.

    Notes
    -----
    Gradient: exact, up to third derivatives, if the largest modulus is attained once, otherwise as for
    `torch.linalg.eigvals`.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.dataset("q1_diffusion", "train", 1, n=16, period=8)[0].A
    >>> (P,) = ls.preconditioners.Hierarchy.linear((16, 16), periodic=True, levels=2).prolongations
    >>> options = {"grid": (16, 16), "period": (8, 8), "without_constants": True}
    >>> float(ls.analysis.two_grid_factor(A, P, **options)) < 1
    True
    """
    blocks = two_grid_symbols(
        A,
        P,
        grid=grid,
        period=period,
        weight=weight,
        presweeps=presweeps,
        postsweeps=postsweeps,
        R=R,
        without_constants=without_constants,
    )
    # LAPACK ends the process at a complex NaN.
    finite = torch.isfinite(blocks.detach()).all(-1, keepdim=True).all(-2, keepdim=True)
    radii = _radius(torch.where(finite, blocks, 0))
    return torch.where(finite[..., 0, 0], radii, torch.nan).amax(-1)


def _radius(blocks: Tensor) -> Tensor:
    """The largest modulus of an eigenvalue of each block, (..., m, m). Its derivatives are those of Newton's
    steps from the solution: the second ones of `torch.linalg.eigvals` divide by the gaps between equal
    eigenvalues, and 0 is one many times. For a largest one that is attained twice they are torch's."""
    found = torch.linalg.eig(blocks.detach())
    at = found.eigenvalues.abs().argmax(-1, keepdim=True)
    value = found.eigenvalues.gather(-1, at)
    near = (found.eigenvalues - value).abs() <= torch.finfo(blocks.dtype).eps ** 0.5 * value.abs()
    twice = (near.sum(-1) > 1).unsqueeze(-1).unsqueeze(-1)
    distinct = torch.arange(1, blocks.shape[-1] + 1, device=blocks.device).diag().to(blocks)
    of_torch = torch.linalg.eigvals(torch.where(twice, blocks, distinct)).abs().amax(-1)
    x = found.eigenvectors.gather(-1, at.unsqueeze(-2).expand(*at.shape[:-1], blocks.shape[-1], 1))
    x = torch.where(twice, distinct[:, -1:] / blocks.shape[-1], x)
    value = torch.where(twice[..., 0], blocks.shape[-1], value)
    blocks, start = torch.where(twice, distinct, blocks), x.mH
    for _ in range(_STEPS):
        residual = torch.cat((blocks @ x - value.unsqueeze(-1) * x, start @ x - 1), -2)
        above = torch.cat(
            (blocks - value.unsqueeze(-1) * torch.ones_like(blocks[..., 0]).diag_embed(), -x), -1
        )
        below = torch.cat((start, torch.zeros_like(start[..., :1])), -1)
        step = torch.linalg.solve(torch.cat((above, below), -2), residual)
        x, value = x - step[..., :-1, :], value - step[..., -1, :]
    return torch.where(twice[..., 0, 0], of_torch, value.squeeze(-1).abs())


def _check_grids(A: CSR, P: CSR, R: CSR | None, grid: Sequence[int], period: Sequence[int]) -> _Grid:
    for name, argument in (("P", P), ("R", R)):
        if argument is not None:
            checks.same_kind(NAME, f"{name}.values", argument.values, A.values)
    fine = _Grid(tuple(grid), tuple(period))
    if len(fine.points) != len(fine.period) or any(
        b % 2 or n % b for n, b in zip(fine.points, fine.period, strict=False)
    ):
        raise ValueError(
            f"{NAME}: period must have an even number for each axis of the grid that divides its points, got "
            f"{fine.period} for {fine.points}"
        )
    n, m = math.prod(fine.points), math.prod(fine.coarse.points)
    for name, argument, shape in (("A", A, (n, n)), ("P", P, (n, m)), ("R", R, (m, n))):
        if argument is not None and argument.shape != shape:
            raise ValueError(f"{NAME}: {name} must have shape {shape} on this grid, got {argument.shape}")
    return fine


def _symbols(name: str, T: CSR, rows: _Grid, columns: _Grid) -> Tensor:
    """The Fourier transform of T, (..., blocks, m, m')."""
    i, row_blocks = rows.positions(T.pattern.row_indices.long())
    j, column_blocks = columns.positions(T.pattern.col_indices.long())
    m, k, count = math.prod(rows.period), math.prod(columns.period), math.prod(rows.blocks)
    distance = [(q - p) % c for p, q, c in zip(row_blocks, column_blocks, rows.blocks, strict=True)]
    kind = i * k + j
    for d, c in zip(distance, rows.blocks, strict=True):
        kind = kind * c + d
    kinds, which, repeats = kind.unique(return_inverse=True, return_counts=True)
    values = T.values
    mean = values.new_zeros(*values.shape[:-1], len(kinds)).index_add(-1, which, values / count)
    plain, plain_mean = plain_values(values), plain_values(mean)
    off = (plain - plain_mean[..., which]).abs()
    allowed = 64 * torch.finfo(T.dtype).eps * plain.abs().amax(-1, keepdim=True) if T.nnz else 0
    if bool((repeats != count).any()) or bool((off > allowed).any()):
        raise ValueError(
            f"{NAME}: the entries of {name} must be the same in each block of {rows.period} rows, but they "
            "differ. Pass the period with which the problem repeats itself"
        )
    steps = []
    for c in reversed(rows.blocks):  # the distance on the last axis is the last digit
        steps.insert(0, kinds % c)
        kinds = kinds // c
    axes = [torch.arange(c, device=T.device) for c in rows.blocks]
    frequencies = torch.cartesian_prod(*axes).reshape(count, len(axes))
    angles = torch.zeros(count, len(kinds), dtype=torch.float64, device=T.device)
    for axis, (c, step) in enumerate(zip(rows.blocks, steps, strict=True)):
        angles += 2 * math.pi / c * (frequencies[:, axis : axis + 1] * step % c)
    phases = torch.polar(torch.ones_like(angles), angles).to(T.dtype.to_complex())
    terms = mean.unsqueeze(-2) * phases
    blocks = terms.new_zeros(*terms.shape[:-1], m * k).index_add(-1, kinds, terms)
    return blocks.reshape(*terms.shape[:-1], m, k)


def _jacobi_scaling(A: CSR, weight: float | Tensor, fine: _Grid) -> Tensor:
    """w D^-1 of the first block, (..., 1, m, 1)."""
    local, blocks = fine.positions(torch.arange(A.shape[0], device=A.device))
    first = torch.stack(blocks).sum(0) == 0
    order = local[first].argsort()
    scale = (weight / A.diagonal())[..., first.nonzero().squeeze(-1)[order]]
    return scale.unsqueeze(-1).unsqueeze(-3)


def _regular(coarse: Tensor) -> Tensor:
    """Shift the block of theta = 0 along the constants, which it maps to zero."""
    m = coarse.shape[-1]
    shift = torch.zeros_like(coarse)
    shift[..., 0, :, :] = coarse.detach().abs().amax((-3, -2, -1)).unsqueeze(-1).unsqueeze(-1) / m
    return coarse + shift


def _without_constants(E: Tensor) -> Tensor:
    """Multiply the block of theta = 0 by I - 1 1^T / m from both sides."""
    first, others = E[..., :1, :, :], E[..., 1:, :, :]
    first = first - first.mean(-1, keepdim=True)
    first = first - first.mean(-2, keepdim=True)
    return torch.cat((first, others), -3)
