"""Pictures of a run of heavyball: loss (figure 5 of the paper), parameters (figure 6), residuals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from learnsolve.recipes.harness.base import History, Outcome
from learnsolve.recipes.harness.plots import (
    BLUE,
    GREY,
    ORANGE,
    finish,
    known,
    loss_figure,
    new_figure,
    residuals_figure,
    style,
)
from learnsolve.recipes.harness.problem import describe

if TYPE_CHECKING:
    from learnsolve.recipes.heavyball import HeavyballRecipe


def figures_of(recipe: HeavyballRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    where, sweeps = describe(recipe.settings.problem), recipe.settings.sweeps
    compared = outcome.numbers["parameters"]
    baselines = baselines_of(compared, "held_out_loss", ("learned", "start"), history)
    ylabel = "energy left by the sweeps, per vector"
    title = f"Loss through {sweeps} sweeps, {where}"
    yield "loss.png", loss_figure(title, ylabel, history, baselines=baselines, log=True)
    lines = {"alpha": (r"$\alpha$", "alpha"), "beta": (r"$\beta$", "beta")}
    yield "parameters.png", parameters_figure(where, "value", history, compared, lines)
    pairs = outcome.data["pairs"].items()
    labels = {name: rf"{name} ($\alpha$ {alpha:.3f}, $\beta$ {beta:.3f})" for name, (alpha, beta) in pairs}
    figure, axes = residuals_figure(f"The heavy ball, {where}", outcome.data["curves"], labels)
    axes.axvline(sweeps, color=GREY, linewidth=0.8)
    axes.annotate(
        "sweeps in the loss",
        (sweeps, 0.02),
        (4, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color=GREY,
        fontsize=8,
    )
    yield "convergence.png", figure


def baselines_of(
    compared: dict[str, Any], key: str, without: Iterable[str], history: History
) -> list[tuple[str, float]]:
    """Losses to draw beside the curve; far above it they would only squeeze it."""
    highest = max(v for name in ("loss", "held_out_loss") for v in history[name] if v is not None)
    losses = [(name, values.get(key)) for name, values in compared.items() if name not in without]
    return [(name, loss) for name, loss in losses if loss and loss < 30 * highest]


def parameters_figure(
    where: str, ylabel: str, history: History, compared: dict[str, Any], lines: dict[str, tuple[str, str]]
) -> Any:
    """alpha and beta over the steps; `lines`: label, and key in `compared`, of each column."""
    figure, axes = new_figure(f"Parameters over steps, {where}", "optimiser step", ylabel)
    for (column, (label, key)), colour in zip(lines.items(), (BLUE, ORANGE), strict=True):
        axes.plot(*known(history, column), color=colour, linewidth=2, label=label)
        for name, values in compared.items():
            if name.startswith(("asymptotic", "best")):
                kind = {**style(name), "linewidth": 1.4, "color": colour}
                axes.axhline(values[key], label=f"{label}, {name}", **kind)
    finish(axes, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
