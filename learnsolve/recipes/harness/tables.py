"""Tables as text."""

import csv
import io
import math
from typing import Any


def as_csv(rows: list[dict[str, Any]]) -> str:
    """A line for each row; numbers that are not there are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        empty = {k: "" for k, v in row.items() if isinstance(v, float) and math.isnan(v)}
        writer.writerow(row | empty)
    return text.getvalue()
