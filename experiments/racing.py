"""Contestants of benchmarks/contestants.py in a race: sessions over matrices, tuning, and ratios.

A set-up is that of a sequence: of new values on a pattern that is known, where the matrices have one pattern,
from the arrays of the matrix.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from typing import Any

import numpy as np
from common import BLUE, GRAY, ORANGE
from scipy.stats import t as student

from benchmarks.contestants import Contestant, timed, warm_up
from benchmarks.harness import fresh_peak
from benchmarks.report import machine

DIRECT = ("PARDISO", "CHOLMOD")
TRAINING = 10_000  # the first seed of right-hand sides for tuning
# Of the processes that race: what torch's own number of threads does not decide.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))


class Session:
    """A contestant in a sequence of matrices: what it keeps from one to the next."""

    def __init__(
        self, contestant: Contestant, setting: dict[str, Any], symmetric: bool, S: Any, memory: bool = False
    ):
        self.start = lambda T: contestant.start(T, symmetric, **setting)
        if contestant.module:  # else it takes no other matrices than those of the race
            warm_up(contestant, symmetric, **setting)
        self.S, self.set_up, self.memory, self.first = S, None, None, 0.0

        def first() -> None:
            begin = time.perf_counter()
            self.set_up = self.start(S)
            self.set_up(S.data)
            self.first = time.perf_counter() - begin

        if memory:  # slow: all that Python holds is looked through
            self.memory = fresh_peak(first)
        else:
            first()

    def renewed(self, S: Any) -> Any:
        if self.set_up is None or not same_pattern(S, self.S):
            self.set_up = self.start(S)
        self.S = S
        return self.set_up(S.data)

    def __call__(self, S: Any, b: np.ndarray) -> tuple[dict[str, Any], Any]:
        return timed(lambda: self.renewed(S), S, b)


def same_pattern(S: Any, T: Any) -> bool:
    return S is T or (np.array_equal(S.indptr, T.indptr) and np.array_equal(S.indices, T.indices))


def right_hand_sides(S: Any, seed: int, columns: int | None = None) -> np.ndarray:
    shape = S.shape[0] if columns is None else (S.shape[0], columns)
    return np.random.default_rng(seed).standard_normal(shape)


def tuned(
    contestant: Contestant, symmetric: bool, matrices: list[Any], seconds: float, bound: float = math.inf
) -> dict[str, Any]:
    """The setting with the least processor seconds on training matrices, the less of two solves each, of the
    settings that `seconds` allow. One whose first solve takes more than `bound` is judged by that solve."""
    begin, tried, failed = time.perf_counter(), [], RuntimeError("no settings")
    for setting in contestant.settings:
        try:
            session = Session(contestant, setting, symmetric, matrices[0])
            rows = []
            for i, S in enumerate(matrices):
                b = right_hand_sides(S, TRAINING + i)
                rows.append(session(S, b)[0])
                if rows[-1]["cpu"] > bound:
                    break
                rows[-1] = min(rows[-1], session(S, b)[0], key=lambda row: row["cpu"])
                if time.perf_counter() - begin > seconds > 0:
                    break
            tried.append((sum(row["cpu"] for row in rows) / len(rows), rows))
        except Exception as error:
            failed = error
            tried.append((math.inf, []))
        if time.perf_counter() - begin > seconds:
            break
    best = min(range(len(tried)), key=lambda k: tried[k][0])
    total, rows = tried[best]
    if total == math.inf:
        raise failed
    return {"setting": best, "total": total, "of": len(tried), "rows": rows}


def origin() -> dict[str, str]:
    """Where, when and by which commit a race was run: part of its ledger, since pages are made later."""
    about = machine()
    return {key: about[key] for key in ("cpu", "date", "commit")}


def geometric(ratios: list[float]) -> dict[str, float | str]:
    """Geometric mean and its 95 % interval, Student's; of two to five ratios their range."""
    logs = [math.log(r) for r in ratios]
    mean, n, ends = statistics.fmean(logs), len(logs), ("", "")
    if 1 < n < 6:
        ends = min(ratios), max(ratios)
    elif n > 1:
        half = student.ppf(0.975, n - 1) * statistics.stdev(logs) / math.sqrt(n)
        ends = math.exp(mean - half), math.exp(mean + half)
    return dict(zip(("ratio", "low", "high"), (math.exp(mean), *ends), strict=True))


def show_ratio(axes: Any, row: dict[str, Any], y: float, filled: bool = True) -> None:
    """The ratio of a row with its interval, orange if it was learned."""
    x, color = row["ratio"], ORANGE if row["learned"] else BLUE
    ends = None if row["low"] == "" else [[x - row["low"]], [row["high"] - x]]
    face = color if filled else "white"
    axes.errorbar([x], [y], xerr=ends, fmt="o", color=color, markerfacecolor=face, markersize=4.5)


def show_names(axes: Any, title: str, names: list[str]) -> None:
    """Contestants from below, and a line at a ratio of one."""
    axes.axvline(1, color=GRAY, linewidth=0.8)
    axes.set_title(title, fontsize=9.5)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.grid(axis="y", linewidth=0.3)
