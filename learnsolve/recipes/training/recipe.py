"""Base classes of recipes: `Recipe`, which the loop calls, and `VectorRecipe`, with a batch of test vectors;
and what depends on the step or the depth of a training.

Every random number must be a function of (seed, stream, step, index), as in `normal_vectors`. Then the step
is the whole random state, and a resumed run sees the same numbers, as do several processes that share the
work. Figures and tables are data.
"""

from __future__ import annotations

import hashlib
import math
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from learnsolve import preconditioners
from learnsolve.evaluation import Evaluation, compare_preconditioners
from learnsolve.evaluation.comparison import align_columns, format_csv
from learnsolve.evaluation.figures import COLORS, Line, bars, picture, residuals_figure
from learnsolve.recipes.training.checkpoint import History
from learnsolve.recipes.training.settings import RunSettings

# Tables as data: columns by header, each a key of a row or a function of it. `flat` gives the rows of an
# `Evaluation`, `cells` the cells that a tolerance adds to a line.


LEARNED = "learned"
DIVERGE = "Repeated more often than in the loss, the sweeps diverge. Train with more --sweeps."
AMG_COARSE = 100  # maximum number of rows that AMG solves directly

Row = dict[str, Any]
Column = str | Callable[[Row], Any]


def tabulate(
    rows: Iterable[Row], columns: Mapping[str, Column], each: Callable[[Row], Row] | None = None
) -> tuple[list[str], list[list[Any]]]:
    """The headers, and a line for each name, which is the first column: the `columns` of its first row, then
    the result of `each` for every row, by header. None is an empty cell."""
    heads, lines = list(columns), {}
    for row in rows:
        line = [column(row) if callable(column) else row[column] for column in columns.values()]
        line, more = lines.setdefault(line[0], line), each(row) if each else {}
        heads += more if line[0] == next(iter(lines)) else ()
        line += more.values()
    return heads, [["" if cell is None else cell for cell in line] for line in lines.values()]


def format_table(outcome: Outcome) -> list[list[str]]:
    """The headers and the lines of the final table as text."""
    lines = ([c if isinstance(c, str) else f"{c:#.4g}" for c in row] for row in outcome.rows)
    return [list(outcome.columns), *lines]


def table(outcome: Outcome) -> str:
    """The final table as text, the first column left, the others right."""
    return align_columns(format_table(outcome), left={0})


def verdict(
    compared: Mapping[str, Row],
    columns: Mapping[str, str],
    own: str = LEARNED,
    bounds: Mapping[str, str] = {},
    missing: str = "diverges",
) -> str:
    """Which row is the best in each column, to the digits shown, and the value of `own`.

    `columns`: headers and their keys. Smaller values are better, None is the worst, printed as `missing`.
    `bounds`: by header, the row that has the smallest expected value and therefore does not count there.

    Examples
    --------
    >>> compared = {"learned": {"a": 1.0, "b": None}, "usual": {"a": 2.0, "b": 0.5}}
    >>> verdict(compared, {"loss": "a", "factor": "b"})
    'Best in loss: learned (1). Best in factor: usual (0.5, learned: diverges).'
    """
    words = []
    for head, key in columns.items():
        rows = {name: row[key] for name, row in compared.items() if name != bounds.get(head)}
        shown = {name: math.inf if value is None else float(f"{value:.4g}") for name, value in rows.items()}
        best = min(shown, key=lambda name: (shown[name], name != own))
        beside = f", {own}: {shown[own]:.4g}".replace(" inf", f" {missing}") if best != own else ""
        if shown[best] < math.inf:
            words.append(f"Best in {head}: {best} ({shown[best]:.4g}{beside}).")
    return " ".join(words)


def compare_records(
    numbers: Row,
    key: str,
    compared: Mapping[str, Row],
    columns: Mapping[str, str],
    shown: Mapping[str, Column] = {},
    own: str = LEARNED,
    bounds: Mapping[str, str] = {},
) -> Outcome:
    """The outcome of a comparison of records by name, `key` in report.json: the verdict on those `columns`
    that are known, the table with the `shown` ones too, and levels of the first column in loss.png."""
    known = {
        head: column
        for head, column in columns.items()
        if any(record.get(column) is not None for record in compared.values())
    }
    rows = [{"name": name, **record} for name, record in compared.items()]
    for row in rows:
        row |= {column: "diverges" for column in known.values() if row[column] is None}
    first, *_ = columns.values()
    lines = [
        Line(f"{name}, held-out", record[first])
        for name, record in compared.items()
        if name != own and record.get(first) is not None
    ]
    table, words = tabulate(rows, {key: "name", **shown, **known}), verdict(compared, known, own, bounds)
    return Outcome(numbers | {key: compared}, *table, words, levels={"loss.png": lines})


