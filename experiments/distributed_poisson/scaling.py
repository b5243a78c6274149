"""A cost model of distributed conjugate gradients, fitted to results/measured.jsonl, for other machines.

    seconds an iteration = bytes(rows a process) / bandwidth + products * exchange + reductions * reduction
    exchange  = 6 latency + halo bytes / network,        reduction = ceil(log2 P) latency

The bandwidth of a core comes from the runs; latency and network are those of a cluster's network, assumed and
not measured: two cores of one machine have none. Writes model.json and scaling.png, prints its table.
"""

import json
import math
from pathlib import Path
from typing import Any

from learnsolve.evaluation.figures import BLUE, ORANGE, png
from learnsolve.recipes.training.settings import need

LABEL = {"jacobi": "Jacobi", "learned": "learned polynomial"}
FOLDER = Path(__file__).parent / "results"
# Bytes a row of a product: 7 entries of 8 + 4; x read, y written, its lines of cache read before.
PRODUCT, DEGREE = 7 * 12 + 3 * 8, 4
# Accesses to a number of a vector, in the order of the source. KSPCG: x += a p, r -= a w, ||r||, <z, r>,
# p = z + b p, <p, w>.
CG = 3 + 3 + 1 + 2 + 3 + 2
JACOBI = 3  # z = D^-1 r
# PolynomialForm.apply (learnsolve/petsc/learned_pc.py): v = S x, b = c v; a step multiplies by S and adds
# three vectors at once, the first one two.
POLYNOMIAL, STEP = 3 + 2 - 1, 3 + 5
# The runs that the bandwidth is fitted to were made before, with 8 and 16.
POLYNOMIAL_FITTED, STEP_FITTED = 8, 16
LATENCY, NETWORK = 2e-6, 10e9  # seconds of a message, bytes a second and process
# (products, reductions, bytes of vectors a row) of an iteration: two inner products and a norm
METHODS = {
    "jacobi": (1, 3, 8 * (CG + JACOBI)),
    "learned": (1 + DEGREE, 3, 8 * (CG + POLYNOMIAL + DEGREE * STEP)),
}


def bytes_of(method: str, rows: float) -> float:
    products, _, vectors = METHODS[method]
    return rows * (products * PRODUCT + vectors)


def bytes_fitted(method: str, rows: float) -> float:
    """Of the runs that the bandwidth is fitted to."""
    more = POLYNOMIAL_FITTED - POLYNOMIAL + DEGREE * (STEP_FITTED - STEP)
    return bytes_of(method, rows) + (rows * 8 * more if method == "learned" else 0)


def seconds(method: str, rows: float, processes: int, bandwidth: float) -> dict[str, float]:
    """Of an iteration, for a cube of rows a process with six neighbors."""
    products, reductions, _ = METHODS[method]
    halo = 8 * 6 * rows ** (2 / 3)
    return {
        "memory": bytes_of(method, rows) / bandwidth,
        "exchange": products * (6 * LATENCY + halo / NETWORK) if processes > 1 else 0.0,
        "reductions": reductions * math.ceil(math.log2(processes)) * LATENCY if processes > 1 else 0.0,
    }


def predicted(method: str, n: int, processes: int, iterations_16_million: int, bandwidth: float) -> dict:
    """A whole solve. Iterations of conjugate gradients grow with the points of an axis."""
    iterations = round(iterations_16_million * (n / 16_003_008) ** (1 / 3))
    cores = 2 if processes == 4 else processes  # the measured run shares two cores
    parts = seconds(method, n / cores, processes, bandwidth)
    products, reductions, _ = METHODS[method]
    return {
        "n": n,
        "processes": processes,
        "method": method,
        "iterations": iterations,
        "products": iterations * products,
        "reductions": iterations * reductions,
        **{f"seconds_{k}": iterations * v for k, v in parts.items()},
        "seconds": iterations * sum(parts.values()),
    }


def figure(runs: list[dict], large: dict[str, int], bandwidth: float) -> Any:
    """What was measured: milliseconds an iteration; what is simulated: a solve with 10^9 unknowns."""
    whole = need("matplotlib.figure").Figure(figsize=(10.5, 4.5), dpi=120, layout="constrained")
    left, right = whole.subplots(1, 2)
    for axes in (left, right):
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel("processes")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for method, color in (("jacobi", ORANGE), ("learned", BLUE)):
        weak = {p: (100 * p, 100, 100) for p in (1, 2, 4)}
        strong = dict.fromkeys((1, 2, 4), (200, 100, 100))
        for name, shapes, line in (
            ("1 million rows each", weak, "-o"),
            ("2 million rows in all", strong, "--s"),
        ):
            found = {(r["processes"], tuple(r["shape"])): r for r in runs if r["method"] == method}
            times = [1e3 * found[p, shape]["seconds_an_iteration"] for p, shape in shapes.items()]
            left.plot(list(shapes), times, line, color=color, label=f"{LABEL[method]}, {name}")
        counts = [round(10 ** (k / 4)) for k in range(8, 23)]
        times = [predicted(method, 10**9, p, large[method], bandwidth)["seconds"] for p in counts]
        right.plot(counts, times, color=color, label=LABEL[method])
    left.set_title("Measured: an iteration, on two cores")
    left.set_ylabel("milliseconds")
    left.set_xticks([1, 2, 4])
    left.set_ylim(bottom=0)
    right.set_title(r"Simulated by the model: $10^9$ unknowns to 1e-4")
    right.set_ylabel("seconds")
    right.set_xscale("log")
    right.set_yscale("log")
    for axes in (left, right):
        axes.legend(frameon=False)
    return whole


def main() -> None:
    runs = [json.loads(line) for line in (FOLDER / "measured.jsonl").read_text().splitlines()]
    timed = [r for r in runs if r["method"] in METHODS and r["seconds_an_iteration"]]
    for r in timed:
        busy = min(r["processes"], 2)  # cores
        r["bytes_a_second"] = bytes_fitted(r["method"], r["n"]) / r["seconds_an_iteration"] / busy
    found = sorted(r["bytes_a_second"] for r in timed)
    bandwidth = found[len(found) // 2]
    spread = found[0] / bandwidth, found[-1] / bandwidth
    large = {m: next(r["iterations"] for r in runs if r["n"] > 1e7 and r["method"] == m) for m in METHODS}
    out = {"bandwidth_a_core": bandwidth, "runs_over_median": spread, "latency": LATENCY, "network": NETWORK}
    out["predicted"] = []
    for n, processes in ((16_003_008, 4), (10**9, 1000), (10**9, 100_000)):
        out["predicted"] += [predicted(m, n, processes, large[m], bandwidth) for m in METHODS]
    (FOLDER / "model.json").write_text(json.dumps(out, indent=1) + "\n")
    print(
        f"bandwidth {bandwidth / 1e9:.2f} GB/s a core, "
        f"runs lie between {spread[0]:.2f} and {spread[1]:.2f} of it"
    )
    for r in out["predicted"]:
        print({k: (f"{v:.3g}" if isinstance(v, float) else v) for k, v in r.items()})
    (FOLDER / "scaling.png").write_bytes(png(figure(runs, large, bandwidth)))


if __name__ == "__main__":
    main()
