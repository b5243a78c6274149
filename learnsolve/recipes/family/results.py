"""A trained network compared with classical preconditioners, on matrices that it has not seen.

Pictures: the loss, iterations during the training, iterations on larger matrices.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from learnsolve import preconditioners, solvers
from learnsolve.evaluation import Evaluation, _table, evaluate
from learnsolve.evaluation._table import Row, as_csv, milliseconds
from learnsolve.matrix.csr import CSR
from learnsolve.preconditioners.learned._factor_network import MatrixNetwork
from learnsolve.problems.datasets import ProblemDataset
from learnsolve.recipes import comparison
from learnsolve.recipes.comparison import LEARNED
from learnsolve.recipes.harness import figures
from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.recipe import Outcome

if TYPE_CHECKING:
    from learnsolve.recipes.family import FactorRecipe

# What the network is compared with: functions A -> M.
BASELINES: dict[str, Callable[[CSR], Any] | None] = {
    "none": None,
    "Jacobi": preconditioners.Jacobi,
    "SSOR": preconditioners.SSOR,
    "IC(0)": partial(preconditioners.IC0, on_breakdown="shift"),
    "MIC(0)": partial(preconditioners.MIC0, on_breakdown="shift"),
    "ICT": partial(preconditioners.ICT, on_breakdown="shift"),
}
MARKERS = {LEARNED: "o", "IC(0)": "s"}
LOSSES = {
    "cycles": "factor by which a two-grid cycle reduces random errors, over several, mean over matrices",
    "product": "||L L^T x - b||^2 / ||b||^2, b random, A x = b, mean over matrices",
    "frobenius": "||L L^T x - b||^2 / ||b||^2, x random, b = A x, mean over matrices",
    "iterations": "weighted relative residuals of the first iterations, mean over matrices and vectors",
}


def candidates(network: MatrixNetwork, n: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Preconditioners by name, and the reasons why others are left out."""
    classical = {"RS-AMG": network.classical} if isinstance(network, preconditioners.NeuralAMG) else {}
    return comparison.with_amg({LEARNED: network, **BASELINES, **classical}, n)


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


