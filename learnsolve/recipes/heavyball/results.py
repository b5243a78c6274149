"""The learned heavy-ball parameters compared with those given by formulas.

Pictures: loss (figure 5 of the paper), parameters (figure 6), residuals.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.analysis import extreme_eigenvalues
from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.figures import (
    BLUE,
    GRAY,
    ORANGE,
    finish,
    known,
    loss_figure,
    new_figure,
    style,
)
from learnsolve.recipes.harness.recipe import Outcome
from learnsolve.recipes.heavyball.closed_form import (
    best_parameters,
    convergence_factor,
    eigenvalues,
    expected_energy,
)
from learnsolve.recipes.matrix import residuals_figure
from learnsolve.recipes.matrix.problem import describe, facts

if TYPE_CHECKING:
    from learnsolve.recipes.heavyball import HeavyballRecipe

SWEEPS = 60  # of the curves


def ends_of(recipe: HeavyballRecipe, spectrum: Tensor | None) -> Tensor | None:
    """The smallest and the largest eigenvalue; None if they would take long to find."""
    if spectrum is not None:
        return spectrum[[0, -1]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what has not converged is left out
        found = extreme_eigenvalues(recipe.A.detach(), rtol=1e-3)
    return torch.stack((found.smallest, found.largest)).cpu().double() if found.converged else None


def outcome_of(recipe: HeavyballRecipe) -> Outcome:
    settings, sweeps = recipe.settings, recipe.settings.sweeps or 0
    spectrum = eigenvalues(recipe.A)
    ends = ends_of(recipe, spectrum)
    pairs = {"learned": recipe.parameters(), "start": (settings.alpha, settings.beta)}
    if ends is not None and ends[0] > 0:
        pairs["asymptotic optimum"] = solvers.heavyball_parameters(*ends.tolist())
    if spectrum is not None:
        pairs[f"best for {sweeps} sweeps"] = best_parameters(spectrum, sweeps)
    rows: list[list[Any]] = []
    compared: dict[str, dict[str, float | None]] = {}
    curves = {}
    for name, (alpha, beta) in pairs.items():
        loss = recipe.held_out_energy(alpha, beta)
        expected = None if spectrum is None else float(expected_energy(spectrum, alpha, beta, sweeps))
        # The largest root belongs to one of the ends.
        factor = None if ends is None else convergence_factor(ends, alpha, beta)
        compared[name] = {
            "alpha": alpha,
            "beta": beta,
            "held_out_loss": loss,
            "expected_loss": expected,
            "convergence_factor": factor,
        }
        sweep = partial(solvers.heavyball, alpha=alpha, beta=beta, iterations=SWEEPS)
        curves[name] = recipe.residual_curve(sweep)
        rows.append([name, alpha, beta, loss, *("" if t is None else t for t in (expected, factor))])
    sentence = sentence_of(compared, sweeps)
    numbers = {
        "problem": {
            **facts(settings.problem, recipe.A),
            "extreme_eigenvalues": None if ends is None else ends.tolist(),
        },
        "loss_is": "e^T A e after the sweeps, mean over test vectors e from N(0, I)",
        "sweeps": sweeps,
        "parameters": compared,
    }
    columns = ["parameters", "alpha", "beta", "loss per vector", "expected loss", "convergence factor"]
    return Outcome(numbers, columns, rows, sentence, {"curves": curves, "pairs": pairs})


def sentence_of(compared: dict[str, dict[str, Any]], sweeps: int) -> str:
    learned = compared["learned"]
    words = f"Learned alpha = {learned['alpha']:.4f} and beta = {learned['beta']:.4f}"
    if (best := compared.get(f"best for {sweeps} sweeps")) is not None:
        words += f"; the best for {sweeps} sweeps are {best['alpha']:.4f} and {best['beta']:.4f}"
    if (usual := compared.get("asymptotic optimum")) is not None and learned["held_out_loss"] > 0:
        ratio = usual["held_out_loss"] / learned["held_out_loss"]
        words += f". With the asymptotic optimum the sweeps leave {ratio:.3g} times the energy"
    words += "."
    if (learned["convergence_factor"] or 0) > 1:
        words += " Repeated indefinitely, the sweeps diverge with these."
    return words


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
    axes.axvline(sweeps, color=GRAY, linewidth=0.8)
    axes.annotate(
        "sweeps in the loss",
        (sweeps, 0.02),
        (4, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color=GRAY,
        fontsize=8,
    )
    yield "convergence.png", figure


def baselines_of(
    compared: dict[str, Any], key: str, without: Iterable[str], history: History
) -> list[tuple[str, float]]:
    """Losses to draw with the curve; far above it they would only squeeze it."""
    highest = max(v for name in ("loss", "held_out_loss") for v in history[name] if v is not None)
    losses = [(name, values.get(key)) for name, values in compared.items() if name not in without]
    return [(name, loss) for name, loss in losses if loss and loss < 30 * highest]


def parameters_figure(
    where: str, ylabel: str, history: History, compared: dict[str, Any], lines: dict[str, tuple[str, str]]
) -> Any:
    """alpha and beta over the steps; `lines`: label, and key in `compared`, of each column."""
    figure, axes = new_figure(f"Parameters over steps, {where}", "optimizer step", ylabel)
    for (column, (label, key)), color in zip(lines.items(), (BLUE, ORANGE), strict=True):
        axes.plot(*known(history, column), color=color, linewidth=2, label=label)
        for name, values in compared.items():
            if name.startswith(("asymptotic", "best")):
                kind = {**style(name), "linewidth": 1.4, "color": color}
                axes.axhline(values[key], label=f"{label}, {name}", **kind)
    finish(axes, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
