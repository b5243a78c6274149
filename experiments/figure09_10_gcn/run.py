"""Figures 9 and 10 of the paper: losses and accuracies of a graph convolutional network on CiteSeer.

The recipe gcn with --seeds initializations. The data are the raw files of the Planetoid project, from --data
or else a download. If neither is available, the run prints SKIPPED and does nothing. --quick trains on a
generated graph of 42 nodes.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import planetoid_files
from common import BLACK, BLUE, GRAY, ORANGE, Experiment, new_figure, trained

from learnsolve.io import planetoid

VARIABLE = "CITESEER"  # make experiments CITESEER=DIR
PUBLISHED = 0.703  # Kipf and Welling, table 2


def band(axes, history: dict, column: str, color: str, label: str) -> None:
    """The mean over the initializations, with a band of two standard deviations on both sides."""
    steps, mean, deviation = (np.array(history[name]) for name in ("step", column, f"{column}_std"))
    axes.plot(steps, mean, color=color, linewidth=1.8, label=label)
    axes.fill_between(steps, mean - 2 * deviation, mean + 2 * deviation, color=color, alpha=0.2, linewidth=0)


def title(what: str, graph: str, seeds: int) -> str:
    return f"{what}, {graph}\nmean of {seeds} initializations ± 2 standard deviations"


def loss_figure(history: dict, graph: str, seeds: int):
    """Figure 9."""
    figure, axes = new_figure(title("Loss", graph, seeds), "epoch", "cross-entropy")
    band(axes, history, "loss", BLUE, "training, with dropout and weight decay")
    band(axes, history, "test_loss", ORANGE, "test")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.legend(frameon=False)
    return figure


def accuracy_figure(history: dict, graph: str, seeds: int):
    """Figure 10."""
    figure, axes = new_figure(title("Accuracy", graph, seeds), "epoch", "share of nodes in the right class")
    for part, color in (("training", BLUE), ("test", ORANGE)):
        last = history[f"{part}_accuracy"][-1]
        band(axes, history, f"{part}_accuracy", color, f"{part}: {100 * last:.1f} % at the end")
    axes.set_ylim(0, 1.02)
    axes.margins(x=0.01)
    axes.legend(frameon=False, loc="lower right")
    return figure


def histogram(accuracies: list[float], graph: str, published: float | None):
    count = len(accuracies)
    mean, deviation = np.mean(accuracies), np.std(accuracies, ddof=1)
    figure, axes = new_figure(
        f"Test accuracy after the last epoch, {graph}, {count} initializations",
        "test accuracy",
        "initializations",
    )
    axes.hist(accuracies, bins=max(5, round(count**0.5) + 2), color=ORANGE, alpha=0.7, edgecolor="white")
    axes.axvspan(mean - 2 * deviation, mean + 2 * deviation, color=GRAY, alpha=0.12, linewidth=0)
    label = f"mean {100 * mean:.1f} % ± {200 * deviation:.1f} %"
    axes.axvline(mean, color=BLACK, label=label)
    if published is not None:
        axes.axvline(published, color=BLUE, linestyle="--", label=f"Kipf and Welling: {100 * published} %")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.margins(y=0.3)  # room for the legend
    axes.legend(frameon=False)
    return figure


def found_data(folder: str | None) -> bool:
    """Whether data are available; a given folder is assumed to be valid."""
    if folder is not None:
        return True
    try:
        planetoid("citeseer")
    except (OSError, ImportError) as error:
        reason = " ".join(str(error).split())
        print(
            f"*** SKIPPED: figure09_10_gcn has no data ({reason}).\n"
            "*** Pass the folder with ind.citeseer.x and so on: run.py --data DIR, or "
            f"make experiments {VARIABLE}=DIR"
        )
        return False
    return True


def main() -> None:
    experiment = Experiment(
        __file__,
        __doc__,
        ("--data", {"metavar": "DIR", "help": f"folder of the raw files; {VARIABLE} if not given"}),
        ("--seeds", {"type": int, "default": 10, "help": "initializations; 10 if not given"}),
        threads=2,
    )
    seeds = experiment.args.seeds
    if seeds < 2:
        sys.exit("figure09_10_gcn: --seeds must be at least 2, for a standard deviation")
    data = experiment.args.data or os.environ.get(VARIABLE) or None
    with tempfile.TemporaryDirectory() as folder:
        if experiment.quick:
            data, epochs = str(planetoid_files.write(Path(folder) / "raw")), 60
        elif found_data(data):
            epochs = 200
        else:
            return
        options = ["--seeds", seeds, "--steps", epochs, *(["--data", data] if data else [])]
        history, report, _ = trained("gcn", Path(folder) / "run", *options)
        runs = sorted((Path(folder) / "run").glob("seed-*/report.json"), key=lambda f: int(f.parent.name[5:]))
        each = [json.loads(file.read_text()) for file in runs]
    graph = "a graph of 42 nodes" if experiment.quick else "CiteSeer"
    accuracies = [run["test_accuracy"] for run in each]
    print(f"{graph}: {report['learned']}")
    experiment.figure(f"loss_{seeds}.png", loss_figure(history, graph, seeds))
    experiment.figure(f"accuracy_{seeds}.png", accuracy_figure(history, graph, seeds))
    published = None if experiment.quick else PUBLISHED
    experiment.figure(f"histogram_{seeds}.png", histogram(accuracies, graph, published))
    for name in ("seconds", "gradient_norm", "learning_rate"):
        del history[name]
    rows = zip(*history.values(), strict=True)
    experiment.csv(f"curves_{seeds}.csv", [dict(zip(history, row, strict=True)) for row in rows])
    parts = ("training", "validation")
    experiment.json(
        f"summary_{seeds}.json",
        epochs=epochs,
        training_seconds=sum(run["seconds"] for run in each),
        published_test_accuracy=published,
        graph=report["graph"],
        seeds=seeds,
        test_accuracy_mean=np.mean(accuracies),
        test_accuracy_std=np.std(accuracies, ddof=1),
        test_accuracies=accuracies,
        **{f"{p}_accuracy_mean": np.mean([run[f"{p}_accuracy"] for run in each]) for p in parts},
    )


if __name__ == "__main__":
    main()
