"""Problems as data sets: sequences of seeded samples of the published families, with their parameters."""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from learnsolve.arguments import (
    Count,
    Finite,
    Index,
    NotNegative,
    Positive,
    Rule,
    at_least,
    check_choice,
    integer,
    read_rule,
)
from learnsolve.matrix.cache import makes_plain_tensors
from learnsolve.matrix.checks import RealDtype
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.problems.graphs import grounded_laplacian, random_graph
from learnsolve.problems.grids import convection_diffusion, diffusion_tensor, helmholtz, nodal_diffusion
from learnsolve.problems.meshes import TriangleMesh, p1_stiffness, random_mesh
from learnsolve.problems.stochastic import random_spd, two_fields


class Family:
    """Base of all families: frozen dataclasses whose fields are the parameters of the data set, checked on
    construction. `draw(seed)` returns the arguments of `problem`.

    Attributes
    ----------
    problem : the function of `learnsolve.problems` that makes the matrix
    right_hand_side : "normal", N(0, I); "uniform", U(0, 1), or "solution": b = A x with x ~ N(0, I)
    one_pattern : whether all samples have the same pattern
    first_seeds : of the three splits
    """

    problem: ClassVar[Callable[..., CSR]]
    right_hand_side: ClassVar[Literal["normal", "uniform", "solution"]] = "normal"
    one_pattern: ClassVar[bool] = True
    first_seeds: ClassVar[dict[str, int]] = {"train": 0, "validation": 2**40, "test": 2**41}

    def draw(self, seed: int) -> dict[str, Any]:
        raise NotImplementedError

    def constants(self) -> dict[str, Any]:
        """The arguments of `problem` that all samples share."""
        return {}

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # of a subclass
            if rule := read_rule(field.type):
                object.__setattr__(
                    self, field.name, rule.check("dataset", field.name, getattr(self, field.name))
                )


def check_range(function: str, name: str, value: Any) -> tuple[float, float]:
    """`value` as (smallest, largest)."""
    try:
        low, high = (float(v) for v in value)
    except (TypeError, ValueError):
        raise ValueError(f"{function}: {name} must be (smallest, largest), got {value!r}") from None
    if not 0 < low <= high < math.inf:
        raise ValueError(f"{function}: {name} must be 0 < smallest <= largest < inf, got {value!r}")
    return low, high


def rejection_fields(seed: int, *arguments: Any) -> Iterator[np.ndarray]:
    """10,000 independent fields of variance 1, from which the first accepted one is used."""
    rng = np.random.default_rng(seed)
    for _ in range(5000):
        yield from two_fields(rng, *arguments)


def right_hand_side(family: Family, seed: int, A: CSR) -> tuple[Tensor, Tensor | None]:
    """(b, x), with x None if it is not known."""
    # A separate random stream: b is independent of the result of `draw` for the same seed.
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    n = A.shape[0]
    vector = rng.random(n) if family.right_hand_side == "uniform" else rng.standard_normal(n)
    vector = torch.from_numpy(vector).to(A.dtype)
    return (A @ vector, vector) if family.right_hand_side == "solution" else (vector, None)


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

    n: Count = 256
    variance: NotNegative = 0.5
    contrast: Any = "published"
    length: Positive = 0.05
    covariance: Literal["gaussian", "exponential"] = "gaussian"
    problem = staticmethod(nodal_diffusion)

    def __post_init__(self) -> None:
        super().__post_init__()
        contrast = self.contrast
        if isinstance(contrast, str):
            check_choice("dataset", "contrast", contrast, ("published",))
            contrast = _CONTRAST.get((self.n, self.variance))
            if contrast is None:
                known = ", ".join(map(str, _CONTRAST))
                raise ValueError(
                    f"dataset: no contrast was published for (n, variance) = {(self.n, self.variance)}, only "
                    f"for {known}. Pass contrast=(smallest, largest), or contrast=None to accept all"
                )
        if contrast is not None:
            contrast = check_range("dataset", "contrast", contrast)
        object.__setattr__(self, "contrast", contrast)

    def draw(self, seed: int) -> dict[str, Any]:
        low, high = self.contrast or (0.0, math.inf)
        shape = (self.n + 1, self.n + 1)
        for field in rejection_fields(seed, shape, self.length, self.covariance):
            field *= math.sqrt(self.variance)
            if low <= math.exp(field.max() - field.min()) <= high:
                return {"kappa": torch.from_numpy(np.exp(field) * (self.n + 1) ** 2), "discretization": "fd"}
        raise ValueError(
            f"dataset: no field among 10,000 of variance {self.variance} has a contrast in {self.contrast}. "
            "Pass a wider contrast=(smallest, largest)"
        )


