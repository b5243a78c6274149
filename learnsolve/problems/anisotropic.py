"""Rotated anisotropic diffusion in two dimensions."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.problems._grid import (
    check_dtype,
    check_rows,
    grid_shape,
    kronecker_sum,
    sine_angles,
    stencil_matrix,
)
from learnsolve.problems.properties import MatrixProperties


def anisotropic(
    shape: Sequence[int],
    epsilon: float,
    theta: float,
    *,
    discretization: Literal["fd", "fe"] = "fd",
    rows: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> CSR:
    r"""Diffusion that is strong along one direction and weak across it, zero on the boundary.

    .. math::
        -\nabla \cdot (Q \operatorname{diag}(1, \epsilon) Q^T \nabla u) = -E u_{xx} - F u_{xy} - G u_{yy}

    with the rotation Q by theta, :math:`E = c^2 + \epsilon s^2`, :math:`F = 2 (1 - \epsilon) c s`,
    :math:`G = \epsilon c^2 + s^2`, :math:`c = \cos\theta`, :math:`s = \sin\theta`.

    Parameters
    ----------
    shape : tuple of 2 ints, interior grid points along x and y; points are numbered with y fastest
    epsilon : float, positive: strength across the direction, relative to that along it
    theta : float, angle of the direction from the x-axis, in radians
    discretization : "fd", second-order finite differences, or "fe", bilinear finite elements on squares
    rows : (lo, hi): make rows lo to hi - 1 only, a CSR of shape (hi - lo, n), for a process (`petsc.Matrix`)
    dtype : torch.float32 or torch.float64
    device : device of the matrix

    Returns
    -------
    CSR, shape (n, n), n the number of grid points. Up to 9 entries per row; zeros of the stencil are omitted.

    Raises
    ------
    ValueError
        if shape, discretization, epsilon or theta is not as described above.

    Notes
    -----
    Symmetric positive definite; docs/problems.md has the eigenvalues. Divide "fd" by :math:`h^2` for the
    operator. Equal, up to rounding, to pyamg's ``diffusion_stencil_2d``. Cost: O(n).

    Source: U. Trottenberg, C. W. Oosterlee, A. Schueller, "Multigrid", Academic Press 2001, section 7.7.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.problems.anisotropic((2, 2), epsilon=0.25, theta=0.0).to_dense()[0]
    tensor([ 2.5000, -0.2500, -1.0000,  0.0000], dtype=torch.float64)
    """
    sizes, E, F, G = _checked(shape, epsilon, theta, discretization)
    check_dtype("anisotropic", dtype)
    K = np.array([-1.0, 2.0, -1.0])
    # Six times the mass matrix of linear elements: integers, so that terms cancel to exactly zero.
    M = np.array([1.0, 4.0, 1.0]) if discretization == "fe" else np.array([0.0, 6.0, 0.0])
    D = np.array([-1.0, 0.0, 1.0]) / 2
    stencil = (E * np.outer(K, M) + G * np.outer(M, K)) / 6 - F * np.outer(D, D)
    part = None if rows is None else check_rows("anisotropic", rows, math.prod(sizes))
    return stencil_matrix(stencil, sizes, dtype, device, rows_of=part)


def _checked(
    shape: Sequence[int], epsilon: float, theta: float, discretization: str
) -> tuple[tuple[int, ...], float, float, float]:
    checks.one_of("anisotropic", "discretization", discretization, ("fd", "fe"))
    sizes = grid_shape("anisotropic", shape, (2,))
    epsilon = checks.real("anisotropic", "epsilon", epsilon, "positive and finite")
    theta = checks.real("anisotropic", "theta", theta, "finite")
    c, s = math.cos(theta), math.sin(theta)
    return sizes, c * c + epsilon * s * s, 2 * (1 - epsilon) * c * s, epsilon * c * c + s * s


def _eigenvalues(shape: Sequence[int], epsilon: float, theta: float, *, discretization: str = "fd") -> Tensor:
    sizes, E, F, G = _checked(shape, epsilon, theta, discretization)
    if abs(F) > 1e-15 * (E + G):  # sin(pi) is not 0 but 1.2e-16
        raise ValueError(
            "anisotropic: the eigenvalues are known for theta a multiple of pi/2 or epsilon = 1 only, got "
            f"epsilon = {epsilon}, theta = {theta}"
        )
    angles = [sine_angles(n) for n in sizes]
    k1, k2 = (4 * torch.sin(t / 2) ** 2 for t in angles)
    m1, m2 = ((2 + torch.cos(t)) / 3 if discretization == "fe" else torch.ones_like(t) for t in angles)
    return kronecker_sum([(E * k1, m2), (m1, G * k2)])


PROPERTIES = MatrixProperties(
    formula="-div(Q diag(1, epsilon) Q^T grad u), zero on the boundary",
    symmetric=True,
    positive_definite=True,
    positive_semidefinite=True,
    source="Trottenberg, Oosterlee, Schueller, Multigrid, 2001; pyamg.gallery.diffusion_stencil_2d",
    eigenvalues=_eigenvalues,
)
