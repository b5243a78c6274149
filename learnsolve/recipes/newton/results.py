"""Newton's method from the predicted start and from others, on unseen fields.

A start costs time and possibly steps on coarser grids, which count as work in proportion to their cells.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate, pad

from learnsolve.evaluation.comparison import as_csv
from learnsolve.evaluation.figures import COLORS, residuals_figure
from learnsolve.recipes.harness.recipe import TRAINING, Outcome, network_facts
from learnsolve.recipes.harness.tables import LEARNED, Row, milliseconds, tabulate
from learnsolve.recipes.newton.problem import Problem, energy

if TYPE_CHECKING:
    from learnsolve.recipes.newton import NewtonRecipe

TEST, COARSEST, LOOSE = 3, 4, 1e-2  # random stream; cells along a side; tolerance on coarse grids
Start = Callable[[Tensor], tuple[Tensor, float]]  # k -> u, and the steps of Newton's method it took


def finer(u: Tensor, cells: int) -> Tensor:
    """u on a grid with `cells` cells per side, by bicubic interpolation."""
    whole = pad(u, (1, 1, 1, 1)).expand(1, 1, -1, -1)
    return interpolate(whole, 2 * (cells + 1,), mode="bicubic", align_corners=True)[0, 0, 1:-1, 1:-1]


def starts(recipe: NewtonRecipe) -> dict[str, Start]:
    """The starts by name."""
    s, problem, linear = recipe.settings, recipe.problem, Problem(2.0)
    known = recipe.fields(TRAINING, range(s.solved), step=-1)  # from the family of the training
    solutions = torch.stack([recipe.solution(k) for k in known])

    def zero(k: Tensor) -> tuple[Tensor, float]:
        return k.new_zeros(2 * (len(k) - 1,)), 0

    def of_linear(k: Tensor) -> tuple[Tensor, float]:
        """t u for u of p = 2, with t that minimizes the energy of t u."""
        u = linear.solve(zero(k)[0], k, s.rtol).x
        load = u.sum() / len(k) ** 2
        return u * (load / (s.p * (energy(u, k, s.p) + load))) ** (1 / (s.p - 1)), 1

    def mean(k: Tensor) -> tuple[Tensor, float]:
        return finer(solutions.mean(0), len(k)), 0

    def nearest(k: Tensor) -> tuple[Tensor, float]:
        log = avg_pool2d(k.log().expand(1, 1, -1, -1), len(k) // s.grid)[0, 0]
        return finer(solutions[(known.log() - log).square().sum((-2, -1)).argmin()], len(k)), 0

    def coarse(k: Tensor) -> tuple[Tensor, float]:
        """The solution on half as many cells along each side, found in the same way."""
        if len(k) % 2 or len(k) < 2 * COARSEST:
            return of_linear(k)
        half = avg_pool2d(k.expand(1, 1, -1, -1), 2)[0, 0]
        u, work = coarse(half)
        solution = problem.solve(u, half, LOOSE)
        return finer(solution.x, len(k)), (work + solution.iterations) / 4

    def learned(k: Tensor) -> tuple[Tensor, float]:
        return recipe.predicted(k), 0

    return {
        LEARNED: learned,
        "zero": zero,
        "linear problem": of_linear,
        "mean solution": mean,
        "nearest solution": nearest,
        "coarse grids": coarse,
    }


@torch.no_grad()
def measured(recipe: NewtonRecipe, start: Start, k: Tensor, x: Tensor) -> tuple[Row, Tensor]:
    """Steps, work and times for one field, with the residuals; x is the solution."""
    began = time.perf_counter()
    u, work = start(k)
    middle = time.perf_counter()
    solution = recipe.problem.solve(u, k, recipe.settings.rtol, throw=False)
    seconds = time.perf_counter() - began
    row = {"error": float((u - x).norm() / x.norm()), "steps": solution.iterations}
    row["converged"] = float(solution.converged)
    row |= {"work": work + solution.iterations, "start_seconds": middle - began, "seconds": seconds}
    return row, solution.residual_norms


def outcome_of(recipe: NewtonRecipe) -> Outcome:
    s, rows, histories, every = recipe.settings, [], {}, starts(recipe)
    for scale in (1, *sorted(s.scales)):
        fields = recipe.fields(TEST, range(max(1, s.evaluated // scale)), scale=scale)
        total: dict[str, Row] = {name: {} for name in every}
        for k in fields:
            x = recipe.solution(k)
            # Alternating, so that all see the same machine load.
            each = [
                {n: measured(recipe, start, k, x) for n, start in every.items()} for _ in range(s.repeats)
            ]
            for name, sums in total.items():
                runs = [run[name][0] for run in each]
                for key in runs[0]:
                    sums[key] = sums.get(key, 0) + min(run[key] for run in runs) / len(fields)
            if not histories:
                first = recipe.problem.f(torch.zeros_like(x), k).norm()
                histories = {name: [norms / first] for name, (_, norms) in each[0].items()}
        kind = {"cells": scale * s.grid, "fields": len(fields)}
        rows += [{**kind, "start": name, **means} for name, means in total.items()]
    columns = {
        "cells: start": lambda row: f"{row['cells']} x {row['cells']}: {row['start']}",
        "error of the start": lambda row: f"{100 * row['error']:.1f} %",
        "Newton steps": lambda row: (
            f"{row['steps']:.2f}" if row["converged"] == 1 else f"{100 * row['converged']:.0f} % converge"
        ),
        "work": lambda row: f"{row['work']:.2f}",
        "start ms": lambda row: milliseconds(row["start_seconds"]),
        "all ms": lambda row: milliseconds(row["seconds"]),
    }
    numbers: dict[str, Any] = {"network": network_facts(recipe.model), "evaluation": rows}
    numbers |= {"problem": {"description": recipe.where}, "loss_is": "energy, mean over fields"}
    styles = {name: {"color": color} for name, color in zip(histories, COLORS, strict=False)}
    title = f"Newton's method, {recipe.where}\nfirst field"
    draw = partial(residuals_figure, title, histories, xlabel="step", styles=styles)
    return Outcome(
        numbers,
        *tabulate(rows, columns),
        sentence_of(rows),
        {"convergence.png": draw},
        texts={"evaluation.csv": as_csv(rows)},
    )


def sentence_of(rows: list[Row]) -> str:
    first = {row["start"]: row for row in rows if row["cells"] == rows[0]["cells"]}
    steps = {name: f"{row['steps']:.1f}" for name, row in first.items()}
    fastest = {}
    for row in rows:
        best = fastest.setdefault(row["cells"], row)
        fastest[row["cells"]] = min(best, row, key=lambda row: row["seconds"])
    winners = ", ".join(f"{row['start']} ({cells} x {cells})" for cells, row in fastest.items())
    return (
        f"On {rows[0]['fields']} unseen fields Newton's method takes {steps[LEARNED]} steps from the "
        f"predicted start, {steps['zero']} from zero, {steps['coarse grids']} from coarse grids; fastest, "
        f"with the time of the start: {winners}."
    )
