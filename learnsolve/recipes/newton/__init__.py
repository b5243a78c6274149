"""A network that predicts the start of Newton's method, for the p-Laplacian with random coefficients.

    u minimizes  E(u) = integral of k (|grad u|^2 + 1e-4)^(p/2) / p - u  on the unit square, u = 0 around,

with log-normal k. Newton's method solves grad E(u) = 0. The convex E is also the loss, so training
needs no solutions.

Sources: W. E, B. Yu, "The Deep Ritz Method", Commun. Math. Stat. 6 (2018) 1-12 (the loss); J. Huang, H. Wang,
H. Yang, "Int-Deep: a deep learning initialized iterative method for nonlinear problems", J. Comput. Phys. 419
(2020) 109675 (the start).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from learnsolve.problems import gaussian_field
from learnsolve.recipes.harness.figures import Curves
from learnsolve.recipes.harness.recipe import HELD_OUT, TRAINING, Recipe, stream_seed
from learnsolve.recipes.harness.settings import SettingError, about_option, at_least
from learnsolve.recipes.newton.network import FourierOperator
from learnsolve.recipes.newton.problem import Problem, energy
from learnsolve.recipes.newton.results import outcome_of
from learnsolve.recipes.schedule import Scheduled, ScheduleSettings
from learnsolve.solvers.solution import SolverError


@dataclass
class NewtonSettings(ScheduleSettings):
    """Learn the start of Newton's method for the p-Laplacian with random coefficients.

    A Fourier neural operator maps the logarithm of the coefficients to a start; the loss is its energy, the
    mean over new fields in each step.

    Parameters
    ----------
    dtype : str
        Floating-point type of the network; Newton's method is in float64.
    grid : int
        Cells along each side.
    p : float
        Exponent of the p-Laplacian.
    variance : float
        Variance of the Gaussian field log k.
    length : float
        Correlation length of that field.
    batch : int
        Number of fields per step.
    held_out : int
        Fields on which the loss and the steps of Newton's method are evaluated during training.
    width : int
        Channels of the network.
    modes : int
        Frequencies along each axis.
    rounds : int
        Fourier layers.
    rtol : float
        Newton's method stops when the residual, relative to that of u = 0, is below this value.
    evaluated : int
        Number of fields in the final table.
    scales : list[int]
        Refinement factors of grids on which the table is repeated, with as many times fewer fields.
    solved : int
        Fields solved in advance, for starts from their mean and from the nearest solution.
    repeats : int
        How often each start of the final table is timed; the minimum is reported.
    """

    steps: int = 2000
    lr: float = 5e-3
    dtype: Literal["float32", "float64"] = "float32"
    evaluate_every: int = 100
    out: str = "runs/newton"
    grid: int = 32
    p: float = 5.0
    variance: float = 1.0
    length: float = 0.2
    batch: int = 8
    held_out: int = 8
    width: int = 16
    modes: int = 8
    rounds: int = 4
    rtol: float = 1e-8
    evaluated: int = 20
    scales: list[int] = field(default_factory=lambda: [2, 4])
    solved: int = 64
    repeats: int = 2

    def check(self) -> None:
        super().check()
        at_least(self, 1, "batch", "held_out", "width", "modes", "rounds", "evaluated", "solved", "repeats")
        at_least(self, 2, "scales")
        at_least(self, 4, "grid")
        if not 2 <= self.p < float("inf"):
            raise SettingError(f"--p must be at least 2, the linear problem, got {self.p}")
        if not 0 < self.rtol < 1:
            raise SettingError(f"--rtol must be a number between 0 and 1, got {self.rtol}")
        if self.modes > (most := 5 * self.grid // 4 // 2):  # of the padded grid
            raise SettingError(f"--modes must be at most {most} on --grid {self.grid}, got {self.modes}")


class NewtonRecipe(Scheduled, Recipe):
    """See `NewtonSettings`."""

    Settings = NewtonSettings
    columns: ClassVar[tuple[str, ...]] = ("learning_rate", "energy_gap", "newton_steps")
    files = ("evaluation.csv", "loss.png", "gap.png", "steps.png", "convergence.png")
    curves: ClassVar[Mapping[str, Curves]] = {
        "loss.png": Curves("Energy of the predicted u", "energy, mean over fields"),
        "gap.png": Curves("Energy above the minimum", "mean, held-out fields", {"energy_gap": ""}, log=True),
        "steps.png": Curves("Steps of Newton's method", "mean, held-out fields", {"newton_steps": ""}),
    }
    advice = "try a smaller --lr or --clip"
    alone = "start it without torchrun"
    model: FourierOperator
    outcome = outcome_of

    def __init__(self, settings: NewtonSettings):
        self.settings: Any = settings
        self.where = f"p = {settings.p:g}, {settings.grid} x {settings.grid} cells"
        self.problem, sizes = Problem(settings.p), (settings.width, settings.modes, settings.rounds)
        kind = {"seed": settings.seed, "dtype": settings.torch_dtype}
        self.model = FourierOperator(*sizes, **kind).to(settings.device)
        try:
            self.held_out = self.fields(HELD_OUT, range(settings.held_out))
            self.minima = torch.stack([self.solution(k) for k in self.held_out])
        except ValueError as error:
            raise about_option(error, {"length": "length", "variance": "variance"}) from error
        except SolverError as error:
            raise SettingError(
                f"--p {settings.p:g} with --variance {settings.variance:g}: from zero Newton's method does "
                f"not solve a held-out field ({str(error).partition(' after ')[0]}); take smaller ones"
            ) from error
        self.step = 0

    def fields(self, stream: int, which: Iterable[int], step: int = 0, scale: int = 1) -> Tensor:
        """k on cells, (fields, n, n)."""
        s = self.settings
        options = {"length": s.length, "variance": s.variance, "device": s.device}
        shape = 2 * (scale * s.grid,)
        seeds = (stream_seed(s.seed, stream, step, i) for i in which)
        return torch.stack([gaussian_field(shape, seed, **options).exp() for seed in seeds])

    def solution(self, k: Tensor) -> Tensor:
        return self.problem.solve(k.new_zeros(2 * (len(k) - 1,)), k, self.settings.rtol).x

    def predicted(self, k: Tensor) -> Tensor:
        return self.model(k.log())

    def loss(self, step: int) -> Tensor:
        self.step = step
        k = self.fields(TRAINING, range(self.settings.batch), step)
        return energy(self.predicted(k), k, self.settings.p).mean()

    def optimizer(self) -> torch.optim.Optimizer:
        return self.scheduled(super().optimizer())

    @torch.no_grad()
    def evaluate(self) -> float:
        return energy(self.predicted(self.held_out), self.held_out, self.settings.p).mean().item()

    @torch.no_grad()
    def measure(self) -> list[float | None]:
        k, p = self.held_out, self.settings.p
        u = self.predicted(k)
        gap = (energy(u, k, p) - energy(self.minima, k, p)).mean().item()
        solve = partial(self.problem.solve, rtol=self.settings.rtol, throw=False)
        steps = [solve(*pair).iterations for pair in zip(u, k, strict=True)]
        return [self.learning_rate, gap, sum(steps) / len(steps)]
