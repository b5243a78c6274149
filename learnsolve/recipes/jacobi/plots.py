"""Pictures of a Jacobi training: loss (figure 3 of the paper), weights (figure 4) and convergence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from learnsolve.recipes.harness.base import History, Outcome
from learnsolve.recipes.harness.plots import (
    BLUE,
    loss_figure,
    new_figure,
    new_panels,
    residuals_figure,
    style,
)
from learnsolve.recipes.harness.problem import describe, grid_of

if TYPE_CHECKING:
    from learnsolve.recipes.jacobi import JacobiRecipe

MARKERS_UP_TO = 200  # points of a curve that are drawn as circles


def figures_of(recipe: JacobiRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    where, compared = describe(recipe.settings.problem), outcome.numbers["weights"]
    baselines = [(name, values["held_out_loss"]) for name, values in compared.items() if name != "learned"]
    yield (
        "loss.png",
        loss_figure(
            f"Training loss, {where}",
            "energy left by the sweeps, per test vector",
            history,
            baselines=[(name, loss) for name, loss in baselines if np.isfinite(loss)],
        ),
    )
    yield "weights.png", weights_figure(recipe, outcome)
    labels = {}
    for name, values in compared.items():
        factor = values["convergence_factor"]
        labels[name] = name if factor is None else f"{name} (factor {factor:.4f})"
    title = f"Jacobi with learned and constant weights, {where}"
    yield "convergence.png", residuals_figure(title, outcome.data["curves"], labels)[0]


def weights_figure(recipe: JacobiRecipe, outcome: Outcome) -> Any:
    weight = recipe.weight.detach().cpu().numpy()
    grid = grid_of(recipe.settings.problem)
    if grid and len(grid) > 1 and min(grid) > 1:
        return _weights_image(recipe, outcome, grid)
    place = "grid point" if grid else "row of the matrix"
    title = f"Learned Jacobi weights, {describe(recipe.settings.problem)}"
    figure, axes = new_figure(title, place, "weight $w_i$")
    for name, constant in outcome.data["constants"].items():
        axes.axhline(constant, label=name, **style(name))
    points = np.arange(1, len(weight) + 1) if grid else np.arange(len(weight))
    best = outcome.data["closed form"]
    few = len(weight) <= MARKERS_UP_TO
    if isinstance(best, Tensor) and few:
        axes.plot(points, best.cpu().numpy(), label="closed form", **style("closed form"))
    marks: dict[str, Any] = {"marker": "o", "markersize": 6} if few else {"marker": ".", "markersize": 2}
    axes.plot(points, weight, linestyle="none", color=BLUE, label="learned", **marks)
    if len(weight) <= 20:
        axes.set_xticks(points)
    axes.legend(frameon=False, loc="best")
    return figure


def _weights_image(recipe: JacobiRecipe, outcome: Outcome, grid: tuple[int, ...]) -> Any:
    """The grid's weights, in 3D those of the middle slice; the closed-form ones beside them on one scale."""
    best = outcome.data["closed form"]
    fields = {"learned": recipe.weight.detach()} | ({"closed form": best} if isinstance(best, Tensor) else {})
    title = f"Jacobi weights, {describe(recipe.settings.problem)}"
    ylabel, middle = "first axis", grid[0] // 2
    if len(grid) == 3:
        title, ylabel = f"{title}, slice {middle + 1} of the first axis", "second axis"
    images = [field.reshape(grid).cpu().numpy() for field in fields.values()]
    images = [image[middle] if len(grid) == 3 else image for image in images]
    scale = {"vmin": min(i.min() for i in images), "vmax": max(i.max() for i in images), "cmap": "viridis"}
    rows, columns = images[0].shape
    figure, panels = new_panels(title, len(images))
    for axes, name, image in zip(panels, fields, images, strict=True):
        axes.set_title(name)
        axes.set_xlabel("last axis")
        shown = axes.imshow(
            image, extent=(0.5, columns + 0.5, rows + 0.5, 0.5), interpolation="nearest", **scale
        )
    panels[0].set_ylabel(ylabel)
    figure.colorbar(shown, ax=panels, label="weight $w_i$", shrink=0.8)
    return figure
