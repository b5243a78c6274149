"""The learned Jacobi weights compared with weight 1, the textbook's and the closed-form optimum.

Pictures: the error that the sweeps of the loss leave, which is what is learned to be small; loss (figure 3
of the paper), weights (figure 4) and convergence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.ops.quadratic_form import quadratic_form
from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.figures import BLUE, loss_figure, new_figure, new_panels, style
from learnsolve.recipes.harness.recipe import Outcome
from learnsolve.recipes.jacobi.closed_form import optimal_weights
from learnsolve.recipes.matrix import residuals_figure
from learnsolve.recipes.matrix.problem import describe, facts, grid_of

if TYPE_CHECKING:
    from learnsolve.recipes.jacobi import JacobiRecipe

CLOSED_FORM_LIMIT = 100_000  # unknowns; beyond them, B B^T takes longer than the training
SWEEPS = 100
TABLE_SWEEPS = 50
MARKERS_UP_TO = 200  # points of a curve that are drawn as circles


def textbook(recipe: JacobiRecipe) -> tuple[str, float]:
    """2d / (2d + 1), the best constant smoother on a d-dimensional grid; its value for d = 1 elsewhere."""
    grid = grid_of(recipe.settings.problem)
    d = len(grid) if grid else 1
    return f"textbook {2 * d}/{2 * d + 1}", 2 * d / (2 * d + 1)


@torch.no_grad()
def best_constant(recipe: JacobiRecipe) -> float:
    """The constant weight with the smallest training loss: what is left to learn beyond one number.

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
    """||e||_A after the sweeps of the loss relative to before, of all held-out vectors and of each."""
    A, E = recipe.A, recipe.held_out
    left, before = ((e * (A @ e)).sum(0).double() for e in (recipe.after(E, weight, A), E))
    return float((left.sum() / before.sum()).sqrt()), (left / before).sqrt().tolist()


def candidates(recipe: JacobiRecipe) -> dict[str, Tensor | float]:
    """Weights to compare, by name, the learned ones first."""
    found: dict[str, Tensor | float] = {"learned": recipe.weight.detach(), "weight 1": 1.0}
    name, weight = textbook(recipe)
    found[name] = weight
    found["best constant"] = best_constant(recipe)
    if recipe.settings.sweeps == 1 and recipe.A.shape[0] <= CLOSED_FORM_LIMIT:
        best = optimal_weights(recipe.A)
        if best is not None:
            found["closed form"] = best.to(recipe.A.device)
    return found


def convergence_factor(curve: list[float], floor: float) -> float | None:
    """Mean factor by which a sweep reduces the residual, over the second half of the curve above `floor`.

    None for a curve that overflowed, 0 for one that at once falls below the floor, where rounding dominates.
    """
    if len(curve) < SWEEPS + 1:
        return None
    last = max((k for k, r in enumerate(curve) if r > floor), default=0)
    half = last // 2
    return (curve[last] / curve[half]) ** (1 / (last - half)) if last > 0 else 0.0


def outcome_of(recipe: JacobiRecipe) -> Outcome:
    columns = ["weights", "loss per vector", "convergence factor", f"residual after {TABLE_SWEEPS} sweeps"]
    rows, compared, curves, errors, each = [], {}, {}, {}, {}
    everything = candidates(recipe)
    floor = 1e3 * torch.finfo(recipe.A.dtype).eps
    for name, weight in everything.items():
        curve = recipe.residual_curve(partial(solvers.jacobi, weight=weight, iterations=SWEEPS))
        loss = recipe.held_out_energy(weight)
        factor = convergence_factor(curve, floor)
        errors[name], each[name] = relative_errors(recipe, weight)
        reduction = curve[TABLE_SWEEPS] if len(curve) > TABLE_SWEEPS else None
        compared[name] = {
            "held_out_loss": loss,
            "relative_energy_error": errors[name],
            "convergence_factor": factor,
            f"residual_after_{TABLE_SWEEPS}_sweeps": reduction,
        }
        curves[name] = curve
        rows.append([name, loss, factor, reduction])
    weight = recipe.weight.detach()
    best = everything.get("closed form")
    numbers = {
        "problem": facts(recipe.settings.problem, recipe.A),
        "loss_is": "e^T A e after the sweeps, mean over test vectors e from N(0, I)",
        "weights": compared,
        "closed_form_distance": float((weight - best).abs().max()) if isinstance(best, Tensor) else None,
    }
    constants = {name: w for name, w in everything.items() if not isinstance(w, Tensor)}
    data = {"curves": curves, "closed form": best, "constants": constants, "errors": errors, "each": each}
    return Outcome(numbers, columns, rows, summary(recipe, columns, rows), data)


