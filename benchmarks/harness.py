"""The measurement behind every section: torch.utils.benchmark, all columns of a row in turn, checked before.

A row compares libraries on one task, a column each. The first call of every column is checked against that of
the others. Then the columns take turns for `rounds` rounds, in each of which `Timer.blocked_autorange` times
one column after another: a disturbance of the machine affects all, and ratios are taken within a round. Timer
waits for a CUDA device before it reads the clock.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import statistics
import timeit
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils.benchmark import Timer
from torch.utils.benchmark.utils.timer import timer as clock  # waits for a CUDA device

import learnsolve as ls

OURS = "learnsolve"
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-8}
WAYS = FORWARD, PAPER, BACKWARD = "forward", "forward + sum + backward", "backward"
Task = Callable[[], Any]


class Op(NamedTuple):
    """An operation of one library on given inputs, and the inputs to differentiate by, in an order that all
    libraries share; None for one that it cannot differentiate by."""

    call: Task
    leaves: Sequence[Tensor | None] = ()


def figure(rounds: list[list[float]], per: int = 1) -> dict[str, Any]:
    """Median and quartiles of all samples, and the median of each round: seconds per unit."""
    samples = [t / per for samples in rounds for t in samples]
    low, middle, high = np.quantile(samples, (0.25, 0.5, 0.75))
    medians = [float(f"{statistics.median(r) / per:.4g}") for r in rounds]
    return {"median": float(middle), "iqr": float(high - low), "samples": len(samples), "rounds": medians}


def interleaved(
    functions: dict[str, Task], seconds: float, rounds: int = 5, threads: int | None = None
) -> dict[str, list[list[float]]]:
    """Seconds of single calls by function and round; each function runs for about `seconds` in all."""
    count = threads or torch.get_num_threads()
    timers = {name: Timer("f()", globals={"f": f}, num_threads=count) for name, f in functions.items()}
    found: dict[str, list[list[float]]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, timer in timers.items():
            found[name].append(timer.blocked_autorange(min_run_time=seconds / rounds).times)
    return found


def medians(functions: dict[str, Task], seconds: float = 1.0) -> dict[str, float]:
    """Median seconds of one call of each function, interleaved."""
    for f in functions.values():
        f()
    return {name: figure(rounds)["median"] for name, rounds in interleaved(functions, seconds).items()}


def first_calls(prepare: Task, call: Callable[[Any], Any], repeat: int = 7) -> list[float]:
    """Seconds of call(prepare()), without those of `prepare`: for calls on patterns without plans."""
    names = {"prepare": prepare, "call": call}
    return timeit.repeat(
        "call(ready)", "ready = prepare()", timer=clock, repeat=repeat, number=1, globals=names
    )


def triad_bandwidth(threads: int, megabytes: int = 256) -> float:
    """Bytes per second of a = b + s c on arrays that exceed all caches (counting 24 bytes per element)."""
    n = megabytes * 2**20 // 24
    b, c, a = (torch.ones(n, dtype=torch.float64) for _ in range(3))
    triad = {"triad": lambda: torch.add(b, c, alpha=2.0, out=a)}
    return 24 * n / figure(interleaved(triad, 0.5, threads=threads)["triad"])["median"]


def canonical(value: Any) -> list[Any]:
    """NumPy arrays and sorted SciPy matrices, whatever library they come from."""
    if isinstance(value, (tuple, list)):
        return [part for item in value for part in canonical(item)]
    if isinstance(value, ls.CSR):
        value = value.detach().to(device="cpu").to_scipy()
    elif isinstance(value, Tensor):
        value = value.detach().cpu()
        if value.layout == torch.sparse_coo:
            value = value.coalesce()
            indices = tuple(value.indices().numpy())
            value = sp.coo_array((value.values().numpy(), indices), tuple(value.shape))
        elif value.layout == torch.sparse_csr:
            parts = (t.numpy() for t in (value.values(), value.col_indices(), value.crow_indices()))
            value = sp.csr_array(tuple(parts), tuple(value.shape))
    elif hasattr(value, "get"):  # CuPy's
        value = value.get()
    elif hasattr(value, "numpy"):  # Warp's
        value = value.numpy()
    if sp.issparse(value):
        value = sp.csr_array(value, copy=True)
        value.sort_indices()
        return [value]
    return [None if value is None else np.asarray(value.numpy() if isinstance(value, Tensor) else value)]


def deviation(found: list[Any], wanted: list[Any], places: Sequence[Any] | None = None) -> float:
    """The largest difference, relative to the largest wanted number; None is not compared. A gradient that
    is a matrix is compared at its `places`, (rows, columns) of the entries, with one that is a vector."""
    if len(found) != len(wanted):
        raise ValueError(f"{len(found)} results instead of {len(wanted)}")
    off = 0.0
    for a, b, at in zip(found, wanted, places or [None] * len(wanted), strict=True):
        if a is None or b is None:
            continue
        if sp.issparse(a) and sp.issparse(b):
            difference, scale = abs(a - b).max(), abs(b).max()
        else:
            if at is not None and b.ndim == 1 and a.ndim == 2 and (sp.issparse(a) or a.size > b.size):
                a = np.asarray(a[at])  # a gradient with more entries than the matrix
            a, b = (x.toarray() if sp.issparse(x) else x for x in (a, b))
            difference, scale = np.abs(a.reshape(b.shape) - b).max(initial=0), np.abs(b).max(initial=0)
        ratio = float(difference) / (float(scale) or 1.0)
        off = max(off, ratio if np.isfinite(ratio) else float("inf"))
    return off


def total(result: Any) -> Tensor:
    """The sum of all entries, as the paper's timings take it before the backward."""
    if isinstance(result, ls.CSR):
        return result.values.sum()
    if result.layout == torch.sparse_csr:
        result = result.to_sparse_coo()  # the backward of sum() on CSR is a dense matrix
    return torch.sparse.sum(result) if result.layout == torch.sparse_coo else result.sum()


