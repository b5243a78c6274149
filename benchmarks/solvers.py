"""Iterations and time of the solvers, compared with SciPy's, pyamg's and other libraries' (docs/solvers.md).

    python benchmarks/solvers.py [--quick] [--only methods,preconditioners,counts,peers] [--peers]

float64, one right-hand side, one thread.
methods: the Krylov methods without a preconditioner and SciPy's, on 2D Poisson (with a convection term for
bicgstab and gmres), rtol 1e-8; medians in microseconds per iteration.
preconditioners: cg with each preconditioner, iterations and milliseconds (set-up separately; "first": on a
pattern without plans) to rtol 1e-3, 1e-6 and 1e-9, by `learnsolve.evaluate`.
counts: iterations of our cg, SciPy's and pyamg's with the same preconditioner, rtol 1e-6; "off" is the
largest difference. All stop by ||r|| <= rtol ||b||, so it should be at most 1; if cg needs more iterations
than there are unknowns, the difference is due to rounding.
peers: milliseconds of our cg, SciPy's and pyamg's, rtol 1e-6, and with --peers torch-sla's and
torchsparsegradutils', if installed (`pip install --no-deps torchsparsegradutils torch-sla`).
--quick: small problems only.
"""

from __future__ import annotations

import argparse
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch
from algebra import peer
from timing import medians, table, write

import learnsolve as ls

RTOL = 1e-8
ITERATIONS = 5000  # limit for preconditioners that do not help

# Keyed by the name of the class in learnsolve.preconditioners.
OPTIONS: dict[str, dict[str, Any]] = {
    "Jacobi": {},
    "BlockJacobi": {"block_size": 4},
    "SSOR": {"omega": 1.0},
    "IC0": {},
    "MIC0": {},
    "Chebyshev": {"degree": 3},
    "Neumann": {"degree": 2},
    "SPAI": {},
    "AMG": {},
    "AdditiveSchwarz": {},
}


@functools.cache
def preconditioners() -> dict[str, Callable | None]:
    """The factories of the existing preconditioners."""
    found: dict[str, Callable | None] = {"none": None}
    for name, options in OPTIONS.items():
        make = getattr(ls.preconditioners, name, None)
        if make is None:
            print(f"{name}: left out, learnsolve.preconditioners has none")
        else:
            found[name] = functools.partial(make, **options)
    return found


@functools.cache
def matrices(quick: bool) -> dict[str, ls.CSR]:
    """Symmetric positive definite matrices: grids, and pyamg's examples."""
    poisson, anisotropic = ls.problems.poisson, ls.problems.anisotropic
    if quick:
        found = {
            "2D Poisson 30^2": poisson((30, 30)),
            "anisotropic 30^2": anisotropic((30, 30), 0.01, np.pi / 6),
        }
        names = ("unit_cube",)
    else:
        found = {
            "2D Poisson 100^2": poisson((100, 100)),
            "2D Poisson 300^2": poisson((300, 300)),
            "3D Poisson 30^3": poisson((30, 30, 30)),
            "anisotropic 100^2": anisotropic((100, 100), 0.01, np.pi / 6),
        }
        names = ("airfoil", "bar", "knot", "local_disc_galerkin_diffusion", "unit_cube", "unit_square")
    for name in names:
        try:
            A = ls.problems.gallery(name)
        except (ImportError, ValueError) as error:
            print(f"{name}: left out, {error}")
            continue
        why = what_is_wrong(A)
        if why:
            print(f"{name}: left out, {why}")
        else:
            found[f"pyamg {name}"] = symmetric_part(A)
    return found


def symmetric_part(A: ls.CSR) -> ls.CSR:
    S = A.to_scipy()
    return ls.CSR.from_scipy(sp.csr_array(0.5 * (S + S.T)))