@dataclass(frozen=True)
class RandomSPD(Family):
    """NeuralIF: M M^T + alpha I. See `dataset` and `random_spd`."""

    n: Count = 10_000
    density: Positive = 1e-3
    alpha: Positive = 1e-3
    problem = staticmethod(random_spd)
    right_hand_side = "uniform"
    one_pattern = False
    first_seeds: ClassVar[dict[str, int]] = {"train": 0, "validation": 10_000, "test": 103_600}

    def draw(self, seed: int) -> dict[str, Any]:
        return {"n": self.n, "seed": seed, "density": self.density, "alpha": self.alpha}


@dataclass(frozen=True)
class Q1Diffusion(Family):
    """Greenfeld: bilinear elements with log-normal coefficients. See `dataset`."""

    n: Count = 16
    boundary: Literal["periodic", "dirichlet"] = "periodic"
    period: Count | None = 8
    shift: NotNegative = 0.0
    problem = staticmethod(nodal_diffusion)
    right_hand_side = "solution"

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("dataset", "n", self.n, 3 if self.boundary == "periodic" else 1)
        if self.period is not None and self.n % self.period:
            raise ValueError(
                f"dataset: period must divide n = {self.n}, got {self.period}. Pass None for no period"
            )

    def draw(self, seed: int) -> dict[str, Any]:
        period = self.period or self.n
        cells = np.exp(np.random.default_rng(seed).standard_normal((period, period)))
        cells = np.tile(cells, (self.n // period,) * 2)
        if self.boundary == "dirichlet":  # the first cells continue beyond the last nodes
            cells = np.pad(cells, ((1, 0), (1, 0)), mode="wrap")
        return {
            "kappa": torch.from_numpy(cells),
            "discretization": "fe",
            "boundary": self.boundary,
            "shift": self.shift,
        }


@dataclass(frozen=True)
class DelaunayLaplacian(Family):
    """Luz: graph Laplacians with log-normal weights. See `dataset` and `delaunay_graph`."""

    n: Annotated[int, at_least(3)] = 64
    boundary: Literal["periodic", "dirichlet"] = "periodic"
    blocks: Annotated[int, at_least(3)] = 4
    weights: Literal["lognormal", "uniform"] = "lognormal"
    problem = staticmethod(grounded_laplacian)
    right_hand_side = "solution"
    one_pattern = False

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

    n: Annotated[int, at_least(16)] = 1024
    domain: Literal["square", "disc_with_hole"] = "disc_with_hole"
    scale: NotNegative = 0.5
    mesh_seed: Index = 0
    problem = staticmethod(p1_stiffness)
    right_hand_side = "solution"

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

    n: Count = 16
    epsilon: Any = (0.01, 0.1)
    scheme: Literal["central", "upwind"] = "central"
    wind: Literal["constant", "random"] = "constant"
    length: Positive = 0.25
    problem = staticmethod(convection_diffusion)

    def __post_init__(self) -> None:
        super().__post_init__()
        value = self.epsilon
        pair = (value, value) if isinstance(value, (int, float)) else value
        object.__setattr__(self, "epsilon", check_range("dataset", "epsilon", pair))

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
    """HINTS: the wavenumber is a Gaussian field, or a constant for std=0. See `dataset` and `helmholtz`."""

    n: Count = 29
    dimensions: Literal[1, 2, 3] = 1
    mean: NotNegative = 8.0
    std: NotNegative = 2.0
    length: Positive = 0.3
    minimum: NotNegative = 3.0
    shift: Finite = 1.0
    problem = staticmethod(helmholtz)

    def __post_init__(self) -> None:
        super().__post_init__()
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
            f"dataset: no field among 10,000 of mean {self.mean} and std {self.std} stays above minimum = "
            f"{self.minimum}. Pass a smaller minimum"
        )


@dataclass(frozen=True)
class DiffusionTensor(Family):
    """Full tensors in directions that no axis of the grid has. See `dataset` and `diffusion_tensor`."""

    n: Count = 32
    dimensions: Literal[2, 3] = 2
    kind: Literal["regions", "smooth", "constant"] = "regions"
    regions: Count = 8
    epsilon: Annotated[tuple[float, float], Rule(check_range, "(smallest, largest)")] = (1e-3, 1.0)
    length: Positive = 0.2
    problem = staticmethod(diffusion_tensor)

    def draw(self, seed: int) -> dict[str, Any]:
        rng, d = np.random.default_rng(seed), self.dimensions
        cells = (self.n + 1,) * d
        regions = self.regions if self.kind == "regions" else 1
        rotations = _rotations(rng.standard_normal((regions, 2 * d - 2)))
        if self.kind == "smooth":
            fields = [f for _ in range(2 * d - 3) for f in two_fields(rng, cells, self.length, "gaussian")]
            u = torch.special.ndtr(torch.from_numpy(np.stack(fields[: d - 1], -1))).numpy()
            vectors = np.stack(fields[d - 1 : 3 * d - 4], -1)
            per_angle = 1 if d == 2 else 0.5  # quaternions have half of it
            t = per_angle * np.linalg.norm(vectors, axis=-1, keepdims=True)
            turn = np.concatenate((np.cos(t), per_angle * np.sinc(t / math.pi) * vectors), -1)
            rotations = np.einsum("ij,...jk->...ik", rotations[0], _rotations(turn))
        else:
            u, points = rng.random((regions, d - 1)), rng.random((regions, d))
            middles = (np.moveaxis(np.indices(cells), 0, -1) + 0.5) / (self.n + 1)
            nearest = np.argmin(np.stack([np.square(middles - p).sum(-1) for p in points]), 0)
            u, rotations = u[nearest], rotations[nearest]
        low, high = self.epsilon
        strengths = np.concatenate((np.ones((*cells, 1)), low * (high / low) ** u), -1)
        scaled = rotations * np.sqrt(strengths)[..., None, :]
        return {"K": torch.from_numpy(np.einsum("...ik,...jk->...ij", scaled, scaled))}


def _rotations(turn: np.ndarray) -> np.ndarray:
    """Rotations by complex numbers (..., 2) or quaternions (..., 4) of any length; normal ones: uniform."""
    turn = turn / np.linalg.norm(turn, axis=-1, keepdims=True)
    if turn.shape[-1] == 2:
        c, s = np.moveaxis(turn, -1, 0)
        rows = ((c, -s), (s, c))
    else:
        w, x, y, z = np.moveaxis(turn, -1, 0)
        rows = (
            (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
            (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
            (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
        )
    return np.stack([np.stack(row, -1) for row in rows], -2)


FAMILIES: dict[str, type[Family]] = {
    "convection_diffusion": ConvectionDiffusion,
    "delaunay_laplacian": DelaunayLaplacian,
    "diffusion_tensor": DiffusionTensor,
    "helmholtz": Helmholtz,
    "log_gaussian_diffusion": LogGaussianDiffusion,
    "p1_diffusion": P1Diffusion,
    "q1_diffusion": Q1Diffusion,
    "random_spd": RandomSPD,
}


def dataset(
    name: str,
    split: Literal["train", "validation", "test"],
    count: Index,
    *,
    dtype: RealDtype = torch.float64,
    **parameters: object,
) -> "ProblemDataset":
    """A sequence of linear systems A x = b of one family, generated on indexing.

    Parameters
    ----------
    name : "log_gaussian_diffusion", "random_spd", "q1_diffusion", "delaunay_laplacian", "p1_diffusion",
        "convection_diffusion", "helmholtz" or "diffusion_tensor"
    split : "train", "validation" or "test": disjoint ranges of seeds, so that no two samples are the same
    count : number of samples. A longer data set starts with the samples of a shorter one
    dtype : torch.float32 or torch.float64. Everything is drawn in float64
    parameters : of the family. Their meaning, defaults and sources are in docs/problems.md

    Returns
    -------
    ProblemDataset : has a length, takes an index, can be iterated, pickled, and read by
        ``torch.utils.data.DataLoader(data, collate_fn=list)`` with any number of workers.

    Raises
    ------
    ValueError
        for a name, parameter or value that does not exist (the message lists the choices), and if seeds of
        the split do not suffice for count.
    TypeError
        if a parameter has another type, or if a sample is requested by anything but an int.

    Notes
    -----
    A seed determines a sample on every process and thread, together with the versions of NumPy and, for
    Delaunay triangulations, SciPy, for smooth tensors, torch. The distributions are the published ones, the
    random values are not.

    Examples
    --------
    >>> import learnsolve as ls
    >>> data = ls.problems.dataset("q1_diffusion", "train", 1000)
    >>> sample = data[0]
    >>> sample.A
    CSR(shape=(256, 256), nnz=2304, dtype=float64, device=cpu, density=3.5%)
    >>> kappa = sample.inputs["kappa"].requires_grad_()
    >>> A = data.problem(**sample.inputs)  # differentiable in kappa
    """
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise ValueError(f"dataset: name must be one of {', '.join(FAMILIES)}, got {name!r}")
    known = [f.name for f in dataclasses.fields(family)]  # type: ignore[arg-type]
    unknown = [p for p in parameters if p not in known]
    if unknown:
        raise ValueError(f"dataset: {name} has the parameters {', '.join(known)}, got {unknown[0]!r}")
    return ProblemDataset(name, family(**parameters), split, count, dtype)


class ProblemDataset:
    """The result of `dataset`: samples of a family.

    Attributes
    ----------
    name : of the family
    family : its parameters
    split : "train", "validation" or "test"
    seeds : the range of the samples' seeds
    problem : the function that makes the matrix: ``problem(**sample.inputs)``

    Examples
    --------
    >>> import learnsolve as ls
    >>> data = ls.problems.dataset("q1_diffusion", "test", 3, n=8)
    >>> len(data), data.name, data.split
    (3, 'q1_diffusion', 'test')
    >>> [sample.seed == seed for sample, seed in zip(data, data.seeds)]
    [True, True, True]
    """

    def __init__(
        self,
        name: str,
        family: Family,
        split: Literal["train", "validation", "test"],
        count: Index,
        dtype: RealDtype,
    ):
        first = family.first_seeds
        start = first[split]
        room = min((s for s in first.values() if s > start), default=2**63) - start
        if count > room:
            raise ValueError(
                f"dataset: {name} has {room} seeds for split={split!r}, up to the seeds of the next split, "
                f"got count={count}"
            )
        self.name, self.family, self.split, self.dtype = name, family, split, dtype
        self.seeds = range(start, start + count)
        self.problem = family.problem.as_exported  # by learnsolve.problems
        self._structure = _structure(family)

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, index: int) -> "Sample":
        try:
            seed = self.seeds[operator.index(index)]
        except IndexError:
            raise IndexError(f"dataset: index {index} in a data set of {len(self)} samples") from None
        except TypeError:
            raise TypeError(f"dataset: an index must be an int, got {type(index).__name__}") from None
        return self._sample(seed)

    @makes_plain_tensors  # torch.compile would trace NumPy, random numbers included
    def _sample(self, seed: int) -> "Sample":
        inputs = {k: self._cast(v) for k, v in self.family.draw(seed).items()}
        A = self.problem(**inputs).to(dtype=self.dtype)
        if self.family.one_pattern:
            A = CSR(A.values, self._structure.pattern)
        b, x = right_hand_side(self.family, seed, A)
        return Sample(A, b, x, seed, inputs, self._structure if self.family.one_pattern else None)

    def __iter__(self) -> Iterator["Sample"]:
        return (self[i] for i in range(len(self)))

    def __reduce__(self):
        return ProblemDataset, (self.name, self.family, self.split, len(self), self.dtype)

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"ProblemDataset({self.name!r}, {self.split!r}, {len(self)}, {self.family}, dtype={dtype})"

    def _cast(self, value: Any) -> Any:
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(self.dtype) if floating else value


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """A linear system A x = b.

    Attributes
    ----------
    A : CSR. The samples of a family on a fixed grid or mesh share its pattern, also after pickling
    b : right-hand side, shape (n,)
    x : the solution, shape (n,), or None if b was drawn instead of x
    seed : of this sample
    inputs : arguments of the family's problem, such as the coefficients

    Examples
    --------
    >>> import learnsolve as ls
    >>> sample = ls.problems.dataset("q1_diffusion", "test", 3, n=8)[0]
    >>> sample.b.shape, bool((sample.A @ sample.x - sample.b).norm() < 1e-12)
    (torch.Size([64]), True)
    """

    A: CSR
    b: Tensor
    x: Tensor | None
    seed: int
    inputs: dict[str, Any]
    _structure: "_Structure | None" = dataclasses.field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"Sample(seed={self.seed}, A={self.A}, inputs={', '.join(self.inputs)})"

    def __reduce__(self):
        if self._structure is None:
            return Sample, (self.A, self.b, self.x, self.seed, self.inputs)
        # Neither the pattern nor the mesh is sent: the receiving process has them, or makes them once.
        shared = self._structure.constants
        own = {k: v for k, v in self.inputs.items() if k not in shared}
        return _rebuild_sample, (self._structure.family, self.A.values, self.b, self.x, self.seed, own)


def _rebuild_sample(
    family: Family, values: Tensor, b: Tensor, x: Tensor | None, seed: int, own: dict[str, object]
) -> Sample:
    structure = _structure(family)
    return Sample(CSR(values, structure.pattern), b, x, seed, {**structure.constants, **own}, structure)


class _Structure:
    """Data that all samples of a family share, made at first use: one object per process for all data sets
    and samples with equal parameters."""

    def __init__(self, family: Family):
        self.family = family

    @property
    def constants(self) -> dict[str, Any]:
        return self.family.constants()

    @property
    def pattern(self) -> SparsityPattern:
        found = vars(self).get("_pattern")
        if found is None:
            made = self.family.problem(**self.family.draw(0)).pattern
            found = vars(self).setdefault("_pattern", made)  # one for all threads
        return found


_STRUCTURES: WeakValueDictionary[Family, _Structure] = WeakValueDictionary()


def _structure(family: Family) -> _Structure:
    return _STRUCTURES.setdefault(family, _Structure(family))
