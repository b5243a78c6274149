"""Solvers on a CUDA device: a number of iterations, a solve to a tolerance, training (benchmarks/gpu.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import learnsolve as ls
from benchmarks import cusparse
from benchmarks.gpu_run import F64, Functions, Run, Steps, grid, normal, poisson
from benchmarks.loops import textbook_cg
from benchmarks.training import made, of_recipe
from learnsolve.recipes.jacobi import JacobiRecipe, JacobiSettings
from learnsolve.recipes.pcg import PcgRecipe, PcgSettings


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
            return ls.solvers.cg(A, b, M=M, iterations=iterations, gradient=gradient).x

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
            run.target(row, "graph fwd" if "graph fwd" in row else "fwd", 10.5, most=True)
        elif n >= 5_000_000:
            run.target(row, "of copy", 0.93)
        else:
            run.target(row, "fwd", 50, most=True)
        if gradient:
            row["bwd/fwd"] = row["fwd + bwd"] / row["fwd"] - 1
            run.target(row, "bwd/fwd", 1.5, most=True)
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
        if name == "jacobi":
            what = "graph fwd" if "graph fwd" in row else "fwd"
            run.target(row, what, 2.6 if small else 26, most=True)
        run.no_waiting(row, ours)
        run.same_bits(row, ours["fwd + bwd"])

    shapes = ((64,), (8, 8)) if run.quick else ((32768,), (1000, 1000))
    for name in ("jacobi", "heavyball"):
        for shape in shapes:
            yield f"{name}, {shape}", lambda s=shape, k=name: measure(k, s, 5 if run.quick else 50)


def solve(run: Run) -> Steps:
    """Conjugate gradients with Jacobi's M to a tolerance, on 16 million unknowns."""

    def measure(shape: tuple[int, ...]) -> None:
        A = poisson(shape, run.device)
        n = A.shape[0]
        b, values = normal((n,), F64, run.device), A.values.clone().requires_grad_()
        M = ls.preconditioners.Jacobi(A)
        iterations = 0

        def fwd() -> Tensor:
            nonlocal iterations
            solution = ls.solvers.cg(A, b.detach(), M=M, rtol=1e-6, maxiter=50_000)
            iterations = int(solution.iterations)
            return solution.x

        def both() -> tuple[Tensor, ...]:
            x = ls.solvers.cg(A.with_values(values), b, M=M, rtol=1e-6, maxiter=50_000).x
            return torch.autograd.grad(x.sum(), [values, b])

        case = f"{len(shape)}D Poisson, n = {n}, M = diagonal, to 1e-6"
        row = run.compare("solve", case, F64, {"fwd": fwd, "fwd + bwd": both})
        row["iterations"] = iterations
        row["fwd, an iteration"] = row["fwd"] / iterations
        # A peer publishes 7.3 s for 16 million unknowns on an H200, of which 4.3 s would suffice.
        run.target(row, "fwd", 4.8e6, most=True)

    for shape in ((20, 20), (8, 8, 8)) if run.quick else ((4000, 4000), (252, 252, 252)):
        yield f"{shape}", lambda s=shape: measure(s)


def checks(run: Run) -> Steps:
    """After how many iterations a solve checks convergence, and waits for the device."""
    side = 12 if run.quick else 500

    def measure(name: str) -> None:
        A = poisson((side, side), run.device)
        b = normal((A.shape[0],), F64, run.device, False)
        solver = getattr(ls.solvers, name.split()[0])
        M = ls.preconditioners.IC(A) if name.endswith("IC") else None

        def every(iterations: int | None) -> Callable[[], Tensor]:
            def call() -> Tensor:
                with ls.set_options(check_every=iterations):
                    return solver(A, b, M=M, rtol=1e-6, maxiter=5000).x

            return call

        found = {f"every {k}": every(k) for k in (1, 4, 16, 64)}
        row = run.compare("checks", f"{name}, n = {side * side}", F64, found | {"as is": every(None)})
        row["as is/best"] = row["as is"] / min(row[k] for k in found)
        run.target(row, "as is/best", 1.1, most=True)

    for name in ("cg", "cg with IC(0)", "bicgstab", "minres"):
        yield name, lambda name=name: measure(name)


def training(run: Run) -> Steps:
    """A step of training on the device and on the CPU."""

    def measure(Recipe: type, Settings: type, shape: list[int] | int, vectors: int, **options: Any) -> None:
        def step(device: str) -> Callable[[], object]:
            return of_recipe(made(Recipe, Settings, shape, test_vectors=vectors, device=device, **options))()

        steps = {"device": step(str(run.device)), "cpu": step("cpu")}
        n = math.prod(shape) if isinstance(shape, list) else shape
        row = run.compare("training", f"{Settings.__name__}, n = {n}, {vectors} vectors", F64, steps)
        row["speed-up"] = row["cpu"] / row["device"]

    sides = (8,) if run.quick else (64, 256, 512)
    for side in sides:
        yield (
            f"pcg, {side}^2",
            lambda s=side: measure(PcgRecipe, PcgSettings, [s, s], 8, guard=0.0),
        )
    for n in (64,) if run.quick else (32_768, 1_000_000, 10_000_000):
        yield f"jacobi, {n}", lambda n=n: measure(JacobiRecipe, JacobiSettings, n, 4)
