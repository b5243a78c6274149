"""Iterative solves with preconditioners against SciPy, pyamg, torch-sla and torchsparsegradutils.

One right-hand side, one thread, rtol 1e-6 of ||b||; "wrong by" is a residual of ten times that and more. M is
ours in every library ("SciPy + pyamg's AMG": its own cycle). "solve + gradient": by A and b. Methods beyond
cg: time of an iteration, 2D Poisson, with a convection term where the method is for that.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch

import learnsolve as ls
from benchmarks import peers
from benchmarks.harness import OURS, Run, Task

RTOL, LIMIT = 1e-6, 1e-5
ITERATIONS = 5_000
COMPARED = ("none", "Jacobi", "IC", "AMG")
ALONE = {  # preconditioners that other libraries do not have, on the grids: name -> options
    "BlockJacobi": {"block_size": 4},
    "SSOR": {"omega": 1.0},
    "MIC": {},
    "Chebyshev": {"degree": 3},
    "Neumann": {"degree": 2},
    "AdditiveSchwarz": {},
}
GALLERY = ("airfoil", "bar", "knot", "local_disc_galerkin_diffusion", "unit_cube", "unit_square")


def matrices(run: Run) -> Iterator[tuple[str, ls.CSR]]:
    """Symmetric positive definite: grids, and those of pyamg's examples that are; or semidefinite with
    constants as null vectors."""
    poisson, anisotropic = ls.problems.poisson, ls.problems.anisotropic
    if run.quick:
        yield "2D Poisson 10^2", poisson((10, 10))
    else:
        yield "2D Poisson 100^2", poisson((100, 100))
        yield "2D Poisson 300^2", poisson((300, 300))
        yield "3D Poisson 30^3", poisson((30, 30, 30))
        yield "anisotropic 100^2", anisotropic((100, 100), 0.01, np.pi / 6)
    for name in ("unit_cube",) if run.quick else GALLERY:
        try:
            A = ls.problems.pyamg_gallery(name)
        except (ImportError, ValueError) as error:
            run.note(f"{name}: left out, {error}")
            continue
        S = A.to_scipy()
        symmetric = ls.CSR.from_scipy(sp.csr_array(0.5 * (S + S.T)))
        if why := what_is_wrong(S, symmetric):
            run.note(f"{name}: left out of the solvers, {why}")
        else:
            yield f"pyamg {name}", symmetric


def what_is_wrong(S: Any, symmetric: ls.CSR) -> str:
    """Why A is not suitable for cg; empty if it is."""
    if abs(S - S.T).max() > 1e-10 * abs(S).max():
        return "not symmetric"
    if S.diagonal().min() <= 0:
        return "a diagonal entry is not positive"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an upper bound is enough
        found = ls.analysis.extreme_eigenvalues(symmetric, ls.preconditioners.Jacobi(symmetric), rtol=1e-2)
    low, high = float(found.smallest), float(found.largest)
    if null_space_of(symmetric) and low > -1e-10 * high:
        return ""
    return "" if low > 1e-10 * high else f"eigenvalues of D^-1 A from {low:.2g} to {high:.2g}"


def null_space_of(A: ls.CSR) -> str | None:
    """Neumann problems: their rows sum to zero."""
    S = A.to_scipy()
    return "constants" if (abs(S.sum(1)) <= 1e-12 * abs(S).sum(1)).all() else None


def right_hand_side(A: ls.CSR) -> np.ndarray:
    """With a solution, for those that take no null space."""
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    return b - b.mean() if null_space_of(A) else b


def measure(run: Run, args: argparse.Namespace) -> None:
    with run.attempt("methods"):
        methods(run)
    for name, A in matrices(run):
        grid = not name.startswith("pyamg")
        for label in COMPARED + (tuple(ALONE) if grid else ()):
            with run.attempt(f"{name}, {label}"):
                one(run, name, A, label)
        with run.attempt(f"{name}, gradients"):
            gradients(run, name, A)


def counted(solve: Callable, *args: Any, **options: Any) -> int:
    count = 0

    def callback(_: Any) -> None:
        nonlocal count
        count += 1

    solve(*args, callback=callback, **options)
    return count


def residual(S: Any, b: np.ndarray) -> Callable[[list[Any]], float]:
    """Of the last result: x, or the gradient for b, which solves a system of its own."""
    return lambda found: float(np.linalg.norm(b - S @ found[-1].reshape(-1)) / np.linalg.norm(b))


def one(run: Run, name: str, A: ls.CSR, label: str) -> None:
    make = getattr(ls.preconditioners, label, None)
    options = ALONE.get(label, {})
    M = None if make is None else make(A, **options)
    S, b, null_space = peers.csr(A.to_scipy()), right_hand_side(A), null_space_of(A)
    t = torch.from_numpy(b)
    ours = ls.solvers.cg(A, t, rtol=RTOL, maxiter=ITERATIONS, M=M, null_space=null_space)
    facts: dict[str, Any] = {"n": A.shape[0], "iterations": ours.iterations}
    if not ours.converged:
        facts["status"] = ours.status.name
    columns: dict[str, Callable[[], Task]] = {
        OURS: lambda: lambda: ls.solvers.cg(A, t, rtol=RTOL, maxiter=ITERATIONS, M=M, null_space=null_space).x
    }
    if label in COMPARED:
        operator = None if M is None else M.to_scipy_linear_operator()
        rest = {"M": operator, "maxiter": ITERATIONS}
        columns["SciPy"] = lambda: lambda: spla.cg(S, b, rtol=RTOL, **rest)[0]
        facts["SciPy's iterations"] = counted(spla.cg, S, b, rtol=RTOL, **rest)
        if (krylov := peers.peer("pyamg.krylov")) is not None:
            # "rr": ||r|| <= tol ||b||, as ours
            columns["pyamg"] = lambda: lambda: krylov.cg(S, b, tol=RTOL, criteria="rr", **rest)[0]
    if label == "none":
        columns |= torch_peers(A, b)
    if label == "AMG" and (pyamg := peers.peer("pyamg")) is not None:
        set_up = lambda: pyamg.smoothed_aggregation_solver(sp.csr_matrix(S))  # noqa: E731
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cycle = set_up().aspreconditioner()
        columns["SciPy + pyamg's AMG"] = lambda: (
            lambda: spla.cg(S, b, rtol=RTOL, maxiter=ITERATIONS, M=cycle)[0]
        )
        facts["iterations with pyamg's AMG"] = counted(spla.cg, S, b, rtol=RTOL, maxiter=ITERATIONS, M=cycle)
    case = f"cg, M = {label}, {name}"
    run.row(case, columns, way="solve", check=residual(S, b), tolerance=LIMIT, **facts)
    if make is not None:
        setups: dict[str, Callable[[], Task]] = {OURS: lambda: lambda: make(A, **options)(t)}
        if label == "AMG" and peers.peer("pyamg") is not None:
            setups["pyamg"] = lambda: lambda: set_up().aspreconditioner() @ b
        run.row(case, setups, way="set-up and one application", check=lambda _: 0.0, n=A.shape[0])


def torch_peers(
    A: ls.CSR, b: np.ndarray, cotangent: torch.Tensor | None = None
) -> dict[str, Callable[[], Task]]:
    """The cg of torch-sla and torchsparsegradutils, each with its own stopping test; with a `cotangent` the
    gradient too."""
    rows, columns = A.pattern.row_indices.long(), A.pattern.col_indices.long()
    options = {"backend": "pytorch", "method": "cg", "tol": RTOL, "atol": 0.0, "maxiter": ITERATIONS}

    def leaf(t: torch.Tensor) -> torch.Tensor:
        return t.detach().clone().requires_grad_(cotangent is not None)

    def finish(solve: Callable, *inputs: torch.Tensor) -> Task:
        if cotangent is None:
            return solve
        return lambda: list(torch.autograd.grad(solve().flatten() @ cotangent, inputs))

    def sla() -> Task:
        v, r = leaf(A.values), leaf(torch.from_numpy(b))
        return finish(lambda: peers.peer("torch_sla").spsolve(v, rows, columns, A.shape, r, **options), v, r)

    def gradutils() -> Task:
        library, utils = peers.peer("torchsparsegradutils"), peers.peer("torchsparsegradutils.utils")
        T, r = leaf(A.to_torch()), leaf(torch.from_numpy(b).unsqueeze(1))

        def cg(T: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
            return utils.linear_cg(T.matmul, r, tolerance=RTOL, max_iter=ITERATIONS)

        solve = (
            (lambda: library.sparse_generic_solve(T, r, solve=cg))
            if cotangent is not None
            else (lambda: cg(T, r))
        )
        return finish(solve, T, r)

    found = {"torch-sla": sla, "torchsparsegradutils": gradutils}
    return {k: f for k, f in found.items() if peers.peer(k.replace("-", "_")) is not None}


def gradients(run: Run, name: str, A: ls.CSR) -> None:
    """By A's values and b, of sum(x), or <b, x> where constants are null vectors; the gradient for b solves
    A g = 1, or A g = b."""
    S, n, b, null_space = peers.csr(A.to_scipy()), A.shape[0], right_hand_side(A), null_space_of(A)
    c = b if null_space else np.ones(n)
    cotangent = torch.from_numpy(c)
    M = A.with_values(A.values.detach().clone()).requires_grad_()
    t = torch.from_numpy(b).requires_grad_()

    def ours() -> list[torch.Tensor]:
        x = ls.solvers.cg(M, t, rtol=RTOL, maxiter=ITERATIONS, null_space=null_space).x
        return list(torch.autograd.grad(x @ cotangent, (M.values, t)))

    columns = {OURS: lambda: ours} | torch_peers(A, b, cotangent)
    check = residual(S, c)
    run.row(f"cg, M = none, {name}", columns, way="solve + gradient", check=check, tolerance=LIMIT, n=n)


def methods(run: Run) -> None:
    for side in (8,) if run.quick else (8, 30, 100):
        n = side * side
        grid = ls.problems.poisson((side, side)).to_scipy()
        convection = 0.5 * sp.diags_array([-np.ones(n - 1), np.ones(n - 1)], offsets=[-1, 1])
        for method in ("cg", "minres", "bicgstab", "gmres"):
            S = peers.csr(grid if method in ("cg", "minres") else grid + convection)
            A, b = ls.CSR.from_scipy(S), np.random.default_rng(0).standard_normal(n)
            t, theirs, ours = torch.from_numpy(b), getattr(spla, method), getattr(ls.solvers, method)
            more = {"callback_type": "pr_norm"} if method == "gmres" else {}
            counts = {
                OURS: ours(A, t, rtol=RTOL).iterations,
                "SciPy": counted(theirs, S, b, rtol=RTOL, **more),
            }
            columns = {
                OURS: lambda ours=ours, A=A, t=t: lambda: ours(A, t, rtol=RTOL).x,
                "SciPy": lambda theirs=theirs, S=S, b=b: lambda: theirs(S, b, rtol=RTOL)[0],
            }
            # SciPy's minres stops by a test of its own.
            limit = 1e-2 if method == "minres" else LIMIT
            facts = {"n": n, "iterations": counts[OURS], "SciPy's iterations": counts["SciPy"]}
            case = f"{method}, an iteration, n = {n}"
            check = residual(S, b)
            run.row(case, columns, way="solve", check=check, tolerance=limit, per=counts.__getitem__, **facts)
