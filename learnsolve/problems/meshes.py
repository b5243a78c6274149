"""Triangular meshes, their geometry, and linear finite elements, differentiable in a coefficient per
triangle."""

import math
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from learnsolve.arguments import Index, Rule, at_least, instance
from learnsolve.matrix import checks
from learnsolve.matrix.cache import Immutable, makes_plain_tensors
from learnsolve.matrix.checks import real_tensor
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import to_numpy
from learnsolve.ops.arithmetic import plain_values
from learnsolve.problems._grid import ElementPlan, MatrixProperties, check_sign, element_plan


def triangulate(points: np.ndarray) -> np.ndarray:
    """The Delaunay triangles of points (n, 2), from SciPy: (triangles, 3)."""
    from scipy.spatial import Delaunay  # takes long to import

    return Delaunay(points).simplices


def triangle_edges(triangles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The edges (i, j), i < j, of triangles, each once, (edges, 2), and the number of triangles with each."""
    pairs = np.concatenate([triangles[:, [a, b]] for a, b in ((0, 1), (1, 2), (2, 0))]).astype(np.int64)
    low, high = pairs.min(1), pairs.max(1)
    size = int(high.max()) + 1
    keys, times = np.unique(low * size + high, return_counts=True)
    return np.stack(np.divmod(keys, size), -1), times


def _points(function: str, name: str, points: Tensor) -> Tensor:
    if points.dim() != 2 or points.shape[1] != 2 or len(points) == 0:
        raise ValueError(f"{function}: {name} must have shape (any, 2), got {tuple(points.shape)}")
    if points.is_meta:
        raise ValueError(f"{function}: {name} must have data, got a tensor on meta")
    if plain_values(points).shape != points.shape:
        raise ValueError(
            f"{function}: inside torch.func.vmap there is not one set of points. Make a mesh of each, and "
            "stack the values of its matrices"
        )
    if not (finite := plain_values(points).isfinite()).all():
        at = int((~finite).nonzero()[0, -2])
        raise ValueError(f"{function}: {name} must be finite, got points[{at}]")
    return points


def _triangles(function: str, name: str, triangles: Any) -> Tensor:
    checks.integers(function, name, triangles)
    if triangles.dim() != 2 or triangles.shape[1] != 3 or len(triangles) == 0:
        raise ValueError(f"{function}: {name} must have shape (any, 3), got {tuple(triangles.shape)}")
    return triangles


def _check_fixed(function: str, name: str, fixed: Any, given: dict[str, Any]) -> Tensor:
    checks.tensor(function, name, fixed)
    points = given["points"]
    if fixed.dtype != torch.bool or fixed.shape != points.shape[:1]:
        raise ValueError(
            f"{function}: {name} must be a bool tensor of shape (points = {len(points)},), got "
            f"{fixed.dtype} of shape {tuple(fixed.shape)}"
        )
    return fixed


Points = Annotated[Tensor, real_tensor(_points)]
Triangles = Annotated[Tensor, Rule(_triangles, "an integer tensor of shape (any, 3)", (3, torch.ones(2, 3)))]
Fixed = Annotated[
    Tensor, Rule(_check_fixed, "a bool tensor of shape (points,)", (3, torch.ones(2)), "points")
]


class TriangleMesh(Immutable):
    """Points in the plane, triangles between them, and the points whose values are fixed at zero.

    Parameters
    ----------
    points : Tensor, shape (points, 2), float32 or float64. It may require grad
    triangles : integer Tensor, shape (triangles, 3), in any orientation
    fixed : bool Tensor, shape (points,). Default: the boundary, the ends of edges of a single triangle
        For natural boundary conditions, pass zeros.

    Raises
    ------
    ValueError
        if shapes do not match, a triangle has no area or a point that does not exist, or no point is free; in
        a batch of points by `torch.func.vmap`.

    Notes
    -----
    Immutable. Matrices have one row for each free point, in ascending order, and share one
    `SparsityPattern`. `p1_stiffness` and `p1_mass` assemble them.

    Gradient: `areas` and the matrices are differentiable with respect to the coordinates of the points, to
    any order and in forward mode. The triangles are held fixed, also by `delaunay`. A mesh belongs to
    the graph of its points: make another one after a step of an optimizer. Its matrices have the same
    pattern.

    Attributes
    ----------
    points, triangles, fixed : as above: float64, int64, bool, on the CPU; points with their graph
    free : indices of the free points, int64, shape (n,)
    areas : of the triangles, float64

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.5, 0.5]])
    >>> mesh = ls.problems.TriangleMesh.delaunay(square)
    >>> mesh, mesh.free
    (TriangleMesh(points=5, triangles=4, free=1), tensor([4]))
    """

    _instead = "Make another one with TriangleMesh(points, triangles, fixed)"

    points: Tensor
    triangles: Tensor
    fixed: Tensor
    free: Tensor
    areas: Tensor
    _stiffness: Tensor
    _plans: dict[torch.device, ElementPlan]

    def __init__(self, points: Points, triangles: Triangles, fixed: Fixed | None = None):
        numbers = plain_values(points)
        t, fixed, free = _topology(numbers, triangles, fixed)
        x = points.to("cpu", torch.float64, copy=True)  # the caller cannot change it
        edges, areas = _geometry(x, t)
        stiffness = edges @ edges.mT / (4 * areas)[:, None, None]
        names = ("points", "triangles", "fixed", "free", "areas", "_stiffness", "_plans")
        for name, value in zip(names, (x, t, fixed, free, areas, stiffness, {}), strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def delaunay(cls, points: Points, fixed: Fixed | None = None) -> "TriangleMesh":
        """The Delaunay triangulation of `points`, by SciPy."""
        triangles = triangulate(to_numpy(plain_values(points).double()))
        return cls(points, torch.from_numpy(triangles), fixed)

    def __reduce__(self):
        return TriangleMesh, (self.points, self.triangles, self.fixed)

    def __repr__(self) -> str:
        return (
            f"TriangleMesh(points={len(self.points)}, triangles={len(self.triangles)}, free={len(self.free)})"
        )

    @makes_plain_tensors
    def _plan(self, device: torch.device) -> ElementPlan:
        if device not in self._plans:
            key = to_numpy(self.triangles).tobytes(), to_numpy(self.fixed).tobytes()
            self._plans[device] = _plan_elements(*key, device)
        return self._plans[device]


@lru_cache(maxsize=8)
def _plan_elements(triangles: bytes, fixed: bytes, device: torch.device) -> ElementPlan:
    """A shared plan for meshes that differ only in their points."""
    free = ~np.frombuffer(fixed, dtype=bool)
    row = np.where(free, np.cumsum(free) - 1, -1)
    elements = row[np.frombuffer(triangles, dtype=np.int64).reshape(-1, 3)]
    return element_plan(elements, int(free.sum()), device)


@makes_plain_tensors
def _topology(points: Tensor, triangles: Tensor, fixed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Triangles, fixed points and indices of the free ones: copies, checked."""
    x, t = points.cpu().double(), triangles.to("cpu", torch.int64, copy=True)
    bad = ((t < 0) | (t >= len(x))).any(1).nonzero()
    if len(bad):
        at = int(bad[0])
        raise ValueError(
            f"TriangleMesh: points must lie in 0 <= point < {len(x)}, got triangles[{at}] = {t[at].tolist()}"
        )
    fixed = torch.from_numpy(_boundary(t.numpy(), len(x))) if fixed is None else fixed.cpu().clone()
    free = (~fixed).nonzero().squeeze(1)
    if len(free) == 0:
        raise ValueError(
            "TriangleMesh: all points are fixed (by default those on the boundary are). Add points "
            "inside, or pass fixed"
        )
    edges, areas = _geometry(x, t)
    flat = (areas <= 1e-14 * edges.square().sum(2).amax(1)).nonzero()
    if len(flat):
        at = int(flat[0])
        raise ValueError(
            f"TriangleMesh: a triangle must have an area, got triangles[{at}] = {t[at].tolist()}"
        )
    return t, fixed, free


