"""A graph network that predicts an incomplete factor, for random symmetric positive definite matrices.

Source: P. Häusner, O. Öktem, J. Sjölund, "Neural incomplete factorization: learning preconditioners for the
conjugate gradient method", Transactions on Machine Learning Research, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from learnsolve import solvers
from learnsolve.matrix.csr import CSR
from learnsolve.preconditioners import Jacobi, NeuralIF
from learnsolve.problems import dataset
from learnsolve.problems.datasets import ProblemDataset
from learnsolve.recipes.family import Aggregation, FactorRecipe, FactorSettings
from learnsolve.recipes.harness.settings import SettingError, at_least

SOLVED = 1e-8  # relative residual of the solutions for --loss product


@dataclass
class NeuralifSettings(FactorSettings):
    """Learn a graph network that predicts an incomplete Cholesky factor of random matrices M M^T + alpha I.

    Published: 10,000 rows, a density of 1e-3, 1000 matrices. The default is smaller, with as many entries
    per row.

    Parameters
    ----------
    rows : int
        Rows of a matrix.
    density : float
        Fraction of the entries of M that are drawn; null for ten per row.
    alpha : float
        Shift that makes the matrix definite.
    """

    steps: int = 500
    lr: float = 5e-3
    evaluate_every: int = 50
    out: str = "runs/neuralif"
    loss: Literal["product", "frobenius", "iterations"] = "frobenius"
    resample: bool = True
    matrices: int = 32
    batch: int = 1
    held_out_matrices: int = 8
    validated: int = 4
    aggregate: list[Aggregation] = field(default_factory=lambda: ["sum"])
    repeats: int = 1
    evaluated_larger: int = 5
    rows: int = 500
    density: float | None = None
    alpha: float = 1e-3

    SIZE = "rows"

    def check(self) -> None:
        super().check()
        at_least(self, 2, "rows")
        if self.density is not None and not 0 < self.density <= 1:
            raise SettingError(f"--density must be above 0 and at most 1, got {self.density}")
        if self.resample and self.loss == "product":
            raise SettingError("--loss product solves for its vectors; give --resample false to do so once")
        if not 0 < self.alpha < float("inf"):
            raise SettingError(f"--alpha must be a positive number, got {self.alpha}")

    def data(self, split: Any, count: int, scale: int = 1) -> ProblemDataset:
        n = scale * self.rows
        # The same number of entries per row for every size.
        density = min(1.0, 10 / n) if self.density is None else self.density / scale
        return dataset("random_spd", split, count, n=n, density=density, alpha=self.alpha)

    def network(self, **options: Any) -> NeuralIF:
        return NeuralIF(**options)

    def describe(self, scale: int = 1) -> str:
        return f"random, n = {scale * self.rows}"


class NeuralifRecipe(FactorRecipe):
    """See `NeuralifSettings`."""

    Settings = NeuralifSettings

    def solve(self, A: CSR, B: Tensor) -> Tensor:
        return solvers.cg(A, B, rtol=SOLVED, M=Jacobi(A), throw=True).x
