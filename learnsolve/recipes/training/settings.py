"""Options shared by recipes and their checks, and the command line of a recipe, built from its dataclass of
settings by jsonargparse, which converts values, reads config files and prints help. Errors are one line that
names the option."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import importlib
import math
import os
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

MOST_THREADS = 1024
IDENTITY_LIMIT = 4096  # unknowns: n columns of n values, 128 MiB in float64, and several times that in use
HELD_OUT_VECTORS = 100


class SettingError(ValueError):
    """A setting that cannot be used. The message is one line that names the option or the config file."""


class MissingExtra(ImportError):
    """One sentence that names the package and the command that installs it."""


def need(module: str, extra: str = "train") -> ModuleType:
    """The module. Raises MissingExtra, which names the `extra` that installs it, if it cannot be imported."""
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

    Args:
        steps: Total number of optimizer steps, including those before a run was resumed.
        lr: Learning rate of the optimizer.
        dtype: Floating-point type of the matrix, the vectors and the parameters.
        device: Where to compute: cpu, cuda, cuda:N, or auto for cuda if torch sees a GPU.
        threads: Threads that torch may use. Null leaves torch's own number.
        seed: Determines all random numbers.
        seeds: Train this number of times, with --seed, --seed + 1 and so on, each in its own folder below
            --out. The report has means and standard deviations.
        evaluate_every: Steps between evaluations of the loss on held-out data.
        checkpoint_seconds: Seconds between checkpoints during training; 0: one at every step; .inf: none.
        out: Folder for the results, created if it does not exist.
        resume: Continue the run in this folder with its settings; only --steps, and options that do not
            change the results, may be given again.
        overwrite: Replace the run that is already in --out.
        quiet: No progress on the terminal, only the final table.
        logger: Additional log of losses, learning rate and figures; tensorboard: events in --out/tensorboard.
        clip: Maximum norm of the gradient, to which larger gradients are scaled down (null: no limit).
        schedule: Learning rate over the steps: constant, or half a cosine down to a hundredth of it.
        schedule_steps: Steps of the cosine (null: --steps).
    """

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
    clip: float | None = None
    schedule: Literal["none", "cosine"] = "none"
    schedule_steps: int | None = None

    def check(self) -> None:
        """Raise SettingError for the first value that cannot be used."""
        self.check_minimum(0, "steps", "seed")
        self._must(lambda value: value >= 0, "at least 0", ["checkpoint_seconds"])
        self.positive("lr", "clip")
        if self.schedule_steps is None:
            self.schedule_steps = self.steps
        self.check_minimum(0, "schedule_steps")
        self.check_minimum(1, "threads", "seeds", "evaluate_every")
        if self.threads is not None and self.threads > MOST_THREADS:
            raise SettingError(f"--threads must be at most {MOST_THREADS}, got {self.threads}")
        if self.seed + self.seeds > 2**63:
            raise SettingError(
                f"--seed {self.seed} leaves no room for --seeds {self.seeds}. Pass a smaller one"
            )
        if not self.out:
            raise SettingError("--out must name a folder, got an empty string")
        if self.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        check_device(self.device)

    def check_minimum(self, minimum: float, *options: str) -> None:
        """Options, or the entries of lists, must be finite and at least `minimum`; null is accepted."""
        self._must(lambda value: minimum <= value < math.inf, f"at least {minimum}", options)

    def positive(self, *options: str) -> None:
        self._must(lambda value: 0 < value < math.inf, "a positive number", options)

    def fractions(self, *options: str) -> None:
        if empty := [option for option in options if getattr(self, option) == []]:
            raise SettingError(f"--{empty[0]} must be numbers between 0 and 1, got []")
        self._must(lambda value: 0 < value < 1, "between 0 and 1", options)

    def _must(self, holds: Callable[[Any], bool], what: str, options: Sequence[str]) -> None:
        for option in options:
            value = getattr(self, option)
            entries = value if isinstance(value, list) else [value]
            if not all(entry is None or holds(entry) for entry in entries):
                raise SettingError(f"--{option} must be {what}, got {value}")

    def check_memory(self, what: str, count: float, remedy: str) -> None:
        """Reject `what`, which needs memory for `count` elements, if less is free."""
        needed, free = count * self.torch_dtype.itemsize, free_memory(self.device)
        if needed > free:
            needed, free = needed / 2**30, free / 2**30
            raise SettingError(f"{what} needs about {needed:.1f} GiB and {free:.1f} GiB are free. {remedy}")

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