# --- evaluations ---


def compare(A: object, b: object, M: Mapping[str, Any], rtol: Sequence[float], **options: Any) -> Evaluation:
    """`compare_preconditioners`, with a row for a preconditioner that fails, instead of warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compare_preconditioners(A, b, dict(M), rtol=rtol, on_error="row", **options)  # type: ignore[arg-type]


def add_amg(candidates: dict[str, object], n: int) -> dict[str, Any]:
    """The candidates and AMG for n rows, with several levels even for small matrices, since on one level AMG
    is a direct solve."""
    coarse = max(1, min(AMG_COARSE, n // 8))
    return candidates | {"AMG": partial(preconditioners.AMG, max_coarse=coarse)}


def flat(evaluation: Evaluation, **which: object) -> list[Row]:
    """The rows of an evaluation, one value per column, preceded by the columns `which`."""
    rows = []
    for row in evaluation.rows:
        line = which | {key: getattr(row, key) for key in ("preconditioner", "rtol", "systems", "converged")}
        line |= {"iterations": row.iterations.mean, "iterations_std": row.iterations.std}
        line |= {"iterations_min": row.iterations.min, "iterations_max": row.iterations.max}
        line |= {"seconds": row.seconds.mean, "seconds_std": row.seconds.std}
        line |= {"setup_seconds": row.setup.mean, "setup_seconds_std": row.setup.std}
        rows.append(line | {"message": row.message})
    return rows


def iterations(row: Row) -> str:
    """Mean and deviation, or the number of systems that reached the tolerance if some did not."""
    if row["converged"] < row["systems"]:
        return f"{row['converged']}/{row['systems']} reached"
    return f"{row['iterations']:.1f}" + (f" ± {row['iterations_std']:.1f}" if row["systems"] > 1 else "")


def milliseconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{1e3 * seconds:.2f}"


def cells(row: Row) -> Row:
    """The cells of a tolerance, for `tabulate`, without seconds for a rule named by `rtol`."""
    if isinstance(row["rtol"], str):
        return {row["rtol"]: iterations(row)}
    return {f"iterations {row['rtol']:.0e}": iterations(row), "ms": milliseconds(row["seconds"])}


def rank_times(rows: Iterable[Row], rtol: float) -> dict[str, tuple[float, float]]:
    """Setup and solve of each preconditioner that solved all its systems, the fastest first."""
    found = {}
    for row in rows:
        if row["rtol"] == rtol and row["converged"] == row["systems"]:
            up = 0.0 if math.isnan(row["setup_seconds"]) else row["setup_seconds"]
            found[row["preconditioner"]] = up, row["seconds"]
    return dict(sorted(found.items(), key=lambda item: sum(item[1])))


def make_race_outcome(
    numbers: Row,
    rows: list[Row],
    label: str,
    rtol: float,
    where: str,
    columns: Mapping[str, Column] = {},
    noun: str = "",
    histories: Mapping[str, list[Tensor]] = {},
) -> Outcome:
    """The outcome of a comparison of preconditioners: verdict, table, evaluation.csv, times.png and, of the
    `histories` of residuals, convergence.png.

    `label` is the key of rows that tells systems apart, `columns` are further ones of the table. `noun`
    follows the value of the label in the verdict. A learned preconditioner without a setup was made by the
    training, whose time is not compared.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[label], []).append(row)

    def trained(row: Row) -> bool:
        return row["preconditioner"] == LEARNED and not row["message"] and math.isnan(row["setup_seconds"])

    words = [f"To {rtol:.0e}, setup included{', training not counted' * any(map(trained, rows))}:"]
    for group, part in groups.items():
        (own,) = (row for row in part if (row["preconditioner"], row["rtol"]) == (LEARNED, rtol))
        seconds = rank_times(part, rtol)
        if LEARNED not in seconds:
            words.append(f"On {group}{noun} it solves {own['converged']} of {own['systems']}.")
            continue
        time, rival = sum(seconds.pop(LEARNED)), next(iter(seconds), None)
        words.append(f"On {group}{noun} it takes {own['iterations']:.1f} iterations")
        if rival is not None:
            ratio = time / sum(seconds[rival])
            words[-1] += f" and {ratio:.2f} of the time of the fastest other, {rival}"
        words[-1] += "."
    heads = {
        f"{label.replace('_', ' ')}: preconditioner": lambda row: f"{row[label]}: {row['preconditioner']}",
        **columns,
        "setup ms": lambda row: "training" if trained(row) else milliseconds(row["setup_seconds"]),
    }
    figures = {}
    if seconds := rank_times(part, rtol):
        times = {name: [1e3 * t for t in pair] for name, pair in seconds.items()}
        title = f"{where},\ntimes on {group}"
        figures["times.png"] = partial(bars, title, "ms, setup (dark) and solve", times)
    if finite := {name: [h for h in runs if h.isfinite().all()] for name, runs in histories.items()}:
        title, levels = f"{where}, {group}, median and range", {row["rtol"] for row in rows}
        figures["convergence.png"] = partial(residuals_figure, title, finite, levels)
    table = tabulate(rows, heads, cells)
    numbers = numbers | {"evaluation": rows}
    return Outcome(numbers, *table, " ".join(words), figures, texts={"evaluation.csv": format_csv(rows)})


