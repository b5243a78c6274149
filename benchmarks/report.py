"""What a run leaves behind: JSON, a page of tables, profiles; and what moved between two runs."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import learnsolve as ls
from benchmarks import ROOT
from benchmarks.harness import OURS

PEERS = (
    "pyamg",
    "torchsparsegradutils",
    "torch-sla",
    "cupy",
    "warp-lang",
    "mkl",
    "pypardiso",
    "scikit-sparse",
    "pyamgcl",
    "petsc4py",
)
FACTORS = (1.0, 1.1, 1.5, 2.0, 5.0, 10.0)
SHOWN = ("case", "way", "dtype", "threads")
HIDDEN = ("section", "cells", "ratio", "best peer", "profile")


def machine() -> dict[str, Any]:
    """Where and when the numbers were measured: the machine, the versions, the date and the commit."""
    cpu, info = platform.processor(), Path("/proc/cpuinfo")
    if info.exists():
        rows = info.read_text().splitlines()
        cpu = next((row.split(":")[1].strip() for row in rows if "model name" in row), cpu)
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    found = {"cpu": cpu, "cores": os.cpu_count(), **ls.config()}
    found |= {"date": datetime.date.today().isoformat(), "commit": git.stdout.strip() or "unknown"}
    for name in PEERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cells(rows: list[dict]) -> list[list[str]]:
    """A line of names and one line per row, with three digits."""

    def cell(value: Any) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    keys = list(dict.fromkeys(k for row in rows for k in row))
    return [keys] + [[cell(row.get(k, "")) for k in keys] for row in rows]


def table(rows: list[dict]) -> str:
    """Rows with the same keys as aligned columns."""
    lines = _cells(rows)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in lines)


def markdown(rows: list[dict]) -> str:
    """The same as a Markdown table."""
    lines = [f"| {' | '.join(line)} |" for line in _cells(rows)]
    return "\n".join((lines[0], "| " + " | ".join("---" for _ in _cells(rows)[0]) + " |", *lines[1:]))


def duration(seconds: float) -> str:
    unit, size = next((u for u in (("s", 1.0), ("ms", 1e-3)) if seconds >= u[1]), ("µs", 1e-6))
    return f"{seconds / size:.3g} {unit}"


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """One line of a table: figures as "median ± half the interquartile range"."""
    line = {key: row[key] for key in SHOWN if row[key] != ""}
    for name, cell in row["cells"].items():
        if "median" not in cell:
            line[name] = cell["failed"]
            continue
        spread = 50 * cell["iqr"] / cell["median"]
        line[name] = cell["count"] if "count" in cell else f"{duration(cell['median'])} ±{spread:.0f}%"
        if cell.get("slow"):
            line[name] = duration(cell["median"]) + " (one call)"
        if cell.get("partial"):
            line[name] += " (x only)"
    if "ratio" in row:
        line["ours / best peer"] = f"{row['ratio']:.2f} ({row['best peer']})"
    return line | {key: value for key, value in row.items() if key not in (*SHOWN, *HIDDEN)}


def profile(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every task and library, the share of matrices on which it took at most a factor of the best time.

    Dolan and More, "Benchmarking optimization software with performance profiles", Math. Program. 91 (2002):
    one that fails counts as infinitely slow.
    """
    tasks: dict[tuple, list[dict]] = {}
    for row in rows:
        if "profile" in row:
            tasks.setdefault((row["profile"], row["way"]), []).append(row)
    lines = []
    for (task, way), cases in tasks.items():
        for name in dict.fromkeys(name for row in cases for name in row["cells"]):
            ratios = []
            for row in cases:
                times = [c["median"] for c in row["cells"].values() if "median" in c and not c.get("partial")]
                own = row["cells"].get(name, {}).get("median")
                ratios.append(own / min(times) if own and times else float("inf"))
            line: dict[str, Any] = {"task": task, "way": way, "matrices": len(cases), "library": name}
            line |= {f"{f:g}": f"{sum(r <= f for r in ratios) / len(ratios):.0%}" for f in FACTORS}
            lines.append(line)
    return lines


def page(record: dict[str, Any]) -> str:
    """The tables, as Markdown."""
    about = record["machine"]
    triad = ", ".join(f"{gb:.1f} GB/s on {t} thread(s)" for t, gb in record["triad_gb_s"].items())
    parts = [
        f"# {record['name']}",
        f"{about['cpu']}, {about['cores']} cores, {about['device']}; torch {about['torch']}, SciPy "
        f"{about['scipy']}, {about['instruction_set']}. Triad bandwidth: {triad}. "
        f"{record['minutes']:.1f} minutes.",
        "Median of one call, ± half the interquartile range. The ratio is to the fastest peer that gives the "
        "right result, within each round of measurements.",
    ]
    for section in dict.fromkeys(row["section"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["section"] == section]
        parts += [f"## {section}"]
        if profiles := profile(rows):
            parts += ["Share of matrices within a factor of the best time:", markdown(profiles)]
        parts += [markdown([shown(row) for row in rows])]
        parts += record["lines"].get(section, [])
    if record["notes"]:
        parts += ["## Left out", "\n".join(f"- {note}" for note in record["notes"])]
    return "\n\n".join(parts) + "\n"


def save(record: dict[str, Any], folder: Path) -> Path:
    """NAME.json, a row of the benchmarks on a line, and NAME.md."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record['name']}.json"
    rows = ",\n".join(json.dumps(row) for row in record["rows"])
    text = json.dumps(record | {"rows": []}, indent=1)
    path.write_text(text.replace('"rows": []', f'"rows": [\n{rows}\n]', 1) + "\n")
    path.with_suffix(".md").write_text(page(record))
    return path


def compare(a: dict[str, Any], b: dict[str, Any], least: float = 0.05) -> str:
    """What moved from a to b beyond noise: by more than `least`, and so that all rounds of one lie on one
    side of all rounds of the other (for two times five rounds of equal speed, a chance of 1 in 126)."""

    def figures(record: dict[str, Any]) -> dict[tuple, dict[str, Any]]:
        return {
            (row["section"], *(str(row[key]) for key in SHOWN), name): cell
            for row in record["rows"]
            for name, cell in row["cells"].items()
        }

    before, after = figures(a), figures(b)
    moved, changes = [], {True: [], False: []}
    for key in before.keys() & after.keys():
        old, new = before[key], after[key]
        if "median" not in old or "median" not in new:
            if ("median" in old) != ("median" in new):
                moved.append((float("inf"), key, old.get("failed", "ran"), new.get("failed", "runs")))
            continue
        change = new["median"] / old["median"]
        changes[key[-1] == OURS].append(change)
        apart = min(new["rounds"]) > max(old["rounds"]) or max(new["rounds"]) < min(old["rounds"])
        if apart and abs(change - 1) > (0.01 if "count" in new else least):
            text = [c.get("count") or duration(c["median"]) for c in (old, new)]
            moved.append((change, key, *text))
    lines = []
    for change, key, old, new in sorted(moved, key=lambda line: -line[0]):
        row = dict(zip(("section", *SHOWN, "column"), key, strict=True))
        lines.append(row | {"before": old, "after": new, "after / before": change})
    rest = f"{len(before.keys() & after.keys())} figures in both, {len(moved)} moved"
    for ours, found in changes.items():
        if found:
            who = OURS if ours else "the peers (the same code: the machine's own change)"
            rest += f"\nmedian change of {who}: {statistics.median(found):.3f}"
    return f"{table(lines)}\n\n{rest}" if lines else rest
