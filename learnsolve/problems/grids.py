"""Partial differential equations on structured grids, differentiable in their coefficients."""

import cmath
import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce, wraps
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from learnsolve.arguments import Finite, NotNegative, Positive, Rule, checker, read_rules, real
from learnsolve.matrix.cache import makes_plain_tensors
from learnsolve.matrix.checks import RealDtype, number_or_like, real_tensor
from learnsolve.matrix.csr import CSR
from learnsolve.ops.indexing import permute_values
from learnsolve.problems._grid import (
    IDENTITY,
    LINEAR,
    ElementPlan,
    MatrixProperties,
    Separable,
    check_definite,
    check_sign,
    coefficient,
    element_plan,
    grid_plan,
    grid_sizes,
    neighbors,
    pattern_of_rows,
    row_range,
    sizes,
    stencil_matrix,
)


def poisson(
    shape: Annotated[int | Sequence[int], sizes(1, 2, 3)],
    *,
    discretization: Literal["fd", "fe"] = "fd",
    boundary: Literal["dirichlet", "periodic"] = "dirichlet",
    rows: Annotated[tuple[int, int], row_range("shape")] | None = None,
    dtype: RealDtype = torch.float64,
    device: torch.device | str | None = None,
) -> CSR:
    r"""The negative Laplacian on a structured grid with zero Dirichlet values around it, or periodic.

    .. math:: (A u)_i = 2 d\, u_i - \sum_{j \text{ neighbor of } i} u_j \approx -h^2 \Delta u

    Parameters
    ----------
    shape : int, or tuple of 1, 2 or 3 ints: interior grid points along each axis, last axis fastest, at least
        3 if periodic
    discretization : "fd": second-order finite differences, 3, 5 or 7 points. "fe": bilinear elements on
        squares, 9 points, only in two dimensions: 8 in the center and -1 around it, three times the stiffness
        matrix
    boundary : "dirichlet": zero around the grid. "periodic": first and last point of an axis are neighbors. A
        is then singular, and a solve needs null_space="constants"
    rows : (lo, hi): make rows lo to hi - 1 only, a CSR of shape (hi - lo, n), for a process (`petsc.Matrix`)
    dtype : torch.float32 or torch.float64
    device : device of the matrix

    Returns
    -------
    CSR, shape (n, n), n the number of grid points, with int32 indices if these suffice, else int64.

    Raises
    ------
    ValueError
        for a periodic axis of fewer than 3 points.
    NotImplementedError
        for discretization="fe" in one or three dimensions.

    Notes
    -----
    Symmetric positive definite, or semidefinite if "periodic", with the constants as its null space.
    docs/problems.md has the eigenvalues. Divide "fd" by :math:`h^2` for the operator. Cost: O(n) in each
    call. Source: R. J. LeVeque, "Finite Difference Methods for Ordinary and Partial Differential Equations",
    2007, chapters 2 and 3.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.problems.poisson(3).to_dense()[1]
    tensor([-1.,  2., -1.], dtype=torch.float64)
    """
    operator = _poisson(shape, discretization=discretization, boundary=boundary)
    return stencil_matrix(operator.stencil(), operator.sizes, dtype, device, boundary == "periodic", rows)


def _poisson(
    shape: int | Sequence[int], *, discretization: str = "fd", boundary: Any = "dirichlet"
) -> Separable:
    points = grid_sizes(shape)
    if discretization == "fe" and len(points) != 2:
        raise NotImplementedError(
            f"poisson: discretization='fe' is for two dimensions, got shape {points}. Use discretization='fd'"
        )
    if boundary == "periodic" and min(points) < 3:  # two would be neighbors twice
        raise ValueError(
            f'poisson: boundary="periodic" needs at least 3 points along each axis, got {points}'
        )
    three_times = (1, 4, 2)  # the mass matrix of linear elements
    return Separable(points, mass=three_times if discretization == "fe" else IDENTITY, ends=boundary)


