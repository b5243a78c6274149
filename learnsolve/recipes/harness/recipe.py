"""Base classes of recipes: `Recipe`, which the harness calls; `VectorRecipe`, with a batch of test vectors;
`Scheduled`, for changing learning rates.

Every random number must be a function of (seed, stream, step, index), as in `normal_vectors`. Then the step
is the whole random state, and a resumed run sees the same numbers, as do several processes that share the
work.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from learnsolve.evaluation.figures import Line
from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.figures import Curves, of_run
from learnsolve.recipes.harness.settings import RunSettings

TRAINING, HELD_OUT, COEFFICIENTS = 0, 1, 2  # streams of random numbers


@dataclass
class Outcome:
    """The result of a training."""

    numbers: dict[str, Any]  # for report.json
    columns: list[str]  # columns of the final table
    rows: list[list[Any]] = field(default_factory=list)  # values are formatted when printed
    sentence: str = ""  # what was learned; `learned` in report.json
    figures: Mapping[str, Callable[[], Any]] = field(
        default_factory=dict
    )  # further figures: file, function that draws it
    levels: Mapping[str, Iterable[Line]] = field(
        default_factory=dict
    )  # levels to compare the `curves` with, by file
    texts: dict[str, str] = field(default_factory=dict)  # contents of files by name


class Recipe:
    """A training task. The harness builds it from its settings, trains `model` and calls `outcome`.

    Attributes
    ----------
    Settings : the dataclass of options, a subclass of RunSettings
    columns : names of further columns of metrics.csv, for the values that `measure` returns
    model : its parameters are learned, its state_dict is saved
    curves : figures of columns of metrics.csv, by file; with --seeds as means and bands
    where : a few words about the problem, for titles
    files : names of all texts and figures; a new run removes those of the previous one
    finished : True ends the training before --steps; with several processes it suffices that one sets it
    lower_bound : a loss below it (beyond rounding) means that the task is ill-posed; the run then stops
    advice : what to try when the loss diverges
    alone : what to do instead of training in several processes, which only a `VectorRecipe` supports
    """

    Settings: ClassVar[type[RunSettings]] = RunSettings
    settings: Any
    columns: ClassVar[tuple[str, ...]] = ()
    curves: ClassVar[Mapping[str, Curves]] = {"loss.png": Curves()}
    files: ClassVar[tuple[str, ...]] = ("loss.png",)
    where: str = ""
    finished: bool = False
    model: torch.nn.Module
    lower_bound: float = -math.inf
    advice: str = "try a smaller --lr"
    alone: ClassVar[str] = "start it without torchrun"

    def __init__(self, settings: Any):
        """Build matrix, model and data; SettingError for settings that cannot work."""
        raise NotImplementedError

    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the model's parameters: Adam. All of its state must be tensors."""
        return torch.optim.Adam(self.model.parameters(), lr=self.settings.lr)

    def loss(self, step: int) -> Tensor:
        """The training loss of `step`, a scalar that depends on the model's parameters.

        Or a vector: the losses of trainings that run side by side on separate parameters. Their mean is
        recorded; the gradient is taken of their sum, so that no training depends on how many there are.
        """
        raise NotImplementedError

    def evaluate(self) -> float:
        """The loss on held-out data, which are always the same."""
        raise NotImplementedError

    def measure(self, /) -> Sequence[float | None]:
        """The values of `columns`; called after each `evaluate`, whose results it may use."""
        return ()

    def state(self) -> dict[str, Any]:
        """The state of a resumed run besides model, optimizer and step; only numbers and strings."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""

    def outcome(self, /) -> Outcome:
        """Values, table and sentence about the trained model."""
        raise NotImplementedError

    def figures(self, history: History, outcome: Outcome, /) -> Iterator[tuple[str, Any]]:
        """(file name, matplotlib Figure) of each figure: `curves`, and the figures of the outcome."""
        for file, curves in self.curves.items():
            c = curves.of(self.settings)
            title, levels = f"{c.title}, {self.where}", outcome.levels.get(file, ())
            if (figure := c.picture(title, partial(of_run, history), levels)) is not None:
                yield file, figure
        yield from ((file, draw()) for file, draw in outcome.figures.items())


class VectorRecipe(Recipe):
    """A recipe whose loss is a sum over test vectors.

    Attributes
    ----------
    count : number of test vectors per step, over all processes
    indices : the indices of this process: `share(count)` of `learnsolve.recipes.harness.parallel`. A quantity
        over all training vectors that a recipe records, or stops by, must be summed by `summed` from there
    vector_dim : the axis of `vectors` that counts them
    """

    count: int
    indices: range
    vector_dim: ClassVar[int] = -1

    def vectors(self, step: int) -> Tensor:
        """The test vectors `indices` of `step`, possibly none; or indices by which `losses` finds them."""
        raise NotImplementedError

    def losses(self, vectors: Tensor, step: int) -> Tensor:
        """One loss per vector in `vectors`. Over all vectors they sum to the loss of the step, so for a mean
        each is divided by `count`."""
        raise NotImplementedError

    def total(self, vectors: Tensor, step: int) -> Tensor:
        """The sum of `losses`; for recipes that can compute it faster than one by one."""
        return self.losses(vectors, step).sum()

    def loss(self, step: int) -> Tensor:
        return self.total(self.vectors(step), step)

    def normal(self, A: Any, indices: range, stream: int, step: int = 0, rows: slice = slice(None)) -> Tensor:
        """Vectors from N(0, I) for the rows of A, each a function of the seed and these arguments."""
        kind = {"dtype": A.dtype, "device": self.settings.device, "rows": rows}
        return normal_vectors(A.shape[0], indices, seed=self.settings.seed, stream=stream, step=step, **kind)


def network_facts(model: Any) -> dict[str, Any]:
    """The entries of report.json about a network."""
    weights = sum(p.numel() for p in model.parameters())
    return {"class": type(model).__name__, "weights": weights, **model.settings()}


def number_of_hardest(fraction: float, count: int) -> int:
    """The number of vectors: ceil(fraction * count), with the fraction in decimal."""
    return math.ceil(Fraction(str(fraction)) * count)


def stream_seed(seed: int, stream: int, step: int, index: int) -> int:
    """A 64-bit seed; neighboring arguments give unrelated seeds."""
    key = struct.pack("<4q", seed, stream, step, index)
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def normal_vectors(
    n: int,
    indices: Iterable[int],
    *,
    seed: int,
    stream: int,
    step: int,
    dtype: torch.dtype,
    device: torch.device | str,
    rows: slice = slice(None),
) -> Tensor:
    """The columns `indices` of step `step`, shape (n, len(indices)), from N(0, I); `rows` of them.

    Drawn on the CPU in float64, for every dtype and device, which only change the rounding.
    """
    generator = torch.Generator()
    columns = []
    for index in indices:
        generator.manual_seed(stream_seed(seed, stream, step, index))
        columns.append(torch.randn(n, generator=generator, dtype=torch.float64)[rows].to(dtype, copy=True))
    if not columns:
        return torch.empty((len(range(n)[rows]), 0), dtype=dtype, device=device)
    return torch.stack(columns, dim=1).to(device)
