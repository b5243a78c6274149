"""A batch of systems with a preconditioner each, in one call of cg against a Python loop over the members.

2D diffusion with other coefficients for each of 8 members, n = 1024, and their IC(0) factors. "8 iterations":
with the gradients of A's values, the factors' and b by the unrolled adjoint. "to 1e-8": the implicit gradient
of A's values and b. Targets: at least 2 times as fast on one thread, 3 on two.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

import learnsolve as ls
from benchmarks.harness import OURS, Run, Task


def measure(run: Run, args: argparse.Namespace) -> None:
    side, B, iterations = (6, 2, 2) if run.quick else (32, 8, 8)
    A = ls.CSR.stack([ls.problems.diffusion(k) for k in torch.rand(B, side, side, dtype=torch.float64) + 0.5])
    P = ls.preconditioners
    L = P.IC(A).L
    given = [t.requires_grad_() for t in (A.values, L.values, torch.randn(B, side**2, 1, dtype=A.dtype))]
    alone = [[t[i].detach().clone().requires_grad_() for t in given] for i in range(B)]

    def fixed(v: Tensor, f: Tensor, b: Tensor) -> Tensor:
        M = P.FactorPreconditioner(L.with_values(f))
        options = {"iterations": iterations, "gradient": "unrolled"}
        return ls.solvers.cg(A.with_values(v), b, M=M, **options).x

    def tolerance(v: Tensor, f: Tensor, b: Tensor) -> Tensor:
        return ls.solvers.cg(
            A.with_values(v), b, M=P.FactorPreconditioner(L.with_values(f.detach())), rtol=1e-8
        ).x

    def forward(solve: Callable, inputs: list[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            return [solve(*inputs)]

    def both(solve: Callable, inputs: list[Tensor]) -> list[Tensor]:
        found = torch.autograd.grad(solve(*inputs).sum(), inputs, allow_unused=True)
        return [t for t in found if t is not None]

    def members(step: Callable, solve: Callable) -> Task:
        return lambda: [
            torch.stack(parts) for parts in zip(*(step(solve, one) for one in alone), strict=True)
        ]

    for threads in args.threads:
        for name, solve in ((f"{iterations} iterations", fixed), ("to 1e-8", tolerance)):
            for way, step in (("forward", forward), ("forward + backward", both)):
                columns = {
                    OURS: lambda step=step, solve=solve: lambda: step(solve, given),
                    "loop": lambda step=step, solve=solve: members(step, solve),
                }
                case = f"{B} systems, {name}, n = {side**2}"
                run.row(case, columns, way=way, dtype=A.dtype, threads=threads, nnz=A.pattern.nnz)