def ways(ops: dict[str, Callable[[], Op]], way: str) -> dict[str, Callable[[], Task]]:
    """The columns of a row for one of WAYS. A library that differentiates nothing has forward alone."""

    def make(prepare: Callable[[], Op]) -> Task:
        op = prepare()
        if way == FORWARD:
            return op.call
        leaves = [leaf for leaf in op.leaves if leaf is not None]
        if not leaves:
            raise NoGradient
        if way == PAPER:

            def backward() -> list[Tensor | None]:
                for leaf in leaves:  # the paper's script adds up, which lets torch's sparse gradients grow
                    leaf.grad = None
                total(op.call()).backward()
                return [None if leaf is None else leaf.grad for leaf in op.leaves]

            return backward
        y = op.call()
        g = cotangent(y)
        y = y.values if isinstance(y, ls.CSR) else y

        def alone() -> list[Tensor | None]:
            found = iter(torch.autograd.grad(y, leaves, g, retain_graph=True))
            return [None if leaf is None else next(found) for leaf in op.leaves]

        return alone

    return {name: (lambda prepare=prepare: make(prepare)) for name, prepare in ops.items()}


def cotangent(y: Any) -> Tensor:
    """For a result of any library the same numbers, each a function of its row and column. (Ones would be a
    poor check: rows of a discretized derivative sum to zero.)"""

    def at(rows: Tensor, columns: Tensor | int, like: Tensor) -> Tensor:
        return (1 + (7 * rows + 3 * columns) % 11 / 11).to(like)

    if isinstance(y, ls.CSR):
        return at(y.pattern.row_indices.long(), y.pattern.col_indices.long(), y.values)
    y = y.detach()
    if y.layout == torch.sparse_csr:
        crow, columns, values = y.crow_indices(), y.col_indices(), y.values()
        rows = torch.repeat_interleave(crow.diff())
        return torch.sparse_csr_tensor(crow, columns, at(rows, columns.long(), values), y.shape)
    if y.layout == torch.sparse_coo:
        y = y.coalesce()
        g = at(*y.indices(), y.values())
        return torch.sparse_coo_tensor(y.indices(), g, y.shape, is_coalesced=True)
    rows = torch.arange(len(y), device=y.device)
    if y.ndim == 1:
        return at(rows, 0, y)
    return at(rows.unsqueeze(1), torch.arange(y.shape[1], device=y.device), y)


class NoGradient(Exception):
    """The library does not differentiate this."""


