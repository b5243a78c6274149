"""Recipes that learn from test vectors and one symmetric positive definite matrix, chosen by
`--problem.*`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from learnsolve import problems
from learnsolve.matrix.csr import CSR
from learnsolve.ops.products import quadratic_form
from learnsolve.recipes.training.parallel import share
from learnsolve.recipes.training.recipe import COEFFICIENTS, HELD_OUT, TRAINING, VectorRecipe, stream_seed
from learnsolve.recipes.training.settings import SettingError, VectorSettings, about_option

USED = {
    "poisson": {"shape", "discretization"},
    "anisotropic": {"shape", "epsilon", "theta"},
    "diffusion": {"shape", "contrast"},
    "convection_diffusion": {"shape", "peclet", "reaction"},
    "graph_laplacian": {"path", "shift"},
    "pyamg_gallery": {"matrix"},
    "matrix_market": {"path"},
}
BY_ROWS = {"poisson", "anisotropic", "diffusion"}  # families that can make only the rows of a process


@dataclass
class ProblemSettings:
    """The matrix to train on.

    Args:
        name: A family of learnsolve.problems.
        shape: Grid points along each axis, as 16 or [64,64] or [32,32,32] (poisson, anisotropic, diffusion,
            convection_diffusion).
        discretization: Finite differences or, in two dimensions, finite elements (poisson).
        epsilon: Strength of the diffusion across its direction, relative to that along it (anisotropic).
        theta: Angle of the direction in radians (anisotropic).
        contrast: Coefficients are drawn log-uniformly between 1 and this value (diffusion).
        shift: Added to the diagonal. A positive one makes the matrix definite (graph_laplacian).
        peclet: Mesh Peclet number of the recirculating wind, by central differences (convection_diffusion).
        reaction: Added to the diagonal. -4 makes it zero (convection_diffusion).
        matrix: Name of an example matrix of pyamg, such as unit_square (pyamg_gallery).
        path: A Matrix Market file: the matrix (matrix_market), or the edges as its entries (graph_laplacian).
    """

    name: Literal[
        "poisson",
        "anisotropic",
        "diffusion",
        "convection_diffusion",
        "graph_laplacian",
        "pyamg_gallery",
        "matrix_market",
    ] = "poisson"
    shape: int | list[int] = 16
    discretization: Literal["fd", "fe"] = "fd"
    epsilon: float = 0.1
    theta: float = 0.0
    contrast: float = 100.0
    shift: float = 0.0
    peclet: float = 4.0
    reaction: float = 0.0
    matrix: str | None = None
    path: str | None = None


def grid_shape(settings: ProblemSettings) -> tuple[int, ...] | None:
    """The grid whose points are the unknowns, or None."""
    if "shape" not in USED[settings.name]:
        return None
    shape = settings.shape
    return (shape,) if isinstance(shape, int) else tuple(shape)


def describe(settings: ProblemSettings) -> str:
    """A few words for titles."""
    grid = grid_shape(settings)
    if grid is not None:
        words = "Poisson" if settings.name == "poisson" else f"{settings.name.replace('_', '-')} problem"
        return f"{len(grid)}D {words}, {' x '.join(map(str, grid))}" + (" points" if len(grid) == 1 else "")
    if settings.name == "pyamg_gallery":
        return f"pyamg's {settings.matrix}"
    name = (settings.path or "").rsplit("/", 1)[-1]
    return f"graph of {name}" if settings.name == "graph_laplacian" else name


def facts(settings: ProblemSettings, A: CSR) -> dict[str, Any]:
    """The entries of report.json about the matrix."""
    return {"description": describe(settings), "n": A.shape[0], "nnz": A.nnz}


def build(run: Any, share: Callable[[int], tuple[int, int]] | None = None) -> CSR:
    """The matrix of a run's settings. Raises SettingError if the settings or the data are unsuitable.

    share : n -> (lo, hi), to make only these rows, (hi - lo, n), cut out of matrices that cannot be made by
        rows: files, graphs and galleries
    """
    settings, usual = run.problem, type(run)().problem
    for f in fields(settings):
        value = getattr(settings, f.name)
        if f.name not in ({"name"} | USED[settings.name]) and value != getattr(usual, f.name):
            raise SettingError(
                f"--problem.{f.name} is not used by --problem.name {settings.name}, which takes "
                f"{', '.join('--problem.' + o for o in sorted(USED[settings.name]))}"
            )
        if f.name in USED[settings.name] and value is None:
            raise SettingError(f"--problem.name {settings.name} needs --problem.{f.name}")
    if (grid := grid_shape(settings)) and min(grid) > 0:
        entries = math.prod(grid) * (2 * len(grid) + 1)
        # Values and indices, and the same again during assembly.
        run.check_memory(f"--problem.shape {settings.shape}", 4 * entries, "Choose a smaller grid")
    try:
        rows = share(math.prod(grid)) if share and grid and settings.name in BY_ROWS else None
        A = _build(settings, run.seed, run.torch_dtype, rows)
        if share and rows is None:
            lo, hi = share(A.shape[0])
            A = CSR.from_scipy(A.to_scipy()[lo:hi])
        return A.to(device=run.device, dtype=run.torch_dtype)
    except (ImportError, NotImplementedError, OSError, TypeError, ValueError) as error:
        options = {f.name: f"problem.{f.name}" for f in fields(settings)}
        options["name"] = "problem.matrix"  # for `pyamg_gallery`
        raise about_option(error, options, otherwise="problem") from error


def _build(
    settings: ProblemSettings, seed: int, dtype: torch.dtype, rows: tuple[int, int] | None = None
) -> CSR:
    name, shape = settings.name, grid_shape(settings)
    if name == "poisson":
        kind: Any = settings.discretization
        return problems.poisson(shape, discretization=kind, dtype=dtype, rows=rows)  # type: ignore[arg-type]
    if name == "anisotropic":
        return problems.anisotropic(shape, settings.epsilon, settings.theta, dtype=dtype, rows=rows)  # type: ignore[arg-type]
    if name == "diffusion":
        if not settings.contrast >= 1:
            raise ValueError(f"contrast must be at least 1, got {settings.contrast}")
        generator = torch.Generator().manual_seed(stream_seed(seed, COEFFICIENTS, 0, 0))
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)  # type: ignore[arg-type]
        return problems.diffusion((settings.contrast**uniform).to(dtype), rows=rows)
    if name == "convection_diffusion":
        wind = recirculating_wind(shape).to(dtype)  # type: ignore[arg-type]
        return problems.convection_diffusion(
            wind, settings.peclet, scheme="central", reaction=settings.reaction
        )
    if name == "pyamg_gallery":
        return problems.pyamg_gallery(settings.matrix, dtype=dtype)  # type: ignore[arg-type]
    A = problems.matrix_market(settings.path, dtype=dtype)  # type: ignore[arg-type]
    if name == "matrix_market":
        return A
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"the edges of a graph are entries of a square matrix, got shape {A.shape}")
    edges = torch.stack((A.pattern.row_indices, A.col_indices)).long()
    # One triangle: a file may list every edge once or twice.
    once = edges[:, edges[0] < edges[1]]
    return problems.graph_laplacian(once, n=A.shape[0], shift=settings.shift, both_directions=False)


def recirculating_wind(grid: tuple[int, ...]) -> torch.Tensor:
    """(2 y (1 - x^2), -2 x (1 - y^2)) on [-1, 1]^2, the wind of the "double glazing" problem (Elman,
    Silvester, Wathen, chapter 6)."""
    if len(grid) != 2:
        raise ValueError(f"convection_diffusion needs a shape of two axes, got {list(grid)}")
    axes = [2 * torch.arange(1, n + 1, dtype=torch.float64) / (n + 1) - 1 for n in grid]
    x, y = torch.meshgrid(*axes, indexing="ij")
    return torch.stack((2 * y * (1 - x * x), -2 * x * (1 - y * y)))


def check_energy(A: CSR) -> int:
    """The number of unknowns. Raises SettingError if cheap tests show that e^T A e is not the square of a
    norm."""
    check_square(A.shape)
    S = A.to_scipy()
    worst, largest = (float(abs(M).max()) if M.nnz else 0.0 for M in (S - S.T, S))
    if worst > 1e-6 * largest:
        raise SettingError(
            f"--problem: this recipe needs a symmetric matrix, but A - A^T has an entry {worst:.3g}. "
            "Choose another problem"
        )
    bad = torch.nonzero(A.diagonal() <= 0).flatten()
    if len(bad):
        row = int(bad[0])
        raise not_positive(row, float(A.diagonal()[row]))
    return A.shape[0]


def check_square(shape: tuple[int, ...]) -> None:
    if shape[0] != shape[1] or shape[0] == 0:
        raise SettingError(f"--problem: this recipe needs a square matrix with rows, got shape {shape}")


def not_positive(row: int, entry: float) -> SettingError:
    return SettingError(
        "--problem: this recipe needs a positive definite matrix, but the diagonal entry of row "
        f"{row} is {entry:g}. Choose another problem"
    )


CURVE_NUMBERS = 4_000_000  # elements of the vectors of a curve: more would take longer than the training


@dataclass
class MatrixSettings(VectorSettings):
    """Options of recipes that learn from one matrix.

    Args:
        problem: The matrix to train on.
        engine: torch, or petsc, with the rows of the matrix distributed over the processes of mpirun.
    """

    problem: ProblemSettings = field(default_factory=ProblemSettings)
    engine: Literal["torch", "petsc"] = "torch"


class WholeMatrix:
    """The matrix in one process, for the losses of a `MatrixRecipe`. (`recipes.petsc` distributes its rows
    over several processes.)"""

    rows = slice(None)  # of the test vectors in this process

    def __init__(self, A: CSR):
        self.A, self.n = A, A.shape[0]

    def local(self, t: Tensor) -> Tensor:
        """The rows of this process, of a tensor that all processes hold."""
        return t

    def product(self, model: object) -> Any:
        """The learned preconditioner."""
        return model

    def norm(self, x: Tensor) -> Tensor:
        """The norm of each column."""
        return torch.linalg.vector_norm(x, dim=0)

    def energy(self, x: Tensor) -> Tensor:
        """tr(X^T A X)"""
        return quadratic_form(self.A, x, symmetric=True)


class MatrixRecipe(VectorRecipe):
    """Has the matrix `A`, and the vectors `test_vectors` and `held_out` of shape (n, vectors). `space` is the
    matrix for the losses, `arrays` the number of arrays of the test vectors' size that a step holds."""

    lower_bound = 0.0
    advice = "Try a smaller --lr, or check that the matrix is symmetric positive definite"
    # Vectors are divided by the root of their number: the sum of their energies is then the mean, without an
    # operation for it in each step. (The columns of I need no division: E e e^T = I.)
    by_root: ClassVar[bool] = True

    def __init__(self, settings: Any, arrays: int):
        self.settings, self.where = settings, describe(settings.problem)
        self.space: Any = self.make_space()
        self.n: int = self.space.n
        settings.check_vectors(self.n, arrays)
        vectors = settings.test_vectors
        named = None if isinstance(vectors, int) else self.special_vectors(vectors)
        self.count = vectors if named is None else named.shape[1]
        self.indices = share(self.count)
        if named is None:
            self.test_vectors = self._drawn(self.indices, self.count, TRAINING, rows=self.space.rows)
        else:
            self.test_vectors = named[self.space.rows, self.indices.start : self.indices.stop].contiguous()

    def make_space(self) -> Any:
        check_energy(self.A)
        return WholeMatrix(self.A)

    @cached_property
    def A(self) -> CSR:
        return build(self.settings)

    @cached_property
    def held_out(self) -> Tensor:
        return self._drawn(range(self.settings.held_out), self.settings.held_out, HELD_OUT)

    def every_vector(self) -> Tensor:
        """The test vectors of the first step, with all rows and including those of other processes."""
        vectors = self.settings.test_vectors
        if self.test_vectors.shape == (self.n, self.count):
            return self.test_vectors
        if isinstance(vectors, int):
            return self._drawn(range(vectors), vectors, TRAINING)
        return self.special_vectors(vectors)

    def special_vectors(self, name: str) -> Tensor:
        """The vectors for a `--test_vectors` that is not a number: the columns of I."""
        return torch.eye(self.n, dtype=self.settings.torch_dtype, device=self.settings.device)

    def _drawn(
        self, indices: range, count: int, stream: int, step: int = 0, rows: slice = slice(None)
    ) -> Tensor:
        vectors = self.normal(self.space.A, indices, stream, step, rows)
        return vectors / count**0.5 if self.by_root else vectors

    def vectors(self, step: int) -> Tensor:
        """The test vectors of a step in this process."""
        if self.settings.resample and step > 0:
            return self._drawn(self.indices, self.count, TRAINING, step, self.space.rows)
        return self.test_vectors

    @torch.no_grad()
    def residual_curve(self, solve: Callable[..., Any]) -> list[float]:
        """||A x_k|| over held-out vectors x_0 = e relative to k = 0, for b = 0. It ends on overflow.

        `solve(A, b, x0)` returns a Solution.
        """
        E = self.held_out[:, : max(1, CURVE_NUMBERS // self.A.shape[0])].contiguous()
        norms = solve(self.A, torch.zeros_like(E), E).residual_norms
        total = torch.linalg.vector_norm(norms.double(), dim=1)
        relative = (total / total[0]).tolist() if float(total[0]) > 0 else [0.0] * len(total)
        return [r for r in relative if r < float("inf")]


class EnergyRecipe(MatrixRecipe):
    """Its loss is the energy e^T A e of the errors `after` some sweeps."""

    def after(self, A: object, E: Tensor, *parameters: object) -> Tensor:
        """The errors E after the sweeps, with these parameters, or with the learned ones."""
        raise NotImplementedError

    def loss(self, step: int) -> Tensor:  # faster than one by one
        return self.space.energy(self.after(self.space.A, self.vectors(step)))

    def losses(self, step: int) -> Tensor:
        x = self.after(self.A, self.vectors(step))
        return (x * (self.A @ x)).sum(0)

    @torch.no_grad()
    def held_out_energy(self, *parameters: object) -> float:
        """The energy that the sweeps leave, per held-out vector."""
        return quadratic_form(self.A, self.after(self.A, self.held_out, *parameters), symmetric=True).item()

    def evaluate(self) -> float:
        return self.held_out_energy()
