"""The predicted heavy-ball parameters compared with those given by formulas, for the held-out matrices.

Pictures: loss, parameters, predicted against best ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.figures import BLUE, GRAY, ORANGE, loss_figure, new_figure
from learnsolve.recipes.harness.recipe import Outcome
from learnsolve.recipes.heavyball.closed_form import best_parameters, eigenvalues, expected_energy
from learnsolve.recipes.heavyball.results import baselines_of, parameters_figure
from learnsolve.recipes.heavyball_network.network import bound

if TYPE_CHECKING:
    from learnsolve.recipes.heavyball_network import HeavyballNetworkRecipe

ALPHA, BETA = r"$\alpha\,\|A\|_\infty$", r"$\beta$"


@torch.no_grad()
def outcome_of(recipe: HeavyballNetworkRecipe) -> Outcome:
    """All by formula, for the held-out matrices: energies after the sweeps, relative to those before."""
    settings, sweeps = recipe.settings, recipe.settings.sweeps or 0
    spectra = {part: eigenvalues(A) for part, A in (("training", recipe.A), ("held-out", recipe.others))}
    spectrum, sizes = spectra["held-out"], bound(recipe.others).cpu().double()
    alpha, beta = (t.cpu().double() for t in recipe.model(recipe.others))
    pairs: dict[str, tuple[Tensor, Tensor]] = {"network": (alpha, beta)}
    if spectrum is not None and spectra["training"] is not None:
        with torch.enable_grad():
            one = best_parameters(spectra["training"], sweeps, 1 / bound(recipe.A).cpu().double())
            each = torch.tensor([best_parameters(s, sweeps) for s in spectrum], dtype=torch.float64)
        pairs["one pair for all"] = (one[0] / sizes, torch.full_like(sizes, one[1]))
        if (spectrum[:, 0] > 0).all():
            usual = solvers.heavyball_parameters(spectrum[:, 0], spectrum[:, -1])
            pairs["asymptotic optimum of each"] = usual
        pairs["best of each"] = (each[:, 0], each[:, 1])
    rows: list[list[Any]] = []
    compared: dict[str, dict[str, float]] = {}
    for name, (a, c) in pairs.items():
        compared[name] = {"scaled_alpha": float((a * sizes).mean()), "beta": float(c.mean())}
        row: list[Any] = [name, compared[name]["scaled_alpha"], compared[name]["beta"]]
        if spectrum is not None:
            left = expected_energy(spectrum, a, c, sweeps) / spectrum.sum(-1)
            compared[name] |= {"expected_loss": float(left.mean()), "largest": float(left.max())}
            row += [float(left.mean()), float(left.max())]
        rows.append(row)
    n = recipe.A.shape[0]
    sentence = f"The network predicts alpha and beta for {len(sizes)} matrices that it has not seen."
    if spectrum is not None:
        losses = {name: values["expected_loss"] for name, values in compared.items()}
        sentence = (
            f"On {len(sizes)} matrices that it has not seen the network's parameters leave "
            f"{losses['network']:.3g} of the energy, the best of each matrix {losses['best of each']:.3g}, "
            f"one pair for all {losses['one pair for all']:.3g}."
        )
    numbers = {
        "problem": {
            "description": f"{settings.family}, {' x '.join(map(str, settings.grid))}",
            "n": n,
            "nnz": recipe.A.nnz,
            "matrices": settings.matrices,
            "held_out_matrices": settings.held_out_matrices,
        },
        "loss_is": "e^T A e after the sweeps relative to that before, mean over matrices",
        "sweeps": sweeps,
        "parameters": compared,
    }
    columns = ["parameters", "alpha ||A||", "beta"]
    columns += ["energy left", "largest"] if spectrum is not None else []
    scaled = {name: ((a * sizes).tolist(), c.tolist()) for name, (a, c) in pairs.items()}
    return Outcome(numbers, columns, rows, sentence, {"scaled": scaled})


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
    for p, b, color, marker, label in zip(predicted, best, (BLUE, ORANGE), "os", (ALPHA, BETA), strict=True):
        axes.plot(b, p, linestyle="none", marker=marker, markersize=5, color=color, label=label)
    everything = [*predicted[0], *predicted[1], *best[0], *best[1]]
    ends = [min(everything), max(everything)]
    axes.plot(ends, ends, color=GRAY, linewidth=0.8, zorder=0)
    axes.legend(frameon=False)
    return figure
