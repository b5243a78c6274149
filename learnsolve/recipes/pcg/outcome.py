"""The learned preconditioner compared with none, Jacobi, IC(0) and AMG on other right-hand sides."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from learnsolve import preconditioners
from learnsolve.analysis import condition_number
from learnsolve.csr import CSR
from learnsolve.evaluation import Evaluation, evaluate
from learnsolve.recipes.harness.base import Outcome
from learnsolve.recipes.harness.problem import facts
from learnsolve.recipes.pcg.definite import definiteness
from learnsolve.recipes.pcg.factor import factor_of

if TYPE_CHECKING:
    from learnsolve.recipes.pcg import PcgRecipe

CONDITION_LIMIT = 10_000  # unknowns; beyond, Lanczos takes longer than the solves


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


def numbers_of(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The rows, flat."""
    return [
        {
            "preconditioner": row.preconditioner,
            "rtol": row.rtol,
            "systems": row.systems,
            "converged": row.converged,
            "iterations": row.iterations.mean,
            "iterations_min": row.iterations.min,
            "iterations_max": row.iterations.max,
            "seconds": row.seconds.mean,
            "setup_seconds": row.setup.mean,
            "message": row.message,
        }
        for row in evaluation.rows
    ]


def as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        empty = {k: "" for k, v in row.items() if isinstance(v, float) and math.isnan(v)}
        writer.writerow(row | empty)
    return text.getvalue()


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
        for row in numbers_of(evaluation)
    ]
    sentence = describe(evaluations, _tolerances(recipe), recipe.guard.shortened)
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


def describe(evaluations: dict[str, Evaluation], tolerances: list[float], shortened: int) -> str:
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
