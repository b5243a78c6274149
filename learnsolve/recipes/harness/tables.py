"""Tables as text."""

import csv
import io
import math
from typing import Any

from learnsolve.evaluation import Evaluation


def as_csv(rows: list[dict[str, Any]]) -> str:
    """A line for each row; numbers that are not there are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        empty = {k: "" for k, v in row.items() if isinstance(v, float) and math.isnan(v)}
        writer.writerow(row | empty)
    return text.getvalue()


def flat(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The rows of an evaluation, a number in each column."""
    return [
        {
            "preconditioner": row.preconditioner,
            "rtol": row.rtol,
            "systems": row.systems,
            "converged": row.converged,
            "iterations": row.iterations.mean,
            "iterations_std": row.iterations.std,
            "iterations_min": row.iterations.min,
            "iterations_max": row.iterations.max,
            "seconds": row.seconds.mean,
            "seconds_std": row.seconds.std,
            "setup_seconds": row.setup.mean,
            "setup_seconds_std": row.setup.std,
            "message": row.message,
        }
        for row in evaluation.rows
    ]
