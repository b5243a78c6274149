"""Accuracies and losses of the initializations of a run of gcn: means, deviations, and each by itself.

Pictures: losses and accuracies (figures 9 and 10 of the paper), and each training.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.figures import BLUE, ORANGE, PURPLE, band, each_figure, finish, new_figure
from learnsolve.recipes.harness.recipe import Outcome

if TYPE_CHECKING:
    from learnsolve.recipes.gcn import GcnRecipe

# Losses and accuracies of each initialization, by the part of the nodes.
Scores = dict[str, tuple[Tensor, Tensor]]

PARTS = ("training", "validation", "test")
COLUMNS = (
    *("loss_std", "held_out_loss_std", "test_loss", "test_loss_std"),
    *(f"{part}_accuracy{end}" for part in PARTS for end in ("", "_std")),
)
CITESEER = (3327, 3703)
PUBLISHED = 0.703  # Kipf and Welling, table 2: mean over 100 initializations
COLORS = {"training": BLUE, "validation": PURPLE, "test": ORANGE}
LINES = {"training": "-", "validation": "--", "test": "-"}


def mean_std(values: Tensor) -> tuple[float, float | None]:
    """Mean and sample deviation; None for the deviation of one value."""
    return values.mean().item(), values.std().item() if len(values) > 1 else None


def measured(recipe: GcnRecipe) -> list[float | None]:
    """The numbers of COLUMNS, after an evaluation."""
    assert recipe.losses is not None
    found = [mean_std(recipe.losses.double())[1], mean_std(recipe.scores[recipe.held_out][0])[1]]
    found += mean_std(recipe.scores["test"][0])
    for part in PARTS:
        found += mean_std(recipe.scores[part][1]) if part in recipe.scores else (None, None)
    return found


def outcome_of(recipe: GcnRecipe) -> Outcome:
    if not recipe.scores:
        recipe.evaluate()
    graph, settings = recipe.data.graph, recipe.settings
    columns = ["nodes", "number", "loss", "accuracy", "deviation", "lowest", "highest"]
    rows: list[list] = []
    accuracies: dict[str, float | None] = {}
    each: dict[str, list[float]] = {}
    for part in recipe.data.parts:
        losses, right = recipe.scores[part.name]
        mean, std = mean_std(right)
        accuracies |= {f"{part.name}_accuracy_mean": mean, f"{part.name}_accuracy_std": std}
        each[f"{part.name}_accuracies"] = right.tolist()
        spread = [_percent(v) for v in (mean, std, right.min().item(), right.max().item())]
        rows.append([part.name, str(len(part.rows)), losses.mean().item(), *spread])
    n, features = graph.features.shape
    numbers = {
        "variant": settings.variant,
        "graph": {
            "name": graph.name,
            "nodes": n,
            "edges": graph.adjacency.nnz // 2,
            "features": features,
            "classes": graph.classes,
        },
        "loss_is": "cross-entropy of the training nodes with dropout, and weight decay",
        "held_out_loss_is": f"cross-entropy of the {recipe.held_out} nodes, without either",
        "seeds": settings.seeds,
        **accuracies,
        **each,
    }
    test, std = accuracies["test_accuracy_mean"], accuracies["test_accuracy_std"]
    sentence = f"Test accuracy {_percent(test)}"
    if std is not None:
        sentence += f", mean of {settings.seeds} initializations with a standard deviation of {_percent(std)}"
    if settings.variant == "kipf_welling" and (n, features) == CITESEER:
        numbers["published_test_accuracy"] = PUBLISHED
        sentence += f"; Kipf and Welling report {_percent(PUBLISHED)}"
    sentence += "."
    return Outcome(numbers, columns, rows, sentence)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def figures_of(recipe: GcnRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    yield "loss.png", loss_figure(recipe, history)
    yield "accuracy.png", accuracy_figure(recipe, history, outcome)
    if recipe.settings.seeds > 1:
        yield "seeds.png", seeds_figure(recipe, outcome)


def _title(recipe: GcnRecipe, what: str) -> str:
    count = recipe.settings.seeds
    words = {"citeseer": "CiteSeer"}.get(recipe.data.graph.name, recipe.data.graph.name)
    variant = ", variant demo" if recipe.variant.demo else ""
    many = f"\nmean of {count} initializations ± 2 standard deviations" if count > 1 else ""
    return f"{what}, {words}{variant}{many}"


def _curve(axes: Any, history: History, name: str, part: str, label: str) -> None:
    """The mean of column `name` and, where it has one, its band."""
    known = [k for k, value in enumerate(history[name]) if value is not None]
    steps, means = (np.array([history[key][k] for k in known]) for key in ("step", name))
    deviations = [history[f"{name}_std"][k] for k in known]
    width = 2 * np.array(deviations) if deviations and None not in deviations else 0.0
    lower, upper = means - width, means + width
    if name.endswith("accuracy"):
        lower, upper = np.maximum(lower, 0), np.minimum(upper, 1)
    band(axes, steps, means, lower, upper, color=COLORS[part], linestyle=LINES[part], label=label)


def loss_figure(recipe: GcnRecipe, history: History) -> Any:
    figure, axes = new_figure(_title(recipe, "Loss"), "epoch", "cross-entropy")
    settings = recipe.settings
    extra = [
        word for word, on in (("dropout", settings.dropout), ("weight decay", settings.weight_decay)) if on
    ]
    _curve(
        axes,
        history,
        "loss",
        "training",
        " with ".join(["training", *([" and ".join(extra)] if extra else [])]),
    )
    if recipe.held_out == "validation":
        _curve(axes, history, "held_out_loss", "validation", "validation")
    _curve(axes, history, "test_loss", "test", "test")
    axes.set_ylim(bottom=0)
    finish(axes)
    return figure


def accuracy_figure(recipe: GcnRecipe, history: History, outcome: Outcome) -> Any:
    figure, axes = new_figure(_title(recipe, "Accuracy"), "epoch", "share of nodes in the right class")
    for part in recipe.data.parts:
        mean = outcome.numbers[f"{part.name}_accuracy_mean"]
        _curve(
            axes, history, f"{part.name}_accuracy", part.name, f"{part.name} ({100 * mean:.1f} % at the end)"
        )
    axes.set_ylim(0, 1)
    finish(axes, loc="lower right")
    return figure


def seeds_figure(recipe: GcnRecipe, outcome: Outcome) -> Any:
    mean, std = (outcome.numbers[f"test_accuracy_{what}"] for what in ("mean", "std"))
    return each_figure(
        f"Test accuracy of each of {recipe.settings.seeds} initializations",
        "initialization",
        "test accuracy after the last epoch",
        dict(enumerate(outcome.numbers["test_accuracies"])),
        mean,
        std,
        color=ORANGE,
        label=f"mean {100 * mean:.1f} % ± {200 * std:.1f} %",
    )