def anisotropic(
    shape: Annotated[Sequence[int], sizes(2)],
    epsilon: Positive,
    theta: Finite,
    *,
    discretization: Literal["fd", "fe"] = "fd",
    rows: Annotated[tuple[int, int], row_range("shape")] | None = None,
    dtype: RealDtype = torch.float64,
    device: torch.device | str | None = None,
) -> CSR:
    r"""Diffusion that is strong along one direction and weak across it, zero on the boundary.

    .. math::
        -\nabla \cdot (Q \operatorname{diag}(1, \epsilon) Q^T \nabla u) = -E u_{xx} - F u_{xy} - G u_{yy}

    with the rotation Q by theta, :math:`E = c^2 + \epsilon s^2`, :math:`F = 2 (1 - \epsilon) c s`,
    :math:`G = \epsilon c^2 + s^2`, :math:`c = \cos\theta`, :math:`s = \sin\theta`.

    Parameters
    ----------
    shape : tuple of 2 ints, interior grid points along x and y. Points are numbered with y fastest
    epsilon : float, positive: strength across the direction, relative to that along it
    theta : float, angle of the direction from the x-axis, in radians
    discretization : "fd", second-order finite differences, or "fe", bilinear finite elements on squares
    rows : (lo, hi): make rows lo to hi - 1 only, a CSR of shape (hi - lo, n), for a process (`petsc.Matrix`)
    dtype : torch.float32 or torch.float64
    device : device of the matrix

    Returns
    -------
    CSR, shape (n, n), n the number of grid points. Up to 9 entries per row; zeros of the stencil are omitted.

    Notes
    -----
    Symmetric positive definite. docs/problems.md has the eigenvalues. Divide "fd" by :math:`h^2` for the
    operator. Equal, up to rounding, to pyamg's ``diffusion_stencil_2d``. Cost: O(n).

    Source: U. Trottenberg, C. W. Oosterlee, A. Schueller, "Multigrid", Academic Press 2001, section 7.7.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.problems.anisotropic((2, 2), epsilon=0.25, theta=0.0).to_dense()[0]
    tensor([ 2.5000, -0.2500, -1.0000,  0.0000], dtype=torch.float64)
    """
    operator, F = _anisotropic(shape, epsilon, theta, discretization)
    D = np.array([-1.0, 0.0, 1.0]) / 2
    stencil = operator.stencil() - F * np.outer(D, D)
    return stencil_matrix(stencil, operator.sizes, dtype, device, rows=rows)


def _anisotropic(
    shape: Sequence[int], epsilon: float, theta: float, discretization: str
) -> tuple[Separable, float]:
    """Its second derivatives along the axes, and F."""
    c, s = math.cos(theta), math.sin(theta)
    E, F, G = c * c + epsilon * s * s, 2 * (1 - epsilon) * c * s, epsilon * c * c + s * s
    return Separable(tuple(shape), (E, G), _MASS[discretization]), F


_MASS = {"fd": IDENTITY, "fe": LINEAR}


def _anisotropic_spectrum(
    shape: Sequence[int], epsilon: float, theta: float, *, discretization: str = "fd"
) -> Separable:
    operator, F = _anisotropic(shape, epsilon, theta, discretization)
    if abs(F) > 1e-15 * sum(operator.scales):  # sin(pi) is not 0 but 1.2e-16
        raise ValueError(
            "anisotropic: the eigenvalues are known for theta a multiple of pi/2 or epsilon = 1 only, got "
            f"epsilon = {epsilon}, theta = {theta}"
        )
    return operator