def figures_of(recipe: JacobiRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    where, compared = describe(recipe.settings.problem), outcome.numbers["weights"]
    baselines = [
        (name, values["held_out_loss"])
        for name, values in compared.items()
        if name not in ("learned", "best constant")  # which is close to the textbook's
    ]
    yield "energy.png", energy_figure(recipe, outcome)
    yield (
        "loss.png",
        loss_figure(
            f"Training loss, {where}",
            "energy left by the sweeps, per test vector",
            history,
            baselines=[(name, loss) for name, loss in baselines if np.isfinite(loss)],
        ),
    )
    yield "weights.png", weights_figure(recipe, outcome)
    labels = {}
    for name, values in compared.items():
        factor = values["convergence_factor"]
        labels[name] = name if factor is None else f"{name} (factor {factor:.4f})"
    title = f"Jacobi with learned and constant weights, {where}"
    yield "convergence.png", residuals_figure(title, outcome.data["curves"], labels)[0]


def energy_figure(recipe: JacobiRecipe, outcome: Outcome) -> Any:
    """A bar for each choice of weights, and a dot for each held-out vector."""
    constants = outcome.data["constants"]
    figure, axes = new_figure(
        f"Error that {sweeps_leave(recipe)}, {describe(recipe.settings.problem)}",
        r"$\|e\|_A$ relative to before, held-out vectors",
        "",
    )
    errors = outcome.data["errors"]
    shown = {name: error for name, error in errors.items() if error <= max(30 * errors["learned"], 1.0)}
    names = sorted(shown, key=lambda name: -shown[name])
    for place, name in enumerate(names):
        color = style(name)["color"]
        axes.barh(place, shown[name], height=0.62, color=color, alpha=0.3 if name != "learned" else 0.55)
        each = outcome.data["each"][name]
        # Beside one another, evenly: their order within the bar has no meaning.
        offsets = (np.arange(len(each)) * 0.618 % 1 - 0.5) * 0.5
        axes.plot(each, place + offsets, linestyle="none", marker=".", markersize=2.5, color=color)
        axes.plot([shown[name]] * 2, [place - 0.31, place + 0.31], color=color, linewidth=2.5)
    widest = max(max(outcome.data["each"][name]) for name in names) or 1.0
    for place, name in enumerate(names):
        axes.text(
            1.03 * widest,
            place,
            f"{shown[name]:#.3g}",
            va="center",
            weight="bold" * (name == "learned") or None,
        )
    labels = [f"{name}, {constants[name]:.3f}" if name == "best constant" else name for name in names]
    axes.set_yticks(range(len(names)), labels)
    axes.set_xlim(0, 1.15 * widest)
    axes.grid(False, axis="y")
    return figure


def weights_figure(recipe: JacobiRecipe, outcome: Outcome) -> Any:
    weight = recipe.weight.detach().cpu().numpy()
    grid = grid_of(recipe.settings.problem)
    if grid and len(grid) > 1 and min(grid) > 1:
        return _weights_image(recipe, outcome, grid)
    place = "grid point" if grid else "row of the matrix"
    title = f"Learned Jacobi weights, {describe(recipe.settings.problem)}"
    figure, axes = new_figure(title, place, "weight $w_i$")
    for name, constant in outcome.data["constants"].items():
        axes.axhline(constant, label=name, **style(name))
    points = np.arange(1, len(weight) + 1) if grid else np.arange(len(weight))
    best = outcome.data["closed form"]
    few = len(weight) <= MARKERS_UP_TO
    if isinstance(best, Tensor) and few:
        axes.plot(points, best.cpu().numpy(), label="closed form", **style("closed form"))
    marks: dict[str, Any] = {"marker": "o", "markersize": 6} if few else {"marker": ".", "markersize": 2}
    axes.plot(points, weight, linestyle="none", color=BLUE, label="learned", **marks)
    if len(weight) <= 20:
        axes.set_xticks(points)
    axes.legend(frameon=False, loc="best")
    return figure


def _weights_image(recipe: JacobiRecipe, outcome: Outcome, grid: tuple[int, ...]) -> Any:
    """The grid's weights, in 3D those of the middle slice; next to the closed-form ones on one scale."""
    best = outcome.data["closed form"]
    fields = {"learned": recipe.weight.detach()} | ({"closed form": best} if isinstance(best, Tensor) else {})
    title = f"Jacobi weights, {describe(recipe.settings.problem)}"
    ylabel, middle = "first axis", grid[0] // 2
    if len(grid) == 3:
        title, ylabel = f"{title}, slice {middle + 1} of the first axis", "second axis"
    images = [field.reshape(grid).cpu().numpy() for field in fields.values()]
    images = [image[middle] if len(grid) == 3 else image for image in images]
    scale = {"vmin": min(i.min() for i in images), "vmax": max(i.max() for i in images), "cmap": "viridis"}
    rows, columns = images[0].shape
    figure, panels = new_panels(title, len(images))
    for axes, name, image in zip(panels, fields, images, strict=True):
        axes.set_title(name)
        axes.set_xlabel("last axis")
        shown = axes.imshow(
            image, extent=(0.5, columns + 0.5, rows + 0.5, 0.5), interpolation="nearest", **scale
        )
    panels[0].set_ylabel(ylabel)
    figure.colorbar(shown, ax=panels, label="weight $w_i$", shrink=0.8)
    return figure


# --- the run in sentences: where the weights are large, and what they were not trained for ---


def summary(recipe: JacobiRecipe, columns: list[str], rows: list[list[Any]]) -> str:
    """Sentences from the weights and the table, whose first row is that of the learned weights."""
    sentences = [where_weights_are_large(recipe)]
    if lost := lost_columns(recipe, columns, rows):
        of = "" if recipe.settings.hard_fraction == 1 else " of the hardest vectors"
        sentences.append(
            f"The weights were trained only for the energy that {sweeps_leave(recipe)}{of}; a constant "
            f"weight is better in what was not trained: {', '.join(lost)}."
        )
    factor = rows[0][columns.index("convergence factor")]
    if factor is None or factor > 1:
        sentences.append(
            f"Repeated beyond the {recipe.settings.sweeps} in the loss, sweeps with these weights diverge; "
            "train with more --sweeps."
        )
    return " ".join(sentences)


def sweeps_leave(recipe: JacobiRecipe) -> str:
    sweeps = recipe.settings.sweeps
    return "one sweep leaves" if sweeps == 1 else f"{sweeps} sweeps leave"


def lost_columns(recipe: JacobiRecipe, columns: list[str], rows: list[list[Any]]) -> list[str]:
    """The columns that were not trained for and where a constant weight is better, to the digits shown."""

    def shown(value: float | None) -> float:
        return math.inf if value is None else float(f"{value:.4g}")

    learned, *constants = [row for row in rows if row[0] != "closed form"]
    trained = ["loss per vector"] if recipe.settings.hard_fraction == 1 else []
    return [
        name
        for k, name in enumerate(columns)
        if k > 0 and name not in trained and min(shown(row[k]) for row in constants) < shown(learned[k])
    ]


def where_weights_are_large(recipe: JacobiRecipe) -> str:
    weight = recipe.weight.detach().cpu()
    grid = grid_of(recipe.settings.problem)
    low, high = float(weight.min()), float(weight.max())
    if high - low < 1e-3 * abs(high):
        return f"All rows carry about the same weight, {float(weight.mean()):.3f}."
    if grid and min(grid) >= 3:
        field = weight.reshape(grid)
        interior = torch.zeros(grid, dtype=torch.bool)
        interior[(slice(1, -1),) * len(grid)] = True
        edge, middle = float(field[~interior].mean()), float(field[interior].mean())
        where = "The two ends" if len(grid) == 1 else "Points beside the boundary"
        if abs(edge - middle) > 0.2 * (high - low):
            size = "larger" if edge > middle else "smaller"
            return f"{where} carry the {size} weights ({edge:.3f} against {middle:.3f} inside, on average)."
    return (
        f"The weights lie between {low:.3f} (row {int(weight.argmin())}) and {high:.3f} "
        f"(row {int(weight.argmax())}), {float(weight.median()):.3f} in the middle."
    )
