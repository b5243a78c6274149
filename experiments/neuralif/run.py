"""A graph network that gives an incomplete factor, for random matrices: NeuralIF.

First the published data, 10,000 rows and 1 % of the entries, the published seeds and stop: a relative
residual of 1e-3 (their 1e-6 is on the square). Then three losses in the same seconds on matrices with 1000
rows: ||L L^T x - b||, ||L L^T - A||, and the iterations of conjugate gradients themselves.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import BLUE, GRAY, ORANGE, Experiment, new_figure, table, trained
from family import LOSSES, compared, in_seconds, iterations_figure, rows_of, times

STOP = 1e-3


def published(folder: Path, quick: bool) -> tuple[dict, dict]:
    """Metrics and report of a training on the published data."""
    options = ["--rows", 60, "--density", 0.05, "--steps", 60, "--matrices", 4, "--evaluated", 3]
    if not quick:
        options = ["--rows", 10_000, "--density", 1e-3, "--steps", 200, "--matrices", 8, "--evaluated", 10]
    options += ["--validated", 2, "--held_out_matrices", 2, "--scales", "[]", "--tolerances", f"[{STOP}]"]
    history, report, _ = trained("neuralif", folder, *options, "--evaluate_every", 30)
    return history, report


def curve(history: dict, rows: dict[str, dict]):
    figure, axes = new_figure(
        "NeuralIF while it learns, n = 10,000", "optimizer step", "iterations to 1e-3, two held-out matrices"
    )
    known = [(s, v) for s, v in zip(history["step"], history["iterations"], strict=True) if v is not None]
    axes.plot(*zip(*known, strict=True), color=BLUE, linewidth=2, label="learned")
    for name, color in (("Jacobi", GRAY), ("IC(0)", ORANGE)):
        if rows[name]["converged"]:
            mean = rows[name]["iterations"]
            axes.axhline(mean, color=color, linestyle="--", label=f"{name}, test matrices")
    axes.legend(frameon=False)
    return figure


def main() -> None:
    experiment = Experiment(__file__, __doc__)
    quick = experiment.quick
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        history, report = published(folder / "published", quick)
        rows = rows_of(report, STOP)
        seconds = times(report, STOP)
        print(table(seconds))
        experiment.keep(folder / "published" / "evaluation.csv", "evaluation.csv")
        experiment.figure("training.png", curve(history, rows))
        experiment.json("published.json", evaluation=list(rows.values()), seconds_to_1e3=seconds)

        options = ["--rows", 1000, "--evaluated", 10, "--resample", "true"]
        if quick:
            options = ["--rows", 40, "--density", 0.1, "--evaluated", 3, "--matrices", 6]
        options += ["--scales", "[]", "--tolerances", f"[{STOP}]"]
        solved, slow = ["--resample", "false"], ["--lr", 2e-4]
        found = in_seconds("neuralif", folder, 1 if quick else 30, options, product=solved, iterations=slow)
    losses = compared(found, STOP)
    diverged = [loss for loss in LOSSES if loss not in found]
    print("diverged:", ", ".join(diverged) or "none")
    print(table(losses))
    baseline = rows_of(found["product"]["report"], STOP)["IC(0)"]["iterations"]
    title = "Three losses by seconds of training, random matrices, n = 1000, rtol 1e-3"
    experiment.figure("losses.png", iterations_figure(title, found, baseline))
    experiment.csv("losses.csv", losses)
    experiment.json(
        "summary.json",
        data={"rows": report["problem"]["n"], "entries": report["problem"]["nnz"]},
        training={key: report[key] for key in ("steps", "seconds", "network", "problem")},
        evaluation=[row for row in report["evaluation"] if row["rtol"] == STOP],
        seconds_to_1e3=seconds,
        losses=losses,
        diverged=diverged,
    )


if __name__ == "__main__":
    main()