@dataclass
class VectorSettings(RunSettings):
    """Options of recipes that learn from a batch of test vectors.

    Args:
        hard_fraction: In each step, learn only from this fraction of the test vectors, those with the largest
            losses.
        test_vectors: Number of random test vectors, or identity for the columns of I, which give the exact
            expectation.
        resample: Draw new test vectors at every step instead of a fixed set.
        held_out: Number of random vectors to evaluate on (null: as many as test vectors, at most 100).
    """

    hard_fraction: float = 1.0
    test_vectors: int | Literal["identity"] = 100
    resample: bool = False
    held_out: int | None = None

    def check(self) -> None:
        super().check()
        if not 0 < self.hard_fraction <= 1:
            raise SettingError(
                f"--hard_fraction must be above 0 and at most 1, got {self.hard_fraction}. 0.25 keeps "
                "a quarter"
            )
        vectors = self.test_vectors
        if isinstance(vectors, int):
            self.check_minimum(1, "test_vectors")
        elif self.resample:
            raise SettingError("--resample true needs random vectors. Pass a number to --test_vectors")
        if self.held_out is None:
            self.held_out = min(vectors, HELD_OUT_VECTORS) if isinstance(vectors, int) else HELD_OUT_VECTORS
        self.check_minimum(1, "held_out")

    def check_vectors(self, n: int, arrays: int) -> None:
        """Reject vectors of n elements for which the free memory is too small. A step holds `arrays` arrays
        of their size."""
        vectors = self.test_vectors
        if vectors == "identity" and n > IDENTITY_LIMIT:
            raise SettingError(
                f"--test_vectors identity needs n^2 numbers and takes n <= {IDENTITY_LIMIT}, but the matrix "
                f"has n = {n}. Pass a number, such as 100"
            )
        count = vectors if isinstance(vectors, int) else {"identity": n}.get(vectors, 1)
        what, size = f"--test_vectors {vectors} with n = {n}", arrays * n * max(count, self.held_out or 0)
        self.check_memory(what, size, "Use fewer (and --held_out), such as 4")


def about_option(error: Exception, options: Mapping[str, str], otherwise: str = "") -> SettingError:
    """The library's `error`, "function: argument must ...", as an error of the option that `options` has for
    the argument, or of `otherwise` if it has none."""
    message = " ".join(str(error).split())
    named = re.match(r"[\w.]+: (\w+)", message)
    option = options.get(named[1], otherwise) if named else otherwise
    return SettingError(f"--{option}: {message}" if option else message)


def free_memory(device: str) -> float:
    """Free bytes on the device, or infinity if unknown."""
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
        raise SettingError(f"--device {device} needs a GPU, but torch sees none. Use --device cpu")
    if kind.type == "cuda" and (kind.index or 0) >= (count := torch.cuda.device_count()):
        raise SettingError(f"--device {device} does not exist. torch sees {count} GPU(s)")


CONFIG, WRITTEN_BY = "config.yaml", "# learnsolve.train"  # the first line tells that the folder is a run's
LIMIT = 2**63
DEEPEST = 32  # levels of lists and mappings: deeper ones overflow the stack of the parser
LARGEST = 2**20  # bytes of a config file
# Options of the invocation, not of the run: neither stored nor compared.
TRANSIENT = {"resume", "overwrite", "quiet"}
# Options that may change when a run is resumed.
FREE = {"steps", "checkpoint_seconds", "out", "logger", *TRANSIENT}


