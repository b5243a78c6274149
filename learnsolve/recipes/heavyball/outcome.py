"""The learned heavy-ball parameters compared with those given by formulas."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.analysis import extreme_eigenvalues
from learnsolve.recipes.harness.base import Outcome
from learnsolve.recipes.harness.problem import facts
from learnsolve.recipes.heavyball.closed_form import (
    best_parameters,
    convergence_factor,
    eigenvalues,
    expected_energy,
)

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
    sentence = describe(compared, sweeps)
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


def describe(compared: dict[str, dict[str, Any]], sweeps: int) -> str:
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
