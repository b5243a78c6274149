"""Tables as data: the final one of a run, and those of preconditioners that `evaluate` compared."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from learnsolve import preconditioners
from learnsolve.evaluation._table import aligned
from learnsolve.recipes.harness.recipe import Outcome

LEARNED = "learned"
AMG_COARSE = 100  # rows that AMG solves directly, at most


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


def rows_of(
    records: Mapping[str, Mapping[str, Any]], keys: Mapping[str, str], empty: str | None = ""
) -> list[list[Any]]:
    """A row for each record: its name, then its value for each of `keys`, `empty` for one that is None."""
    return [
        [name, *(empty if record[key] is None else record[key] for key in keys.values())]
        for name, record in records.items()
    ]


def with_amg(candidates: dict[str, Any], n: int) -> dict[str, Any]:
    """The candidates and AMG for n rows, of several levels also where the matrix is small: on one, it is a
    direct solve."""
    coarse = max(1, min(AMG_COARSE, n // 8))
    return candidates | {"AMG": partial(preconditioners.AMG, max_coarse=coarse)}
