"""Small calls, whose time is overhead; with --callgrind counts of instructions, which repeat exactly.

Counts run in one process under valgrind, in about three minutes. valgrind knows no AVX-512: the kernels need
a build with LEARNSOLVE_ISA_VARIANTS=all, as CI has it. On a noisy machine compare these.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

import learnsolve as ls
from benchmarks.harness import OURS, Run, Task

NUMBER, WARM = 50, 10  # of calls for a count; of those that torch makes before the first


def cases() -> dict[str, Task]:
    """On 16 rows; the results are kept alive by nothing."""
    A = ls.problems.poisson((16,)).requires_grad_()
    B = A.with_values(A.values.detach().clone()).requires_grad_()
    L = ls.ops.tril(A.detach()).requires_grad_()
    x = torch.linspace(-1, 1, 16, dtype=torch.float64).requires_grad_()
    X = torch.ones(16, 4, dtype=torch.float64, requires_grad=True)
    g, y, d = torch.ones(16, dtype=torch.float64), A @ x, A.detach()
    T = d.to_torch()
    plain = x.detach()
    smoother = ls.solvers.Jacobi(torch.ones(16, dtype=torch.float64), iterations=1)
    return {
        "torch's CSR, A @ x": lambda: T @ plain,
        "A @ x": lambda: A @ x,
        "A @ x, no gradient": lambda: d @ plain,
        "backward of A @ x": lambda: torch.autograd.grad(y, (A.values, x), g, retain_graph=True),
        "A @ X": lambda: A @ X,
        "A @ B": lambda: ls.ops.spgemm(A, B),
        "A + B": lambda: ls.ops.add(A, B),
        "sptrsv": lambda: ls.ops.sptrsv(L, x),
        "a Jacobi sweep": lambda: smoother(A, x).x,
        "cg, 4 iterations": lambda: ls.solvers.cg(d, plain, rtol=0.0, atol=0.0, maxiter=4).x,
    }


def turns(number: int = NUMBER) -> Iterator[Task]:
    """The calls one after another, `number` of each after those of nothing: torch counts the instructions of
    several repetitions of one statement in one process, and this statement is another call in each."""
    every = cases().values()
    for f in every:
        for _ in range(WARM):
            f()
    nothing: Callable[[], object] = lambda: None  # noqa: E731
    parts = (itertools.repeat(f, number) for f in (nothing, *every))
    return itertools.chain(itertools.repeat(nothing, min(number, WARM)), *parts)


def measure(run: Run, args: argparse.Namespace) -> None:
    for name, f in cases().items():
        run.row(name, {OURS: lambda f=f: f}, way="time", check=lambda _: 0.0)
    if not args.callgrind:
        return
    if shutil.which("valgrind") is None:
        run.note("calls: no instruction counts, valgrind is not installed (apt install valgrind)")
        return
    usable = [name for name in ls.config()["instruction_sets"] if name != "x86-64-v4"]
    if not usable:
        run.note(
            "calls: no instruction counts, valgrind knows no AVX-512; build with LEARNSOLVE_ISA_VARIANTS=all"
        )
        return
    for name, count in counts(usable[-1]).items():
        cell = {"median": count, "iqr": 0.0, "samples": 1, "rounds": [count], "count": f"{count:,.0f}"}
        row = {"section": run.section, "case": name, "way": "instructions", "dtype": "float64", "threads": 1}
        run.rows.append(row | {"cells": {OURS: cell}})


def counts(instruction_set: str) -> dict[str, float]:
    """Instructions of a call, by case."""
    folder = str(Path(sys.executable).parent)  # torch starts "python"
    changed = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "LEARNSOLVE_ISA": instruction_set}
    changed |= {
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        names = list(cases())
        timer = Timer("next(every)()", "from benchmarks.calls import turns; every = turns()")
        found = timer.collect_callgrind(NUMBER, repeats=1 + len(names), collect_baseline=False)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
    nothing, *rest = (stats.counts(denoise=True) / NUMBER for stats in found)
    return {name: count - nothing for name, count in zip(names, rest, strict=True)}
