"""Tables: the final one of a run, and what it has of preconditioners that `evaluate` compared."""

from __future__ import annotations

from typing import Any

from learnsolve.evaluation._table import aligned
from learnsolve.recipes.harness.recipe import Outcome


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