def parse(name: str, Settings: type[RunSettings], argv: Sequence[str]) -> RunSettings:
    """Settings from command line and config files, with --resume from the run's own config file."""
    settings = _parse(name, Settings, argv)
    if settings.resume is None:
        settings.check()
        return settings
    folder = Path(settings.resume)
    if not (folder / CONFIG).is_file():
        raise SettingError(
            f"--resume {folder}: there is no run in this folder. Start one with --out {folder}"
        )
    stored = ["--config", str(folder / CONFIG)]
    before, now = _parse(name, Settings, stored), _parse(name, Settings, [*stored, *argv])
    before.check()
    now.check()
    free = FREE if 1 in (before.seeds, now.seeds) else {*FREE, "seeds"}
    if "seeds" in free and now.seeds < before.seeds:
        raise SettingError(f"--seeds {now.seeds} is less than the {before.seeds} that the run has")
    for (option, value), old in zip(flat(now).items(), flat(before).values(), strict=True):
        if option not in free and value != old:
            raise SettingError(
                f"--{option} {value} would change the run, which was started with {old}. Remove it, or "
                "start another run with another --out"
            )
    if now.out != before.out and Path(now.out).resolve() != folder.resolve():
        raise SettingError(
            f"--out {now.out} differs from --resume {folder}: a run continues in its own folder"
        )
    return dataclasses.replace(now, out=str(folder))


def dump(settings: RunSettings) -> str:
    """The settings as YAML, as --config reads them."""
    stored = {k: v for k, v in dataclasses.asdict(settings).items() if k not in TRANSIENT}
    return f"{WRITTEN_BY}\n{need('yaml').safe_dump(stored, sort_keys=False)}"


def flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    """The values by option; values of a nested dataclass as problem.shape."""
    values = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        nested = dataclasses.is_dataclass(value)
        values |= flat(value, f"{prefix}{field.name}.") if nested else {prefix + field.name: value}
    return values


@functools.cache
def parser(name: str, Settings: type[RunSettings]) -> Any:
    """The parser of jsonargparse."""
    program = f"python -m learnsolve.train {name}"
    parser = need("jsonargparse").ArgumentParser(prog=program, exit_on_error=False, allow_abbrev=False)
    config_help = "YAML file with options, such as a run's config.yaml."
    parser.add_argument("--config", action="config", help=config_help)
    parser.add_class_arguments(Settings)
    return parser


def _parse(name: str, Settings: type[RunSettings], argv: Sequence[str]) -> RunSettings:
    words = list(_normalize_options(Settings, argv))
    try:
        settings = _build(Settings, parser(name, Settings).parse_args(words).as_dict())
    except argparse.ArgumentError as error:
        files = [word for word in words if word.startswith("--config=")]
        for file in files if len(words) > 1 else ():  # the message does not say whether a file is wrong
            _parse(name, Settings, [file])
        where = f"{files[0].replace('=', ' ', 1)}: " if files == words else ""
        raise SettingError(where + _add_hint(" ".join(str(error).split()), name, Settings)) from error
    for option, value in flat(settings).items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not -LIMIT <= number < LIMIT:
                digits = len(str(number))
                raise SettingError(f"--{option} must be a 64-bit number, got one with {digits} digits")
    return settings


def _normalize_options(Settings: type[RunSettings], argv: Sequence[str]) -> Iterator[str]:
    """The options as --option=value, with `--quiet=true` for `--quiet`. Raises SettingError for values beyond
    the limits on YAML."""
    words, usual = list(argv), flat(Settings())
    while words:
        word, equals, value = words.pop(0).partition("=")
        name = word.removeprefix("--")
        if word.startswith("--") and name not in ("help", "print_config"):
            if not equals and words and not words[0].startswith("--"):
                equals, value = "=", words.pop(0)
            elif not equals and isinstance(usual.get(name), bool):
                equals, value = "=", "true"
            if equals:
                _check_config(value) if name == "config" else _check_text(word, value)
        yield word + equals + value


WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}


