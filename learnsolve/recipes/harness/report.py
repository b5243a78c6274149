"""The output of a run: progress on the terminal, TensorBoard, and, when finished, report.json, report.html
and figures."""

from __future__ import annotations

import base64
import io
import json
import sys
import time
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import torch

import learnsolve
from learnsolve.evaluation.comparison import finite
from learnsolve.evaluation.figures import png
from learnsolve.recipes.harness.checkpoint import HTML, REPORT, read_metrics, write_atomic
from learnsolve.recipes.harness.command_line import dump
from learnsolve.recipes.harness.recipe import Outcome, Recipe
from learnsolve.recipes.harness.settings import need
from learnsolve.recipes.harness.tables import printed

TENSORBOARD = "tensorboard"  # the folder of event files
FLUSH_SECONDS = 10
WITHOUT = {"step", "learning_rate"}  # the axis; read from the optimizer at every step
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
    for file in {*pictures, *outcome.texts} - {*recipe.files}:
        raise ValueError(f"{type(recipe).__name__}.files must list {file!r}, which it writes; add it")
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
    head, *rows = printed(outcome)
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

    def __init__(self, folder: Path, first: int, optimizer: torch.optim.Optimizer | None = None):
        from torch.utils.tensorboard import SummaryWriter

        self._optimizer = optimizer
        self._writer = SummaryWriter(folder / TENSORBOARD, purge_step=first or None, flush_secs=FLUSH_SECONDS)

    def add(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.csv."""
        if self._optimizer is not None:
            self._writer.add_scalar("learning_rate", self._optimizer.param_groups[0]["lr"], row["step"])
        for name, value in row.items():
            if name not in WITHOUT and value is not None:
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
    """Call `update` at every step: it returns at once unless something is due."""

    def __init__(self, first: int, steps: int, quiet: bool):
        self._steps, self._first, self._start = steps, first, time.perf_counter()
        self._bar, self._interval, self.due = None, FIRST_LINE, float("inf")
        if quiet:
            return
        if sys.stderr.isatty():
            tqdm = need("tqdm").tqdm
            self._bar = tqdm(total=steps, initial=first, unit="step", dynamic_ncols=True, file=sys.stderr)
            self._interval = BAR_INTERVAL
        self.due = self._start + self._interval

    def update(self, step: int, loss: float, now: float) -> None:
        """Report `step` finished steps. Call it when `now` (time.perf_counter) has reached `due`."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
            self._bar.set_postfix_str(f"loss {loss:.6g}")
        else:
            left = (now - self._start) / max(step - self._first, 1) * (self._steps - step)
            self._print(step, loss, f", {left:.0f} s left")
            # The interval doubles, so that the log of a long run stays short.
            self._interval = min(self._interval * 2, LAST_INTERVAL)
        self.due = now + self._interval

    def close(self, step: int, loss: float | None) -> None:
        """Show the last state, due or not."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
            if loss is not None:
                self._bar.set_postfix_str(f"loss {loss:.6g}")
            self._bar.close()
        elif self.due != float("inf") and loss is not None:
            self._print(step, loss)

    def _print(self, step: int, loss: float, more: str = "") -> None:
        print(f"step {step} of {self._steps}, loss {loss:.6g}{more}", file=sys.stderr, flush=True)
