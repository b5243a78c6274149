"""`ls.solve` against each method that it may choose, on 66 matrices of 48 to 100,000 rows.

CPU time of one thread for one solve to 1e-5 and to 1e-8, with a new pattern and the set-up of M included; all
methods in turn, three times. A method that does not converge counts as infinitely slow. Target: at most 3
times the best method, which counts as 1 ms where it takes less.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

import learnsolve as ls
from benchmarks.harness import OURS, Run, figure
from benchmarks.systems import cases
from learnsolve.solvers.automatic import direct_cost, preconditioner
from learnsolve.solvers.core.problem import DetectedConstants, detect_constants

FLOOR = 1e-3  # seconds
LONG = 1e11  # flops of a direct solve, 10 s: left out beyond
SYMMETRIC = ("cg MIC(0)", "cg IC(0)", "cg Jacobi", "cg", "minres")
GENERAL = tuple(f"{method}{M}" for method in ("bicgstab", "gmres") for M in (" ILU(0)", " Jacobi", ""))


def measure(run: Run, args: argparse.Namespace) -> list[str]:
    torch.set_num_threads(1)
    everything = list(cases(args.matrices))
    for name, make in everything[6:7] if run.quick else everything:
        torch.manual_seed(0)
        S = sp.csr_array(make())
        S.sort_indices()
        with run.attempt(name), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for rtol in (1e-5, 1e-8):
                one(run, name, S, rtol)
    ratios = sorted((row["of best"], row["case"], row["way"]) for row in run.rows)
    worst = ", ".join(f"{ratio:.2f} ({case}, {way})" for ratio, case, way in ratios[-3:][::-1])
    share = {limit: sum(r <= limit for r, *_ in ratios) for limit in (1.2, 1.5, 2, 2.5, 3)}
    text = ", ".join(f"{limit:g} in {count}" for limit, count in share.items())
    return [f"`ls.solve` / best method, of {len(ratios)} solves: at most {text}. The largest: {worst}."]


def one(run: Run, name: str, S: sp.csr_array, rtol: float) -> None:
    A = ls.CSR.from_scipy(S)
    b = A @ torch.from_numpy(np.random.default_rng(1).standard_normal(S.shape[0]))
    null = detect_constants(A)
    names = list(SYMMETRIC if A.is_symmetric() else GENERAL)
    if direct_cost(A) <= LONG and null is None:
        names.insert(0, "direct")
    chosen = ls.solve(A, b, rtol=rtol)
    cells: dict[str, dict[str, Any]] = {}
    rounds: dict[str, list[list[float]]] = {OURS: []}
    best = math.inf
    for candidate in names:
        # An iteration takes more than a quarter of a nanosecond an entry: 5 times the best time, and more.
        limit = 10 * A.shape[0] if best == math.inf else int(200 + 20 * best / (1e-9 * A.nnz))
        task = method(candidate, rtol, min(limit, 10 * A.shape[0]), null)
        seconds, converged = timed(task, S, b)
        if not converged:
            cells[candidate] = {"failed": "no"}
        else:
            rounds[candidate], best = [], min(best, seconds)
    tasks = {OURS: lambda A, b: ls.solve(A, b, rtol=rtol).converged}
    methods = [who for who in rounds if who != OURS]
    tasks |= {who: method(who, rtol, 10 * A.shape[0], null) for who in methods}
    for _ in range(min(run.rounds, 3)):
        for who, task in tasks.items():
            if not rounds[who] or who == OURS or statistics.median(rounds[who][0]) < 3 * best:
                rounds[who].append(repeated(task, S, b))
        best = min(statistics.median(rounds[who][0]) for who in methods)
    cells |= {who: figure(times) for who, times in rounds.items()}
    best_method = min(methods, key=lambda who: cells[who]["median"])
    pairs = zip(cells[OURS]["rounds"], cells[best_method]["rounds"], strict=True)
    ratio = statistics.median(ours / max(theirs, FLOOR) for ours, theirs in pairs)
    row = {"section": run.section, "case": name, "way": f"to {rtol:g}", "dtype": "float64", "threads": 1}
    row |= {"rows": A.shape[0], "nnz": A.nnz, "best": best_method, "of best": ratio}
    row |= {"method": chosen.method, "reason": chosen.reason}
    run.rows.append(row | {"cells": {who: cells[who] for who in (OURS, *names)}})
    print(f"  {ratio:5.2f} of {best_method}: {name}, {rtol:g}: {chosen.method}: {chosen.reason}", flush=True)


def method(
    name: str, rtol: float, maxiter: int, null: DetectedConstants | None
) -> Callable[[ls.CSR, Tensor], bool]:
    if name == "direct":
        return lambda A, b: ls.solve(A, b, rtol=rtol, method="direct").converged
    solver, M = name.split() if " " in name else (name, "no M")
    keywords: dict[str, Any] = {"rtol": rtol, "maxiter": maxiter}
    keywords |= {} if null is None else {"null_space": null}

    def solve(A: ls.CSR, b: Tensor) -> bool:
        made = preconditioner(M, A, None)[0]
        return getattr(ls.solvers, solver)(A, b, M=made, **keywords).converged

    return solve


def timed(task: Callable[[ls.CSR, Tensor], bool], S: sp.csr_array, b: Tensor) -> tuple[float, bool]:
    """CPU seconds of a solve with a fresh pattern, which has no plans, and whether it converged."""
    A = ls.CSR.from_scipy(S)
    start = time.process_time()
    try:
        converged = task(A, b)
    except ValueError:  # a zero pivot or diagonal
        converged = False
    return time.process_time() - start, converged


def repeated(task: Callable[[ls.CSR, Tensor], bool], S: sp.csr_array, b: Tensor) -> list[float]:
    times: list[float] = []
    while sum(times) < 0.01:
        times.append(timed(task, S, b)[0])
    return times
