"""Pictures of a run of pcg: loss (figure 7 of the paper), residuals (figure 8) and the learned factor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from learnsolve.csr import CSR
from learnsolve.evaluation import Evaluation
from learnsolve.recipes.harness.base import History, Outcome
from learnsolve.recipes.harness.plots import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    finish,
    loss_figure,
    new_figure,
    new_panels,
)
from learnsolve.recipes.harness.problem import describe
from learnsolve.recipes.pcg.factor import factor_of

if TYPE_CHECKING:
    from learnsolve.recipes.pcg import PcgRecipe

FACTOR_ENTRIES = 20_000  # more would be drawn as one dark area
WIDE = 5  # quotient of losses from which on the axis is logarithmic
STYLES = {
    "learned": {"color": BLUE, "linewidth": 2.2},
    "none": {"color": BLACK, "linestyle": "--"},
    "Jacobi": {"color": GREY, "linestyle": ":", "linewidth": 2.0},
    "IC(0)": {"color": ORANGE, "linestyle": "-."},
    "AMG": {"color": PURPLE},
}


def figures_of(recipe: PcgRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    settings, where = recipe.settings, describe(recipe.settings.problem)
    what = r"$\log_{10}(1 + \|r_i\| / \|b\|)$" if settings.variant == "demo" else r"$\|r_i\| / \|b\|$"
    yield (
        "loss.png",
        loss_figure(
            f"Training loss through {settings.iterations} iterations, {where}",
            f"weighted {what}, mean",
            history,
            held_out="held-out, all iterations" if settings.curriculum else "held-out",
            log=min(history["loss"]) * WIDE < max(history["loss"]),
        ),
    )
    for sides, evaluation in outcome.data["evaluations"].items():
        name = "residuals.png" if sides == "held-out" else f"residuals_{sides}.png"
        yield name, residuals_figure(evaluation, f"{where}, {sides}")
    L = factor_of(recipe.model).detach()
    if L.nnz <= FACTOR_ENTRIES:
        yield "factor.png", factor_figure(L, settings.form)


def residuals_figure(evaluation: Evaluation, where: str) -> Any:
    """The median over the right-hand sides, in a band from the smallest to the largest."""
    systems = max(len(histories) for histories in evaluation.histories.values())
    many = f", median and range of {systems}" if systems > 1 else ""
    figure, axes = new_figure(f"Conjugate gradients, {where}{many}", "iteration", r"$\|b - A x_k\| / \|b\|$")
    for name, histories in evaluation.histories.items():
        if not histories:
            continue
        longest = max(len(h) for h in histories)
        table = torch.stack([torch.cat((h, h[-1:].expand(longest - len(h)))) for h in histories])
        table = table.clamp(min=torch.finfo(table.dtype).tiny)
        steps = range(longest)
        axes.semilogy(steps, table.median(0).values, label=name, **STYLES[name])
        if systems > 1:
            axes.fill_between(
                steps, table.amin(0), table.amax(0), color=STYLES[name]["color"], alpha=0.12, linewidth=0
            )
    for rtol in sorted({row.rtol for row in evaluation.rows}):
        axes.axhline(rtol, color=GREY, linewidth=0.6, zorder=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(bottom=min(row.rtol for row in evaluation.rows) / 100)
    finish(axes)
    return figure


def factor_figure(L: CSR, form: str) -> Any:
    """The diagonal and the other entries of L, each on a scale of its own: their sizes differ."""
    rows, columns = L.pattern.row_indices.cpu(), L.col_indices.cpu()
    values, on = L.values.cpu(), rows == columns
    words = "M = L L^T" if form == "product" else "M = (L L^T)^{-1}"
    figure, panels = new_panels(f"Learned factor, ${words}$", 2)
    n = L.shape[0]
    size = max(1.0, (220 / n) ** 2)
    for axes, name, part in zip(panels, ("diagonal", "below the diagonal"), (on, ~on), strict=True):
        axes.set_title(name)
        axes.set_xlabel("column")
        axes.set_xlim(-1, n)
        axes.set_ylim(n, -1)
        axes.set_aspect("equal")
        if bool(part.any()):
            shown = axes.scatter(
                columns[part], rows[part], c=values[part], s=size, marker="s", cmap="viridis", linewidth=0
            )
            figure.colorbar(shown, ax=axes, shrink=0.8)
    panels[0].set_ylabel("row")
    return figure
