"""Simple and elaborate kernels for the same work on a CUDA device, and what chooses (benchmarks/gpu.py).

"simple" and "elaborate" are forced, "as is" is what the library chooses; "gain" is simple over elaborate. An
elaborate form that gains less than 1.3 in every case should go, and a choice that costs more than a tenth
should change.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import learnsolve as ls
from benchmarks.gpu_run import F64, Functions, Run, Steps, grid, lower_band, normal, poisson
from benchmarks.harness import figure, first_calls
from benchmarks.peers import fresh
from learnsolve import _library
from learnsolve.matrix import device_analysis
from learnsolve.ops.core import triangular

Forms = dict[str, Functions]  # simple, elaborate, as is


def best_gain(run: Run, section: str) -> None:
    row = {"section": section, "case": "best", "dtype": "float64"}
    row["gain"] = max(row["gain"] for row in run.rows if row["section"] == section)
    run.target(row, "gain", 1.3)


def record(run: Run, section: str, case: str, forms: Forms) -> None:
    """A row for each function, in all forms."""
    for way in forms["as is"]:
        row = run.compare(section, f"{case}, {way}", F64, {form: f[way] for form, f in forms.items()})
        row["gain"] = row["simple"] / row["elaborate"]
        row["as is/best"] = row["as is"] / min(row["simple"], row["elaborate"])
        run.target(row, "as is/best", 1.1, most=True)


def planned(module: Any, make: Callable[[], Functions], **constants: tuple[Any, Any]) -> Forms:
    """What `make` makes with these constants of a module, simple and elaborate ones. The first calls make the
    plans, which are kept."""
    forms: Forms = {}
    for i, form in enumerate(("simple", "elaborate", "as is")):
        values = {name: both[i] for name, both in constants.items()} if form != "as is" else {}
        with patch.multiple(module, **values) if values else contextlib.nullcontext():
            forms[form] = make()
            for f in forms[form].values():
                f()
    return forms


def with_gradients(f: Callable[[], Tensor], inputs: list[Tensor]) -> Functions:
    """In a form of their own: those of gpu_run share one graph."""
    g = torch.ones_like(f())
    return {"fwd": f, "fwd + bwd": lambda: torch.autograd.grad(f(), inputs, g)}


def solves(run: Run, section: str, case: str, L: ls.CSR, **constants: tuple[Any, Any]) -> None:
    values, b = L.values.detach().clone().requires_grad_(), normal((L.shape[0],), F64, run.device)

    def make() -> Functions:
        A = fresh(L.detach()).with_values(values)
        return with_gradients(lambda: ls.ops.sptrsv(A, b), [values, b])

    record(run, section, case, planned(triangular, make, **constants))


def scans(run: Run) -> Steps:
    """A bidiagonal system level by level, or as a scan."""

    def measure(n: int) -> None:
        L = lower_band(n, 1, F64, run.device)
        solves(run, "scans", f"L bidiagonal, n = {n}", L, _SCANNED_ROWS=(10**9, 1))

    for n in (64,) if run.quick else (1024, 32768, 1_000_000):
        yield f"{n}", functools.partial(measure, n)
    yield "best", lambda: best_gain(run, "scans")


def lanes(run: Run) -> Steps:
    """One thread for a row of a triangle, or eight."""
    n = 256 if run.quick else 200_000

    def measure(length: int) -> None:
        i = torch.arange(n, device=run.device)
        far = [i - n // 16 - 37 * d for d in range(length)]  # few levels, and wide ones
        row = torch.cat((i, *(i[f >= 0] for f in far)))
        column = torch.cat((i, *(f[f >= 0] for f in far)))
        values = torch.where(row == column, 2.0, 0.5 / length).double()
        L = ls.CSR.from_coo(row.int(), column.int(), values, (n, n))
        solves(run, "lanes", f"rows of {length + 1}, n = {n}", L, _lanes=(lambda ptr: 1, lambda ptr: 8))

    for length in (8, 16, 32, 64):
        yield f"{length}", functools.partial(measure, length)
    yield "best", lambda: best_gain(run, "lanes")


def with_cache(bytes: int | None, f: Callable[[], Any]) -> Callable[[], Any]:
    """f on a device with this cache, for which a loop is one kernel, or several launches an iteration."""
    if bytes is None or not _library.cuda_loaded:  # --device cpu
        return f

    def call() -> Any:
        before = _library.assume_cache_bytes(bytes)
        try:
            return f()
        finally:
            _library.assume_cache_bytes(before)

    return call


def loops(run: Run) -> Steps:
    """A few launches an iteration, or one kernel for all iterations."""
    iterations = 5 if run.quick else 100

    def measure(name: str, n: int) -> None:
        A = poisson((n,), run.device)
        values, b = A.values.clone().requires_grad_(), normal((n,), F64, run.device)
        M = ls.preconditioners.Jacobi(A)
        A = A.with_values(values)
        weight = torch.full((), 0.2, dtype=F64, device=run.device)

        def solve() -> Tensor:
            if name == "jacobi":
                return ls.solvers.jacobi(A, b, weight=weight, iterations=iterations).x
            options: Any = {"rtol": 0.0, "atol": 0.0, "maxiter": iterations, "gradient": "unrolled"}
            return ls.solvers.cg(A, b, M=M, **options).x

        both = with_gradients(solve, [values, b])
        sizes = {"simple": 0, "elaborate": 2**60, "as is": None}
        forms = {form: {way: with_cache(size, f) for way, f in both.items()} for form, size in sizes.items()}
        record(run, "loops", f"{iterations} iterations of {name}, n = {n}", forms)

    for name in ("jacobi", "cg"):
        for n in (64,) if run.quick else (1024, 32768, 262_144, 1_048_576):
            yield f"{name}, {n}", functools.partial(measure, name, n)
    yield "best", lambda: best_gain(run, "loops")


def checks(run: Run) -> Steps:
    """After how many iterations convergence is checked."""
    side = 12 if run.quick else 500

    def measure(name: str) -> None:
        A = poisson((side, side), run.device)
        b = normal((A.shape[0],), F64, run.device, False)
        solver = getattr(ls.solvers, name.split()[0])
        M = ls.preconditioners.IC0(A) if name.endswith("IC0") else None

        def every(iterations: int | None) -> Callable[[], Tensor]:
            def call() -> Tensor:
                before = ls.solvers.set_check_every(iterations)
                try:
                    return solver(A, b, M=M, rtol=1e-6, maxiter=5000).x
                finally:
                    ls.solvers.set_check_every(before)

            return call

        found = {f"every {k}": every(k) for k in (1, 4, 16, 64)}
        row = run.compare("checks", f"{name}, n = {side * side}", F64, found | {"as is": every(None)})
        row["as is/best"] = row["as is"] / min(row[k] for k in found)
        run.target(row, "as is/best", 1.1, most=True)

    for name in ("cg", "cg with IC0", "bicgstab", "minres"):
        yield name, functools.partial(measure, name)


def sorts(run: Run) -> Steps:
    """Products to a sort while a sparse product is planned."""

    def measure(shape: tuple[int, ...]) -> None:
        A = grid(shape, F64, run.device).detach()
        row: dict[str, Any] = {
            "section": "sorts",
            "case": f"A A, n = {A.shape[0]}",
            "dtype": "float64",
        }
        for log in (20, 22, 24, 26):
            with patch.object(device_analysis, "SORTED", 2**log):
                times = first_calls(lambda: (fresh(A), fresh(A)), lambda pair: ls.ops.spgemm(*pair), repeat=3)
            row[f"2^{log} to a sort"] = 1e6 * figure([times])["median"]
        run.rows.append(row)

    yield "all", functools.partial(measure, (8, 8) if run.quick else (2000, 2000))
