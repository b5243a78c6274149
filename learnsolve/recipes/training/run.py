"""A run: the objective of a step, the training loop (step, watch, record, checkpoint), the path from settings
to report, and the output: progress on the terminal, TensorBoard, and, when finished, report.json, report.html
and figures; and the runs of `--seeds N`, with the summary of their results."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import math
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import learnsolve
from learnsolve.evaluation.comparison import finite
from learnsolve.evaluation.figures import BLACK, BLUE, Line, picture, png
from learnsolve.recipes.training import checkpoint
from learnsolve.recipes.training import settings as command_line
from learnsolve.recipes.training.checkpoint import (
    FILES,
    HTML,
    METRICS,
    REPORT,
    History,
    Metrics,
    check_metrics,
    read_metrics,
    save_state,
    write_atomic,
)
from learnsolve.recipes.training.parallel import ALONE, Group, Together
from learnsolve.recipes.training.recipe import (
    Curves,
    Outcome,
    Recipe,
    Series,
    VectorRecipe,
    format_table,
    learning_rate,
    number_of_hardest,
)
from learnsolve.recipes.training.settings import RunSettings, SettingError, dump, need

TENSORBOARD = "tensorboard"  # the folder of event files
EVENTS_SECONDS = 10
FIRST_LINE, LAST_INTERVAL = 2.0, 60.0  # seconds
BAR_INTERVAL = 0.1
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;display:block;overflow-x:auto}"
    "th,td{padding:.25rem .75rem;border-bottom:1px solid #ddd;text-align:right}"
    "th:first-child,td:first-child{text-align:left}"
    "img{max-width:100%;height:auto}pre{background:#f6f6f6;padding:1rem;overflow-x:auto}"
)


def versions() -> dict[str, Any]:
    """The versions that computed the results."""
    return {**learnsolve.config(), **{name: need(name).__version__ for name in ("matplotlib", "safetensors")}}


def write_report(
    folder: Path, name: str, recipe: Recipe, steps: int, seconds: float, training: Mapping[str, Any]
) -> Outcome:
    """Evaluate the trained recipe, and write report.json (with `training`), the figures and report.html."""
    history = read_metrics(folder)
    outcome = recipe.outcome()
    report = {
        "recipe": name,
        "steps": steps,
        "final_loss": history["loss"][-1],
        "held_out_loss": recipe.evaluate(),
        **outcome.numbers,
        "learned": outcome.sentence,
        "seconds": seconds,
        "seconds_per_step": seconds / max(steps, 1),
        **training,
    }
    pictures = {file: png(figure) for file, figure in recipe.figures(history, outcome)}
    for file in {*pictures, *outcome.texts} - {*FILES}:
        raise ValueError(f"checkpoint.FILES must list {file!r}, which {name} writes. Add it")
    settings = dump(recipe.settings)
    if recipe.settings.logger == "tensorboard":
        TensorBoard(folder, 0).end(steps, pictures, outcome.sentence, settings)
    write_files(folder, f"learnsolve.train {name}, {steps} steps", report, outcome, pictures, settings)
    return outcome


def write_files(
    folder: Path, title: str, report: dict, outcome: Outcome, pictures: Mapping[str, bytes], settings: str
) -> None:
    """Write figures and texts, report.html, and report.json, which marks the run as finished."""
    report |= {"table": {"columns": outcome.columns, "rows": outcome.rows}, "versions": versions()}
    for name, content in (*pictures.items(), *outcome.texts.items()):
        write_atomic(folder / name, content)
    write_atomic(folder / HTML, page(title, outcome, pictures, settings, report["versions"]))
    write_atomic(folder / REPORT, json.dumps(finite(report), indent=2) + "\n")


def page(
    title: str, outcome: Outcome, pictures: Mapping[str, bytes], settings: str, versions: Mapping[str, Any]
) -> str:
    """HTML of a run: what was learned, the final table, figures (PNG), the settings as YAML and the
    versions."""
    head, *rows = format_table(outcome)
    images = {name: base64.b64encode(content).decode() for name, content in pictures.items()}
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>',
            f"<h1>{escape(title)}</h1>\n<p>{escape(outcome.sentence)}</p>",
            "<table>\n" + _row("th", head),
            *(_row("td", row) for row in rows),
            "</table>",
            *(f'<p><img alt="{escape(k)}" src="data:image/png;base64,{v}"></p>' for k, v in images.items()),
            f"<h2>Settings</h2><pre>{escape(settings.strip())}</pre>\n<h2>Versions</h2>\n<table>",
            *(_row("td", [name, str(value)]) for name, value in versions.items()),
            "</table></body></html>\n",
        ]
    )


def _row(tag: str, cells: list[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


class TensorBoard:
    """Writes events of the run in `folder` from step `first` on. Later events of an earlier writer, left
    before the run was killed or resumed, are hidden."""

    def __init__(self, folder: Path, first: int):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(
            folder / TENSORBOARD, purge_step=first or None, flush_secs=EVENTS_SECONDS
        )

    def add(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.csv."""
        for name, value in row.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, row["step"])

    def end(self, step: int, pictures: Mapping[str, bytes], sentence: str, settings: str) -> None:
        """Write figures (PNG), what was learned, and the settings."""
        image = need("matplotlib.image")
        for name, content in pictures.items():
            pixels = image.imread(io.BytesIO(content))
            self._writer.add_image(name.removesuffix(".png"), pixels, step, dataformats="HWC")
        self._writer.add_text("learned", sentence, step)
        self._writer.add_text("settings", "".join(f"    {line}\n" for line in settings.splitlines()), step)
        self.close()

    def close(self) -> None:
        self._writer.close()


