"""Pictures of a run of heavyball_network: loss, parameters, predicted against best ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from learnsolve.recipes.harness.base import History, Outcome
from learnsolve.recipes.harness.plots import BLUE, GREY, ORANGE, loss_figure, new_figure
from learnsolve.recipes.heavyball.plots import baselines_of, parameters_figure

if TYPE_CHECKING:
    from learnsolve.recipes.heavyball_network import HeavyballNetworkRecipe

ALPHA, BETA = r"$\alpha\,\|A\|_\infty$", r"$\beta$"


def figures_of(
    recipe: HeavyballNetworkRecipe, history: History, outcome: Outcome
) -> Iterator[tuple[str, Any]]:
    settings, compared = recipe.settings, outcome.numbers["parameters"]
    where = f"{settings.family} family, {' x '.join(map(str, settings.grid))}"
    yield (
        "loss.png",
        loss_figure(
            f"Loss through {settings.sweeps} sweeps, {where}",
            "part of the energy that is left",
            history,
            baselines=baselines_of(compared, "expected_loss", ("network",), history),
            held_out="held-out matrices",
            log=True,
        ),
    )
    lines = {"alpha": (ALPHA, "scaled_alpha"), "beta": (BETA, "beta")}
    ylabel = "means over the held-out matrices"
    yield "parameters.png", parameters_figure(where, ylabel, history, compared, lines)
    if len(outcome.data["scaled"]) > 1:
        title = f"Parameters of {settings.held_out_matrices} unseen matrices, {where}"
        yield "matrices.png", matrices_figure(title, outcome)


def matrices_figure(title: str, outcome: Outcome) -> Any:
    """Predicted against best, a point for each held-out matrix."""
    figure, axes = new_figure(title, "best for this matrix", "predicted by the network")
    predicted, best = (outcome.data["scaled"][name] for name in ("network", "best of each"))
    for p, b, colour, marker, label in zip(predicted, best, (BLUE, ORANGE), "os", (ALPHA, BETA), strict=True):
        axes.plot(b, p, linestyle="none", marker=marker, markersize=5, color=colour, label=label)
    everything = [*predicted[0], *predicted[1], *best[0], *best[1]]
    ends = [min(everything), max(everything)]
    axes.plot(ends, ends, color=GREY, linewidth=0.8, zorder=0)
    axes.legend(frameon=False)
    return figure
