"""Tables: cells as text, rows as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Sequence
from typing import Any


def aligned(lines: Sequence[Sequence[str]], left: Collection[int]) -> str:
    """Lines of cells as text, with a rule below the first; columns `left` are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def text(line: Sequence[str]) -> str:
        pairs = enumerate(zip(line, widths, strict=True))
        return "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in pairs).rstrip()

    return "\n".join([text(lines[0]), "  ".join("-" * width for width in widths), *map(text, lines[1:])])


def as_csv(rows: Sequence[dict[str, Any]], end: str = "\n") -> str:
    """One line per row, below a header from the first row; NaN is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["preconditioner"], lineterminator=end)
    writer.writeheader()
    for row in rows:
        empty = {key: "" for key, value in row.items() if isinstance(value, float) and math.isnan(value)}
        writer.writerow(row | empty)
    return text.getvalue()