class Progress:
    """Call `update` at every step: it returns at once unless something is due. On a terminal the line is
    overwritten, in a log each is half as often as the one before."""

    def __init__(self, first: int, steps: int, quiet: bool):
        self._steps, self._first, self._start = steps, first, time.perf_counter()
        self._terminal = sys.stderr.isatty()
        self._interval = BAR_INTERVAL if self._terminal else FIRST_LINE
        self.due = math.inf if quiet else self._start + self._interval

    def update(self, step: int, loss: float, now: float) -> None:
        """Report `step` finished steps. Call it when `now` (time.perf_counter) has reached `due`."""
        left = (now - self._start) / max(step - self._first, 1) * (self._steps - step)
        self._show(step, loss, f", {left:.0f} s left", "\r" if self._terminal else "\n")
        if not self._terminal:
            self._interval = min(self._interval * 2, LAST_INTERVAL)
        self.due = now + self._interval

    def close(self, step: int, loss: float | None) -> None:
        """Show the last state, due or not."""
        if loss is not None and self.due < math.inf:
            self._show(step, loss, " " * 16 * self._terminal, "\n")

    def _show(self, step: int, loss: float, more: str, end: str) -> None:
        print(f"step {step} of {self._steps}, loss {loss:.6g}{more}", end=end, file=sys.stderr, flush=True)


# A loss this many times the first one counts as diverged.
DIVERGED = 1e4
FLUSH_SECONDS = 5.0
LOSS_OF_ALL = "loss_of_all"


FACTS = "step", "first_loss", "seconds", "metrics_bytes"  # of a `Run`; seed and step are its random state


class DivergenceError(Together, RuntimeError):
    """The loss diverged. The message says where and what to try. `folder` has the last good checkpoint."""

    def __init__(self, message: str, folder: Path):
        super().__init__(message)
        self.folder = folder


class TrainingInterrupt(Together):
    """Ctrl-C or SIGTERM. A checkpoint has been written at `step`, of the run named by `where`."""

    def __init__(self, step: int, where: str = ""):
        super().__init__(step)
        self.step, self.where = step, where


@dataclass
class Run:
    """A training in progress."""

    folder: Path
    settings: RunSettings
    recipe: Recipe
    optimizer: torch.optim.Optimizer
    step: int = 0  # optimizer steps taken
    first_loss: float | None = None  # before the first step, to detect divergence
    seconds: float = 0.0  # spent in training, over all resumptions
    metrics_bytes: int = 0  # size of metrics.csv at the last checkpoint
    group: Group = ALONE  # the processes that train; rank 0 writes
    report: dict[str, Any] = field(default_factory=dict)  # on the training itself, when finished

    def save(self, metrics: Metrics | None) -> None:
        if metrics is None:  # another process writes
            return
        # The rows must be on disk before the checkpoint that counts them.
        self.metrics_bytes = metrics.size()
        facts = {name: getattr(self, name) for name in FACTS} | {"recipe": self.recipe.state()}
        save_state(self.folder, self.recipe.model, self.optimizer, facts)


