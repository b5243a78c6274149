"""Tables: of cells as text, of rows as CSV, and the cells of preconditioners that `evaluate` compared."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from learnsolve.evaluation._result import Evaluation

Row = dict[str, Any]  # of evaluation.csv


def aligned(lines: Sequence[Sequence[str]], left: Collection[int]) -> str:
    """Lines of cells as text, a rule below the first; columns `left` begin, the others end at one place."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def text(line: Sequence[str]) -> str:
        pairs = enumerate(zip(line, widths, strict=True))
        return "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in pairs).rstrip()

    return "\n".join([text(lines[0]), "  ".join("-" * width for width in widths), *map(text, lines[1:])])


def as_csv(rows: Sequence[dict[str, Any]], end: str = "\n") -> str:
    """A line for each row, below the names of the first row's entries; NaN is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["preconditioner"], lineterminator=end)
    writer.writeheader()
    for row in rows:
        empty = {key: "" for key, value in row.items() if isinstance(value, float) and math.isnan(value)}
        writer.writerow(row | empty)
    return text.getvalue()


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
