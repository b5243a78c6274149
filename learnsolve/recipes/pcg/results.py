"""The learned preconditioner compared with none, Jacobi, IC(0) and AMG on other right-hand sides.

Pictures: loss (figure 7 of the paper), residuals (figure 8) and the learned factor.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from learnsolve import preconditioners
from learnsolve.analysis import condition_number
from learnsolve.csr import CSR
from learnsolve.evaluation import Evaluation, evaluate
from learnsolve.recipes.harness import plots
from learnsolve.recipes.harness.base import History, Outcome
from learnsolve.recipes.harness.plots import BLACK, BLUE, GREY, ORANGE, PURPLE
from learnsolve.recipes.harness.problem import describe, facts
from learnsolve.recipes.harness.tables import as_csv, flat
from learnsolve.recipes.pcg.factor import definiteness, factor_of

if TYPE_CHECKING:
    from learnsolve.recipes.pcg import PcgRecipe

CONDITION_LIMIT = 10_000  # unknowns; beyond, Lanczos takes longer than the solves
FACTOR_ENTRIES = 20_000  # more would be drawn as one dark area
WIDE = 5  # quotient of losses from which on the axis is logarithmic
STYLES = {
    "learned": {"color": BLUE, "linewidth": 2.2},
    "none": {"color": BLACK, "linestyle": "--"},
    "Jacobi": {"color": GREY, "linestyle": ":", "linewidth": 2.0},
    "IC(0)": {"color": ORANGE, "linestyle": "-."},
    "AMG": {"color": PURPLE},
}


def candidates(recipe: PcgRecipe) -> tuple[dict[str, Any], dict[str, str]]:
    """Preconditioners by name, and the reasons why others are left out."""
    found: dict[str, Any] = {
        "learned": recipe.model,
        "none": None,
        "Jacobi": preconditioners.Jacobi,
        "IC(0)": preconditioners.IC0,
    }
    if importlib.util.find_spec("pyamg") is None:
        return found, {"AMG": "pyamg is not installed: pip install 'learnsolve[problems]'"}
    # Several levels also where the matrix is small: on one, AMG is a direct solve.
    coarse = max(1, min(100, recipe.A.shape[0] // 8))
    return found | {"AMG": partial(preconditioners.AMG, max_coarse=coarse)}, {}


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
    settings, A = recipe.settings, recipe.A
    count = min(settings.evaluated, recipe.held_out.shape[1])
    evaluations = {"held-out": compare(recipe, recipe.held_out[:, :count])}
    if settings.test_vectors == "ramp":
        evaluations["ramp"] = compare(recipe, recipe.ramp())
    given, skipped = candidates(recipe)
    conditions = {name: condition(A, M) for name, M in given.items()}
    columns = ["preconditioner", "condition of M A"]
    columns += [f"{sides}, {rtol:.0e}" for sides in evaluations for rtol in _tolerances(recipe)]
    rows: list[list[Any]] = []
    for name in given:
        cells = [
            _count(row.iterations.mean if row.converged == row.systems else None)
            for evaluation in evaluations.values()
            for row in evaluation.rows
            if row.preconditioner == name
        ]
        value = conditions[name]
        rows.append([name, "" if value is None else f"{value:.4g}", *cells])
    rows += [[name, "", "skipped", *[""] * (len(columns) - 3)] for name in skipped]
    everything = [
        {"right_hand_sides": sides, **row}
        for sides, evaluation in evaluations.items()
        for row in flat(evaluation)
    ]
    sentence = sentence_of(evaluations, _tolerances(recipe), recipe.guard.shortened)
    numbers = {
        "variant": settings.variant,
        "problem": facts(settings.problem, A),
        "preconditioner": {
            "form": "L L^T" if settings.form == "product" else "(L L^T)^-1",
            "pattern": settings.pattern,
            "nnz": factor_of(recipe.model).nnz,
            "definiteness": definiteness(factor_of(recipe.model)),
        },
        "loss_is": "weighted relative residuals of the first iterations, mean over right-hand sides",
        "stopped_early": recipe.finished,
        "shortened_steps": recipe.guard.shortened,
        "condition_numbers": conditions,
        "evaluation": everything,
        "skipped": skipped,
    }
    return Outcome(
        numbers, columns, rows, sentence, {"evaluations": evaluations}, {"evaluation.csv": as_csv(everything)}
    )


def _tolerances(recipe: PcgRecipe) -> list[float]:
    return sorted(recipe.settings.tolerances or [], reverse=True)


def _count(iterations: float | None) -> str:
    return "not reached" if iterations is None or math.isnan(iterations) else f"{iterations:.1f}"


def sentence_of(evaluations: dict[str, Evaluation], tolerances: list[float], shortened: int) -> str:
    """One sentence a set of right-hand sides, at the middle tolerance."""
    rtol = tolerances[len(tolerances) // 2]
    found = []
    for sides, evaluation in evaluations.items():
        mean = {
            row.preconditioner: row.iterations.mean
            for row in evaluation.rows
            if row.rtol == rtol and row.converged == row.systems
        }
        what = "the right-hand side it was trained on" if sides == "ramp" else "held-out right-hand sides"
        if "learned" not in mean or "none" not in mean:
            found.append(f"On {what} not every solve reached {rtol:.0e}.")
            continue
        found.append(
            f"On {what} it takes {mean['learned']:.1f} iterations to {rtol:.0e}, without a preconditioner "
            f"{mean['none']:.1f}."
        )
    if shortened:
        found.append(f"{shortened} steps were shortened to keep it positive definite.")
    return " ".join(found)


def figures_of(recipe: PcgRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    settings, where = recipe.settings, describe(recipe.settings.problem)
    what = r"$\log_{10}(1 + \|r_i\| / \|b\|)$" if settings.variant == "demo" else r"$\|r_i\| / \|b\|$"
    yield (
        "loss.png",
        plots.loss_figure(
            f"Training loss through {settings.iterations} iterations, {where}",
            f"weighted {what}, mean",
            history,
            held_out="held-out, all iterations" if settings.curriculum else "held-out",
            log=min(history["loss"]) * WIDE < max(history["loss"]),
        ),
    )
    for sides, evaluation in outcome.data["evaluations"].items():
        name = "residuals.png" if sides == "held-out" else f"residuals_{sides}.png"
        yield name, residuals_figure(evaluation, f"{where}, {sides}")
    L = factor_of(recipe.model).detach()
    if L.nnz <= FACTOR_ENTRIES:
        yield "factor.png", factor_figure(L, settings.form)


def residuals_figure(evaluation: Evaluation, where: str) -> Any:
    """The median over the right-hand sides, in a band from the smallest to the largest."""
    systems = max(len(histories) for histories in evaluation.histories.values())
    many = f", median and range of {systems}" if systems > 1 else ""
    figure, axes = plots.new_figure(
        f"Conjugate gradients, {where}{many}", "iteration", r"$\|b - A x_k\| / \|b\|$"
    )
    for name, histories in evaluation.histories.items():
        if not histories:
            continue
        longest = max(len(h) for h in histories)
        table = torch.stack([torch.cat((h, h[-1:].expand(longest - len(h)))) for h in histories])
        table = table.clamp(min=torch.finfo(table.dtype).tiny)
        steps = range(longest)
        axes.semilogy(steps, table.median(0).values, label=name, **STYLES[name])
        if systems > 1:
            axes.fill_between(
                steps, table.amin(0), table.amax(0), color=STYLES[name]["color"], alpha=0.12, linewidth=0
            )
    for rtol in sorted({row.rtol for row in evaluation.rows}):
        axes.axhline(rtol, color=GREY, linewidth=0.6, zorder=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(bottom=min(row.rtol for row in evaluation.rows) / 100)
    plots.finish(axes)
    return figure


def factor_figure(L: CSR, form: str) -> Any:
    """The diagonal and the other entries of L, each on a scale of its own: their sizes differ."""
    rows, columns = L.pattern.row_indices.cpu(), L.col_indices.cpu()
    values, on = L.values.cpu(), rows == columns
    words = "M = L L^T" if form == "product" else "M = (L L^T)^{-1}"
    figure, panels = plots.new_panels(f"Learned factor, ${words}$", 2)
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
