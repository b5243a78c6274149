"""Recipes that learn from test vectors and one symmetric positive definite matrix, chosen by
`--problem.*`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.ops.quadratic_form import quadratic_form
from learnsolve.recipes.harness.parallel import share
from learnsolve.recipes.harness.recipe import HELD_OUT, TRAINING, VectorRecipe
from learnsolve.recipes.harness.settings import VectorSettings
from learnsolve.recipes.matrix.problem import ProblemSettings, build, check_energy, describe

CURVE_NUMBERS = 4_000_000  # elements of the vectors of a curve: more would take longer than the training


@dataclass
class MatrixSettings(VectorSettings):
    """Options of recipes that learn from one matrix.

    Parameters
    ----------
    problem : ProblemSettings
        The matrix to train on.
    engine : str
        torch; or petsc, with the rows of the matrix distributed over the processes of mpirun.
    """

    problem: ProblemSettings = field(default_factory=ProblemSettings)
    engine: Literal["torch", "petsc"] = "torch"


class WholeMatrix:
    """The matrix in one process, for the losses of a `MatrixRecipe`. (`recipes.petsc` distributes its rows
    over several processes.)

    Attributes
    ----------
    A, n : the matrix, and the number of unknowns
    rows : the rows of the test vectors in this process
    """

    rows = slice(None)

    def __init__(self, A: CSR):
        self.A, self.n = A, A.shape[0]

    def local(self, t: Tensor) -> Tensor:
        """The rows of this process, of a tensor that all processes hold."""
        return t

    def product(self, model: Any) -> Any:
        """The learned preconditioner."""
        return model

    def norm(self, x: Tensor) -> Tensor:
        """The norm of each column."""
        return torch.linalg.vector_norm(x, dim=0)

    def energy(self, x: Tensor) -> Tensor:
        """tr(X^T A X)"""
        return quadratic_form(self.A, x, symmetric=True)


class MatrixRecipe(VectorRecipe):
    """Has the matrix `A`, and the vectors `test_vectors` and `held_out` of shape (n, vectors).

    Parameters
    ----------
    arrays : number of arrays of the test vectors' size that a step holds

    Attributes
    ----------
    space : the matrix for the losses
    by_root : whether the vectors are divided by the root of their number. The sum of their energies is then
        the mean, without an operation for it in each step. (The columns of I need no division: E e e^T = I.)
    """

    lower_bound = 0.0
    advice = "try a smaller --lr, or check that the matrix is symmetric positive definite"
    by_root: ClassVar[bool] = True

    def __init__(self, settings: Any, arrays: int):
        self.settings, self.where = settings, describe(settings.problem)
        self.space: Any = self.make_space()
        self.n: int = self.space.n
        settings.check_vectors(self.n, arrays)
        vectors = settings.test_vectors
        named = None if isinstance(vectors, int) else self.named_vectors(vectors)
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
        return self.named_vectors(vectors)

    def named_vectors(self, name: str) -> Tensor:
        """The vectors for a `--test_vectors` that is not a number: the columns of I."""
        return torch.eye(self.n, dtype=self.settings.torch_dtype, device=self.settings.device)

    def _drawn(
        self, indices: range, count: int, stream: int, step: int = 0, rows: slice = slice(None)
    ) -> Tensor:
        vectors = self.normal(self.space.A, indices, stream, step, rows)
        return vectors / count**0.5 if self.by_root else vectors

    def vectors(self, step: int) -> Tensor:
        if self.settings.resample and step > 0:
            return self._drawn(self.indices, self.count, TRAINING, step, self.space.rows)
        return self.test_vectors

    @torch.no_grad()
    def residual_curve(self, solve: Callable[..., Any]) -> list[float]:
        """||A x_k|| over held-out vectors x_0 = e relative to k = 0, for b = 0; it ends on overflow.

        `solve(A, b, x0)` returns a Solution.
        """
        E = self.held_out[:, : max(1, CURVE_NUMBERS // self.A.shape[0])].contiguous()
        norms = solve(self.A, torch.zeros_like(E), E).residual_norms
        total = torch.linalg.vector_norm(norms.double(), dim=1)
        relative = (total / total[0]).tolist() if float(total[0]) > 0 else [0.0] * len(total)
        return [r for r in relative if r < float("inf")]