def train_one(name: str, Recipe: type[Recipe], settings: RunSettings, group: Group = ALONE) -> Outcome | None:
    """Train in the folder of the settings, new or resumed, and write the report. Returns None in a process
    that does not write."""
    with group.together():
        recipe = Recipe(settings)
    run = Run(Path(settings.out), settings, recipe, recipe.optimizer(), group=group)
    with group.together():
        if group.writes:
            start(settings, lambda: _load(run))
    with group.together():
        # After rank 0, which repairs leftovers of a kill.
        if not group.writes and settings.resume is not None:
            _load(run)
    train(run)
    with group.together():
        if group.writes:
            return write_report(run.folder, name, recipe, run.step, run.seconds, run.report)
    return None


def start(settings: RunSettings, load: Callable[[], None] = lambda: None) -> None:
    """Prepare the folder of a new run or, after `load`, of a resumed run, and write its settings."""
    folder = Path(settings.out)
    try:
        if settings.resume is None:
            checkpoint.take(folder, settings)
        else:
            load()
            checkpoint.resume(folder)
        checkpoint.write_atomic(folder / command_line.CONFIG, command_line.dump(settings))
    except OSError as error:
        raise SettingError(f"--out {folder} cannot be written: {checkpoint.reason(error)}") from error


def _load(run: Run) -> None:
    facts = checkpoint.load_state(run.folder, run.recipe.model, run.optimizer)
    for name in FACTS:
        setattr(run, name, facts[name])
    check_metrics(run.folder, run.metrics_bytes, run.step)
    run.recipe.restore(facts["recipe"])
    if run.settings.steps < run.step:
        raise SettingError(f"--steps {run.settings.steps} is less than the {run.step} steps already taken")


def train(run: Run) -> None:
    """Take the remaining steps. The run is saved at its end, at intervals, and on interruption.

    Raises
    ------
    Diverged
        when the loss is not finite, 10^4 times the first loss, or below the recipe's bound. The last
        checkpoint, taken while the loss was good, remains.
    Interrupted
        after a checkpoint, on SIGINT or SIGTERM.
    """
    objective = Objective(run.recipe, run.group)
    metrics = logger = None
    if run.group.writes:
        if run.settings.logger == "tensorboard":
            logger = TensorBoard(run.folder, run.step)
        columns = *run.recipe.columns, *objective.columns
        metrics = Metrics(run.folder, run.metrics_bytes, columns, logger.add if logger else None)
    progress = Progress(run.step, run.settings.steps, run.settings.quiet or not run.group.writes)
    loss = None
    try:
        with _Stop(patient=run.group.size > 1) as stop:
            if run.metrics_bytes == 0:
                run.save(metrics)
            loss = _steps(run, objective, metrics, progress, stop)
        run.report = objective.report()
    finally:
        progress.close(run.step, loss)
        if metrics is not None:
            metrics.close()
        if logger is not None:
            logger.close()


def _steps(run: Run, objective: Objective, metrics: Metrics | None, progress: Progress, stop: _Stop) -> float:
    recipe, optimizer, settings, group = run.recipe, run.optimizer, run.settings, run.group
    parameters, clock = list(recipe.model.parameters()), time.perf_counter
    start, next_save, next_flush = (
        clock() + shift for shift in (-run.seconds, settings.checkpoint_seconds, FLUSH_SECONDS)
    )
    while True:
        for p in parameters:  # like optimizer.zero_grad(), 10 times faster
            p.grad = None
        loss = objective(run.step)
        loss.backward()
        value, stopping, finished = group.total(loss.item(), stop.requested, recipe.finished)
        norm = math.hypot(
            *(float(torch.linalg.vector_norm(p.grad)) for p in parameters if p.grad is not None)
        )
        if run.first_loss is None:
            run.first_loss = value
        _watch(run, value, norm)
        now = clock()
        run.seconds = now - start
        # Weights are saved after their loss is checked and before its row, which a resumed run writes again.
        done = run.step >= settings.steps or finished
        if done or stopping or now >= next_save:
            run.save(metrics)
            if stopping:
                raise TrainingInterrupt(run.step)
            next_save = clock() + settings.checkpoint_seconds
        held_out = measured = None
        if metrics is not None:
            if done or run.step % settings.evaluate_every == 0:
                held_out, measured = recipe.evaluate(), (*recipe.measure(), *objective.measure())
            rate = learning_rate(settings, run.step)
            metrics.add(run.step, value, held_out, norm, rate, run.seconds, measured=measured)
        if done:
            return value
        descend(optimizer, settings, run.step)
        run.step += 1
        if now >= progress.due:
            progress.update(run.step, value, now)
        if metrics is not None and now >= next_flush:
            metrics.flush()
            next_flush = now + FLUSH_SECONDS


