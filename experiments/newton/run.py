"""Where Newton's method starts: a Fourier neural operator against classical starts, for the p-Laplacian.

p = 5 with log-normal coefficients. The network is trained on 32 x 32 cells by the energy that Newton's method
minimizes, and predicts starts for new fields there and on finer grids. Steps, work on coarser grids and
seconds, with those of the start, against: zero, the solution for p = 2, the mean of known solutions, the
solution of the nearest known field, and the solution on half the grid, found in the same way.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import Experiment, table, trained

QUICK = ["--grid", 8, "--modes", 3, "--width", 6, "--rounds", 2, "--steps", 60, "--evaluate_every", 30]
QUICK += ["--evaluated", 2, "--scales", "[2]", "--solved", 4, "--held_out", 2]


def main() -> None:
    experiment = Experiment(__file__, __doc__)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        _, report, _ = trained("newton", folder, *(QUICK if experiment.quick else []))
        for name in ("evaluation.csv", "convergence.png", "steps.png"):
            experiment.keep(folder / name, name)
    rows = report["evaluation"]
    for row in rows:
        zero = next(r for r in rows if r["cells"] == row["cells"] and r["start"] == "zero")
        saved = zero["seconds"] - row["seconds"]
        row["steps / zero"] = row["steps"] / zero["steps"]
        row["paid after"] = ""
        if row["start"] == "learned":
            row["paid after"] = f"{report['seconds'] / saved:.0f} systems" if saved > 0 else "never"
    print(table(rows))
    training = {key: report[key] for key in ("steps", "seconds", "held_out_loss", "network", "problem")}
    experiment.json("summary.json", training=training, evaluation=rows)


if __name__ == "__main__":
    main()
