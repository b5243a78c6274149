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

from learnsolve import preconditioners as P
from learnsolve import solvers
from learnsolve.evaluation import _table, evaluate
from learnsolve.evaluation._table import Row, milliseconds
from learnsolve.matrix.csr import CSR
from learnsolve.preconditioners.learned.factor_network import MatrixNetwork
from learnsolve.recipes.harness import figures
from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.recipe import Outcome
from learnsolve.recipes.harness.tables import LEARNED, with_amg

if TYPE_CHECKING:
    from learnsolve.recipes.family import FactorRecipe

# What the network is compared with: functions A -> M.
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
    return with_amg({LEARNED: network, **BASELINES, **classical}, n)


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
    settings = recipe.settings
    data = settings.data("test", settings.evaluated if scale == 1 else settings.evaluated_larger, scale)
    systems = [(sample.A.to(settings.device), sample.b.to(settings.device)) for sample in data]
    A, b = map(list, zip(*systems, strict=True))
    M = candidates(recipe.model, n := A[0].shape[0])

    def rows(tolerances: list[float], repeats: int, **options: Any) -> list[Row]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of shifts that were searched
            result = evaluate(A, b, M, rtol=tolerances, repeats=repeats, on_error="row", **options)
        return _table.flat(result, matrices=settings.describe(scale), n=n)

    relative = rows(settings.tolerances, settings.repeats)
    if (stop := settings.absolute_stop) is None:
        return relative
    untimed = {"rtol": f"absolute {stop:g}", "seconds": math.nan, "seconds_std": math.nan}
    return relative + [row | untimed for row in rows([stop], 1, solver=absolute)]


def outcome_of(recipe: FactorRecipe) -> Outcome:
    settings, model, A = recipe.settings, recipe.model, recipe.A
    everything: list[Row] = []
    lines: list[list[Any]] = []
    for scale in (1, *sorted(settings.scales)):
        rows = evaluation_rows(recipe, scale)
        setup = {row["preconditioner"]: milliseconds(row["setup_seconds"]) for row in reversed(rows)}
        cells = _table.by_preconditioner(
            rows,
            partial(_table.iterations, deviation=True),
            lambda row: None if isinstance(row["rtol"], str) else milliseconds(row["seconds"]),
        )
        lines += [[f"{settings.describe(scale)}: {k}", setup[k], *line] for k, line in cells.items()]
        everything += rows
    columns = ["matrices: preconditioner", "set-up ms", *_table.with_milliseconds(settings.tolerances)]
    columns += [] if settings.absolute_stop is None else [f"absolute {settings.absolute_stop:.0e}"]
    weights = sum(p.numel() for p in model.parameters())
    numbers = {
        "problem": {
            **{"description": settings.describe(), "n": A.shape[0], "nnz": A.nnz},
            **{"matrices": settings.matrices, "held_out_matrices": settings.held_out_matrices},
        },
        "network": {"class": type(model).__name__, "weights": weights, **model.settings()},
        "loss_is": LOSSES[settings.loss],
        "evaluation": everything,
    }
    texts = {"evaluation.csv": _table.as_csv(everything)}
    return Outcome(numbers, columns, lines, sentence_of(everything, settings.tolerances), {}, texts)


def sentence_of(everything: list[Row], tolerances: list[float]) -> str:
    rtol = _table.middle(tolerances)
    at = {(row["n"], row["preconditioner"]): row for row in everything if row["rtol"] == rtol}
    n = everything[0]["n"]
    learned, other = at[n, LEARNED], at[n, "IC(0)"]
    if learned["converged"] < learned["systems"]:
        return f"Of {learned['systems']} held-out matrices {learned['converged']} reached {rtol:.0e}."

    def total(key: tuple[int, str]) -> float:
        """Set-up and solve; infinite where not all systems converged."""
        if key not in at or at[key]["converged"] < at[key]["systems"]:
            return math.inf
        setup = at[key]["setup_seconds"]
        return at[key]["seconds"] + (0.0 if math.isnan(setup) else setup)

    sizes = dict.fromkeys(n for n, _ in at)
    faster = [str(n) for n in sizes if total((n, LEARNED)) < total((n, "IC(0)"))]
    return (
        f"On {learned['systems']} held-out matrices it takes {learned['iterations']:.1f} iterations to "
        f"{rtol:.0e}, IC(0) {other['iterations']:.1f}; with its set-up it is faster than IC(0) for "
        + (f"n = {', '.join(faster)}." if faster else "none of the sizes.")
    )


def figures_of(recipe: FactorRecipe, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
    settings, where = recipe.settings, recipe.settings.describe()
    title, rtol = f"Loss ({settings.loss}), {where}", _table.middle(settings.tolerances)
    yield "loss.png", figures.loss_figure(title, "loss", history, held_out="held-out matrices", log=True)
    counts = figures.column(history, "iterations", "", color=figures.BLUE, linewidth=2)
    if counts.x:
        title = f"Iterations to {rtol:.0e} on held-out matrices, {where}"
        yield "iterations.png", figures.picture(title, "optimizer step", "mean iterations", [counts])
    if settings.scales:
        yield "sizes.png", sizes_figure(outcome.numbers["evaluation"], rtol, where)


def sizes_figure(everything: list[Row], rtol: float, where: str) -> Any:
    points: dict[str, list[Row]] = {}
    for row in everything:
        if row["rtol"] == rtol and row["converged"] == row["systems"]:
            points.setdefault(row["preconditioner"], []).append(row)
    lines = [
        figures.Line(
            name,
            [row["iterations"] for row in rows],
            [row["n"] for row in rows],
            style={**figures.look(name), "marker": MARKERS.get(name)},
        )
        for name, rows in points.items()
    ]
    title, ylabel = f"Trained on {where}", f"mean iterations to {rtol:.0e}"
    return figures.picture(title, "rows of the matrix", ylabel, lines, log="xy")
