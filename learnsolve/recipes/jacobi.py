"""Entry-wise weights of Jacobi's method, learned from random test vectors.

Source: Nytko, Taghibakhshi, Uz Zaman, MacLachlan, Olson, West, "Optimized Sparse Matrix Operations for
Reverse Mode Automatic Differentiation", arXiv 2212.05159, section 4.1 (figures 3 and 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.ops.quadratic_form import quadratic_form
from learnsolve.recipes import _jacobi_outcome, _problem
from learnsolve.recipes._definite import check_energy
from learnsolve.recipes._memory import free_memory
from learnsolve.recipes._parallel import share
from learnsolve.recipes._vectors import HELD_OUT, TRAINING, normal_vectors
from learnsolve.recipes.base import History, Outcome, RunSettings, SettingError, at_least
from learnsolve.recipes.vector_recipe import VectorRecipe, VectorSettings

IDENTITY_LIMIT = 4096  # unknowns: n columns of n numbers, 128 MiB in float64, and a few times that at work
BUFFERS = 6  # arrays of the test vectors' size that a step holds, as measured
HELD_OUT_VECTORS = 100


@dataclass
class JacobiSettings(VectorSettings):
    """Learn one weight w_i for every row of x <- x + w D^-1 (b - A x).

    The loss is the energy e^T A e of the error that one sweep leaves of a random vector from N(0, I), as the
    mean over the test vectors; it is reported per test vector.

    Parameters
    ----------
    steps : int
        Optimiser steps in all; when a run is resumed this counts from its first step.
    out : str
        Folder for the results, made if it does not exist.
    problem : ProblemSettings
        The matrix to train on.
    test_vectors : int
        How many random test vectors, or identity for the columns of I, which give the exact expectation.
    resample : bool
        Draw other test vectors at every step instead of a fixed set.
    sweeps : int
        Jacobi sweeps in the loss.
    held_out : int
        Random vectors to evaluate on; null for as many as test vectors, at most 100.
    """

    steps: int = 300
    out: str = "runs/jacobi"
    problem: _problem.ProblemSettings = field(default_factory=_problem.ProblemSettings)
    test_vectors: int | Literal["identity"] = 100
    resample: bool = False
    sweeps: int = 1
    held_out: int | None = None

    def check(self) -> None:
        super().check()
        at_least("sweeps", self.sweeps, 1)
        if isinstance(self.test_vectors, str):
            if self.resample:
                raise SettingError("--resample true needs random vectors; give --test_vectors a number")
        else:
            at_least("test_vectors", self.test_vectors, 1)
        if self.held_out is None:
            count = HELD_OUT_VECTORS if isinstance(self.test_vectors, str) else self.test_vectors
            self.held_out = min(count, HELD_OUT_VECTORS)
        at_least("held_out", self.held_out, 1)


class JacobiRecipe(VectorRecipe):
    """One weight a row; see `JacobiSettings`."""

    Settings: ClassVar[type[RunSettings]] = JacobiSettings
    lower_bound = 0.0
    advice = "try a smaller --lr, or check that the matrix is symmetric positive definite"

    def __init__(self, settings: JacobiSettings):
        self.settings = settings
        self.A = _problem.build(
            settings.problem, seed=settings.seed, dtype=settings.torch_dtype, device=settings.device
        )
        n = check_energy(self.A, "jacobi")
        _check_memory(n, settings)
        weight = torch.ones(n, dtype=settings.torch_dtype, device=settings.device)
        self.model = solvers.Jacobi(weight, iterations=settings.sweeps)
        # All vectors are divided by the root of their number: the sum of their energies is then the mean,
        # without an operation for it in every step. The columns of I need no division: E e e^T = I.
        self.count = n if isinstance(settings.test_vectors, str) else settings.test_vectors
        self.indices = share(self.count)
        if isinstance(settings.test_vectors, str):
            rows = torch.arange(n, device=self.A.device).unsqueeze(1)
            own = torch.arange(self.indices.start, self.indices.stop, device=self.A.device)
            self.test_vectors = (rows == own).to(self.A.dtype)
        else:
            self.test_vectors = self._normal(self.indices, self.count, TRAINING, 0)
        self._zeros = torch.zeros_like(self.test_vectors)
        held_out = settings.held_out or 1
        self.held_out = self._normal(range(held_out), held_out, HELD_OUT, 0)

    def _normal(self, indices: range, count: int, stream: int, step: int) -> Tensor:
        vectors = normal_vectors(
            self.A.shape[0],
            indices,
            seed=self.settings.seed,
            stream=stream,
            step=step,
            dtype=self.A.dtype,
            device=self.A.device,
        )
        return vectors / count**0.5

    @property
    def weight(self) -> Tensor:
        return self.model.weight  # type: ignore[return-value]

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=self.settings.lr)

    def vectors(self, step: int) -> Tensor:
        if self.settings.resample and step > 0:
            return self._normal(self.indices, self.count, TRAINING, step)
        return self.test_vectors

    def total(self, vectors: Tensor, step: int) -> Tensor:
        return quadratic_form(self.A, self._swept(vectors), symmetric=True)

    def losses(self, vectors: Tensor, step: int) -> Tensor:
        x = self._swept(vectors)
        return (x * (self.A @ x)).sum(0)

    def _swept(self, E: Tensor) -> Tensor:
        zeros = self._zeros if E.shape == self._zeros.shape else torch.zeros_like(E)
        return self.model(self.A, zeros, E).x

    def evaluate(self) -> float:
        return self.held_out_energy(self.weight)

    @torch.no_grad()
    def held_out_energy(self, weight: Tensor | float) -> float:
        """Energy per held-out vector that the sweeps of the loss leave with `weight`."""
        E = self.held_out
        x = solvers.jacobi(self.A, torch.zeros_like(E), E, weight=weight, iterations=self.settings.sweeps).x
        return quadratic_form(self.A, x, symmetric=True).item()

    def outcome(self) -> Outcome:
        return _jacobi_outcome.outcome(self)

    def figures(self, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
        from learnsolve.recipes import _jacobi_plots  # matplotlib is wanted only now

        return _jacobi_plots.figures(self, history, outcome)


def _check_memory(n: int, settings: JacobiSettings) -> None:
    itemsize = settings.torch_dtype.itemsize
    if isinstance(settings.test_vectors, str):
        if n > IDENTITY_LIMIT:
            raise SettingError(
                f"--test_vectors identity needs n^2 numbers and takes n <= {IDENTITY_LIMIT}, but the matrix "
                f"has n = {n} ({BUFFERS * n * n * itemsize / 2**30:.1f} GiB); give it a number, such as 100"
            )
        return
    needed = BUFFERS * n * max(settings.test_vectors, settings.held_out or 1) * itemsize
    free = free_memory(settings.device)
    if needed > free:
        raise SettingError(
            f"--test_vectors {settings.test_vectors} with n = {n} needs about {needed / 2**30:.1f} GiB and "
            f"{free / 2**30:.1f} GiB are free; use fewer (and --held_out), such as 4"
        )
