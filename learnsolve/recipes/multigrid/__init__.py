"""A graph network that corrects the prolongations of multigrid, for diffusion with random coefficients.

Source: D. Greenfeld et al., "Learning to optimize multigrid PDE solvers", ICML 2019; I. Luz et al., "Learning
algebraic multigrid using graph neural networks", ICML 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from learnsolve.analysis import ErrorPropagator
from learnsolve.csr import CSR
from learnsolve.ops.quadratic_form import quadratic_form
from learnsolve.preconditioners import NeuralAMG
from learnsolve.problems import dataset
from learnsolve.problems.datasets import ProblemDataset
from learnsolve.recipes.harness.base import SettingError, at_least
from learnsolve.recipes.harness.factor_recipe import FactorRecipe, Part
from learnsolve.recipes.harness.factor_settings import FactorSettings

MOST = 48  # of --grid: a dense Cholesky factor of 42 MB for each matrix of a step


@dataclass
class MultigridSettings(FactorSettings):
    """Learn a graph network that corrects the prolongations of Ruge-Stueben multigrid.

    The matrices are Laplacians of Delaunay graphs with log-normal weights, as Luz et al. have them, or those
    of bilinear elements for -div(k grad u) on square grids with log-normal k in each cell, those of
    Greenfeld et al. The network learns two grids, the table has all levels.

    Parameters
    ----------
    loss : str
        cycles: the factor by which a cycle on two grids reduces random errors from N(0, A^-1) in the energy
        norm, the root of the total over --cycles; all modes have the same energy in them. iterations:
        weighted relative residuals of the first iterations of conjugate gradients.
    cycles : int
        Cycles of --loss cycles: few weight all modes of the error, many the slowest.
    family : str
        graph or grid.
    grid : int
        Unknowns along each side; of a graph the root of their number.
    cycle : str
        Cycle of the multigrid method.
    smoother : str
        Its relaxation, one sweep before and one after the correction.
    max_coarse : int
        Unknowns that are solved directly, at most.
    """

    dtype: Literal["float32", "float64"] = "float64"
    steps: int = 600
    lr: float = 3e-3
    evaluate_every: int = 50
    out: str = "runs/multigrid"
    loss: Literal["cycles", "iterations"] = "cycles"  # type: ignore[assignment]
    iterations: int = 4
    matrices: int = 128
    batch: int = 2
    width: int = 16
    resample: bool = True
    cycles: int = 3
    family: Literal["graph", "grid"] = "graph"
    grid: int = 28
    cycle: Literal["V", "W"] = "V"
    smoother: Literal["gauss_seidel", "jacobi"] = "gauss_seidel"
    max_coarse: int = 20

    absolute_stop = None

    def check(self) -> None:
        super().check()
        at_least("grid", self.grid, 4)
        at_least("cycles", self.cycles, 1)
        if self.loss == "cycles" and self.grid > MOST:
            raise SettingError(
                f"--grid must be at most {MOST} with --loss cycles, whose errors need a dense Cholesky "
                f"factor, got {self.grid}; train on a smaller grid, or with --loss iterations"
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

    def network(self, **options: Any) -> NeuralAMG:
        return NeuralAMG(cycle=self.cycle, smoother=self.smoother, max_coarse=self.max_coarse, **options)

    def describe(self, scale: int = 1) -> str:
        side = scale * self.grid
        return f"graph, about {side * side}" if self.family == "graph" else f"diffusion {side} x {side}"


class MultigridRecipe(FactorRecipe):
    """See `MultigridSettings`."""

    Settings = MultigridSettings

    def _pair(self, A: CSR, vectors: Tensor) -> tuple[Tensor, Tensor]:
        if self.settings.loss == "iterations":
            return super()._pair(A, vectors)
        L = torch.linalg.cholesky(A.to_dense())
        errors = torch.linalg.solve_triangular(L.mT, vectors.to(A.dtype), upper=True)
        return errors, errors

    def _loss_of(self, part: Part) -> Tensor:
        if self.settings.loss == "iterations":
            return super()._loss_of(part)
        A, cycles = part.A, self.settings.cycles
        E = ErrorPropagator(A, self.model(part.start), sweeps=cycles)
        before, after = (quadratic_form(A, e, symmetric=True).sum() for e in (part.B, E(part.B)))
        return (after / before) ** (0.5 / cycles)
