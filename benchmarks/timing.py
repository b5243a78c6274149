"""Comparable timings: everything in one run, interleaved, medians."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

import learnsolve as ls

BURST = 10  # calls in a row: as in a training loop, data are in the cache if they fit


def medians(
    functions: dict[str, Callable[[], object]], seconds: float = 1.0, most: int = 400
) -> dict[str, float]:
    """Median seconds of one call of each function. Functions alternate in short bursts, so that a disturbance
    of the machine affects all of them; each runs for about `seconds` in total, between 5 and `most` calls."""
    once = {}
    for name, f in functions.items():
        f()
        start = time.perf_counter()
        f()
        once[name] = time.perf_counter() - start
    samples: dict[str, list[float]] = {name: [] for name in functions}
    calls = {name: int(min(max(seconds / max(once[name], 1e-7), 5), most)) for name in functions}
    while any(len(samples[name]) < calls[name] for name in functions):
        for name, f in functions.items():
            for _ in range(min(BURST, calls[name] - len(samples[name]))):
                start = time.perf_counter()
                f()
                samples[name].append(time.perf_counter() - start)
    return {name: sorted(s)[len(s) // 2] for name, s in samples.items()}


def triad_bandwidth(threads: int, megabytes: int = 256) -> float:
    """Bytes per second of a = b + s c on arrays that exceed all caches (counting 24 bytes per element)."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    n = megabytes * 2**20 // 24
    b, c, a = torch.ones(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64), torch.empty(n).double()
    t = medians({"triad": lambda: torch.add(b, c, alpha=2.0, out=a)}, seconds=0.5)["triad"]
    torch.set_num_threads(before)
    return 24 * n / t


def machine() -> dict:
    """The machine on which the numbers were measured."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next(
            (row.split(":")[1].strip() for row in info.read_text().splitlines() if "model name" in row), cpu
        )
    return {"cpu": cpu, **ls.config()}


def write(path: Path, name: str, rows: list[dict], **more) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"benchmark": name, "machine": machine(), **more, "rows": rows}, indent=1) + "\n"
    )
    print(f"wrote {path}")


def _cells(rows: list[dict]) -> list[list[str]]:
    """A line of names and one line per row, with three digits."""

    def cell(value) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    keys = list(dict.fromkeys(k for row in rows for k in row))
    return [keys] + [[cell(row.get(k, "")) for k in keys] for row in rows]


def table(rows: list[dict]) -> str:
    """Rows with the same keys as aligned columns; times in microseconds."""
    lines = _cells(rows)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in lines)


def markdown(rows: list[dict]) -> str:
    """The same as a Markdown table."""
    head, *lines = (f"| {' | '.join(line)} |" for line in _cells(rows))
    return "\n".join((head, "| " + " | ".join("---" for _ in _cells(rows)[0]) + " |", *lines))