def _geometry(points: Tensor, triangles: Tensor) -> tuple[Tensor, Tensor]:
    """The edge opposite to each corner, (triangles, 3, 2), and the areas."""
    edges = points[triangles[:, [2, 0, 1]]] - points[triangles[:, [1, 2, 0]]]
    u, v = edges[:, 0], edges[:, 1]
    return edges, (u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]).abs() / 2


def _boundary(triangles: np.ndarray, n: int) -> np.ndarray:
    edges, times = triangle_edges(triangles)
    fixed = np.zeros(n, dtype=bool)
    fixed[edges[times == 1]] = True
    return fixed


def random_mesh(
    n: Annotated[int, at_least(16)],
    seed: Index,
    *,
    domain: Literal["square", "disc_with_hole"] = "square",
) -> TriangleMesh:
    """An unstructured mesh of about n free points.

    Parameters
    ----------
    n : free points, approximately, at least 16
    seed : at least 0. The same seed yields the same mesh
    domain : "square", the unit square, or "disc_with_hole", 1/3 < r < 1

    Returns
    -------
    TriangleMesh

    Notes
    -----
    The points of a triangular lattice of width h, moved by up to h/5 in x and y, and points at distance h on
    the boundary, which are fixed; lattice points closer than 0.6 h to the boundary are left out.
    Triangulated by SciPy's Delaunay, which then contains every edge of the boundary.

    The domains come from the finite element problems of Luz et al., ICML 2020, who mesh a larger domain
    with Triangle (angles of at least 30 degrees) and fix all points outside.

    Examples
    --------
    >>> import learnsolve as ls
    >>> mesh = ls.problems.random_mesh(1000, seed=0, domain="disc_with_hole")
    >>> bool(900 < len(mesh.free) < 1100)
    True
    """
    return _random_mesh(n, seed, domain)