def diffusion(
    kappa: Annotated[Tensor, coefficient(2, 3, positive=True)],
    *,
    dimensions: Literal[2, 3] | None = None,
    rows: Annotated[tuple[int, int], row_range("kappa")] | None = None,
) -> CSR:
    r"""The operator :math:`-\nabla \cdot (\kappa \nabla u)` with one coefficient per cell of a uniform grid.

    Cell-centered finite volumes, u = 0 on the boundary:

    .. math:: (A u)_i = \sum_{j \sim i} \frac{2 \kappa_i \kappa_j}{\kappa_i + \kappa_j} (u_i - u_j)
              + \sum_{\text{boundary faces of } i} 2 \kappa_i u_i

    Parameters
    ----------
    kappa : Tensor, shape (..., nx, ny) or (..., nx, ny, nz), float32 or float64, positive; last axis fastest
    dimensions : 2 or 3, axes of the grid, default all axes of kappa. The axes before them make a batch
    rows : (lo, hi): make rows lo to hi - 1 only, a CSR of shape (hi - lo, n), for a process (`petsc.Matrix`),
        with kappa of the whole grid, without a batch

    Returns
    -------
    CSR, shape (n, n), n the number of cells; values of shape (..., nnz) in kappa's dtype, on its device.

    Raises
    ------
    ValueError
        if kappa has an entry that is not positive and finite (not checked in a batch of `torch.func.vmap`,
        on a CUDA device and under `torch.compile`), or a batch and `rows`.

    Notes
    -----
    Symmetric positive definite, :math:`h^2` times the operator, second-order accurate. Gradient: any order,
    forward mode, vmap, deterministic. Matrices of one grid share one `SparsityPattern`. Cost: O(n). Source:
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
    d = dimensions or kappa.dim()
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
    """The rows lo to hi - 1, with the same arithmetic cell by cell, hence bitwise identical."""
    if kappa.dim() != d:
        raise ValueError(
            f"diffusion: rows are of one grid, but kappa has a batch, got shape {tuple(kappa.shape)}"
        )
    lo, hi = rows
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


def _diffusion_spectrum(kappa: Tensor, *, dimensions: int | None = None) -> Separable:
    factor = _constant("diffusion", "kappa", kappa, dimensions or kappa.dim())
    # The boundary is half a cell outside both ends: eigenvectors sin((j + 1/2) k pi / n).
    return Separable(tuple(kappa.shape), ends="half", factor=factor)


def _constant(function: str, name: str, value: Tensor, d: int) -> float:
    """The one coefficient of one grid of d axes."""
    if value.dim() != d or not bool((value == value.flatten()[0]).all()):
        raise ValueError(f"{function}: the eigenvalues are known for one grid of constant {name} only")
    return float(value.flatten()[0])


def _cells(function: str, name: str, kappa: Tensor, given: dict[str, object]) -> Tensor:
    boundary = given.get("boundary", "dirichlet")
    least = 3 if boundary == "periodic" else 2  # two periodic cells would join a pair of nodes twice
    if kappa.dim() < 2 or min(kappa.shape[-2:]) < least:
        raise ValueError(
            f"{function}: {name} must have shape (..., cx, cy) with at least {least} x {least} cells for "
            f"boundary={boundary!r}, got {tuple(kappa.shape)}"
        )
    return check_sign(function, name, kappa, zero=False)


# Element matrices of the unit square; its nodes are (0, 0), (0, 1), (1, 0), (1, 1).
_LOCAL = {
    "fd": np.array([[2, -1, -1, 0], [-1, 2, 0, -1], [-1, 0, 2, -1], [0, -1, -1, 2]]) / 2,
    "fe": np.array([[4, -1, -1, -2], [-1, 4, -2, -1], [-1, -2, 4, -1], [-2, -1, -1, 4]]) / 6,
}


def nodal_diffusion(
    kappa: Annotated[Tensor, real_tensor(_cells, of="boundary")],
    *,
    discretization: Literal["fd", "fe"] = "fd",
    boundary: Literal["dirichlet", "periodic"] = "dirichlet",
    shift: NotNegative = 0.0,
) -> CSR:
    r"""The operator :math:`-\nabla \cdot (\kappa \nabla u)`, coefficients per cell, unknowns at the nodes.

    Nodes are the corners of the cells of a square grid. `diffusion` has unknowns at cell centers.

    Parameters
    ----------
    kappa : Tensor, shape (..., cx, cy), float32 or float64: positive coefficients of the cells. Leading axes
        make a batch of matrices on one pattern
    discretization : "fd", finite volumes around nodes, 5 points, or "fe", bilinear elements, 9 points
    boundary : "dirichlet": zero on the boundary. The unknowns are the (cx - 1)(cy - 1) nodes inside.
        "periodic": cx cy unknowns, node (i, j) in the corner of the cells i - 1, i and j - 1, j
    shift : added to the diagonal. A positive one makes the periodic matrix positive definite

    Returns
    -------
    CSR, shape (n, n), nodes numbered with the last axis fastest; values (..., nnz) in kappa's dtype.

    Raises
    ------
    ValueError
        if kappa has fewer than 2 x 2 cells (3 x 3 for "periodic"), or an entry that is not positive and
        finite (not checked in a batch of `torch.func.vmap`, on a CUDA device and under `torch.compile`).

    Notes
    -----
    Symmetric positive definite, or semidefinite if "periodic" without a shift, with the constants as its null
    space. docs/problems.md has the entries. Gradient: any order, forward mode, vmap, deterministic. Matrices
    of one grid share one `SparsityPattern`. Cost: O(n). Sources: "fd": V. Trifonov et al., arXiv 2405.15557,
    times (n + 1)^2; "fe": D. Greenfeld et al., "Learning to optimize multigrid PDE solvers", ICML 2019.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> kappa = torch.tensor([[1.0, 1.0, 2.0], [1.0, 1.0, 2.0]], requires_grad=True)
    >>> ls.problems.nodal_diffusion(kappa).to_dense().detach()
    tensor([[ 4., -1.],
            [-1.,  6.]])
    """
    plan, weights = _plan(kappa.shape[-2], kappa.shape[-1], discretization, boundary, kappa.device)
    return plan.matrix(weights, kappa.flatten(-2), shift)


# Few: a plan of 10^6 cells takes about 200 MB.
@makes_plain_tensors
@lru_cache(maxsize=8)
def _plan(
    cx: int, cy: int, discretization: str, boundary: str, device: torch.device
) -> tuple[ElementPlan, Tensor]:
    if boundary == "periodic":
        nodes = np.pad(np.arange(cx * cy).reshape(cx, cy), ((0, 1), (0, 1)), mode="wrap")
    else:
        nodes = np.full((cx + 1, cy + 1), -1)
        nodes[1:-1, 1:-1] = np.arange((cx - 1) * (cy - 1)).reshape(cx - 1, cy - 1)
    cells = np.stack((nodes[:-1, :-1], nodes[:-1, 1:], nodes[1:, :-1], nodes[1:, 1:]), -1).reshape(-1, 4)
    n = int(cells.max()) + 1
    local = _LOCAL[discretization]
    plan = element_plan(cells, n, device, local != 0)
    return plan, plan.weights(torch.from_numpy(local).to(device))


def _nodal_diffusion_spectrum(
    kappa: Tensor, *, discretization: str = "fd", boundary: Any = "dirichlet", shift: float = 0.0
) -> Separable:
    factor = _constant("nodal_diffusion", "kappa", kappa, 2)
    nodes = tuple(c - (boundary == "dirichlet") for c in kappa.shape)
    return Separable(nodes, mass=_MASS[discretization], ends=boundary, factor=factor, shift=shift)


def _tensors(function: str, name: str, K: Tensor) -> Tensor:
    d = K.shape[-1] if K.dim() else 0
    if d not in (2, 3) or K.dim() < d + 2 or K.shape[-2] != d or min(K.shape[-d - 2 : -2]) < 2:
        raise ValueError(
            f"{function}: {name} must have shape (..., cx, cy, 2, 2) or (..., cx, cy, cz, 3, 3) with at "
            f"least 2 cells along each axis, got {tuple(K.shape)}"
        )
    return check_definite(function, name, K)


def diffusion_tensor(K: Annotated[Tensor, real_tensor(_tensors)]) -> CSR:
    r"""The operator :math:`-\nabla \cdot (K \nabla u)` with a full tensor per cell, unknowns at the nodes.

    Bilinear or trilinear elements on the corners of the cells, u = 0 on the boundary:

    .. math:: A_{ij} = \sum_{\text{cells } e} \int_{[0, 1]^d} \nabla \phi_i \cdot K_e \nabla \phi_j

    Parameters
    ----------
    K : Tensor, shape (..., n0 + 1, n1 + 1, 2, 2) or (..., n0 + 1, n1 + 1, n2 + 1, 3, 3), float32 or float64:
        symmetric positive definite tensors of the cells. Leading axes make a batch of matrices on one pattern

    Returns
    -------
    CSR, shape (n, n), for the nodes inside, n0 x n1 (x n2), numbered with the last axis fastest; values
    (..., nnz) in K's dtype, on its device. Up to 9 or 27 entries per row, also where they are zero.

    Raises
    ------
    ValueError
        if K has another shape, or fewer than 2 cells along an axis, or a tensor that is not finite, positive
        definite and symmetric up to 512 eps of its largest entry (not checked in a batch of
        `torch.func.vmap`, on a CUDA device and under `torch.compile`).

    Notes
    -----
    Symmetric positive definite; :math:`h^2` times the operator, second-order accurate. For cells with sides
    :math:`h_a` pass :math:`K_{ab} / (h_a h_b)`, which yields the operator. docs/problems.md has the stencil
    and eigenvalues. Gradient: any order, forward mode, vmap, deterministic, and symmetric: (a, b) and (b, a)
    have half each. Matrices of one grid share one `SparsityPattern`. Cost: O(n). Source: Elman, Silvester,
    Wathen, "Finite Elements and Fast Iterative Solvers", 2014, chapter 1.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> K = torch.tensor([[3.0, 1.0], [1.0, 2.0]], requires_grad=True)
    >>> ls.problems.diffusion_tensor(K.expand(2, 3, 2, 2)).to_dense().detach()
    tensor([[ 6.6667, -0.3333],
            [-0.3333,  6.6667]])
    """
    d, nodes = K.shape[-1], _interior_shape(K)
    sums: dict[Axes, dict[Axes, Tensor]] = {
        (a, b): _sums_of_cells(K, a, b) for a in range(d) for b in range(a, d)
    }
    entries = [
        reduce(torch.add, [weight * sums[axes][key] for axes, key, weight in terms]).flatten(-d)
        for terms in _TERMS[d].values()
    ]
    plan = grid_plan(nodes, K.device, tuple(_TERMS[d])[1:])
    return plan.matrix(entries[0], torch.cat(entries[1:], -1))


Axes = tuple[int, ...]


def _terms(d: int) -> dict[Axes, list[tuple[Axes, Axes, float]]]:
    """For the diagonal and the neighbors after a node, by offset: the components of K of which the entry is a
    sum, the axes along which the nodes differ, and the integral over a cell of the derivatives of two
    functions, a product over the axes. For one node and for two, it is 1 and -1 of derivatives, 1/3 and 1/6
    of values, and 1/2 with signs of a derivative and a value, by which (a, b) and (b, a) may cancel."""
    result = {}
    for offset in [*itertools.product((-1, 0, 1), repeat=d)][3**d // 2 :]:
        terms = result[offset] = []
        for a, b in itertools.combinations_with_replacement(range(d), 2):
            p, q = offset[a], offset[b]
            if bool(p) == bool(q):
                own = (-1 if p else 1) if a == b else (-p * q if p else 1) / 4
                others = [1 / 6 if o else 1 / 3 for axis, o in enumerate(offset) if axis not in (a, b)]
                terms.append(((a, b), tuple(map(abs, offset)), own * math.prod(others)))
    return result


_TERMS = {d: _terms(d) for d in (2, 3)}


def _sums_of_cells(K: Tensor, a: int, b: int) -> dict[Axes, Tensor]:
    """A component of K, summed over the cells that two nodes share. A key has a 1 for each axis along which
    they differ. Along a and b, if these are two, cells after a node count negative, as its slope there."""
    d = K.shape[-1]
    sums: dict[Axes, Tensor] = {(): K[..., a, b] if a == b else K[..., a, b] + K[..., b, a]}
    for axis in range(d):
        at, n, finer = axis - d, K.shape[axis - d - 2] - 1, {}
        for key, cells in sums.items():
            before, after = cells.narrow(at, 0, n), cells.narrow(at, 1, n)
            # Not `in`, which torch.compile gets wrong where a and b are variables.
            slopes = a != b and (axis == a or axis == b)  # noqa: SIM109
            finer[*key, 0] = before - after if slopes else before + after
            finer[*key, 1] = cells.narrow(at, 1, n - 1)
        sums = finer
    return sums


def _interior_shape(K: Tensor) -> tuple[int, ...]:
    return tuple(c - 1 for c in K.shape[-K.shape[-1] - 2 : -2])


def _diffusion_tensor_spectrum(K: Tensor) -> Separable:
    d = K.shape[-1]
    one = K.reshape(-1, d, d)[0]
    if K.dim() != d + 2 or not bool((one.diagonal().diag() == K).all()):
        raise ValueError(
            "diffusion_tensor: the eigenvalues are known for one grid of one diagonal tensor only"
        )
    return Separable(_interior_shape(K), tuple(one.diagonal().tolist()), LINEAR)


def convection_diffusion(
    wind: Annotated[Tensor, coefficient(1, 2, 3, vector=True)],
    peclet: NotNegative = 1.0,
    *,
    scheme: Literal["central", "upwind"] = "upwind",
    reaction: Annotated[float | Tensor, number_or_like("wind", "finite")] = 0.0,
    dimensions: Literal[1, 2, 3] | None = None,
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

    Notes
    -----
    Nonsymmetric, unless there is no wind. docs/problems.md has stencils and eigenvalues. Gradient with
    respect to wind and reaction: any order, forward mode, vmap; "upwind" with the subgradient 0 at a
    component that is zero. Cost: O(n). Source: Elman, Silvester, Wathen, "Finite Elements and Fast Iterative
    Solvers", 2014, chapter 6.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.problems.convection_diffusion(torch.full((1, 3), 0.5)).to_dense()[1]
    tensor([-1.5000,  2.5000, -1.0000])
    """
    d = dimensions or wind.dim() - 1
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
    return CSR(permute_values(parts, plan.forward, plan.backward), plan.pattern)