def descend(optimizer: torch.optim.Optimizer, settings: RunSettings, step: int) -> None:
    """A step at the rate of the schedule, with the gradient clipped."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(settings, step)
        if settings.clip is not None:
            torch.nn.utils.clip_grad_norm_(group["params"], settings.clip)
    optimizer.step()


def _watch(run: Run, loss: float, gradient_norm: float) -> None:
    first, bound = abs(run.first_loss or 0.0), run.recipe.lower_bound
    limit = DIVERGED * first or sys.float_info.max  # a first loss of 0 gives no scale
    what = f"the training diverged: loss {loss:.6g} after {run.first_loss:.6g} at the start"
    if abs(loss) <= limit and gradient_norm < float("inf"):
        if loss >= bound - 1e-6 * first:  # rounding may make a loss of zero negative
            return
        what = f"the loss {loss:.6g} is below its lower bound {bound:g}"
    raise DivergenceError(f"step {run.step}: {what}. {run.recipe.advice}", run.folder)


class _Stop:
    """Turns the first SIGINT or SIGTERM into a request. The second ends the program as usual. With `patient`
    all are requests, because torchrun may send several, and kills a process that does not end."""

    def __init__(self, patient: bool):
        self.requested, self._patient = False, patient
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Stop:
        # Only the main thread may set handlers; in other threads the caller must stop the run itself.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._request)
        return self

    def _request(self, number: int, frame: object) -> None:
        if self.requested and not self._patient:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Objective:
    """Call it with a step for the loss to differentiate: all vectors, or the hardest. With several processes
    this is the part of this process, and `backward` leaves the gradients of the sum over all."""

    def __init__(self, recipe: Recipe, group: Group):
        self.recipe, self.group, self.kept, self.count = recipe, group, 0, 0
        if isinstance(recipe, VectorRecipe):
            self.count = recipe.count
            self.kept = number_of_hardest(recipe.settings.hard_fraction, recipe.count)
        self.columns = (LOSS_OF_ALL,) * (self.kept < self.count)  # further columns of metrics.csv
        self._losses: Tensor | None = None  # of all vectors in the last step
        self._loss: Callable[[int], Tensor] = self._part
        if group.size > 1:
            self._loss = DistributedDataParallel(_Part(recipe.model, self._part))
            self._loss.register_comm_hook(None, _sum_gradients)

    def __call__(self, step: int) -> Tensor:
        return self._loss(step)

    def measure(self) -> tuple[float, ...]:
        """The values of `columns` for the last step."""
        return () if self._losses is None else (self._losses.double().sum().item(),)

    def _part(self, step: int) -> Tensor:
        recipe = self.recipe
        if self.kept == self.count or not isinstance(recipe, VectorRecipe):
            return recipe.loss(step)
        losses = recipe.losses(step)
        self._losses = losses.detach()
        if self.group.size > 1:
            self._losses = self.group.gather(self._losses, recipe.indices, self.count)
        # Stable: ties go to the smaller indices.
        hardest = torch.sort(self._losses, descending=True, stable=True).indices[: self.kept]
        chosen = torch.zeros(self.count, dtype=torch.bool).index_fill_(0, hardest.cpu(), True)
        own = torch.nonzero(chosen[recipe.indices.start : recipe.indices.stop]).flatten()
        return losses.index_select(0, own.to(losses.device)).sum() * (self.count / self.kept)

    def report(self) -> dict[str, Any]:
        """Values for report.json."""
        kept = {"hardest": {"kept": self.kept, "of": self.count}} if self.columns else {}
        return {"processes": self.group.size, **kept}


class _Part(torch.nn.Module):
    """This process's part of the loss as a module, for DistributedDataParallel. Only with parameters:
    buffers, such as the arrays of a pattern, would be sent at each step."""

    def __init__(self, model: torch.nn.Module, part: Any):
        super().__init__()
        self.learned = torch.nn.ParameterList(model.parameters())
        self._part = part

    def forward(self, step: int) -> Tensor:
        return self._part(step)


def _sum_gradients(state, bucket):  # without annotations: those that torch checks differ between its versions
    """The sum of the gradients of all processes; DistributedDataParallel's default is the mean."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])  # type: ignore[union-attr]