def reason(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in text:
        return "out of memory"
    return text if len(text) <= 80 else f"{text[:77]}..."


class Run:
    """All rows of a run of the benchmarks.

    Parameters
    ----------
    seconds : for each figure, in all
    rounds : of interleaved measurements
    slow : seconds above which the checked first call is the only one
    quick : whether sections use tiny sizes
    """

    def __init__(self, seconds: float = 0.2, rounds: int = 5, slow: float = 2.0, quick: bool = False):
        self.seconds, self.rounds, self.slow, self.quick = seconds, rounds, slow, quick
        self.section, self.rows = "", []
        self.notes: list[str] = []
        self.triad: dict[int, float] = {}
        self.device = torch.device("cpu")

    def note(self, text: str) -> None:
        """What was left out, once."""
        if text not in self.notes:
            self.notes.append(text)
            print(f"note: {text}", flush=True)

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """A failure outside of a column leaves out the case, not the rest."""
        try:
            yield
        except Exception as error:
            self.note(f"{self.section}, {what}: left out, {reason(error)}")

    def row(
        self,
        case: str,
        columns: dict[str, Callable[[], Task]],
        *,
        way: str = "",
        dtype: torch.dtype = torch.float64,
        threads: int = 1,
        tolerance: float | None = None,
        check: Callable[[list[Any]], float] | None = None,
        places: Sequence[Any] | None = None,
        per: int | Callable[[str], int] = 1,
        least: float = 0,
        **facts: Any,
    ) -> dict[str, Any]:
        """Check and time all columns; the results of each must agree with those of the first that succeeded,
        SciPy's if it is there, or pass `check`, which returns a deviation. `per` divides the seconds, `least`
        is the number of bytes that the task must move."""
        start, limit = clock(), TOLERANCE[dtype] if tolerance is None else tolerance
        cells: dict[str, dict[str, Any]] = {}
        ready: dict[str, Task] = {}
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        wanted = None
        for name in sorted(columns, key=lambda name: name != "SciPy"):
            try:
                f = columns[name]()
                out: list[Any] = []
                once = timeit.Timer("keep(f())", timer=clock, globals={"keep": out.append, "f": f}).timeit(1)
                values = canonical(out.pop())
                if check is not None:
                    off = check(values)
                else:
                    wanted = values if wanted is None else wanted
                    off = deviation(values, wanted, places if len(values) > 1 else None)
                if not off <= limit:
                    cells[name] = {"failed": f"wrong by {off:.1e}"}
                    continue
                cells[name] = {"partial": True} if any(v is None for v in values) else {}
                del values
                if once > self.slow:
                    cells[name] |= figure([[once]], per(name) if callable(per) else per) | {"slow": True}
                else:
                    ready[name] = f
            except NoGradient:
                continue
            except Exception as error:
                cells[name] = {"failed": reason(error)}
        if ready:
            for name, rounds in interleaved(ready, self.seconds, self.rounds, threads).items():
                cells[name] |= figure(rounds, per(name) if callable(per) else per)
        torch.set_num_threads(before)
        row = {"section": self.section, "case": case, "way": way, "dtype": str(dtype).removeprefix("torch.")}
        row |= {
            "threads": threads,
            **facts,
            "cells": {name: cells[name] for name in columns if name in cells},
        }
        row |= self._ratios(row["cells"], least, threads)
        self.rows.append(row)
        self._print(row, clock() - start)
        return row

    def _print(self, row: dict[str, Any], seconds: float) -> None:
        if self.quick:
            print(".", end="", flush=True)
            return
        what = ", ".join(str(row[key]) for key in ("case", "way", "dtype", "threads") if row[key] != "")
        ours = row["cells"].get(OURS, {}).get("median", float("nan"))
        versus = f", {row['ratio']:.2f} of {row['best peer']}" if "ratio" in row else ""
        print(f"  {seconds:5.1f} s  {what}: {1e6 * ours:.4g} us{versus}", flush=True)

    def first(self, case: str, columns: dict[str, tuple[Task, Callable[[Any], Any]]], **facts: Any) -> None:
        """A row of calls on fresh inputs, as for patterns without plans: (prepare, call) by column."""
        repeat = 2 if self.quick else 7
        cells = {name: figure([[t] for t in first_calls(*pair, repeat)]) for name, pair in columns.items()}
        row = {"section": self.section, "case": case, "way": "first call", "dtype": "float64", "threads": 1}
        self.rows.append(row | facts | {"cells": cells} | self._ratios(cells, 0, 1))

    def _ratios(self, cells: dict[str, Any], least: float, threads: int) -> dict[str, Any]:
        """Our time over that of the fastest peer, within each round; the share of the triad's bandwidth."""
        ours = cells.get(OURS, {})
        if "median" not in ours:
            return {}
        found: dict[str, Any] = {}
        peers = {name: c for name, c in cells.items() if name != OURS and "median" in c}
        peers = {name: c for name, c in peers.items() if not c.get("partial")} or peers
        if peers:
            best = min(peers, key=lambda name: peers[name]["median"])
            pairs = list(zip(ours["rounds"], peers[best]["rounds"], strict=False))
            found = {"ratio": statistics.median(a / b for a, b in pairs), "best peer": best}
        if least and self.triad.get(threads):
            found["of triad"] = least / ours["median"] / self.triad[threads]
        return found


def apart(f: Callable[..., Any], *args: Any) -> Any:
    """f(*args) in a process of its own: memory that a peer keeps, or a crash, stays there."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(f, *args).result()


def peak_bytes(f: Task) -> int | None:
    """How far the process's memory rises during f(), in bytes; None without Linux's counters. On a CUDA
    device, the memory that torch allocates there."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        f()
        return torch.cuda.max_memory_allocated() - before
    gc.collect()  # what it would free during f() would hide what f() takes
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    try:
        reset.write_text("5")  # the peak is now the present size
    except OSError:
        return None

    def peak() -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])

    before = peak()
    f()
    return peak() - before


def fresh_peak(f: Task) -> int | None:
    """`peak_bytes` after a return of all free memory to the system, which would hide what f() takes."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    return peak_bytes(f)


def limit_memory(share: float = 0.9) -> None:
    """Let an allocation beyond the free memory fail, rather than the system end the process: a peer that
    needs too much is then a cell of the table."""
    info = Path("/proc/meminfo")
    if torch.cuda.is_available() or not info.exists():  # CUDA reserves addresses far beyond its memory
        return
    free = next(
        int(row.split()[1]) for row in info.read_text().splitlines() if row.startswith("MemAvailable")
    )
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(share * 1024 * free), resource.RLIM_INFINITY))
