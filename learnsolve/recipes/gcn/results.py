"""Accuracies and losses of the initializations of a run of gcn: means, deviations, and individual values.

Figures: losses and accuracies (figures 9 and 10 of the paper), and each training.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from learnsolve.evaluation.figures import ORANGE
from learnsolve.recipes.harness.figures import Curves, each_figure
from learnsolve.recipes.harness.recipe import Outcome
from learnsolve.recipes.harness.tables import tabulate

if TYPE_CHECKING:
    from learnsolve.recipes.gcn import GcnRecipe

# Losses and accuracies of each initialization, by the part of the nodes.
Scores = dict[str, tuple[Tensor, Tensor]]

PARTS = ("training", "validation", "test")
COLUMNS = (
    *("loss_std", "held_out_loss_std", "test_loss", "test_loss_std"),
    *(f"{part}_accuracy{end}" for part in PARTS for end in ("", "_std")),
)
LOSSES = {
    "loss": "training, dropout {dropout}, weight decay {weight_decay}",
    **{"held_out_loss": "held-out", "test_loss": "test"},
}
RIGHT = "share of nodes in the right class"
CURVES = {
    "loss.png": Curves("Loss", "cross-entropy", LOSSES, xlabel="epoch", ylim=(0, None)),
    "accuracy.png": Curves(
        "Accuracy", RIGHT, {f"{part}_accuracy": part for part in PARTS}, xlabel="epoch", ylim=(0, 1.02)
    ),
}
CITESEER = (3327, 3703)
PUBLISHED = 0.703  # Kipf and Welling, table 2: mean over 100 initializations


def mean_std(values: Tensor) -> tuple[float, float | None]:
    """Mean and sample deviation; None for the deviation of one value."""
    return values.mean().item(), values.std().item() if len(values) > 1 else None


def measured(recipe: GcnRecipe) -> list[float | None]:
    """The values of COLUMNS after an evaluation."""
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
    rows, numbers = [], {}
    for part in recipe.data.parts:
        losses, right = recipe.scores[part.name]
        mean, std = mean_std(right)
        row = {"nodes": part.name, "number": str(len(part.rows)), "loss": losses.mean().item()}
        row |= {"accuracy": _percent(mean), "deviation": _percent(std)}
        rows.append(row | {"lowest": _percent(right.min().item()), "highest": _percent(right.max().item())})
        numbers |= {f"{part.name}_accuracy_mean": mean, f"{part.name}_accuracy_std": std}
        numbers |= {f"{part.name}_accuracies": right.tolist()}
    n, features = graph.features.shape
    about = {"name": graph.name, "nodes": n, "edges": graph.adjacency.nnz // 2, "features": features}
    numbers = {
        "variant": settings.variant,
        "graph": about | {"classes": graph.classes},
        "loss_is": "cross-entropy of the training nodes with dropout, and weight decay",
        "held_out_loss_is": f"cross-entropy of the {recipe.held_out} nodes, without either",
        "seeds": settings.seeds,
        **numbers,
    }
    words, std = f"Test accuracy {_percent(numbers['test_accuracy_mean'])}", numbers["test_accuracy_std"]
    if std is not None:
        words += f", mean of {settings.seeds} initializations with a standard deviation of {_percent(std)}"
    if settings.variant == "kipf_welling" and (n, features) == CITESEER:
        numbers["published_test_accuracy"] = PUBLISHED
        words += f"; Kipf and Welling report {_percent(PUBLISHED)}"
    figures = {}
    if std is not None:
        mean, values = numbers["test_accuracy_mean"], dict(enumerate(numbers["test_accuracies"]))
        figures["seeds.png"] = partial(
            each_figure,
            f"Test accuracy of each of {settings.seeds} initializations",
            *("initialization", "accuracy after the last epoch", values, mean, std),
            f"mean {100 * mean:.1f} % ± {200 * std:.1f} %",
            color=ORANGE,
        )
    return Outcome(numbers, *tabulate(rows, {name: name for name in rows[0]}), words + ".", figures)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
