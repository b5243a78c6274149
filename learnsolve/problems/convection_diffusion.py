"""Convection, diffusion and reaction on a structured grid, differentiable in the wind and the reaction."""

from typing import Literal

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.gather import permuted
from learnsolve.problems._coefficients import grid_axes
from learnsolve.problems._plan import grid_plan
from learnsolve.problems.properties import MatrixProperties


def convection_diffusion(
    wind: Tensor,
    peclet: float = 1.0,
    *,
    scheme: Literal["central", "upwind"] = "upwind",
    reaction: float | Tensor = 0.0,
    dimensions: int | None = None,
) -> CSR:
    r"""The operator :math:`-\epsilon \Delta u + w \cdot \nabla u + c u` by finite differences, zero outside.

    The matrix is :math:`h^2 / \epsilon` times the operator. With :math:`p_a = \mathrm{peclet}\; w_a` the
    entries of neighbors i ± 1 on axis a are :math:`-1 \pm p_a / 2` ("central") or :math:`-1 - \max(\mp p_a,
    0)` ("upwind").

    Parameters
    ----------
    wind : Tensor, shape ``(..., d, *grid)``, grid of d = 1, 2 or 3 axes, float32 or float64: the components
        of w at the grid points, numbered with the last axis fastest
    peclet : float, not negative: the mesh Peclet number :math:`h / \epsilon` of a wind of speed 1
    scheme : "central", of second order, or "upwind", one-sided differences of first order against the wind
    reaction : :math:`c\, h^2 / \epsilon`, added to the diagonal: float, or Tensor that broadcasts to ``(...,
        *grid)``
    dimensions : 1, 2 or 3, axes of the grid, default all axes of wind but the first. Leading axes of wind
        make a batch of matrices on one pattern

    Returns
    -------
    CSR, shape (n, n), n the number of grid points; values of shape (..., nnz) in wind's dtype, on its device.

    Raises
    ------
    ValueError
        if wind, peclet, scheme, reaction or dimensions is not as described above.
    TypeError
        if wind, or a tensor `reaction`, is not float32 or float64, or they differ in dtype or device.

    Notes
    -----
    Nonsymmetric, unless there is no wind; docs/problems.md has stencils and eigenvalues. Gradient with
    respect to wind and reaction: any order, forward mode, vmap; "upwind" with the subgradient 0 at a
    component that is zero. Cost: O(n). Source: Elman, Silvester, Wathen, "Finite Elements and Fast Iterative
    Solvers", 2014, chapter 6.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.problems.convection_diffusion(torch.full((1, 3), 0.5)).to_dense()[1]
    tensor([-1.5000,  2.5000, -1.0000])
    """
    d = grid_axes("convection_diffusion", "wind", wind, dimensions, (1, 2, 3), vector=True)
    peclet = checks.real("convection_diffusion", "peclet", peclet, "finite and not negative")
    checks.one_of("convection_diffusion", "scheme", scheme, ("central", "upwind"))
    p = (peclet * wind).movedim(-d - 1, 0)  # (d, ..., *grid)
    diagonal = 2.0 * d + _reaction(reaction, p[0])
    above, below = [], []
    for axis in range(d):
        at, n = axis - d, p.shape[axis - d]
        if scheme == "central":
            forward, backward = p[axis] / 2 - 1, -p[axis] / 2 - 1
        else:
            forward, backward = -torch.relu(-p[axis]) - 1, -torch.relu(p[axis]) - 1
            diagonal = diagonal + p[axis].abs()
        above.append(forward.narrow(at, 0, n - 1).flatten(-d))
        below.append(backward.narrow(at, 1, n - 1).flatten(-d))
    # The plan of a symmetric matrix, with the entries (lower, upper), then (upper, lower), of the same pairs.
    plan = grid_plan(tuple(wind.shape[-d:]), wind.device)
    parts = torch.cat((diagonal.flatten(-d), *above, *below), -1)
    return CSR(permuted(parts, plan.forward, plan.backward), plan.pattern)


def _reaction(reaction: float | Tensor, like: Tensor) -> Tensor:
    """The reaction as a tensor with the shape of one component of the wind."""
    name = "convection_diffusion"
    if not isinstance(reaction, Tensor):
        number = checks.real(name, "reaction", reaction, "finite", "a number or a torch.Tensor")
        return torch.full_like(like, number)
    checks.same_kind(name, "reaction", reaction, like)
    try:
        return reaction.expand(like.shape)
    except RuntimeError:
        raise ValueError(
            f"{name}: reaction must have the shape of a component of wind, {tuple(like.shape)}, or broadcast "
            f"to it, got {tuple(reaction.shape)}"
        ) from None


PROPERTIES = MatrixProperties(
    formula="-epsilon div grad u + w . grad u + c u, zero on the boundary",
    symmetric=None,
    positive_definite=None,
    positive_semidefinite=None,
    source="Elman, Silvester, Wathen, Finite Elements and Fast Iterative Solvers, 2014",
)
