"""Figures 3 and 4 of the paper: entry-wise weights of Jacobi's method, learned for 1D Poisson with 16 points.

Two runs of the recipe jacobi:

    published   100 steps, 20 new random vectors in each: the settings of the authors' public demonstration
    exact       300 steps on the exact mean over all vectors, whose minimizer has a closed form
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import BLACK, BLUE, GRAY, ORANGE, PURPLE, Experiment, new_figure, table, trained

import learnsolve as ls
from learnsolve.recipes.jacobi import expected_energy, optimal_weights

N = 16
VECTORS = 20
TEXTBOOK = 2 / 3


def loss_figure(history: dict, constants: dict[str, float]):
    """Figure 3: training and test loss of each step; test losses of fixed weights."""
    figure, axes = new_figure(
        f"Loss while learning Jacobi weights, 1D Poisson, {N} points",
        "optimizer step",
        "energy $e^T A e$ after a sweep, per vector",
    )
    styles = {
        "weight 1": {"color": GRAY, "linestyle": "--"},
        "weight 2/3": {"color": ORANGE, "linestyle": "-."},
        "closed form": {"color": BLACK, "linestyle": ":", "linewidth": 2},
    }
    for name, value in constants.items():
        axes.axhline(value, label=f"{name}, test", **styles[name])
    axes.plot(history["step"], history["loss"], color=BLUE, label=f"training, {VECTORS} new vectors a step")
    axes.plot(history["step"], history["held_out_loss"], color=PURPLE, linewidth=2, label="test, 100 vectors")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.legend(frameon=False)
    return figure


def weights_figure(weights: dict[str, torch.Tensor]):
    """Figure 4: the weight at each grid point."""
    figure, axes = new_figure(f"Learned Jacobi weights, 1D Poisson, {N} points", "grid point", "weight $w_i$")
    points = range(1, N + 1)
    axes.axhline(1, color=GRAY, linestyle="--", label="uniform weight 1, the start")
    axes.axhline(TEXTBOOK, color=ORANGE, linestyle="-.", label="uniform weight 2/3")
    axes.plot(points, weights["closed form"], color=BLACK, linestyle=":", linewidth=2, label="closed form")
    axes.plot(points, weights["published"], "o", color=BLUE, label="learned")
    axes.plot(points, weights["exact"], "x", color=PURPLE, markersize=8, label="learned, exact loss")
    axes.set_xticks(points)
    axes.set_ylim(0.3, 1.05)
    axes.legend(frameon=False, loc="upper center", ncols=2, bbox_to_anchor=(0.5, 0.95))
    return figure


def ends_and_middle(w: torch.Tensor) -> dict[str, float]:
    inside = w[1:-1]
    return {"ends": float(w[[0, -1]].mean()), "largest inside": float(inside.max())}


def main() -> None:
    experiment = Experiment(__file__, __doc__)
    steps = (60, 150) if experiment.quick else (100, 300)
    common = ["--problem.shape", f"[{N}]", "--evaluate_every", 1, "--held_out", 100]
    vectors = ["--test_vectors", VECTORS, "--resample"]
    with tempfile.TemporaryDirectory() as folder:
        history, report, model = trained("jacobi", Path(folder) / "a", "--steps", steps[0], *vectors, *common)
        exact = trained(
            "jacobi", Path(folder) / "b", "--steps", steps[1], "--test_vectors", "identity", *common
        )[2]
    A = ls.problems.poisson(N)
    best = optimal_weights(A)
    assert best is not None
    weights = {"published": model["weight"], "exact": exact["weight"], "closed form": best}
    names = {"textbook 2/3": "weight 2/3"}
    test = {
        names.get(name, name): found["held_out_loss"]
        for name, found in report["weights"].items()
        if name not in ("learned", "best constant")
    }
    experiment.figure("loss.png", loss_figure(history, test))
    experiment.figure("weights.png", weights_figure(weights))
    columns = ("step", "loss", "held_out_loss")
    rows = zip(*(history[name] for name in columns), strict=True)
    experiment.csv("loss.csv", [dict(zip(columns, row, strict=True)) for row in rows])
    experiment.csv(
        "weights.csv",
        [{"point": i + 1} | {name: float(w[i]) for name, w in weights.items()} for i in range(N)],
    )
    compared = {**weights, "weight 1": torch.ones_like(best), "weight 2/3": torch.full_like(best, TEXTBOOK)}
    found = [
        {
            "weights": name,
            "exact loss": expected_energy(A, w),
            **ends_and_middle(w),
            "distance to the closed form": float((w - best).abs().max()),
        }
        for name, w in compared.items()
    ]
    print(table(found))
    experiment.json("summary.json", steps=dict(zip(weights, steps, strict=False)), weights=found)


if __name__ == "__main__":
    main()
