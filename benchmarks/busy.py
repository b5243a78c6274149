"""All threads against one, on an idle machine and together with as many busy processes as there are cores.

Whole solves, products, sweeps and adjoints on 100,000 unknowns. Targets: at most 1.2 times the time of one
thread with busy processes; never more than that of one thread on an idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import learnsolve as ls
from benchmarks.harness import OURS, Run, Task


def tasks(quick: bool) -> dict[str, Task]:
    side = 8 if quick else 316
    cells = torch.randn(side, side, dtype=torch.float64).exp()
    grids = {"Poisson": ls.problems.poisson((side, side)), "log-normal cells": ls.problems.diffusion(cells)}
    A, P, S = grids["Poisson"], ls.preconditioners, ls.solvers
    b = torch.randn(A.shape[0], dtype=A.dtype)
    leaf = A.with_values(A.values.detach().clone()).requires_grad_()

    def adjoint() -> Tensor:
        x = S.cg(leaf, b, iterations=20, gradient="unrolled").x
        return torch.autograd.grad(x.sum(), leaf.values)[0]

    def solve(B: ls.CSR, M: ls.preconditioners.Preconditioner) -> Task:
        return lambda: S.cg(B, b, M=M, rtol=1e-8).x

    return {
        **{f"cg, M = MIC, {name}": solve(B, P.MIC(B)) for name, B in grids.items()},
        "cg, M = Jacobi, Poisson": solve(A, P.Jacobi(A)),
        "cg, 20 iterations and their adjoint, Poisson": adjoint,
        "jacobi, 100 sweeps, Poisson": lambda: S.jacobi(A, b, iterations=100).x,
        "100 products, Poisson": lambda: [A @ b for _ in range(100)][-1],
    }


@contextlib.contextmanager
def company(count: int) -> Iterator[None]:
    """That many processes that want a core each."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def on_one_thread(task: Task) -> Task:
    def alone() -> object:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return task()
        finally:
            torch.set_num_threads(threads)

    return alone


def measure(run: Run, args: argparse.Namespace) -> None:
    if not run.quick:
        run.seconds = max(run.seconds, 2.0)  # a solve next to others waits for a core now and then
    for count in (0, os.cpu_count() or 2):
        with company(count):
            for name, task in tasks(run.quick).items():
                columns: dict[str, Callable[[], Task]] = {
                    OURS: lambda task=task: task,
                    "one thread": lambda task=task: on_one_thread(task),
                }
                run.row(f"{name}, {count} busy processes", columns, threads=max(args.threads))
