"""A graph network that corrects the prolongations of multigrid, for diffusion with random coefficients.

Source: D. Greenfeld et al., "Learning to optimize multigrid PDE solvers", ICML 2019; I. Luz et al., "Learning
algebraic multigrid using graph neural networks", ICML 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from learnsolve.analysis import ErrorPropagator
from learnsolve.matrix.csr import CSR
from learnsolve.ops import quadratic_form
from learnsolve.preconditioners import NeuralAMG
from learnsolve.problems import dataset
from learnsolve.problems.datasets import ProblemDataset
from learnsolve.recipes.family import FactorRecipe, GraphSettings, Part, Systems
from learnsolve.recipes.training.settings import SettingError

DENSE = 1024  # maximum size of densely factored matrices: 8 MiB each


@dataclass
class MultigridSettings(GraphSettings):
    """Learn a graph network that corrects the prolongations of Ruge-Stueben multigrid.

    The matrices are from bilinear elements for -div(k grad u) on square grids with log-normal k per cell
    (Greenfeld et al.), or Laplacians of Delaunay graphs with log-normal weights (Luz et al.). The network
    learns on two grids. The table uses all levels.

    Args:
        loss: cycles: the factor by which a cycle reduces random errors from N(0, A^-1) in the energy norm, in
            which all modes have the same energy; the root of the total over --cycles. iterations: weighted
            relative residuals of the first iterations of conjugate gradients.
        cycles: Cycles of --loss cycles: few cycles weight all modes of the error, many the slowest.
        family: grid or graph.
        grid: Unknowns along each side. For a graph, the square root of their number.
        cycle: Cycle of the multigrid method.
        smoother: Its smoother, one sweep before and one after the correction.
        max_coarse: Maximum number of unknowns that are solved directly.
    """

    dtype: Literal["float32", "float64"] = "float64"
    steps: int = 600
    lr: float = 3e-3
    evaluate_every: int = 50
    out: str = "runs/multigrid"
    loss: Literal["cycles", "iterations"] = "cycles"  # type: ignore[assignment]
    iterations: int = 4
    matrices: int = 64
    batch: int = 4
    width: int = 16
    resample: bool = True
    cycles: int = 3
    family: Literal["grid", "graph"] = "graph"
    grid: int = 16
    cycle: Literal["V", "W"] = "V"
    smoother: Literal["gauss_seidel", "jacobi"] = "gauss_seidel"
    max_coarse: int = 20

    def check(self) -> None:
        super().check()
        self.at_least(4, "grid")
        self.at_least(1, "cycles")
        if self.loss == "cycles" and self.grid**2 > DENSE:
            raise SettingError(
                f"--grid must be at most {math.isqrt(DENSE)} with --loss cycles, which factors dense "
                f"matrices to draw errors from N(0, A^-1), got {self.grid}. Pass a smaller grid, or --loss "
                "iterations"
            )
        if not 1 <= self.max_coarse < self.grid**2:
            raise SettingError(
                f"--max_coarse must be at least 1 and below {self.grid**2}, the unknowns, got "
                f"{self.max_coarse}"
            )

    def data(self, split: Any, count: int, scale: int = 1) -> ProblemDataset:
        n = scale * self.grid
        if self.family == "graph":
            return dataset("delaunay_laplacian", split, count, n=n * n, boundary="dirichlet")
        return dataset("q1_diffusion", split, count, n=n, boundary="dirichlet", period=None)

    def network(self) -> NeuralAMG:
        own = {"cycle": self.cycle, "smoother": self.smoother, "max_coarse": self.max_coarse}
        return NeuralAMG(**own, **self.options())

    def describe(self, scale: int = 1) -> str:
        side = scale * self.grid
        return f"graph, about {side * side}" if self.family == "graph" else f"diffusion {side} x {side}"


class MultigridRecipe(FactorRecipe):
    """See `MultigridSettings`."""

    Settings = MultigridSettings

    def _drawn(self, systems: Systems, i: int, number: int, stream: int, step: int) -> Tensor:
        noise = super()._drawn(systems, i, number, stream, step)
        if self.settings.loss != "cycles":
            return noise
        return torch.linalg.solve_triangular(self._factor(systems, i).mT, noise, upper=True)

    def _factor(self, systems: Systems, i: int) -> Tensor:
        """The dense Cholesky factor, L L^T = A."""
        known = self.__dict__.setdefault("_factors", {})
        if (which := (systems is self.training, i)) not in known:
            known[which] = torch.linalg.cholesky(systems.matrices[i].to_dense())
        return known[which]

    def _loss_of(self, part: Part) -> Tensor:
        if self.settings.loss == "iterations":
            return super()._loss_of(part)
        A, cycles = part.A, self.settings.cycles
        E = ErrorPropagator(A, self.model(part.start), sweeps=cycles)
        return (energy(A, E(part.B)) / energy(A, part.B)) ** (0.5 / cycles)


def energy(A: CSR, error: Tensor) -> Tensor:
    """The energy of all columns."""
    return quadratic_form(A, error, symmetric=True).sum()
