"""Flexible GMRES with a trained network and with other preconditioners, on right-hand sides of a matrix.

Pictures: the loss, and the residuals of the solves.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from learnsolve import preconditioners, solvers
from learnsolve.csr import CSR
from learnsolve.evaluation import evaluate
from learnsolve.recipes.harness import plots
from learnsolve.recipes.harness.base import History, Outcome
from learnsolve.recipes.harness.plots import BLACK, BLUE, GREY, ORANGE, PURPLE
from learnsolve.recipes.harness.problem import describe, facts
from learnsolve.recipes.harness.tables import as_csv, flat

if TYPE_CHECKING:
    from learnsolve.recipes.gnp import GnpRecipe

LEARNED, INNER = "learned", "inner GMRES"
STYLES = {
    LEARNED: {"color": BLUE, "linewidth": 2.2},
    "none": {"color": BLACK, "linestyle": "--"},
    "Jacobi": {"color": GREY, "linestyle": ":", "linewidth": 2.0},
    "ILU(0)": {"color": ORANGE},
    "AMG": {"color": PURPLE},
    INNER: {"color": GREY, "linestyle": "-."},
}


def inner_gmres(A: CSR, iterations: int) -> Callable[[Tensor], Tensor]:
    """r -> what some iterations of GMRES make of it; not linear."""
    return lambda r: solvers.gmres(A, r, rtol=0.0, maxiter=iterations, restart=iterations).x


def candidates(recipe: GnpRecipe) -> dict[str, Any]:
    P, restart = preconditioners, recipe.settings.restart
    found = {"none": None, "Jacobi": P.Jacobi, "ILU(0)": P.ILU0}
    if importlib.util.find_spec("pyamg") is not None:
        # Several levels also where the matrix is small: on one, AMG is a direct solve.
        found["AMG"] = partial(P.AMG, max_coarse=max(1, min(100, recipe.A.shape[0] // 8)))
    return {LEARNED: recipe.model, **found, INNER: lambda A: inner_gmres(A, restart)}


def outcome_of(recipe: GnpRecipe) -> Outcome:
    s = recipe.settings
    tolerances = sorted(s.tolerances, reverse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of AMG, where the diagonal has zeros; its row says that it failed
        evaluation = evaluate(
            recipe.A,
            recipe.test_sides(),
            candidates(recipe),
            rtol=tolerances,
            solver=partial(solvers.fgmres, restart=s.restart),
            maxiter=s.iterations,
            repeats=s.repeats,
            on_error="row",
        )
    rows = flat(evaluation)
    left = {name: _last(histories) for name, histories in evaluation.histories.items()}
    for row in rows:
        row["residual"] = left[row["preconditioner"]]
    table = []
    for name in evaluation.histories:
        mine = [row for row in rows if row["preconditioner"] == name]
        setup = "training" if name == LEARNED else _milliseconds(mine[0]["setup_seconds"])
        residual = f"{left[name]:.2e}" if math.isfinite(left[name]) else "fails"
        table.append([name, setup, residual, *(cell for row in mine for cell in _cells(row))])
    columns = ["preconditioner", "set-up ms", f"residual after {s.iterations}"]
    columns += [name for rtol in tolerances for name in (f"iterations {rtol:.0e}", "ms")]
    numbers = {
        "problem": facts(s.problem, recipe.A),
        "network": {
            "class": "GNP",
            "weights": sum(p.numel() for p in recipe.model.parameters()),
            **recipe.model.settings(),
        },
        "loss_is": "mean |A M(b) - b| over the entries of b = A x of mean square one",
        "solver": f"fgmres({s.restart}), b = A x, x from N(0, I), mean of {s.evaluated}",
        "evaluation": rows,
    }
    rest = {name: r for name, r in left.items() if name != LEARNED}
    best = min(rest, key=lambda name: rest[name] if math.isfinite(rest[name]) else math.inf)
    sentence = (
        f"After {s.iterations} iterations of FGMRES({s.restart}) the residual is {left[LEARNED]:.1e} with "
        f"the network, and {rest[best]:.1e} with {best}, the best of the others."
    )
    failed = [name for name, r in rest.items() if not math.isfinite(r)]
    if failed:
        sentence += f" Without a result: {', '.join(failed)}."
    data = {"histories": evaluation.histories}
    return Outcome(numbers, columns, table, sentence, data, {"evaluation.csv": as_csv(rows)})


def _last(histories: list[Tensor]) -> float:
    """The geometric mean of the last residuals; NaN where there are none."""
    logs = [math.log(max(float(h[-1]), 1e-300)) for h in histories if math.isfinite(float(h[-1]))]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _cells(row: dict[str, Any]) -> list[str]:
    if row["message"]:
        return ["", ""]
    if row["converged"] < row["systems"]:
        return [f"{row['converged']}/{row['systems']} reached", _milliseconds(row["seconds"])]
    return [f"{row['iterations']:.1f}", _milliseconds(row["seconds"])]


def _milliseconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{1e3 * seconds:.2f}"


def figures_of(recipe: GnpRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    where = describe(recipe.settings.problem)
    yield "loss.png", plots.loss_figure(f"Loss, {where}", "mean |A M(b) - b|", history, log=True)
    title = f"FGMRES({recipe.settings.restart}), {where}"
    figure, axes = plots.new_figure(title, "iteration", r"$\|b - A x_k\| / \|b\|$, first right-hand side")
    for name, histories in outcome.data["histories"].items():
        if histories and bool(histories[0].isfinite().all()):
            axes.semilogy(histories[0].cpu(), label=name, **STYLES[name])
    plots.finish(axes)
    yield "convergence.png", figure
