"""The sparse algebra compared with SciPy, torch and other libraries, forward and backward
(docs/performance.md).

    python benchmarks/algebra.py [--only sptrsv,spgemm,add,factor,spsolve,stencil] [--peers] [--out FILE]

Times are medians in microseconds, one thread. "fwd": the public call on tensors that require grad, with its
graph; "bwd": the backward alone, gradients of all operands; "first": a call on patterns without plans.
--peers adds torchsparsegradutils and torch-sla, if installed
(`pip install --no-deps torchsparsegradutils torch-sla`).
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch
from timing import medians, table, triad_bandwidth, write
from torch import Tensor

import learnsolve as ls

F32, F64 = torch.float32, torch.float64


def peer(name: str, wanted: bool) -> Any:
    """A peer library, if requested and installed."""
    if not wanted:
        return None
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"{name}: left out, {error}")
        return None


def csr(S: sp.csr_array, dtype: torch.dtype) -> ls.CSR:
    """With 32-bit indices, as in SciPy, and values that require grad."""
    S = sp.csr_array(S)
    S.indptr, S.indices = S.indptr.astype(np.int32), S.indices.astype(np.int32)
    return ls.CSR.from_scipy(S, dtype=dtype).requires_grad_()


def fresh(A: ls.CSR) -> ls.CSR:
    """The same matrix on a new pattern, without plans."""
    P = A.pattern
    return ls.CSR(A.values, ls.SparsityPattern(P.crow_indices.clone(), P.col_indices.clone(), P.shape))


def backward(y: Tensor, inputs: list[Tensor]) -> Callable[[], object]:
    g = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    return lambda: torch.autograd.grad(y, inputs, g, retain_graph=True)


def median_of(f: Callable[[], object], times: int = 9) -> float:
    """For calls with untimed preparation: `f` returns the seconds."""
    return sorted(f() for _ in range(times))[times // 2]  # type: ignore[type-var]


def first_call(prepare: Callable[[], Any], call: Callable[[Any], object]) -> float:
    def once() -> float:
        ready = prepare()
        start = time.perf_counter()
        call(ready)
        return time.perf_counter() - start

    return median_of(once)


def row(case: str, dtype: torch.dtype, t: dict[str, float], reference: str = "scipy", **more: Any) -> dict:
    """Microseconds, and the ratios used in targets."""
    out: dict[str, Any] = {"case": case, "dtype": str(dtype).removeprefix("torch.")}
    out |= {name: 1e6 * seconds for name, seconds in t.items()}
    if reference in t:
        out[f"fwd/{reference}"] = t["fwd"] / t[reference]
        if "first" in t:
            out[f"first/{reference}"] = t["first"] / t[reference]
    if "bwd" in t:
        out["bwd/fwd"] = t["bwd"] / t["fwd"]
    return out | more


def line(n: int) -> sp.csr_array:
    return ls.problems.poisson((n,)).to_scipy()


def grid(*shape: int) -> sp.csr_array:
    return ls.problems.poisson(shape).to_scipy()


def lower_bidiagonal(n: int) -> sp.csr_array:
    return sp.csr_array(sp.diags_array([np.full(n - 1, 0.3), np.full(n, 2.0)], offsets=[-1, 0]))


def solve_bytes(L: ls.CSR) -> int:
    """The minimum traffic of a solve: entries, row pointers, right-hand side in, solution out."""
    size = L.values.element_size()
    return L.nnz * (size + 4) + 4 * (L.shape[0] + 1) + 2 * size * L.shape[0]


def sptrsv(triad: float, peers: bool) -> list[dict]:
    rows = []
    gradutils = peer("torchsparsegradutils", peers)
    for dtype in (F64, F32):
        S = lower_bidiagonal(32768)
        L = csr(S, dtype)
        S = L.detach().to_scipy()
        b = torch.randn(L.shape[0], dtype=dtype, requires_grad=True)
        x = ls.ops.sptrsv(L, b)
        functions = {
            "scipy": lambda S=S, b=b: spla.spsolve_triangular(S, b.detach().numpy()),
            "fwd": lambda L=L, b=b: ls.ops.sptrsv(L, b),
            "bwd": backward(x, [L.values, b]),
        }
        if gradutils is not None:
            T, B = L.detach().to_torch().requires_grad_(), b.detach().unsqueeze(1).requires_grad_()
            y = gradutils.sparse_triangular_solve(T, B, upper=False)
            functions |= {
                "torchsparsegradutils": lambda T=T, B=B: gradutils.sparse_triangular_solve(T, B, upper=False),
                "its bwd": backward(y, [T, B]),
            }
        rows.append(row("L bidiagonal, n = 32768", dtype, medians(functions)))
    for name, shape in (("5 points, 1000^2", (1000, 1000)), ("7 points, 100^3", (100, 100, 100))):
        A = csr(grid(*shape), F64)
        factor = ls.ops.ilu0(A.detach())
        L, U = factor.L.detach().requires_grad_(), factor.U.detach().requires_grad_()
        b = torch.randn(A.shape[0], dtype=F64, requires_grad=True)
        solves = {
            "L": (lambda L=L, b=b: ls.ops.sptrsv(L, b, unit_diagonal=True), L),
            "U": (lambda U=U, b=b: ls.ops.sptrsv(U, b, lower=False), U),
        }
        for which, (solve, M) in solves.items():
            t = medians({"fwd": solve, "bwd": backward(solve(), [M.values, b])}, seconds=1)
            share = solve_bytes(M) / t["fwd"] / triad
            rows.append(row(f"{which} of ILU(0), {name}", F64, t, **{"of triad": share}))
    return rows


def spgemm(triad: float, peers: bool) -> list[dict]:
    cases = [("A A, 1D Poisson 16384", line(16384)), ("A A, 2D Poisson 300^2", grid(300, 300))]
    rows = []
    for dtype in (F64, F32):
        for name, S in cases:
            A, B = csr(S, dtype), csr(S, dtype)
            S = A.detach().to_scipy()
            C, T = ls.ops.spgemm(A, B), A.detach().to_torch()
            t = medians(
                {
                    "scipy": lambda S=S: S @ S,
                    "fwd": lambda A=A, B=B: ls.ops.spgemm(A, B),
                    "bwd": backward(C.values, [A.values, B.values]),
                    "torch csr": lambda T=T: T @ T,
                }
            )
            t["first"] = first_call(lambda A=A, B=B: (fresh(A), fresh(B)), lambda pair: ls.ops.spgemm(*pair))
            rows.append(row(name, dtype, t))
    try:
        import pyamg
    except ImportError:
        print("galerkin: left out, it needs pyamg for the interpolation")
        return rows
    fine = grid(300, 300)
    levels = pyamg.ruge_stuben_solver(fine, max_levels=2).levels
    A, P = csr(fine, F64), csr(sp.csr_array(levels[0].P), F64)
    S, Q = A.detach().to_scipy(), P.detach().to_scipy()
    C = ls.ops.galerkin(P, A)
    t = medians(
        {
            "scipy": lambda: Q.T @ (S @ Q),
            "fwd": lambda: ls.ops.galerkin(P, A),
            "bwd": backward(C.values, [A.values, P.values]),
        }
    )
    t["first"] = first_call(lambda: (fresh(P), fresh(A)), lambda pair: ls.ops.galerkin(*pair))
    rows.append(row("P^T A P, 2D Poisson 300^2", F64, t))
    return rows


def add(triad: float, peers: bool) -> list[dict]:
    rows = []
    n = 32768
    other = sp.csr_array(sp.diags_array([np.ones(n - 5), np.ones(n)], offsets=[-5, 0]))
    for dtype in (F64, F32):
        A, B = csr(line(n), dtype), csr(other, dtype)
        for name, second in (("one pattern", A.with_values(A.values.detach().clone())), ("two patterns", B)):
            second = second.detach().requires_grad_()
            C = ls.ops.add(A, second)
            S, T = A.detach().to_scipy(), second.detach().to_scipy()
            X, Y = A.detach().to_torch(), second.detach().to_torch()
            t = medians(
                {
                    "scipy": lambda S=S, T=T: S + T,
                    "fwd": lambda A=A, B=second: ls.ops.add(A, B),
                    "bwd": backward(C.values, [A.values, second.values]),
                    "torch csr": lambda X=X, Y=Y: X + Y,
                }
            )
            t["first"] = first_call(
                lambda A=A, B=second: (fresh(A), fresh(B)), lambda pair: ls.ops.add(*pair)
            )
            rows.append(row(f"A + B, n = {n}, {name}", dtype, t))
    return rows


def factor(triad: float, peers: bool) -> list[dict]:
    rows = []
    for name, shape in (("5 points, 1000^2", (1000, 1000)), ("7 points, 100^3", (100, 100, 100))):
        A = csr(grid(*shape), F64)
        for method in ("ic0", "ilu0"):
            f = getattr(ls.ops, method)
            made = f(A)
            out = torch.cat([t.values for t in made if isinstance(t, ls.CSR)])
            t = medians({"fwd": lambda f=f, A=A: f(A), "bwd": backward(out, [A.values])}, seconds=1)
            t["first"] = first_call(lambda A=A: fresh(A), f)
            rows.append(row(f"{method}, {name}", F64, t, **{"fwd ns/nnz": 1e9 * t["fwd"] / A.nnz}))
    return rows


def spsolve(triad: float, peers: bool) -> list[dict]:
    A = csr(grid(150, 150), F64)
    S = sp.csc_array(A.detach().to_scipy())
    b = torch.randn(A.shape[0], dtype=F64, requires_grad=True)
    vector = b.detach().numpy()

    def both() -> None:
        torch.autograd.grad(ls.ops.spsolve(A, b).sum(), (A.values, b))

    def by_hand() -> None:
        lu = spla.splu(S)
        lu.solve(vector)
        lu.solve(vector, trans="T")

    functions = {
        "scipy splu": lambda: spla.splu(S).solve(vector),
        "fwd": lambda: ls.ops.spsolve(A, b),
        "scipy splu, two solves": by_hand,
        "fwd + bwd": both,
    }
    sla = peer("torch_sla", peers)
    if sla is not None:
        rows_, columns = A.pattern.row_indices.long(), A.col_indices.long()

        def theirs() -> None:
            x = sla.spsolve(A.values, rows_, columns, A.shape, b)
            torch.autograd.grad(x.sum(), (A.values, b))

        functions["torch-sla fwd + bwd"] = theirs
    t = medians(functions, seconds=2)
    return [
        {
            "case": "2D Poisson 150^2",
            "dtype": "float64",
            **{name: 1e6 * seconds for name, seconds in t.items()},
            "fwd/scipy": t["fwd"] / t["scipy splu"],
            "fwd + bwd/scipy": t["fwd + bwd"] / t["scipy splu, two solves"],
        }
    ]


def stencil(triad: float, peers: bool) -> list[dict]:
    rows = []
    side = 1000
    for dtype in (F64, F32):
        A = csr(grid(side, side), dtype)
        c = torch.tensor([[0.0, -1, 0], [-1, 4, -1], [0, -1, 0]], dtype=dtype, requires_grad=True)
        x = torch.randn(side, side, dtype=dtype, requires_grad=True)
        y = ls.ops.stencil(c, x)
        t = medians(
            {
                "spmm": lambda A=A, x=x: ls.ops.spmm(A, x.reshape(-1)),
                "conv2d": lambda c=c, x=x: torch.nn.functional.conv2d(
                    x[None, None], c[None, None], padding=1
                ),
                "fwd": lambda c=c, x=x: ls.ops.stencil(c, x),
                "bwd": backward(y, [c, x]),
            }
        )
        more = {
            "fwd/conv2d": t["fwd"] / t["conv2d"],
            "of triad": 2 * x.numel() * x.element_size() / t["fwd"] / triad,
        }
        rows.append(row(f"3 x 3 on {side}^2", dtype, t, "spmm", **more))
    return rows


SECTIONS = {f.__name__: f for f in (sptrsv, spgemm, add, factor, spsolve, stencil)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/algebra.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    triad = triad_bandwidth(1)
    print(f"triad bandwidth, one thread: {triad / 1e9:.1f} GB/s")
    results = []
    for name in args.only.split(","):
        if name not in SECTIONS:
            parser.error(f"--only: sections are {', '.join(SECTIONS)}, got {name!r}")
        rows = SECTIONS[name](triad, args.peers)
        print(f"\n{name}\n{table(rows)}")
        results += [{"section": name, **r} for r in rows]
    write(args.out, "algebra", results, triad_gb_s=triad / 1e9)


if __name__ == "__main__":
    main()
