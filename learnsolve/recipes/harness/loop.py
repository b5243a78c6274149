"""The training loop: step, watch, record, checkpoint."""

import math
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from learnsolve.recipes.harness.base import Recipe, RunSettings
from learnsolve.recipes.harness.checkpoint import save_state
from learnsolve.recipes.harness.metrics import Metrics
from learnsolve.recipes.harness.objective import Objective
from learnsolve.recipes.harness.parallel import ALONE, Group, Together
from learnsolve.recipes.harness.progress import Progress
from learnsolve.recipes.harness.tensorboard import TensorBoard

# A loss this many times the first one counts as diverged.
DIVERGED = 1e4
FLUSH_SECONDS = 5.0


class Diverged(Together, RuntimeError):
    """The loss diverged. The message says where and what to try; `folder` has the last good checkpoint."""

    def __init__(self, message: str, folder: Path):
        super().__init__(message)
        self.folder = folder


class Interrupted(Together):
    """Ctrl-C or SIGTERM; a checkpoint has been written at `step`, of the run that `where` names."""

    def __init__(self, step: int, where: str = ""):
        super().__init__(step)
        self.step, self.where = step, where


@dataclass
class Run:
    """A training under way.

    Attributes
    ----------
    step : optimiser steps that have been taken
    first_loss : the loss before the first of them, by which divergence is judged
    seconds : spent in training, over all resumptions
    metrics_bytes : of metrics.csv that belong to the last checkpoint
    group : the processes that train; rank 0 writes
    report : numbers on the training itself for report.json, when it is done
    """

    folder: Path
    settings: RunSettings
    recipe: Recipe
    optimizer: torch.optim.Optimizer
    step: int = 0
    first_loss: float | None = None
    seconds: float = 0.0
    metrics_bytes: int = 0
    group: Group = ALONE
    report: dict[str, Any] = field(default_factory=dict)

    def save(self, metrics: Metrics | None) -> None:
        if metrics is None:  # another process writes
            return
        # The rows must be on disk before the checkpoint that counts them.
        self.metrics_bytes = metrics.size()
        save_state(self.folder, self.recipe.model, self.optimizer, self.facts())

    def facts(self) -> dict[str, Any]:
        """What a checkpoint holds besides tensors. Seed and step are the whole random state (see Recipe)."""
        return {
            "step": self.step,
            "random": {"seed": self.settings.seed, "step": self.step},
            "first_loss": self.first_loss,
            "seconds": self.seconds,
            "metrics_bytes": self.metrics_bytes,
            "recipe": self.recipe.state(),
        }


def train(run: Run) -> None:
    """Take the remaining steps. The run is saved at its end, at intervals, and when it is interrupted.

    Raises
    ------
    Diverged
        when the loss is not finite, 10^4 times the first one, or below the recipe's bound. The last
        checkpoint stays: it was taken where the loss was good.
    Interrupted
        after a checkpoint, on SIGINT or SIGTERM.
    """
    objective = Objective(run.recipe, run.group)
    metrics = logger = None
    if run.group.writes:
        if run.settings.logger == "tensorboard":
            logger = TensorBoard(run.folder, run.step, run.optimizer)
        columns = *run.recipe.columns, *objective.columns
        metrics = Metrics(run.folder, run.metrics_bytes, columns, logger.add if logger else None)
    progress = Progress(run.step, run.settings.steps, run.settings.quiet or not run.group.writes)
    loss = None
    try:
        with _Stop(patient=run.group.size > 1) as stop:
            if run.metrics_bytes == 0:
                run.save(metrics)
            loss = _steps(run, objective, metrics, progress, stop)
        run.report = objective.report(run.step, run.seconds / max(run.step, 1))
    finally:
        progress.close(run.step, loss)
        if metrics is not None:
            metrics.close()
        if logger is not None:
            logger.close()


def _steps(
    run: Run, objective: Objective, metrics: Metrics | None, progress: Progress, stop: "_Stop"
) -> float:
    recipe, optimizer, settings, group = run.recipe, run.optimizer, run.settings, run.group
    parameters = list(recipe.model.parameters())
    clock = time.perf_counter
    start = clock() - run.seconds
    next_save = clock() + settings.checkpoint_seconds
    next_flush = clock() + FLUSH_SECONDS
    while True:
        for p in parameters:  # optimizer.zero_grad() at a tenth of its cost
            p.grad = None
        loss = objective(run.step)
        (loss.sum() if loss.dim() else loss).backward()
        value = (loss.detach().mean() if loss.dim() else loss).item()
        value, stopping, finished = group.total(value, stop.requested, recipe.finished)
        norm = math.hypot(
            *(float(torch.linalg.vector_norm(p.grad)) for p in parameters if p.grad is not None)
        )
        if run.first_loss is None:
            run.first_loss = value
        _watch(run, value, norm)
        now = clock()
        run.seconds = now - start
        # Weights are saved once their loss is checked, and before its row, which a resumed run writes again.
        done = run.step >= settings.steps or finished
        if done or stopping or now >= next_save:
            run.save(metrics)
            if stopping:
                raise Interrupted(run.step)
            next_save = clock() + settings.checkpoint_seconds
        held_out = measured = None
        if metrics is not None:
            if done or run.step % settings.evaluate_every == 0:
                held_out, measured = recipe.evaluate(), (*recipe.measure(), *objective.measure())
            metrics.add(run.step, value, held_out, norm, run.seconds, measured=measured)
        if done:
            return value
        optimizer.step()
        run.step += 1
        if now >= progress.due:
            progress.update(run.step, value, now)
        if metrics is not None and now >= next_flush:
            metrics.flush()
            next_flush = now + FLUSH_SECONDS


def _watch(run: Run, loss: float, gradient_norm: float) -> None:
    first = abs(run.first_loss or 0.0)
    limit = DIVERGED * first or sys.float_info.max  # a first loss of 0 gives no scale
    if abs(loss) <= limit and gradient_norm < float("inf"):
        # Rounding may take a loss of zero below zero.
        if loss >= run.recipe.lower_bound - 1e-6 * first:
            return
        what = f"the loss {loss:.6g} is below its lower bound {run.recipe.lower_bound:g}"
    else:
        what = f"the training diverged: loss {loss:.6g} after {run.first_loss:.6g} at the start"
    raise Diverged(f"step {run.step}: {what}; {run.recipe.advice}", run.folder)


class _Stop:
    """Turns the first SIGINT or SIGTERM into a request; the second one ends the program as usual.

    With `patient` all are requests: torchrun may send several, and kills a process that does not end.
    """

    def __init__(self, patient: bool):
        self.requested = False
        self._patient = patient
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Stop":
        # Only the main thread may set handlers; elsewhere the caller stops the run in its own way.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._request)
        return self

    def _request(self, number: int, frame: Any) -> None:
        if self.requested and not self._patient:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
