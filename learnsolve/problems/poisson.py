"""The Poisson equation on a structured grid."""

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
    periodic_angles,
    sine_angles,
    stencil_matrix,
    sum_over_axes,
)
from learnsolve.problems.properties import MatrixProperties


def poisson(
    shape: int | Sequence[int],
    *,
    stencil: Literal["fd", "q1"] = "fd",
    boundary: Literal["dirichlet", "periodic"] = "dirichlet",
    rows: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> CSR:
    r"""The negative Laplacian on a structured grid with zero Dirichlet values around it, or periodic.

    .. math:: (A u)_i = 2 d\, u_i - \sum_{j \text{ neighbor of } i} u_j \approx -h^2 \Delta u

    Parameters
    ----------
    shape : int, or tuple of 1, 2 or 3 ints: interior grid points along each axis, last axis fastest; at least
        3 if periodic
    stencil : "fd": second-order finite differences, 3, 5 or 7 points. "q1": bilinear finite elements on
        squares, 9 points, only in two dimensions: 8 in the center and -1 around it, three times the stiffness
        matrix
    boundary : "dirichlet": zero around the grid. "periodic": first and last point of an axis are neighbors; A
        is then singular, and a solve takes null_space="constants"
    rows : (lo, hi): make rows lo to hi - 1 only, a CSR of shape (hi - lo, n), for a process (`petsc.Matrix`)
    dtype : torch.float32 or torch.float64
    device : device of the matrix

    Returns
    -------
    CSR, shape (n, n), n the number of grid points; int32 indices if they can count the entries, else int64.

    Raises
    ------
    ValueError
        if shape, stencil or boundary is not as described above.
    NotImplementedError
        for stencil="q1" in one or three dimensions.

    Notes
    -----
    Symmetric positive definite; "periodic": semidefinite, the constants are its null space. docs/problems.md
    has the eigenvalues. Divide "fd" by :math:`h^2` for the operator. Cost: O(n) in each call. Source: R. J.
    LeVeque, "Finite Difference Methods for Ordinary and Partial Differential Equations", 2007, chapters 2 and
    3.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.problems.poisson(3).to_dense()[1]
    tensor([-1.,  2., -1.], dtype=torch.float64)
    """
    sizes = _checked(shape, stencil, boundary)
    check_dtype("poisson", dtype)
    d = len(sizes)
    if stencil == "q1":
        coefficients = -np.ones((3, 3))
        coefficients[1, 1] = 8.0
    else:
        coefficients = np.zeros((3,) * d)
        for axis in range(d):
            at = [1] * d
            for at[axis] in (0, 2):
                coefficients[tuple(at)] = -1.0
        coefficients[(1,) * d] = 2.0 * d
    part = None if rows is None else check_rows("poisson", rows, math.prod(sizes))
    return stencil_matrix(coefficients, sizes, dtype, device, boundary == "periodic", part)


def _checked(shape: int | Sequence[int], stencil: str, boundary: str) -> tuple[int, ...]:
    checks.one_of("poisson", "stencil", stencil, ("fd", "q1"))
    checks.one_of("poisson", "boundary", boundary, ("dirichlet", "periodic"))
    sizes = grid_shape("poisson", shape, (1, 2, 3))
    if stencil == "q1" and len(sizes) != 2:
        raise NotImplementedError(
            f"poisson: stencil='q1' is for two dimensions, got shape {sizes}; use stencil='fd'"
        )
    if boundary == "periodic" and min(sizes) < 3:  # two would be neighbors twice
        raise ValueError(f'poisson: boundary="periodic" needs at least 3 points along each axis, got {sizes}')
    return sizes


def _eigenvalues(shape: int | Sequence[int], *, stencil: str = "fd", boundary: str = "dirichlet") -> Tensor:
    sizes = _checked(shape, stencil, boundary)
    angles = [periodic_angles(n) if boundary == "periodic" else sine_angles(n) for n in sizes]
    # 2 - 2 cos t = 4 sin^2(t / 2), without the cancellation for small t.
    stiffness = [4 * torch.sin(t / 2) ** 2 for t in angles]
    if stencil == "q1":
        # A = 3 (K x M + M x K) with K = (-1, 2, -1) and M = (1, 4, 1) / 6
        (k1, k2), (m1, m2) = stiffness, [2 + torch.cos(t) for t in angles]
        return kronecker_sum([(k1, m2), (m1, k2)])
    return sum_over_axes(stiffness)


PROPERTIES = MatrixProperties(
    formula="-div grad u, zero on the boundary or periodic",
    symmetric=True,
    positive_definite=None,
    positive_semidefinite=True,
    null_space='for boundary="periodic": constants',
    source="LeVeque, Finite Difference Methods, SIAM 2007; pyamg.gallery.poisson",
    eigenvalues=_eigenvalues,
)