def _reaction(reaction: float | Tensor, like: Tensor) -> Tensor:
    """The reaction as a tensor with the shape of one component of the wind."""
    if not isinstance(reaction, Tensor):
        return torch.full_like(like, reaction)
    try:
        return reaction.expand(like.shape)
    except RuntimeError:
        raise ValueError(
            "convection_diffusion: reaction must have the shape of a component of wind, "
            f"{tuple(like.shape)}, or broadcast to it, got {tuple(reaction.shape)}"
        ) from None


def _any_finite(function: str, name: str, value: object) -> complex:
    if not isinstance(value, complex):
        return real(function, name, value, "finite")
    if not cmath.isfinite(value):
        raise ValueError(f"{function}: {name} must be finite, got {value}. Use a finite number")
    return value


def helmholtz(
    kh: Annotated[Tensor, coefficient(1, 2, 3)],
    *,
    shift: Annotated[complex, Rule(_any_finite, "a finite number", (math.inf, "1"))] = 1.0,
    boundary: Literal["dirichlet", "absorbing"] = "dirichlet",
    dimensions: Literal[1, 2, 3] | None = None,
) -> CSR:
    r"""The Helmholtz operator :math:`-\Delta u - k^2 u` by finite differences.

    .. math:: (A u)_i = 2 d\, u_i - \sum_{j \text{ neighbor of } i} u_j - \text{shift}\; (k_i h)^2 u_i

    Parameters
    ----------
    kh : Tensor, shape ``(..., *grid)``, grid of 1, 2 or 3 axes, float32 or float64: the wavenumber k at each
        grid point, times the grid width h. The last axis is numbered fastest
    shift : float or complex. 1: Helmholtz; 1 + 0.01j: damped. Preconditioners for these: 0 (Bayliss,
        Goldstein and Turkel) and -1 (Laird and Giles), positive definite; 1 + 0.5j (Erlangga)
    boundary : "dirichlet", or "absorbing", where waves leave, :math:`\partial u / \partial n = i k u`
        half-way to a neighbor outside, which is :math:`u_i (1 + i k_i h / 2) / (1 - i k_i h / 2)`
    dimensions : 1, 2 or 3, axes of the grid, default all axes of kh. The axes of kh before them make a batch
        of matrices on one pattern

    Returns
    -------
    CSR, shape (n, n), n the number of grid points. Values (..., nnz) in kh's dtype, or complex if `shift` is
    or the boundary absorbs.

    Notes
    -----
    Symmetric, not Hermitian where complex; indefinite once shift k^2 exceeds the smallest eigenvalue of the
    Laplacian. h^2 times the operator. Gradient: any order, forward mode, vmap, deterministic. Matrices of one
    grid share one `SparsityPattern`. Cost: O(n).

    Source: Y. A. Erlangga, Arch. Comput. Methods Eng. 15 (2008), doi:10.1007/s11831-007-9013-7.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.problems.helmholtz(torch.tensor([0.5, 1.0, 0.5])).to_dense()[1]
    tensor([-1.,  1., -1.])
    """
    d = dimensions or kh.dim()
    diagonal = 2.0 * d - shift * kh * kh
    if boundary == "absorbing":
        diagonal = diagonal - _outside(kh, d) * (1 + 0.5j * kh) / (1 - 0.5j * kh)
    diagonal = diagonal.flatten(-d)
    plan = grid_plan(tuple(kh.shape[-d:]), kh.device)
    pairs = (plan.pattern.nnz - plan.pattern.shape[0]) // 2
    above = diagonal.new_full((1,), -1.0).expand(*diagonal.shape[:-1], pairs)
    return plan.matrix(diagonal, above)


