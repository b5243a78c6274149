"""The two parameters of the heavy ball, learned through its sweeps. (`heavyball_network` predicts them.)

Source: Nytko, Taghibakhshi, Uz Zaman, MacLachlan, Olson, West, "Optimized Sparse Matrix Operations for
Reverse Mode Automatic Differentiation", arXiv 2212.05159, section 4.2 (figures 5 and 6).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.recipes.harness.figures import Curves
from learnsolve.recipes.harness.settings import SettingError, at_least
from learnsolve.recipes.heavyball.results import outcome_of
from learnsolve.recipes.matrix import MatrixRecipe, MatrixSettings
from learnsolve.recipes.matrix.problem import grid_of

BUFFERS = 6  # arrays of the vectors' size per step, in addition to one per sweep


@dataclass
class HeavyballSettings(MatrixSettings):
    """Learn the two parameters of x <- x + alpha (b - A x) + beta (x - x_before), for a number of sweeps.

    The loss is the energy e^T A e of the error after the sweeps from a random vector from N(0, I), as the
    mean over the test vectors.

    Parameters
    ----------
    evaluate_every : int
        Steps between evaluations of the loss on held-out data, and entries of alpha and beta in metrics.csv.
    sweeps : int
        Sweeps in the loss; null for three quarters of the number of points along the grid's longest axis, 12
        without a grid.
    alpha : float
        Initial value of alpha.
    beta : float
        Initial value of beta.
    """

    steps: int = 300
    evaluate_every: int = 1
    out: str = "runs/heavyball"
    sweeps: int | None = None
    alpha: float = 0.5
    beta: float = 0.5

    def check(self) -> None:
        super().check()
        if self.sweeps is None:
            self.sweeps = usual_sweeps(grid_of(self.problem))
        at_least(self, 1, "sweeps")
        for name in ("alpha", "beta"):
            if not math.isfinite(getattr(self, name)):
                raise SettingError(f"--{name} must be a number, got {getattr(self, name)}")


def usual_sweeps(grid: tuple[int, ...] | None) -> int:
    return max(1, 3 * max(grid) // 4) if grid else 12


class HeavyballRecipe(MatrixRecipe):
    """alpha and beta for one matrix; see `HeavyballSettings`."""

    Settings = HeavyballSettings
    columns: ClassVar[tuple[str, ...]] = ("alpha", "beta")
    advice = "try a smaller --lr or --alpha, or check that the matrix is symmetric positive definite"
    files = ("loss.png", "parameters.png", "convergence.png")
    curves: ClassVar[Mapping[str, Curves]] = {
        "loss.png": Curves("Loss through {sweeps} sweeps", "energy of the error, per vector", log=True),
        "parameters.png": Curves(
            "Parameters", "value", {"alpha": r"step size $\alpha$", "beta": r"momentum $\beta$"}
        ),
    }
    outcome = outcome_of

    def __init__(self, settings: HeavyballSettings):
        sweeps = settings.sweeps or 0
        super().__init__(settings, arrays=BUFFERS + sweeps)
        kind = {"dtype": settings.torch_dtype, "device": settings.device}
        alpha, beta = (torch.tensor(value, **kind) for value in (settings.alpha, settings.beta))
        self.model = solvers.Heavyball(alpha, beta, sweeps)

    def total(self, vectors: Tensor, step: int) -> Tensor:
        return self.space.energy(self.model(self.space.A, torch.zeros_like(vectors), vectors).x)

    def losses(self, vectors: Tensor, step: int) -> Tensor:
        x = self.model(self.A, torch.zeros_like(vectors), vectors).x
        return (x * (self.A @ x)).sum(0)

    @torch.no_grad()
    def evaluate(self) -> float:
        return self.losses(self.held_out, 0).sum().item()

    @torch.no_grad()
    def held_out_energy(self, alpha: float, beta: float) -> float:
        """Energy per held-out vector after the sweeps of the loss with other parameters."""
        E, sweeps = self.held_out, self.settings.sweeps
        x = solvers.heavyball(self.A, torch.zeros_like(E), E, alpha=alpha, beta=beta, iterations=sweeps).x
        return (x * (self.A @ x)).sum().item()

    def parameters(self) -> tuple[float, float]:
        """alpha and beta."""
        return self.model.alpha.item(), self.model.beta.item()  # type: ignore[operator, union-attr]

    def measure(self) -> list[float | None]:
        return list(self.parameters())