# --- `--seeds N`: a training with each seed, in the folder `seed-S` below --out ---


EACH = ("steps", "final_loss", "held_out_loss", "seconds", "learned")


def train_seeds(name: str, Recipe: type[Recipe], settings: RunSettings) -> Outcome:
    """Train with each seed, one after another, and write the summary. Finished runs are kept, also when one
    raises `DivergenceError` or `TrainingInterrupt`, which then name its seed."""
    folder, reports = Path(settings.out), {}
    seeds = range(settings.seed, settings.seed + settings.seeds)
    start(settings)
    for number, seed in enumerate(seeds, 1):
        out = folder / f"seed-{seed}"
        if (report := finished(out, settings.steps)) is None:
            if not settings.quiet:
                print(f"seed {seed}, {number} of {len(seeds)}", file=sys.stderr, flush=True)
            # Leftovers of a kill before the first checkpoint are replaced.
            resume = str(out) if (out / checkpoint.TENSORS).exists() else None
            overwrite = resume is None and (out / command_line.CONFIG).exists()
            run = {"seed": seed, "seeds": 1, "out": str(out), "resume": resume, "overwrite": overwrite}
            try:
                train_one(name, Recipe, dataclasses.replace(settings, **run))
            except DivergenceError as error:
                raise DivergenceError(f"seed {seed}, {error}", error.folder) from error
            except TrainingInterrupt as stop:
                raise TrainingInterrupt(stop.step, f"seed {seed}, ") from stop
            if (report := finished(out, settings.steps)) is None:
                raise SettingError(f"{out} was changed while it was trained. Start again with another --out")
        reports[seed] = report
    return write_summary(folder, name, Recipe, settings, reports)


