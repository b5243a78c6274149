"""Smallest eigenpairs and their gradient: `ls.eigsh`, SciPy's ARPACK and LOBPCG, torch.lobpcg.

2D Poisson, one thread, float64. Residuals of at most 1e-6 of the largest requested value; SciPy's shift and
inverse at 0 to its default, machine precision. Gradient: by A's values, of an invariant of all vectors; its
time divided by that of the solve is the quotient of minima, in turn.
"""

from __future__ import annotations

import argparse
import timeit
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse.linalg as spla
import torch

import learnsolve as ls
from benchmarks import peers
from benchmarks.harness import OURS, Run, Task

LIMIT = 1e-6


def measure(run: Run, args: argparse.Namespace) -> list[str]:
    torch.set_num_threads(1)
    lines = []
    for n, k in ((20, 4),) if run.quick else ((100, 10), (300, 20)):
        name = f"{k} smallest, 2D Poisson {n}^2"
        with run.attempt(name), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pairs(run, name, n, k)
            lines.append(f"{name}: {gradient(run, name, n, k)}.")
    return lines


def pairs(run: Run, name: str, n: int, k: int) -> None:
    A = ls.problems.poisson((n, n))
    S, T, M = peers.csr(A.to_scipy()), A.to_torch(), ls.preconditioners.AMG(A)
    X = np.random.default_rng(0).standard_normal((n * n, k + max(2, k // 4)))
    operator = M.to_scipy_linear_operator()
    # Of the residual norm; SciPy's is absolute, torch's relative to the norm of A, about 8.
    tol = 0.5 * LIMIT * float(ls.problems.PROPERTIES["poisson"].eigenvalues((n, n))[k - 1])

    def ours(**options: Any) -> Callable[[], Task]:
        return lambda: lambda: ls.eigsh(A, k, method="auto" if "M" in options else "arpack", **options)[:2]

    def scipy_lobpcg() -> tuple[np.ndarray, np.ndarray]:
        values, U = spla.lobpcg(S, X, M=operator, largest=False, tol=tol, maxiter=200)
        return values[:k], U[:, :k]

    def torch_lobpcg() -> Any:  # without a preconditioner but a matrix
        return torch.lobpcg(T, k, X=torch.from_numpy(X), largest=False, niter=1000, tol=tol / 8)

    def off(found: list[Any]) -> float:
        values, U = found
        residual = np.linalg.norm(S @ U[:, :k] - U[:, :k] * values[:k], axis=0)
        return float(residual.max() / abs(values[:k]).max())

    options: dict[str, Any] = {"check": off, "tolerance": LIMIT, "n": n * n}
    shifted = {OURS: ours(), "SciPy": lambda: lambda: spla.eigsh(S, k, sigma=0)}
    run.row(name, shifted, way="by a factor", **options)
    blocks = {OURS: ours(M=M, rtol=LIMIT), "SciPy": lambda: scipy_lobpcg}
    if n <= 100:
        blocks["torch"] = lambda: torch_lobpcg
    run.row(name, blocks, way="by LOBPCG with AMG", **options)


def gradient(run: Run, name: str, n: int, k: int) -> str:
    """Alternating with the solve that it belongs to."""
    A = ls.problems.poisson((n, n)).requires_grad_()
    weights = torch.randn(n * n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unsqueeze(1)
    made: list[torch.Tensor] = []

    def solve() -> None:
        U = ls.eigsh(A, k, method="arpack").vectors
        made[:] = [(U.mT @ (weights * U)).square().sum()]

    def backward() -> torch.Tensor:
        return torch.autograd.grad(made[0], A.values)[0]

    solve()
    backward()
    rounds = range(1 if run.quick else 5)
    seconds = [[timeit.timeit(f, number=1) for f in (solve, backward)] for _ in rounds]
    best = [min(times) for times in zip(*seconds, strict=True)]
    run.row(
        name,
        {OURS: lambda: lambda: (solve(), backward())[1]},
        way="solve and gradient of the vectors",
        n=n * n,
    )
    return f"solve {1e3 * best[0]:.4g} ms, gradient {best[1] / best[0]:.2f} of that"
