"""Recipes that learn from test vectors and one symmetric positive definite matrix, that of `--problem.*`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from learnsolve.csr import CSR
from learnsolve.recipes.harness.parallel import share
from learnsolve.recipes.harness.problem import ProblemSettings, build, check_energy
from learnsolve.recipes.harness.vector_recipe import VectorRecipe, VectorSettings
from learnsolve.recipes.harness.vectors import HELD_OUT, TRAINING

CURVE_NUMBERS = 4_000_000  # in the vectors of a curve: more would take longer than the training


@dataclass
class MatrixSettings(VectorSettings):
    """Options of recipes that learn from one matrix.

    Parameters
    ----------
    problem : ProblemSettings
        The matrix to train on.
    """

    problem: ProblemSettings = field(default_factory=ProblemSettings)


class MatrixRecipe(VectorRecipe):
    """Holds the matrix `A`, and the vectors `test_vectors` and `held_out` of shape (n, vectors).

    Parameters
    ----------
    arrays : number of arrays of the test vectors' size that a step holds

    Attributes
    ----------
    by_root : whether the vectors are divided by the root of their number. The sum of their energies is then
        the mean, without an operation for it in each step. (The columns of I need no division: E e e^T = I.)
    """

    lower_bound = 0.0
    advice = "try a smaller --lr, or check that the matrix is symmetric positive definite"
    by_root: ClassVar[bool] = True

    def __init__(self, settings: Any, arrays: int):
        self.settings = settings
        self.A: CSR = build(settings)
        settings.check_vectors(check_energy(self.A), arrays)
        given = settings.test_vectors
        named = None if isinstance(given, int) else self.named_vectors(given)
        self.count = given if named is None else named.shape[1]
        self.indices = share(self.count)
        if named is None:
            self.test_vectors = self._drawn(self.indices, self.count, TRAINING)
        else:
            self.test_vectors = named[:, self.indices.start : self.indices.stop].contiguous()
        self.held_out = self._drawn(range(settings.held_out), settings.held_out, HELD_OUT)

    def named_vectors(self, name: str) -> Tensor:
        """The vectors of a `--test_vectors` that is not a number: the columns of I."""
        return torch.eye(self.A.shape[0], dtype=self.A.dtype, device=self.A.device)

    def _drawn(self, indices: range, count: int, stream: int, step: int = 0) -> Tensor:
        vectors = self.normal(self.A, indices, stream, step)
        return vectors / count**0.5 if self.by_root else vectors

    def vectors(self, step: int) -> Tensor:
        if self.settings.resample and step > 0:
            return self._drawn(self.indices, self.count, TRAINING, step)
        return self.test_vectors

    @torch.no_grad()
    def residual_curve(self, solve: Callable[..., Any]) -> list[float]:
        """||A x_k|| over held-out vectors x_0 = e relative to k = 0, for b = 0; it ends where it overflows.

        `solve(A, b, x0)` returns a Solution.
        """
        E = self.held_out[:, : max(1, CURVE_NUMBERS // self.A.shape[0])].contiguous()
        norms = solve(self.A, torch.zeros_like(E), E).residual_norms
        total = torch.linalg.vector_norm(norms.double(), dim=1)
        relative = (total / total[0]).tolist() if float(total[0]) > 0 else [0.0] * len(total)
        return [r for r in relative if r < float("inf")]