def what_is_wrong(A: ls.CSR) -> str:
    """Why A is not suitable for cg; empty if it is."""
    S = A.to_scipy()
    if abs(S - S.T).max() > 1e-10 * abs(S).max():
        return "not symmetric"
    if S.diagonal().min() <= 0:
        return "a diagonal entry is not positive"
    A = symmetric_part(A)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an upper bound is enough
        found = ls.analysis.extreme_eigenvalues(A, ls.preconditioners.Jacobi(A), rtol=1e-2)
    low, high = float(found.smallest), float(found.largest)
    return "" if low > 1e-10 * high else f"eigenvalues of D^-1 A from {low:.2g} to {high:.2g}"


def milliseconds(seconds: float) -> float | str:
    return "-" if np.isnan(seconds) else 1e3 * seconds


def right_hand_side(n: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(n)


def problem(side: int, symmetric: bool) -> sp.csr_array:
    S = ls.problems.poisson((side, side)).to_scipy()
    if symmetric:
        return S
    n = side * side
    return sp.csr_array(S + 0.5 * sp.diags_array([-np.ones(n - 1), np.ones(n - 1)], offsets=[-1, 1]))


def counted(solve: Callable, *args: Any, **options: Any) -> int:
    count = 0

    def callback(_: Any) -> None:
        nonlocal count
        count += 1

    solve(*args, callback=callback, **options)
    return count


def compare(method: str, side: int) -> dict:
    S = problem(side, method in ("cg", "minres"))
    A = ls.CSR.from_scipy(S)
    b = right_hand_side(S.shape[0])
    t = torch.from_numpy(b)
    ours, theirs = getattr(ls.solvers, method), getattr(spla, method)
    options = {"callback_type": "pr_norm"} if method == "gmres" else {}
    iterations = counted(theirs, S, b, rtol=RTOL, **options)
    solution = ours(A, t, rtol=RTOL)
    assert solution.converged
    seconds = medians({"scipy": lambda: theirs(S, b, rtol=RTOL), "ours": lambda: ours(A, t, rtol=RTOL)}, 0.5)
    per = {
        "scipy": 1e6 * seconds["scipy"] / iterations,
        "learnsolve": 1e6 * seconds["ours"] / solution.iterations,
    }
    return {
        "method": method,
        "n": S.shape[0],
        "iterations scipy": iterations,
        "iterations": solution.iterations,
        **per,
        "ratio": per["learnsolve"] / per["scipy"],
    }


def methods(quick: bool, peers: bool) -> list[dict]:
    sides = (8, 30) if quick else (8, 30, 100)
    return [compare(method, side) for method in ("cg", "minres", "bicgstab", "gmres") for side in sides]


def preconditioned(quick: bool, peers: bool) -> list[dict]:
    rows = []
    for name, A in matrices(quick).items():
        b = torch.from_numpy(right_hand_side(A.shape[0]))
        found = ls.evaluate(
            A, b, preconditioners(), maxiter=ITERATIONS, repeats=1 if quick else 5, on_error="row"
        )
        at: dict[str, dict] = {}
        for row in found.rows:
            line = at.setdefault(
                row.preconditioner,
                {
                    "matrix": name,
                    "n": A.shape[0],
                    "M": row.preconditioner,
                    "set-up ms": milliseconds(row.setup.mean),
                    "first ms": milliseconds(row.first_setup.mean),
                },
            )
            line[f"it {row.rtol:.0e}"] = int(row.iterations.mean) if row.converged else "-"
            line[f"ms {row.rtol:.0e}"] = milliseconds(row.seconds.mean)
            line["failure"] = row.message or " ".join(row.failures)
        rows += at.values()
    return rows


def operators(A: ls.CSR) -> dict[str, Any]:
    """Preconditioners for other libraries."""
    found: dict[str, Any] = {"none": None}
    for name in ("Jacobi", "IC0", "AMG"):
        make = preconditioners().get(name)
        if make is not None:
            try:
                found[name] = make(A)
            except ValueError as error:
                print(f"{name}: left out, {error}")
    return found


def counts(quick: bool, peers: bool) -> list[dict]:
    krylov = peer("pyamg.krylov", True)
    rows = []
    for name, A in matrices(quick).items():
        S, b = A.to_scipy(), right_hand_side(A.shape[0])
        for label, M in operators(A).items():
            ours = ls.solvers.cg(A, torch.from_numpy(b), rtol=1e-6, maxiter=ITERATIONS, M=M)
            operator = None if M is None else M.to_scipy_linear_operator()
            options = {"M": operator, "maxiter": ITERATIONS}
            row = {
                "matrix": name,
                "M": label,
                "status": ours.status.name,
                "learnsolve": ours.iterations,
                "scipy": counted(spla.cg, S, b, rtol=1e-6, **options),
            }
            if krylov is not None:
                # "rr": ||r|| <= tol ||b||, as ours; pyamg does not count iterations but stores the residuals.
                residuals: list[float] = []
                krylov.cg(S, b, tol=1e-6, criteria="rr", residuals=residuals, **options)
                row["pyamg"] = len(residuals) - 1
            row["off"] = max(abs(row[key] - ours.iterations) for key in ("scipy", "pyamg") if key in row)
            rows.append(row)
    return rows


def against(quick: bool, peers: bool) -> list[dict]:
    krylov = peer("pyamg.krylov", True)
    sla, gradutils = peer("torch_sla", peers), peer("torchsparsegradutils", peers)
    rows = []
    for name, A in matrices(quick).items():
        S, b = A.to_scipy(), right_hand_side(A.shape[0])
        t = torch.from_numpy(b)
        for label, M in operators(A).items():
            operator = None if M is None else M.to_scipy_linear_operator()
            functions: dict[str, Callable] = {
                "learnsolve": lambda A=A, t=t, M=M: ls.solvers.cg(A, t, rtol=1e-6, maxiter=ITERATIONS, M=M),
                "scipy": lambda S=S, b=b, M=operator: spla.cg(S, b, rtol=1e-6, maxiter=ITERATIONS, M=M),
            }
            if krylov is not None:
                functions["pyamg"] = lambda S=S, b=b, M=operator: krylov.cg(
                    S, b, tol=1e-6, criteria="rr", maxiter=ITERATIONS, M=M
                )
            if label == "none":
                functions |= of_peers(sla, gradutils, A, t)
            seconds = medians(functions, 0.2 if quick else 1.0, most=20)
            row = {"matrix": name, "M": label, **{key: 1e3 * s for key, s in seconds.items()}}
            rows.append(row | {"ratio to scipy": seconds["learnsolve"] / seconds["scipy"]})
    return rows


def of_peers(sla: Any, gradutils: Any, A: ls.CSR, b: torch.Tensor) -> dict[str, Callable]:
    """The cg of the peers that run, each with its own stopping test."""
    found: dict[str, Callable] = {}
    if sla is not None:
        rows, columns = A.pattern.row_indices.long(), A.col_indices.long()
        found["torch-sla"] = lambda: sla.spsolve(
            A.values, rows, columns, A.shape, b, backend="pytorch", method="cg", rtol=1e-6, maxiter=ITERATIONS
        )
    if gradutils is not None:
        T = A.to_torch()
        found["torchsparsegradutils"] = lambda: gradutils.utils.linear_cg(
            T.matmul, b.unsqueeze(1), tolerance=1e-6, max_iter=ITERATIONS
        )
    for name in list(found):
        try:
            found[name]()
        except Exception as error:
            print(f"{name}: left out, {type(error).__name__}: {error}")
            del found[name]
    return found


SECTIONS = {"methods": methods, "preconditioners": preconditioned, "counts": counts, "peers": against}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/solvers.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for name in args.only.split(","):
        if name not in SECTIONS:
            parser.error(f"--only: sections are {', '.join(SECTIONS)}, got {name!r}")
        rows = SECTIONS[name](args.quick, args.peers)
        print(f"\n{name}\n{table(rows)}")
        results += [{"section": name, **r} for r in rows]
    write(args.out, "solvers", results, quick=args.quick)


if __name__ == "__main__":
    main()
