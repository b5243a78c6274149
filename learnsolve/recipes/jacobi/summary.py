"""A run of the recipe in sentences: where the weights are large, and what they were not trained for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from learnsolve.recipes.harness.problem import grid_of

if TYPE_CHECKING:
    from learnsolve.recipes.jacobi import JacobiRecipe


def summary(recipe: JacobiRecipe, columns: list[str], rows: list[list[Any]]) -> str:
    """Sentences from the weights and the table, whose first row is that of the learned weights."""
    sentences = [where_weights_are_large(recipe)]
    if lost := lost_columns(recipe, columns, rows):
        of = "" if recipe.settings.hard_fraction == 1 else " of the hardest vectors"
        sentences.append(
            f"The weights were trained only for the energy that {sweeps_leave(recipe)}{of}; a constant "
            f"weight is better in what was not trained: {', '.join(lost)}."
        )
    factor = rows[0][columns.index("convergence factor")]
    if factor is None or factor > 1:
        sentences.append(
            f"Repeated beyond the {recipe.settings.sweeps} in the loss, sweeps with these weights diverge; "
            "train with more --sweeps."
        )
    return " ".join(sentences)


def sweeps_leave(recipe: JacobiRecipe) -> str:
    sweeps = recipe.settings.sweeps
    return "one sweep leaves" if sweeps == 1 else f"{sweeps} sweeps leave"


def lost_columns(recipe: JacobiRecipe, columns: list[str], rows: list[list[Any]]) -> list[str]:
    """The columns that were not trained for and where a constant weight is better, to the digits shown."""

    def shown(value: float | None) -> float:
        return math.inf if value is None else float(f"{value:.4g}")

    learned, *constants = [row for row in rows if row[0] != "closed form"]
    trained = ["loss per vector"] if recipe.settings.hard_fraction == 1 else []
    return [
        name
        for k, name in enumerate(columns)
        if k > 0 and name not in trained and min(shown(row[k]) for row in constants) < shown(learned[k])
    ]


def where_weights_are_large(recipe: JacobiRecipe) -> str:
    weight = recipe.weight.detach().cpu()
    grid = grid_of(recipe.settings.problem)
    low, high = float(weight.min()), float(weight.max())
    if high - low < 1e-3 * abs(high):
        return f"All rows carry about the same weight, {float(weight.mean()):.3f}."
    if grid and min(grid) >= 3:
        field = weight.reshape(grid)
        interior = torch.zeros(grid, dtype=torch.bool)
        interior[(slice(1, -1),) * len(grid)] = True
        edge, middle = float(field[~interior].mean()), float(field[interior].mean())
        where = "The two ends" if len(grid) == 1 else "Points beside the boundary"
        if abs(edge - middle) > 0.2 * (high - low):
            size = "larger" if edge > middle else "smaller"
            return f"{where} carry the {size} weights ({edge:.3f} against {middle:.3f} inside, on average)."
    return (
        f"The weights lie between {low:.3f} (row {int(weight.argmin())}) and {high:.3f} "
        f"(row {int(weight.argmax())}), {float(weight.median()):.3f} in the middle."
    )
