"""Pictures of a Jacobi training: loss (figure 3 of the paper), weights (figure 4) and convergence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from learnsolve.recipes import _problem
from learnsolve.recipes._plots import BLACK, BLUE, GREY, ORANGE, PURPLE, new_figure, new_panels
from learnsolve.recipes.base import History, Outcome

if TYPE_CHECKING:
    from learnsolve.recipes.jacobi import JacobiRecipe

STYLES = {
    "learned": {"color": BLUE, "linestyle": "-", "linewidth": 2.0},
    "weight 1": {"color": GREY, "linestyle": "--"},
    "textbook": {"color": ORANGE, "linestyle": "-."},
    "closed form": {"color": BLACK, "linestyle": ":", "linewidth": 2.0},
}
MARKERS_UP_TO = 200  # points of a curve that are told apart


def style(name: str) -> dict[str, Any]:
    return STYLES["textbook" if name.startswith("textbook") else name]


def figures(recipe: JacobiRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    yield "loss.png", loss_figure(recipe, history, outcome)
    yield "weights.png", weights_figure(recipe, outcome)
    yield "convergence.png", convergence_figure(recipe, outcome)


def loss_figure(recipe: JacobiRecipe, history: History, outcome: Outcome) -> Any:
    title = f"Training loss, {_problem.describe(recipe.settings.problem)}"
    figure, axes = new_figure(title, "optimiser step", "energy left by the sweeps, per test vector")
    for name, compared in outcome.numbers["weights"].items():
        # Far above the curve a baseline would only squeeze it.
        if name != "learned" and np.isfinite(compared["held_out_loss"]):
            axes.axhline(compared["held_out_loss"], label=f"{name}, held-out", **style(name))
    axes.plot(history["step"], history["loss"], color=BLUE, linewidth=2, label="training")
    held = [(s, h) for s, h in zip(history["step"], history["held_out_loss"], strict=True) if h is not None]
    if held:
        axes.plot(*zip(*held, strict=True), color=PURPLE, linewidth=1.2, label="held-out")
    axes.margins(x=0.01)
    axes.legend(frameon=False)
    return figure


def weights_figure(recipe: JacobiRecipe, outcome: Outcome) -> Any:
    weight = recipe.weight.detach().cpu().numpy()
    grid = _problem.grid_of(recipe.settings.problem)
    if grid and len(grid) > 1 and min(grid) > 1:
        return _weights_image(recipe, outcome, grid)
    place = "grid point" if grid else "row of the matrix"
    title = f"Learned Jacobi weights, {_problem.describe(recipe.settings.problem)}"
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
    title = f"Jacobi weights, {_problem.describe(recipe.settings.problem)}"
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


def convergence_figure(recipe: JacobiRecipe, outcome: Outcome) -> Any:
    title = f"Jacobi with learned and constant weights, {_problem.describe(recipe.settings.problem)}"
    figure, axes = new_figure(title, "sweep", r"$\|A x_k\| / \|A x_0\|$, held-out vectors")
    for name, curve in outcome.data["curves"].items():
        factor = outcome.numbers["weights"][name]["convergence_factor"]
        label = name if factor is None else f"{name} (factor {factor:.4f})"
        axes.semilogy(range(len(curve)), curve, label=label, **style(name))
    axes.margins(x=0.01)
    axes.legend(frameon=False)
    return figure
