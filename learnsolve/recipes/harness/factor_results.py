"""A trained network compared with classical preconditioners, on matrices that it has not seen.

Pictures: the loss, iterations during the training, iterations on larger matrices.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from learnsolve import preconditioners, solvers
from learnsolve.csr import CSR
from learnsolve.evaluation import Evaluation, evaluate
from learnsolve.preconditioners.learned._factor_network import MatrixNetwork
from learnsolve.problems.datasets import ProblemDataset
from learnsolve.recipes.harness import plots
from learnsolve.recipes.harness.base import History, Outcome
from learnsolve.recipes.harness.plots import BLACK, BLUE, GREY, ORANGE, PURPLE
from learnsolve.recipes.harness.tables import as_csv, flat

if TYPE_CHECKING:
    from learnsolve.recipes.harness.factor_recipe import FactorRecipe

LEARNED = "learned"
AMG_COARSE = 100  # rows that AMG solves directly, at most
# What the network is compared with: functions A -> M.
BASELINES: dict[str, Callable[[CSR], Any] | None] = {
    "none": None,
    "Jacobi": preconditioners.Jacobi,
    "SSOR": preconditioners.SSOR,
    "IC(0)": partial(preconditioners.IC0, on_breakdown="shift"),
    "MIC(0)": partial(preconditioners.MIC0, on_breakdown="shift"),
    "ICT": partial(preconditioners.ICT, on_breakdown="shift"),
}
STYLES = {
    LEARNED: {"color": BLUE, "linewidth": 2.2, "marker": "o"},
    "none": {"color": BLACK, "linestyle": "--"},
    "Jacobi": {"color": GREY, "linestyle": ":", "linewidth": 2.0},
    "SSOR": {"color": GREY, "linestyle": "-."},
    "IC(0)": {"color": ORANGE, "marker": "s"},
    "MIC(0)": {"color": ORANGE, "linestyle": "--"},
    "ICT": {"color": ORANGE, "linestyle": ":"},
    "AMG": {"color": PURPLE},
    "RS-AMG": {"color": PURPLE, "linestyle": "--"},
}


def candidates(network: MatrixNetwork, n: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Preconditioners by name, and the reasons why others are left out."""
    found: dict[str, Any] = {LEARNED: network, **BASELINES}
    if isinstance(network, preconditioners.NeuralAMG):
        found["RS-AMG"] = network.classical
    if importlib.util.find_spec("pyamg") is None:
        return found, {"AMG": "pyamg is not installed: pip install 'learnsolve[problems]'"}
    # Several levels also where the matrix is small: on one, AMG is a direct solve.
    coarse = max(1, min(AMG_COARSE, n // 8))
    return found | {"AMG": partial(preconditioners.AMG, max_coarse=coarse)}, {}


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
    samples = list(data)
    given, _ = candidates(recipe.model, samples[0].A.shape[0])
    device = recipe.settings.device
    A, b = [s.A.to(device) for s in samples], [s.b.to(device) for s in samples]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of shifts that were searched
        return evaluate(A, b, given, rtol=tolerances, repeats=repeats, on_error="row", **options)


def outcome_of(recipe: FactorRecipe) -> Outcome:
    settings = recipe.settings
    tolerances = sorted(settings.tolerances, reverse=True)
    everything: list[dict[str, Any]] = []
    table: list[list[Any]] = []
    for scale in (1, *sorted(settings.scales)):
        count = settings.evaluated if scale == 1 else settings.evaluated_larger
        data, where = settings.data("test", count, scale), settings.describe(scale)
        evaluation = compare(recipe, data, tolerances, settings.repeats)
        which = {"matrices": where, "n": data[0].A.shape[0]}
        rows = [which | row for row in flat(evaluation)]
        if settings.absolute_stop is not None:
            stop = compare(recipe, data, [settings.absolute_stop], 1, solver=absolute)
            rows += [
                which
                | row
                | {
                    "rtol": f"absolute {settings.absolute_stop:g}",
                    "seconds": math.nan,
                    "seconds_std": math.nan,
                }
                for row in flat(stop)
            ]
        everything += rows
        for name in evaluation.histories:
            mine = [row for row in rows if row["preconditioner"] == name]
            cells = [cell for row in mine for cell in _cells(row)]
            table.append([f"{where}: {name}", _milliseconds(mine[0]["setup_seconds"]), *cells])
    columns = ["matrices: preconditioner", "set-up ms"]
    columns += [name for rtol in tolerances for name in (f"iterations {rtol:.0e}", "ms")]
    if settings.absolute_stop is not None:
        columns.append(f"absolute {settings.absolute_stop:.0e}")
    _, skipped = candidates(recipe.model, recipe.A.shape[0])
    numbers = {
        "problem": {
            "description": settings.describe(),
            "n": recipe.A.shape[0],
            "nnz": recipe.A.nnz,
            "matrices": settings.matrices,
            "held_out_matrices": settings.held_out_matrices,
        },
        "network": {
            "class": type(recipe.model).__name__,
            "weights": sum(p.numel() for p in recipe.model.parameters()),
            **recipe.model.settings(),
        },
        "loss_is": LOSSES[settings.loss],
        "evaluation": everything,
        "skipped": skipped,
    }
    sentence = sentence_of(everything, settings)
    return Outcome(numbers, columns, table, sentence, {}, {"evaluation.csv": as_csv(everything)})


LOSSES = {
    "cycles": "factor by which a two-grid cycle reduces random errors, over several, mean over matrices",
    "product": "||L L^T x - b||^2 / ||b||^2, b random, A x = b, mean over matrices",
    "frobenius": "||L L^T x - b||^2 / ||b||^2, x random, b = A x, mean over matrices",
    "iterations": "weighted relative residuals of the first iterations, mean over matrices and vectors",
}


def _cells(row: dict[str, Any]) -> list[str]:
    if row["converged"] < row["systems"]:
        found = [f"{row['converged']}/{row['systems']} reached"]
    else:
        found = [f"{row['iterations']:.1f} ± {row['iterations_std']:.1f}"]
    if isinstance(row["rtol"], str):
        return found
    return [*found, _milliseconds(row["seconds"])]


def _milliseconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{1e3 * seconds:.2f}"


def total_seconds(everything: list[dict[str, Any]], rtol: Any) -> dict[tuple[int, str], float]:
    """Set-up and solve to `rtol`, by n and preconditioner, of those with which all systems converged."""
    return {
        (row["n"], row["preconditioner"]): row["seconds"]
        + (0.0 if math.isnan(row["setup_seconds"]) else row["setup_seconds"])
        for row in everything
        if row["rtol"] == rtol and row["converged"] == row["systems"]
    }


def sentence_of(everything: list[dict[str, Any]], settings: Any) -> str:
    rtol = sorted(settings.tolerances)[len(settings.tolerances) // 2]
    at = [row for row in everything if row["rtol"] == rtol]
    size = at[0]["n"]
    mean = {row["preconditioner"]: row for row in at if row["n"] == size}
    learned, other = mean[LEARNED], mean["IC(0)"]
    if learned["converged"] < learned["systems"]:
        return f"Of {learned['systems']} held-out matrices {learned['converged']} reached {rtol:.0e}."
    words = (
        f"On {learned['systems']} held-out matrices it takes {learned['iterations']:.1f} iterations to "
        f"{rtol:.0e}, IC(0) {other['iterations']:.1f}"
    )
    totals = total_seconds(everything, rtol)
    faster = [
        str(n)
        for n, name in totals
        if name == LEARNED and totals[n, name] < totals.get((n, "IC(0)"), math.inf)
    ]
    seconds = "with its set-up it is faster than IC(0) "
    seconds += f"for n = {', '.join(faster)}" if faster else "for none of the sizes"
    return f"{words}; {seconds}."


def figures_of(recipe: FactorRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    settings = recipe.settings
    where = settings.describe()
    title = f"Loss ({settings.loss}), {where}"
    yield "loss.png", plots.loss_figure(title, "loss", history, held_out="held-out matrices", log=True)
    rtol = sorted(settings.tolerances)[len(settings.tolerances) // 2]
    steps, counts = plots.known(history, "iterations")
    if steps:
        figure, axes = plots.new_figure(
            f"Iterations to {rtol:.0e} on held-out matrices, {where}", "optimiser step", "mean iterations"
        )
        axes.plot(steps, counts, color=BLUE, linewidth=2)
        yield "iterations.png", figure
    if settings.scales:
        yield "sizes.png", sizes_figure(outcome.numbers["evaluation"], rtol, where)


def sizes_figure(everything: list[dict[str, Any]], rtol: float, where: str) -> Any:
    figure, axes = plots.new_figure(
        f"Trained on {where}", "rows of the matrix", f"mean iterations to {rtol:.0e}"
    )
    for name, look in STYLES.items():
        rows = [
            row
            for row in everything
            if row["preconditioner"] == name and row["rtol"] == rtol and row["converged"] == row["systems"]
        ]
        if rows:
            axes.loglog([row["n"] for row in rows], [row["iterations"] for row in rows], label=name, **look)
    plots.finish(axes, loc="upper left", bbox_to_anchor=(1, 1))  # lines are everywhere
    return figure
