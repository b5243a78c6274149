"""Quantities that depend on the training step: learning rate, iterations in the loss, the stop; depth by
depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from learnsolve.recipes.training.settings import RunSettings

LAST = 0.01  # fraction of the learning rate at the end of the cosine


@dataclass
class ScheduleSettings(RunSettings):
    """Options for gradient clipping and a learning rate schedule.

    Args:
        clip: Maximum norm of the gradient, to which larger gradients are scaled down (null: no limit).
        schedule: Learning rate over the steps: constant, or half a cosine down to a hundredth of it.
        schedule_steps: Steps of the cosine (null: --steps).
    """

    clip: float | None = 1.0
    schedule: Literal["none", "cosine"] = "cosine"
    schedule_steps: int | None = None

    def check(self) -> None:
        super().check()
        if self.schedule_steps is None:
            self.schedule_steps = self.steps
        self.at_least(0, "schedule_steps")
        self.positive("clip")


@dataclass
class DepthSettings(ScheduleSettings):
    """Options for training through a number of iterations that may grow.

    Args:
        curriculum: Start with one iteration in the loss and add one each time this number of steps has
            passed. Null uses all from the start.
        patience: Stop after this number of evaluations without a smaller held-out loss (null: never).
    """

    curriculum: int | None = None
    patience: int | None = None

    def check(self) -> None:
        super().check()
        self.at_least(1, "curriculum", "patience")


class Scheduled:
    """First base of a recipe whose settings have `lr`, `schedule`, `schedule_steps` and `clip`."""

    settings: Any
    model: Any
    step: int  # of the last loss

    def optimizer(self) -> torch.optim.Optimizer:
        return self.scheduled(super().optimizer())  # type: ignore[misc]

    @property
    def learning_rate(self) -> float:
        settings = self.settings
        return learning_rate(settings.lr, settings.schedule, self.step, settings.schedule_steps or 0)

    def scheduled(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer. Before each of its steps the gradient is clipped and the rate set."""
        optimizer.register_step_pre_hook(self._before_step)
        return optimizer

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.settings.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        for group in optimizer.param_groups:
            group["lr"] = self.learning_rate


def learning_rate(lr: float, schedule: str, step: int, steps: int) -> float:
    """The rate at a step: `lr`, or half a cosine from `lr` down to a hundredth of it in `steps`.

    Examples
    --------
    >>> [round(learning_rate(1.0, "cosine", step, 100), 3) for step in (0, 50, 100, 200)]
    [1.0, 0.505, 0.01, 0.01]
    """
    if schedule == "none":
        return lr
    part = min(step / max(steps, 1), 1.0)
    return lr * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * part)))


def iterations_at(step: int, iterations: int, every: int | None) -> int:
    """Iterations in the loss of a step: one initially, and one more every `every` steps, up to `iterations`.

    Examples
    --------
    >>> [iterations_at(step, 3, 10) for step in (0, 9, 10, 20, 30)]
    [1, 1, 2, 3, 3]
    """
    return iterations if every is None else min(1 + step // every, iterations)


@dataclass
class Patience:
    """Counts evaluations that did not reduce the best loss by a factor of at least 1 - 1e-6."""

    evaluations: int | None  # the number to wait for
    best: float | None = None
    waited: int = 0

    def see(self, loss: float) -> bool:
        """Whether to stop, after an evaluation with this loss."""
        if self.best is None or loss < (1 - 1e-6) * self.best:
            self.best, self.waited = loss, 0
        else:
            self.waited += 1
        return self.over

    @property
    def over(self) -> bool:
        return self.evaluations is not None and self.waited >= self.evaluations


# Incremental training of weights that differ from iteration to iteration: depth 1 first, then 2, ...
#
# Source: D. Ito, S. Takabe, T. Wadayama, "Trainable ISTA for sparse signal recovery", IEEE Trans. Signal
# Processing 67 (2019), section III; S. Takabe, T. Wadayama, "Convergence acceleration via Chebyshev step:
# plausible interpretation of deep-unfolded gradient descent", arXiv 2010.13335.


def train_by_depth(
    loss: Callable[..., Tensor],
    weights: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    steps: int,
    carry: bool = False,
) -> list[float]:
    """Train the first weight of an iteration, then the first two, and so on, each depth starting from the
    weights learned at the previous one: a deep iteration starts near a good shallow one.

    Parameters
    ----------
    loss : function of the weights of the first iterations, ``w[:depth]`` for each of `weights`, for any depth
    weights : parameters of the same length, with one entry per iteration: the step sizes of
        `solvers.richardson`, alpha and beta of `solvers.heavyball`
    optimizer : optimizer of the weights, which keeps its state from depth to depth. Without weight decay,
        which would change weights that are not trained yet
    steps : optimizer steps at each depth
    carry : a new iteration starts from the weights of the previous one instead of its own

    Returns
    -------
    list of float, the loss before the last step of each depth

    Raises
    ------
    ValueError
        if the weights differ in length, or steps is less than 1
    FloatingPointError
        if a loss is not finite. The weights are those after the last good step

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((16,))
    >>> w = torch.nn.Parameter(torch.full((3,), 0.2, dtype=torch.float64))
    >>> x = torch.randn(16, 8, dtype=A.dtype, generator=torch.Generator().manual_seed(0))
    >>> error = lambda w: ls.solvers.richardson(A, A @ x, weight=w, iterations=len(w)).x - x
    >>> optimizer = torch.optim.Adam([w], lr=0.02)
    >>> losses = train_by_depth(lambda w: error(w).square().mean(), [w], optimizer, steps=30)
    >>> losses[0] > losses[1] > losses[2]
    True
    """
    depths = {len(w) for w in weights}
    if len(depths) != 1 or 0 in depths:
        raise ValueError(
            "train_by_depth: weights must have the same length, an entry for each iteration, got "
            f"{sorted(depths)}"
        )
    if steps < 1:
        raise ValueError(f"train_by_depth: steps must be at least 1, got {steps}")
    (most,), losses = depths, []
    for step in range(most * steps):
        depth = iterations_at(step, most, steps)
        if carry and depth > 1 and step % steps == 0:
            with torch.no_grad():
                for w in weights:
                    w[depth - 1] = w[depth - 2]
        value = loss(*(w[:depth] for w in weights))
        number = value.item()
        if not -float("inf") < number < float("inf"):
            raise FloatingPointError(
                f"train_by_depth: the loss is {number} at depth {depth}, step {step % steps}. Lower the "
                "learning rate or start from smaller weights"
            )
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if (step + 1) % steps == 0:
            losses.append(number)
    return losses