def finished(folder: Path, steps: int) -> dict[str, Any] | None:
    """The report of the run in a folder, if it needs no more steps. (Resuming a run deletes its report.)"""
    try:
        report = json.loads((folder / checkpoint.REPORT).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or not report.keys() >= {*EACH, "table"}:
        return None
    return report if report["steps"] == steps or report.get("stopped_early") else None


def write_summary(
    folder: Path, name: str, recipe: type[Recipe], settings: RunSettings, reports: Mapping[int, dict]
) -> Outcome:
    """Write metrics.csv, report.json, report.html and the figures of the runs, whose reports are given by
    seed, and return the table of means and deviations."""
    histories = [read_metrics(folder / f"seed-{seed}") for seed in reports]
    which = f"{len(reports)} seeds, {min(reports)} to {max(reports)}"
    losses = {seed: report["held_out_loss"] for seed, report in reports.items()}
    held_out = mean_std(list(losses.values()))
    rows: dict[str, list[list[Any]]] = {}  # of all runs, by name
    for first, *cells in (row for report in reports.values() for row in report["table"]["rows"]):
        rows.setdefault(first, []).append(cells)
    lines = [[first, *map(one_cell, zip(*runs, strict=True))] for first, runs in rows.items()]
    columns = next(iter(reports.values()))["table"]["columns"]
    sentence = f"Held-out loss {held_out}, mean and standard deviation of {which}."
    outcome = Outcome({}, columns, lines, sentence)
    means = merge_values(
        [{k: v for k, v in r.items() if k not in ("table", "versions")} for r in reports.values()]
    )
    each = [
        {"seed": seed, "folder": f"seed-{seed}", **{key: report[key] for key in EACH}}
        for seed, report in reports.items()
    ]
    summary = {"recipe": name, "seeds": list(reports), **means, "learned": sentence, "each": each}
    write_atomic(folder / METRICS, mean_metrics(histories))
    curves = {file: curves.of(settings) for file, curves in recipe.curves.items()}
    figures = {file: curves_figure(f"{c.title}, {name}", c, histories) for file, c in curves.items()}
    points = Line("", list(losses.values()), list(losses), style={"color": BLUE, "ls": "none", "marker": "o"})
    mean = Line(f"mean {held_out}", statistics.fmean(losses.values()), style={"color": BLACK})
    title = f"Final loss of each seed, {name}"
    figures["seeds.png"] = picture(title, "seed", "held-out loss at the end", [mean, points])
    pictures = {file: png(figure) for file, figure in figures.items() if figure is not None}
    write_files(folder, f"learnsolve.train {name}, {which}", summary, outcome, pictures, dump(settings))
    return outcome


def mean_std(values: Sequence[float]) -> str:
    """Mean and sample standard deviation, or the common value."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0
    return f"{statistics.fmean(values):#.4g}" + (f" ± {deviation:.2g}" if deviation else "")


def merge_values(values: Sequence[Any]) -> Any:
    """Combine the values of several runs, recursively: a common value, mean and deviation for numbers, or a
    list.
    """
    first = values[0]
    if all(isinstance(v, dict) and v.keys() == first.keys() for v in values):
        return {key: merge_values([v[key] for v in values]) for key in first}
    if all(isinstance(v, list) and len(v) == len(first) for v in values):
        return [merge_values(entries) for entries in zip(*values, strict=True)]
    if all(v == first for v in values):
        return first
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return {"mean": statistics.fmean(values), "std": statistics.stdev(values)}
    return list(values)


def one_cell(entries: Sequence[Any]) -> str:
    """A cell of the combined table. Of "12.1 ± 0.3", the mean over matrices, the first number is used."""
    numbers, words = [], []
    for entry in entries:
        try:
            numbers.append(float(str(entry).split(" ± ")[0]))
        except ValueError:
            words.append(str(entry))
    if not words:
        return mean_std(numbers)
    same = len(set(words)) == 1 and not numbers
    return words[0] if same else f"{words[0]} in {len(words)} of {len(entries)}"


def common(histories: Sequence[History], column: str) -> tuple[list[int], np.ndarray]:
    """The steps at which all runs have an entry of the column, and the entries, (runs, steps)."""
    tables = [dict(zip(h["step"], h.get(column, ()), strict=False)) for h in histories]
    steps = [step for step in tables[0] if all(table.get(step) is not None for table in tables)]
    return steps, np.array([[table[step] for step in steps] for table in tables])


def mean_metrics(histories: Sequence[History]) -> str:
    """metrics.csv of the means, followed by columns NAME_std with the standard deviations."""
    means, deviations = {}, {}
    for name in list(histories[0])[1:]:
        steps, values = common(histories, name)
        means[name] = dict(zip(steps, values.mean(0).tolist(), strict=True))
        if name not in ("seconds", "learning_rate"):
            deviations[f"{name}_std"] = dict(zip(steps, values.std(0, ddof=1).tolist(), strict=True))
    columns = means | deviations
    rows = [
        [k, *(c.get(k, "") for c in columns.values())] for k in min((h["step"] for h in histories), key=len)
    ]
    return "".join(",".join(map(str, line)) + "\n" for line in (["step", *columns], *rows))


def curves_figure(title: str, curves: Curves, histories: Sequence[History]) -> Any:
    """Means with bands, on a logarithmic axis those of the logarithms, where a value that is not positive is
    replaced by the smallest positive one, or None if no column has an entry at a step that all runs have
    taken."""
    kind = "geometric mean" if curves.log else "mean"
    title += f"\n{kind} of {len(histories)} seeds ± 2 standard deviations" + " of the logarithm" * curves.log

    def series(column: str) -> Series:
        steps, values = common(histories, column)
        if curves.log:
            positive = values[values > 0]
            values = np.log(np.maximum(values, positive.min() if positive.size else 1.0))
        mean, deviation = values.mean(0), values.std(0, ddof=1)
        lines = np.stack((mean, mean - 2 * deviation, mean + 2 * deviation))
        mean, low, high = np.exp(lines) if curves.log else lines
        return steps, mean, (low, high)

    return curves.picture(title, series)
