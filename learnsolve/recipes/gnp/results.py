"""Flexible GMRES with a trained network and with other preconditioners, on right-hand sides of a matrix.

Pictures: the loss, and the residuals of the solves.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from learnsolve import preconditioners, solvers
from learnsolve.evaluation import _table, evaluate
from learnsolve.evaluation._table import as_csv, milliseconds
from learnsolve.matrix.csr import CSR
from learnsolve.recipes import comparison
from learnsolve.recipes.comparison import LEARNED
from learnsolve.recipes.harness import figures
from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.recipe import Outcome
from learnsolve.recipes.matrix.problem import describe, facts

if TYPE_CHECKING:
    from learnsolve.recipes.gnp import GnpRecipe

INNER = "inner GMRES"


def inner_gmres(A: CSR, iterations: int) -> Callable[[Tensor], Tensor]:
    """r -> what some iterations of GMRES make of it; not linear."""
    return lambda r: solvers.gmres(A, r, rtol=0.0, maxiter=iterations, restart=iterations).x


def candidates(recipe: GnpRecipe) -> dict[str, Any]:
    P, restart = preconditioners, recipe.settings.restart
    linear = {"none": None, "Jacobi": P.Jacobi, "ILU(0)": P.ILU0}
    linear, _ = comparison.with_amg(linear, recipe.A.shape[0])
    return {LEARNED: recipe.model, **linear, INNER: lambda A: inner_gmres(A, restart)}


def outcome_of(recipe: GnpRecipe) -> Outcome:
    s = recipe.settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of AMG, where the diagonal has zeros; its row says that it failed
        evaluation = evaluate(
            recipe.A,
            recipe.test_sides(),
            candidates(recipe),
            rtol=s.tolerances,
            solver=partial(solvers.fgmres, restart=s.restart),
            maxiter=s.iterations,
            repeats=s.repeats,
            on_error="row",
        )
    rows = _table.flat(evaluation)
    left = {name: _last(histories) for name, histories in evaluation.histories.items()}
    setup = {row["preconditioner"]: milliseconds(row["setup_seconds"]) for row in rows} | {
        LEARNED: "training"
    }
    for row in rows:
        row["residual"] = left[row["preconditioner"]]
    cells = _table.by_preconditioner(rows, _table.iterations, lambda row: milliseconds(row["seconds"]))
    residuals = {name: f"{r:.2e}" if math.isfinite(r) else "fails" for name, r in left.items()}
    table = [[name, setup[name], residuals[name], *line] for name, line in cells.items()]
    columns = ["preconditioner", "set-up ms", f"residual after {s.iterations}"]
    columns += _table.with_milliseconds(s.tolerances)
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


def figures_of(recipe: GnpRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    where = describe(recipe.settings.problem)
    yield "loss.png", figures.loss_figure(f"Loss, {where}", "mean |A M(b) - b|", history, log=True)
    title, ylabel = (
        f"FGMRES({recipe.settings.restart}), {where}",
        r"$\|b - A x_k\| / \|b\|$, first right-hand side",
    )
    first = {name: runs[:1] for name, runs in outcome.data["histories"].items()}
    drawn = {name: runs for name, runs in first.items() if runs and bool(runs[0].isfinite().all())}
    yield "convergence.png", comparison.solves_figure(title, ylabel, drawn)
