"""The learned preconditioner compared with none, Jacobi, IC(0) and AMG on other right-hand sides.

Pictures: loss (figure 7 of the paper), residuals (figure 8) and the learned factor.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from learnsolve import preconditioners as P
from learnsolve.analysis import condition_number
from learnsolve.evaluation import Evaluation, _table, evaluate
from learnsolve.matrix.csr import CSR
from learnsolve.recipes.harness import figures
from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.recipe import Outcome
from learnsolve.recipes.harness.tables import LEARNED, with_amg
from learnsolve.recipes.matrix.problem import describe, facts
from learnsolve.recipes.pcg.factor import definiteness, factor_of

if TYPE_CHECKING:
    from learnsolve.recipes.pcg import PcgRecipe

CONDITION_LIMIT = 10_000  # unknowns; beyond, Lanczos takes longer than the solves
FACTOR_ENTRIES = 20_000  # more would be drawn as one dark area
WIDE = 5  # quotient of losses from which on the axis is logarithmic


def compare(recipe: PcgRecipe, M: dict[str, Any], B: Tensor) -> Evaluation:
    return evaluate(recipe.A, B, M, rtol=recipe.settings.tolerances, repeats=1, on_error="row")  # type: ignore


def condition(A: CSR, argument: Any) -> float | None:
    """The condition number of M A; None if it is not available."""
    if A.shape[0] > CONDITION_LIMIT:
        return None
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a singular matrix: the number is infinite
            M = argument if argument is None or isinstance(argument, P.Preconditioner) else argument(A)
            value = float(condition_number(A, M).value)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def outcome_of(recipe: PcgRecipe) -> Outcome:
    settings, A, L = recipe.settings, recipe.A, factor_of(recipe.model)
    classical = {"none": None, "Jacobi": P.Jacobi, "IC(0)": P.IC0}
    M = with_amg({LEARNED: recipe.model, **classical}, A.shape[0])
    evaluations = {"held-out": compare(recipe, M, recipe.held_out[:, : settings.evaluated])}
    if settings.test_vectors == "ramp":
        evaluations["ramp"] = compare(recipe, M, recipe.ramp())
    everything = [
        row for sides, runs in evaluations.items() for row in _table.flat(runs, right_hand_sides=sides)
    ]
    conditions = {name: condition(A, preconditioner) for name, preconditioner in M.items()}
    tolerances = sorted(settings.tolerances or (), reverse=True)
    columns = [f"{sides}, {rtol:.0e}" for sides in evaluations for rtol in tolerances]
    rows: list[list[Any]] = [
        [name, "" if (value := conditions[name]) is None else f"{value:.4g}", *cells]
        for name, cells in _table.by_preconditioner(everything, _count).items()
    ]
    numbers = {
        "variant": settings.variant,
        "problem": facts(settings.problem, A),
        "preconditioner": {
            "form": "L L^T" if settings.form == "product" else "(L L^T)^-1",
            "pattern": settings.pattern,
            "nnz": L.nnz,
            "definiteness": definiteness(L),
        },
        "loss_is": "weighted relative residuals of the first iterations, mean over right-hand sides",
        "stopped_early": recipe.finished,
        "shortened_steps": recipe.guard.shortened,
        "condition_numbers": conditions,
        "evaluation": everything,
    }
    words = sentences(everything, _table.middle(tolerances), recipe.guard.shortened)
    texts = {"evaluation.csv": _table.as_csv(everything)}
    columns = ["preconditioner", "condition of M A", *columns]
    return Outcome(numbers, columns, rows, words, {"evaluations": evaluations}, texts)


def _count(row: _table.Row) -> str:
    return f"{row['iterations']:.1f}" if row["converged"] == row["systems"] else "not reached"


def sentences(everything: list[_table.Row], rtol: float, shortened: int) -> str:
    """One per set of right-hand sides."""
    words = []
    for sides in dict.fromkeys(row["right_hand_sides"] for row in everything):
        at = [row for row in everything if row["right_hand_sides"] == sides and row["rtol"] == rtol]
        mean = {r["preconditioner"]: r["iterations"] for r in at if r["converged"] == r["systems"]}
        what = "the right-hand side it was trained on" if sides == "ramp" else "held-out right-hand sides"
        if not {LEARNED, "none"} <= mean.keys():
            words.append(f"On {what} not every solve reached {rtol:.0e}.")
            continue
        words.append(
            f"On {what} it takes {mean[LEARNED]:.1f} iterations to {rtol:.0e}, without a preconditioner "
            f"{mean['none']:.1f}."
        )
    if shortened:
        words.append(f"{shortened} steps were shortened to keep it positive definite.")
    return " ".join(words)


def figures_of(recipe: PcgRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    settings, where = recipe.settings, describe(recipe.settings.problem)
    loss = figures.loss_figure(
        f"Training loss through {settings.iterations} iterations, {where}",
        "logarithms of residuals, weighted" if settings.variant == "demo" else "relative residuals, weighted",
        history,
        held_out="held-out, all iterations" if settings.curriculum else "held-out",
        log=min(history["loss"]) * WIDE < max(history["loss"]),
    )
    yield "loss.png", loss
    for sides, evaluation in outcome.data["evaluations"].items():
        systems = max(map(len, evaluation.histories.values()))
        title = f"Conjugate gradients, {where}, {sides}"
        title += f"\nmedian and range of {systems} right-hand sides" if systems > 1 else ""
        name = "residuals.png" if sides == "held-out" else f"residuals_{sides}.png"
        yield name, figures.residuals_figure(title, evaluation.histories, settings.tolerances or ())
    L = factor_of(recipe.model).detach()
    if L.nnz <= FACTOR_ENTRIES:
        yield "factor.png", factor_figure(L, settings.form)


def factor_figure(L: CSR, form: str) -> Any:
    """The diagonal and the other entries of L, each on a scale of its own: their sizes differ."""
    rows, columns, values = L.pattern.row_indices.cpu(), L.col_indices.cpu(), L.values.cpu()
    words = "M = L L^T" if form == "product" else "M = (L L^T)^{-1}"
    figure, panels = figures.new_panels(f"Learned factor, ${words}$", 2)
    n, on = L.shape[0], rows == columns
    style = {"s": max(1.0, (220 / n) ** 2), "marker": "s", "cmap": "viridis", "linewidth": 0}
    for axes, name, part in zip(panels, ("diagonal", "below the diagonal"), (on, ~on), strict=True):
        axes.set(title=name, xlabel="column", xlim=(-1, n), ylim=(n, -1), aspect="equal")
        if bool(part.any()):
            dots = axes.scatter(columns[part], rows[part], c=values[part], **style)
            figure.colorbar(dots, ax=axes, shrink=0.8)
    panels[0].set_ylabel("row")
    return figure
