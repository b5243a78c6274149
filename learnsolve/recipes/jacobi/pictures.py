"""The figures of the recipe: errors after the sweeps, and the weights (figure 4 of the paper)."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from learnsolve.evaluation.figures import BLUE, Line, look, new_panels, picture
from learnsolve.recipes.harness.tables import LEARNED, Row

MARKERS_UP_TO = 200  # points of a curve that are drawn as circles


def energy_figure(title: str, compared: dict[str, Row], each: dict[str, Any], best: Any) -> Any:
    """A bar for each choice of weights, and a dot for each held-out vector."""
    errors = {name: record["relative_energy_error"] for name, record in compared.items()}
    names = [name for name in errors if errors[name] <= max(30 * errors[LEARNED], 1.0)]
    names.sort(key=lambda name: -errors[name])
    labels = {"best constant": f"best constant, {best:.3f}"}
    widest = max(max(each[name]) for name in names) or 1.0
    xlabel = "energy norm of held-out errors, relative to before"
    figure = picture(title, xlabel, "", xlim=(0, 1.15 * widest))
    (axes,) = figure.axes
    for k, name in enumerate(names):
        color = look(name)["color"]
        axes.barh(k, errors[name], height=0.62, color=color, alpha=0.55 if name == LEARNED else 0.3)
        # Evenly spaced: their order within the bar has no meaning.
        offsets = (np.arange(len(each[name])) * 0.618 % 1 - 0.5) * 0.5
        axes.plot(each[name], k + offsets, linestyle="none", marker=".", markersize=2.5, color=color)
        axes.plot([errors[name]] * 2, [k - 0.31, k + 0.31], color=color, linewidth=2.5)
        weight = "bold" if name == LEARNED else None
        axes.text(1.03 * widest, k, f"{errors[name]:#.3g}", va="center", weight=weight)
    axes.set_yticks(range(len(names)), [labels.get(name, name) for name in names])
    axes.grid(False, axis="y")
    return figure


def weights_figure(title: str, weights: dict[str, Tensor | float], grid: tuple[int, ...] | None) -> Any:
    """The weights over the points; for grids with several axes as images."""
    vectors = {name: w.cpu() for name, w in weights.items() if isinstance(w, Tensor)}
    if grid and len(grid) > 1 and min(grid) > 1:
        return weights_image(title, vectors, grid)
    n = len(vectors[LEARNED])
    points, few = np.arange(n) + bool(grid), n <= MARKERS_UP_TO
    lines = [Line(name, w) for name, w in weights.items() if not isinstance(w, Tensor)]
    if few and "closed form" in vectors:
        lines.append(Line("closed form", vectors["closed form"], points))
    marks = {"marker": "o" if few else ".", "markersize": 6 if few else 2, "linestyle": "none", "color": BLUE}
    lines.append(Line(LEARNED, vectors[LEARNED], points, style=marks))
    place = "grid point" if grid else "row of the matrix"
    ticks: dict[str, Any] = {"xticks": points} if n <= 20 else {}
    return picture(title, place, "weight", lines, **ticks)


def weights_image(title: str, vectors: dict[str, Tensor], grid: tuple[int, ...]) -> Any:
    """The weights on the grid (in 3D the middle slice), next to the closed-form weights on the same scale."""
    images, ylabel = {name: w.reshape(grid).numpy() for name, w in vectors.items()}, "first axis"
    if len(grid) == 3:
        middle, ylabel = grid[0] // 2, "second axis"
        images = {name: image[middle] for name, image in images.items()}
        title += f", slice {middle + 1} of the first axis"
    vmin, vmax = min(i.min() for i in images.values()), max(i.max() for i in images.values())
    figure, panels = new_panels(title, len(images))
    for axes, (name, image) in zip(panels, images.items(), strict=True):
        axes.set(title=name, xlabel="last axis")
        extent = (0.5, image.shape[1] + 0.5, image.shape[0] + 0.5, 0.5)
        drawn = axes.imshow(image, extent=extent, interpolation="nearest", vmin=vmin, vmax=vmax)
    panels[0].set_ylabel(ylabel)
    figure.colorbar(drawn, ax=panels, label="weight", shrink=0.8)
    return figure
