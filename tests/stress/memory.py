"""Thousands of solves with gradients take no more memory than the first of them.

Solvers, operations and preconditioners in turn, on patterns that are kept and on new ones: what the process
holds (RSS) after a fifth of them and after all.
"""

import gc
import time
from pathlib import Path

import numpy as np

from ._calls import CALLS, quiet
from ._report import Report
from ._samples import KINDS, Sample

SHORT = 60
ALLOWED = 6  # MiB, for all solves; a leak of 1 kB a solve is more
PAGE = 4096


def run(count: int, seed: int) -> Report:
    """`count` solves; a fifth of them, and at least one of each kind, come before what is measured."""
    start, report, rng = time.perf_counter(), Report("memory"), np.random.default_rng(seed)
    kept = [Sample.draw(kind, int(rng.integers(2**31)), 300) for kind in KINDS]
    cases = [(s, name) for s in kept for name, call in CALLS.items() if call.takes(s)]
    order = [cases[i] for i in rng.permutation(len(cases))][: max(count // 5, 20)]
    held, done = 0, 0
    with quiet():
        while done < count:
            for s, name in order:
                if done % 2:
                    s.fresh()
                CALLS[name].tensors(s, CALLS[name].make(s))
                done += 1
                if done == len(order) or done == max(count // 5, len(order)):
                    held = _held()
                if done >= count:
                    break
    grown = (_held() - held) / 2**20
    if count > 2 * len(order) and grown > ALLOWED:
        report.faults.append(
            f"{count} solves with seed {seed}: the last {count - count // 5} hold {grown:.1f} MiB"
        )
    report.counts, report.seconds = {"solves": done}, time.perf_counter() - start
    return report


def _held() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
