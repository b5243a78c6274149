"""Options shared by recipes, and their checks. Errors are one sentence that names option and remedy."""

from __future__ import annotations

import importlib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, ClassVar, Literal

import torch

MOST_THREADS = 1024
IDENTITY_LIMIT = 4096  # unknowns: n columns of n values, 128 MiB in float64, and several times that in use
HELD_OUT_VECTORS = 100


class SettingError(ValueError):
    """A setting that cannot be used. The message is one sentence that names the option and the remedy."""


class MissingExtra(ImportError):
    """One sentence that names the package and the command that installs it."""


def need(module: str, extra: str = "train") -> ModuleType:
    """The module; MissingExtra, which names the `extra` that installs it, if it cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise MissingExtra(
            f"learnsolve.train needs {package}, which does not import ({error}): "
            f"pip install 'learnsolve[{extra}]'"
        ) from error


@dataclass
class RunSettings:
    """Options that every recipe has.

    Parameters
    ----------
    steps : int
        Total number of optimizer steps, including those before a run was resumed.
    lr : float
        Learning rate of the optimizer.
    dtype : str
        Floating-point type of the matrix, the vectors and the parameters.
    device : str
        Where to compute: cpu, cuda, cuda:N, or auto for cuda if torch sees a GPU.
    threads : int
        Threads that torch may use; null leaves torch's own number.
    seed : int
        Determines all random numbers.
    seeds : int
        Train this number of times, with --seed, --seed + 1 and so on, each in its own folder below --out; the
        report has means and standard deviations.
    evaluate_every : int
        Steps between evaluations of the loss on held-out data.
    checkpoint_seconds : float
        Seconds between checkpoints during training; 0 writes one at every step.
    out : str
        Folder for the results, created if it does not exist.
    resume : str
        Continue the run in this folder with its settings; only --steps, and options that do not change the
        results, may be given again.
    overwrite : bool
        Replace the run that is already in --out.
    quiet : bool
        No progress on the terminal, only the final table.
    logger : str
        Additional log of losses, learning rate and figures; tensorboard: events in --out/tensorboard.
    """

    SYNONYMS: ClassVar[Mapping[str, str]] = {}  # second names of options on the command line
    SIDE_BY_SIDE: ClassVar[bool] = False  # whether one run trains all --seeds

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
        at_least(self, 0, "steps", "seed")
        positive(self, "lr", remedy="; 1e-2 is a good start")
        at_least(self, 1, "threads", "seeds", "evaluate_every")
        if self.threads is not None and self.threads > MOST_THREADS:
            raise SettingError(f"--threads must be at most {MOST_THREADS}, got {self.threads}")
        if self.seed + self.seeds > 2**63:
            raise SettingError(
                f"--seed {self.seed} leaves no room for --seeds {self.seeds}; give a smaller one"
            )
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


@dataclass
class VectorSettings(RunSettings):
    """Options of recipes that learn from a batch of test vectors.

    Parameters
    ----------
    hard_fraction : float
        In each step, learn only from this fraction of the test vectors, those with the largest losses.
    hard_pass : str
        With --hard_fraction: two computes the losses of all vectors without a graph, then the hardest again;
        one computes all with a graph, and gives zero cotangents to the others.
    test_vectors : int
        Number of random test vectors, or identity for the columns of I, which give the exact expectation.
    resample : bool
        Draw new test vectors at every step instead of a fixed set.
    held_out : int
        Number of random vectors to evaluate on; null for as many as test vectors, at most 100.
    """

    hard_fraction: float = 1.0
    hard_pass: Literal["two", "one"] = "two"
    test_vectors: int | Literal["identity"] = 100
    resample: bool = False
    held_out: int | None = None

    def check(self) -> None:
        super().check()
        if not 0 < self.hard_fraction <= 1:
            raise SettingError(
                f"--hard_fraction must be above 0 and at most 1, got {self.hard_fraction}; 0.25 keeps "
                "a quarter"
            )
        if self.hard_pass != "two" and self.hard_fraction == 1:
            raise SettingError(f"--hard_pass {self.hard_pass} needs a --hard_fraction below 1, such as 0.25")
        vectors = self.test_vectors
        if isinstance(vectors, int):
            at_least(self, 1, "test_vectors")
        elif self.resample:
            raise SettingError("--resample true needs random vectors; give --test_vectors a number")
        if self.held_out is None:
            self.held_out = min(vectors, HELD_OUT_VECTORS) if isinstance(vectors, int) else HELD_OUT_VECTORS
        at_least(self, 1, "held_out")

    def check_vectors(self, n: int, arrays: int) -> None:
        """Reject vectors of n elements for which the free memory is too small; a step holds `arrays` arrays
        of their size."""
        vectors = self.test_vectors
        if vectors == "identity" and n > IDENTITY_LIMIT:
            raise SettingError(
                f"--test_vectors identity needs n^2 numbers and takes n <= {IDENTITY_LIMIT}, but the matrix "
                f"has n = {n}; give it a number, such as 100"
            )
        count = vectors if isinstance(vectors, int) else {"identity": n}.get(vectors, 1)
        what, size = f"--test_vectors {vectors} with n = {n}", arrays * n * max(count, self.held_out or 0)
        check_memory(what, size, self, "use fewer (and --held_out), such as 4")


def at_least(settings: Any, minimum: int, *options: str) -> None:
    """Options, or the entries of lists, must be at least `minimum`; null is accepted, here and below."""
    for option in options:
        values = getattr(settings, option)
        for value in values if isinstance(values, list) else [values]:
            if value is not None and value < minimum:
                raise SettingError(f"--{option} must be at least {minimum}, got {value}")


def not_negative(settings: Any, *options: str) -> None:
    for option in options:
        if (value := getattr(settings, option)) is not None and not 0 <= value < math.inf:
            raise SettingError(f"--{option} must not be negative, got {value}")


def positive(settings: Any, *options: str, remedy: str = "") -> None:
    for option in options:
        if (value := getattr(settings, option)) is not None and not 0 < value < math.inf:
            raise SettingError(f"--{option} must be a positive number, got {value}{remedy}")


def check_tolerances(tolerances: list[float]) -> None:
    if not tolerances or not all(0 < t < 1 for t in tolerances):
        raise SettingError(f"--tolerances must be numbers between 0 and 1, got {tolerances}")


def about_option(error: Exception, options: Mapping[str, str], otherwise: str = "") -> SettingError:
    """The library's `error`, "function: argument must ...", as an error of the option that `options` has for
    the argument, or of `otherwise` if it has none."""
    message = " ".join(str(error).split())
    named = re.match(r"[\w.]+: (\w+)", message)
    option = options.get(named[1], otherwise) if named else otherwise
    return SettingError(f"--{option}: {message}" if option else message)


def check_memory(what: str, count: float, settings: RunSettings, remedy: str) -> None:
    """Reject `what`, which needs memory for `count` elements, if less is free."""
    needed, free = count * settings.torch_dtype.itemsize, free_memory(settings.device)
    if needed > free:
        raise SettingError(
            f"{what} needs about {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; {remedy}"
        )


def free_memory(device: str) -> float:
    """Free bytes on the device; infinity if unknown."""
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
    if kind.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"--device {device} needs a GPU, but torch sees none; use --device cpu")
    if kind.type == "cuda" and (kind.index or 0) >= (count := torch.cuda.device_count()):
        raise SettingError(f"--device {device} does not exist; torch sees {count} GPU(s)")
