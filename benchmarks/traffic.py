"""Traffic of the CUDA kernels, counted on the emulator, and the times that it allows at best (docs/cuda.md).

    python -m benchmarks.traffic [--only TEXT] [--update]

--update commits the counts as the budgets of tests/test_traffic.py. Needs LEARNSOLVE_CUDA_EMULATOR=1 while
building, and no device.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import learnsolve as ls
from benchmarks import ROOT
from benchmarks.gpu_run import F32, F64, both_ways, grid, irregular, lower_band, normal
from benchmarks.report import table
from learnsolve import _library
from learnsolve.matrix import device_analysis

BUDGETS = ROOT / "tests" / "traffic.json"
LIMIT = 0.03  # change of a figure
DEVICE = "NVIDIA H200"
CPU = torch.device("cpu")
LIBRARY = "learnsolve_cuda_emulated"

# Of a launch: instructions of warps, and bytes: l1 of loads, each instruction by itself; l2 of loads, each
# sector once for a block, and of stores; dram once for a launch. A wavefront is a turn of shared memory.
FIGURES = ("loads", "stores", "lane_bytes", "l1", "l2", "dram", "wavefronts")
BUDGETED = ("launches", "loads", "l1", "l2", "dram", "wavefronts")


class Launch(NamedTuple):
    kernel: str
    figures: dict[str, int]


class Case(NamedTuple):
    """`run(count)` does something `count` times in one call, or once. `size` and `full`: rows here and where
    the time `measured` (section, case, dtype, columns to add and to subtract) is of."""

    run: Callable[[int], object]
    size: int
    entries: int
    iterations: bool = False
    full: int = 0
    measured: tuple[str, str, str, tuple[str, ...]] | None = None


def use_emulator() -> None:
    _library.load_cuda(LIBRARY)
    device_analysis.everywhere = True


def launches(f: Callable[[], object]) -> list[Launch]:
    """Those of a call."""
    library = ctypes.CDLL(str(_library.folder / f"{LIBRARY}.so"))
    library.learnsolve_meter_end.restype = ctypes.c_char_p
    library.learnsolve_meter_begin()
    f()
    lines = library.learnsolve_meter_end().decode().splitlines()
    found = [line.split(maxsplit=len(FIGURES)) for line in lines]
    return [Launch(kernel, dict(zip(FIGURES, map(int, of), strict=True))) for *of, kernel in found]


def seconds(launch: Launch) -> float:
    """At least, on DEVICE: the largest of the three ceilings."""
    of, most = launch.figures, json.loads((ROOT / "benchmarks" / "devices.json").read_text())[DEVICE]
    l1 = of["l1"] / most["l1"] + 128 * of["wavefronts"] / most["shared"]
    return max(l1, of["l2"] / most["l2"], of["dram"] / most["dram"])


def total(found: list[Launch]) -> dict[str, float]:
    """And the seconds of each ceiling alone."""
    sums: Counter[str] = Counter(launches=len(found))
    for launch in found:
        sums.update(launch.figures)
    return {name: sums[name] for name in ("launches", *FIGURES)} | {"seconds": sum(map(seconds, found))}


def count(case: Case) -> dict[str, float]:
    """The figures of a call, once plans exist; of an iteration, between 2 and 4."""
    case.run(1)
    if not case.iterations:
        return total(launches(lambda: case.run(1)))
    few, many = (total(launches(lambda n=n: case.run(n))) for n in (2, 4))
    return {name: (many[name] - few[name]) / 2 for name in many}


def rounded(found: dict[str, float]) -> dict[str, int]:
    return {name: round(found[name]) for name in BUDGETED}


def exceeding(name: str, found: dict[str, int], budgets: dict[str, dict[str, int]]) -> list[str]:
    """What to say of figures that moved, up or down."""
    if name not in budgets:
        return [f"{name}: has no budget"]
    return [
        f"{name}: {figure} {found[figure]:,}, the budget is {budget:,}"
        for figure, budget in budgets[name].items()
        if abs(found[figure] - budget) > LIMIT * budget
    ]


def matrices() -> dict[str, Callable[[torch.dtype], ls.CSR]]:
    """Small ones, in which the lines of a grid are as long as a block."""

    def scattered(kind: str, dtype: torch.dtype) -> ls.CSR:
        P = irregular(kind, 8_000, CPU)
        return ls.CSR(normal((P.nnz,), dtype, CPU), P)

    return {
        "5 points": lambda dtype: grid((32, 512), dtype, CPU),
        "7 points": lambda dtype: grid((12, 12, 96), dtype, CPU),
        **{kind: functools.partial(scattered, kind) for kind in IRREGULAR},
    }


IRREGULAR = ("1 to 60 a row", "12 a row", "power law", "near the diagonal")
FULL = {
    "5 points": ("5 points, 3162^2", 3162**2),
    "7 points": ("7 points, 150^3", 150**3),
    **{kind: (f"{kind}, n = 2000000", 2_000_000) for kind in IRREGULAR},
}


def cases() -> dict[str, Callable[[], Case]]:
    """By name; each makes its operands when it is called."""
    made: dict[str, Callable[[], Case]] = {}
    for dtype in (F32, F64):
        bits = str(dtype).removeprefix("torch.")
        for name in FULL:
            for k in (1, 8) if name not in IRREGULAR[1:] else (1,):
                for way in ("fwd", "bwd"):
                    case = f"spmm, {k} column{'s' * (k > 1)}, {name}, {bits}, {way}"
                    made[case] = lambda n=name, d=dtype, k=k, w=way: _product(n, d, k, w)
        for way in ("fwd", "bwd"):
            made[f"cg, 5 points, {bits}, {way}"] = lambda d=dtype, w=way: _cg(d, w)
            made[f"jacobi, 5 points, {bits}, {way}"] = lambda d=dtype, w=way: _jacobi(d, w)
            for name, f in OPERATIONS.items():
                made[f"{name}, {bits}, {way}"] = lambda f=f, d=dtype, w=way: _operation(f, d, w)
    return made


def _product(name: str, dtype: torch.dtype, k: int, way: str) -> Case:
    A = matrices()[name](dtype)
    x = normal((A.shape[1], k)[: 1 + (k > 1)], dtype, CPU)
    f = both_ways(lambda: A @ x, [A.values, x])[way]
    case, full = FULL[name]
    bits = str(dtype).removeprefix("torch.")
    measured = ("spmv", case, bits, (way,)) if k == 1 else None
    return Case(lambda _: f(), A.shape[0], A.nnz, full=full, measured=measured)


def _loop(A: ls.CSR, solve: Callable[[int], Tensor], inputs: list[Tensor], way: str, **measured: Any) -> Case:
    results: dict[int, Tensor] = {}

    def run(count: int) -> object:
        if way == "fwd":
            with torch.no_grad():
                return solve(count)
        return torch.autograd.grad(results[count], inputs)

    if way == "bwd":  # of forwards that are not counted
        results = {n: solve(n).sum() for n in (1, 2, 4)}
    return Case(run, A.shape[0], A.nnz, iterations=True, **measured)


def _cg(dtype: torch.dtype, way: str) -> Case:
    A = grid((16, 512), dtype, CPU)
    b = normal((A.shape[0],), dtype, CPU)

    def solve(count: int) -> Tensor:
        M = ls.preconditioners.Jacobi(A)
        options: dict[str, Any] = {"iterations": count, "gradient": "unrolled"}
        return ls.solvers.cg(A, b, M=M, **options).x

    bits = str(dtype).removeprefix("torch.")
    columns = ("fwd",) if way == "fwd" else ("fwd + bwd", "fwd")
    measured = ("pcg", "2D Poisson, n = 1000000, M = diagonal", bits, columns)
    return _loop(A, solve, [A.values, b], way, full=1_000_000, measured=measured)


def _jacobi(dtype: torch.dtype, way: str) -> Case:
    A = grid((16, 512), dtype, CPU)
    b, w = normal((A.shape[0],), dtype, CPU), torch.full((), 0.2, dtype=dtype, requires_grad=True)

    def solve(count: int) -> Tensor:
        return ls.solvers.jacobi(A, b, torch.zeros_like(b), weight=w, iterations=count).x

    return _loop(A, solve, [A.values, b, w], way)


def _small(dtype: torch.dtype) -> ls.CSR:
    return grid((32, 64), dtype, CPU)


def _ilu(dtype: torch.dtype) -> tuple[Callable[[], Tensor], list[Tensor], ls.CSR]:
    L = ls.ops.ilu(grid((16, 16, 16), dtype, CPU).detach()).L.detach().requires_grad_()
    b = normal((L.shape[0],), dtype, CPU)
    return lambda: ls.ops.sptrsv(L, b, lower=True, unit_diagonal=True), [L.values, b], L


def _band(width: int, dtype: torch.dtype) -> tuple[Callable[[], Tensor], list[Tensor], ls.CSR]:
    L = lower_band(8192, width, dtype, CPU)
    b = normal((L.shape[0],), dtype, CPU)
    return lambda: ls.ops.sptrsv(L, b), [L.values, b], L


def _spgemm(dtype: torch.dtype) -> tuple[Callable[[], Tensor], list[Tensor], ls.CSR]:
    A, B = _small(dtype), _small(dtype)
    return lambda: ls.ops.spgemm(A, B).values, [A.values, B.values], A


def _add(dtype: torch.dtype) -> tuple[Callable[[], Tensor], list[Tensor], ls.CSR]:
    A = grid((64, 128), dtype, CPU)
    P = irregular("near the diagonal", A.shape[0], CPU)
    B = ls.CSR(normal((P.nnz,), dtype, CPU), P)
    return lambda: ls.ops.add(A, B).values, [A.values, B.values], A


def _stencil(dtype: torch.dtype) -> tuple[Callable[[], Tensor], list[Tensor], ls.CSR]:
    A = grid((64, 256), dtype, CPU)  # for its sizes
    offsets = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)]
    c, x = normal((5, 64, 256), dtype, CPU), normal((64, 256), dtype, CPU)
    return lambda: ls.ops.stencil(c, x, offsets=offsets), [c, x], A


OPERATIONS = {
    "sptrsv, ILU(0) of 7 points": _ilu,
    "sptrsv, bidiagonal": lambda dtype: _band(1, dtype),
    "sptrsv, band of 2": lambda dtype: _band(2, dtype),
    "spgemm, 5 points": _spgemm,
    "add, 5 points and near the diagonal": _add,
    "stencil, 5 points": _stencil,
}


def _operation(make: Callable, dtype: torch.dtype, way: str) -> Case:
    f, inputs, A = make(dtype)
    g = both_ways(f, inputs)[way]
    return Case(lambda _: g(), A.shape[0], A.nnz)


def measured_time(case: Case) -> float | None:
    """Microseconds of the committed run on DEVICE."""
    if case.measured is None:
        return None
    section, name, dtype, columns = case.measured
    path = ROOT / "benchmarks" / "results" / f"gpu-{'-'.join(DEVICE.lower().split())}.json"
    rows = [row for run in json.loads(path.read_text())["benchmarks"] for row in run["rows"]]
    for row in rows:
        if (row["section"], row["case"], row["dtype"]) == (section, name, dtype):
            return row[columns[0]] - sum(row[c] for c in columns[1:])
    return None


def roofs() -> dict[tuple[str, str, str], float]:
    """Microseconds at least, on DEVICE, of the forward in rows of the benchmark (section, case, dtype), from
    the committed counts."""
    budgets, found = json.loads(BUDGETS.read_text()), {}
    for name, make in cases().items():
        if name in budgets and name.endswith("fwd") and (case := make()).measured is not None:
            most = seconds(Launch(name, budgets[name])) * case.full / case.size
            found[case.measured[:3]] = 1e6 * most
    return found


def shown(name: str, case: Case, found: dict[str, float]) -> dict[str, Any]:
    """A row of the table: microseconds at the size that was measured, or at this one."""
    larger = (case.full or case.size) / case.size
    loads = found["loads"] or 1.0
    row: dict[str, Any] = {"case": name, "launches": f"{found['launches']:g}"}
    row |= {f"{level} MB": larger * found[level] / 1e6 for level in ("l1", "l2", "dram")}
    row["wavefronts/32 rows"] = 32 * found["wavefronts"] / case.size
    row["loads/entry"] = 32 * found["loads"] / case.entries
    row["bytes a lane"] = found["lane_bytes"] / loads / 32
    row["rows"] = case.full or case.size
    row["model us"] = 1e6 * larger * found["seconds"]
    time = measured_time(case)
    return row | ({"measured us": time, "measured/model": time / row["model us"]} if time else {})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases whose names have this text")
    parser.add_argument("--update", action="store_true", help="commit the counts as budgets")
    args = parser.parse_args()
    use_emulator()
    rows, budgets = [], json.loads(BUDGETS.read_text()) if BUDGETS.exists() else {}
    for name, make in cases().items():
        if args.only in name:
            case = make()
            found = count(case)
            rows.append(shown(name, case, found))
            budgets[name] = rounded(found)
    print(table(rows))
    if args.update:
        # A case to a line, so that changes of different operators merge.
        lines = [f"{json.dumps(name)}: {json.dumps(budgets[name])}" for name in cases() if name in budgets]
        BUDGETS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
