"""The paper's figure 11: time and memory against nonzeros, forward and backward, with fitted exponents.

Tridiagonal matrices, float32 as in the paper, up to 3e7 nonzeros, with --large to 1e8 (products of two sparse
matrices: a tenth). The exponent p of time = c nnz^p is fitted by least squares of the logarithms over sizes
beyond 1e5 nonzeros: below them calls cost more than work. 1.0 is expected within one
level of memory, more across the end of the cache. "bytes a nonzero": how far the
peak of the process's memory (on a device: of torch's allocations) rises. Writes NAME-figure11.png.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from benchmarks import peers
from benchmarks.harness import BACKWARD, FORWARD, OURS, Run, peak_bytes, ways
from benchmarks.table2 import tridiagonal

OVERHEAD = 1e5  # nonzeros
NAMES = ("SpMV", "SpSpMM")
COLUMNS = (OURS, "SciPy", "CuPy", "torch CSR", "torch-sla")


def sizes(run: Run, args: argparse.Namespace, task: str) -> list[int]:
    if run.quick:
        return [40, 400]
    most = 1e8 if args.large else 3e7
    most = most if task == "SpMV" else most / 10
    return [int(n) for n in np.geomspace(1e3, most / 3, 10)]


def measure(run: Run, args: argparse.Namespace) -> list[str]:
    for task in NAMES:
        for n in sizes(run, args, task):
            with run.attempt(f"{task}, n = {n}"):
                one(run, task, n)
    from learnsolve.evaluation.figures import png

    mine = rows({"rows": run.rows})
    fits = exponents(mine, 0 if run.quick else OVERHEAD)
    args.pictures["figure11"] = png(draw(mine))
    return [f"{task}, {way}, {name}: time ~ nonzeros^{p:.2f}" for (task, way, name), p in fits.items()]


def rows(record: dict) -> list[dict]:
    return [row for row in record["rows"] if row["section"] == "figure11"]


def one(run: Run, task: str, n: int) -> None:
    A, B = (peers.Matrix(peers.csr(tridiagonal(n, seed), torch.float32), run.device) for seed in (1, 2))
    x = np.random.default_rng(1).random(n, dtype=np.float32)
    columns = peers.product(A, x) if task == "SpMV" else peers.sparse_product(A, B)
    columns = {name: make for name, make in columns.items() if name in COLUMNS}
    for way in (FORWARD, BACKWARD):
        f = ways(columns, way)[OURS]()
        f()
        peak = peak_bytes(f)
        del f
        facts = {} if peak is None else {"bytes a nonzero": peak / A.S.nnz}
        facts |= {"nnz": A.S.nnz, "places": [A.places, B.places if task == "SpSpMM" else None]}
        run.row(f"{task}, n = {n}", ways(columns, way), way=way, dtype=torch.float32, **facts)


def series(rows: list[dict], task: str, way: str, name: str) -> tuple[list[int], list[float]]:
    chosen = [row for row in rows if row["case"].startswith(f"{task},") and row["way"] == way]
    chosen = [row for row in chosen if "median" in row["cells"].get(name, {})]
    return [row["nnz"] for row in chosen], [row["cells"][name]["median"] for row in chosen]


def exponents(rows: list[dict], least: float) -> dict[tuple[str, str, str], float]:
    names = dict.fromkeys(name for row in rows for name in row["cells"])
    found = {}
    for key in ((task, way, name) for task in NAMES for way in (FORWARD, BACKWARD) for name in names):
        pairs = [(z, t) for z, t in zip(*series(rows, *key), strict=True) if z >= least]
        if len(pairs) > 1:
            found[key] = float(np.polyfit(*np.log(np.array(pairs, dtype=float)).T, 1)[0])
    return found


def draw(rows: list[dict]) -> Any:
    """Solid forward, dashed backward; a panel for each task."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from learnsolve.evaluation.figures import BLUE, GRAY, GREEN, ORANGE, PURPLE

    figure = Figure(figsize=(8, 4), dpi=120, layout="constrained")
    figure.suptitle("Time against nonzeros, float32, one thread")
    names = [name for name in COLUMNS if any(name in row["cells"] for row in rows)]
    colors = dict(zip(names, (BLUE, ORANGE, PURPLE, GREEN, GRAY), strict=False))
    for task, axes in zip(NAMES, figure.subplots(1, len(NAMES)), strict=True):
        axes.set(title=task, xlabel="nonzeros", ylabel="seconds")
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.margins(x=0.02)
        for name, color in colors.items():
            for way, style in ((FORWARD, "o-"), (BACKWARD, "o--")):
                axes.loglog(*series(rows, task, way, name), style, color=color, ms=3, lw=1.2)
    lines = [Line2D([], [], color=color, marker="o", ms=4, label=name) for name, color in colors.items()]
    lines += [
        Line2D([], [], color="black", linestyle=s, label=w) for w, s in ((FORWARD, "-"), (BACKWARD, "--"))
    ]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), frameon=False, fontsize=10)
    return figure
