"""Preconditioned and direct solves of one system in every library, behind one interface.

    solve = contestant.start(S, **setting)(values)      S: SciPy CSR; values: on its pattern, again and again
    X, iterations = solve(B)                            B: (n,) or (n, k)

`start` and the first call are the first set-up; a later call with other values is a warm one. Symmetric
systems are solved by conjugate gradients, others by bicgstab, from zero to ||r|| <= RTOL ||b||.

Peers are never required. `pip install pyamg pypardiso apxchol`, and what compiles: `pip install
--no-build-isolation 'scikit-sparse<0.5' pyamgcl` (cython; pybind11; Debian: libsuitesparse-dev,
libopenblas-dev; libboost-dev; scikit-sparse 0.5 needs SuiteSparse 7, Debian 13); hypre and gamg:
`scripts/petsc.sh python -m ...`.
"""

from __future__ import annotations

import gc
import itertools
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch

import learnsolve as ls
from benchmarks.peers import peer
from learnsolve.solvers.core.operators import find_pcg_form

P = ls.preconditioners
RTOL, MAXITER = 1e-8, 20_000
WRONG = 2 * RTOL  # of the true residual; recurrences drift a little
Solve = Callable[[np.ndarray], tuple[np.ndarray, int]]
Start = Callable[..., Callable[[np.ndarray], Solve]]


@dataclass(frozen=True)
class Contestant:
    """One method: how it starts, settings to tune over (the first is its default), what it needs."""

    start: Start
    settings: tuple[dict[str, Any], ...] = ({},)
    module: str = "learnsolve"
    install: str = ""
    symmetric: bool | None = None  # systems that it takes; None: all

    @property
    def absent(self) -> str:
        if peer(self.module) is None:
            return f"not installed: {self.install}"
        maps = Path("/proc/self/maps")
        if self.module == "sksparse.cholmod" and maps.exists() and "/blas/libblas.so" in maps.read_text():
            return "uses the reference BLAS, which takes 2.5 times as long: apt-get install libopenblas-dev"
        return ""

    def takes(self, symmetric: bool) -> bool:
        return self.symmetric in (None, symmetric)


def prepare(threads: int) -> None:
    """A process that measures: plans of many large patterns are not to displace one another, memory is
    counted without a walk through all modules, and solves that fail are rows."""
    torch.set_num_threads(threads)
    gc.freeze()
    warnings.simplefilter("ignore")
    ls.set_options(plan_cache_bytes=2**31)


def is_symmetric(S: Any) -> bool:
    return abs(S - S.T).max() <= 1e-12 * abs(S).max()


def ours(make: Callable[..., Any]) -> Start:
    """make(A, **setting) -> M"""

    def start(S: Any, symmetric: bool, **setting: Any) -> Callable[[np.ndarray], Solve]:
        pattern = ls.SparsityPattern(torch.from_numpy(S.indptr), torch.from_numpy(S.indices), S.shape)
        method = ls.solvers.cg if symmetric else ls.solvers.bicgstab

        def set_up(values: np.ndarray) -> Solve:
            A = ls.CSR(torch.from_numpy(values), pattern)
            with torch.no_grad():
                M = make(A, **setting)
                find_pcg_form(M)

            def solve(B: np.ndarray) -> tuple[np.ndarray, int]:
                with torch.no_grad():
                    solution = method(A, torch.from_numpy(B), rtol=RTOL, maxiter=MAXITER, M=M)
                return solution.x.numpy(), int(solution.iterations)

            return solve

        return set_up

    return start


