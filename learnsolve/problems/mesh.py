"""Triangular meshes, their linear finite elements, and random ones."""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from learnsolve import _check
from learnsolve._immutable import Immutable
from learnsolve._plain import makes_plain_tensors
from learnsolve.problems._elements import ElementPlan, element_plan
from learnsolve.problems._triangles import triangle_edges, triangulate


class TriangleMesh(Immutable):
    """Points in the plane, triangles between them, and the points whose values are fixed at zero.

    Parameters
    ----------
    points : Tensor, shape (points, 2), float32 or float64
    triangles : integer Tensor, shape (triangles, 3), in any orientation
    fixed : bool Tensor, shape (points,); default: the boundary, the ends of edges of a single triangle
        For natural boundary conditions, pass zeros.

    Raises
    ------
    ValueError
        if shapes do not fit, a triangle has no area or a point that does not exist, or no point is free.
    TypeError
        for other dtypes.

    Notes
    -----
    Immutable; matrices have one row for each free point, in ascending order, and share one
    `SparsityPattern`. `p1_stiffness` and `p1_mass` assemble them.

    Attributes
    ----------
    points, triangles, fixed : as above: float64, int64, bool, on the CPU
    free : numbers of the free points, int64, shape (n,)
    areas : of the triangles, float64

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.5, 0.5]])
    >>> mesh = ls.problems.TriangleMesh.delaunay(square)
    >>> mesh, mesh.free
    (TriangleMesh(points=5, triangles=4, free=1), tensor([4]))
    """

    _instead = "make another one with TriangleMesh(points, triangles, fixed)"

    points: Tensor
    triangles: Tensor
    fixed: Tensor
    free: Tensor
    areas: Tensor
    _stiffness: Tensor
    _plans: dict[torch.device, ElementPlan]

    def __init__(self, points: Tensor, triangles: Tensor, fixed: Tensor | None = None):
        x, t = _checked(points, triangles)
        if fixed is None:
            fixed = torch.from_numpy(_boundary(t, len(x)))
        _check.tensor("TriangleMesh", "fixed", fixed)
        if fixed.dtype != torch.bool or fixed.shape != (len(x),):
            raise ValueError(
                f"TriangleMesh: fixed must be a bool tensor of shape (points = {len(x)},), got {fixed.dtype} "
                f"of shape {tuple(fixed.shape)}"
            )
        free = np.flatnonzero(~fixed.cpu().numpy())
        if len(free) == 0:
            raise ValueError(
                "TriangleMesh: all points are fixed (by default those on the boundary are); add points "
                "inside, or pass fixed"
            )
        opposite = x[t[:, [2, 0, 1]]] - x[t[:, [1, 2, 0]]]  # the edge opposite to each corner
        u, v = opposite[:, 0], opposite[:, 1]
        areas = np.abs(u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]) / 2
        flat = np.flatnonzero(areas <= 1e-14 * np.square(opposite).sum(2).max(1, initial=0))
        if len(flat):
            at = int(flat[0])
            raise ValueError(
                f"TriangleMesh: a triangle must have an area, got triangles[{at}] = {t[at].tolist()}"
            )
        stiffness = opposite @ opposite.transpose(0, 2, 1) / (4 * areas)[:, None, None]
        names = ("points", "triangles", "free", "areas", "_stiffness")
        for name, array in zip(names, (x, t, free, areas, stiffness), strict=True):
            object.__setattr__(self, name, torch.from_numpy(array))
        object.__setattr__(self, "fixed", fixed.cpu().clone())
        object.__setattr__(self, "_plans", {})

    @classmethod
    def delaunay(cls, points: Tensor, fixed: Tensor | None = None) -> "TriangleMesh":
        """The Delaunay triangulation of `points`, by SciPy."""
        _check.tensor("TriangleMesh.delaunay", "points", points)
        triangles = triangulate(points.detach().cpu().double().numpy())
        return cls(points, torch.from_numpy(triangles), fixed)

    def __reduce__(self):
        return TriangleMesh, (self.points, self.triangles, self.fixed)

    def __repr__(self) -> str:
        return (
            f"TriangleMesh(points={len(self.points)}, triangles={len(self.triangles)}, free={len(self.free)})"
        )

    @makes_plain_tensors
    def _plan(self, device: torch.device) -> ElementPlan:
        plan = self._plans.get(device)
        if plan is None:
            row = np.full(len(self.points), -1)
            row[self.free.numpy()] = np.arange(len(self.free))
            plan = self._plans[device] = element_plan(row[self.triangles.numpy()], len(self.free), device)
        return plan


def _checked(points: Tensor, triangles: Tensor) -> tuple[np.ndarray, np.ndarray]:
    for name, t in (("points", points), ("triangles", triangles)):
        _check.tensor("TriangleMesh", name, t)
    _check.dtype("TriangleMesh", "points", points)
    if triangles.is_floating_point() or triangles.is_complex() or triangles.dtype == torch.bool:
        raise TypeError(f"TriangleMesh: triangles must be integers, got {triangles.dtype}")
    for name, t, k in (("points", points, 2), ("triangles", triangles, 3)):
        if t.dim() != 2 or t.shape[1] != k or len(t) == 0:
            raise ValueError(f"TriangleMesh: {name} must have shape (any, {k}), got {tuple(t.shape)}")
    # Copies, that the caller cannot change.
    x, t = points.detach().cpu().numpy().astype(np.float64), triangles.cpu().numpy().astype(np.int64)
    if not np.isfinite(x).all():
        raise ValueError(
            f"TriangleMesh: points must be finite, got points[{np.argwhere(~np.isfinite(x))[0][0]}]"
        )
    bad = np.flatnonzero(((t < 0) | (t >= len(x))).any(1))
    if len(bad):
        at = int(bad[0])
        raise ValueError(
            f"TriangleMesh: points must lie in 0 <= point < {len(x)}, got triangles[{at}] = {t[at].tolist()}"
        )
    return x, t


def _boundary(triangles: np.ndarray, n: int) -> np.ndarray:
    edges, times = triangle_edges(triangles)
    fixed = np.zeros(n, dtype=bool)
    fixed[edges[times == 1]] = True
    return fixed


def random_mesh(n: int, seed: int, *, domain: Literal["square", "disc_with_hole"] = "square") -> TriangleMesh:
    """An unstructured mesh of about n free points.

    Parameters
    ----------
    n : free points, approximately; at least 16
    seed : the same seed gives the same mesh; at least 0
    domain : "square", the unit square; or "disc_with_hole", 1/3 < r < 1

    Returns
    -------
    TriangleMesh

    Raises
    ------
    ValueError
        if n, seed or domain is not as described above.
    TypeError
        if n or seed is not an int.

    Notes
    -----
    The points of a triangular lattice of width h, moved by up to h/5 in x and y, and points at distance h on
    the boundary, which are fixed; lattice points closer than 0.6 h to the boundary are left out.
    Triangulated by SciPy's Delaunay, which then contains every edge of the boundary.

    The domains are those of the finite element problems of Luz et al., ICML 2020, who mesh a larger domain
    with Triangle (angles of at least 30 degrees) and fix all points outside.

    Examples
    --------
    >>> import learnsolve as ls
    >>> mesh = ls.problems.random_mesh(1000, seed=0, domain="disc_with_hole")
    >>> bool(900 < len(mesh.free) < 1100)
    True
    """
    n = _check.integer("random_mesh", "n", n, 16)
    seed = _check.integer("random_mesh", "seed", seed, 0)
    _check.one_of("random_mesh", "domain", domain, ("square", "disc_with_hole"))
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
