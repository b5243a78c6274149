"""`--seeds N`: a recipe is trained N times, each time with its own seed and folder, and the results are
summarized.

Every run is an ordinary run in the folder `seed-S` below --out, and can be read and resumed separately. The
summary has means and deviations of the runs' reports, tables and curves.
"""

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

# Required entries of report.json of a finished run.
NEEDED = {"steps", "final_loss", "held_out_loss", "seconds", "table"}
PICTURES = ("seeds.png",)
EACH = ("steps", "final_loss", "held_out_loss", "seconds", "learned")


def train_seeds(name: str, Recipe: type[Recipe], settings: RunSettings) -> Outcome:
    """Train with each seed, one after another, and write the summary. Finished runs are kept.

    Raises
    ------
    Diverged, Interrupted
        from the first run that raises it, with its seed. Finished runs and the checkpoint of this one stay.
    """
    folder = Path(settings.out)
    runs = [
        dataclasses.replace(settings, seed=seed, seeds=1, out=str(folder / f"seed-{seed}"), resume=None)
        for seed in range(settings.seed, settings.seed + settings.seeds)
    ]
    start(settings, {*Recipe.curves, *PICTURES}, [Path(run.out).name for run in runs])
    reports = {}
    for number, run in enumerate(runs, 1):
        if (report := finished(Path(run.out), settings.steps)) is None:
            if not settings.quiet:
                print(f"seed {run.seed}, {number} of {len(runs)}", file=sys.stderr, flush=True)
            _train(name, Recipe, _continued(run))
            report = finished(Path(run.out), settings.steps)
            if report is None:
                raise SettingError(
                    f"{run.out} was changed while it was trained; start again with another --out"
                )
        reports[run.seed] = report
    return write_summary(folder, name, Recipe, settings, reports)


