"""Set-up and solve by cg with incomplete factors and multigrid, of ours and of peers, and direct solves.

To 1e-8, one right-hand side. "first set-up": on a new pattern; "set-up": of new values on the same pattern.
Every contestant has its defaults (`benchmarks.contestants`), in a process for a problem and a number of
threads; pyamg, hypre and gamg use one core. MB: by how much the first set-up and solve raise the memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

import learnsolve as ls
from benchmarks import ROOT
from benchmarks.contestants import CONTESTANTS, is_symmetric, prepare, timed, warm_up
from benchmarks.harness import Run, figure, fresh_peak
from benchmarks.ledger import Ledger, supervised
from benchmarks.report import duration, markdown

COMPARED: dict[str, tuple[str, dict[str, Any]]] = {
    "MIC(0), shift 1e-3": ("MIC(0)", {"shift": 1e-3}),
    **{
        name: (name, CONTESTANTS[name].settings[0])
        for name in ("MIC(0)", "MIC fill 1", "MIC fill 2", "AMG SA", "AMG RS", "pyamg SA", "pyamg RS")
    },
    "AMG RS, aggressive": ("AMG RS", {"aggressive": 1}),
    "AMGCL SA, GS": ("AMGCL SA", {"relax": "gauss_seidel"}),
    "AMGCL RS, GS": ("AMGCL RS", {"relax": "gauss_seidel"}),
    **{
        name: (name, CONTESTANTS[name].settings[0])
        for name in ("AMGCL SA", "AMGCL RS", "hypre", "gamg", "PARDISO", "CHOLMOD")
    },
}
WAYS = ("first set-up", "set-up", "solve", "set-up + solve")
LONGEST = 3.0  # seconds of a contestant on a problem, after which no round begins


def lognormal(shape: tuple[int, ...]) -> ls.CSR:
    generator = torch.Generator().manual_seed(0)
    return ls.problems.diffusion(torch.exp(2 * torch.randn(shape, dtype=torch.float64, generator=generator)))


p = ls.problems
PROBLEMS: dict[str, Callable[[], ls.CSR]] = {
    "Poisson 500^2": lambda: p.poisson((500, 500)),
    "Poisson 60^3": lambda: p.poisson((60, 60, 60)),
    "anisotropic 1e-3, -45 deg, 256^2": lambda: p.anisotropic((256, 256), 1e-3, -np.pi / 4),
    "anisotropic 1e-3, 30 deg, 256^2": lambda: p.anisotropic((256, 256), 1e-3, np.pi / 6),
    "log-normal 316^2": lambda: lognormal((316, 316)),
    "log-normal 46^3": lambda: lognormal((46, 46, 46)),
}
QUICK = {"Poisson 20^2": lambda: p.poisson((20, 20)), "log-normal 6^3": lambda: lognormal((6, 6, 6))}


def measure(run: Run, args: argparse.Namespace) -> list[str]:
    path, lines = (args.out or ROOT / "runs/benchmarks") / "multigrid.jsonl", []
    if not args.resume:
        path.unlink(missing_ok=True)
    for name, (key, _) in COMPARED.items():
        if absent := CONTESTANTS[key].absent:
            run.note(f"{run.section}, {name}: {absent}")
    for name in QUICK if run.quick else PROBLEMS:
        for threads in args.threads:
            for library in ("OMP", "OPENBLAS", "MKL"):
                os.environ[f"{library}_NUM_THREADS"] = str(threads)
            with run.attempt(f"{name}, {threads} threads"):
                call = (one, path, name, threads, run.rounds)
                rows = one(*call[1:]) if run.quick else supervised(*call)
                lines += table(run, name, threads, rows)
    return lines


def one(path: Path, name: str, threads: int, rounds: int) -> dict[str, dict[str, Any]]:
    """The rows of all contestants on a problem."""
    prepare(threads)
    S: Any = sp.csr_matrix((PROBLEMS | QUICK)[name]().to_scipy())
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    ledger, rows = Ledger(path), {}
    for label, (key, setting) in COMPARED.items():
        if not CONTESTANTS[key].absent:
            row = ledger(f"{name}, {threads}, {label}", lambda k=key, s=setting: raced(k, s, S, b, rounds))
            rows[label] = row
    return rows


def raced(name: str, setting: dict[str, Any], S: Any, b: np.ndarray, rounds: int) -> dict[str, Any]:
    start, symmetric, found = CONTESTANTS[name].start, is_symmetric(S), []

    def first() -> None:
        begin = time.perf_counter()
        set_up = start(S, symmetric, **setting)
        before = time.perf_counter() - begin
        row, _ = timed(lambda: set_up(S.data), S, b)
        found.extend((set_up, row | {"set-up": row["set-up"] + before}))

    warm_up(CONTESTANTS[name], symmetric, **setting)
    rise = fresh_peak(first)
    set_up, row = found
    begin, later = time.perf_counter(), []
    while not later or (len(later) < rounds and time.perf_counter() - begin < LONGEST):
        T = S * (1 + 0.125 * (1 + len(later)))
        later.append(timed(lambda T=T: set_up(T.data), T, b)[0])
    times = {way: [r[way] for r in later] for way in ("set-up", "solve")}
    times["set-up + solve"] = [a + c for a, c in zip(times["set-up"], times["solve"], strict=True)]
    facts = {"iterations": row["iterations"], "residual": row["residual"], "MB": rise and rise / 2**20}
    return {"times": times | {"first set-up": [row["set-up"]]}, **facts}


def table(run: Run, name: str, threads: int, rows: dict[str, dict[str, Any]]) -> list[str]:
    """The rows of the record, and a table of the page."""
    lines = []
    for way in WAYS:
        cells = {}
        for label, row in rows.items():
            facts = {k: v for k, v in row.items() if k != "times"}
            times = figure([[t] for t in row["times"][way]]) if "times" in row else {}
            cells[label] = facts | times
        row = {"section": run.section, "case": name, "way": way, "dtype": "float64", "threads": threads}
        run.rows.append(row | {"cells": cells})
    for label, row in rows.items():
        line: dict[str, Any] = {"": label}
        if "failed" in row:
            line |= dict.fromkeys(WAYS, "") | {"iterations": row["failed"], "residual": "", "MB": ""}
        else:
            line |= {way: duration(statistics.median(row["times"][way])) for way in WAYS}
            line |= {"iterations": str(row["iterations"]), "residual": f"{row['residual']:.0e}"}
            line["MB"] = "" if row["MB"] is None else f"{row['MB']:.0f}"
        lines.append(line)
    print(f"  {name}, {threads} threads", flush=True)
    return [f"### {name}, {threads} thread{'s' * (threads > 1)}", markdown(lines)]
