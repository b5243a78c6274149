"""A solver's loop as one operation against the same iterations op by op, with the adjoint.

Conjugate gradients with every form of M, per iteration: "no record" without a gradient, "forward" recording,
"forward + backward" by A's values, b and M's parameters. Then the adjoint of a loss over some of 64 columns;
an iteration for each of k columns, in one solve and in a loop over them; and methods whose iterations Python
steps. "cg, M SSOR": with the product with A in the sweeps of M, and as it is where A does not split:
`python -m benchmarks loops`.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from scipy.sparse import diags_array
from torch import Tensor

import learnsolve as ls
from benchmarks.harness import OURS, Run
from learnsolve.ops.pcg import pcg_iterations
from learnsolve.solvers.core.entry import solve
from learnsolve.solvers.core.loop import Method
from learnsolve.solvers.krylov import MinimalResidual
from learnsolve.solvers.options import Options

STEPS = 12


def textbook_cg(product: Callable, M: Callable, b: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """x and the norms of the residuals, for each column of b."""
    x, r = torch.zeros_like(b), b
    p = z = M(r)
    rho = (r * z).sum(0)
    norms = [torch.linalg.vector_norm(r, dim=0)]
    for _ in range(iterations):
        q = product(p)
        alpha = rho / (p * q).sum(0)
        x, r = x + alpha * p, r - alpha * q
        norms.append(torch.linalg.vector_norm(r, dim=0))
        z = M(r)
        old, rho = rho, (r * z).sum(0)
        p = z + rho / old * p
    return x, torch.stack(norms)


def measure(run: Run, args: argparse.Namespace) -> None:
    for dtype in (torch.float64,) if run.quick else (torch.float64, torch.float32):
        conjugate_gradients(run, dtype)
    for solver in ("heavyball", "jacobi"):
        some_columns(run, solver)
    columns(run)
    split(run)
    python_steps(run)


def conjugate_gradients(run: Run, dtype: torch.dtype) -> None:
    n, iterations = (100, 3) if run.quick else (32_768, 50)
    A = ls.problems.poisson((n,), dtype=dtype).requires_grad_()
    T = A.detach().to_torch()
    L = ls.CSR.from_scipy(diags_array([0.7, 0.1], offsets=(0, -1), shape=(n, n)).tocsr(), dtype=dtype)
    L = L.requires_grad_()
    d = torch.full((n,), 0.5, dtype=dtype, requires_grad=True)
    b = torch.randn(n, dtype=dtype, requires_grad=True)
    factor: dict[str, Any] = {"m": L.values, "factor": L.pattern}
    solve, spmm = ls.ops.sptrsv, ls.ops.spmm
    forms = {
        "none": ({}, [], lambda r: r),
        "diagonal": ({"m": d}, [d], lambda r: d * r),
        "product": (factor, [L.values], lambda r: L @ spmm(L, r, transpose=True)),
        "triangular": (factor, [L.values], lambda r: solve(L, solve(L, r), transpose=True)),
    }
    for kind, (options, parameters, M) in forms.items():
        inputs = [A.values, b, *parameters]

        def fused(
            checkpointed: bool = False, kind: str = kind, options: dict = options
        ) -> tuple[Tensor, Tensor]:
            rest = {"kind": kind, "checkpointed": checkpointed, **options}
            return pcg_iterations(A.values, b, None, A.pattern, iterations, **rest)[:2]

        loops: dict[str, Callable] = {
            OURS: fused,
            "checkpointed": lambda fused=fused: fused(True),
            "op by op, our product": lambda M=M: textbook_cg(lambda p: A @ p, M, b, iterations),
            "op by op, torch CSR": lambda M=M: textbook_cg(lambda p: T @ p, M, b, iterations),
        }

        def unrecorded(f: Callable) -> Callable:
            return lambda: torch.no_grad()(f)()

        def both(f: Callable, inputs: list = inputs) -> Callable:
            return lambda: torch.autograd.grad(sum(part.sum() for part in f()), inputs)

        makes = {
            "no record": {name: unrecorded(f) for name, f in loops.items() if name != "checkpointed"},
            "forward": {name: f for name, f in loops.items() if name != "op by op, torch CSR"},
            "forward + backward": {
                name: both(f) for name, f in loops.items() if name != "op by op, torch CSR"
            },
        }
        for way, functions in makes.items():
            columns = {name: (lambda f=f: f) for name, f in functions.items()}
            case = f"cg, an iteration of {iterations}, n = {n}, M {kind}"
            limit = 1e-2 if dtype == torch.float32 else 1e-6
            run.row(case, columns, way=way, dtype=dtype, tolerance=limit, per=iterations)


def some_columns(run: Run, solver: str) -> None:
    side, k = (6, 8) if run.quick else (64, 64)
    A = ls.problems.poisson((side, side)).requires_grad_()
    e = torch.randn(side * side, k, dtype=torch.float64, requires_grad=True)
    w = torch.full((), 0.2, dtype=torch.float64, requires_grad=True)
    if solver == "jacobi":
        x = ls.solvers.jacobi(A, e, weight=w, iterations=STEPS).x
    else:
        x = ls.solvers.heavyball(A, e, alpha=w, beta=0.5, iterations=STEPS).x
    # Columns of the table: with "all" in the place of a peer, a ratio of 0.25 would be proportional.
    for name, columns in {"the first quarter": slice(0, k // 4), "every fourth": slice(0, None, 4)}.items():
        g = torch.zeros_like(x)
        g[:, columns] = 1
        cotangents = {OURS: g, "all columns": torch.ones_like(x)}
        tasks = {
            who: (lambda g=g: lambda: torch.autograd.grad(x, (A.values, e, w), g, retain_graph=True))
            for who, g in cotangents.items()
        }
        case = f"{solver}, {name} of {k} columns, n = {side * side}"
        run.row(case, tasks, way="backward", check=lambda _: 0.0)


# Iterations of a solve: with `rtol` and `atol` that none reaches, so that all run and none is recorded.
ALL: dict[str, float] = {"rtol": 0.0, "atol": 1e-200}


def columns(run: Run) -> None:
    side, iterations = (8, 4) if run.quick else (316, 40)
    A = ls.problems.poisson((side, side))
    P, S = ls.preconditioners, ls.solvers
    Ms: dict[str, Any] = {"none": None, "Jacobi": P.Jacobi(A), "MIC": P.MIC(A), "AMG": P.AMG(A)}
    cases = [("cg", M) for M in Ms] + [("minres", "none"), ("minres", "MIC"), ("bicgstab", "none")]
    for (name, M), k in itertools.product(cases, (2, 8, 32)):
        B = torch.randn(side * side, k, dtype=torch.float64)
        keywords = ALL | {"M": Ms[M], "maxiter": iterations}

        @torch.no_grad()
        def block(B: Tensor = B, name: str = name, keywords: dict = keywords) -> Tensor:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", S.ConvergenceWarning)
                return getattr(S, name)(A, B, **keywords).x

        tasks = {
            OURS: lambda block=block: block,
            "one by one": lambda block=block, B=B: (
                lambda: torch.stack([block(b.contiguous()) for b in B.unbind(1)], 1)
            ),
        }
        case = f"columns: {name}, M {M}, an iteration of one of {k}, n = {side * side}"
        run.row(case, tasks, way="forward", check=lambda _: 0.0, per=k * iterations)


def split(run: Run) -> None:
    """A splits into the factor of SSOR, and not into the same with digits that do not matter."""
    cube, square, iterations = (6, 9, 4) if run.quick else (64, 256, 40)
    grids = {
        f"7 points, {cube}^3": ls.problems.poisson((cube, cube, cube)),
        f"9 points, {square}^2": ls.problems.anisotropic((square, square), 0.1, 0.6),
    }
    for name, A in grids.items():
        kind, m, factor = ls.preconditioners.SSOR(A, 1.8).pcg_form()
        other, b = m * (1 + 1e-12 * torch.randn_like(m)), torch.ones(A.shape[0], dtype=A.dtype)

        def loop(m: Tensor, A: ls.CSR = A, b: Tensor = b, kind: str = kind, factor: Any = factor) -> Callable:
            form = {"kind": kind, "m": m, "factor": factor}
            return lambda: pcg_iterations(A.values, b, None, A.pattern, iterations, **form)[:2]

        tasks = {OURS: lambda loop=loop, m=m: loop(m), "with a product": lambda loop=loop, m=other: loop(m)}
        run.row(
            f"cg, an iteration of {iterations}, {name}, M SSOR",
            tasks,
            way="no record",
            tolerance=1e-6,
            per=iterations,
        )


class ByTorch(MinimalResidual):
    state_vectors = 0  # it is not recorded


def gradients(run: Run, A: ls.CSR, b: Tensor, iterations: int) -> None:
    """Of MINRES, as one operation and its adjoint, and one torch operation after another."""
    values = A.values.clone().requires_grad_()
    for name in ("none", "IC"):

        def train(method: Method, name: str = name) -> Callable:
            def step() -> Tensor:
                M = ls.preconditioners.IC(A.with_values(values)) if name == "IC" else None
                options = Options(0.0, 0.0, iterations, M=M, gradient="unrolled")
                x = solve("minres", method, A.with_values(values), b, None, options, symmetric=True).x
                return torch.autograd.grad(x.sum(), values)[0]

            return lambda: step

        tasks = {OURS: train(MinimalResidual()), "op by op": train(ByTorch())}
        case = f"an iteration of minres, M {name}, n = {len(b)}"
        run.row(case, tasks, way="forward + backward", tolerance=1e-6, per=iterations)


def python_steps(run: Run) -> None:
    """Against a compiled loop with the same M, or SciPy."""
    side, iterations = (8, 4) if run.quick else (64, 40)
    A, S = ls.problems.poisson((side, side)), ls.solvers
    b = torch.ones(side * side, dtype=torch.float64)
    M, N = ls.preconditioners.IC(A), ls.preconditioners.ILU(A)

    def steps(name: str, M: Any) -> Callable:
        @torch.no_grad()
        def solve() -> Tensor:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", S.ConvergenceWarning)
                return getattr(S, name)(A, b, M=M, maxiter=iterations, **ALL).x

        return lambda: solve

    for name, own in (("minres", M), ("bicgstab", N)):
        tasks = {OURS: steps(name, own), "cg with IC(0)": steps("cg", M)}
        case = f"an iteration of {name}, M {type(own).__name__}, n = {side * side}"
        run.row(case, tasks, way="forward", check=lambda _: 0.0, per=iterations)
    gradients(run, A, b, iterations)
    for m, n in ((21, 8),) if run.quick else ((219, 85), (2000, 1000)):
        D = scipy.sparse.random_array((m, n), density=min(5 / n, 1), rng=0) + scipy.sparse.eye_array(m, n)
        D = D.tocsr()
        R, c = ls.CSR.from_scipy(D), torch.ones(m, dtype=torch.float64)
        for name in ("lsqr", "lsmr"):
            theirs = getattr(scipy.sparse.linalg, name)

            @torch.no_grad()
            def ours(name: str = name, R: ls.CSR = R, c: Tensor = c) -> Tensor:
                return getattr(S, name)(R, c, atol=1e-10, btol=1e-10).x

            tasks = {
                OURS: lambda ours=ours: ours,
                "SciPy": lambda theirs=theirs, D=D: (
                    lambda: torch.as_tensor(theirs(D, np.ones(D.shape[0]), atol=1e-10, btol=1e-10)[0])
                ),
            }
            run.row(f"{name}, {m} x {n}, to 1e-10", tasks, way="forward", tolerance=1e-6)
