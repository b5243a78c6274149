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

from learnsolve import preconditioners as P
from learnsolve import solvers
from learnsolve.evaluation import _table, evaluate
from learnsolve.matrix.csr import CSR
from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.figures import loss_figure, residuals_figure
from learnsolve.recipes.harness.recipe import Outcome
from learnsolve.recipes.harness.tables import LEARNED, with_amg
from learnsolve.recipes.matrix.problem import describe, facts

if TYPE_CHECKING:
    from learnsolve.recipes.gnp import GnpRecipe


def inner_gmres(A: CSR, iterations: int) -> Callable[[Tensor], Tensor]:
    """r -> what some iterations of GMRES make of it; not linear."""
    return lambda r: solvers.gmres(A, r, rtol=0.0, maxiter=iterations, restart=iterations).x


def outcome_of(recipe: GnpRecipe) -> Outcome:
    s, A = recipe.settings, recipe.A
    linear = with_amg({"none": None, "Jacobi": P.Jacobi, "ILU(0)": P.ILU0}, A.shape[0])
    M = {LEARNED: recipe.model, **linear, "inner GMRES": lambda A: inner_gmres(A, s.restart)}
    solver = partial(solvers.fgmres, restart=s.restart)
    options = {"maxiter": s.iterations, "repeats": s.repeats, "on_error": "row"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of AMG, where the diagonal has zeros; its row says that it failed
        evaluation = evaluate(A, recipe.test_sides(), M, rtol=s.tolerances, solver=solver, **options)
    last = {name: _last(histories) for name, histories in evaluation.histories.items()}
    rows = [row | {"residual": last[row["preconditioner"]]} for row in _table.flat(evaluation)]
    setup = {row["preconditioner"]: _table.milliseconds(row["setup_seconds"]) for row in rows}
    setup |= {LEARNED: "training"}
    cells = _table.by_preconditioner(rows, _table.iterations, lambda row: _table.milliseconds(row["seconds"]))
    residuals = {name: f"{r:.2e}" if math.isfinite(r) else "fails" for name, r in last.items()}
    columns = ["preconditioner", "set-up ms", f"residual after {s.iterations}"]
    columns += _table.with_milliseconds(s.tolerances)
    weights = sum(p.numel() for p in recipe.model.parameters())
    numbers = {
        "problem": facts(s.problem, A),
        "network": {"class": "GNP", "weights": weights, **recipe.model.settings()},
        "loss_is": "mean |A M(b) - b| over the entries of b = A x of mean square one",
        "solver": f"fgmres({s.restart}), b = A x, x from N(0, I), mean of {s.evaluated}",
        "evaluation": rows,
    }
    rest = {name: r for name, r in last.items() if name != LEARNED}
    best = min(rest, key=lambda name: rest[name] if math.isfinite(rest[name]) else math.inf)
    words = (
        f"After {s.iterations} iterations of FGMRES({s.restart}) the residual is {last[LEARNED]:.1e} with "
        f"the network, and {rest[best]:.1e} with {best}, the best of the others."
    )
    if failed := [name for name, r in rest.items() if not math.isfinite(r)]:
        words += f" Without a result: {', '.join(failed)}."
    table = [[name, setup[name], residuals[name], *line] for name, line in cells.items()]
    data, texts = {"histories": evaluation.histories}, {"evaluation.csv": _table.as_csv(rows)}
    return Outcome(numbers, columns, table, words, data, texts)


def _last(histories: list[Tensor]) -> float:
    """The geometric mean of the last residuals; NaN where there are none."""
    logs = [math.log(max(float(h[-1]), 1e-300)) for h in histories if math.isfinite(float(h[-1]))]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def figures_of(recipe: GnpRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    where = describe(recipe.settings.problem)
    yield "loss.png", loss_figure(f"Loss, {where}", "mean |A M(b) - b|", history, log=True)
    first = {name: runs[:1] for name, runs in outcome.data["histories"].items()}
    finite = {name: runs for name, runs in first.items() if runs and bool(runs[0].isfinite().all())}
    title = f"FGMRES({recipe.settings.restart}), {where}\nfirst right-hand side"
    yield "convergence.png", residuals_figure(title, finite)
