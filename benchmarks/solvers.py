"""Iterations and time of the Krylov methods beside SciPy's (docs/solvers.md).

    python benchmarks/solvers.py [--out FILE]

2D Poisson (with a convection term for bicgstab and gmres), float64, one right-hand side, rtol 1e-8, no
preconditioner, one thread. Times are medians in microseconds an iteration.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch
from timing import medians, table, write

import learnsolve as ls

RTOL = 1e-8


def problem(side: int, symmetric: bool) -> sp.csr_array:
    S = ls.problems.poisson((side, side)).to_scipy()
    if symmetric:
        return S
    n = side * side
    return sp.csr_array(S + 0.5 * sp.diags_array([-np.ones(n - 1), np.ones(n - 1)], offsets=[-1, 1]))


def scipy_iterations(method: str, S: sp.csr_array, b: np.ndarray, **options) -> int:
    count = 0

    def callback(_) -> None:
        nonlocal count
        count += 1

    getattr(spla, method)(S, b, rtol=RTOL, callback=callback, **options)
    return count


def compare(method: str, side: int) -> dict:
    S = problem(side, method in ("cg", "minres"))
    A = ls.CSR.from_scipy(S)
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    t = torch.from_numpy(b)
    ours, theirs = getattr(ls.solvers, method), getattr(spla, method)
    options = {"callback_type": "pr_norm"} if method == "gmres" else {}
    iterations = scipy_iterations(method, S, b, **options)
    solution = ours(A, t, rtol=RTOL)
    assert solution.converged
    seconds = medians({"scipy": lambda: theirs(S, b, rtol=RTOL), "ours": lambda: ours(A, t, rtol=RTOL)}, 0.5)
    per = {
        "scipy": 1e6 * seconds["scipy"] / iterations,
        "learnsolve": 1e6 * seconds["ours"] / solution.iterations,
    }
    return {
        "method": method,
        "n": S.shape[0],
        "iterations scipy": iterations,
        "iterations": solution.iterations,
        **per,
        "ratio": per["learnsolve"] / per["scipy"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/solvers.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        compare(method, side) for method in ("cg", "minres", "bicgstab", "gmres") for side in (8, 30, 100)
    ]
    print(table(rows))
    write(args.out, "solvers", rows)


if __name__ == "__main__":
    main()