def compare(
    recipe: FactorRecipe, data: ProblemDataset, tolerances: list[float], repeats: int, **options: Any
) -> Evaluation:
    device, samples = recipe.settings.device, list(data)
    A, b = [s.A.to(device) for s in samples], [s.b.to(device) for s in samples]
    M, _ = candidates(recipe.model, A[0].shape[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of shifts that were searched
        return evaluate(A, b, M, rtol=tolerances, repeats=repeats, on_error="row", **options)


def rows_of(recipe: FactorRecipe, scale: int) -> list[Row]:
    """The evaluation on matrices `scale` times as large."""
    settings = recipe.settings
    data = settings.data("test", settings.evaluated if scale == 1 else settings.evaluated_larger, scale)
    which = {"matrices": settings.describe(scale), "n": data[0].A.shape[0]}
    rows = _table.flat(compare(recipe, data, settings.tolerances, settings.repeats), **which)
    if (stop := settings.absolute_stop) is not None:
        untimed = {"rtol": f"absolute {stop:g}", "seconds": math.nan, "seconds_std": math.nan}
        rows += [
            row | untimed for row in _table.flat(compare(recipe, data, [stop], 1, solver=absolute), **which)
        ]
    return rows


def outcome_of(recipe: FactorRecipe) -> Outcome:
    settings, model, A = recipe.settings, recipe.model, recipe.A
    everything: list[Row] = []
    lines: list[list[Any]] = []
    for scale in (1, *sorted(settings.scales)):
        rows, where = rows_of(recipe, scale), settings.describe(scale)
        setup = {row["preconditioner"]: milliseconds(row["setup_seconds"]) for row in reversed(rows)}
        cells = _table.by_preconditioner(
            rows,
            partial(_table.iterations, deviation=True),
            lambda row: None if isinstance(row["rtol"], str) else milliseconds(row["seconds"]),
        )
        lines += [[f"{where}: {name}", setup[name], *line] for name, line in cells.items()]
        everything += rows
    stop, counts = settings.absolute_stop, ("matrices", "held_out_matrices")
    columns = ["matrices: preconditioner", "set-up ms", *_table.with_milliseconds(settings.tolerances)]
    columns += [] if stop is None else [f"absolute {stop:.0e}"]
    weights = sum(p.numel() for p in model.parameters())
    numbers = {
        "problem": {
            **{"description": settings.describe(), "n": A.shape[0], "nnz": A.nnz},
            **{name: getattr(settings, name) for name in counts},
        },
        "network": {"class": type(model).__name__, "weights": weights, **model.settings()},
        "loss_is": LOSSES[settings.loss],
        "evaluation": everything,
        "skipped": candidates(model, A.shape[0])[1],
    }
    texts = {"evaluation.csv": as_csv(everything)}
    return Outcome(numbers, columns, lines, sentence_of(everything, settings), {}, texts)


def total_seconds(everything: list[Row], rtol: Any) -> dict[tuple[int, str], float]:
    """Set-up and solve to `rtol`, by n and preconditioner, of those with which all systems converged."""
    return {
        (row["n"], row["preconditioner"]): row["seconds"]
        + (0.0 if math.isnan(row["setup_seconds"]) else row["setup_seconds"])
        for row in everything
        if row["rtol"] == rtol and row["converged"] == row["systems"]
    }


def sentence_of(everything: list[Row], settings: Any) -> str:
    rtol = _table.middle(settings.tolerances)
    at = [row for row in everything if row["rtol"] == rtol]
    mean = {row["preconditioner"]: row for row in at if row["n"] == at[0]["n"]}
    learned, other = mean[LEARNED], mean["IC(0)"]
    if learned["converged"] < learned["systems"]:
        return f"Of {learned['systems']} held-out matrices {learned['converged']} reached {rtol:.0e}."
    totals = total_seconds(everything, rtol)
    mine = {n: seconds for (n, name), seconds in totals.items() if name == LEARNED}
    faster = [str(n) for n, seconds in mine.items() if seconds < totals.get((n, "IC(0)"), math.inf)]
    return (
        f"On {learned['systems']} held-out matrices it takes {learned['iterations']:.1f} iterations to "
        f"{rtol:.0e}, IC(0) {other['iterations']:.1f}; with its set-up it is faster than IC(0) for "
        + (f"n = {', '.join(faster)}." if faster else "none of the sizes.")
    )


def figures_of(recipe: FactorRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    settings, where = recipe.settings, recipe.settings.describe()
    title, rtol = f"Loss ({settings.loss}), {where}", _table.middle(settings.tolerances)
    yield "loss.png", figures.loss_figure(title, "loss", history, held_out="held-out matrices", log=True)
    steps, counts = figures.known(history, "iterations")
    if steps:
        title = f"Iterations to {rtol:.0e} on held-out matrices, {where}"
        figure, axes = figures.new_figure(title, "optimizer step", "mean iterations")
        axes.plot(steps, counts, color=figures.BLUE, linewidth=2)
        yield "iterations.png", figure
    if settings.scales:
        yield "sizes.png", sizes_figure(outcome.numbers["evaluation"], rtol, where)


def sizes_figure(everything: list[Row], rtol: float, where: str) -> Any:
    ylabel = f"mean iterations to {rtol:.0e}"
    figure, axes = figures.new_figure(f"Trained on {where}", "rows of the matrix", ylabel)
    rows = [row for row in everything if row["rtol"] == rtol and row["converged"] == row["systems"]]
    for name, look in comparison.LOOKS.items():
        if mine := [row for row in rows if row["preconditioner"] == name]:
            points = [row["n"] for row in mine], [row["iterations"] for row in mine]
            axes.loglog(*points, label=name, marker=MARKERS.get(name), **look)
    figures.finish(axes, loc="upper left", bbox_to_anchor=(1, 1))  # lines are everywhere
    return figure
