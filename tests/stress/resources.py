"""Calls with any number of threads, in many threads, interrupted, without memory, and thousands of times."""

import ctypes
import gc
import os
import re
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import learnsolve as ls
from learnsolve.matrix.cache import budget
from learnsolve.ops import direct

from ._calls import CALLS, KINDS, Call, Sample, digest, quiet
from ._children import in_children

LIBRARY = str(Path(ls.__file__).parent)


def interrupts(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """An interrupt (Ctrl-C) at any moment of a call leaves matrices, plans and caches as good as before.

    A call on a pattern without plans is interrupted, by a signal of a timer or at a line in the library.
    The same call on the same objects must then give the bits of one that was left alone, and what is
    known of the memory of plans must add up.
    """
    rng, names, i = np.random.default_rng(seed), list(CALLS), 0
    budget.set_limit(budget.set_limit(2**26))
    while counts["by a signal"] + counts["at a line"] < count and i < 20 * count:
        i += 1
        name, kind = names[int(rng.integers(len(names)))], list(KINDS)[i % len(KINDS)]
        s = Sample.draw(kind, int(rng.integers(2**31)), 1500)
        if not CALLS[name].takes(s):
            continue
        with quiet():
            yield from _one_interrupt(
                s, name, CALLS[name], rng, counts, f"{name}, {kind}, seed {seed}, case {i}"
            )


def _one_interrupt(
    s: Sample, name: str, call: Call, rng: np.random.Generator, counts: Counter, where: str
) -> list[str]:
    leaves = call.make(s)

    def results() -> list[bytes]:
        return [digest(t) for t in call.tensors(s, leaves)]

    # With plans first, then without: what is drawn is a part of the second.
    wanted = results()
    s.fresh()
    if how := int(rng.integers(2)):
        begin = time.perf_counter()
        results()
        span = rng.random() * (time.perf_counter() - begin)
        s.fresh()
        heard = _interrupted(results, lambda: signal.setitimer(signal.ITIMER_REAL, max(span, 1e-5)))
    else:
        lines = Lines()
        with lines:
            results()
        s.fresh()
        at = int(rng.integers(1, lines.seen + 1))
        heard = _interrupted(results, Lines(at).__enter__)
        let_go()
    if not heard:
        return []
    counts["by a signal" if how else "at a line"] += 1
    if not torch.is_grad_enabled():  # torch.no_grad is Python: its own __enter__ or __exit__ was interrupted
        counts["torch.no_grad left on"] += 1
        torch.set_grad_enabled(True)
    return [f"{where}: after an interrupt {what}" for what in harm(results, wanted)]


def harm(results: Callable[[], list[bytes]], wanted: list[bytes]) -> list[str]:
    """What is wrong after a call that failed: with the same call again, or with the memory of plans."""
    found = []
    try:
        if results() != wanted:
            found.append("the results are others")
    except Exception as error:  # of any kind: it is what the harness looks for
        found.append(f"{type(error).__name__}: {error}")
    with budget.lock:
        total, known = budget.total, sum(budget.entries.values())
    if total != known:
        found.append(f"plans of {known} bytes count as {total}")
        budget.counted = known
    return found


def _interrupted(results: Callable[[], Any], arm: Callable[[], Any]) -> bool:
    """Whether KeyboardInterrupt came out of the call."""

    def handler(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        try:
            arm()
            results()
        finally:  # where a late signal is still heard
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.settrace(None)
    except KeyboardInterrupt:
        return True
    finally:
        signal.signal(signal.SIGALRM, before)
    return False


def let_go() -> None:
    """Release the library's locks. A trace function may raise where no signal does: at the line of a `with`
    that is about to leave its block (CPython looks for signals after calls, which are inside of it)."""
    while budget.lock._is_owned():
        budget.lock.release()
    if direct._recent.lock.locked():
        direct._recent.lock.release()


class Lines:
    """Counts the lines run in files, by default the library's; KeyboardInterrupt at one of them."""

    def __init__(self, at: int = 0, files: tuple[str, ...] = (LIBRARY,)):
        self.at, self.files, self.seen = at, files, 0

    def __enter__(self) -> None:
        sys.settrace(self._call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self.files) else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.seen += 1
            if self.seen == self.at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._line


ENTRIES = 60_000  # of a matrix: a tensor of its values is a mapping of its own
WORDS = ("memory", "alloc")  # of an error about memory
NONE = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def exhaustion(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """A call that runs out of memory, wherever it does, says so and leaves matrices, plans and caches as
    before.

    The address space of a process is limited to a random number of bytes beyond what it has. The call
    must raise MemoryError, or torch's RuntimeError about memory; without the limit the same call on the
    same objects must then give the bits of one that was left alone, and what is known of the memory of
    plans must add up.
    """
    yield from in_children(count, seed, counts, _exhausted, seconds=60, prepare=_map_all)


def _map_all() -> None:
    """Every allocation from 64 KiB on is a mapping of its own, which goes back to the system when freed."""
    threshold = -3  # M_MMAP_THRESHOLD
    ctypes.CDLL(None).mallopt(threshold, 2**16)
    torch.set_num_threads(1)


def _exhausted(seed: int, number: int) -> tuple[str, str | None]:
    rng = np.random.default_rng((seed, number))
    name = str(rng.choice(list(CALLS)))
    call = CALLS[name]
    while True:
        kind = str(rng.choice(list(KINDS)))
        s = Sample.draw(kind, int(rng.integers(2**31)), min(ENTRIES, call.light))
        if call.takes(s):
            break
    leaves = call.make(s)

    def results() -> list[bytes]:
        return [digest(t) for t in call.tensors(s, leaves)]

    with quiet():
        wanted = results()
        s.fresh()
        more = int(10 ** rng.uniform(4.5, 7))
        error = _within(more, results)
        if error is None:
            return "had enough", None
        # Python's own code can lose a MemoryError, and then raises SystemError.
        known = isinstance(error, (MemoryError, SystemError))
        if not known and not any(word in str(error) for word in WORDS):
            return "failed", f"{name}, {kind}: {type(error).__name__} for want of memory: {error}"
        found = harm(results, wanted)
        if not torch.is_grad_enabled():
            found.append("gradients are off")
    return "failed", f"{name}, {kind}: after a failed allocation {found}" if found else None


def _within(more: int, results) -> Exception | None:
    """What the call raises with `more` bytes of address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + more, NONE[1]))
    try:
        results()
    except Exception as error:
        return error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, NONE)
    return None


ALLOWED = 6  # MiB, for all solves; a leak of 1 kB a solve is more
PAGE_BYTES = 4096


def memory(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """Thousands of solves with gradients take no more memory than the first of them.

    Solvers, operations and preconditioners in turn, on patterns that are kept and on new ones: what the
    process holds (RSS) after a fifth of them and after all.
    """
    rng = np.random.default_rng(seed)
    kept = [Sample.draw(kind, int(rng.integers(2**31)), 300) for kind in KINDS]
    cases = [(s, name) for s in kept for name, call in CALLS.items() if call.takes(s)]
    order = [cases[i] for i in rng.permutation(len(cases))][: max(count // 5, 20)]
    held = done = 0
    with quiet():
        while done < count:
            for s, name in order:
                if done % 2:
                    s.fresh()
                CALLS[name].tensors(s, CALLS[name].make(s))
                done += 1
                if done == len(order) or done == max(count // 5, len(order)):
                    held = _held()
                if done >= count:
                    break
    grown = (_held() - held) / 2**20
    if count > 2 * len(order) and grown > ALLOWED:
        yield f"{count} solves with seed {seed}: the last {count - count // 5} hold {grown:.1f} MiB"
    counts["solves"] = done


def _held() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


# --- threads ---

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
RECORDS = {"ConvergenceWarning", "Iteration", "Solution", "SolverError", "Status"}
# Of functions in CALLS.
MODULES = {"Chebyshev", "Heavyball", "Jacobi", "Richardson", "SOR", "TriangularSolve"}
RESULTS = {"Cholesky", "Factorization", "IncompleteCholesky", "IncompleteLU", "LDLT", "LU", "SignLogdet"}
# Whose products of dense matrices, or inverses of large blocks, are split among the threads of BLAS.
BLAS = {"extreme_eigenvalues"}
BLAS |= {
    name for name in CALLS if re.match("preconditioner (AMG|NeuralAMG|Schwarz|BlockJacobi, labels)", name)
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
    names = {*ls.ops.__all__, *ls.solvers.__all__} - RECORDS - MODULES - RESULTS - RULES
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
                counts["rejected"] += 1
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
