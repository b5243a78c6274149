"""The families that `dataset` draws from, one class each, with their published parameters."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch

from learnsolve.matrix import checks
from learnsolve.problems._family import Family, in_order, rejection_fields
from learnsolve.problems.convection_diffusion import convection_diffusion
from learnsolve.problems.delaunay_graph import random_graph
from learnsolve.problems.gaussian_field import two_fields
from learnsolve.problems.grounded_laplacian import grounded_laplacian
from learnsolve.problems.helmholtz import helmholtz
from learnsolve.problems.mesh import TriangleMesh, random_mesh
from learnsolve.problems.nodal_diffusion import nodal_diffusion
from learnsolve.problems.p1 import p1_stiffness
from learnsolve.problems.random_spd import random_spd

# The contrasts of (n, variance) in the published data.
_CONTRAST = {
    (64, 1.1): (400.0, 1200.0),
    (128, 1.1): (400.0, 1200.0),
    (256, 0.5): (80.0, 250.0),
    (256, 0.7): (250.0, 900.0),
    (256, 1.1): (400.0, 1200.0),
    (400, 0.5): (90.0, 280.0),
}


@dataclass(frozen=True)
class LogGaussianDiffusion(Family):
    """PreCorrector: -div(exp(k) grad u), k a Gaussian field. See `dataset`."""

    n: int = 256
    variance: float = 0.5
    contrast: Any = "published"
    length: float = 0.05
    covariance: str = "gaussian"
    problem = staticmethod(nodal_diffusion)

    def __post_init__(self) -> None:
        self._integer("n", 1)
        self._real("variance")
        self._real("length", "positive and finite")
        self._one_of("covariance", "gaussian", "exponential")
        contrast = self.contrast
        if isinstance(contrast, str):
            self._one_of("contrast", "published")
            contrast = _CONTRAST.get((self.n, self.variance))
            if contrast is None:
                known = ", ".join(map(str, _CONTRAST))
                raise ValueError(
                    f"dataset: no contrast was published for (n, variance) = {(self.n, self.variance)}, only "
                    f"for {known}; pass contrast=(smallest, largest), or contrast=None to accept all"
                )
        object.__setattr__(self, "contrast", None if contrast is None else in_order("contrast", contrast))

    def draw(self, seed: int) -> dict[str, Any]:
        low, high = self.contrast or (0.0, math.inf)
        shape = (self.n + 1, self.n + 1)
        for field in rejection_fields(seed, shape, self.length, self.covariance):
            field *= math.sqrt(self.variance)
            if low <= math.exp(field.max() - field.min()) <= high:
                return {"kappa": torch.from_numpy(np.exp(field) * (self.n + 1) ** 2), "stencil": "fd"}
        raise ValueError(
            f"dataset: none of 10,000 fields of variance {self.variance} has a contrast in {self.contrast}; "
            "pass a wider contrast=(smallest, largest)"
        )


@dataclass(frozen=True)
class RandomSPD(Family):
    """NeuralIF: M M^T + alpha I. See `dataset` and `random_spd`."""

    n: int = 10_000
    density: float = 1e-3
    alpha: float = 1e-3
    problem = staticmethod(random_spd)
    right_hand_side = "uniform"
    one_pattern = False
    first_seeds: ClassVar[dict[str, int]] = {"train": 0, "validation": 10_000, "test": 103_600}

    def __post_init__(self) -> None:
        self._integer("n", 1)
        self._real("density", "positive and finite")
        self._real("alpha", "positive and finite")

    def draw(self, seed: int) -> dict[str, Any]:
        return {"n": self.n, "seed": seed, "density": self.density, "alpha": self.alpha}


@dataclass(frozen=True)
class Q1Diffusion(Family):
    """Greenfeld: bilinear elements with log-normal coefficients. See `dataset`."""

    n: int = 16
    boundary: str = "periodic"
    period: int | None = 8
    shift: float = 0.0
    problem = staticmethod(nodal_diffusion)
    right_hand_side = "solution"

    def __post_init__(self) -> None:
        self._one_of("boundary", "periodic", "dirichlet")
        self._integer("n", 3 if self.boundary == "periodic" else 1)
        self._real("shift")
        if self.period is not None:
            self._integer("period", 1)
            if self.n % self.period:
                raise ValueError(
                    f"dataset: period must divide n = {self.n}, got {self.period}; None: no period"
                )

    def draw(self, seed: int) -> dict[str, Any]:
        period = self.period or self.n
        cells = np.exp(np.random.default_rng(seed).standard_normal((period, period)))
        cells = np.tile(cells, (self.n // period,) * 2)
        if self.boundary == "dirichlet":  # the first cells continue beyond the last nodes
            cells = np.pad(cells, ((1, 0), (1, 0)), mode="wrap")
        return {
            "kappa": torch.from_numpy(cells),
            "stencil": "q1",
            "boundary": self.boundary,
            "shift": self.shift,
        }


@dataclass(frozen=True)
class DelaunayLaplacian(Family):
    """Luz: graph Laplacians with log-normal weights. See `dataset` and `delaunay_graph`."""

    n: int = 64
    boundary: str = "periodic"
    blocks: int = 4
    weights: str = "lognormal"
    problem = staticmethod(grounded_laplacian)
    right_hand_side = "solution"
    one_pattern = False

    def __post_init__(self) -> None:
        self._integer("n", 3)
        self._integer("blocks", 3)
        self._one_of("boundary", "periodic", "dirichlet")
        self._one_of("weights", "lognormal", "uniform")

    def draw(self, seed: int) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        graph = random_graph(rng, self.n, self.boundary, self.blocks)
        repeats = self.blocks**2 if self.boundary == "periodic" else 1
        count = graph.edge_index.shape[1] // repeats
        w = np.exp(rng.standard_normal(count)) if self.weights == "lognormal" else rng.random(count)
        return {
            "edge_index": graph.edge_index,
            "weights": torch.from_numpy(np.tile(w, repeats)),
            "grounded": graph.grounded,
            "both_directions": False,
        }


@dataclass(frozen=True)
class P1Diffusion(Family):
    """Luz: linear elements with log-normal coefficients on one mesh. See `dataset` and `random_mesh`."""

    n: int = 1024
    domain: str = "disc_with_hole"
    scale: float = 0.5
    mesh_seed: int = 0
    problem = staticmethod(p1_stiffness)
    right_hand_side = "solution"

    def __post_init__(self) -> None:
        self._integer("n", 16)
        self._one_of("domain", "square", "disc_with_hole")
        self._real("scale")
        self._integer("mesh_seed", 0)

    def constants(self) -> dict[str, Any]:
        return {"mesh": _mesh(self.n, self.mesh_seed, self.domain)}

    def draw(self, seed: int) -> dict[str, Any]:
        mesh = self.constants()["mesh"]
        noise = np.random.default_rng(seed).standard_normal(len(mesh.triangles))
        return {"mesh": mesh, "kappa": torch.from_numpy(np.exp(self.scale * noise))}


@lru_cache(maxsize=8)
def _mesh(n: int, seed: int, domain: Any) -> TriangleMesh:
    return random_mesh(n, seed, domain=domain)


@dataclass(frozen=True)
class ConvectionDiffusion(Family):
    """Convection and diffusion with a random wind. See `dataset`."""

    n: int = 16
    epsilon: Any = (0.01, 0.1)
    scheme: str = "central"
    wind: str = "constant"
    length: float = 0.25
    problem = staticmethod(convection_diffusion)

    def __post_init__(self) -> None:
        self._integer("n", 1)
        value = self.epsilon
        pair = (value, value) if isinstance(value, (int, float)) else value
        object.__setattr__(self, "epsilon", in_order("epsilon", pair))
        self._one_of("scheme", "central", "upwind")
        self._one_of("wind", "constant", "random")
        self._real("length", "positive and finite")

    def draw(self, seed: int) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        h = 1 / (self.n + 1)
        if self.wind == "constant":
            wind = np.broadcast_to(rng.uniform(-1, 1, (2, 1, 1)), (2, self.n, self.n)).copy()
        else:  # the curl of a stream function, which has no divergence
            stream, _ = two_fields(rng, (self.n + 2, self.n + 2), self.length, "gaussian", h)
            wind = np.stack((stream[1:-1, 2:] - stream[1:-1, :-2], stream[:-2, 1:-1] - stream[2:, 1:-1]))
            wind /= np.hypot(*wind).max()
        low, high = self.epsilon
        peclet = h / (low + (high - low) * rng.random())
        return {"wind": torch.from_numpy(wind), "peclet": peclet, "scheme": self.scheme}


@dataclass(frozen=True)
class Helmholtz(Family):
    """HINTS: the wavenumber is a Gaussian field; std=0: a constant. See `dataset` and `helmholtz`."""

    n: int = 29
    dimensions: int = 1
    mean: float = 8.0
    std: float = 2.0
    length: float = 0.3
    minimum: float = 3.0
    shift: float = 1.0
    problem = staticmethod(helmholtz)

    def __post_init__(self) -> None:
        self._integer("n", 1)
        checks.one_of("dataset", "dimensions", self.dimensions, (1, 2, 3))
        self._real("mean")
        self._real("std")
        self._real("length", "positive and finite")
        self._real("minimum")
        self._real("shift", "finite")
        if self.mean <= self.minimum:
            raise ValueError(f"dataset: mean must be larger than minimum = {self.minimum}, got {self.mean}")

    def draw(self, seed: int) -> dict[str, Any]:
        h = 1 / (self.n + 1)
        shape = (self.n + 2,) * self.dimensions  # with the boundary
        for field in rejection_fields(seed, shape, math.sqrt(2) * self.length, "gaussian", h):
            k = self.mean + self.std * field
            if k.min() > self.minimum:
                inside = k[(slice(1, -1),) * self.dimensions]
                return {"kh": torch.from_numpy(np.ascontiguousarray(h * inside)), "shift": self.shift}
        raise ValueError(
            f"dataset: none of 10,000 fields of mean {self.mean} and std {self.std} stays above minimum = "
            f"{self.minimum}; pass a smaller minimum"
        )


FAMILIES: dict[str, type[Family]] = {
    "convection_diffusion": ConvectionDiffusion,
    "delaunay_laplacian": DelaunayLaplacian,
    "helmholtz": Helmholtz,
    "log_gaussian_diffusion": LogGaussianDiffusion,
    "p1_diffusion": P1Diffusion,
    "q1_diffusion": Q1Diffusion,
    "random_spd": RandomSPD,
}