@makes_plain_tensors
def _random_mesh(n: int, seed: int, domain: str) -> TriangleMesh:
    rng = np.random.default_rng(seed)
    square = domain == "square"
    area, perimeter = (1.0, 4.0) if square else (math.pi * 8 / 9, math.pi * 8 / 3)
    # n = (area - perimeter d) / cell, where cell = sqrt(3) h^2 / 2 and the lattice begins at d = 0.6 h.
    a, b = math.sqrt(3) / 2 * n, 0.6 * perimeter
    h = (math.sqrt(b * b + 4 * a * area) - b) / (2 * a)
    x = np.arange(-1.5, 1.5, h)
    y = np.arange(-1.5, 1.5, h * math.sqrt(3) / 2)
    lattice = np.stack(np.broadcast_arrays(x[:, None], y), -1)
    lattice[:, 1::2, 0] += h / 2
    inside = lattice.reshape(-1, 2) + rng.uniform(-h / 5, h / 5, (lattice.size // 2, 2))
    if square:
        inside = inside[((inside > 0.6 * h) & (inside < 1 - 0.6 * h)).all(1)]
        side = np.arange(max(round(1 / h), 1)) / max(round(1 / h), 1)
        zero, one = np.zeros_like(side), np.ones_like(side)
        rim = np.concatenate(
            [np.stack(p, -1) for p in ((side, zero), (one, side), (1 - side, one), (zero, 1 - side))]
        )
    else:
        r = np.hypot(*inside.T)
        inside = inside[(r > 1 / 3 + 0.6 * h) & (r < 1 - 0.6 * h)]
        rim = np.concatenate([_circle(1 / 3, h), _circle(1.0, h)])
    points = torch.from_numpy(np.concatenate((inside, rim)))
    mesh = TriangleMesh.delaunay(points, torch.from_numpy(np.arange(len(points)) >= len(inside)))
    if square:
        return mesh
    centroids = mesh.points[mesh.triangles].mean(1)
    return TriangleMesh(mesh.points, mesh.triangles[centroids.norm(dim=1) > 1 / 3], mesh.fixed)


def _circle(radius: float, h: float) -> np.ndarray:
    count = max(math.ceil(2 * math.pi * radius / h), 6)
    angle = 2 * math.pi / count * np.arange(count)
    return radius * np.stack((np.cos(angle), np.sin(angle)), -1)


def triangle_coefficient(zero: bool) -> Rule:
    """A coefficient per triangle of `mesh`."""

    def check(function: str, name: str, value: Tensor, given: dict[str, Any]) -> Tensor:
        checks.last_axes(function, name, value, triangles=len(given["mesh"].triangles))
        return check_sign(function, name, value, zero=zero)

    return real_tensor(check, of="mesh")


Mesh = Annotated[TriangleMesh, instance(TriangleMesh, "a TriangleMesh")]


def p1_stiffness(mesh: Mesh, kappa: Annotated[Tensor, triangle_coefficient(zero=False)] | None = None) -> CSR:
    r"""The stiffness matrix of :math:`-\nabla \cdot (\kappa \nabla u)`, zero at the fixed points.

    .. math:: A_{ij} = \sum_T \kappa_T \int_T \nabla \varphi_i \cdot \nabla \varphi_j

    Parameters
    ----------
    mesh : TriangleMesh
    kappa : Tensor, shape (..., triangles), float32 or float64; positive. Default: 1, float64. Leading axes
        make a batch of matrices on one pattern

    Returns
    -------
    CSR, shape (n, n), n = len(mesh.free), on the device of kappa. All pairs of free corners of a triangle are
    stored, so that stiffness and mass have the same pattern.

    Raises
    ------
    ValueError
        if kappa has another shape or an entry that is not positive and finite (not checked in a batch of
        `torch.func.vmap`, on a CUDA device and under `torch.compile`).

    Notes
    -----
    Symmetric positive definite if each part of the mesh has a fixed point, otherwise semidefinite. Gradient:
    for kappa any order, forward mode, vmap; for the points of the mesh any order and forward mode. Cost: O(n)
    after the first matrix of a mesh, which sorts its edges. In two dimensions the matrix does not depend on
    the scale of the mesh.

    Source: S. C. Brenner, L. R. Scott, "The Mathematical Theory of Finite Element Methods", Springer 2008.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> mesh = ls.problems.random_mesh(100, seed=0)
    >>> kappa = torch.ones(len(mesh.triangles), dtype=torch.float64, requires_grad=True)
    >>> ls.problems.p1_stiffness(mesh, kappa).pattern is ls.problems.p1_mass(mesh).pattern
    True
    """
    kappa = _ones(mesh) if kappa is None else kappa
    plan = mesh._plan(kappa.device)
    return plan.matrix(plan.weights(mesh._stiffness.to(kappa.device)), kappa)


def p1_mass(mesh: Mesh, rho: Annotated[Tensor, triangle_coefficient(zero=True)] | None = None) -> CSR:
    r"""The mass matrix of a density per triangle, for values that are zero at the fixed points.

    .. math:: M_{ij} = \sum_T \rho_T \int_T \varphi_i \varphi_j

    Parameters
    ----------
    mesh : TriangleMesh
    rho : Tensor, shape (..., triangles), float32 or float64, not negative. Default: 1, float64
        Leading axes make a batch of matrices on one pattern.

    Returns
    -------
    CSR, shape (n, n), n = len(mesh.free), with the pattern of ``p1_stiffness(mesh)``.

    Raises
    ------
    ValueError
        as for `p1_stiffness`, but rho may be zero.

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
    rho = _ones(mesh) if rho is None else rho
    local = (torch.eye(3, dtype=torch.float64, device="cpu") + 1) / 12 * mesh.areas.view(-1, 1, 1)
    plan = mesh._plan(rho.device)
    return plan.matrix(plan.weights(local.to(rho.device)), rho)


def _ones(mesh: TriangleMesh) -> Tensor:
    return torch.ones(len(mesh.triangles), dtype=torch.float64, device="cpu")


_SOURCE = "Brenner, Scott, The Mathematical Theory of Finite Element Methods, 2008"
PROPERTIES = {
    "p1_mass": MatrixProperties(
        formula="rho u, linear finite elements, zero at the fixed points",
        symmetric=True,
        positive_definite=None,
        positive_semidefinite=True,
        source=_SOURCE,
    ),
    "p1_stiffness": MatrixProperties(
        formula="-div(kappa grad u), linear finite elements, zero at the fixed points",
        symmetric=True,
        positive_definite=None,
        positive_semidefinite=True,
        null_space="on a mesh without fixed points: constants on each part",
        source=_SOURCE,
    ),
}
