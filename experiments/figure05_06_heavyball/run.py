"""Figures 5 and 6: step size and momentum of the heavy ball, learned by differentiating through its sweeps.

1D Poisson with 16 points, 12 sweeps, alpha = beta = 0.5 at the start, Adam with a rate of 0.01. Then a graph
network that predicts both numbers from the matrix, evaluated on matrices that were not used in training.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import Experiment, table, trained

PICTURES = {
    "loss.png": "figure05_loss.png",
    "parameters.png": "figure06_parameters.png",
    "convergence.png": "convergence.png",
}


def rows_of(report: dict) -> list[dict]:
    return [{"parameters": name, **values} for name, values in report["parameters"].items()]


def main(folder: str) -> None:
    experiment = Experiment(__file__, __doc__)
    quick = experiment.quick
    runs = Path(folder)
    run = runs / "scalars"
    history, scalars, _ = trained("heavyball", run, "--steps", 20 if quick else 150)
    names = ("step", "loss", "held_out_loss", "alpha", "beta")
    steps = range(len(history["step"]))
    experiment.csv("history.csv", [{name: history[name][k] for name in names} for k in steps])
    for picture, name in PICTURES.items():
        experiment.keep(run / picture, name)

    small = ["--matrices", 8, "--held_out_matrices", 4, "--steps", 5] if quick else ["--steps", 300]
    run = runs / "network"
    _, network, _ = trained("heavyball_network", run, "--family", "diffusion", *small)
    experiment.keep(run / "loss.png", "network_loss.png")

    print(f"\n{table(rows_of(scalars))}\n\n{table(rows_of(network))}")
    experiment.json(
        "parameters.json",
        sweeps=scalars["sweeps"],
        parameters=scalars["parameters"],
        network={key: network[key] for key in ("problem", "sweeps", "parameters")},
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
