"""The files of a finished run: report.json, report.html and the pictures; and the table on the terminal."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import learnsolve
from learnsolve.evaluation._result import finite
from learnsolve.recipes.harness.base import Outcome, Recipe
from learnsolve.recipes.harness.checkpoint import write_atomic
from learnsolve.recipes.harness.command_line import dump
from learnsolve.recipes.harness.extras import need
from learnsolve.recipes.harness.folder import HTML, REPORT
from learnsolve.recipes.harness.html import page
from learnsolve.recipes.harness.metrics import read_metrics
from learnsolve.recipes.harness.plots import png
from learnsolve.recipes.harness.tensorboard import TensorBoard


def versions() -> dict[str, Any]:
    """The versions that the numbers were computed with."""
    return {**learnsolve.config(), **{name: need(name).__version__ for name in ("matplotlib", "safetensors")}}


def write_report(
    folder: Path, name: str, recipe: Recipe, steps: int, seconds: float, training: Mapping[str, Any]
) -> Outcome:
    """Evaluate the trained recipe, and write report.json (with `training`), the pictures and report.html."""
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
        "table": {"columns": outcome.columns, "rows": outcome.rows},
        "versions": versions(),
    }
    pictures = {file_name: png(figure) for file_name, figure in recipe.figures(history, outcome)}
    for file_name, content in (*pictures.items(), *outcome.texts.items()):
        if file_name not in recipe.files:
            raise ValueError(
                f"{type(recipe).__name__}.files must list {file_name!r}, which it writes; add it"
            )
        write_atomic(folder / file_name, content)
    title, settings = f"learnsolve.train {name}, {steps} steps", dump(recipe.settings)
    html = page(title, outcome.sentence, cells(outcome), pictures, settings, report["versions"])
    write_atomic(folder / HTML, html)
    if recipe.settings.logger == "tensorboard":
        TensorBoard(folder, 0).end(steps, pictures, outcome.sentence, settings)
    write_atomic(folder / REPORT, json.dumps(finite(report), indent=2) + "\n")
    return outcome


def table(outcome: Outcome) -> str:
    """The final table as text, the first column left, the others right."""
    lines = cells(outcome)
    widths = [max(len(line[column]) for line in lines) for column in range(len(outcome.columns))]

    def line(texts: list[str]) -> str:
        rest = (text.rjust(width) for text, width in zip(texts[1:], widths[1:], strict=True))
        return "  ".join([texts[0].ljust(widths[0]), *rest])

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(lines[0]), rule, *map(line, lines[1:])])


def cells(outcome: Outcome) -> list[list[str]]:
    """The names of the columns and the rows, as they are printed."""
    return [list(outcome.columns), *([_cell(value) for value in row] for row in outcome.rows)]


def _cell(value: Any) -> str:
    if value is None:
        return "diverges"
    return value if isinstance(value, str) else f"{value:#.4g}"
