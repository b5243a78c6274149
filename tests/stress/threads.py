"""Eight threads that use one pattern, or write one file, at the same time get what one alone gets.

Every operation, solver and constructor on a pattern without plans, which all threads then make at once.
"""

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import learnsolve as ls

from ._calls import CALLS, quiet
from ._report import Report
from ._samples import KINDS, Sample, digest

SHORT = 30
THREADS = 8


def run(count: int, seed: int) -> Report:
    """`count` calls, each by eight threads."""
    start, report, counts = time.perf_counter(), Report("threads"), Counter()
    rng, names, i = np.random.default_rng(seed), list(CALLS), int(seed) * 31
    with quiet(), ThreadPoolExecutor(THREADS) as pool:
        while counts["calls"] + counts["conversions"] + counts["files"] < count:
            i += 1
            s = Sample.draw(list(KINDS)[i % len(KINDS)], int(rng.integers(2**31)), 2000)
            name = names[(7 * i) % len(names)]
            where = f"{name}, {s.kind}, seed {seed}, case {i}"
            if CALLS[name].takes(s):
                call, leaves = CALLS[name], CALLS[name].make(s)
                one = lambda s=s, call=call, leaves=leaves: call.tensors(s, leaves)  # noqa: E731
                report.faults += _same(pool, one, s.fresh, where)
                counts["calls"] += 1
            if i % 3 == 0:
                report.faults += _same(pool, lambda s=s: _conversions(s), s.fresh, f"conversions of {where}")
                counts["conversions"] += 1
            if i % 6 == 0:
                report.faults += _files(pool, s, f"saved by threads, {where}")
                counts["files"] += 1
    report.counts, report.seconds = dict(counts), time.perf_counter() - start
    return report


def _same(
    pool: ThreadPoolExecutor, one: Callable[[], list[torch.Tensor]], fresh: Callable[[], Any], where: str
) -> list[str]:
    wanted = [digest(t) for t in one()]
    fresh()
    barrier = threading.Barrier(THREADS)

    def task(_: int) -> list[bytes]:
        barrier.wait()
        return [digest(t) for t in one()]

    faults = []
    for i, done in enumerate([pool.submit(task, i) for i in range(THREADS)]):
        try:
            if done.result() != wanted:
                faults.append(f"{where}: thread {i} has other results than one alone")
        except Exception as error:  # of any kind
            faults.append(f"{where}: thread {i}: {type(error).__name__}: {error}")
    return faults


def _conversions(s: Sample) -> list[torch.Tensor]:
    """Of a matrix that all threads share, to the others' formats and back."""
    A = ls.CSR(s.normal(s.P.nnz, salt=1), s.P)
    rows, columns = s.P.row_indices, s.P.col_indices
    found = [
        ls.CSR.from_scipy(A.to_scipy()),
        ls.CSR.from_torch(A.to_torch()),
        ls.CSR.from_coo(rows, columns, A.values, A.shape),
        A.T.T,
        A.clone(),
    ]
    if s.P.shape[0] * s.P.shape[1] < 10**6:
        found.append(ls.CSR.from_dense(A.to_dense()))
    return [t for M in found for t in (M.values, M.crow_indices, M.col_indices)]


def _files(pool: ThreadPoolExecutor, s: Sample, where: str) -> list[str]:
    """All save to one file: it is that of one of them, and nothing else is left."""
    with tempfile.TemporaryDirectory() as made:
        path, faults = Path(made) / "A", []
        barrier = threading.Barrier(THREADS)

        def save(i: int) -> None:
            A = ls.CSR(torch.full((s.P.nnz,), float(i)), s.P)
            barrier.wait()
            A.save(path)

        try:
            list(pool.map(save, range(THREADS)))
            values = ls.CSR.load(path).values
            if len(values) and not bool((values == values[0]).all()):
                faults.append(f"{where}: the file has values of two threads")
        except Exception as error:  # of any kind
            faults.append(f"{where}: {type(error).__name__}: {error}")
        if left := [p.name for p in Path(made).iterdir() if p != path]:
            faults.append(f"{where}: {left} is left")
    return faults
