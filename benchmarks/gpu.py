"""The CUDA operators compared with cuSPARSE, torch's sparse tensors and a device copy (docs/cuda.md).

    python -m benchmarks.gpu [--device cuda] [--only spmv,spmm,...] [--seconds 0.2] [--quick] [--out FILE]

Writes FILE (JSON) and the same tables as Markdown (.md). Times are medians in microseconds, per iteration for
solvers. "fwd": the public call on tensors that require grad, with its graph; "bwd": the backward alone, all
gradients; "graph": a call within a replayed CUDA graph, without delays by the host; "first": a call on
patterns without plans. "cusparse": cuSPARSE with descriptors, buffers and analysis reused; "cupy": as CuPy
calls it, recreating all of them in each call; "torch": its sparse CSR tensors. "speed-up": over the faster of
cusparse and torch. "of copy": the minimum bytes that the operation moves, divided by its time, relative to
the bandwidth of a device copy in the same run. An operator or a peer that fails is omitted and listed; the
rest continues; exit code 1 if one of ours failed. --device cpu --quick tests the program itself, without a
GPU.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import learnsolve as ls
from benchmarks import cusparse
from benchmarks.gpu_run import Functions, Run, both_ways, grid, irregular, lower_band, normal, poisson
from benchmarks.harness import figure, first_calls
from benchmarks.loops import textbook_cg
from benchmarks.peers import fresh
from benchmarks.report import machine, markdown, table

F32, F64 = torch.float32, torch.float64
Steps = Iterator[tuple[str, Callable[[], object]]]

# Each section yields its steps, so that one failure does not stop the others.


def spmv(run: Run) -> Steps:
    side, cube, rows, small = (20, 6, 400, 64) if run.quick else (3162, 150, 2_000_000, 32768)
    shares: list[float] = []

    def measure(case: str, make: Callable[[], ls.CSR], kind: str) -> None:
        A = make()
        dtype, m, n = A.dtype, *A.shape
        x = normal((n,), dtype, run.device)
        ours = both_ways(lambda: A @ x, [A.values, x])
        T, y = A.detach().to_torch(), (A @ x).detach()
        xd = x.detach()
        peers = run.peers(
            case,
            y,
            {
                "cusparse": lambda: cusparse.kept_spmv(cusparse.matrix(A), cusparse.array(x)),
                "cupy": lambda: functools.partial(lambda M, v: M @ v, cusparse.matrix(A), cusparse.array(x)),
                "torch": lambda: lambda: T @ xd,
            },
        )
        least = A.nnz * (x.element_size() + 4) + 4 * (m + 1) + x.element_size() * (m + n)
        graph = ("fwd", "fwd + bwd") if kind == "small" else ()
        row = run.row("spmv", case, dtype, ours, peers, least, graph)
        run.target(row, "bwd/fwd", 2.0, most=True)
        if kind == "regular":
            run.target(row, "of copy", 0.85)
        if kind == "irregular":
            shares.append(row["of copy"])
        run.target(row, "speed-up", 1.5 if A.nnz < 1e6 and not run.quick else 1.0)
        run.same_bits(row, ours["fwd + bwd"])

    device = run.device
    for dtype in (F32, F64):
        bits = str(dtype).removeprefix("torch.")
        for case, shape, kind in (
            (f"5 points, {side}^2", (side, side), "regular"),
            (f"7 points, {cube}^3", (cube,) * 3, "regular"),
            (f"1D Poisson {small}", (small,), "small"),
        ):
            yield (
                f"{case}, {bits}",
                lambda c=case, s=shape, k=kind, d=dtype: measure(c, lambda: grid(s, d, device), k),
            )
        cases = [(name, rows, "irregular") for name in ("12 a row", "1 to 60 a row", "power law")]
        cases += [("near the diagonal", rows, "irregular"), ("1 to 60 a row", small, "small")]
        for name, n, kind in cases:

            def make(name: str = name, n: int = n, dtype: torch.dtype = dtype) -> ls.CSR:
                P = irregular(name, n, device)
                return ls.CSR(normal((P.nnz,), dtype, device), P)

            case = f"{name}, n = {n}"
            yield f"{case}, {bits}", lambda c=case, m=make, k=kind: measure(c, m, k)

    def median() -> None:
        if shares:
            share = sorted(shares)[len(shares) // 2]
            row = {"section": "spmv", "case": "irregular, median", "dtype": "both", "of copy": share}
            run.target(row, "of copy", 0.70)

    yield "median of the irregular ones", median


def spmm(run: Run) -> Steps:
    side = 16 if run.quick else 1000

    def measure(case: str, make: Callable[[], ls.CSR], k: int) -> None:
        A = make()
        X = normal((A.shape[1], k), A.dtype, run.device)
        Xd, T = X.detach(), A.detach().to_torch()
        peers = run.peers(
            case,
            (A @ X).detach(),
            {
                "cusparse rows": lambda: cusparse.kept_spmm(cusparse.matrix(A), cusparse.array(X), True),
                "cusparse columns": lambda: cusparse.kept_spmm(cusparse.matrix(A), cusparse.array(X), False),
                "cupy": lambda: functools.partial(lambda M, D: M @ D, cusparse.matrix(A), cusparse.array(X)),
                "torch": lambda: lambda: T @ Xd,
            },
        )
        size = X.element_size()
        least = A.nnz * (size + 4) + 4 * (A.shape[0] + 1) + size * k * sum(A.shape)
        row = run.row("spmm", case, A.dtype, both_ways(lambda: A @ X, [A.values, X]), peers, least)
        run.target(row, "speed-up", 1.2)
        run.target(row, "bwd/fwd", 1.5, most=True)

    for k, dtype in ((8, F32), (32, F32), (128, F32), (32, F64)):
        case = f"5 points, {side}^2, {k} columns"
        yield (
            f"{case}, {dtype}",
            lambda c=case, k=k, d=dtype: measure(c, lambda: grid((side, side), d, run.device), k),
        )
    n = side * side // 2

    def scattered() -> ls.CSR:
        P = irregular("1 to 60 a row", n, run.device)
        return ls.CSR(normal((P.nnz,), F32, run.device), P)

    yield "irregular", lambda: measure(f"1 to 60 a row, n = {n}, 32 columns", scattered, 32)


def first(operation: Callable, A: ls.CSR, B: ls.CSR) -> float:
    """Microseconds on patterns without plans."""
    times = first_calls(lambda: (fresh(A), fresh(B)), lambda pair: operation(*pair), repeat=3)
    return 1e6 * figure([times])["median"]


def spgemm(run: Run) -> Steps:
    def measure(shape: tuple[int, ...], dtype: torch.dtype) -> None:
        A, B = grid(shape, dtype, run.device), grid(shape, dtype, run.device)
        case = f"A B, {len(shape)}D Poisson {shape[0]}" + (f"^{len(shape)}" if len(shape) > 1 else "")
        ours = both_ways(lambda: ls.ops.spgemm(A, B).values, [A.values, B.values])
        C, T, U = ls.ops.spgemm(A, B), A.detach().to_torch(), B.detach().to_torch()
        peers = run.peers(
            case,
            C.values.detach(),
            {
                "cupy": lambda: functools.partial(lambda M, N: M @ N, cusparse.matrix(A), cusparse.matrix(B)),
                "torch": lambda: lambda: T @ U,
            },
        )
        size = A.values.element_size()
        products = int(B.crow_indices.diff()[A.col_indices.long()].sum())
        least = products * (size + 4) + A.nnz * (size + 4) + C.nnz * size
        small = A.nnz < 1e6
        row = run.row("spgemm", case, dtype, ours, peers, least, ("fwd", "fwd + bwd") if small else ())
        row["first"] = first(ls.ops.spgemm, A, B)
        run.target(row, "speed-up", 2.0)
        run.same_bits(row, ours["fwd + bwd"])

    for dtype in (F32, F64):
        for shape in ((64,), (12, 12)) if run.quick else ((16384,), (1000, 1000)):
            yield f"{shape}, {dtype}", lambda s=shape, d=dtype: measure(s, d)


def add(run: Run) -> Steps:
    side = 12 if run.quick else 1500

    def measure(dtype: torch.dtype, alike: bool) -> None:
        A = grid((side, side), dtype, run.device)
        if alike:
            B = A.with_values(normal((A.nnz,), dtype, run.device))
        else:
            P = irregular("near the diagonal", side * side, run.device)
            B = ls.CSR(normal((P.nnz,), dtype, run.device), P)
        case = f"A + B, 5 points {side}^2, " + ("one pattern" if alike else "two patterns")
        ours = both_ways(lambda: ls.ops.add(A, B).values, [A.values, B.values])
        C, T, U = ls.ops.add(A, B), A.detach().to_torch(), B.detach().to_torch()
        peers = run.peers(
            case,
            C.values.detach(),
            {
                "cupy": lambda: functools.partial(lambda M, N: M + N, cusparse.matrix(A), cusparse.matrix(B)),
                "torch": lambda: lambda: T + U,
            },
        )
        size = A.values.element_size()
        indices = 0 if alike else 4
        least = (A.nnz + B.nnz) * (size + indices) + C.nnz * size
        row = run.row("add", case, dtype, ours, peers, least)
        row["first"] = first(ls.ops.add, A, B)

    for dtype in (F32, F64):
        for alike in (True, False):
            yield f"{dtype}, {alike}", lambda d=dtype, a=alike: measure(d, a)


def sptrsv(run: Run) -> Steps:
    def measure(case: str, L: ls.CSR, lower: bool, unit: bool, chain: bool) -> None:
        b = normal((L.shape[0],), L.dtype, run.device)
        ours = both_ways(lambda: ls.ops.sptrsv(L, b, lower=lower, unit_diagonal=unit), [L.values, b])
        T, column = L.detach().to_torch(), b.detach().unsqueeze(1)
        peers = run.peers(
            case,
            ls.ops.sptrsv(L, b, lower=lower, unit_diagonal=unit).detach(),
            {
                "cusparse": lambda: cusparse.kept_spsm(cusparse.matrix(L), cusparse.array(b), lower, unit),
                "cupy": lambda: cupy_spsm(L, b, lower, unit),
                # analysis in each call; on the CPU, torch supports this only with MKL
                "torch unplanned": lambda: (
                    lambda: torch.triangular_solve(column, T, upper=not lower, unitriangular=unit).solution
                ),
            },
        )
        peers = {name.replace("torch unplanned", "unplanned, torch"): f for name, f in peers.items()}
        size = b.element_size()
        least = L.nnz * (size + 4) + 4 * (L.shape[0] + 1) + 2 * size * L.shape[0]
        row = run.row("sptrsv", case, L.dtype, ours, peers, least, ("fwd", "fwd + bwd") if chain else ())
        if chain:
            what = "graph fwd" if "graph fwd" in row else "fwd"
            run.target(row, what, 20.0, most=True)
        else:
            run.target(row, "speed-up", 2.0)
        run.same_bits(row, ours["fwd + bwd"])

    n = 64 if run.quick else 32768
    for dtype in (F32, F64):
        yield (
            f"bidiagonal, {dtype}",
            lambda d=dtype: measure(
                f"L bidiagonal, n = {n}", lower_band(n, 1, d, run.device), True, False, True
            ),
        )
        for width in (2, 4):
            yield (
                f"band of {width}, {dtype}",
                lambda d=dtype, w=width: measure(
                    f"L with a band of {w}, n = {n}", lower_band(n, w, d, run.device), True, False, False
                ),
            )
    shapes = ((8, 8), (4, 4, 4)) if run.quick else ((500, 500), (100, 100, 100))
    for shape in shapes:

        def factors(shape: tuple[int, ...] = shape) -> None:
            made = ls.ops.ilu0(grid(shape, F64, run.device).detach())
            name = f"ILU(0), {2 * len(shape) + 1} points, {shape[0]}^{len(shape)}"
            measure(f"L of {name}", made.L.detach().requires_grad_(), True, True, False)
            measure(f"U of {name}", made.U.detach().requires_grad_(), False, False, False)

        yield f"ILU(0), {shape}", factors


def cupy_spsm(L: ls.CSR, b: Tensor, lower: bool, unit: bool) -> Callable[[], object]:
    from cupyx.cusparse import spsm

    M, v = cusparse.matrix(L), cusparse.array(b)
    return lambda: spsm(M, v, lower=lower, unit_diag=unit)


def pcg(run: Run) -> Steps:
    def measure(shape: tuple[int, ...], iterations: int, jacobi: bool, gradient: bool) -> None:
        A = grid(shape, F64, run.device)
        S = A.detach()
        values = poisson(shape, run.device).values  # symmetric
        A = S.with_values(values.clone().requires_grad_(gradient))
        S = S.with_values(values)
        n = A.shape[0]
        b = normal((n,), F64, run.device, gradient)
        bd, T = b.detach(), S.to_torch()
        d = 1 / S.diagonal()
        case = f"{len(shape)}D Poisson, n = {n}, M = " + ("diagonal" if jacobi else "none")

        def solve(A: ls.CSR, b: Tensor, gradient: str) -> Tensor:
            M = ls.preconditioners.Jacobi(A) if jacobi else None
            return ls.solvers.cg(A, b, M=M, rtol=0.0, atol=0.0, maxiter=iterations, gradient=gradient).x

        def fwd() -> Tensor:
            with torch.no_grad():
                return solve(S, bd, "unrolled")

        ours: Functions = {"fwd": fwd}
        if gradient:
            inputs = [A.values, b]
            ours["fwd + bwd"] = lambda: torch.autograd.grad(solve(A, b, "unrolled").sum(), inputs)
        M = (lambda r: d * r) if jacobi else (lambda r: r)

        def op_by_op() -> Tensor:
            with torch.no_grad():
                return textbook_cg(lambda p: S @ p, M, bd, iterations)[0]

        wanted = fwd()
        peers = run.peers(
            case,
            wanted,
            {
                "op by op": lambda: op_by_op,
                "torch, op by op": lambda: lambda: textbook_cg(lambda p: T @ p, M, bd, iterations)[0],
                "cupy": lambda: cupy_cg(S, bd, d if jacobi else None, iterations),
            },
        )
        size = 8
        vectors = 13 if jacobi else 12  # kernels: q = A p; x, r, norms; z, direction
        least = iterations * (A.nnz * (size + 4) + 4 * (n + 1) + vectors * size * n)
        small = n <= 40_000
        row = run.row(
            "pcg", case, F64, ours, peers, least / iterations, tuple(ours) if small else (), iterations
        )
        if small:
            run.target(row, "graph fwd" if "graph fwd" in row else "fwd", 10.0, most=True)
        if n >= 5_000_000:
            run.target(row, "of copy", 0.80)
        run.no_waiting(row, ours)
        run.same_bits(row, fwd)

    small, iterations = (64, 5) if run.quick else (32768, 100)
    for jacobi in (False, True):
        yield f"n = {small}, {jacobi}", lambda j=jacobi: measure((small,), iterations, j, True)
    side = 16 if run.quick else 1000
    yield f"{side}^2", lambda: measure((side, side), iterations, True, True)
    side = 20 if run.quick else 3162
    yield f"{side}^2", lambda: measure((side, side), 5 if run.quick else 20, True, False)


def cupy_cg(S: ls.CSR, b: Tensor, d: Tensor | None, iterations: int) -> Callable[[], object]:
    import inspect

    from cupyx.scipy import sparse
    from cupyx.scipy.sparse.linalg import cg

    M, v = cusparse.matrix(S), cusparse.array(b)
    options: dict[str, Any] = {"maxiter": iterations, "atol": 0.0}
    options["rtol" if "rtol" in inspect.signature(cg).parameters else "tol"] = 0.0
    if d is not None:
        options["M"] = sparse.diags(cusparse.array(d))
    return lambda: cg(M, v, **options)[0]


def stationary(run: Run) -> Steps:
    def measure(name: str, shape: tuple[int, ...], iterations: int) -> None:
        A = grid(shape, F64, run.device)
        n = A.shape[0]
        b, w = normal((n,), F64, run.device), torch.full((), 0.2, dtype=F64, device=run.device)
        w.requires_grad_()
        x0, T, bd = torch.zeros_like(b), A.detach().to_torch(), b.detach()
        d = 1 / A.diagonal().detach()
        case = f"{name}, {len(shape)}D Poisson, n = {n}"

        def solve() -> Tensor:
            if name == "jacobi":
                return ls.solvers.jacobi(A, b, x0, weight=w, iterations=iterations).x
            return ls.solvers.heavyball(A, b, x0, alpha=w, beta=0.5, iterations=iterations).x

        def fwd() -> Tensor:
            with torch.no_grad():
                return solve()

        def op_by_op() -> Tensor:
            with torch.no_grad():
                x, before = x0, x0
                for _ in range(iterations):
                    if name == "jacobi":
                        x = x + w * d * (bd - T @ x)
                    else:
                        before, x = x, x + w * (bd - T @ x) + 0.5 * (x - before)
                return x

        inputs = [A.values, b, w]
        ours: Functions = {
            "fwd": fwd,
            "fwd + bwd": lambda: torch.autograd.grad(solve().sum(), inputs),
        }
        peers = run.peers(case, fwd(), {"torch, op by op": lambda: op_by_op})
        vectors = 4 if name == "jacobi" else 5  # x, b, scale; x before; the new x
        least = A.nnz * 12 + 4 * (n + 1) + vectors * 8 * n
        small = n <= 40_000
        row = run.row("stationary", case, F64, ours, peers, least, tuple(ours) if small else (), iterations)
        run.no_waiting(row, ours)
        run.same_bits(row, ours["fwd + bwd"])

    shapes = ((64,), (8, 8)) if run.quick else ((32768,), (1000, 1000))
    for name in ("jacobi", "heavyball"):
        for shape in shapes:
            yield f"{name}, {shape}", lambda s=shape, k=name: measure(k, s, 5 if run.quick else 50)


SECTIONS = {f.__name__: f for f in (spmv, spmm, spgemm, add, sptrsv, pcg, stationary)}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def report(run: Run, wanted: list[str]) -> str:
    """The tables, as Markdown."""
    parts = [f"# {device_name(run.device)}", f"Device copy: {run.copy / 1e9:.0f} GB/s. Microseconds."]
    for name in wanted:
        rows = [
            {k: v for k, v in row.items() if k != "section"} for row in run.rows if row["section"] == name
        ]
        if rows:
            parts += [f"## {name}", markdown(rows)]
    if run.targets:
        parts += ["## Targets", markdown(run.targets)]
    if run.left_out:
        parts += ["## Left out", "\n".join(f"- {line}" for line in run.left_out)]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each function")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, whose times mean nothing")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    wanted = args.only.split(",")
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown:
        parser.error(f"--only: sections are {', '.join(SECTIONS)}, got {', '.join(unknown)}")
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("gpu: torch sees no CUDA device; --device cpu --quick tries the program without one")
        return 2
    slug = "-".join(device_name(device).lower().split())
    out = args.out or Path(f"benchmarks/results/gpu-{slug}.json")
    torch.manual_seed(0)
    run = Run(device, args.quick, args.seconds)
    print(f"{device_name(device)}: copy {run.copy / 1e9:.1f} GB/s")

    def save() -> None:  # after every section: a time limit keeps what there is
        about = {"gpu": device_name(device), "copy_gb_s": run.copy / 1e9, "targets": run.targets}
        content = {
            "benchmark": "gpu",
            "machine": machine(),
            **about,
            "left_out": run.left_out,
            "rows": run.rows,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(content, indent=1) + "\n")
        out.with_suffix(".md").write_text(report(run, wanted))

    for name in wanted:
        print(f"\n{name}")
        done, stated = len(run.rows), len(run.targets)
        for what, step in SECTIONS[name](run):
            run.attempt(f"{name}, {what}", step)
        if run.rows[done:]:
            print(table([{k: v for k, v in row.items() if k != "section"} for row in run.rows[done:]]))
        if run.targets[stated:]:
            print(table(run.targets[stated:]))
        save()
    missed = sum(t["met"] != "yes" for t in run.targets)
    left_out = f"{len(run.left_out)} left out, {run.failed} of them ours"
    print(f"\n{len(run.targets)} targets, {missed} missed; {left_out}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