def finished(folder: Path, steps: int) -> dict[str, Any] | None:
    """The report of the run in a folder, if it needs no more steps. (Resuming a run deletes its report.)"""
    try:
        report = json.loads((folder / checkpoint.REPORT).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or not report.keys() >= NEEDED:
        return None
    return report if report["steps"] == steps or report.get("stopped_early") else None


def _continued(run: RunSettings) -> RunSettings:
    """The run, resumed if it has a checkpoint. Leftovers of a kill before the first checkpoint are
    replaced."""
    if (Path(run.out) / checkpoint.TENSORS).exists():
        return dataclasses.replace(run, resume=run.out)
    return dataclasses.replace(run, overwrite=(Path(run.out) / checkpoint.LIST).exists())


def _train(name: str, Recipe: type[Recipe], run: RunSettings) -> None:
    try:
        train_one(name, Recipe, run)
    except Diverged as error:
        raise Diverged(f"seed {run.seed}, {error}", error.folder) from error
    except Interrupted as stop:
        raise Interrupted(stop.step, f"seed {run.seed}, ") from stop


def write_summary(
    folder: Path, name: str, recipe: type[Recipe], settings: RunSettings, reports: Mapping[int, dict]
) -> Outcome:
    """Write metrics.csv, report.json, report.html and the figures of the runs, whose reports are given by
    seed, and return the table of means and deviations."""
    histories = [read_metrics(folder / f"seed-{seed}") for seed in reports]
    which = f"{len(reports)} seeds, {min(reports)} to {max(reports)}"
    outcome = outcome_of(list(reports.values()), which)
    write_atomic(folder / METRICS, mean_metrics(histories))
    means = merged(list(reports.values()))
    summary = {
        "recipe": name,
        "seeds": list(reports),
        **{key: value for key, value in means.items() if key not in ("table", "versions")},
        "learned": outcome.sentence,
        "each": [
            {"seed": seed, "folder": f"seed-{seed}", **{key: report.get(key) for key in EACH}}
            for seed, report in reports.items()
        ],
    }
    title = f"learnsolve.train {name}, {which}"
    curves = {file: curves.of(settings) for file, curves in recipe.curves.items()}
    figures = {file: curves_figure(f"{c.title}, {name}", c, histories) for file, c in curves.items()}
    figures["seeds.png"] = seeds_figure(f"Final loss of each seed, {name}", reports)
    pictures = {file: png(figure) for file, figure in figures.items() if figure is not None}
    write_files(folder, title, summary, outcome, pictures, dump(settings))
    return outcome


def mean_std(values: Sequence[float]) -> str:
    """Mean and sample standard deviation, or the common value.

    Examples
    --------
    >>> mean_std([1.0, 2.0, 3.0]), mean_std([7.0, 7.0])
    ('2.000 ± 1', '7.000')
    """
    deviation = statistics.stdev(values)
    return f"{statistics.fmean(values):#.4g}" + (f" ± {deviation:.2g}" if deviation else "")


def merged(values: Sequence[Any]) -> Any:
    """Combine the values of several runs, recursively: a common value; for numbers, mean and deviation;
    otherwise a list.

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


def outcome_of(reports: Sequence[dict[str, Any]], which: str) -> Outcome:
    """The final tables of the runs combined, by row name."""
    held_out = mean_std([report["held_out_loss"] for report in reports])
    sentence = f"Held-out loss {held_out}, mean and standard deviation of {which}."
    rows: dict[str, list[list[Any]]] = {}  # of all runs, by name
    for name, *cells in (row for report in reports for row in report["table"]["rows"]):
        rows.setdefault(name, []).append(cells)
    lines = [[name, *map(one_cell, zip(*runs, strict=True))] for name, runs in rows.items()]
    return Outcome({}, reports[0]["table"]["columns"], lines, sentence)


def one_cell(entries: Sequence[Any]) -> str:
    """A cell of the combined table. Of "12.1 ± 0.3", the mean over matrices, the first number is used.

    Examples
    --------
    >>> one_cell([1.0, 2.0, 3.0]), one_cell(["9.0", "not reached"]), one_cell(["", ""])
    ('2.000 ± 1', 'not reached in 1 of 2', '')
    """
    texts = [str(entry) for entry in entries]
    numbers, words = [], []
    for text in texts:
        try:
            numbers.append(float(text.split(" ± ")[0]))
        except ValueError:
            words.append(text)
    if not words:
        return mean_std(numbers) if len(numbers) > 1 else f"{numbers[0]:#.4g}"
    if len(set(texts)) == 1:
        return texts[0]
    return f"{words[0]} in {len(words)} of {len(texts)}"


def common(histories: Sequence[History], column: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which all runs have an entry of the column, and the entries, (runs, steps)."""
    tables = [dict(zip(h["step"], h.get(column, ()), strict=False)) for h in histories]
    steps = [step for step in tables[0] if all(table.get(step) is not None for table in tables)]
    return np.array(steps), np.array([[table[step] for step in steps] for table in tables])


def mean_metrics(histories: Sequence[History]) -> str:
    """metrics.csv of the means, followed by columns NAME_std with the standard deviations."""
    names = [name for name in histories[0] if name != "step"]
    order = ["step", *names, *(f"{name}_std" for name in names if name != "seconds")]
    rows: list[dict[str, Any]] = [
        dict.fromkeys(order, "") | {"step": step} for step in min((h["step"] for h in histories), key=len)
    ]
    for name in names:
        steps, values = common(histories, name)
        numbers = zip(steps, values.mean(0).tolist(), values.std(0, ddof=1).tolist(), strict=True)
        for step, mean, std in numbers:
            rows[step] |= {name: mean} | ({} if name == "seconds" else {f"{name}_std": std})
    return "".join(",".join(map(str, line)) + "\n" for line in (order, *(row.values() for row in rows)))


def curves_figure(title: str, curves: Curves, histories: Sequence[History]) -> Any:
    """Means with bands, or None if no column has an entry at a step that all runs have taken."""
    kind = "geometric mean" if curves.log else "mean"
    title += f"\n{kind} of {len(histories)} seeds ± 2 standard deviations" + " of the logarithm" * curves.log

    def series(column: str) -> Series:
        steps, values = common(histories, column)
        mean, *band = statistics_of(values, curves.log) if steps.size else (values, values, values)
        return steps, mean, (band[0], band[1])

    return curves.picture(title, series)


def statistics_of(values: np.ndarray, log: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over the runs and both ends of its band; on a logarithmic axis, of the logarithms, so that the
    band stays positive. Values that are not positive are then replaced by the smallest positive value of
    all."""
    if log:
        positive = values[values > 0]
        values = np.log(np.maximum(values, positive.min() if positive.size else 1.0))
    mean, deviation = values.mean(0), values.std(0, ddof=1)
    band = mean, mean - 2 * deviation, mean + 2 * deviation
    return tuple(np.exp(b) for b in band) if log else band  # type: ignore[return-value]


def seeds_figure(title: str, reports: Mapping[int, dict[str, Any]]) -> Any:
    losses = {seed: report["held_out_loss"] for seed, report in reports.items()}
    mean, deviation = statistics.fmean(losses.values()), statistics.stdev(losses.values())
    label = f"mean {mean:.4g} ± {2 * deviation:.2g}"
    return each_figure(title, "seed", "held-out loss at the end", losses, mean, deviation, label)
