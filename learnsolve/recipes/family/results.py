"""A trained network compared with classical preconditioners on unseen matrices.

Figures: the loss, iterations during training, iterations on larger matrices.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from learnsolve import preconditioners as P
from learnsolve import solvers
from learnsolve.evaluation.comparison import as_csv
from learnsolve.evaluation.figures import Line, look, picture
from learnsolve.matrix.csr import CSR
from learnsolve.preconditioners.networks import MatrixNetwork
from learnsolve.recipes.harness import tables
from learnsolve.recipes.harness.recipe import Outcome, network_facts
from learnsolve.recipes.harness.tables import LEARNED, Row

if TYPE_CHECKING:
    from learnsolve.recipes.family import FactorRecipe

# The preconditioners to compare with: functions A -> M.
BASELINES: dict[str, Callable[[CSR], Any] | None] = {
    **{"none": None, "Jacobi": P.Jacobi, "SSOR": P.SSOR},
    "IC(0)": partial(P.IC0, on_breakdown="shift"),
    "MIC(0)": partial(P.MIC0, on_breakdown="shift"),
    "ICT": partial(P.ICT, on_breakdown="shift"),
}
MARKERS = {LEARNED: "o", "IC(0)": "s"}
LOSSES = {
    "cycles": "factor by which a two-grid cycle reduces random errors, over several, mean over matrices",
    "product": "||L L^T x - b||^2 / ||b||^2, b random, A x = b, mean over matrices",
    "frobenius": "||L L^T x - b||^2 / ||b||^2, x random, b = A x, mean over matrices",
    "iterations": "weighted relative residuals of the first iterations, mean over matrices and vectors",
}


def candidates(network: MatrixNetwork, n: int) -> dict[str, Any]:
    """Preconditioners by name."""
    classical = {"RS-AMG": network.classical} if isinstance(network, P.NeuralAMG) else {}
    return tables.with_amg({LEARNED: network, **BASELINES, **classical}, n)


def iterations_of(network: MatrixNetwork, A: CSR, b: torch.Tensor, rtol: float) -> int | None:
    """Iterations of `cg`; None if it does not converge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", solvers.ConvergenceWarning)
        try:
            solution = solvers.cg(A, b, rtol=rtol, M=network(A))
        except ValueError:  # a factor that overflows
            return None
    return solution.iterations if solution.converged else None


def absolute(A: CSR, b: torch.Tensor, *, rtol: float, maxiter: int | None, M: Any) -> solvers.Solution:
    """`cg` from a random start, to an absolute tolerance: the published stop of PreCorrector."""
    x0 = torch.randn(b.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return solvers.cg(A, b, x0.to(b), rtol=0.0, atol=rtol, maxiter=maxiter, M=M)


def evaluation_rows(recipe: FactorRecipe, scale: int) -> list[Row]:
    """The evaluation on matrices `scale` times as large."""
    s = recipe.settings
    data = s.data("test", s.evaluated if scale == 1 else s.evaluated_larger, scale)
    A, b = map(list, zip(*((sample.A.to(s.device), sample.b.to(s.device)) for sample in data), strict=True))
    M = candidates(recipe.model, n := A[0].shape[0])
    which = {"matrices": s.describe(scale), "n": n}
    rows = tables.flat(tables.compare(A, b, M, s.tolerances, repeats=s.repeats), **which)
    if (stop := s.absolute_stop) is not None:
        untimed = {"rtol": f"absolute {stop:g}", "seconds": math.nan, "seconds_std": math.nan}
        published = tables.compare(A, b, M, [stop], repeats=1, solver=absolute)
        rows += [row | untimed for row in tables.flat(published, **which)]
    return rows


def outcome_of(recipe: FactorRecipe) -> Outcome:
    settings, A = recipe.settings, recipe.A
    rows = [row for scale in (1, *sorted(settings.scales)) for row in evaluation_rows(recipe, scale)]
    columns = {
        "matrices: preconditioner": lambda row: f"{row['matrices']}: {row['preconditioner']}",
        "set-up ms": lambda row: tables.milliseconds(row["setup_seconds"]),
    }
    about = {"description": settings.describe(), "n": A.shape[0], "nnz": A.nnz}
    numbers = {
        "problem": about | {key: getattr(settings, key) for key in ("matrices", "held_out_matrices")},
        "network": network_facts(recipe.model),
        "loss_is": LOSSES[settings.loss],
        "evaluation": rows,
    }
    rtol = tables.middle(settings.tolerances)
    figures = {"sizes.png": partial(sizes_figure, recipe.where, rows, rtol)} if settings.scales else {}
    table = tables.tabulate(rows, columns, tables.cells)
    return Outcome(numbers, *table, sentence_of(rows, rtol), figures, texts={"evaluation.csv": as_csv(rows)})


def sentence_of(rows: list[Row], rtol: float) -> str:
    at = {(row["n"], row["preconditioner"]): row for row in rows if row["rtol"] == rtol}
    n = rows[0]["n"]
    learned, other = at[n, LEARNED], at[n, "IC(0)"]
    if learned["converged"] < learned["systems"]:
        return f"Of {learned['systems']} held-out matrices {learned['converged']} reached {rtol:.0e}."

    seconds = {  # including the setup
        key: row["seconds"] + row["setup_seconds"] if row["converged"] == row["systems"] else math.inf
        for key, row in at.items()
    }
    faster = [str(n) for n, name in at if name == LEARNED and seconds[n, name] < seconds[n, "IC(0)"]]
    return (
        f"On {learned['systems']} held-out matrices it takes {learned['iterations']:.1f} iterations to "
        f"{rtol:.0e}, IC(0) {other['iterations']:.1f}; with its set-up it is faster than IC(0) for "
        + (f"n = {', '.join(faster)}." if faster else "none of the sizes.")
    )


def sizes_figure(where: str, rows: list[Row], rtol: float) -> Any:
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row["rtol"] == rtol and row["converged"] == row["systems"]:
            points.setdefault(row["preconditioner"], []).append((row["n"], row["iterations"]))
    lines = [
        Line(name, y, n, style=look(name) | {"marker": MARKERS.get(name)})
        for name, (n, y) in ((name, zip(*pairs, strict=True)) for name, pairs in points.items())
    ]
    title, ylabel = f"Trained on {where}", f"mean iterations to {rtol:.0e}"
    return picture(title, "rows of the matrix", ylabel, lines, log="xy")
