"""Tables: the final one of a run, and what it has of preconditioners that `evaluate` compared."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from learnsolve import preconditioners
from learnsolve.evaluation import Evaluation
from learnsolve.evaluation._table import aligned
from learnsolve.recipes.harness.recipe import Outcome

LEARNED = "learned"
AMG_COARSE = 100  # rows that AMG solves directly, at most
Row = dict[str, Any]  # of evaluation.csv


def table(outcome: Outcome) -> str:
    """The final table as text, the first column left, the others right."""
    return aligned(cells(outcome), left={0})


def cells(outcome: Outcome) -> list[list[str]]:
    """The names of the columns and the rows, as they are printed."""
    return [list(outcome.columns), *([_cell(value) for value in row] for row in outcome.rows)]


def _cell(value: Any) -> str:
    if value is None:
        return "diverges"
    return value if isinstance(value, str) else f"{value:#.4g}"


def with_amg(candidates: dict[str, Any], n: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The candidates and AMG for n rows; and why it is left out, by its name."""
    if importlib.util.find_spec("pyamg") is None:
        return candidates, {"AMG": "pyamg is not installed: pip install 'learnsolve[problems]'"}
    # Several levels also where the matrix is small: on one, AMG is a direct solve.
    coarse = max(1, min(AMG_COARSE, n // 8))
    return candidates | {"AMG": partial(preconditioners.AMG, max_coarse=coarse)}, {}


def flat(evaluation: Evaluation, **which: Any) -> list[Row]:
    """The rows of an evaluation, a number in each column; `which` are columns in front of them."""
    rows = []
    for row in evaluation.rows:
        about = {name: getattr(row, name) for name in ("preconditioner", "rtol", "systems", "converged")}
        steps, seconds, setup = row.iterations, row.seconds, row.setup
        statistics = {
            **{"iterations": steps.mean, "iterations_std": steps.std},
            **{"iterations_min": steps.min, "iterations_max": steps.max},
            **{"seconds": seconds.mean, "seconds_std": seconds.std},
            **{"setup_seconds": setup.mean, "setup_seconds_std": setup.std},
        }
        rows.append({**which, **about, **statistics, "message": row.message})
    return rows


def by_preconditioner(rows: Sequence[Row], *columns: Callable[[Row], str | None]) -> dict[str, list[str]]:
    """The cells of each preconditioner: `columns` of its first row, then of the next. None is no cell."""
    lines: dict[str, list[str]] = {}
    for row in rows:
        made = [column(row) for column in columns]
        lines.setdefault(row["preconditioner"], []).extend(cell for cell in made if cell is not None)
    return lines


def iterations(row: Row, deviation: bool = False) -> str:
    """Their mean; or how many systems reached the tolerance, if some did not."""
    if row["message"] and not deviation:
        return ""
    if row["converged"] < row["systems"]:
        return f"{row['converged']}/{row['systems']} reached"
    return f"{row['iterations']:.1f}" + (f" ± {row['iterations_std']:.1f}" if deviation else "")


def milliseconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{1e3 * seconds:.2f}"


def with_milliseconds(tolerances: Sequence[float]) -> list[str]:
    """Names of columns: iterations and milliseconds to each tolerance."""
    return [name for rtol in sorted(tolerances, reverse=True) for name in (f"iterations {rtol:.0e}", "ms")]


def middle(tolerances: Sequence[float]) -> float:
    return sorted(tolerances)[len(tolerances) // 2]
