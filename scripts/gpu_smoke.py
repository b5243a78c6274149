"""Every type of CUDA kernel once, forward and backward, on small matrices, compared with the CPU.

    python scripts/gpu_smoke.py [--device cuda]

Small enough for compute-sanitizer (scripts/gpu.py), which slows kernels down a hundredfold. Long rows
are cut into pieces; triangular solves have bands and levels; solvers run few steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import learnsolve as ls

Inputs = tuple[Tensor, ...]


def skewed(rows: int = 300, columns: int = 1500) -> ls.CSR:
    """Empty rows, short rows and some of more than a thousand entries."""
    lengths = [1200 if i % 100 == 7 else i % 4 for i in range(rows)]
    row = torch.repeat_interleave(torch.arange(rows), torch.tensor(lengths))
    column = torch.cat([torch.arange(k) * (columns // max(k, 1)) for k in lengths])
    return ls.CSR.from_coo(row.int(), column.int(), normal(len(row)), (rows, columns))


def arrow(rows: int = 300) -> ls.CSR:
    """A lower triangle with two full rows and a full column: several lanes per row."""
    i = torch.arange(rows)
    full = torch.arange(rows - 1)
    row = torch.cat((i, torch.full((50,), 50), torch.full_like(full, rows - 1), i[8:-1]))
    column = torch.cat((i, i[:50], full, torch.full_like(i[8:-1], 7)))
    at = torch.unique(row * rows + column)
    row, column = at // rows, at % rows
    return ls.CSR.from_coo(row, column, torch.where(row == column, 2.0, 0.01).double(), (rows, rows))


def near_diagonal(rows: int, *distances: int) -> ls.CSR:
    """A lower triangle with entries at these distances below the diagonal, every ninth of them missing."""
    i = torch.arange(rows)
    row = torch.cat((i, *(i[d:] for d in distances)))
    column = torch.cat((i, *(i[:-d] for d in distances)))
    kept = (row == column) | ((row + column) % 9 != 0)
    values = torch.where(row == column, 2.0, 0.3).double()
    return ls.CSR.from_coo(row[kept], column[kept], values[kept], (rows, rows))


def normal(*shape: int) -> Tensor:
    seed = sum(shape)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ones(P: ls.SparsityPattern) -> ls.CSR:
    return ls.CSR(torch.ones(P.nnz, dtype=torch.float64, device=P.device), P)


def slope(function: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    """A gradient to be differentiated once more."""
    return torch.autograd.grad(function(v).sin().sum(), v, create_graph=True)[0]


def cases() -> dict[str, tuple[Callable[..., Tensor], Inputs, tuple[ls.SparsityPattern, ...]]]:
    """function(*patterns, *tensors), tensors, patterns: all on the CPU."""
    S, G = skewed(), ls.problems.poisson((12, 11))
    P, Q = S.pattern, G.pattern
    L, U = G.tril().pattern, G.triu().pattern
    chain, long_chain = (ls.problems.poisson((m,)).tril() for m in (200, 5000))
    band, deep, sweeping = near_diagonal(200, 1, 2), ls.problems.poisson((16, 17, 18)).tril(), arrow()
    n, k = G.shape[0], 5
    spd, lower, upper = G.values, G.tril().values, G.triu().values
    CSR, ops, solvers = ls.CSR, ls.ops, ls.solvers

    fixed: Any = {"rtol": 0.0, "atol": 0.0, "maxiter": 4, "gradient": "unrolled"}

    def ic0(P: ls.SparsityPattern, v: Tensor) -> Tensor:
        return ops.ic0(CSR(v, P)).L.values

    def cg(kind: str) -> Callable[..., Tensor]:
        def solve(P: ls.SparsityPattern, v: Tensor, b: Tensor) -> Tensor:
            A = CSR(v, P)
            M = {"none": lambda: None, "diagonal": lambda: ls.preconditioners.Jacobi(A)}
            M["triangular"] = lambda: ls.preconditioners.IC0(A)
            return solvers.cg(A, b, M=M[kind](), **fixed).x

        return solve

    return {
        "spmv": (lambda P, v, x: CSR(v, P) @ x, (S.values, normal(P.shape[1])), (P,)),
        "spmm": (lambda P, v, x: CSR(v, P) @ x, (S.values, normal(P.shape[1], k)), (P,)),
        "spmm, uniform rows": (lambda P, v, x: CSR(v, P) @ x, (spd, normal(n, 33)), (Q,)),
        "spmm, transpose": (
            lambda P, v, x: ops.spmm(CSR(v, P), x, transpose=True),
            (S.values, normal(P.shape[0], k)),
            (P,),
        ),
        "sddmm": (lambda P, u, v: ops.sddmm(u, v, P), (normal(P.shape[0], k), normal(P.shape[1], k)), (P,)),
        "add": (lambda P, Q, v, w: ops.add(CSR(v, P), CSR(w, Q)).values, (lower, upper), (L, U)),
        "spgemm": (lambda P, Q, v, w: ops.spgemm(CSR(v, P), CSR(w, Q)).values, (lower, upper), (L, U)),
        "stencil": (lambda c, x: ops.stencil(c, x), (normal(3, 3), normal(2, 9, 10)), ()),
        "ic0": (ic0, (spd,), (Q,)),
        "ilu0": (lambda P, v: ops.ilu0(CSR(v, P)).U.values, (spd,), (Q,)),
        "sptrsv, chain": (
            lambda P, v, b: ops.sptrsv(CSR(v, P), b),
            (chain.values, normal(200)),
            (chain.pattern,),
        ),
        "sptrsv, levels": (
            lambda P, v, b: ops.sptrsv(CSR(v, P), b, lower=False),
            (upper, normal(n, k)),
            (U,),
        ),
        "sptrsv, long chain": (
            lambda P, v, b: ops.sptrsv(CSR(v, P), b),
            (long_chain.values, normal(5000)),
            (long_chain.pattern,),
        ),
        "sptrsv, band": (
            lambda P, v, b: ops.sptrsv(CSR(v, P), b),
            (band.values, normal(200, 2)),
            (band.pattern,),
        ),
        "sptrsv, wide levels": (
            lambda P, v, b: ops.sptrsv(CSR(v, P), b),
            (deep.values, normal(deep.shape[0], 9)),
            (deep.pattern,),
        ),
        "sptrsv, long rows": (
            lambda P, v, b: ops.sptrsv(CSR(v, P), b),
            (sweeping.values, normal(sweeping.shape[0])),
            (sweeping.pattern,),
        ),
        "jacobi": (
            lambda P, v, b, w: solvers.jacobi(CSR(v, P), b, weight=w, iterations=4).x,
            (spd, normal(n, k), torch.tensor(0.6, dtype=torch.float64)),
            (Q,),
        ),
        "heavyball": (
            lambda P, v, b: solvers.heavyball(CSR(v, P), b, alpha=0.2, beta=0.5, iterations=4).x,
            (spd, normal(n)),
            (Q,),
        ),
        **{f"cg, {kind}": (cg(kind), (spd, normal(n)), (Q,)) for kind in ("none", "diagonal", "triangular")},
        "cg, many columns": (cg("diagonal"), (spd, normal(n, 40)), (Q,)),
        # Enough numbers for sums of our own (learnsolve/ops/core/dots.py).
        "gmres": (
            lambda P, v, b: solvers.gmres(CSR(v, P), b, **fixed, restart=3).x,
            (spd, normal(n, 250)),
            (Q,),
        ),
        "sum": (lambda P, v: CSR(v, P).sum(), (S.values,), (P,)),
        "spgemm, one side": (
            lambda P, Q, v, w: ops.spgemm(CSR(v, P), ones(Q)).values + ops.spgemm(ones(P), CSR(w, Q)).values,
            (lower, upper),
            (L, U),
        ),
        "ic0, its slopes": (lambda P, v: slope(lambda v: slope(lambda v: ic0(P, v), v), v), (spd,), (Q,)),
        "segment_max": (lambda P, e: ops.segment_max(e, P, "column"), (normal(P.nnz, k),), (P,)),
        "segment_softmax": (lambda P, e: ops.segment_softmax(e, P), (normal(P.nnz, k),), (P,)),
    }


def results(function: Callable[..., Tensor], inputs: Inputs, patterns: tuple, device: str) -> list[Tensor]:
    there = [t.to(device).requires_grad_() for t in (t.clone() for t in inputs)]
    y = function(*(P.to(device) for P in patterns), *there)
    return [t.cpu() for t in (y.detach(), *torch.autograd.grad(y.sin().sum(), there))]


def main() -> int:
    parser = argparse.ArgumentParser(description="Every CUDA kernel once, on small matrices.")
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    failed = 0
    for name, (function, inputs, patterns) in cases().items():
        try:
            found = results(function, inputs, patterns, device)
            wanted = results(function, inputs, patterns, "cpu")
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
        except Exception as error:
            failed += 1
            print(f"{name}: FAILED, {type(error).__name__}: {error}", flush=True)
        else:
            print(f"{name}: ok", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
