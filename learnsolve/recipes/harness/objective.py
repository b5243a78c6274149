"""What a training step minimises: a recipe's loss, or that of its hardest vectors, over all processes."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from learnsolve.recipes.harness.base import Recipe
from learnsolve.recipes.harness.parallel import Group
from learnsolve.recipes.harness.vector_recipe import VectorRecipe, number_kept

LOSS_OF_ALL = "loss_of_all"
REPEATS = 5
LONG = 1.0  # seconds; a longer step is timed once


class Objective:
    """Call it with a step for the loss to differentiate.

    In several processes this is the part of this one, and the gradients that `backward` leaves are those of
    the sum over all of them.

    Attributes
    ----------
    columns : further columns of metrics.csv
    """

    def __init__(self, recipe: Recipe, group: Group):
        self.recipe, self.group = recipe, group
        self.kept = self.count = 0
        self.fraction, self.how = 1.0, "two"
        self.columns: tuple[str, ...] = ()
        self._losses: Tensor | None = None  # of all vectors in the last step
        if isinstance(recipe, VectorRecipe):
            self.count, self.fraction = recipe.count, recipe.settings.hard_fraction
            self.kept = number_kept(self.fraction, recipe.count)
            self.how = recipe.settings.hard_pass
        if self.kept < self.count:
            self.columns = (LOSS_OF_ALL,)
        self._parallel = None
        if group.size > 1:
            self._parallel = DistributedDataParallel(_Part(recipe.model, self._part))
            self._parallel.register_comm_hook(None, _summed)

    def __call__(self, step: int) -> Tensor:
        return self._loss(step, self.kept, self.how)

    def measure(self) -> tuple[float, ...]:
        """The numbers of `columns`, for the last step."""
        return () if self._losses is None else (self._losses.double().sum().item(),)

    def _loss(self, step: int, kept: int, how: str) -> Tensor:
        if self._parallel is not None:
            return self._parallel(step, kept, how)
        return self._part(step, kept, how)

    def _part(self, step: int, kept: int, how: str) -> Tensor:
        recipe = self.recipe
        if kept == self.count:
            return recipe.loss(step)
        assert isinstance(recipe, VectorRecipe)
        vectors = recipe.vectors(step)
        with torch.set_grad_enabled(how == "one"):
            losses = recipe.losses(vectors, step)
        self._losses = losses.detach()
        if self.group.size > 1:
            self._losses = self.group.gathered(self._losses, recipe.indices, self.count)
        # Stable: of equal losses, those with the smaller indices.
        hardest = torch.sort(self._losses, descending=True, stable=True).indices[:kept].sort().values
        if self.group.size > 1:
            own = (hardest >= recipe.indices.start) & (hardest < recipe.indices.stop)
            hardest = (hardest[own] - recipe.indices.start).to(vectors.device)
        scale = self.count / kept
        if how == "one":
            return losses.index_select(0, hardest).sum() * scale
        return recipe.total(vectors.index_select(recipe.vector_dim, hardest), step) * scale

    def report(self, step: int, seconds: float) -> dict[str, Any]:
        """Numbers for report.json. All processes must call it; `seconds` is the time of a step."""
        found: dict[str, Any] = {"processes": self.group.size}
        if self.kept == self.count:
            return found
        repeats = self.group.of_first(REPEATS if seconds < LONG else 1)
        variants = {"all": (self.count, "two"), "two": (self.kept, "two"), "one": (self.kept, "one")}
        times: dict[str, list[float]] = {name: [] for name in variants}
        for turn in range(repeats + (repeats > 1)):  # in turns; the first one builds plans
            for name, (kept, how) in variants.items():
                start = time.perf_counter()
                loss = self._loss(step, kept, how)
                loss.backward()
                if loss.is_cuda:
                    torch.cuda.synchronize()
                if turn or repeats == 1:
                    times[name].append(time.perf_counter() - start)
        return {
            **found,
            "hardest": {
                "fraction": self.fraction,
                "kept": self.kept,
                "of": self.count,
                "pass": self.how,
                "seconds_per_step": {name: statistics.median(t) for name, t in times.items()},
            },
        }


class _Part(torch.nn.Module):
    """This process's part of the loss as a module, which is what DistributedDataParallel takes.

    With the model's parameters only: buffers, such as the arrays of a pattern, are the same in all processes
    and never change, but would be sent at each step.
    """

    def __init__(self, model: torch.nn.Module, part: Any):
        super().__init__()
        self.learned = torch.nn.ParameterList(model.parameters())
        self._part = part

    def forward(self, step: int, kept: int, how: str) -> Tensor:
        return self._part(step, kept, how)


def _summed(state, bucket):  # without annotations: those that torch checks differ between its versions
    """The sum of all processes' gradients, where DistributedDataParallel takes their mean by itself."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])  # type: ignore[union-attr]
