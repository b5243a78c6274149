"""The learned preconditioner compared with none, Jacobi, IC(0) and AMG on other right-hand sides.

Figures: loss (figure 7 of the paper), residuals (figure 8) and the learned factor.
"""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from learnsolve import preconditioners as P
from learnsolve.analysis import condition_number
from learnsolve.evaluation.comparison import as_csv
from learnsolve.evaluation.figures import new_panels, residuals_figure
from learnsolve.matrix.csr import CSR
from learnsolve.recipes.harness import tables
from learnsolve.recipes.harness.recipe import Outcome
from learnsolve.recipes.harness.tables import LEARNED, Row
from learnsolve.recipes.matrix.problem import facts
from learnsolve.recipes.pcg.factor import definiteness, factor_of

if TYPE_CHECKING:
    from learnsolve.recipes.pcg import PcgRecipe

CONDITION_LIMIT = 10_000  # unknowns above which Lanczos takes longer than the solves
FACTOR_ENTRIES = 20_000  # more would appear as one dark area


def condition(A: CSR, argument: Any) -> float | None:
    """The condition number of M A; None if it is not available."""
    if A.shape[0] > CONDITION_LIMIT:
        return None
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # for a singular matrix the value is infinite
            M = argument if argument is None or isinstance(argument, P.Preconditioner) else argument(A)
            value = float(condition_number(A, M).value)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def outcome_of(recipe: PcgRecipe) -> Outcome:
    settings, A, L = recipe.settings, recipe.A, factor_of(recipe.model)
    classical = {"none": None, "Jacobi": P.Jacobi, "IC(0)": P.IC0}
    M, tolerances = (
        tables.with_amg({LEARNED: recipe.model, **classical}, A.shape[0]),
        settings.tolerances or [],
    )
    sides = {"held-out": recipe.held_out[:, : settings.evaluated]}
    if settings.test_vectors == "ramp":
        sides["ramp"] = recipe.ramp()
    evaluations = {name: tables.compare(A, B, M, tolerances, repeats=1) for name, B in sides.items()}
    rows = [row for name, runs in evaluations.items() for row in tables.flat(runs, right_hand_sides=name)]
    conditions = {name: condition(A, preconditioner) for name, preconditioner in M.items()}
    columns = {
        "preconditioner": "preconditioner",
        "condition of M A": lambda row: conditions[row["preconditioner"]],
    }
    table = tables.tabulate(
        rows, columns, lambda row: {f"{row['right_hand_sides']}, {row['rtol']:.0e}": tables.iterations(row)}
    )
    numbers = {
        "variant": settings.variant,
        "problem": facts(settings.problem, A),
        "preconditioner": {
            "form": "L L^T" if settings.form == "product" else "(L L^T)^-1",
            **{"pattern": settings.pattern, "nnz": L.nnz, "definiteness": definiteness(L)},
        },
        "loss_is": "weighted relative residuals of the first iterations, mean over right-hand sides",
        "stopped_early": recipe.finished,
        "shortened_steps": recipe.guard.shortened,
        "condition_numbers": conditions,
        "evaluation": rows,
    }
    words = sentences(rows, tables.middle(tolerances), recipe.guard.shortened)
    figures = {}
    for name, evaluation in evaluations.items():
        systems = max(map(len, evaluation.histories.values()))
        title = f"Conjugate gradients, {recipe.where}, {name}"
        title += f"\nmedian and range of {systems} right-hand sides" if systems > 1 else ""
        file = "residuals.png" if name == "held-out" else f"residuals_{name}.png"
        figures[file] = partial(residuals_figure, title, evaluation.histories, tolerances)
    if L.nnz <= FACTOR_ENTRIES:
        figures["factor.png"] = partial(factor_figure, L.detach(), settings.form)
    return Outcome(numbers, *table, words, figures, texts={"evaluation.csv": as_csv(rows)})


def sentences(rows: list[Row], rtol: float, shortened: int) -> str:
    """One sentence per set of right-hand sides."""
    words = []
    for sides in dict.fromkeys(row["right_hand_sides"] for row in rows):
        at = [row for row in rows if row["right_hand_sides"] == sides and row["rtol"] == rtol]
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


def factor_figure(L: CSR, form: str) -> Any:
    """The diagonal and the other entries of L, each on its own scale, since their sizes differ."""
    rows, columns, values = L.pattern.row_indices.cpu(), L.col_indices.cpu(), L.values.cpu()
    words = "M = L L^T" if form == "product" else "M = (L L^T)^{-1}"
    figure, panels = new_panels(f"Learned factor, ${words}$", 2)
    n, on = L.shape[0], rows == columns
    style = {"s": max(1.0, (220 / n) ** 2), "marker": "s", "cmap": "viridis", "linewidth": 0}
    for axes, name, part in zip(panels, ("diagonal", "below the diagonal"), (on, ~on), strict=True):
        axes.set(title=name, xlabel="column", xlim=(-1, n), ylim=(n, -1), aspect="equal")
        if bool(part.any()):
            dots = axes.scatter(columns[part], rows[part], c=values[part], **style)
            figure.colorbar(dots, ax=axes, shrink=0.8)
    panels[0].set_ylabel("row")
    return figure
