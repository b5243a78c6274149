"""Tables as data: columns by header, each a key of a row or a function of it. `flat` gives the rows of an
`Evaluation`, `cells` the cells that a tolerance adds to a line."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from learnsolve import preconditioners
from learnsolve.evaluation import Evaluation, evaluate
from learnsolve.evaluation.comparison import aligned

if TYPE_CHECKING:
    from learnsolve.recipes.harness.recipe import Outcome

LEARNED = "learned"
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


def records(named: Mapping[str, Row]) -> list[Row]:
    """Rows of records by name."""
    return [{"name": name, **record} for name, record in named.items()]


def printed(outcome: Outcome) -> list[list[str]]:
    """The headers and the lines of the final table as text."""
    lines = ([c if isinstance(c, str) else f"{c:#.4g}" for c in row] for row in outcome.rows)
    return [list(outcome.columns), *lines]


def table(outcome: Outcome) -> str:
    """The final table as text, the first column left, the others right."""
    return aligned(printed(outcome), left={0})


# --- evaluations ---


def compare(A: Any, b: Any, M: Mapping[str, Any], rtol: Sequence[float], **options: Any) -> Evaluation:
    """`evaluate` in which a failing preconditioner gets a row that says so, instead of warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return evaluate(A, b, dict(M), rtol=rtol, on_error="row", **options)  # type: ignore[arg-type]


def with_amg(candidates: dict[str, Any], n: int) -> dict[str, Any]:
    """The candidates and AMG for n rows, with several levels even for small matrices, since on one level AMG
    is a direct solve."""
    coarse = max(1, min(AMG_COARSE, n // 8))
    return candidates | {"AMG": partial(preconditioners.AMG, max_coarse=coarse)}


def flat(evaluation: Evaluation, **which: Any) -> list[Row]:
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
    """The cells of a tolerance, for `tabulate`; without seconds for a rule named by `rtol`."""
    if isinstance(row["rtol"], str):
        return {row["rtol"]: iterations(row)}
    return {f"iterations {row['rtol']:.0e}": iterations(row), "ms": milliseconds(row["seconds"])}


def middle(tolerances: Sequence[float]) -> float:
    return sorted(tolerances)[len(tolerances) // 2]
