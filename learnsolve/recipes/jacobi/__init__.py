"""Entry-wise weights of Jacobi's method, learned from random test vectors.

Source: Nytko, Taghibakhshi, Uz Zaman, MacLachlan, Olson, West, "Optimized Sparse Matrix Operations for
Reverse Mode Automatic Differentiation", arXiv 2212.05159, section 4.1 (figures 3 and 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.ops.quadratic_form import quadratic_form
from learnsolve.recipes.harness.figures import Curves
from learnsolve.recipes.harness.settings import at_least
from learnsolve.recipes.jacobi.results import outcome_of
from learnsolve.recipes.matrix import MatrixRecipe, MatrixSettings


@dataclass
class JacobiSettings(MatrixSettings):
    """Learn one weight w_i per row of x <- x + w D^-1 (b - A x).

    The loss is the energy e^T A e of the error after one sweep from a random vector from N(0, I), as the
    mean over the test vectors; it is reported per test vector.

    Parameters
    ----------
    sweeps : int
        Jacobi sweeps in the loss.
    """

    steps: int = 300
    out: str = "runs/jacobi"
    sweeps: int = 1

    def check(self) -> None:
        super().check()
        at_least(self, 1, "sweeps")


class JacobiRecipe(MatrixRecipe):
    """One weight per row; see `JacobiSettings`."""

    Settings = JacobiSettings
    files = ("energy.png", "loss.png", "weights.png")
    curves: ClassVar[Mapping[str, Curves]] = {
        "loss.png": Curves("Training loss", "energy of the error, per vector", log=True)
    }
    outcome = outcome_of

    def __init__(self, settings: JacobiSettings):
        super().__init__(settings, arrays=6)  # as measured
        weight = torch.ones(self.n, dtype=settings.torch_dtype, device=settings.device)
        self.model = solvers.Jacobi(weight, iterations=settings.sweeps)
        self._zeros = torch.zeros_like(self.test_vectors)

    @property
    def weight(self) -> Tensor:
        return self.model.weight  # type: ignore[return-value]

    def total(self, vectors: Tensor, step: int) -> Tensor:
        return self.space.energy(self.after(vectors, self.space.local(self.weight), self.space.A))

    def losses(self, vectors: Tensor, step: int) -> Tensor:
        x = self.after(vectors, self.weight, self.A)
        return (x * (self.A @ x)).sum(0)

    def evaluate(self) -> float:
        return self.held_out_energy(self.weight)

    @torch.no_grad()
    def held_out_energy(self, weight: Tensor | float) -> float:
        """Energy per held-out vector after the sweeps of the loss with `weight`."""
        return quadratic_form(self.A, self.after(self.held_out, weight, self.A), symmetric=True).item()

    def after(self, E: Tensor, weight: Tensor | float, A: Any) -> Tensor:
        """The errors E after the sweeps of the loss."""
        zeros = self._zeros if E.shape == self._zeros.shape else torch.zeros_like(E)
        sweeps = self.settings.sweeps
        if isinstance(weight, Tensor) and sweeps > 1:
            weight = weight.unsqueeze(0)  # in full: (n,) could mean one per sweep if sweeps = n
        return solvers.jacobi(A, zeros, E, weight=weight, iterations=sweeps).x