def kind(of: object) -> str:
    """The values of an option, in words."""
    origin, arguments = typing.get_origin(of), typing.get_args(of)
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin is list:
        entry = kind(arguments[0])
        return f"a list of {entry.removeprefix('a ')}s" if arguments[0] in WORDS else f"a list of {entry}"
    return " or ".join(map(kind, arguments)) if arguments else WORDS[of]  # type: ignore[index]


def _add_hint(message: str, name: str, Settings: type[RunSettings]) -> str:
    """jsonargparse's message, with what the option takes, or the nearest known for an unknown one."""
    message = re.sub(
        "Group '(.*?)' does not accept option '(.*?)'", r"Option '\1.\2' is not accepted", message
    )
    if group := re.match(r"""Parser key "(.*?)": Unable to load config (.*) - """, message):
        return f"--{group[1]} must have options below it, got {group[2]}. Remove it"
    wrong = re.match(r"""Parser key "(.*?)": (?:Does not .*? Given|Expected a .*Got) value:(.*)""", message)
    if wrong:
        of = functools.reduce(lambda of, part: typing.get_type_hints(of)[part], wrong[1].split("."), Settings)
        value = wrong[2].strip()
        value = value if value.startswith(("[", "{", "None")) else repr(value)
        return f"--{wrong[1]} must be {kind(of)}, got {value}"
    unknown = re.search(r"(?:unrecognized arguments: |Option ')-*([^ ='-][^ =']*)", message)
    if unknown is None:
        return re.sub('Parser key "([^"]*)":', r"--\1:", message)
    near = difflib.get_close_matches(unknown[1], flat(Settings()), n=1)
    hint = f"Did you mean --{near[0]}?" if near else f"See python -m learnsolve.train {name} --help"
    return f"{message}. {hint}"


def _build(cls: type, values: dict[str, Any], prefix: str = "") -> Any:
    """The dataclass from nested dictionaries."""
    hints = typing.get_type_hints(cls)
    arguments = {}
    for field in dataclasses.fields(cls):
        option, kind = prefix + field.name, hints[field.name]
        value = values[field.name]
        if dataclasses.is_dataclass(kind):
            if not isinstance(value, dict):  # jsonargparse accepts it, and a missing value below
                raise SettingError(f"--{option} must have options below it, got {value!r}. Remove it")
            value = _build(kind, value, f"{option}.")  # type: ignore[arg-type]
        elif value is None and type(None) not in typing.get_args(kind):
            raise SettingError(f"--{option} must have a value, got none. Remove it")
        arguments[field.name] = value
    return cls(**arguments)


# --- limits on YAML: deep nesting overflows the parsers' stack, aliases of aliases grow without bound ---


def _check_config(path: str) -> None:
    """Reject a config file beyond the limits."""
    try:
        if not Path(path).is_file():
            raise ValueError("there is no such file")
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"must not be larger than {LARGEST} bytes")
        text = content.decode()
        _check_text("its content", text)
        options = need("yaml").safe_load(text)
    except Exception as error:  # the parser raises other errors than YAMLError
        raise SettingError(f"--config {path}: {' '.join(str(error).split())}") from error
    if not isinstance(options, dict):
        raise SettingError(f"--config {path}: must be a YAML file with options")
    if "config" in options:
        raise SettingError(f"--config {path}: a config file cannot name another. Pass both as options")


def _check_text(where: str, text: str) -> None:
    """Reject YAML text that is nested too deeply or uses aliases."""
    yaml, depth = need("yaml"), 0
    for character in text:  # before the scanner, whose time is quadratic
        depth += (character in "[{") - (character in "]}")
        if depth > DEEPEST:
            raise SettingError(f"{where}: lists may be nested {DEEPEST} deep, got more brackets")
    depth = 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise SettingError(f"{where}: YAML's aliases are not supported, got *{event.anchor}")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise SettingError(f"{where}: lists may be nested {DEEPEST} deep, got more")
    except yaml.YAMLError:
        pass  # not YAML: no nesting
