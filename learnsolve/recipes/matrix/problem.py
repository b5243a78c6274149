"""The matrix that a recipe trains on, chosen by `--problem.*`, and what it must satisfy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from learnsolve import problems
from learnsolve.matrix.csr import CSR
from learnsolve.recipes.harness.recipe import COEFFICIENTS, stream_seed
from learnsolve.recipes.harness.settings import SettingError, about_option, check_memory

USED = {
    "poisson": {"shape", "stencil"},
    "anisotropic": {"shape", "epsilon", "theta"},
    "diffusion": {"shape", "contrast"},
    "convection_diffusion": {"shape", "peclet", "reaction"},
    "graph_laplacian": {"path", "shift"},
    "gallery": {"matrix"},
    "matrix_market": {"path"},
}
BY_ROWS = {"poisson", "anisotropic", "diffusion"}  # families that can make only the rows of a process


@dataclass
class ProblemSettings:
    """The matrix to train on.

    Parameters
    ----------
    name : str
        A family of learnsolve.problems.
    shape : int
        Grid points along each axis, as 16 or [64,64] or [32,32,32] (poisson, anisotropic, diffusion,
        convection_diffusion).
    stencil : str
        Finite differences or, in two dimensions, finite elements (poisson).
    epsilon : float
        Strength of the diffusion across its direction, relative to that along it (anisotropic).
    theta : float
        Angle of the direction in radians (anisotropic).
    contrast : float
        Coefficients are drawn log-uniformly between 1 and this value (diffusion).
    shift : float
        Added to the diagonal; a positive one makes the matrix definite (graph_laplacian).
    peclet : float
        Mesh Peclet number of the recirculating wind; central differences (convection_diffusion).
    reaction : float
        Added to the diagonal; -4 makes it zero (convection_diffusion).
    matrix : str
        Name of an example matrix of pyamg, such as unit_square (gallery).
    path : str
        A Matrix Market file: the matrix (matrix_market), or the edges as its entries (graph_laplacian).
    """

    name: Literal[
        "poisson",
        "anisotropic",
        "diffusion",
        "convection_diffusion",
        "graph_laplacian",
        "gallery",
        "matrix_market",
    ] = "poisson"
    shape: int | list[int] = 16
    stencil: Literal["fd", "q1"] = "fd"
    epsilon: float = 0.1
    theta: float = 0.0
    contrast: float = 100.0
    shift: float = 0.0
    peclet: float = 4.0
    reaction: float = 0.0
    matrix: str | None = None
    path: str | None = None


def grid_of(settings: ProblemSettings) -> tuple[int, ...] | None:
    """The grid whose points are the unknowns, or None."""
    if "shape" not in USED[settings.name]:
        return None
    shape = settings.shape
    return (shape,) if isinstance(shape, int) else tuple(shape)


def describe(settings: ProblemSettings) -> str:
    """A few words for titles."""
    grid = grid_of(settings)
    if grid is not None:
        words = "Poisson" if settings.name == "poisson" else f"{settings.name.replace('_', '-')} problem"
        return f"{len(grid)}D {words}, {' x '.join(map(str, grid))}" + (" points" if len(grid) == 1 else "")
    if settings.name == "gallery":
        return f"pyamg's {settings.matrix}"
    name = (settings.path or "").rsplit("/", 1)[-1]
    return f"graph of {name}" if settings.name == "graph_laplacian" else name


def facts(settings: ProblemSettings, A: CSR) -> dict[str, Any]:
    """The entries of report.json about the matrix."""
    return {"description": describe(settings), "n": A.shape[0], "nnz": A.nnz}


def build(run: Any, share: Callable[[int], tuple[int, int]] | None = None) -> CSR:
    """The matrix of a run's settings; SettingError if the settings or the data are unsuitable.

    share : n -> (lo, hi), to make only these rows, (hi - lo, n); cut out of matrices that cannot be made by
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
    if (grid := grid_of(settings)) and min(grid) > 0:
        entries = math.prod(grid) * (2 * len(grid) + 1)
        # Values and indices, and the same again during assembly.
        check_memory(f"--problem.shape {settings.shape}", 4 * entries, run, "choose a smaller grid")
    try:
        rows = share(math.prod(grid)) if share and grid and settings.name in BY_ROWS else None
        A = _build(settings, run.seed, run.torch_dtype, rows)
        if share and rows is None:
            lo, hi = share(A.shape[0])
            A = CSR.from_scipy(A.to_scipy()[lo:hi])
        return A.to(device=run.device, dtype=run.torch_dtype)
    except (ImportError, NotImplementedError, OSError, TypeError, ValueError) as error:
        options = {f.name: f"problem.{f.name}" for f in fields(settings)}
        options["name"] = "problem.matrix"  # for `gallery`
        raise about_option(error, options, otherwise="problem") from error


def _build(
    settings: ProblemSettings, seed: int, dtype: torch.dtype, rows: tuple[int, int] | None = None
) -> CSR:
    name, shape = settings.name, grid_of(settings)
    if name == "poisson":
        return problems.poisson(shape, stencil=settings.stencil, dtype=dtype, rows=rows)  # type: ignore[arg-type]
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
    if name == "gallery":
        return problems.gallery(settings.matrix, dtype=dtype)  # type: ignore[arg-type]
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
    """The number of unknowns; SettingError if cheap tests show that e^T A e is not the square of a norm."""
    check_square(A.shape)
    S = A.to_scipy()
    worst, largest = (float(abs(M).max()) if M.nnz else 0.0 for M in (S - S.T, S))
    if worst > 1e-6 * largest:
        raise SettingError(
            f"--problem: this recipe needs a symmetric matrix, but A - A^T has an entry {worst:.3g}; "
            "choose another problem"
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
        f"--problem: this recipe needs a positive definite matrix, but the diagonal entry of row "
        f"{row} is {entry:g}; choose another problem"
    )
