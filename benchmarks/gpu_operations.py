"""Operations on a CUDA device: products, sums, triangular solves (benchmarks/gpu.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import learnsolve as ls
from benchmarks import cusparse
from benchmarks.gpu_run import F32, F64, Run, Steps, both_ways, grid, irregular, lower_band, normal
from benchmarks.harness import figure, first_calls
from benchmarks.peers import fresh
from learnsolve.matrix import device_analysis


def spmv(run: Run) -> Steps:
    side, cube, rows, small = (20, 6, 400, 64) if run.quick else (3162, 150, 2_000_000, 32768)

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
                "cusparse ALG2": lambda: cusparse.kept_spmv(
                    cusparse.matrix(A), cusparse.array(x), cusparse.ALG2
                ),
                "cupy": lambda: functools.partial(lambda M, v: M @ v, cusparse.matrix(A), cusparse.array(x)),
                "torch": lambda: lambda: T @ xd,
            },
        )
        least = A.nnz * (x.element_size() + 4) + 4 * (m + 1) + x.element_size() * (m + n)
        graph = ("fwd", "fwd + bwd") if kind == "small" else ()
        row = run.row("spmv", case, dtype, ours, peers, least, graph)
        if kind == "small":
            for what, most in (("no grad", 14), ("fwd", 24), ("bwd", 75)):
                run.target(row, what, most, most=True)
        else:
            run.target(row, "bwd/fwd", 3.2 if kind == "regular" else 2.4, most=True)
            run.target(row, "speed-up", {"regular": 1.4, "near": 1.3}.get(kind, 0.97))
        if kind == "regular":
            run.target(row, "of copy", 0.85)
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
        cases += [("near the diagonal", rows, "near"), ("1 to 60 a row", small, "small")]
        for name, n, kind in cases:

            def make(name: str = name, n: int = n, dtype: torch.dtype = dtype) -> ls.CSR:
                P = irregular(name, n, device)
                return ls.CSR(normal((P.nnz,), dtype, device), P)

            case = f"{name}, n = {n}"
            yield f"{case}, {bits}", lambda c=case, m=make, k=kind: measure(c, m, k)


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
        run.target(row, "bwd/fwd", 2.2, most=True)
        run.same_bits(row, ours["fwd + bwd"])

    for dtype in (F32, F64):
        for shape in ((64,), (12, 12)) if run.quick else ((16384,), (1000, 1000)):
            yield f"{shape}, {dtype}", lambda s=shape, d=dtype: measure(s, d)


def sorts(run: Run) -> Steps:
    """Products to a sort while a sparse product is planned."""

    def measure(shape: tuple[int, ...]) -> None:
        A = grid(shape, F64, run.device).detach()
        row: dict[str, Any] = {"section": "sorts", "case": f"A A, n = {A.shape[0]}", "dtype": "float64"}
        for log in (20, 22, 24, 26):
            with patch.object(device_analysis, "SORTED", 2**log):
                times = first_calls(lambda: (fresh(A), fresh(A)), lambda pair: ls.ops.spgemm(*pair), repeat=3)
            row[f"2^{log} to a sort"] = 1e6 * figure([times])["median"]
        run.rows.append(row)

    yield "all", lambda: measure((8, 8) if run.quick else (2000, 2000))


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
    # `limit`: of microseconds; without one the solve must be faster than cuSPARSE by `gain`.
    def measure(
        case: str, L: ls.CSR, lower: bool, unit: bool, limit: float = 0, gain: float = 0, chain: bool = False
    ) -> None:
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
        if limit:
            run.target(row, "graph fwd" if "graph fwd" in row else "fwd", limit, most=True)
        else:
            run.target(row, "speed-up", gain)
        run.same_bits(row, ours["fwd + bwd"])

    n = 64 if run.quick else 32768
    for dtype in (F32, F64):
        yield (
            f"bidiagonal, {dtype}",
            lambda d=dtype: measure(
                f"L bidiagonal, n = {n}", lower_band(n, 1, d, run.device), True, False, 20, chain=True
            ),
        )
        for width in (2, 4):
            yield (
                f"band of {width}, {dtype}",
                lambda d=dtype, w=width: measure(
                    f"L with a band of {w}, n = {n}", lower_band(n, w, d, run.device), True, False, 3000
                ),
            )
    shapes = ((8, 8), (4, 4, 4)) if run.quick else ((500, 500), (100, 100, 100))
    for shape in shapes:

        def factors(shape: tuple[int, ...] = shape) -> None:
            made = ls.ops.ilu(grid(shape, F64, run.device).detach())
            name = f"ILU(0), {2 * len(shape) + 1} points, {shape[0]}^{len(shape)}"
            gain = 3.1 if len(shape) == 2 else 2.8
            measure(f"L of {name}", made.L.detach().requires_grad_(), True, True, gain=gain)
            measure(f"U of {name}", made.U.detach().requires_grad_(), False, False, gain=gain)

        yield f"ILU(0), {shape}", factors


def cupy_spsm(L: ls.CSR, b: Tensor, lower: bool, unit: bool) -> Callable[[], object]:
    from cupyx.cusparse import spsm

    M, v = cusparse.matrix(L), cusparse.array(b)
    return lambda: spsm(M, v, lower=lower, unit_diag=unit)
