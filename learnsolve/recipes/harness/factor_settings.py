"""Options of the recipes that train a network for a family of matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from learnsolve.preconditioners.learned._factor_network import MatrixNetwork
from learnsolve.problems.datasets import ProblemDataset
from learnsolve.recipes.harness.base import SettingError, at_least
from learnsolve.recipes.harness.vector_recipe import VectorSettings

Aggregation = Literal["sum", "mean", "max", "softmax"]


@dataclass
class FactorSettings(VectorSettings):
    """Options of recipes that train a network for a family of matrices.

    Attributes
    ----------
    SIZE : the option with the size of the matrices, the argument n of `problems.dataset`

    Parameters
    ----------
    dtype : str
        Floating-point type of the weights and the loss; solutions and the final evaluation are in float64.
    loss : str
        product: ||L L^T x - b||^2 / ||b||^2 with b from N(0, I) and A x = b, which weights the error of
        L L^T by the inverse of A. frobenius: the same with x from N(0, I) and b = A x. iterations: weighted
        relative residuals of the first iterations of conjugate gradients.
    iterations : int
        Iterations of conjugate gradients in --loss iterations.
    gamma : float
        Weight of a residual relative to that of the next one in --loss iterations.
    matrices : int
        Number of matrices to train on.
    batch : int
        Number of matrices in a step.
    held_out_matrices : int
        Number of matrices on which the loss is evaluated during the training.
    validated : int
        How many of these are solved then, for the column iterations; 0 for none.
    test_vectors : int
        How many random vectors for each matrix, or identity for the columns of I.
    held_out : int
        Random vectors for each held-out matrix; null for as many as test vectors, at most 100.
    rounds : int
        Blocks of message passing.
    width : int
        Features of nodes and edges.
    aggregate : list
        Aggregations over rows and columns: sum, mean, max, softmax.
    clip : float
        Largest norm of the gradient; a larger one is scaled down; null for no limit.
    schedule : str
        Learning rate over the steps: the same, or half a cosine down to a hundredth of it.
    schedule_steps : int
        Steps of the cosine; null for --steps.
    tolerances : list[float]
        Relative residuals to which the final evaluation solves.
    evaluated : int
        Matrices of the final evaluation.
    scales : list[int]
        The final evaluation is repeated on grids (or numbers of rows) as many times as large.
    evaluated_larger : int
        Matrices of each of these.
    repeats : int
        How often each solve of the final evaluation is timed; the median counts.
    """

    SIZE: ClassVar[str] = "grid"

    dtype: Literal["float32", "float64"] = "float32"
    loss: Literal["product", "frobenius", "iterations"] = "product"
    iterations: int = 10
    gamma: float = 0.8
    matrices: int = 256
    batch: int = 8
    held_out_matrices: int = 16
    validated: int = 8
    test_vectors: int | Literal["identity"] = 8
    rounds: int = 3
    width: int = 8
    aggregate: list[Aggregation] = field(default_factory=lambda: ["mean"])
    clip: float | None = 1.0
    schedule: Literal["none", "cosine"] = "cosine"
    schedule_steps: int | None = None
    tolerances: list[float] = field(default_factory=lambda: [1e-3, 1e-6, 1e-9])
    evaluated: int = 100
    scales: list[int] = field(default_factory=lambda: [2, 4])
    evaluated_larger: int = 10
    repeats: int = 3

    def check(self) -> None:
        super().check()
        if self.schedule_steps is None:
            self.schedule_steps = self.steps
        counts = ("matrices", "batch", "held_out_matrices", "rounds", "width", "iterations", "evaluated")
        for name in (*counts, "evaluated_larger", "repeats"):
            at_least(name, getattr(self, name), 1)
        at_least("validated", self.validated, 0)
        at_least("schedule_steps", self.schedule_steps, 0)
        for name in ("gamma", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise SettingError(f"--{name} must be a positive number, got {value}")
        if not self.tolerances or not all(0 < t < 1 for t in self.tolerances):
            raise SettingError(f"--tolerances must be numbers between 0 and 1, got {self.tolerances}")
        if not self.aggregate:
            raise SettingError("--aggregate must name an aggregation such as [mean], got []")
        for scale in self.scales:
            at_least("scales", scale, 2)

    def data(
        self, split: Literal["train", "validation", "test"], count: int, scale: int = 1
    ) -> ProblemDataset:
        """Matrices of the family, `scale` times as large."""
        raise NotImplementedError

    def network(self, **options: Any) -> MatrixNetwork:
        raise NotImplementedError

    def describe(self, scale: int = 1) -> str:
        """The family and the size, for tables and pictures."""
        raise NotImplementedError
