"""The learned heavy-ball parameters compared with those given by formulas.

Figures: loss (figure 5 of the paper), parameters (figure 6), residuals.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.analysis import extreme_eigenvalues
from learnsolve.evaluation.figures import COLORS, GRAY, Line, look, residuals_figure
from learnsolve.recipes.harness.figures import levels
from learnsolve.recipes.harness.recipe import Outcome
from learnsolve.recipes.harness.tables import LEARNED, Row, records, tabulate
from learnsolve.recipes.heavyball import closed_form
from learnsolve.recipes.matrix.problem import facts

if TYPE_CHECKING:
    from learnsolve.recipes.heavyball import HeavyballRecipe

SWEEPS = 60  # sweeps shown by the curves
COLUMNS = {
    **{"parameters": "name", "alpha": "alpha", "beta": "beta", "loss per vector": "held_out_loss"},
    **{"expected loss": "expected_loss", "convergence factor": "convergence_factor"},
}


def ends_of(recipe: HeavyballRecipe, spectrum: Tensor | None) -> Tensor | None:
    """The smallest and the largest eigenvalue; None if they take too long to compute."""
    if spectrum is not None:
        return spectrum[[0, -1]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # unconverged values are left out
        estimate = extreme_eigenvalues(recipe.A.detach(), rtol=1e-3)
    return torch.stack((estimate.smallest, estimate.largest)).cpu().double() if estimate.converged else None


def outcome_of(recipe: HeavyballRecipe) -> Outcome:
    settings, sweeps = recipe.settings, recipe.settings.sweeps or 0
    spectrum = closed_form.eigenvalues(recipe.A)
    ends = ends_of(recipe, spectrum)
    pairs = {LEARNED: recipe.parameters(), "start": (settings.alpha, settings.beta)}
    if ends is not None and ends[0] > 0:
        pairs["asymptotic optimum"] = solvers.heavyball_parameters(*ends.tolist())
    if spectrum is not None:
        pairs[f"best for {sweeps} sweeps"] = closed_form.best_parameters(spectrum, sweeps)

    def record(alpha: float, beta: float) -> Row:
        expected = None
        if spectrum is not None:
            expected = float(closed_form.expected_energy(spectrum, alpha, beta, sweeps))
        return {
            "alpha": alpha,
            "beta": beta,
            "held_out_loss": recipe.held_out_energy(alpha, beta),
            "expected_loss": expected,
            # The largest root belongs to one of the ends.
            "convergence_factor": None if ends is None else closed_form.convergence_factor(ends, alpha, beta),
        }

    def residuals(alpha: float, beta: float) -> list[Tensor]:
        solve = partial(solvers.heavyball, alpha=alpha, beta=beta, iterations=SWEEPS)
        return [torch.tensor(recipe.residual_curve(solve))]

    compared = {name: record(*pair) for name, pair in pairs.items()}
    numbers = {
        "problem": facts(settings.problem, recipe.A)
        | {"extreme_eigenvalues": None if ends is None else ends.tolist()},
        "loss_is": "e^T A e after the sweeps, mean over test vectors e from N(0, I)",
        "sweeps": sweeps,
        "parameters": compared,
    }
    labels = {name: rf"{name} ($\alpha$ {a:.3f}, $\beta$ {b:.3f})" for name, (a, b) in pairs.items()}
    histories = {labels[name]: residuals(*pair) for name, pair in pairs.items()}
    mark = Line("sweeps in the loss", x=sweeps, style={"color": GRAY, "linewidth": 0.8})
    title = f"The heavy ball, {recipe.where}, held-out vectors"
    return Outcome(
        numbers,
        *tabulate(records(compared), COLUMNS),
        sentence_of(compared, sweeps),
        {"convergence.png": partial(residuals_figure, title, histories, xlabel="sweep", more=[mark])},
        {
            "loss.png": levels(compared, "held_out_loss", but=(LEARNED, "start")),
            "parameters.png": parameters(compared, "alpha", "beta"),
        },
    )


def sentence_of(compared: dict[str, Row], sweeps: int) -> str:
    learned = compared[LEARNED]
    words = f"Learned alpha = {learned['alpha']:.4f} and beta = {learned['beta']:.4f}"
    if (best := compared.get(f"best for {sweeps} sweeps")) is not None:
        words += f"; the best for {sweeps} sweeps are {best['alpha']:.4f} and {best['beta']:.4f}"
    if (usual := compared.get("asymptotic optimum")) is not None and learned["held_out_loss"] > 0:
        ratio = usual["held_out_loss"] / learned["held_out_loss"]
        words += f". With the asymptotic optimum the sweeps leave {ratio:.3g} times the energy"
    diverges = (learned["convergence_factor"] or 0) > 1
    return words + "." + " Repeated indefinitely, the sweeps diverge with these." * diverges


def parameters(compared: Mapping[str, Row], *keys: str) -> Iterator[Line]:
    """The values of alpha and beta from formulas."""
    for key, symbol, color in zip(keys, (r"$\alpha$", r"$\beta$"), COLORS, strict=False):
        for name, record in compared.items():
            if name.startswith(("asymptotic", "best")):
                style = {**look(name), "linewidth": 1.4, "color": color}
                yield Line(f"{symbol}, {name}", record[key], style=style)
