"""Pictures of a run of heavyball: loss (figure 5 of the paper), parameters (figure 6), residuals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from learnsolve.recipes import _problem
from learnsolve.recipes._plots import BLACK, BLUE, GREY, ORANGE, PURPLE, new_figure
from learnsolve.recipes.base import History, Outcome

if TYPE_CHECKING:
    from learnsolve.recipes.heavyball import HeavyballRecipe

STYLES = {
    "learned": {"color": BLUE, "linewidth": 2.0},
    "network": {"color": BLUE, "linewidth": 2.0},
    "start": {"color": GREY, "linestyle": "--"},
    "one pair for all": {"color": GREY, "linestyle": "--"},
    "asymptotic": {"color": ORANGE, "linestyle": "-."},
    "best": {"color": BLACK, "linestyle": ":", "linewidth": 2.0},
}


def style(name: str) -> dict[str, Any]:
    return STYLES.get(name) or STYLES[name.split()[0]]


def figures(recipe: HeavyballRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    yield "loss.png", loss_figure(recipe, history, outcome)
    yield "parameters.png", parameters_figure(recipe, history, outcome)
    if recipe.settings.variant == "network":
        if len(outcome.data["scaled"]) > 1:
            yield "matrices.png", matrices_figure(recipe, outcome)
    else:
        yield "convergence.png", convergence_figure(recipe, outcome)


def _where(recipe: HeavyballRecipe) -> str:
    settings = recipe.settings
    if settings.variant == "network":
        return f"{settings.family} family, {' x '.join(map(str, settings.grid))}"
    return _problem.describe(settings.problem)


def loss_figure(recipe: HeavyballRecipe, history: History, outcome: Outcome) -> Any:
    title = f"Loss through {recipe.settings.sweeps} sweeps, {_where(recipe)}"
    relative = recipe.settings.variant == "network"
    ylabel = "part of the energy that is left" if relative else "energy left by the sweeps, per vector"
    figure, axes = new_figure(title, "optimiser step", ylabel)
    key = "expected_loss" if relative else "held_out_loss"
    highest = max(v for name in ("loss", "held_out_loss") for v in history[name] if v is not None)
    for name, compared in outcome.numbers["parameters"].items():
        # Far above the curve a baseline would only squeeze it.
        if name not in ("learned", "network", "start") and compared.get(key) and compared[key] < 30 * highest:
            axes.axhline(compared[key], label=f"{name}, held-out", **style(name))
    axes.semilogy(history["step"], history["loss"], color=BLUE, linewidth=2, label="training")
    held = [(s, h) for s, h in zip(history["step"], history["held_out_loss"], strict=True) if h is not None]
    what = "held-out matrices" if relative else "held-out"
    axes.plot(*zip(*held, strict=True), color=PURPLE, linewidth=1.2, label=what)
    axes.margins(x=0.01)
    axes.legend(frameon=False)
    return figure


def parameters_figure(recipe: HeavyballRecipe, history: History, outcome: Outcome) -> Any:
    network = recipe.settings.variant == "network"
    title = f"Parameters over steps, {_where(recipe)}"
    what = "means over the held-out matrices" if network else "value"
    figure, axes = new_figure(title, "optimiser step", what)
    names = {"alpha": r"$\alpha\,\|A\|_\infty$" if network else r"$\alpha$", "beta": r"$\beta$"}
    for key, colour in (("alpha", BLUE), ("beta", ORANGE)):
        known = [(s, v) for s, v in zip(history["step"], history[key], strict=True) if v is not None]
        axes.plot(*zip(*known, strict=True), color=colour, linewidth=2, label=names[key])
        stored = "scaled_alpha" if network and key == "alpha" else key
        for name, compared in outcome.numbers["parameters"].items():
            if name.startswith(("asymptotic", "best")):
                lines = {k: v for k, v in style(name).items() if k != "color"} | {"linewidth": 1.4}
                axes.axhline(compared[stored], color=colour, label=f"{names[key]}, {name}", **lines)
    axes.margins(x=0.01)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def convergence_figure(recipe: HeavyballRecipe, outcome: Outcome) -> Any:
    title = f"The heavy ball, {_where(recipe)}"
    figure, axes = new_figure(title, "sweep", r"$\|A x_k\| / \|A x_0\|$, held-out vectors")
    for name, curve in outcome.data["curves"].items():
        alpha, beta = outcome.data["pairs"][name]
        axes.semilogy(
            range(len(curve)),
            curve,
            label=rf"{name} ($\alpha$ {alpha:.3f}, $\beta$ {beta:.3f})",
            **style(name),
        )
    axes.axvline(recipe.settings.sweeps, color=GREY, linewidth=0.8)
    axes.annotate(
        "sweeps in the loss",
        (recipe.settings.sweeps, 0.02),
        (4, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color=GREY,
        fontsize=8,
    )
    axes.margins(x=0.01)
    axes.legend(frameon=False)
    return figure


def matrices_figure(recipe: HeavyballRecipe, outcome: Outcome) -> Any:
    """Predicted against best, a point for each held-out matrix."""
    title = f"Parameters of {recipe.settings.held_out_matrices} unseen matrices, {_where(recipe)}"
    figure, axes = new_figure(title, "best for this matrix", "predicted by the network")
    predicted, best = (outcome.data["scaled"][name] for name in ("network", "best of each"))
    labels = (r"$\alpha\,\|A\|_\infty$", r"$\beta$")
    for p, b, colour, marker, label in zip(predicted, best, (BLUE, ORANGE), "os", labels, strict=True):
        axes.plot(b, p, linestyle="none", marker=marker, markersize=5, color=colour, label=label)
    everything = [*predicted[0], *predicted[1], *best[0], *best[1]]
    ends = [min(everything), max(everything)]
    axes.plot(ends, ends, color=GREY, linewidth=0.8, zorder=0)
    axes.legend(frameon=False)
    return figure
