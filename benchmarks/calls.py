"""Small calls, whose time is overhead; with --callgrind counts of instructions, which repeat exactly.

On a noisy machine compare these (instructions.py).
"""

from __future__ import annotations

import argparse

import torch

import learnsolve as ls
from benchmarks.harness import OURS, Run, Task


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
    M = ls.preconditioners.Trainable(ls.preconditioners.FactorPreconditioner.bidiagonal(16))

    def learn() -> torch.Tensor:
        solution = ls.solvers.cg(d, plain, iterations=4, M=M, gradient="unrolled")
        return torch.autograd.grad(solution.residual_norms.sum(), M.L.values)[0]

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
        "cg, 4 iterations": lambda: ls.solvers.cg(d, plain, iterations=4).x,
        "cg, to a tolerance": lambda: ls.solvers.cg(d, plain, rtol=1e-8).x,
        "cg, 4 iterations, gradient for M": learn,
    }


def measure(run: Run, args: argparse.Namespace) -> None:
    for name, f in cases().items():
        run.row(name, {OURS: lambda f=f: f}, way="time", check=lambda _: 0.0)
    if not args.callgrind:
        return
    from benchmarks import instructions  # which counts the cases of this file

    if reason := instructions.missing():
        run.note(f"calls: no instruction counts, {reason}")
        return
    for name, count in instructions.counts().items():
        cell = {"median": count, "iqr": 0.0, "samples": 1, "rounds": [count], "count": f"{count:,.0f}"}
        row = {"section": run.section, "case": name, "way": "instructions", "dtype": "float64", "threads": 1}
        run.rows.append(row | {"cells": {OURS: cell}})
