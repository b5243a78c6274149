"""Figures 7 and 8: a preconditioner M = L L^T, learned through four iterations of conjugate gradients.

2D Poisson on 8 x 8, L lower bidiagonal, loss of equation 28, AdamW with a rate of 0.001. Four trainings:

    one side        one right-hand side, linear along an axis, until four iterations leave 3e-5
    demonstration   the same with the loss of the authors' public demonstration (three iterations)
    many sides      100 random right-hand sides
    incomplete      M = (L L^T)^-1 on the pattern of tril(A), from IC(0), random right-hand sides
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import BLACK, BLUE, ORANGE, PURPLE, Experiment, new_figure, table, trained

RUNS = {
    "one side": ["--test_vectors", "ramp", "--target", 3e-5, "--steps", 20_000, "--evaluate_every", 50],
    "demonstration": ["--variant", "demo", "--steps", 20_000, "--evaluate_every", 50],
    "many sides": ["--steps", 1000],
    "incomplete": [
        *("--form", "triangular", "--pattern", "tril", "--start", "ic"),
        *("--curriculum", 50, "--clip", 1, "--schedule", "cosine", "--steps", 600),
    ],
}
COLORS = dict(zip(RUNS, (BLUE, ORANGE, BLACK, PURPLE), strict=True))
SOLVE = ("right_hand_sides", "preconditioner", "rtol", "iterations")
TRAINING = (
    *("steps_taken", "final_loss", "held_out_loss", "stopped_early", "shortened_steps"),
    "condition_numbers",
)
ROWS = 400  # rows per training in history.csv


def loss_figure(histories: dict[str, dict]):
    """Losses relative to the first one, since the trainings have different losses."""
    figure, axes = new_figure(
        "Training loss, 2D Poisson, 8 x 8", "optimizer step", "loss, relative to the first"
    )
    for name, history in histories.items():
        if name == "incomplete":  # its curriculum adds iterations to the loss
            continue
        first = history["loss"][0]
        relative = [loss / first for loss in history["loss"]]
        axes.loglog([s + 1 for s in history["step"]], relative, color=COLORS[name], label=name, linewidth=1.4)
    axes.legend(frameon=False)
    return figure


def main(folder: str) -> None:
    experiment = Experiment(__file__, __doc__)
    histories, reports, rows = {}, {}, []
    for name, options in RUNS.items():
        few = ["--steps", 10, "--evaluated", 2, "--held_out", 10] if experiment.quick else []
        run = Path(folder) / name
        history, report, _ = trained("pcg", run, *options, *few)
        histories[name], reports[name] = history, report
        every = -(-len(history["step"]) // ROWS)
        rows += [
            {"training": name, "step": step, "loss": loss}
            for step, loss in zip(history["step"], history["loss"], strict=True)
            if step % every == 0
        ]
        if name == "one side":
            experiment.keep(run / "convergence.png", "figure08_residuals.png")
        if name == "many sides":
            experiment.keep(run / "convergence.png", "held_out_residuals.png")
        if name == "incomplete":
            experiment.keep(run / "convergence.png", "incomplete_residuals.png")
        report["steps_taken"] = history["step"][-1]
    experiment.csv("history.csv", rows)
    experiment.figure("figure07_loss.png", loss_figure(histories))

    solves = [
        {
            "training": name,
            **{key: row[key] for key in ("right_hand_sides", "preconditioner", "rtol", "iterations")},
        }
        for name, report in reports.items()
        for row in report["evaluation"]
        if name == "one side" or row["preconditioner"] == "learned"
    ]
    experiment.csv("iterations.csv", solves)
    print(f"\n{table(solves)}")
    experiment.json(
        "trainings.json",
        trainings={name: {key: report[key] for key in TRAINING} for name, report in reports.items()},
        iterations=solves,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
