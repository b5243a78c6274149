"""Flexible GMRES with a trained network and with other preconditioners, for right-hand sides of one matrix.

Figures: the loss, and the residuals of the solves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from learnsolve import preconditioners as P
from learnsolve import solvers
from learnsolve.evaluation.comparison import as_csv
from learnsolve.evaluation.figures import residuals_figure
from learnsolve.matrix.csr import CSR
from learnsolve.recipes.harness import tables
from learnsolve.recipes.harness.recipe import Outcome, network_facts
from learnsolve.recipes.harness.tables import LEARNED
from learnsolve.recipes.matrix.problem import facts

if TYPE_CHECKING:
    from learnsolve.recipes.gnp import GnpRecipe


def inner_gmres(A: CSR, iterations: int) -> Callable[[Tensor], Tensor]:
    """r -> the result of some GMRES iterations; not linear."""
    return lambda r: solvers.gmres(A, r, rtol=0.0, maxiter=iterations, restart=iterations).x


def outcome_of(recipe: GnpRecipe) -> Outcome:
    s, A = recipe.settings, recipe.A
    linear = tables.with_amg({"none": None, "Jacobi": P.Jacobi, "ILU(0)": P.ILU0}, A.shape[0])
    M = {LEARNED: recipe.model, **linear, "inner GMRES": lambda A: inner_gmres(A, s.restart)}
    solver, options = (
        partial(solvers.fgmres, restart=s.restart),
        {"maxiter": s.iterations, "repeats": s.repeats},
    )
    evaluation = tables.compare(A, recipe.test_sides(), M, s.tolerances, solver=solver, **options)
    last = {name: _last(histories) for name, histories in evaluation.histories.items()}
    rows = [row | {"residual": last[row["preconditioner"]]} for row in tables.flat(evaluation)]
    columns = {
        "preconditioner": "preconditioner",
        "set-up ms": lambda r: (
            tables.milliseconds(r["setup_seconds"]) if r["preconditioner"] != LEARNED else "training"
        ),
        f"residual after {s.iterations}": lambda r: (
            f"{r['residual']:.2e}" if math.isfinite(r["residual"]) else "fails"
        ),
    }
    numbers = {
        "problem": facts(s.problem, A),
        "network": network_facts(recipe.model),
        "loss_is": "mean |A M(b) - b| over the entries of b = A x of mean square one",
        "solver": f"fgmres({s.restart}), b = A x, x from N(0, I), mean of {s.evaluated}",
        "evaluation": rows,
    }
    learned = last.pop(LEARNED)
    best = min(last, key=lambda name: last[name] if math.isfinite(last[name]) else math.inf)
    words = (
        f"After {s.iterations} iterations of FGMRES({s.restart}) the residual is {learned:.1e} with "
        f"the network, and {last[best]:.1e} with {best}, the best of the others."
    )
    if failed := [name for name, r in last.items() if not math.isfinite(r)]:
        words += f" Without a result: {', '.join(failed)}."
    first = {name: runs[:1] for name, runs in evaluation.histories.items()}
    finite = {name: runs for name, runs in first.items() if runs and bool(runs[0].isfinite().all())}
    title = f"FGMRES({s.restart}), {recipe.where}\nfirst right-hand side"
    figures = {"convergence.png": partial(residuals_figure, title, finite)}
    table = tables.tabulate(rows, columns, tables.cells)
    return Outcome(numbers, *table, words, figures, texts={"evaluation.csv": as_csv(rows)})


def _last(histories: list[Tensor]) -> float:
    """The geometric mean of the last residuals; NaN if there are none."""
    logs = [math.log(max(float(h[-1]), 1e-300)) for h in histories if math.isfinite(float(h[-1]))]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
