"""Linear finite elements on triangles, differentiable in a coefficient per triangle."""

from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.problems._coefficients import check_sign
from learnsolve.problems.mesh import TriangleMesh
from learnsolve.problems.properties import MatrixProperties


def p1_stiffness(mesh: TriangleMesh, kappa: Tensor | None = None) -> CSR:
    r"""The stiffness matrix of :math:`-\nabla \cdot (\kappa \nabla u)`, zero at the fixed points.

    .. math:: A_{ij} = \sum_T \kappa_T \int_T \nabla \varphi_i \cdot \nabla \varphi_j

    Parameters
    ----------
    mesh : TriangleMesh
    kappa : Tensor, shape (..., triangles), float32 or float64; positive. Default: 1, float64. Leading axes
        give a batch of matrices on one pattern

    Returns
    -------
    CSR, shape (n, n), n = len(mesh.free), on the device of kappa. All pairs of free corners of a triangle are
    stored, so that stiffness and mass have the same pattern.

    Raises
    ------
    ValueError
        if kappa has another shape or an entry that is not positive and finite (not checked in a batch of
        `torch.func.vmap`, on a CUDA device and under `torch.compile`).
    TypeError
        if kappa is not a float32 or float64 tensor, or mesh not a TriangleMesh.

    Notes
    -----
    Symmetric positive definite if each part of the mesh has a fixed point, otherwise semidefinite. Gradient:
    for kappa any order, forward mode, vmap; for the points of the mesh too, without vmap. Cost: O(n) after
    the first matrix of a mesh, which sorts its edges. In two dimensions the matrix does not depend on the
    scale of the mesh.

    Source: S. C. Brenner, L. R. Scott, "The Mathematical Theory of Finite Element Methods", Springer 2008.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> mesh = ls.problems.random_mesh(100, seed=0)
    >>> kappa = torch.ones(len(mesh.triangles), dtype=torch.float64, requires_grad=True)
    >>> ls.problems.p1_stiffness(mesh, kappa).pattern is ls.problems.p1_mass(mesh).pattern
    True
    """
    kappa = _coefficients("p1_stiffness", "kappa", mesh, kappa, zero=False)
    plan = mesh._plan(kappa.device)
    return plan.matrix(plan.weights(mesh._stiffness.to(kappa.device)), kappa)


def p1_mass(mesh: TriangleMesh, rho: Tensor | None = None) -> CSR:
    r"""The mass matrix of a density per triangle, for values that are zero at the fixed points.

    .. math:: M_{ij} = \sum_T \rho_T \int_T \varphi_i \varphi_j

    Parameters
    ----------
    mesh : TriangleMesh
    rho : Tensor, shape (..., triangles), float32 or float64; not negative. Default: 1, float64
        Leading axes give a batch of matrices on one pattern.

    Returns
    -------
    CSR, shape (n, n), n = len(mesh.free), with the pattern of ``p1_stiffness(mesh)``.

    Raises
    ------
    ValueError, TypeError
        as for `p1_stiffness`; rho may be zero.

    Notes
    -----
    Symmetric, positive definite for positive rho. ``p1_stiffness(mesh) - p1_mass(mesh, k**2)`` is the
    Helmholtz operator with a wavenumber per triangle.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> mesh = ls.problems.random_mesh(100, seed=0)
    >>> K, M = ls.problems.p1_stiffness(mesh), ls.problems.p1_mass(mesh)
    >>> lowest = torch.linalg.eigvals(torch.linalg.solve(M.to_dense(), K.to_dense())).real.min()
    >>> bool(0 < lowest / (2 * torch.pi**2) - 1 < 0.2)  # of -div grad on the unit square: 2 pi^2
    True
    """
    rho = _coefficients("p1_mass", "rho", mesh, rho, zero=True)
    local = (torch.eye(3, dtype=torch.float64, device="cpu") + 1) / 12 * mesh.areas.view(-1, 1, 1)
    plan = mesh._plan(rho.device)
    return plan.matrix(plan.weights(local.to(rho.device)), rho)


def _coefficients(function: str, name: str, mesh: Any, value: Tensor | None, *, zero: bool) -> Tensor:
    if not isinstance(mesh, TriangleMesh):
        raise TypeError(f"{function}: mesh must be a TriangleMesh, got {type(mesh).__name__}")
    count = len(mesh.triangles)
    if value is None:
        return torch.ones(count, dtype=torch.float64, device="cpu")
    checks.tensor(function, name, value)
    checks.dtype(function, name, value)
    if value.dim() == 0 or value.shape[-1] != count:
        raise ValueError(
            f"{function}: {name} must have shape (..., triangles = {count}), got {tuple(value.shape)}"
        )
    check_sign(function, name, value, zero=zero)
    return value


STIFFNESS_PROPERTIES = MatrixProperties(
    formula="-div(kappa grad u), linear finite elements, zero at the fixed points",
    symmetric=True,
    positive_definite=None,
    positive_semidefinite=True,
    null_space="on a mesh without fixed points: constants on each part",
    source="Brenner, Scott, The Mathematical Theory of Finite Element Methods, 2008",
)
MASS_PROPERTIES = MatrixProperties(
    formula="rho u, linear finite elements, zero at the fixed points",
    symmetric=True,
    positive_definite=None,
    positive_semidefinite=True,
    source="Brenner, Scott, The Mathematical Theory of Finite Element Methods, 2008",
)
