"""Beyond the paper's operations: grids beyond cache, irregular rows, factors, stencils, first calls.

"of triad" is the share of the triad's bandwidth that the smallest possible traffic of the forward amounts to.
"First call" is a call on patterns without plans.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

import learnsolve as ls
from benchmarks import matrices, peers
from benchmarks.harness import BACKWARD, FORWARD, OURS, Op, Run, ways

F32, F64 = torch.float32, torch.float64
Make = Callable[[], Op]


def poisson(*shape: int) -> sp.csr_array:
    return ls.problems.poisson(shape).to_scipy()


def vector(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


def both(
    run: Run, case: str, ops: dict[str, Make], dtype: torch.dtype = F64, least: float = 0, **more
) -> None:
    for way in (FORWARD, BACKWARD):
        run.row(case, ways(ops, way), way=way, dtype=dtype, least=least if way == FORWARD else 0, **more)


def measure(run: Run, args: argparse.Namespace) -> None:
    for part in (products, triangular, sparse_sparse, factors, stencils):
        with run.attempt(part.__name__):
            part(run, args)


def products(run: Run, args: argparse.Namespace) -> None:
    """A x and A X by forward and backward; the traffic of the least possible forward."""
    n, side = (200, 12) if run.quick else (32_768, 1_000)
    grid, scattered, line = poisson(side, side), matrices.irregular(n), poisson(n // 2)
    cases = [
        ("2D Poisson", grid, 1),
        ("irregular", scattered, 1),
        ("1D Poisson", line, 32),
        ("irregular", scattered, 32),
    ]
    for name, S, k in cases:
        for dtype in (F64, F32):
            A = peers.Matrix(peers.csr(S, dtype), run.device)
            x = vector(*((S.shape[1],) if k == 1 else (S.shape[1], k)), dtype=dtype).numpy()
            size = x.itemsize
            least = A.S.nnz * (size + 4) + 4 * (S.shape[0] + 1) + size * k * sum(S.shape)
            case = f"A x, {name}, n = {S.shape[0]}, {k} column{'s' * (k > 1)}"
            for threads in args.threads:
                more = {"threads": threads, "places": [A.places, None], "nnz": S.nnz}
                both(run, case, peers.product(A, x), dtype, least, **more)


def triangular(run: Run, args: argparse.Namespace) -> None:
    """The factors of ILU(0)."""
    for shape in ((10, 10),) if run.quick else ((1_000, 1_000), (100, 100, 100)):
        factor = ls.ops.ilu(ls.problems.poisson(shape))
        for which, M, options in (
            ("L", factor.L, {"unit_diagonal": True}),
            ("U", factor.U, {"lower": False}),
        ):
            M, b = M.detach().requires_grad_(), vector(M.shape[0]).requires_grad_()
            solve = {OURS: lambda M=M, b=b, o=options: Op(lambda: ls.ops.sptrsv(M, b, **o), [M.values, b])}
            least = M.nnz * 12 + 4 * (M.shape[0] + 1) + 16 * M.shape[0]
            both(run, f"{which} of ILU(0), {len(shape)}D, n = {M.shape[0]}", solve, F64, least, nnz=M.nnz)


def sparse_sparse(run: Run, args: argparse.Namespace) -> None:
    """A A, the Galerkin product, sums; planned and first."""
    side = 12 if run.quick else 300
    n = side * side
    grid, other = poisson(side, side), sp.diags_array([np.ones(n - 5), np.ones(n)], offsets=[-5, 0])
    for dtype in (F64, F32):
        A, B = (peers.Matrix(peers.csr(S, dtype), run.device) for S in (grid, other))
        C = peers.Matrix(A.S, run.device)
        both(run, f"A B, 2D Poisson, n = {n}", peers.sparse_product(A, C), dtype, places=[A.places, C.places])
        both(run, f"A + B, two patterns, n = {n}", peers.sparse_sum(A, B), dtype, places=[A.places, B.places])
    A, B = (peers.Matrix(peers.csr(S), run.device) for S in (grid, other))
    M, N = A.ours(), B.ours()
    first(run, f"A B, 2D Poisson, n = {n}", lambda a, b: ls.ops.spgemm(a, b), lambda: A.S @ A.S, M, M)
    first(run, f"A + B, two patterns, n = {n}", lambda a, b: ls.ops.add(a, b), lambda: A.S + B.S, M, N)
    if (pyamg := peers.peer("pyamg")) is None:
        return
    Q = peers.csr(pyamg.ruge_stuben_solver(sp.csr_matrix(grid), max_levels=2).levels[0].P)
    P = peers.Matrix(Q, run.device).ours()
    ops: dict[str, Make] = {
        OURS: lambda: Op(lambda: ls.ops.galerkin(P, M), [M.values, P.values]),
        "SciPy": lambda: Op(lambda: Q.T @ (A.S @ Q)),
    }
    both(run, f"P^T A P, Ruge-Stueben, n = {n}", ops)
    first(run, f"P^T A P, n = {n}", lambda p, a: ls.ops.galerkin(p, a), lambda: Q.T @ (A.S @ Q), P, M)


def first(run: Run, case: str, ours: Callable, scipy: Callable, A: ls.CSR, B: ls.CSR) -> None:
    pair = (lambda: (peers.fresh(A), peers.fresh(B)), lambda made: ours(*made))
    run.first(case, {OURS: pair, "SciPy": (lambda: None, lambda _: scipy())})


def factors(run: Run, args: argparse.Namespace) -> None:
    """Incomplete factors."""
    for shape in ((10, 10),) if run.quick else ((1_000, 1_000), (100, 100, 100)):
        A = ls.problems.poisson(shape).requires_grad_()
        for f in (ls.ops.ic, ls.ops.ilu):

            def call(f: Callable = f, A: ls.CSR = A) -> Tensor:
                return torch.cat([part.values for part in f(A) if isinstance(part, ls.CSR)])

            case = f"{f.__name__}, {len(shape)}D, n = {A.shape[0]}"
            both(run, case, {OURS: lambda call=call, A=A: Op(call, [A.values])}, nnz=A.nnz)
            run.first(case, {OURS: (lambda A=A: peers.fresh(A), f)})


def stencils(run: Run, args: argparse.Namespace) -> None:
    """3 x 3 against conv2d and our product."""
    side = 12 if run.quick else 1_000
    for dtype in (F64, F32):
        A = ls.problems.poisson((side, side), dtype=dtype)
        c = torch.tensor([[0.0, -1, 0], [-1, 4, -1], [0, -1, 0]], dtype=dtype, requires_grad=True)
        x = vector(side, side, dtype=dtype).requires_grad_()

        def conv(c: Tensor = c, x: Tensor = x) -> Tensor:
            return torch.nn.functional.conv2d(x[None, None], c[None, None], padding=1)[0, 0]

        ops: dict[str, Make] = {
            OURS: lambda c=c, x=x: Op(lambda: ls.ops.stencil(c, x), [c, x]),
            "conv2d": lambda conv=conv, c=c, x=x: Op(conv, [c, x]),
            "our CSR": lambda A=A, x=x: Op(lambda: (A @ x.reshape(-1)).reshape(x.shape), [None, x]),
        }
        both(run, f"3 x 3 stencil, {side}^2", ops, dtype, 2 * x.numel() * x.element_size())
