"""`--seeds N`: a recipe is trained N times, each time with its own seed and folder, `seed-S` below --out, and
the results are summarized: means and deviations of the reports, tables and curves."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learnsolve.evaluation.figures import png
from learnsolve.recipes.training import checkpoint
from learnsolve.recipes.training.checkpoint import METRICS, History, read_metrics, write_atomic
from learnsolve.recipes.training.recipe import Curves, Outcome, Recipe, Series, each_figure
from learnsolve.recipes.training.run import Diverged, Interrupted, start, train_one, write_files
from learnsolve.recipes.training.settings import RunSettings, SettingError, dump

EACH = ("steps", "final_loss", "held_out_loss", "seconds", "learned")


def train_seeds(name: str, Recipe: type[Recipe], settings: RunSettings) -> Outcome:
    """Train with each seed, one after another, and write the summary. Finished runs are kept, also when one
    raises `Diverged` or `Interrupted`, which then name its seed."""
    folder, reports = Path(settings.out), {}
    seeds = range(settings.seed, settings.seed + settings.seeds)
    start(settings, {*Recipe.curves, "seeds.png"}, [f"seed-{seed}" for seed in seeds])
    for number, seed in enumerate(seeds, 1):
        out = folder / f"seed-{seed}"
        if (report := finished(out, settings.steps)) is None:
            if not settings.quiet:
                print(f"seed {seed}, {number} of {len(seeds)}", file=sys.stderr, flush=True)
            # Leftovers of a kill before the first checkpoint are replaced.
            resume = str(out) if (out / checkpoint.TENSORS).exists() else None
            overwrite = resume is None and (out / checkpoint.LIST).exists()
            run = {"seed": seed, "seeds": 1, "out": str(out), "resume": resume, "overwrite": overwrite}
            try:
                train_one(name, Recipe, dataclasses.replace(settings, **run))
            except Diverged as error:
                raise Diverged(f"seed {seed}, {error}", error.folder) from error
            except Interrupted as stop:
                raise Interrupted(stop.step, f"seed {seed}, ") from stop
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
    means = merged([{k: v for k, v in r.items() if k not in ("table", "versions")} for r in reports.values()])
    each = [
        {"seed": seed, "folder": f"seed-{seed}", **{key: report[key] for key in EACH}}
        for seed, report in reports.items()
    ]
    summary = {"recipe": name, "seeds": list(reports), **means, "learned": sentence, "each": each}
    write_atomic(folder / METRICS, mean_metrics(histories))
    curves = {file: curves.of(settings) for file, curves in recipe.curves.items()}
    figures = {file: curves_figure(f"{c.title}, {name}", c, histories) for file, c in curves.items()}
    spread = statistics.fmean(losses.values()), statistics.stdev(losses.values())
    title, label = f"Final loss of each seed, {name}", f"mean {held_out}"
    figures["seeds.png"] = each_figure(title, "seed", "held-out loss at the end", losses, *spread, label)
    pictures = {file: png(figure) for file, figure in figures.items() if figure is not None}
    write_files(folder, f"learnsolve.train {name}, {which}", summary, outcome, pictures, dump(settings))
    return outcome


def mean_std(values: Sequence[float]) -> str:
    """Mean and sample standard deviation, or the common value.

    Examples
    --------
    >>> mean_std([1.0, 2.0, 3.0]), mean_std([7.0, 7.0])
    ('2.000 ± 1', '7.000')
    """
    deviation = statistics.stdev(values) if len(values) > 1 else 0
    return f"{statistics.fmean(values):#.4g}" + (f" ± {deviation:.2g}" if deviation else "")


def merged(values: Sequence[Any]) -> Any:
    """Combine the values of several runs, recursively: a common value, mean and deviation for numbers, or a
    list.

    Examples
    --------
    >>> merged([{"n": 4, "loss": 1.0}, {"n": 4, "loss": 3.0}])
    {'n': 4, 'loss': {'mean': 2.0, 'std': 1.4142135623730951}}
    """
    first = values[0]
    if all(isinstance(v, dict) and v.keys() == first.keys() for v in values):
        return {key: merged([v[key] for v in values]) for key in first}
    if all(isinstance(v, list) and len(v) == len(first) for v in values):
        return [merged(entries) for entries in zip(*values, strict=True)]
    if all(v == first for v in values):
        return first
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return {"mean": statistics.fmean(values), "std": statistics.stdev(values)}
    return list(values)


def one_cell(entries: Sequence[Any]) -> str:
    """A cell of the combined table. Of "12.1 ± 0.3", the mean over matrices, the first number is used.

    Examples
    --------
    >>> one_cell([1.0, 2.0, 3.0]), one_cell(["9.0", "not reached"]), one_cell(["", ""])
    ('2.000 ± 1', 'not reached in 1 of 2', '')
    """
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
        if name != "seconds":
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
