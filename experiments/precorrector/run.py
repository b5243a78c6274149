"""A graph network that corrects IC(0), for diffusion with random coefficients: PreCorrector.

First the published comparison on a grid of 32 x 32 with variance 0.1, by iterations to an absolute residual
of 1e-6 from a random start. Then a network of one round, trained on 64 x 64: where is it faster than IC(0),
set-up included? Then three losses in the same seconds on 64 x 64 with variance 0.5: ||L L^T x - b||,
||L L^T - A||, and the iterations of conjugate gradients themselves.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import Experiment, table, trained
from family import compared, in_seconds, iterations_figure, rows_of, times

# arXiv 2405.15557: iterations to an absolute residual of 1e-6.
PUBLISHED = {
    "grid 32, variance 0.1": {"IC(0)": 43.2, "learned": 28.8, "ICt(1)": 26.9},
    "grid 64, variance 0.5": {"product": 53.8, "frobenius": 106.2},
}
STOP = "absolute 1e-06"


def main() -> None:
    experiment = Experiment(__file__, __doc__)
    quick = experiment.quick
    small = ["--matrices", 8, "--evaluated", 3, "--evaluated_larger", 1, "--scales", "[2]", "--repeats", 1]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        options = ["--steps", 60, "--grid", 8, *small] if quick else []
        _, report, _ = trained("precorrector", folder / "published", *options)
        stop = rows_of(report, STOP)
        print(table([{"preconditioner": name, **_numbers(row)} for name, row in stop.items()]))
        seconds = times(report, 1e-6)
        experiment.keep(folder / "published" / "evaluation.csv", "evaluation.csv")
        experiment.keep(folder / "published" / "sizes.png", "sizes.png")

        options = ["--steps", 60, "--grid", 10, *small]
        if not quick:
            options = ["--grid", 64, "--steps", 1500, "--evaluated", 40, "--evaluated_larger", 4]
        _, one_round, _ = trained("precorrector", folder / "one", *options, "--rounds", 1)
        seconds_of_one = times(one_round, 1e-6)
        print(table(seconds), table(seconds_of_one), sep="\n\n")
        experiment.keep(folder / "one" / "evaluation.csv", "evaluation_one_round.csv")

        options = ["--grid", 10, *small] if quick else ["--grid", 64, "--evaluated", 50, "--repeats", 1]
        options += ["--variance", 0.5, "--scales", "[]"]
        found = in_seconds("precorrector", folder, 1 if quick else 60, options)
    losses = compared(found, STOP)
    print(table(losses))
    baseline = rows_of(found["product"]["report"], 1e-6)["IC(0)"]["iterations"]
    title = "Three losses by seconds of training, 64 x 64, variance 0.5, rtol 1e-6"
    experiment.figure("losses.png", iterations_figure(title, found, baseline))
    experiment.csv("losses.csv", losses)
    experiment.json(
        "summary.json",
        published=PUBLISHED,
        absolute_stop={name: _numbers(row) for name, row in stop.items()},
        training={key: report[key] for key in ("steps", "seconds", "network", "problem")},
        seconds_to_1e6={"three rounds, trained on 32 x 32": seconds, "one round, 64 x 64": seconds_of_one},
        losses=losses,
    )


def _numbers(row: dict) -> dict:
    return {key: row[key] for key in ("iterations", "iterations_std", "systems", "converged")}


if __name__ == "__main__":
    main()
