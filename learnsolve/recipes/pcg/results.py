"""The learned preconditioner compared with none, Jacobi, IC(0) and AMG on other right-hand sides.

Pictures: loss (figure 7 of the paper), residuals (figure 8) and the learned factor.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from learnsolve import preconditioners
from learnsolve.analysis import condition_number
from learnsolve.evaluation import Evaluation, _table, evaluate
from learnsolve.evaluation._table import as_csv
from learnsolve.matrix.csr import CSR
from learnsolve.recipes import comparison
from learnsolve.recipes.comparison import LEARNED
from learnsolve.recipes.harness import figures
from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.recipe import Outcome
from learnsolve.recipes.matrix.problem import describe, facts
from learnsolve.recipes.pcg.factor import definiteness, factor_of

if TYPE_CHECKING:
    from learnsolve.recipes.pcg import PcgRecipe

CONDITION_LIMIT = 10_000  # unknowns; beyond, Lanczos takes longer than the solves
FACTOR_ENTRIES = 20_000  # more would be drawn as one dark area
WIDE = 5  # quotient of losses from which on the axis is logarithmic


def candidates(recipe: PcgRecipe) -> tuple[dict[str, Any], dict[str, str]]:
    """Preconditioners by name, and the reasons why others are left out."""
    P = preconditioners
    classical = {"none": None, "Jacobi": P.Jacobi, "IC(0)": P.IC0}
    return comparison.with_amg({LEARNED: recipe.model, **classical}, recipe.A.shape[0])


def compare(recipe: PcgRecipe, B: Tensor) -> Evaluation:
    settings = recipe.settings
    assert settings.tolerances
    return evaluate(recipe.A, B, candidates(recipe)[0], rtol=settings.tolerances, repeats=1, on_error="row")


def condition(A: CSR, given: Any) -> float | None:
    """The condition number of M A; None if it is not available."""
    if A.shape[0] > CONDITION_LIMIT:
        return None
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a singular matrix: the number is infinite
            known = given is None or isinstance(given, preconditioners.Preconditioner)
            M = given if known else cast(Callable[[CSR], Any], given)(A)
            value = float(condition_number(A, M).value)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def outcome_of(recipe: PcgRecipe) -> Outcome:
    settings, A, L = recipe.settings, recipe.A, factor_of(recipe.model)
    assert settings.tolerances
    evaluations = {"held-out": compare(recipe, recipe.held_out[:, : settings.evaluated])}
    if settings.test_vectors == "ramp":
        evaluations["ramp"] = compare(recipe, recipe.ramp())
    everything = [
        row for sides, found in evaluations.items() for row in _table.flat(found, right_hand_sides=sides)
    ]
    M, skipped = candidates(recipe)
    conditions = {name: condition(A, preconditioner) for name, preconditioner in M.items()}
    tolerances = sorted(settings.tolerances, reverse=True)
    columns = ["preconditioner", "condition of M A"]
    columns += [f"{sides}, {rtol:.0e}" for sides in evaluations for rtol in tolerances]
    rows: list[list[Any]] = [
        [name, "" if (value := conditions[name]) is None else f"{value:.4g}", *cells]
        for name, cells in _table.by_preconditioner(everything, _count).items()
    ]
    rows += [[name, "", "skipped", *[""] * (len(columns) - 3)] for name in skipped]
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
        "skipped": skipped,
    }
    sentence = sentence_of(evaluations, _table.middle(tolerances), recipe.guard.shortened)
    texts = {"evaluation.csv": as_csv(everything)}
    return Outcome(numbers, columns, rows, sentence, {"evaluations": evaluations}, texts)


def _count(row: _table.Row) -> str:
    return f"{row['iterations']:.1f}" if row["converged"] == row["systems"] else "not reached"


def sentence_of(evaluations: dict[str, Evaluation], rtol: float, shortened: int) -> str:
    """One sentence per set of right-hand sides."""
    sentences = []
    for sides, evaluation in evaluations.items():
        mean = {
            row.preconditioner: row.iterations.mean
            for row in evaluation.rows
            if row.rtol == rtol and row.converged == row.systems
        }
        what = "the right-hand side it was trained on" if sides == "ramp" else "held-out right-hand sides"
        if "learned" not in mean or "none" not in mean:
            sentences.append(f"On {what} not every solve reached {rtol:.0e}.")
            continue
        sentences.append(
            f"On {what} it takes {mean['learned']:.1f} iterations to {rtol:.0e}, without a preconditioner "
            f"{mean['none']:.1f}."
        )
    if shortened:
        sentences.append(f"{shortened} steps were shortened to keep it positive definite.")
    return " ".join(sentences)


def figures_of(recipe: PcgRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    settings, where = recipe.settings, describe(recipe.settings.problem)
    what = r"$\log_{10}(1 + \|r_i\| / \|b\|)$" if settings.variant == "demo" else r"$\|r_i\| / \|b\|$"
    yield (
        "loss.png",
        figures.loss_figure(
            f"Training loss through {settings.iterations} iterations, {where}",
            f"weighted {what}, mean",
            history,
            held_out="held-out, all iterations" if settings.curriculum else "held-out",
            log=min(history["loss"]) * WIDE < max(history["loss"]),
        ),
    )
    for sides, evaluation in outcome.data["evaluations"].items():
        systems = max(map(len, evaluation.histories.values()))
        many = f", median and range of {systems}" if systems > 1 else ""
        yield (
            "residuals.png" if sides == "held-out" else f"residuals_{sides}.png",
            comparison.solves_figure(
                f"Conjugate gradients, {where}, {sides}{many}",
                r"$\|b - A x_k\| / \|b\|$",
                evaluation.histories,
                settings.tolerances or (),
            ),
        )
    L = factor_of(recipe.model).detach()
    if L.nnz <= FACTOR_ENTRIES:
        yield "factor.png", factor_figure(L, settings.form)


def factor_figure(L: CSR, form: str) -> Any:
    """The diagonal and the other entries of L, each on a scale of its own: their sizes differ."""
    rows, columns = L.pattern.row_indices.cpu(), L.col_indices.cpu()
    values, on = L.values.cpu(), rows == columns
    words = "M = L L^T" if form == "product" else "M = (L L^T)^{-1}"
    figure, panels = figures.new_panels(f"Learned factor, ${words}$", 2)
    n = L.shape[0]
    size = max(1.0, (220 / n) ** 2)
    for axes, name, part in zip(panels, ("diagonal", "below the diagonal"), (on, ~on), strict=True):
        axes.set_title(name)
        axes.set_xlabel("column")
        axes.set_xlim(-1, n)
        axes.set_ylim(n, -1)
        axes.set_aspect("equal")
        if bool(part.any()):
            shown = axes.scatter(
                columns[part], rows[part], c=values[part], s=size, marker="s", cmap="viridis", linewidth=0
            )
            figure.colorbar(shown, ax=axes, shrink=0.8)
    panels[0].set_ylabel("row")
    return figure