def flipped(S: Any, axis: int) -> np.ndarray:
    """Unknowns of a row-major grid with an axis, counted from the last, backward: its strides are those at
    which neighbors are coupled, up to its ends. Of other matrices: all backward."""
    n, stride, shape = S.shape[0], 1, []
    pattern = sp.csr_matrix((np.ones(S.nnz), S.indices, S.indptr), S.shape)
    while stride < n:
        ends = np.flatnonzero(pattern.diagonal(stride) == 0)
        shape.append((int(ends[0]) if len(ends) else n - stride) // stride + 1)
        if shape[-1] == 1:  # the first unknown has no neighbor there: no grid
            break
        stride *= shape[-1]
    order = np.arange(n)
    if stride != n or axis > len(shape):
        return order[::-1]
    return np.flip(order.reshape(shape[::-1]), -axis).ravel()


ORDERS: dict[str, Callable[[Any], np.ndarray]] = {
    "reversed": lambda S: np.arange(S.shape[0])[::-1],
    "flip": lambda S: flipped(S, 1),
    "flip 2": lambda S: flipped(S, 2),
    "rcm": lambda S: ls.ordering.reverse_cuthill_mckee(ls.CSR.from_scipy(S)).numpy(),
}


def ordered(start: Start) -> Start:
    """The same with the unknowns in another order, if the setting has one. A factorization without all
    fill-in depends on it: of a full tensor on a grid, on which way each axis runs."""

    def begin(S: Any, symmetric: bool, order: str = "", **setting: Any) -> Callable[[np.ndarray], Solve]:
        if not order:
            return start(S, symmetric, **setting)
        rows = ORDERS[order](S)
        places = sp.csr_matrix((np.arange(S.nnz), S.indices, S.indptr), S.shape)[rows][:, rows]
        places.sort_indices()
        T = sp.csr_matrix((S.data[places.data], places.indices, places.indptr), S.shape)
        inner = start(T, symmetric, **setting)

        def set_up(values: np.ndarray) -> Solve:
            solve = inner(values[places.data])

            def permuted(B: np.ndarray) -> tuple[np.ndarray, int]:
                found, iterations = solve(B[rows])
                X = np.empty_like(found)
                X[rows] = found
                return X, iterations

            return permuted

        return set_up

    return begin


def by_columns(solve: Callable[[np.ndarray], tuple[np.ndarray, int]]) -> Solve:
    """For a library that takes one right-hand side: iterations are the most of all."""

    def every(B: np.ndarray) -> tuple[np.ndarray, int]:
        if B.ndim == 1:
            return solve(np.ascontiguousarray(B))
        columns = [solve(np.ascontiguousarray(b)) for b in B.T]
        return np.stack([x for x, _ in columns], 1), max(count for _, count in columns)

    return every


def pyamg(method: str) -> Start:
    def start(S: Any, symmetric: bool, **setting: Any) -> Callable[[np.ndarray], Solve]:
        make, krylov = getattr(peer("pyamg"), f"{method}_solver"), spla.cg if symmetric else spla.bicgstab

        def set_up(values: np.ndarray) -> Solve:
            A = sp.csr_matrix((values, S.indices, S.indptr), S.shape)
            M = make(A, **setting).aspreconditioner()

            def solve(b: np.ndarray) -> tuple[np.ndarray, int]:
                count: list[None] = []
                options: dict[str, Any] = {"rtol": RTOL, "atol": 0.0, "maxiter": MAXITER, "M": M}
                return krylov(A, b, callback=lambda _: count.append(None), **options)[0], len(count)

            return by_columns(solve)

        return set_up

    return start


def amgcl(coarsening: str) -> Start:
    def start(S: Any, symmetric: bool, relax: str = "spai0", **setting: Any) -> Callable[[np.ndarray], Solve]:
        library = peer("pyamgcl")
        options = {"coarsening.type": coarsening, "relax.type": relax} | setting
        krylov = {"type": "cg" if symmetric else "bicgstab", "tol": RTOL, "maxiter": MAXITER}

        def set_up(values: np.ndarray) -> Solve:
            A = sp.csr_matrix((values, S.indices, S.indptr), S.shape)
            solver = library.solver(library.amg(A, options), krylov)
            return by_columns(lambda b: (np.asarray(solver(b)), solver.iters))

        return set_up

    return start


def apxchol(S: Any, symmetric: bool, **setting: Any) -> Callable[[np.ndarray], Solve]:
    factorize = peer("apxchol").factorize

    def set_up(values: np.ndarray) -> Solve:
        F = factorize(sp.csr_matrix((values, S.indices, S.indptr), S.shape), keep_factor=False, **setting)

        def solve(b: np.ndarray) -> tuple[np.ndarray, int]:
            found = F.solve(b, rtol=RTOL, maxiter=MAXITER)
            return found.x, found.iters

        return by_columns(solve)

    return set_up


_count = itertools.count()


def petsc(pc: str) -> Start:
    def start(S: Any, symmetric: bool, **setting: Any) -> Callable[[np.ndarray], Solve]:
        PETSc = peer("petsc4py.PETSc")
        A = PETSc.Mat().createAIJ(S.shape, csr=(S.indptr, S.indices, S.data), comm=PETSc.COMM_SELF)
        ksp = PETSc.KSP().create(comm=PETSc.COMM_SELF)
        ksp.setOptionsPrefix(f"solver{next(_count)}_")  # levels of a hierarchy read options in their set-up
        options = PETSc.Options(ksp.getOptionsPrefix())
        for name, value in setting.items():
            options[name] = value
        ksp.setType("cg" if symmetric else "bcgs")
        ksp.getPC().setType(pc)
        # bcgs has its norm from the left side of the preconditioned system unless M stands on the right.
        ksp.setPCSide(PETSc.PC.Side.LEFT if symmetric else PETSc.PC.Side.RIGHT)
        ksp.setNormType(PETSc.KSP.NormType.UNPRECONDITIONED)
        ksp.setTolerances(rtol=RTOL, atol=0.0, max_it=MAXITER)
        ksp.setFromOptions()
        x, b = A.createVecs()

        def set_up(values: np.ndarray) -> Solve:
            A.setValuesCSR(S.indptr, S.indices, values)
            A.assemble()
            ksp.setOperators(A)
            ksp.setUp()

            def solve(column: np.ndarray) -> tuple[np.ndarray, int]:
                b.setArray(column)
                ksp.solve(b, x)
                return x.getArray().copy(), ksp.getIterationNumber()

            return by_columns(solve)

        return set_up

    return start


def cholmod(S: Any, symmetric: bool) -> Callable[[np.ndarray], Solve]:
    library = peer("sksparse.cholmod")
    C = sp.csc_matrix(S)  # the order of S.data too: symmetric patterns
    newer = hasattr(library, "CholeskyFactor")  # scikit-sparse 0.5
    factor = library.CholeskyFactor(C) if newer else library.analyze(C)
    factorize, solve = (factor.factorize, factor.solve) if newer else (factor.cholesky_inplace, factor)

    def set_up(values: np.ndarray) -> Solve:
        C.data = values  # A = A^T: columns are rows
        factorize(C)
        return lambda B: (solve(B), 0)

    return set_up


def pardiso(S: Any, symmetric: bool) -> Callable[[np.ndarray], Solve]:
    solver = peer("pypardiso").PyPardisoSolver(mtype=2 if symmetric else 11)
    upper = S.indices >= np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)) if symmetric else slice(None)
    indptr = sp.csr_matrix(sp.triu(S)).indptr if symmetric else S.indptr
    analyzed = False

    def set_up(values: np.ndarray) -> Solve:
        nonlocal analyzed
        A = sp.csr_matrix((values[upper], S.indices[upper], indptr), S.shape)
        b = np.zeros(S.shape[0])
        for phase in (22,) if analyzed else (11, 22):
            solver.set_phase(phase)
            solver._call_pardiso(A, b)
        analyzed = True

        def solve(B: np.ndarray, _: Any = set_up) -> tuple[np.ndarray, int]:  # which owns the factors
            solver.set_phase(33)
            return solver._call_pardiso(A, np.asfortranarray(B)), 0

        return solve

    weakref.finalize(set_up, solver.free_memory, True)
    return set_up