def _outside(kh: Tensor, d: int) -> Tensor:
    """How many neighbors of each grid point lie outside."""
    shape = kh.shape[-d:]
    count = kh.new_zeros(shape)
    for axis, n in enumerate(shape):
        for end in (0, n - 1):
            count.select(axis, end).add_(1)
    return count


def _helmholtz_spectrum(
    kh: Tensor, *, shift: complex = 1.0, boundary: str = "dirichlet", dimensions: int | None = None
) -> Separable:
    if boundary != "dirichlet":
        raise ValueError(f"helmholtz: the eigenvalues are known for boundary='dirichlet', got {boundary!r}")
    k = _constant("helmholtz", "kh", kh, dimensions or kh.dim())
    return Separable(tuple(kh.shape), shift=-shift * k**2)


def _eigenvalues(problem: Callable[..., CSR], spectrum: Callable[..., Separable]) -> Callable[..., Tensor]:
    """The eigenvalues for the arguments of a problem, checked as the problem checks them."""
    check = checker(spectrum, problem.__name__, read_rules(problem))

    @wraps(spectrum)
    def eigenvalues(*args: object, **keywords: object) -> Tensor:
        args, keywords = check(args, keywords)
        return spectrum(*args, **keywords).eigenvalues()

    return eigenvalues


