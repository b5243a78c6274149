"""The options of the recipe heavyball."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from learnsolve.recipes import _problem
from learnsolve.recipes._memory import free_memory
from learnsolve.recipes.base import SettingError, at_least
from learnsolve.recipes.vector_recipe import VectorSettings

IDENTITY_LIMIT = 4096  # unknowns: n columns of n numbers
BUFFERS = 6  # arrays of the vectors' size that a step holds beside one a sweep
VECTORS = {"scalars": 100, "network": 8}
NETWORK_ONLY = ("family", "grid", "matrices", "held_out_matrices", "layers", "hidden")


@dataclass
class HeavyballSettings(VectorSettings):
    """Learn the two parameters of x <- x + alpha (b - A x) + beta (x - x_before), for a number of sweeps.

    The loss is the energy e^T A e of the error that the sweeps leave of a random vector from N(0, I), as the
    mean over the test vectors. In the variant network it is relative to the energy before them, and a graph
    network predicts alpha and beta from the matrix, over a family of matrices; held-out are other matrices.

    Parameters
    ----------
    steps : int
        Optimiser steps in all; when a run is resumed this counts from its first step.
    evaluate_every : int
        Steps between evaluations of the loss on held-out data, and entries of alpha and beta in metrics.csv.
    out : str
        Folder for the results, made if it does not exist.
    variant : str
        Two numbers for one matrix, or a network for a family of them.
    problem : ProblemSettings
        The matrix to train on (scalars).
    sweeps : int
        Sweeps in the loss; null for three quarters of the points along the grid's longest axis, 12 where
        there is no grid.
    alpha : float
        Where alpha starts (scalars).
    beta : float
        Where beta starts (scalars).
    test_vectors : int
        How many random test vectors, for each matrix of a family; or identity for the columns of I, which
        give the exact expectation; null for 100, in the variant network 8.
    resample : bool
        Draw other test vectors at every step instead of a fixed set.
    held_out : int
        Random vectors to evaluate on, for each held-out matrix; null for as many as test vectors, at most
        100.
    family : str
        Anisotropic problems of random strength and angle, or diffusion with random coefficients (network).
    grid : list[int]
        Grid points along each axis (network).
    matrices : int
        How many to train on (network).
    held_out_matrices : int
        How many to evaluate on (network).
    layers : int
        Rounds of message passing (network).
    hidden : int
        Numbers that a grid point holds in them (network).
    """

    steps: int = 300
    evaluate_every: int = 1
    out: str = "runs/heavyball"
    variant: Literal["scalars", "network"] = "scalars"
    problem: _problem.ProblemSettings = field(default_factory=_problem.ProblemSettings)
    sweeps: int | None = None
    alpha: float = 0.5
    beta: float = 0.5
    test_vectors: int | Literal["identity"] | None = None
    resample: bool = False
    held_out: int | None = None
    family: Literal["anisotropic", "diffusion"] = "anisotropic"
    grid: list[int] = field(default_factory=lambda: [8, 8])
    matrices: int = 256
    held_out_matrices: int = 32
    layers: int = 3
    hidden: int = 16

    def check(self) -> None:
        super().check()
        network = self.variant == "network"
        self._check_variant(network)
        if self.test_vectors is None:
            self.test_vectors = VECTORS[self.variant]
        if isinstance(self.test_vectors, str):
            if self.resample:
                raise SettingError("--resample true needs random vectors; give --test_vectors a number")
        else:
            at_least("test_vectors", self.test_vectors, 1)
        if self.held_out is None:
            self.held_out = 100 if isinstance(self.test_vectors, str) else min(self.test_vectors, 100)
        if self.sweeps is None:
            grid = tuple(self.grid) if network else _problem.grid_of(self.problem)
            self.sweeps = max(1, 3 * max(grid) // 4) if grid else 12
        for name in ("sweeps", "held_out", "matrices", "held_out_matrices", "layers", "hidden"):
            at_least(name, getattr(self, name), 1)
        for name in ("alpha", "beta"):
            if not math.isfinite(getattr(self, name)):
                raise SettingError(f"--{name} must be a number, got {getattr(self, name)}")

    def _check_variant(self, network: bool) -> None:
        usual = HeavyballSettings()
        other, names = ("network", NETWORK_ONLY) if not network else ("scalars", ("problem", "alpha", "beta"))
        for name in names:
            if getattr(self, name) != getattr(usual, name):
                option = "problem.*" if name == "problem" else name
                raise SettingError(f"--{option} belongs to --variant {other}, not to {self.variant}")
        if network and not (1 < len(self.grid) < 4 and min(self.grid) > 1):
            raise SettingError(f"--grid must have two or three axes of 2 points or more, got {self.grid}")
        if network and self.family == "anisotropic" and len(self.grid) != 2:
            raise SettingError("--family anisotropic has two axes; give --grid two, or --family diffusion")


def check_memory(n: int, settings: HeavyballSettings) -> None:
    """Refuse vectors that the free memory has no room for."""
    given, matrices = settings.test_vectors, 1
    if settings.variant == "network":
        matrices = max(settings.matrices, settings.held_out_matrices)
    if isinstance(given, str) and n > IDENTITY_LIMIT:
        raise SettingError(
            f"--test_vectors identity needs n^2 numbers and takes n <= {IDENTITY_LIMIT}, but the matrix has "
            f"n = {n}; give it a number, such as 100"
        )
    vectors = max(n if isinstance(given, str) else given or 0, settings.held_out or 0)
    itemsize = settings.torch_dtype.itemsize
    needed = (BUFFERS + (settings.sweeps or 0)) * n * vectors * matrices * itemsize
    free = free_memory(settings.device)
    if needed > free:
        raise SettingError(
            f"--test_vectors {given} with n = {n} needs about {needed / 2**30:.1f} GiB and "
            f"{free / 2**30:.1f} GiB are free; use fewer (and --held_out), such as 4"
        )
