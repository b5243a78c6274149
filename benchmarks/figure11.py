"""The paper's figure 11: time and memory against nonzeros, forward and backward, with fitted exponents.

Tridiagonal matrices, float32 as in the paper, up to 3e7 nonzeros, with --large to 1e8 (products of two sparse
matrices: a tenth). The exponent p of time = c nnz^p is fitted by least squares of the logarithms over sizes
beyond 1e5 nonzeros: below them calls cost more than work. 1.0 is expected within one
level of memory, more across the end of the cache. "bytes a nonzero": how far the
peak of the process's memory (on a device: of torch's allocations) rises. Writes NAME-figure11.png.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from benchmarks import peers
from benchmarks.harness import BACKWARD, FORWARD, OURS, Run, peak_bytes, ways
from benchmarks.table2 import tridiagonal

OVERHEAD = 1e5  # nonzeros
NAMES = ("SpMV", "SpSpMM")


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
    rows = [row for row in run.rows if row["section"] == run.section]
    fits = exponents(rows, 0 if run.quick else OVERHEAD)
    draw(rows, fits, args)
    return [f"{task}, {way}, {name}: time ~ nonzeros^{p:.2f}" for (task, way, name), p in fits.items()]


def one(run: Run, task: str, n: int) -> None:
    A, B = (peers.Matrix(peers.csr(tridiagonal(n, seed), torch.float32), run.device) for seed in (1, 2))
    x = np.random.default_rng(1).random(n, dtype=np.float32)
    columns = peers.product(A, x) if task == "SpMV" else peers.sparse_product(A, B)
    columns = {name: make for name, make in columns.items() if name in (OURS, "SciPy", "CuPy", "torch CSR")}
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


def draw(rows: list[dict], fits: dict[tuple[str, str, str], float], args: argparse.Namespace) -> None:
    from learnsolve.recipes.harness.figures import BLUE, GRAY, ORANGE, PURPLE, new_panels, png

    figure, panels = new_panels("Time against nonzeros, float32, one thread", len(NAMES))
    names = dict.fromkeys(name for _, _, name in fits)
    colors = dict(zip(names, (BLUE, ORANGE, PURPLE, GRAY), strict=False))
    for task, axes in zip(NAMES, panels, strict=True):
        axes.set(title=task, xlabel="nonzeros", ylabel="seconds")
        for (found, way, name), p in fits.items():
            if found == task:
                style = "o-" if way == FORWARD else "o--"
                line = {"color": colors[name], "ms": 3, "lw": 1, "label": f"{way}, {name} ({p:.2f})"}
                axes.loglog(*series(rows, task, way, name), style, **line)
        axes.legend(frameon=False, fontsize=7, title="fitted exponent in brackets", title_fontsize=7)
    args.pictures["figure11"] = png(figure)