PROPERTIES = {
    "anisotropic": MatrixProperties(
        formula="-div(Q diag(1, epsilon) Q^T grad u), zero on the boundary",
        symmetric=True,
        positive_definite=True,
        positive_semidefinite=True,
        source="Trottenberg, Oosterlee, Schueller, Multigrid, 2001; pyamg.gallery.diffusion_stencil_2d",
        eigenvalues=_eigenvalues(anisotropic, _anisotropic_spectrum),
    ),
    "convection_diffusion": MatrixProperties(
        formula="-epsilon div grad u + w . grad u + c u, zero on the boundary",
        symmetric=None,
        positive_definite=None,
        positive_semidefinite=None,
        source="Elman, Silvester, Wathen, Finite Elements and Fast Iterative Solvers, 2014",
    ),
    "diffusion": MatrixProperties(
        formula="-div(kappa grad u), zero on the boundary",
        symmetric=True,
        positive_definite=True,
        positive_semidefinite=True,
        source="Eymard, Gallouet, Herbin, Finite Volume Methods, 2000",
        eigenvalues=_eigenvalues(diffusion, _diffusion_spectrum),
    ),
    "diffusion_tensor": MatrixProperties(
        formula="-div(K grad u), a full tensor K per cell, unknowns at the nodes, zero on the boundary",
        symmetric=True,
        positive_definite=True,
        positive_semidefinite=True,
        source="Elman, Silvester, Wathen, Finite Elements and Fast Iterative Solvers, 2014",
        eigenvalues=_eigenvalues(diffusion_tensor, _diffusion_tensor_spectrum),
    ),
    "helmholtz": MatrixProperties(
        formula="-div grad u - shift k^2 u, zero on the boundary",
        symmetric=True,
        positive_definite=None,
        positive_semidefinite=None,
        source="Erlangga, Arch. Comput. Methods Eng. 15, 2008",
        eigenvalues=_eigenvalues(helmholtz, _helmholtz_spectrum),
    ),
    "nodal_diffusion": MatrixProperties(
        formula="-div(kappa grad u) (+ shift I), a coefficient per cell, unknowns at the nodes",
        symmetric=True,
        positive_definite=None,
        positive_semidefinite=True,
        null_space="for boundary='periodic' and shift = 0: constants",
        source="Trifonov et al., arXiv 2405.15557; Greenfeld et al., ICML 2019",
        eigenvalues=_eigenvalues(nodal_diffusion, _nodal_diffusion_spectrum),
    ),
    "poisson": MatrixProperties(
        formula="-div grad u, zero on the boundary or periodic",
        symmetric=True,
        positive_definite=None,
        positive_semidefinite=True,
        null_space='for boundary="periodic": constants',
        source="LeVeque, Finite Difference Methods, SIAM 2007; pyamg.gallery.poisson",
        eigenvalues=_eigenvalues(poisson, _poisson),
    ),
}
