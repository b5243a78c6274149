"""Accuracies and losses of the initialisations of a run of gcn: means, deviations, and each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from learnsolve.recipes.harness.base import Outcome

if TYPE_CHECKING:
    from learnsolve.recipes.gcn import GcnRecipe

# Losses and accuracies of each initialisation, by the part of the nodes.
Scores = dict[str, tuple[Tensor, Tensor]]

PARTS = ("training", "validation", "test")
COLUMNS = (
    *("loss_std", "held_out_loss_std", "test_loss", "test_loss_std"),
    *(f"{part}_accuracy{end}" for part in PARTS for end in ("", "_std")),
)
CITESEER = (3327, 3703)
PUBLISHED = 0.703  # Kipf and Welling, table 2: mean over 100 initialisations


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
        sentence += f", mean of {settings.seeds} initialisations with a standard deviation of {_percent(std)}"
    if settings.variant == "kipf_welling" and (n, features) == CITESEER:
        numbers["published_test_accuracy"] = PUBLISHED
        sentence += f"; Kipf and Welling report {_percent(PUBLISHED)}"
    sentence += "."
    return Outcome(numbers, columns, rows, sentence)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
