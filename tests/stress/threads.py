"""Any number of threads in a call, and calls in many threads."""

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import learnsolve as ls

from ._calls import CALLS, Call, quiet
from ._samples import KINDS, Sample, digest

THREADS = 8


def threads(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """Eight threads that use one pattern, or write one file, at the same time get what one alone gets.

    Every operation, solver and constructor on a pattern without plans, which all threads then make at
    once.
    """
    rng, names, i = np.random.default_rng(seed), list(CALLS), int(seed) * 31
    with quiet(), ThreadPoolExecutor(THREADS) as pool:
        while counts["calls"] + counts["conversions"] + counts["files"] < count:
            i += 1
            s = Sample.draw(list(KINDS)[i % len(KINDS)], int(rng.integers(2**31)), 2000)
            name = names[(7 * i) % len(names)]
            where = f"{name}, {s.kind}, seed {seed}, case {i}"
            if CALLS[name].takes(s):
                call, leaves = CALLS[name], CALLS[name].make(s)
                one = lambda s=s, call=call, leaves=leaves: call.tensors(s, leaves)  # noqa: E731
                yield from _same(pool, one, s.fresh, where)
                counts["calls"] += 1
            if i % 3 == 0:
                yield from _same(pool, lambda s=s: _conversions(s), s.fresh, f"conversions of {where}")
                counts["conversions"] += 1
            if i % 6 == 0:
                yield from _files(pool, s, f"saved by threads, {where}")
                counts["files"] += 1


def _same(
    pool: ThreadPoolExecutor, one: Callable[[], list[torch.Tensor]], fresh: Callable[[], Any], where: str
) -> list[str]:
    wanted = [digest(t) for t in one()]
    fresh()
    barrier = threading.Barrier(THREADS)

    def task(_: int) -> list[bytes]:
        barrier.wait()
        return [digest(t) for t in one()]

    faults = []
    for i, done in enumerate([pool.submit(task, i) for i in range(THREADS)]):
        try:
            if done.result() != wanted:
                faults.append(f"{where}: thread {i} has other results than one alone")
        except Exception as error:  # of any kind
            faults.append(f"{where}: thread {i}: {type(error).__name__}: {error}")
    return faults


def _conversions(s: Sample) -> list[torch.Tensor]:
    """Of a matrix that all threads share, to the others' formats and back."""
    A = ls.CSR(s.normal(s.P.nnz, salt=1), s.P)
    rows, columns = s.P.row_indices, s.P.col_indices
    found = [
        ls.CSR.from_scipy(A.to_scipy()),
        ls.CSR.from_torch(A.to_torch()),
        ls.CSR.from_coo(rows, columns, A.values, A.shape),
        A.T.T,
        A.clone(),
    ]
    if s.P.shape[0] * s.P.shape[1] < 10**6:
        found.append(ls.CSR.from_dense(A.to_dense()))
    return [t for M in found for t in (M.values, M.crow_indices, M.col_indices)]


def _files(pool: ThreadPoolExecutor, s: Sample, where: str) -> list[str]:
    """All save to one file: it is that of one of them, and nothing else is left."""
    with tempfile.TemporaryDirectory() as made:
        path, faults = Path(made) / "A", []
        barrier = threading.Barrier(THREADS)

        def save(i: int) -> None:
            A = ls.CSR(torch.full((s.P.nnz,), float(i)), s.P)
            barrier.wait()
            A.save(path)

        try:
            list(pool.map(save, range(THREADS)))
            values = ls.CSR.load(path).values
            if len(values) and not bool((values == values[0]).all()):
                faults.append(f"{where}: the file has values of two threads")
        except Exception as error:  # of any kind
            faults.append(f"{where}: {type(error).__name__}: {error}")
        if left := [p.name for p in Path(made).iterdir() if p != path]:
            faults.append(f"{where}: {left} is left")
    return faults


NUMBERS = (1, 2, 3, 4, 8)
TURNS = 12  # a call has its turn at every twelfth matrix of a kind
# Names that are no function of tensors.
SETTINGS = {"set_buffer_pool_limit", "set_plan_cache_limit", "set_spgemm_plan_limit", "set_check_every"}
RECORDS = {"ConvergenceWarning", "Iteration", "Solution", "SolverError", "Status"}
# Of functions in CALLS.
MODULES = {"Chebyshev", "Heavyball", "Jacobi", "Richardson", "SOR", "TriangularSolve"}
RESULTS = {"Cholesky", "Factorization", "IncompleteCholesky", "IncompleteLU", "LDLT", "LU", "SignLogdet"}
# Whose products of dense matrices, or inverses of large blocks, are split among the threads of BLAS.
BLAS = {
    "extreme_eigenvalues",
    "preconditioner AdditiveSchwarz",
    "preconditioner AMG",
    "preconditioner AMG, classical",
    "preconditioner NeuralAMG",
}
RULES = {"heavyball_parameters", "richardson_weight"}  # of numbers


def bits(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """The same bits for any number of threads: every operation and solver, forward and backward."""
    threads = torch.get_num_threads()
    yield from [f"{name} is not among the calls that are compared" for name in untried()]
    try:
        for i in range(count):
            s = draw(i, seed)
            counts["matrices"] += 1
            for name, call in turn(s, i):
                for s.dtype in (torch.float32, torch.float64):
                    with quiet():
                        yield from compare(s, name, call, seed, i, counts)
    finally:
        torch.set_num_threads(threads)


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
    for number in NUMBERS:
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
