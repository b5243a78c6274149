"""What every recipe has: `RunSettings`, the options of a run, and `Recipe`, what the harness calls."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from learnsolve.recipes.harness.curves import Curves

# Columns of metrics.csv by name; None where a step has no such entry.
History = dict[str, list]
MOST_THREADS = 1024


class SettingError(ValueError):
    """A setting that cannot be used. The message is one sentence that names the option and the remedy."""


@dataclass
class RunSettings:
    """Options that every recipe has.

    Attributes
    ----------
    SYNONYMS : second names of options on the command line
    SIDE_BY_SIDE : whether one run of the recipe trains all --seeds by itself
    FORMER : (recipe, variant, options) if an earlier version had this recipe and another one under one name:
        the other one, the `variant` in this one's config.yaml there, and the options that are now the other's

    Parameters
    ----------
    steps : int
        Optimiser steps in all; when a run is resumed this counts from its first step.
    lr : float
        Learning rate of the optimiser.
    dtype : str
        Floating-point type of the matrix, the vectors and what is learned.
    device : str
        Where to compute: cpu, cuda, cuda:N, or auto for cuda where torch sees a GPU.
    threads : int
        Threads that torch may use; null leaves torch's own number.
    seed : int
        All random numbers follow from it.
    seeds : int
        Train this number of times, with --seed, --seed + 1 and so on, each in a folder of its own below
        --out; the report has means and standard deviations.
    evaluate_every : int
        Steps between evaluations of the loss on held-out data.
    checkpoint_seconds : float
        Seconds between checkpoints while training; 0 writes one at every step.
    out : str
        Folder for the results, made if it does not exist.
    resume : str
        Continue the run in this folder with its settings; only --steps, and options that do not change the
        numbers, may be given again.
    overwrite : bool
        Replace the run that is already in --out.
    quiet : bool
        No progress on the terminal, only the final table.
    logger : str
        Where to send losses, learning rate and pictures beside the files of the run: tensorboard writes
        event files into the folder tensorboard below --out.
    """

    SYNONYMS: ClassVar[Mapping[str, str]] = {}
    SIDE_BY_SIDE: ClassVar[bool] = False
    FORMER: ClassVar[tuple[str, str, tuple[str, ...]] | None] = None

    steps: int = 100
    lr: float = 1e-2
    dtype: Literal["float32", "float64"] = "float64"
    device: str = "cpu"
    threads: int | None = None
    seed: int = 0
    seeds: int = 1
    evaluate_every: int = 10
    checkpoint_seconds: float = 30.0
    out: str = "runs"
    resume: str | None = None
    overwrite: bool = False
    quiet: bool = False
    logger: Literal["none", "tensorboard"] = "none"

    def check(self) -> None:
        """Raise SettingError for the first value that cannot be used."""
        at_least("steps", self.steps, 0)
        if not 0 < self.lr < math.inf:
            raise SettingError(f"--lr must be a positive number, got {self.lr}; 1e-2 is a good start")
        if self.threads is not None:
            at_least("threads", self.threads, 1)
            if self.threads > MOST_THREADS:
                raise SettingError(f"--threads must be at most {MOST_THREADS}, got {self.threads}")
        at_least("seed", self.seed, 0)
        at_least("seeds", self.seeds, 1)
        if self.seed + self.seeds > 2**63:
            raise SettingError(
                f"--seed {self.seed} leaves no room for --seeds {self.seeds}; give a smaller one"
            )
        at_least("evaluate_every", self.evaluate_every, 1)
        if not self.checkpoint_seconds >= 0:
            raise SettingError(f"--checkpoint_seconds must not be negative, got {self.checkpoint_seconds}")
        if not self.out:
            raise SettingError("--out must name a folder, got an empty string")
        if self.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        check_device(self.device)

    def take_defaults(self, variant: Any) -> None:
        """Set each option that is None and for which the dataclass `variant` has a value to that value."""
        for f in fields(variant):
            if getattr(self, f.name, ...) is None:
                setattr(self, f.name, getattr(variant, f.name))

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


def at_least(option: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise SettingError(f"--{option} must be at least {minimum}, got {value}")


def not_negative(option: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise SettingError(f"--{option} must not be negative, got {value}")


def about_option(error: Exception, options: Mapping[str, str], otherwise: str = "") -> SettingError:
    """The library's `error`, "function: argument must ...", of the option that `options` has for the
    argument; of `otherwise` if it has none."""
    message = " ".join(str(error).split())
    named = re.match(r"[\w.]+: (\w+)", message)
    option = options.get(named[1], otherwise) if named else otherwise
    return SettingError(f"--{option}: {message}" if option else message)


def check_memory(what: str, count: float, settings: RunSettings, remedy: str) -> None:
    """Refuse `what`, which needs memory for `count` numbers, if less is free."""
    needed, free = count * settings.torch_dtype.itemsize, free_memory(settings.device)
    if needed > free:
        raise SettingError(
            f"{what} needs about {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; {remedy}"
        )


def free_memory(device: str) -> float:
    """Bytes that are free on the device; infinity where the system does not say."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return math.inf


