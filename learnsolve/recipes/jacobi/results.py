"""The learned Jacobi weights compared with weight 1, the textbook weight and the closed-form optimum.

Figures: the error after the sweeps of the loss, which the training minimizes; loss (figure 3
of the paper) and weights (figure 4).
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import scipy.optimize
import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.ops.quadratic_form import quadratic_form
from learnsolve.recipes.harness.figures import levels
from learnsolve.recipes.harness.recipe import Outcome
from learnsolve.recipes.harness.tables import LEARNED, Row, records, tabulate
from learnsolve.recipes.jacobi.closed_form import optimal_weights
from learnsolve.recipes.jacobi.pictures import energy_figure, weights_figure
from learnsolve.recipes.matrix.problem import facts, grid_of

if TYPE_CHECKING:
    from learnsolve.recipes.jacobi import JacobiRecipe

CLOSED_FORM_LIMIT = 100_000  # unknowns above which B B^T takes longer than the training
SWEEPS = 100
TABLE_SWEEPS = 50
REDUCTION = f"residual_after_{TABLE_SWEEPS}_sweeps"
COLUMNS = {
    "loss per vector": "held_out_loss",
    "convergence factor": "convergence_factor",
    f"residual after {TABLE_SWEEPS} sweeps": REDUCTION,
}


def candidates(recipe: JacobiRecipe) -> dict[str, Tensor | float]:
    """Weights to compare, by name, the learned ones first. The textbook weight is 2d / (2d + 1), the best
    constant smoother on a d-dimensional grid; elsewhere the value for d = 1."""
    d = len(grid_of(recipe.settings.problem) or (1,))
    weights: dict[str, Tensor | float] = {LEARNED: recipe.weight.detach(), "weight 1": 1.0}
    weights[f"textbook {2 * d}/{2 * d + 1}"] = 2 * d / (2 * d + 1)
    weights["best constant"] = best_constant(recipe)
    small = recipe.settings.sweeps == 1 and recipe.A.shape[0] <= CLOSED_FORM_LIMIT
    if small and (best := optimal_weights(recipe.A)) is not None:
        weights["closed form"] = best.to(recipe.A.device)
    return weights


@torch.no_grad()
def best_constant(recipe: JacobiRecipe) -> float:
    """The constant weight with the smallest training loss: the baseline of a single value.

    The loss is convex in a constant weight: a sum of positive multiples of (1 - w mu)^2s, mu an eigenvalue of
    D^-1 A.
    """
    A, E = recipe.A, recipe.every_vector()

    def energy(weight: float) -> float:
        return quadratic_form(A, recipe.after(E, weight, A), symmetric=True).item()

    least: Any = scipy.optimize.minimize_scalar(energy, bounds=(0.0, 2.0), method="bounded")
    return float(least.x)


@torch.no_grad()
def relative_errors(recipe: JacobiRecipe, weight: Tensor | float) -> tuple[float, list[float]]:
    """||e||_A after the sweeps of the loss relative to before, for all held-out vectors together and each."""
    A, E = recipe.A, recipe.held_out
    after, before = ((e * (A @ e)).sum(0).double() for e in (recipe.after(E, weight, A), E))
    return float((after.sum() / before.sum()).sqrt()), (after / before).sqrt().tolist()


def convergence_factor(curve: list[float], floor: float) -> float | None:
    """Mean factor by which a sweep reduces the residual, over the second half of the curve above `floor`.

    None for a curve that overflowed, 0 for one that falls at once below the floor, where rounding dominates.
    """
    if len(curve) < SWEEPS + 1:
        return None
    last = max((k for k, r in enumerate(curve) if r > floor), default=0)
    half = last // 2
    return (curve[last] / curve[half]) ** (1 / (last - half)) if last > 0 else 0.0


def outcome_of(recipe: JacobiRecipe) -> Outcome:
    compared, each, weights = {}, {}, candidates(recipe)
    for name, weight in weights.items():
        curve = recipe.residual_curve(partial(solvers.jacobi, weight=weight, iterations=SWEEPS))
        error, each[name] = relative_errors(recipe, weight)
        compared[name] = {
            "held_out_loss": recipe.held_out_energy(weight),
            "relative_energy_error": error,
            "convergence_factor": convergence_factor(curve, 1e3 * torch.finfo(recipe.A.dtype).eps),
            REDUCTION: curve[TABLE_SWEEPS] if len(curve) > TABLE_SWEEPS else None,
        }
    best = weights.get("closed form")
    distance = float((recipe.weight.detach() - best).abs().max()) if isinstance(best, Tensor) else None
    numbers = {
        "problem": facts(recipe.settings.problem, recipe.A),
        "loss_is": "e^T A e after the sweeps, mean over test vectors e from N(0, I)",
        "weights": compared,
        "closed_form_distance": distance,
    }
    columns = {head: partial(_or_diverges, key) for head, key in COLUMNS.items()}
    table = tabulate(records(compared), {"weights": "name", **columns})
    # The best constant is close to the textbook's.
    losses = levels(compared, "held_out_loss", but=(LEARNED, "best constant"))
    title, grid = f"Error that {sweeps_leave(recipe)}, {recipe.where}", grid_of(recipe.settings.problem)
    figures = {
        "energy.png": partial(energy_figure, title, compared, each, weights["best constant"]),
        "weights.png": partial(weights_figure, f"Jacobi weights, {recipe.where}", weights, grid),
    }
    return Outcome(numbers, *table, sentences(recipe, compared), figures, {"loss.png": losses})


def _or_diverges(key: str, record: Row) -> Any:
    return "diverges" if record[key] is None else record[key]


# --- the summary: where the weights are large, and columns that were not trained for ---


def sentences(recipe: JacobiRecipe, compared: dict[str, dict[str, Any]]) -> str:
    words, settings = [where_weights_are_large(recipe)], recipe.settings
    if lost := lost_columns(compared, settings.hard_fraction == 1):
        of = "" if settings.hard_fraction == 1 else " of the hardest vectors"
        words.append(
            f"The weights were trained only for the energy that {sweeps_leave(recipe)}{of}; a constant "
            f"weight is better in what was not trained: {', '.join(lost)}."
        )
    factor = compared[LEARNED]["convergence_factor"]
    if factor is None or factor > 1:
        words.append(
            f"Repeated beyond the {settings.sweeps} in the loss, sweeps with these weights diverge; "
            "train with more --sweeps."
        )
    return " ".join(words)


def sweeps_leave(recipe: JacobiRecipe) -> str:
    sweeps = recipe.settings.sweeps
    return "one sweep leaves" if sweeps == 1 else f"{sweeps} sweeps leave"


def lost_columns(compared: dict[str, dict[str, Any]], loss_was_trained: bool) -> list[str]:
    """The columns that were not trained for and for which a constant weight is better, to the digits
    shown."""

    def shown(name: str, key: str) -> float:
        value = compared[name][key]
        return math.inf if value is None else float(f"{value:.4g}")

    constants = [name for name in compared if name not in (LEARNED, "closed form")]
    columns = list(COLUMNS.items())[loss_was_trained:]
    return [c for c, key in columns if min(shown(name, key) for name in constants) < shown(LEARNED, key)]


def where_weights_are_large(recipe: JacobiRecipe) -> str:
    weight, grid = recipe.weight.detach().cpu(), grid_of(recipe.settings.problem)
    low, high = (f"{float(weight[row]):.3f} (row {int(row)})" for row in (weight.argmin(), weight.argmax()))
    words = f"The weights lie between {low} and {high}"
    if grid is None or min(grid) < 3:
        return f"{words}, {float(weight.median()):.3f} in the middle."
    interior = torch.zeros(grid, dtype=torch.bool)
    interior[(slice(1, -1),) * len(grid)] = True
    edge, inside = float(weight[~interior.flatten()].mean()), float(weight[interior.flatten()].mean())
    return f"{words}: on average {edge:.3f} beside the boundary and {inside:.3f} inside."
