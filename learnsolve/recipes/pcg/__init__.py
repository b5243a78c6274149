"""A preconditioner for conjugate gradients, learned through a few of their iterations.

Source: Nytko, Taghibakhshi, Uz Zaman, MacLachlan, Olson, West, "Optimized Sparse Matrix Operations for
Reverse Mode Automatic Differentiation", arXiv 2212.05159, section 4.3 (figures 7 and 8).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.preconditioners import Trainable
from learnsolve.recipes.harness.figures import Curves
from learnsolve.recipes.harness.parallel import summed
from learnsolve.recipes.harness.settings import SettingError
from learnsolve.recipes.matrix import MatrixRecipe, WholeMatrix
from learnsolve.recipes.matrix.problem import grid_of
from learnsolve.recipes.pcg.factor import Guard, build, definiteness, factor_of
from learnsolve.recipes.pcg.results import outcome_of
from learnsolve.recipes.pcg.settings import VARIANTS, PcgSettings
from learnsolve.recipes.schedule import Patience, Scheduled, iterations_at

BUFFERS = 8  # arrays of the vectors' size per step, in addition to two per iteration


class PcgRecipe(Scheduled, MatrixRecipe):
    """A factor of a preconditioner; see `PcgSettings`."""

    Settings = PcgSettings
    columns: ClassVar[tuple[str, ...]] = (
        "learning_rate",
        "iterations",
        "training_residual",
        "held_out_residual",
        "definiteness",
        "shortened_steps",
    )
    files = (
        "evaluation.csv",
        "loss.png",
        "residual.png",
        "residuals.png",
        "residuals_ramp.png",
        "factor.png",
    )
    model: Trainable
    by_root = False
    curves: ClassVar[Mapping[str, Curves]] = {
        "loss.png": Curves(
            "Training loss through {iterations} iterations",
            "residuals, weighted",
            {"loss": "training", "held_out_loss": "held-out, all iterations"},
            log=True,
        ),
        "residual.png": Curves(
            "Residual after the iterations in the loss",
            r"$\|r\| / \|b\|$",
            {"training_residual": "training", "held_out_residual": "held-out"},
            log=True,
        ),
    }
    outcome = outcome_of
    advice = "try a smaller --lr, --clip 1, or check that the matrix is symmetric positive definite"

    def __init__(self, settings: PcgSettings):
        super().__init__(settings, arrays=BUFFERS + 2 * (settings.iterations or 0))
        self.model = build(self.A, settings)
        self.guard = Guard(self.model.parameters(), lambda: factor_of(self.model), settings.guard)
        if settings.guard and not self.guard.holds():
            raise SettingError(f"--guard {settings.guard:g} refuses the start; give a smaller one")
        self.patience = Patience(settings.patience)
        self.step = 0
        self._weights = torch.empty(0)  # of the residuals in the loss, cached between steps
        self._training_residual = torch.zeros(())  # of the last step
        self._held_out_residual = self._held_out_loss = 0.0  # of the last evaluation

    def named_vectors(self, name: str) -> Tensor:
        return self.ramp()

    def ramp(self) -> Tensor:
        """One right-hand side, linear along the last axis of a grid, else along the rows."""
        length = (grid_of(self.settings.problem) or (self.n,))[-1]
        line = torch.linspace(-1, 1, length + 2, dtype=torch.float64)[1:-1]
        if length == 1:
            line = torch.ones(1, dtype=torch.float64)
        settings = self.settings
        return line.repeat(self.n // length).unsqueeze(1).to(settings.torch_dtype).to(settings.device)

    def optimizer(self) -> torch.optim.Optimizer:
        settings = self.settings
        optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
        )
        optimizer.register_step_pre_hook(lambda *_: self.guard.before())
        optimizer.register_step_post_hook(lambda *_: self.guard.after())
        return self.scheduled(optimizer)

    @property
    def iterations(self) -> int:
        """The number of iterations in the loss of this step."""
        return iterations_at(self.step, self.settings.iterations or 0, self.settings.curriculum)

    def residuals(self, vectors: Tensor, iterations: int, space: Any) -> Tensor:
        """||r_i|| / ||b|| for i = 0 .. iterations, shape (iterations + 1, number of vectors)."""
        M = space.product(self.model)
        solution = solvers.cg(space.A, vectors, rtol=0.0, maxiter=iterations, M=M, gradient="unrolled")
        norms = solution.residual_norms
        if (missing := iterations + 1 - norms.shape[0]) > 0:  # all reached rounding level before
            norms = torch.cat((norms, norms[-1:].expand(missing, -1)))
        return norms / space.norm(vectors)

    def _weighted(self, residuals: Tensor) -> Tensor:
        return self._terms(residuals).sum(0)

    def _terms(self, residuals: Tensor) -> Tensor:
        """The weights for `_weighted`, which sums the residuals of each vector."""
        demo = VARIANTS[self.settings.variant].demo
        terms = torch.log10(1 + residuals) if demo else residuals[1:]
        if len(self._weights) != len(terms):
            powers = torch.arange(len(terms) - 1, -1, -1, dtype=terms.dtype, device=terms.device)
            weights = (self.settings.gamma or 0.0) ** powers
            self._weights = (weights / weights.sum()).unsqueeze(-1)
        return self._weights * terms

    def losses(self, vectors: Tensor, step: int) -> Tensor:
        self.step = step
        residuals = self.residuals(vectors, self.iterations, self.space)
        self._see(residuals.detach()[-1])
        return self._weighted(residuals) / self.count

    def loss(self, step: int) -> Tensor:
        self.step = step
        residuals = self.residuals(self.vectors(step), self.iterations, self.space)
        self._see(residuals.detach()[-1])
        return self._terms(residuals).sum() / self.count

    def total(self, vectors: Tensor, step: int) -> Tensor:
        return self._terms(self.residuals(vectors, self.iterations, self.space)).sum() / self.count

    def _see(self, last: Tensor) -> None:
        """Record the mean last residual over all training vectors; `last` has those of this process.

        At each step, so that a run ends at the weights that reach --target, with any number of processes.
        """
        self._training_residual = summed(last.sum()) / self.count
        if self.settings.target is not None and self.iterations == self.settings.iterations:
            self.finished = self.finished or bool(self._training_residual < self.settings.target)

    @torch.no_grad()
    def evaluate(self) -> float:
        residuals = self.residuals(self.held_out, self.settings.iterations or 0, WholeMatrix(self.A))
        self._held_out_residual = residuals[-1].mean().item()
        self._held_out_loss = self._weighted(residuals).mean().item()
        return self._held_out_loss

    def measure(self) -> list[float | None]:
        if self.iterations == self.settings.iterations and self.patience.see(self._held_out_loss):
            self.finished = True
        return [
            self.learning_rate,
            float(self.iterations),
            self._training_residual.item(),
            self._held_out_residual,
            definiteness(factor_of(self.model)),
            float(self.guard.shortened),
        ]

    def state(self) -> dict[str, Any]:
        return {
            "shortened_steps": self.guard.shortened,
            "best_held_out_loss": self.patience.best,
            "waited": self.patience.waited,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.guard.shortened = state["shortened_steps"]
        self.patience.best, self.patience.waited = state["best_held_out_loss"], state["waited"]
        self.finished = self.patience.over