def plain(make: Any, **fixed: Any) -> Callable[..., Any]:
    return lambda A, **s: make(A, **fixed, **s)


SHIFTS = ({"shift": 0.0}, {"shift": 1e-3}, {"shift": 1e-2})
ORDERED = (SHIFTS[0], {"order": "flip"}, *SHIFTS[1:], *({"order": o} for o in ORDERS if o != "flip"))
BREAK = {"on_breakdown": "shift"}
BOOMER = "pc_hypre_boomeramg_"
# By default gamg interpolates as for the first matrix: on log-normal cells the next M is indefinite.
ANEW = {"pc_gamg_reuse_interpolation": "false"}
APT = "apt-get install python3-petsc4py; run scripts/petsc.sh python -m ..."
PIP = "pip install {} (compiles: apt-get install {})"
RELAX = ({"relax": "spai0"}, {"relax": "gauss_seidel"}, {"relax": "ilu0"})
THETAS = tuple({"strength": ("classical", {"theta": t})} for t in (0.25, 0.5))
CONTESTANTS: dict[str, Contestant] = {
    "none": Contestant(ours(lambda A: None)),
    "Jacobi": Contestant(ours(P.Jacobi)),
    "SSOR": Contestant(
        ordered(ours(P.SSOR)),
        tuple({"omega": w} for w in (1.0, 1.4, 1.6, 1.8, 1.9, 1.95))
        + tuple({"omega": w, "order": "flip"} for w in (1.6, 1.8, 1.9)),
    ),
    "IC(0)": Contestant(ordered(ours(plain(P.IC, **BREAK))), ORDERED, symmetric=True),
    "MIC(0)": Contestant(ordered(ours(plain(P.MIC, **BREAK))), ORDERED, symmetric=True),
    "relaxed MIC(0)": Contestant(
        ours(plain(P.MIC, **BREAK)), tuple({"omega": w} for w in (0.97, 0.9, 0.99)), symmetric=True
    ),
    **{
        f"{name} fill {level}": Contestant(
            ordered(ours(plain(make, level=level, **BREAK))), ORDERED, symmetric=True
        )
        for name, make in (("IC", P.IC), ("MIC", P.MIC))
        for level in (1, 2)
    },
    "ICT": Contestant(
        ours(plain(P.ICT, **BREAK)),
        tuple({"max_fill": f, "drop_tol": t} for f, t in ((5, 1e-3), (5, 1e-2), (10, 1e-3))),
        symmetric=True,
    ),
    "ILU(0)": Contestant(ours(plain(P.ILU, **BREAK)), SHIFTS[:2], symmetric=False),
    "ILU fill 1": Contestant(ours(plain(P.ILU, level=1, **BREAK)), SHIFTS[:2], symmetric=False),
    "ILUT": Contestant(
        ours(plain(P.ILUT, **BREAK)),
        tuple({"max_fill": f, "drop_tol": t} for f, t in ((5, 1e-3), (10, 1e-3))),
        symmetric=False,
    ),
    "Schwarz": Contestant(
        ours(P.AdditiveSchwarz), ({"coarse": True}, {"coarse": False}, {"coarse": True, "overlap": 2})
    ),
    "AMG SA": Contestant(ours(plain(P.AMG, method="smoothed_aggregation"))),
    "AMG RS": Contestant(ours(plain(P.AMG, method="ruge_stuben")), ({}, {"aggressive": 1})),
    "pyamg SA": Contestant(
        pyamg("smoothed_aggregation"),
        ({}, *({"strength": ("symmetric", {"theta": t})} for t in (0.08, 0.25))),
        "pyamg",
        "pip install pyamg",
    ),
    "pyamg RS": Contestant(pyamg("ruge_stuben"), THETAS, "pyamg", "pip install pyamg"),
    "AMGCL SA": Contestant(
        amgcl("smoothed_aggregation"), RELAX, "pyamgcl", PIP.format("pyamgcl", "libboost-dev")
    ),
    "AMGCL RS": Contestant(amgcl("ruge_stuben"), RELAX, "pyamgcl", PIP.format("pyamgcl", "libboost-dev")),
    "hypre": Contestant(
        petsc("hypre"),
        (
            {},
            {f"{BOOMER}strong_threshold": 0.5},
            {f"{BOOMER}coarsen_type": "HMIS", f"{BOOMER}interp_type": "ext+i"},
        ),
        "petsc4py.PETSc",
        APT,
    ),
    "gamg": Contestant(
        petsc("gamg"),
        tuple(ANEW | more for more in ({}, {"pc_gamg_threshold": 0.02}, {"pc_gamg_agg_nsmooths": 0})),
        "petsc4py.PETSc",
        APT,
    ),
    "apxchol": Contestant(apxchol, ({}, {"partitioner": "luby"}), "apxchol", "pip install apxchol", True),
    "PARDISO": Contestant(pardiso, module="pypardiso", install="pip install pypardiso"),
    "CHOLMOD": Contestant(
        cholmod,
        module="sksparse.cholmod",
        install=PIP.format("'scikit-sparse<0.5'", "libsuitesparse-dev"),
        symmetric=True,
    ),
}


def warm_up(contestant: Contestant, symmetric: bool, **setting: Any) -> None:
    """A tiny solve: libraries load parts of theirs when they are first used."""
    S = sp.csr_matrix(ls.problems.poisson((8, 8)).to_scipy())
    contestant.start(S, symmetric, **setting)(S.data)(np.ones(64))


def timed(set_up: Callable[[], Solve], S: Any, b: np.ndarray) -> tuple[dict[str, Any], Solve]:
    """Seconds of a set-up and of a solve, those that processors worked for the set-up and for both,
    iterations, and the true residual of the worst column."""
    start, began = time.perf_counter(), time.process_time()
    solve = set_up()
    middle, made = time.perf_counter(), time.process_time() - began
    x, iterations = solve(b)
    end, worked = time.perf_counter(), time.process_time() - began
    residual = float(np.max(np.linalg.norm(b - S @ x, axis=0) / np.linalg.norm(b, axis=0)))
    if not residual <= WRONG:
        raise ArithmeticError(f"a true residual of {residual:.1e} after {iterations} iterations")
    row = {"set-up": middle - start, "solve": end - middle, "cpu set-up": made, "cpu": worked}
    return row | {"iterations": iterations, "residual": residual}, solve
