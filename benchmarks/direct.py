"""Direct solves with gradients: factor, solve, adjoint and gradient of the values, ours and by hand.

"first": a new pattern. "again": other values on it, with whatever the library keeps. By hand: the
factorization of SciPy, PARDISO or CHOLMOD, two solves with it, and a gather. Symmetric positive definite.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch

import learnsolve as ls
from benchmarks.contestants import CONTESTANTS
from benchmarks.harness import OURS, Run, figure
from benchmarks.multigrid import lognormal
from benchmarks.peers import peer
from benchmarks.report import duration, markdown

Gradient = tuple[np.ndarray, np.ndarray]
Again = Callable[[np.ndarray], Gradient]  # of the values
Start = Callable[[Any, np.ndarray, np.ndarray], Again]

PROBLEMS: dict[str, Callable[[], ls.CSR]] = {
    "Poisson 300^2": lambda: ls.problems.poisson((300, 300)),
    "log-normal 200^2": lambda: lognormal((200, 200)),
    "Poisson 30^3": lambda: ls.problems.poisson((30, 30, 30)),
    "Poisson 40^3": lambda: ls.problems.poisson((40, 40, 40)),
}
QUICK = {"Poisson 20^2": lambda: ls.problems.poisson((20, 20))}
LONGEST = 5.0  # seconds of a contestant, after which it has no further round


def ours(backend: str) -> Start:
    def start(S: Any, b: np.ndarray, g: np.ndarray) -> Again:
        pattern = ls.SparsityPattern(torch.from_numpy(S.indptr), torch.from_numpy(S.indices), S.shape)
        rhs, cotangent, F = torch.from_numpy(b).requires_grad_(), torch.from_numpy(g), None

        def again(values: np.ndarray) -> Gradient:
            nonlocal F
            v = torch.from_numpy(values).requires_grad_()
            F = ls.factorize(ls.CSR(v, pattern), backend=backend) if F is None else F.refactorize(v)
            found = torch.autograd.grad(F.solve(rhs), (v, rhs), cotangent)
            return found[0].numpy(), found[1].numpy()

        return again

    return start


def by_hand(factored: Callable[[Any], Callable[[np.ndarray], Callable[[np.ndarray], np.ndarray]]]) -> Start:
    def start(S: Any, b: np.ndarray, g: np.ndarray) -> Again:
        rows, set_up = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)), factored(S)

        def again(values: np.ndarray) -> Gradient:
            solve = set_up(values)
            x, y = solve(b), solve(g)
            return -y[rows] * x[S.indices], y

        return again

    return start


def contestant(name: str) -> Start:
    def factored(S: Any) -> Any:
        set_up = CONTESTANTS[name].start(S, True)

        def solver(values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
            solve = set_up(values)
            return lambda B: solve(B)[0]

        return solver

    return by_hand(factored)


def scipy(S: Any) -> Any:
    options: Any = {
        "permc_spec": "MMD_AT_PLUS_A",
        "options": {"SymmetricMode": True},
        "diag_pivot_thresh": 0.0,
    }
    return lambda values: spla.splu(sp.csc_array((values, S.indices, S.indptr), S.shape), **options).solve


def torch_sla(S: Any, b: np.ndarray, g: np.ndarray) -> Again:
    rows = torch.from_numpy(np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)))
    columns, cotangent = torch.from_numpy(S.indices).long(), torch.from_numpy(g)

    def again(values: np.ndarray) -> Gradient:
        v, rhs = torch.from_numpy(values).requires_grad_(), torch.from_numpy(b).requires_grad_()
        x = peer("torch_sla").spsolve(v, rows, columns, S.shape, rhs)
        found = torch.autograd.grad(x, (v, rhs), cotangent)
        return found[0].numpy(), found[1].numpy()

    return again


# What it is, and the module that it needs.
COMPARED: dict[str, tuple[Start, str]] = {
    OURS: (ours("auto"), "learnsolve"),
    "SuperLU, ours": (ours("superlu"), "learnsolve"),
    "PARDISO, ours": (ours("pardiso"), "pypardiso"),
    "CHOLMOD, ours": (ours("cholmod"), "sksparse.cholmod"),
    "SuperLU": (by_hand(scipy), "scipy"),
    "PARDISO": (contestant("PARDISO"), "pypardiso"),
    "CHOLMOD": (contestant("CHOLMOD"), "sksparse.cholmod"),
    "torch-sla": (torch_sla, "torch_sla"),
}


def measure(run: Run, args: argparse.Namespace) -> list[str]:
    there = {who: start for who, (start, module) in COMPARED.items() if peer(module) is not None}
    for who in COMPARED.keys() - there.keys():
        run.note(f"{run.section}, {who}: not installed")
    raced(there, sp.csr_matrix(ls.problems.poisson((8, 8)).to_scipy()), 1)  # libraries load parts of theirs
    lines = []
    for name, make in (QUICK if run.quick else PROBLEMS).items():
        S: Any = sp.csr_matrix(make().to_scipy())
        for threads in args.threads:
            torch.set_num_threads(threads)
            with run.attempt(f"{name}, {threads} threads"):
                lines += table(run, name, threads, raced(there, S, run.rounds))
    return lines


def raced(there: dict[str, Start], S: Any, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of every contestant, in turn; all have the same gradients."""
    rng = np.random.default_rng(0)
    b, g = rng.standard_normal((2, S.shape[0]))
    times: dict[str, dict[str, list[float]]] = {who: {"first": [], "again": []} for who in there}
    wanted: Gradient | None = None
    for count in range(rounds):
        for who, start in there.items():
            if count and sum(map(sum, times[who].values())) > LONGEST:
                continue
            begin = time.perf_counter()
            again = start(S, b, g)
            found = again(S.data.copy())
            times[who]["first"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            again(S.data * (1 + 0.125 * (1 + count)))
            times[who]["again"].append(time.perf_counter() - begin)
            wanted = wanted or found
            for one, other in zip(found, wanted, strict=True):
                if not np.abs(one - other).max() <= 1e-8 * np.abs(other).max():
                    raise ArithmeticError(f"{who} has another gradient")
    return times


def table(run: Run, name: str, threads: int, times: dict[str, dict[str, list[float]]]) -> list[str]:
    for way in ("first", "again"):
        row = {"section": run.section, "case": name, "way": way, "dtype": "float64", "threads": threads}
        cells = {who: figure([[t] for t in ways[way]]) for who, ways in times.items()}
        run.rows.append(row | {"cells": cells})
    print(f"  {name}, {threads} threads", flush=True)
    lines = [{"": who} | {way: duration(min(t)) for way, t in ways.items()} for who, ways in times.items()]
    return [f"### {name}, {threads} thread{'s' * (threads > 1)}", markdown(lines)]
