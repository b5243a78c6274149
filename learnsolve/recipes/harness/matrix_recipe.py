"""Recipes that learn from test vectors and one symmetric positive definite matrix, that of `--problem.*`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from learnsolve.csr import CSR
from learnsolve.recipes.harness import spread
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
    engine : str
        torch; or petsc, with the rows of the matrix over the processes of mpirun.
    """

    problem: ProblemSettings = field(default_factory=ProblemSettings)
    engine: Literal["torch", "petsc"] = "torch"

    def check(self) -> None:
        super().check()
        if self.engine == "petsc":
            spread.check(self)


class MatrixRecipe(VectorRecipe):
    """Has the matrix `A`, and the vectors `test_vectors` and `held_out` of shape (n, vectors).

    With --engine petsc `test_vectors` are the rows of this process; `A` and `held_out` are made, whole, by a
    process that asks for them.

    Parameters
    ----------
    arrays : number of arrays of the test vectors' size that a step holds

    Attributes
    ----------
    spread : with --engine petsc, the matrix over the processes
    by_root : whether the vectors are divided by the root of their number. The sum of their energies is then
        the mean, without an operation for it in each step. (The columns of I need no division: E e e^T = I.)
    """

    lower_bound = 0.0
    advice = "try a smaller --lr, or check that the matrix is symmetric positive definite"
    by_root: ClassVar[bool] = True

    def __init__(self, settings: Any, arrays: int):
        self.settings = settings
        self.spread = spread.Spread(settings) if settings.engine == "petsc" else None
        self.n = check_energy(self.A) if self.spread is None else self.spread.A.shape[0]
        settings.check_vectors(self.n, arrays)
        given = settings.test_vectors
        named = None if isinstance(given, int) else self.named_vectors(given)
        self.count = given if named is None else named.shape[1]
        self.indices = share(self.count)
        if named is None:
            self.test_vectors = self._drawn(self.indices, self.count, TRAINING, rows=self.rows)
        else:
            self.test_vectors = named[self.rows, self.indices.start : self.indices.stop].contiguous()

    @cached_property
    def A(self) -> CSR:
        return build(self.settings)

    @cached_property
    def held_out(self) -> Tensor:
        return self._drawn(range(self.settings.held_out), self.settings.held_out, HELD_OUT)

    @property
    def rows(self) -> slice:
        """Of the test vectors here."""
        return slice(None) if self.spread is None else slice(self.spread.lo, self.spread.hi)

    def every_vector(self) -> Tensor:
        """The test vectors of the first step, also those of other processes."""
        given = self.settings.test_vectors
        if len(self.indices) == self.count and self.spread is None:
            return self.test_vectors
        if isinstance(given, int):
            return self._drawn(range(given), given, TRAINING)
        return self.named_vectors(given)

    def named_vectors(self, name: str) -> Tensor:
        """The vectors of a `--test_vectors` that is not a number: the columns of I."""
        return torch.eye(self.n, dtype=self.settings.torch_dtype, device=self.settings.device)

    def _drawn(
        self, indices: range, count: int, stream: int, step: int = 0, rows: slice = slice(None)
    ) -> Tensor:
        vectors = self.normal(self.A if self.spread is None else self.spread.A, indices, stream, step, rows)
        return vectors / count**0.5 if self.by_root else vectors

    def vectors(self, step: int) -> Tensor:
        if self.settings.resample and step > 0:
            return self._drawn(self.indices, self.count, TRAINING, step, self.rows)
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
