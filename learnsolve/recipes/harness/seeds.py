"""`--seeds N`: a recipe is trained N times, with a seed and a folder for each, and the results summarised.

Every run is an ordinary one, in the folder `seed-S` below --out, and can be read and resumed by itself.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import learnsolve.recipes.harness.folder as run_folder
from learnsolve.recipes.harness import checkpoint, command_line
from learnsolve.recipes.harness.base import Outcome, Recipe, RunSettings, SettingError
from learnsolve.recipes.harness.loop import Diverged, Interrupted
from learnsolve.recipes.harness.run import train_one
from learnsolve.recipes.harness.seeds_report import PICTURES, write_summary

# What a finished run's report.json must have.
NEEDED = {"steps", "final_loss", "held_out_loss", "seconds", "table"}


def train_seeds(name: str, Recipe: type[Recipe], settings: RunSettings) -> Outcome:
    """Train with each seed, one after another, and write the summary. Runs that are finished are kept.

    Raises
    ------
    Diverged, Interrupted
        by the first run that does, with its seed. Finished runs and the checkpoint of this one stay.
    """
    folder = Path(settings.out)
    runs = [
        dataclasses.replace(settings, seed=seed, seeds=1, out=str(folder / f"seed-{seed}"), resume=None)
        for seed in range(settings.seed, settings.seed + settings.seeds)
    ]
    _prepare(folder, Recipe, settings, [Path(run.out).name for run in runs])
    reports = []
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
        reports.append(report)
    return write_summary(
        folder, name, Recipe, settings, {r.seed: p for r, p in zip(runs, reports, strict=True)}
    )


def finished(folder: Path, steps: int) -> dict[str, Any] | None:
    """The report of the run in a folder, if it needs no more steps. (A run that is resumed loses its own.)"""
    try:
        report = json.loads((folder / run_folder.REPORT).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or not report.keys() >= NEEDED:
        return None
    return report if report["steps"] == steps or report.get("stopped_early") else None


def _prepare(folder: Path, Recipe: type[Recipe], settings: RunSettings, folders: list[str]) -> None:
    files = {*Recipe.curves, *PICTURES}
    try:
        if settings.resume is None:
            run_folder.take(folder, settings, files, folders)
        else:
            run_folder.resume(folder, files, folders)
        checkpoint.write_atomic(folder / command_line.CONFIG, command_line.dump(settings))
    except OSError as error:
        raise SettingError(f"--out {folder} cannot be written: {run_folder.reason(error)}") from error


def _continued(run: RunSettings) -> RunSettings:
    """The run, resumed if it has a checkpoint. What a kill has left before the first one is replaced."""
    if (Path(run.out) / checkpoint.TENSORS).exists():
        return dataclasses.replace(run, resume=run.out)
    return dataclasses.replace(run, overwrite=(Path(run.out) / run_folder.LIST).exists())


def _train(name: str, Recipe: type[Recipe], run: RunSettings) -> None:
    try:
        train_one(name, Recipe, run)
    except Diverged as error:
        raise Diverged(f"seed {run.seed}, {error}", error.folder) from error
    except Interrupted as stop:
        raise Interrupted(stop.step, f"seed {run.seed}, ") from stop
