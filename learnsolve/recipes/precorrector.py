"""A graph network that corrects IC(0), for diffusion with random coefficients.

Source: V. Trifonov et al., "Learning from Linear Algebra: A Graph Neural Network Approach to Preconditioner
Design for Conjugate Gradient Solvers", arXiv 2405.15557.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.ops.direct import spsolve
from learnsolve.preconditioners import PreCorrector
from learnsolve.problems import dataset
from learnsolve.problems.datasets import ProblemDataset
from learnsolve.recipes.family import FactorRecipe, FactorSettings
from learnsolve.recipes.harness.settings import SettingError, at_least


@dataclass
class PrecorrectorSettings(FactorSettings):
    """Learn a graph network that corrects the incomplete Cholesky factor of diffusion matrices.

    The matrices are those of -div(e^k grad u) on square grids, k a Gaussian field; their solutions come from
    a direct solver. The final table also has the published criterion: a residual of 1e-6 from a random x0.

    Parameters
    ----------
    grid : int
        Grid points along each side.
    variance : float
        Variance of the field.
    contrast : list[float]
        Smallest and largest allowed quotient of two coefficients of a matrix; null for any.
    """

    steps: int = 2000
    lr: float = 5e-3
    evaluate_every: int = 50
    out: str = "runs/precorrector"
    grid: int = 32
    variance: float = 0.1
    contrast: list[float] | None = None

    absolute_stop = 1e-6

    def check(self) -> None:
        super().check()
        at_least(self, 2, "grid")
        if self.contrast is not None and len(self.contrast) != 2:
            raise SettingError(
                f"--contrast must be the smallest and the largest quotient, got {self.contrast}"
            )

    def data(self, split: Any, count: int, scale: int = 1) -> ProblemDataset:
        contrast = None if self.contrast is None else tuple(self.contrast)
        return dataset(
            "log_gaussian_diffusion",
            split,
            count,
            n=scale * self.grid,
            variance=self.variance,
            contrast=contrast,
        )

    def network(self, **options: Any) -> PreCorrector:
        return PreCorrector(**options)

    def describe(self, scale: int = 1) -> str:
        side = scale * self.grid
        return f"diffusion {side} x {side}"


class PrecorrectorRecipe(FactorRecipe):
    """See `PrecorrectorSettings`."""

    Settings = PrecorrectorSettings

    def solve(self, A: CSR, B: Tensor) -> Tensor:
        return spsolve(A, B)
