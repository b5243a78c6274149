"""The paper's table 2: sparse operations and their dense counterparts, forward and backward.

Source: Nytko et al., arXiv 2212.05159, table 2, and the script behind it: tridiagonal matrices, n = 32,768
(products of matrices: 16,384), float32, one thread; "backward" there is (A x).sum().backward(). Here also the
backward alone, float64 and all threads. Differences: the second matrix of a product or sum has values of its
own (with B = -A SciPy's sum is empty), and SpDMM has 64 columns; --large adds 16,384, as there. The direct
solve is 2D Poisson, 150 x 150. Dense matrices, which do not fit at these sizes, are compared at n = 2,048.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

import learnsolve as ls
from benchmarks import peers
from benchmarks.harness import BACKWARD, FORWARD, PAPER, WAYS, Run, ways

LOOSE = {torch.float32: 1e-2, torch.float64: 1e-6}  # solves, times the condition of the matrix


def tridiagonal(n: int, seed: int | None = None) -> sp.csr_array:
    S = sp.csr_array(sp.diags_array([-np.ones(n - 1), np.full(n, 2.0), -np.ones(n - 1)], offsets=[-1, 0, 1]))
    if seed is not None:
        S.data *= 1 + 0.1 * np.random.default_rng(seed).random(S.nnz)
    return S


def bidiagonal(n: int) -> sp.csr_array:
    return sp.csr_array(sp.diags_array([-np.ones(n - 1), np.full(n, 2.0)], offsets=[-1, 0]))


def measure(run: Run, args: argparse.Namespace) -> None:
    n, m, side, fits = (200, 100, 10, 60) if run.quick else (32_768, 16_384, 150, 2_048)
    for dtype in (torch.float64,) if run.quick else (torch.float32, torch.float64):
        for threads in args.threads:
            operations(run, n, m, side, dtype, threads, dense=False)
        operations(run, fits, fits, int(fits**0.5), dtype, 1, dense=True)
    matrix = peers.Matrix(peers.csr(tridiagonal(n), torch.float32), run.device)
    x = np.random.default_rng(1).random(n, dtype=np.float32)
    columns = peers.product(matrix, x, values=True)
    run.row(
        f"SpMV, n = {n}, with torch's gradient for A", ways(columns, BACKWARD), **about(matrix, torch.float32)
    )
    if args.large:
        wide = peers.Matrix(peers.csr(tridiagonal(m), torch.float32), run.device)
        X = np.random.default_rng(1).random((m, m), dtype=np.float32)
        for way in (FORWARD, PAPER):
            columns = ways(peers.product(wide, X), way)
            run.row(f"SpDMM, n = {m}, {m} columns", columns, way=way, **about(wide, torch.float32))
    for line in peers.absent:
        run.note(line)


def about(A: peers.Matrix, dtype: torch.dtype, B: peers.Matrix | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "places": [A.places, B and B.places], "nnz": A.S.nnz}


def operations(run: Run, n: int, m: int, side: int, dtype: torch.dtype, threads: int, dense: bool) -> None:
    draw = np.random.default_rng(1)

    def matrix(S: Any) -> peers.Matrix:
        return peers.Matrix(peers.csr(S, dtype), run.device)

    def vector(*shape: int) -> np.ndarray:
        return draw.random(shape).astype(np.float32 if dtype == torch.float32 else np.float64)

    A, B, C = matrix(tridiagonal(n)), matrix(tridiagonal(m)), matrix(tridiagonal(m, seed=2))
    E, L, P = (
        matrix(tridiagonal(n, seed=2)),
        matrix(bidiagonal(n)),
        matrix(ls.problems.poisson((side,) * 2).to_scipy()),
    )
    cases = {
        f"SpMV, n = {n}": (A, None, peers.product(A, vector(n), dense=dense)),
        f"SpSpMM, n = {m}": (B, C, peers.sparse_product(B, C, dense)),
        f"SpDMM, n = {m}, 64 columns": (B, None, peers.product(B, vector(m, 64), dense=dense)),
        f"Sp + Sp, n = {n}": (A, E, peers.sparse_sum(A, E, dense)),
        f"SpTRSV, n = {n}": (L, None, peers.triangular_solve(L, vector(n), dense)),
        f"direct solve, n = {side**2}": (P, None, peers.direct_solve(P, vector(side**2), dense)),
    }
    for case, (S, other, columns) in cases.items():
        with run.attempt(case):
            for way in WAYS:
                limit = LOOSE[dtype] if "direct" in case else None
                run.row(
                    case,
                    ways(columns, way),
                    way=way,
                    threads=threads,
                    tolerance=limit,
                    **about(S, dtype, other),
                )