def middle(tolerances: Sequence[float]) -> float:
    return sorted(tolerances)[len(tolerances) // 2]


Series = tuple[Any, Any, tuple[Any, Any] | None]  # x, y and a band
LOSSES = {"loss": "training", "held_out_loss": "held-out"}  # columns and their labels
HELD_OUT_MATRICES = LOSSES | {"held_out_loss": "held-out matrices"}


@dataclass(frozen=True)
class Curves:
    """A figure of columns of metrics.csv (with labels) over the steps: for one run, or for --seeds with mean
    and band. Title and labels may name settings, such as "{sweeps} sweeps"."""

    title: str = "Loss"
    ylabel: str = "loss"
    columns: Mapping[str, str] = field(default_factory=lambda: dict(LOSSES))
    log: bool = False  # for the value axis
    xlabel: str = "optimizer step"
    ylim: tuple[float | None, float | None] | None = None

    def of(self, settings: object) -> Curves:
        """Insert the values of the settings."""
        labels = {column: label.format_map(vars(settings)) for column, label in self.columns.items()}
        return replace(self, title=self.title.format_map(vars(settings)), columns=labels)

    def picture(self, title: str, series: Callable[[str], Series], levels: Iterable[Line] = ()) -> Any:
        """The figure, or None if no column has an entry. `series`: the steps of a column, its values, and
        their band or None. Levels far above the curves are left out."""
        lines = []
        for (column, label), color in zip(self.columns.items(), COLORS, strict=False):
            steps, values, band = series(column)
            if len(steps):
                style = {"color": color, "linewidth": 1.5 if lines else 2}
                lines.append(Line(label, values, steps, band, style))
        if not lines:
            return None
        if self.log:
            highest = max(max(line.y) for line in lines)
            levels = [level for level in levels if 0 < level.y < 30 * highest]
        log, options = "y" * self.log, {"ylim": self.ylim} if self.ylim else {}
        return picture(title, self.xlabel, self.ylabel, [*levels, *lines], log=log, **options)


def read_series(history: History, column: str) -> Series:
    """A column of metrics.csv."""
    pairs = [(k, v) for k, v in zip(history["step"], history.get(column, ()), strict=False) if v is not None]
    x, y = np.array(pairs).reshape(-1, 2).T
    return x, y, None


TRAINING, HELD_OUT, COEFFICIENTS = 0, 1, 2  # streams of random numbers


@dataclass
class Outcome:
    """The result of a training."""

    numbers: dict[str, Any]  # for report.json
    columns: list[str]  # columns of the final table
    rows: list[list[Any]] = field(default_factory=list)  # values are formatted when printed
    sentence: str = ""  # what was learned; `learned` in report.json
    figures: dict[str, Callable[[], object]] = field(default_factory=dict)  # further figures by file
    levels: dict[str, Iterable[Line]] = field(default_factory=dict)  # to draw in `curves`, by file
    texts: dict[str, str] = field(default_factory=dict)  # contents of files by name


class Recipe:
    """A training task. The loop builds it from its settings, trains `model` and calls `outcome`."""

    Settings: ClassVar[type[RunSettings]] = RunSettings
    settings: Any
    model: torch.nn.Module  # its parameters are learned, its state_dict is saved
    columns: ClassVar[tuple[str, ...]] = ()  # further ones of metrics.csv, for the values of `measure`
    curves: ClassVar[Mapping[str, Curves]] = {"loss.png": Curves()}  # by file
    where: str = ""  # the problem in a few words, for titles
    finished: bool = False  # True in one process ends the training before --steps
    lower_bound: float = -math.inf  # a loss below it, beyond rounding, stops the run: the task is ill-posed
    advice: str = "Try a smaller --lr"  # when the loss diverges

    def __init__(self, settings: object):
        """Build matrix, model and data. Raises SettingError for settings that cannot work."""
        raise NotImplementedError

    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the model's parameters: Adam. All of its state must be tensors."""
        return torch.optim.Adam(self.model.parameters(), lr=self.settings.lr)

    def loss(self, step: int) -> Tensor:
        """The training loss of `step`, a scalar that depends on the model's parameters."""
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

    def restore(self, state: dict[str, object]) -> None:
        """Continue from what `state` returned."""

    def outcome(self, /) -> Outcome:
        """Values, table and sentence about the trained model."""
        raise NotImplementedError

    def figures(self, history: History, outcome: Outcome, /) -> Iterator[tuple[str, Any]]:
        """(file name, matplotlib Figure) of each figure: `curves`, and the figures of the outcome."""
        for file, curves in self.curves.items():
            c = curves.of(self.settings)
            title, levels = f"{c.title}, {self.where}", outcome.levels.get(file, ())
            if (figure := c.picture(title, partial(read_series, history), levels)) is not None:
                yield file, figure
        yield from ((file, draw()) for file, draw in outcome.figures.items())


class VectorRecipe(Recipe):
    """A recipe whose loss is a sum over test vectors. A quantity over all of them that it records, or stops
    by, must be summed by `sum_processes` of `learnsolve.recipes.training.parallel`."""

    count: int  # of test vectors per step, over all processes
    indices: range  # of those of this process: `share(count)`

    def losses(self, step: int) -> Tensor:
        """One loss for each vector of this process, possibly none. Over all vectors they sum to the loss of
        the step, so for a mean each is divided by `count`."""
        raise NotImplementedError

    def loss(self, step: int) -> Tensor:
        return self.losses(step).sum()

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
    """A 64-bit seed. Neighboring arguments give unrelated seeds."""
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


def relative_residuals(solution: Any, size: Tensor, iterations: int) -> Tensor:
    """||r_i|| / `size` for i = 0 .. iterations, (..., iterations + 1, k), also where all columns reached
    rounding level before."""
    norms = solution.residual_norms
    if (missing := iterations + 1 - norms.shape[-2]) > 0:
        norms = torch.cat((norms, norms[..., -1:, :].expand(*norms.shape[:-2], missing, -1)), -2)
    return norms / size.unsqueeze(-2)


def discount_mean(terms: Tensor, gamma: float) -> Tensor:
    """The mean of the terms (..., terms, k) with weights .., gamma^2, gamma, 1: the last has the largest."""
    return _weights(terms.shape[-2], gamma, terms.dtype, terms.device) @ terms


@cache
def _weights(count: int, gamma: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    weights = gamma ** torch.arange(count - 1, -1, -1, dtype=dtype, device=device)
    return weights / weights.sum()


# --- learning rates, stops, and depths ---

LAST = 0.01  # fraction of the learning rate at the end of the cosine


def learning_rate(settings: RunSettings, step: int) -> float:
    """The rate at a step: `lr`, or half a cosine from `lr` down to a hundredth of it.

    Examples
    --------
    >>> settings = RunSettings(lr=1.0, schedule="cosine", schedule_steps=100)
    >>> [round(learning_rate(settings, step), 3) for step in (0, 50, 100, 200)]
    [1.0, 0.505, 0.01, 0.01]
    """
    if settings.schedule == "none":
        return settings.lr
    part = min(step / max(settings.schedule_steps or 0, 1), 1.0)
    return settings.lr * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * part)))


def iteration_count(step: int, iterations: int, every: int | None) -> int:
    """Iterations in the loss of a step: one initially, and one more every `every` steps, up to `iterations`.

    Examples
    --------
    >>> [iteration_count(step, 3, 10) for step in (0, 9, 10, 20, 30)]
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
