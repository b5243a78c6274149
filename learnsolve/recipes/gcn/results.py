"""Accuracies and losses of the initializations of a run of gcn: means, deviations, and each by itself.

Pictures: losses and accuracies (figures 9 and 10 of the paper), and each training.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.figures import BLUE, ORANGE, PURPLE, Line, each_figure, known, picture
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
STYLES = {
    "training": {"color": BLUE},
    "validation": {"color": PURPLE, "linestyle": "--"},
    "test": {"color": ORANGE},
}


def mean_std(values: Tensor) -> tuple[float, float | None]:
    """Mean and sample deviation; None for the deviation of one value."""
    return values.mean().item(), values.std().item() if len(values) > 1 else None


def measured(recipe: GcnRecipe) -> list[float | None]:
    """The numbers of COLUMNS, after an evaluation."""
    assert recipe.losses is not None
    numbers = [mean_std(recipe.losses.double())[1], mean_std(recipe.scores[recipe.held_out][0])[1]]
    numbers += mean_std(recipe.scores["test"][0])
    for part in PARTS:
        numbers += mean_std(recipe.scores[part][1]) if part in recipe.scores else (None, None)
    return numbers


def outcome_of(recipe: GcnRecipe) -> Outcome:
    if not recipe.scores:
        recipe.evaluate()
    graph, settings = recipe.data.graph, recipe.settings
    columns = ["nodes", "number", "loss", "accuracy", "deviation", "lowest", "highest"]
    rows: list[list] = []
    means: dict[str, float | None] = {}
    each: dict[str, list[float]] = {}
    for part in recipe.data.parts:
        losses, right = recipe.scores[part.name]
        mean, std = mean_std(right)
        means |= {f"{part.name}_accuracy_mean": mean, f"{part.name}_accuracy_std": std}
        each[f"{part.name}_accuracies"] = right.tolist()
        cells = [_percent(v) for v in (mean, std, right.min().item(), right.max().item())]
        rows.append([part.name, str(len(part.rows)), losses.mean().item(), *cells])
    n, features = graph.features.shape
    numbers = {
        "variant": settings.variant,
        "graph": {
            **{"name": graph.name, "nodes": n, "edges": graph.adjacency.nnz // 2},
            **{"features": features, "classes": graph.classes},
        },
        "loss_is": "cross-entropy of the training nodes with dropout, and weight decay",
        "held_out_loss_is": f"cross-entropy of the {recipe.held_out} nodes, without either",
        "seeds": settings.seeds,
        **means,
        **each,
    }
    test, std = means["test_accuracy_mean"], means["test_accuracy_std"]
    words = f"Test accuracy {_percent(test)}"
    if std is not None:
        words += f", mean of {settings.seeds} initializations with a standard deviation of {_percent(std)}"
    if settings.variant == "kipf_welling" and (n, features) == CITESEER:
        numbers["published_test_accuracy"] = PUBLISHED
        words += f"; Kipf and Welling report {_percent(PUBLISHED)}"
    return Outcome(numbers, columns, rows, words + ".")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def figures_of(recipe: GcnRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    settings, numbers = recipe.settings, outcome.numbers
    name = {"citeseer": "CiteSeer"}.get(recipe.data.graph.name, recipe.data.graph.name)
    where = name + ", variant demo" * recipe.variant.demo
    if settings.seeds > 1:
        where += f"\nmean of {settings.seeds} initializations ± 2 standard deviations"
    extra = [("dropout", settings.dropout), ("weight decay", settings.weight_decay)]
    on = " and ".join(word for word, value in extra if value)
    lines = [_curve(history, "loss", "training", f"training with {on}" if on else "training")]
    if recipe.held_out == "validation":
        lines.append(_curve(history, "held_out_loss", "validation", "validation"))
    lines.append(_curve(history, "test_loss", "test", "test"))
    yield "loss.png", picture(f"Loss, {where}", "epoch", "cross-entropy", lines, ylim=(0, None))
    ends = {part.name: 100 * numbers[f"{part.name}_accuracy_mean"] for part in recipe.data.parts}
    lines = [_curve(history, f"{p}_accuracy", p, f"{p} ({end:.1f} % at the end)") for p, end in ends.items()]
    ylabel = "share of nodes in the right class"
    yield "accuracy.png", picture(f"Accuracy, {where}", "epoch", ylabel, lines, ylim=(0, 1.02))
    if settings.seeds > 1:
        mean, std = numbers["test_accuracy_mean"], numbers["test_accuracy_std"]
        title = f"Test accuracy of each of {settings.seeds} initializations"
        ylabel, label = "accuracy after the last epoch", f"mean {100 * mean:.1f} % ± {200 * std:.1f} %"
        values = dict(enumerate(numbers["test_accuracies"]))
        yield (
            "seeds.png",
            each_figure(title, "initialization", ylabel, values, mean, std, label, color=ORANGE),
        )


def _curve(history: History, name: str, part: str, label: str) -> Line:
    """The mean of column `name` and, where it has one, its band."""
    steps, means = map(np.array, known(history, name))
    _, deviations = known(history, f"{name}_std")
    if len(deviations) < len(means) or not deviations:
        return Line(label, means, steps, style=STYLES[part])
    band = means - 2 * np.array(deviations), means + 2 * np.array(deviations)
    if name.endswith("accuracy"):
        band = np.maximum(band[0], 0), np.minimum(band[1], 1)
    return Line(label, means, steps, band, STYLES[part])