def check_device(device: str) -> None:
    try:
        kind = torch.device(device)
    except RuntimeError:
        kind = None
    if kind is None or kind.type not in ("cpu", "cuda"):
        raise SettingError(f"--device must be auto, cpu, cuda or cuda:N, got {device!r}")
    if kind.type == "cuda":
        if not torch.cuda.is_available():
            raise SettingError(f"--device {device} needs a GPU, but torch sees none; use --device cpu")
        if kind.index is not None and kind.index >= torch.cuda.device_count():
            count = torch.cuda.device_count()
            raise SettingError(f"--device {device} does not exist; torch sees {count} GPU(s)")


@dataclass
class Outcome:
    """The result of a training.

    Attributes
    ----------
    numbers : for report.json
    columns, rows : the final table; numbers are formatted where it is printed
    sentence : what was learned; `learned` in report.json
    data : what the recipe's own figures need beyond that
    texts : content of files by name
    """

    numbers: dict[str, Any]
    columns: list[str]
    rows: list[list[Any]] = field(default_factory=list)
    sentence: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


class Recipe:
    """A training task. The harness builds it from its settings, trains `model` and calls `outcome`.

    Every random number must be a function of (seed, stream, step, index), as in
    `learnsolve.recipes.harness.vectors`: then the step is the whole random state, a resumed run sees the same
    numbers, and so do several processes that share the work.

    Attributes
    ----------
    Settings : the dataclass of options, a subclass of RunSettings
    columns : names of further columns of metrics.csv, for the numbers that `measure` returns
    model : torch.nn.Module whose parameters are learned and whose state_dict is saved
    curves : pictures of columns of metrics.csv, drawn with mean and band over --seeds
    files : names of all texts of `outcome` and all pictures of `figures`; a new run removes those of the last
    finished : True ends the training before --steps; where several processes train, it is enough that one of
        them sets this, because only rank 0 evaluates
    lower_bound : a loss below it (beyond rounding) means that the task is ill-posed; the run then stops
    advice : what to try when the loss diverges
    alone : what to do instead of training in several processes, which only a `VectorRecipe` supports
    """

    Settings: ClassVar[type[RunSettings]] = RunSettings
    settings: Any
    columns: ClassVar[tuple[str, ...]] = ()
    curves: ClassVar[Mapping[str, Curves]] = {"loss.png": Curves()}
    files: ClassVar[tuple[str, ...]] = ()
    finished: bool = False
    model: torch.nn.Module
    lower_bound: float = -math.inf
    advice: str = "try a smaller --lr"
    alone: ClassVar[str] = "start it without torchrun"

    def __init__(self, settings: Any):
        """Build matrix, model and data; SettingError for what cannot work."""
        raise NotImplementedError

    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of the model's parameters: Adam. All of its state must be tensors."""
        return torch.optim.Adam(self.model.parameters(), lr=self.settings.lr)

    def loss(self, step: int) -> Tensor:
        """The training loss of `step`, a scalar that depends on the model's parameters.

        Or a vector: the losses of trainings that run side by side on parameters of their own. Their mean is
        recorded; the gradient is that of their sum, so that none depends on how many there are.
        """
        raise NotImplementedError

    def evaluate(self) -> float:
        """The loss on held-out data, always the same."""
        raise NotImplementedError

    def measure(self, /) -> Sequence[float | None]:
        """The numbers of `columns`, called after each `evaluate`, whose results it may use."""
        return ()

    def state(self) -> dict[str, Any]:
        """What a resumed run needs beside model, optimiser and step; numbers and strings only."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""

    def outcome(self, /) -> Outcome:
        """Numbers, table and sentence about the trained model."""
        raise NotImplementedError

    def figures(self, history: History, outcome: Outcome, /) -> Iterator[tuple[str, Any]]:
        """(file name, matplotlib Figure) of each picture."""
        raise NotImplementedError
