"""The predicted heavy-ball parameters compared with those given by formulas, for the held-out matrices.

Figures: loss, parameters, predicted against best parameters.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.evaluation.figures import BLUE, GRAY, ORANGE, Line, picture
from learnsolve.recipes.harness.figures import levels
from learnsolve.recipes.harness.recipe import Outcome
from learnsolve.recipes.harness.tables import Row, records, tabulate
from learnsolve.recipes.heavyball.closed_form import best_parameters, eigenvalues, expected_energy
from learnsolve.recipes.heavyball.results import parameters
from learnsolve.recipes.heavyball_network.network import bound

if TYPE_CHECKING:
    from learnsolve.recipes.heavyball_network import HeavyballNetworkRecipe

ALPHA, BETA = r"step size $\alpha\,\|A\|_\infty$", r"momentum $\beta$"
COLUMNS = {"parameters": "name", "alpha ||A||": "scaled_alpha", "beta": "beta"}
ENERGIES = {"energy left": "expected_loss", "largest": "largest"}  # if eigenvalues are known


@torch.no_grad()
def outcome_of(recipe: HeavyballNetworkRecipe) -> Outcome:
    """Closed-form energies after the sweeps for the held-out matrices, relative to the initial energies."""
    settings, sweeps, A = recipe.settings, recipe.settings.sweeps or 0, recipe.A
    training, spectrum = eigenvalues(A), eigenvalues(recipe.others)
    sizes = bound(recipe.others).cpu().double()
    alpha, beta = (t.cpu().double() for t in recipe.model(recipe.others))
    pairs: dict[str, tuple[Tensor, Tensor]] = {"network": (alpha, beta)}
    if spectrum is not None and training is not None:
        with torch.enable_grad():
            one = best_parameters(training, sweeps, 1 / bound(A).cpu().double())
            each = torch.tensor([best_parameters(s, sweeps) for s in spectrum], dtype=torch.float64)
        pairs["one pair for all"] = (one[0] / sizes, torch.full_like(sizes, one[1]))
        if (spectrum[:, 0] > 0).all():
            usual = solvers.heavyball_parameters(spectrum[:, 0], spectrum[:, -1])
            pairs["asymptotic optimum of each"] = usual
        pairs["best of each"] = (each[:, 0], each[:, 1])
    compared: dict[str, Row] = {}
    for name, (a, c) in pairs.items():
        compared[name] = {"scaled_alpha": float((a * sizes).mean()), "beta": float(c.mean())}
        if spectrum is not None:
            left = expected_energy(spectrum, a, c, sweeps) / spectrum.sum(-1)
            compared[name] |= {"expected_loss": float(left.mean()), "largest": float(left.max())}
    words = f"The network predicts alpha and beta for {len(sizes)} matrices that it has not seen."
    if spectrum is not None:
        losses = {name: values["expected_loss"] for name, values in compared.items()}
        words = (
            f"On {len(sizes)} matrices that it has not seen the network's parameters leave "
            f"{losses['network']:.3g} of the energy, the best of each matrix {losses['best of each']:.3g}, "
            f"one pair for all {losses['one pair for all']:.3g}."
        )
    grid = " x ".join(map(str, settings.grid))
    numbers = {
        "problem": {
            **{"description": f"{settings.family}, {grid}", "n": A.shape[0], "nnz": A.nnz},
            **{"matrices": settings.matrices, "held_out_matrices": settings.held_out_matrices},
        },
        "loss_is": "e^T A e after the sweeps relative to that before, mean over matrices",
        "sweeps": sweeps,
        "parameters": compared,
    }
    points = [((a * sizes).tolist(), c.tolist()) for a, c in (pairs["network"], list(pairs.values())[-1])]
    title = f"Parameters of {settings.held_out_matrices} unseen matrices, {recipe.where}"
    return Outcome(
        numbers,
        *tabulate(records(compared), COLUMNS if spectrum is None else COLUMNS | ENERGIES),
        words,
        {"matrices.png": partial(matrices_figure, title, *points)} if len(pairs) > 1 else {},
        {
            "loss.png": levels(compared, "expected_loss", but=("network",)),
            "parameters.png": parameters(compared, "scaled_alpha", "beta"),
        },
    )


def matrices_figure(title: str, predicted: tuple[list, list], best: tuple[list, list]) -> Any:
    """alpha and beta of each held-out matrix: predicted against best."""
    everything = [*predicted[0], *predicted[1], *best[0], *best[1]]
    ends, points = [min(everything), max(everything)], {"linestyle": "none", "markersize": 5}
    lines = [
        Line("", ends, ends, style={"color": GRAY, "linewidth": 0.8, "zorder": 0}),
        Line(ALPHA, predicted[0], best[0], style={**points, "marker": "o", "color": BLUE}),
        Line(BETA, predicted[1], best[1], style={**points, "marker": "s", "color": ORANGE}),
    ]
    return picture(title, "best for this matrix", "predicted by the network", lines)
