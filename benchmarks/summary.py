"""The tables of the README, from a run: the paper's operations, and every row where a peer is faster."""

from __future__ import annotations

from typing import Any

from benchmarks.harness import OURS
from benchmarks.report import duration, markdown

NOISE = 1.05  # a peer is faster from here on
OUR_OWN = ("checkpointed", "all columns", "loop", "our CSR")  # columns that compare two ways of ours
WAYS = {"forward": "forward", "forward + sum + backward": "forward and backward"}


def _times(ratio: float) -> str:
    return f"{1 / ratio:.2g} times as fast" if ratio < 1 else f"**{ratio:.2g} times as slow**"


def operations(record: dict[str, Any]) -> str:
    """Table 2 of the paper at its sizes: float32, one thread."""
    lines: dict[str, dict[str, str]] = {}
    for row in record["rows"]:
        way, cells, peer = WAYS.get(row["way"]), row["cells"], row.get("best peer")
        if way is None or row["section"] != "table2" or "torch dense" in cells:
            continue
        if (row["dtype"], row["threads"]) != ("float32", 1):
            continue
        best = f"{duration(cells[peer]['median'])}, {peer}; {_times(row['ratio'])}" if peer else "none"
        line = lines.setdefault(row["case"], {"": row["case"]})
        line |= {way: duration(cells[OURS]["median"]), f"best peer, {way}": best}
    return markdown(list(lines.values()))


def slower(record: dict[str, Any]) -> str:
    """The rows in which a peer takes less time, for each case and way the worst of dtypes and threads."""
    worst: dict[tuple, dict[str, Any]] = {}
    for row in record["rows"]:
        key = row["case"], row["way"]
        if row.get("best peer") in OUR_OWN:
            continue
        if row.get("ratio", 0) > max(NOISE, worst.get(key, {}).get("ratio", 0)):
            worst[key] = row
    return markdown(
        [
            {
                "where a peer is faster": f"{row['case']}, {row['way']}",
                "": f"{row['dtype']}, {row['threads']} thread{'s' * (row['threads'] != 1)}",
                OURS: duration(row["cells"][OURS]["median"]),
                "best peer": f"{duration(row['cells'][row['best peer']]['median'])}, {row['best peer']}",
                "ours / theirs": f"{row['ratio']:.2f}",
            }
            for row in worst.values()
        ]
    )


def summary(record: dict[str, Any]) -> str:
    worst = slower(record)
    rows = {(row["case"], row["way"]) for row in record["rows"] if "ratio" in row}
    title = f"A peer is faster in {worst.count(chr(10)) - 1} of {len(rows)} rows:"
    return f"{operations(record)}\n\n<details>\n<summary>{title}</summary>\n\n{worst}\n\n</details>"
