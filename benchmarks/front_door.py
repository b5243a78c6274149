"""`ls.solve` against each method that it may choose, on 66 matrices of 48 to 100,000 rows.

CPU time on one thread of one solve with a matrix that nothing is known of yet, to 1e-5 and to 1e-8, set-up of M
included; all methods in turn, several times. A method that does not converge counts as infinitely slow. The
target: at most 3 times the best method, which counts as 1 ms where it takes less.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

import learnsolve as ls
from benchmarks.harness import OURS, Run, figure
from benchmarks.matrices import GALLERY, _rows, banded, power_law
from learnsolve.solvers._choices import preconditioner
from learnsolve.solvers._direct_cost import direct_cost
from learnsolve.solvers._null_space import sums_to_zero

FLOOR = 1e-3  # seconds
LONG = 2e11  # flops of a direct solve, 20 s: left out beyond
Make = Callable[[], sp.csr_array]
SYMMETRIC = ("cg MIC0", "cg IC0", "cg Jacobi", "cg", "minres")
GENERAL = tuple(f"{method}{M}" for method in ("bicgstab", "gmres") for M in (" ILU0", " Jacobi", ""))


def complex_as_real(S: sp.csr_array) -> sp.csr_array:
    return sp.csr_array(sp.block_array([[S.real, -S.imag], [S.imag, S.real]]))


def helmholtz(shape: tuple[int, ...], kh: float, damping: float = 0.0) -> sp.csr_array:
    """-Laplace - (1 + i damping) kh^2, times h^2: complex as a real 2 x 2 block if there is damping."""
    L = ls.problems.poisson(shape).to_scipy()
    S = sp.csr_array(L - (1 + 1j * damping) * kh**2 * sp.eye_array(L.shape[0]))
    return complex_as_real(S) if damping else sp.csr_array(S.real)


def convection(shape: tuple[int, ...], peclet: float, scheme: str = "upwind") -> sp.csr_array:
    wind = torch.ones((len(shape), *shape), dtype=torch.float64)
    wind[0] *= 0.5
    return ls.problems.convection_diffusion(wind, peclet, scheme=scheme).to_scipy()


def circulating(side: int, peclet: float) -> sp.csr_array:
    x = torch.linspace(-1, 1, side, dtype=torch.float64)
    X, Y = torch.meshgrid(x, x, indexing="ij")
    wind = torch.stack((2 * Y * (1 - X**2), -2 * X * (1 - Y**2)))
    return ls.problems.convection_diffusion(wind, peclet).to_scipy()


def jumps(shape: tuple[int, ...], contrast: float) -> sp.csr_array:
    kappa = torch.exp(math.log(contrast) * torch.rand(shape, dtype=torch.float64).round())
    return ls.problems.diffusion(kappa).to_scipy()


def laplacian(S: sp.csr_array, shift: float = 0.0) -> sp.csr_array:
    W = abs(sp.csr_array(S + S.T))
    W.setdiag(0)
    W.eliminate_zeros()
    return sp.csr_array(sp.diags_array(np.asarray(W.sum(1)).ravel() + shift) - W)


def stokes(side: int, viscosity: float = 1.0, penalty: float = 0.0) -> sp.csr_array:
    """Marker-and-cell Stokes on a unit square, one pressure fixed by a small penalty."""
    D = sp.diags_array([np.ones(side), -np.ones(side - 1)], offsets=[0, -1], shape=(side, side - 1))
    eye, inner = sp.eye_array(side), sp.eye_array(side - 1)
    T = lambda n: sp.diags_array([-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1])  # noqa: E731
    L = sp.kron(T(side - 1), eye) + sp.kron(inner, T(side))
    R = sp.kron(eye, T(side - 1)) + sp.kron(T(side), inner)
    B = sp.hstack([sp.kron(D, eye), sp.kron(eye, D)])
    C = sp.eye_array(side**2) * (penalty or 1e-6)
    return sp.csr_array(sp.block_array([[viscosity * sp.block_diag([L, R]), B.T], [B, -C]]))


def optimisation(n: int, m: int, seed: int = 0) -> sp.csr_array:
    """[[H, G^T], [G, 0]] of a quadratic programme with random sparse constraints."""
    rng = np.random.default_rng(seed)
    G = sp.random_array((m, n), density=3 / n, rng=rng) + sp.eye_array(m, n)
    H = sp.diags_array(rng.random(n) + 0.1)
    return sp.csr_array(sp.block_array([[H, G.T], [G, None]]))


def random_dominant(n: int, length: int, margin: float) -> sp.csr_array:
    S = _rows(np.full(n, length), np.random.default_rng(n))
    return sp.csr_array(S + sp.diags_array((1 + margin) * np.asarray(abs(S).sum(1)).ravel()))


def random_sparse(n: int, length: int) -> sp.csr_array:
    S = _rows(np.full(n, length), np.random.default_rng(n))
    return sp.csr_array(S + 2 * math.sqrt(length) * sp.eye_array(n))


def shifted_to_definite(n: int, length: int) -> sp.csr_array:
    S = _rows(np.full(n, length), np.random.default_rng(n + 1))
    S = S + S.T
    return sp.csr_array(S + 3 * math.sqrt(length) * sp.eye_array(n))


def cases(folder: Path | None) -> Iterator[tuple[str, Make]]:
    p = ls.problems
    P = lambda *shape, **k: lambda: p.poisson(shape, **k).to_scipy()  # noqa: E731
    for name in GALLERY:
        yield f"pyamg {name}", lambda name=name: p.gallery(name).to_scipy()
    yield "Poisson 10x10", P(10, 10)
    yield "Poisson 40x40", P(40, 40)
    yield "Poisson 100x100", P(100, 100)
    yield "Poisson 300x300", P(300, 300)
    yield "Poisson 20x5000", P(20, 5000)
    yield "Poisson 100000", P(100_000)
    yield "Poisson 8x8x8", P(8, 8, 8)
    yield "Poisson 20x20x20", P(20, 20, 20)
    yield "Poisson 46x46x46", P(46, 46, 46)
    yield "Poisson q1 150x150", P(150, 150, stencil="q1")
    yield "anisotropic 1e-3 150x150", lambda: p.anisotropic((150, 150), 1e-3, 0.5).to_scipy()
    yield "jumps 1e4 200x200", lambda: jumps((200, 200), 1e4)
    yield "jumps 1e6 25x25x25", lambda: jumps((25, 25, 25), 1e6)
    yield "P1 mesh 20000", lambda: p.p1_stiffness(p.random_mesh(20_000, 0)).to_scipy()
    yield "biharmonic 70x70", lambda: sp.csr_array(P(70, 70)() @ P(70, 70)())
    yield "random SPD 3000", lambda: shifted_to_definite(3_000, 3)
    yield "random SPD 50000", lambda: shifted_to_definite(50_000, 5)
    yield "indefinite shift 2D 60x60", lambda: helmholtz((60, 60), 0.3)
    yield "indefinite shift 2D 200x200", lambda: helmholtz((200, 200), 0.3)
    yield "indefinite shift 3D 20x20x20", lambda: helmholtz((20, 20, 20), 0.5)
    yield "indefinite shift 3D 28x28x28", lambda: helmholtz((28, 28, 28), 0.5)
    yield (
        "random indefinite 4000",
        lambda: sp.csr_array(
            shifted_to_definite(4_000, 3) @ sp.diags_array(np.ones(4_000)) - 12 * sp.eye_array(4_000)
        ),
    )
    yield "complex Helmholtz 20x20", lambda: helmholtz((20, 20), 0.5, 0.1)
    yield "complex Helmholtz 60x60", lambda: helmholtz((60, 60), 0.5, 0.05)
    yield "complex Helmholtz 150x150", lambda: helmholtz((150, 150), 0.5, 0.02)
    yield "complex Helmholtz 12x12x12", lambda: helmholtz((12, 12, 12), 0.6, 0.1)
    yield "complex Helmholtz 20x20x20", lambda: helmholtz((20, 20, 20), 0.6, 0.1)
    yield "complex Helmholtz damped 200x200", lambda: helmholtz((200, 200), 0.3, 1.0)
    yield "convection 15x15", lambda: convection((15, 15), 1.0)
    yield "convection 60x60", lambda: convection((60, 60), 1.0)
    yield "convection 100x100 central", lambda: convection((100, 100), 1.5, "central")
    yield "convection 300x300", lambda: convection((300, 300), 0.1)
    yield "convection strong 300x300", lambda: convection((300, 300), 20.0)
    yield "convection central 200x200 unstable", lambda: convection((200, 200), 8.0, "central")
    yield "circulating 200x200", lambda: circulating(200, 5.0)
    yield "convection 20x20x20", lambda: convection((20, 20, 20), 1.0)
    yield "convection 40x40x40", lambda: convection((40, 40, 40), 1.0)
    yield (
        "convection-reaction 100x100",
        lambda: sp.csr_array(convection((100, 100), 1.0) - 0.05 * sp.eye_array(10_000)),
    )
    yield "Laplacian Delaunay 5000", lambda: laplacian(p.p1_stiffness(p.random_mesh(5_000, 1)).to_scipy())
    yield "Laplacian power law 20000", lambda: laplacian(power_law(20_000))
    yield "Laplacian shifted power law 20000", lambda: laplacian(power_law(20_000), 0.01)
    yield "Laplacian regular 10000", lambda: laplacian(_rows(np.full(10_000, 3), np.random.default_rng(5)))
    yield "Laplacian periodic 150x150", P(150, 150, boundary="periodic")
    yield "Stokes 16x16", lambda: stokes(16)
    yield "Stokes 50x50", lambda: stokes(50)
    yield "Stokes 130x130", lambda: stokes(130)
    yield "optimisation 3000 + 1000", lambda: optimisation(3_000, 1_000)
    yield "optimisation 40000 + 10000", lambda: optimisation(40_000, 10_000)
    yield "random dominant 1000", lambda: random_dominant(1_000, 6, 0.1)
    yield "random dominant 20000", lambda: random_dominant(20_000, 6, 0.1)
    yield "random dominant 100000", lambda: random_dominant(100_000, 6, 0.1)
    yield "random 3000", lambda: random_sparse(3_000, 4)
    yield "power law dominant 20000", lambda: laplacian(power_law(20_000), 1.0)
    yield "band of 4, 50000", lambda: sp.csr_array(banded(50_000, 4) + 2 * sp.eye_array(50_000))
    if folder:
        for path in sorted(folder.glob("**/*.mtx")):
            S = p.matrix_market(str(path)).to_scipy()
            if S.shape[0] == S.shape[1]:  # one without a diagonal is a graph
                graph = not S.diagonal().any()
                yield path.stem, lambda S=S, graph=graph: laplacian(S, 1e-3) if graph else S


def measure(run: Run, args: argparse.Namespace) -> list[str]:
    everything = list(cases(args.matrices))
    for name, make in everything[6:7] if run.quick else everything:
        torch.manual_seed(0)
        S = sp.csr_array(make())
        S.sort_indices()
        with run.attempt(name), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for rtol in (1e-5, 1e-8):
                one(run, name, S, rtol)
    ratios = sorted((row["of best"], row["case"], row["way"]) for row in run.rows)
    worst = ", ".join(f"{ratio:.2f} ({case}, {way})" for ratio, case, way in ratios[-3:][::-1])
    share = {limit: sum(r <= limit for r, *_ in ratios) for limit in (1.2, 1.5, 2, 2.5, 3)}
    text = ", ".join(f"{limit:g} in {count}" for limit, count in share.items())
    return [f"`ls.solve` / best method, of {len(ratios)} solves: at most {text}. The largest: {worst}."]


def one(run: Run, name: str, S: sp.csr_array, rtol: float) -> None:
    A = ls.CSR.from_scipy(S)
    b = A @ torch.from_numpy(np.random.default_rng(1).standard_normal(S.shape[0]))
    constants = sums_to_zero(A)
    names = list(SYMMETRIC if A.is_symmetric() else GENERAL)
    if direct_cost(A.pattern) <= LONG and not constants:
        names.insert(0, "direct")
    choice = ls.solve(A, b, rtol=rtol).choice
    cells: dict[str, dict[str, Any]] = {}
    rounds: dict[str, list[list[float]]] = {OURS: []}
    best = math.inf
    for candidate in names:
        # A product takes more than a quarter of a nanosecond an entry: 10 times the best time and more.
        limit = 10 * A.shape[0] if best == math.inf else int(200 + 40 * best / (1e-9 * A.nnz))
        task = method(candidate, rtol, min(limit, 10 * A.shape[0]), constants)
        seconds, converged = timed(task, S, b)
        if not converged:
            cells[candidate] = {"failed": "no"}
        else:
            rounds[candidate], best = [], min(best, seconds)
    tasks = {OURS: lambda A, b: ls.solve(A, b, rtol=rtol).converged}
    tasks |= {
        candidate: method(candidate, rtol, 10 * A.shape[0], constants)
        for candidate in rounds
        if candidate != OURS
    }
    for _ in range(min(run.rounds, 3)):
        for who, task in tasks.items():
            if not rounds[who] or statistics.median(rounds[who][0]) < 5 * best:
                rounds[who].append(repeated(task, S, b))
    cells |= {who: figure(times) for who, times in rounds.items()}
    methods = [who for who in rounds if who != OURS]
    best_method = min(methods, key=lambda who: cells[who]["median"])
    pairs = zip(cells[OURS]["rounds"], cells[best_method]["rounds"], strict=True)
    ratio = statistics.median(ours / max(theirs, FLOOR) for ours, theirs in pairs)
    row = {"section": run.section, "case": name, "way": f"to {rtol:g}", "dtype": "float64", "threads": 1}
    row |= {"rows": A.shape[0], "nnz": A.nnz, "best": best_method, "of best": ratio, "choice": choice}
    run.rows.append(row | {"cells": {who: cells[who] for who in (OURS, *names)}})
    print(f"  {ratio:5.2f} of {best_method}: {name}, {rtol:g}: {choice}", flush=True)


def method(name: str, rtol: float, maxiter: int, constants: bool) -> Callable[[ls.CSR, Tensor], bool]:
    if name == "direct":
        return lambda A, b: ls.solve(A, b, rtol=rtol, method="direct").converged
    solver, M = name.split() if " " in name else (name, "no M")
    keywords: dict[str, Any] = {"rtol": rtol, "maxiter": maxiter}
    keywords |= {"null_space": "constants"} if constants else {}

    def solve(A: ls.CSR, b: Tensor) -> bool:
        made = preconditioner(M, A, None)[0]
        return getattr(ls.solvers, solver)(A, b, M=made, **keywords).converged

    return solve


def timed(task: Callable[[ls.CSR, Tensor], bool], S: sp.csr_array, b: Tensor) -> tuple[float, bool]:
    """CPU seconds of a solve with a fresh pattern, which has no plans, and whether it converged."""
    A = ls.CSR.from_scipy(S)
    start = time.process_time()
    try:
        converged = task(A, b)
    except ValueError:  # a zero pivot or diagonal
        converged = False
    return time.process_time() - start, converged


def repeated(task: Callable[[ls.CSR, Tensor], bool], S: sp.csr_array, b: Tensor) -> list[float]:
    times: list[float] = []
    while sum(times) < 0.01:
        times.append(timed(task, S, b)[0])
    return times
