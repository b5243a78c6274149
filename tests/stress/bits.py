"""The same bits for any number of threads: every operation and solver, forward and backward."""

import time
from collections import Counter

import numpy as np
import torch

import learnsolve as ls

from ._calls import CALLS, Call, quiet
from ._report import Report
from ._samples import KINDS, Sample, digest

THREADS = (1, 2, 3, 4, 8)
TURNS = 12  # a call has its turn at every twelfth matrix of a kind
SHORT = 1
# Names that are no function of tensors.
SETTINGS = {"set_buffer_pool_limit", "set_plan_cache_limit", "set_spgemm_plan_limit", "set_check_every"}
RECORDS = {"ConvergenceWarning", "Iteration", "Solution", "SolverError", "Status"}
MODULES = {
    "Chebyshev",
    "Heavyball",
    "Jacobi",
    "Richardson",
    "SOR",
    "TriangularSolve",
}  # of functions in CALLS
RESULTS = {"Factorized", "IncompleteCholesky", "IncompleteLU"}
# Whose products of dense matrices, or inverses of large blocks, are split among the threads of BLAS.
BLAS = {
    "extreme_eigenvalues",
    "preconditioner AdditiveSchwarz",
    "preconditioner AMG",
    "preconditioner AMG, classical",
    "preconditioner NeuralAMG",
}
RULES = {"heavyball_parameters", "richardson_weight"}  # of numbers


def run(count: int, seed: int) -> Report:
    """`count` matrices, in float32 and float64; work for one to twelve threads in the kernels."""
    start, threads, report = time.perf_counter(), torch.get_num_threads(), Report("bits")
    counts = Counter()
    report.faults += [f"{name} is not among the calls that are compared" for name in untried()]
    try:
        for i in range(count):
            s = draw(i, seed)
            counts["matrices"] += 1
            for name, call in turn(s, i):
                for s.dtype in (torch.float32, torch.float64):
                    with quiet():
                        report.faults += compare(s, name, call, seed, i, counts)
    finally:
        torch.set_num_threads(threads)
    report.counts, report.seconds = dict(counts), time.perf_counter() - start
    return report


def untried() -> list[str]:
    """Public operations and solvers that no call names."""
    names = {*ls.ops.__all__, *ls.solvers.__all__} - SETTINGS - RECORDS - MODULES - RESULTS - RULES
    return sorted(n for n in names if not any(c == n or c.startswith(f"{n} ") for c in CALLS))


def draw(i: int, seed: int) -> Sample:
    """Matrix i of a run: with its columns it is work for 1 to 12 threads."""
    rng = np.random.default_rng((seed, i))
    kind = list(KINDS)[i % len(KINDS)]
    work = int(np.exp(rng.uniform(np.log(40_000), np.log(300_000))))
    return Sample.draw(kind, int(rng.integers(2**31)), work)


def turn(s: Sample, i: int) -> list[tuple[str, Call]]:
    able = [(name, call) for name, call in CALLS.items() if call.takes(s) and name not in BLAS]
    return able[(i // len(KINDS)) % TURNS :: TURNS]


def compare(s: Sample, name: str, call: Call, seed: int, i: int, counts: Counter) -> list[str]:
    """Faults of one call on one matrix in one precision. Every other matrix has its plans rebuilt."""
    wanted, faults, leaves = None, [], call.make(s)
    for number in THREADS:
        torch.set_num_threads(number)
        if i % 2:
            s.fresh()
        where = f"{name}, {s.kind} {s.P.shape} of {s.P.nnz} entries, {s.dtype}, seed {seed}, matrix {i}"
        try:
            found = [digest(t) for t in call.tensors(s, leaves)]
        except Exception as error:  # whatever it is, the others are tried
            if "PLAN_LIMIT" in str(error):  # an elimination that fills an arrow up
                counts["refused"] += 1
                break
            faults.append(f"{where}: with {number} threads {type(error).__name__}: {error}")
            break
        counts["results compared"] += len(found) if wanted else 0
        if wanted is not None and found != wanted:
            which = [k for k, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b]
            faults.append(f"{where}: results {which} with {number} threads are not those with one")
        wanted = wanted or found
    counts["calls"] += 1
    return faults
