"""A nonlinear graph network for one matrix that has no ILU(0): GNP, in flexible GMRES.

The matrix is a recirculating wind on 16 x 16 points with a reaction that makes the diagonal zero. Two
networks are trained: one whose layers multiply with A and with its transpose, and one with A alone, as
published. --matrix FILE takes a Matrix Market file instead.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import BLACK, BLUE, GRAY, ORANGE, PURPLE, Experiment, new_figure, table, trained

import learnsolve as ls
from learnsolve.recipes.gnp import GnpRecipe, GnpSettings, inner_gmres

# arXiv 2406.00809's repository, std1_Jac3 (n = 21,982): residual after 100 iterations of FGMRES(10).
PUBLISHED = {
    "none": 0.59,
    "Jacobi": 0.66,
    "ILU": "fails",
    "AMG": 1.6e-2,
    "inner GMRES": 0.31,
    "learned": 6.6e-8,
}
OPTIONS = ["--repeats", 1, "--evaluated", 3]


def main() -> None:
    experiment = Experiment(__file__, __doc__, ("--matrix", {"help": "a Matrix Market file"}))
    where = experiment.args.matrix
    options = [*OPTIONS, *(["--problem.name", "matrix_market", "--problem.path", where] if where else [])]
    if experiment.quick:
        options += ["--steps", 30, "--width", 8, "--layers", 3, "--problem.shape", "[6,6]"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _, report, _ = trained("gnp", folder / "both", *options)
        less = [] if experiment.quick else ["--steps", 600]
        _, alone, _ = trained("gnp", folder / "alone", *options, "--transpose", "false", *less)
        networks = {
            "A and its transpose": ls.preconditioners.load(folder / "both" / "model.safetensors"),
            "A alone": ls.preconditioners.load(folder / "alone" / "model.safetensors"),
        }
        experiment.keep(folder / "both" / "evaluation.csv", "evaluation.csv")
    settings = GnpSettings(evaluated=3, held_out=1)
    if experiment.quick:
        settings.problem.shape = [6, 6]
    if where:
        settings.problem.name, settings.problem.path = "matrix_market", where
    recipe = GnpRecipe(settings)
    curves = histories(recipe.A, recipe.test_sides()[:, 0], networks)
    rows = [
        {"M": name, "after 100": curve[-1], **{f"{t:.0e}": reached(curve, t) for t in (1e-3, 1e-6, 1e-9)}}
        for name, curve in curves.items()
    ]
    print(table(rows))
    experiment.figure("convergence.png", figure(curves, report["problem"]["description"]))
    experiment.csv("residuals.csv", rows)
    experiment.json(
        "summary.json",
        published=PUBLISHED,
        problem=report["problem"],
        training={key: report[key] for key in ("steps", "seconds", "network", "held_out_loss")},
        training_of_a_alone={key: alone[key] for key in ("steps", "seconds", "held_out_loss")},
        evaluation=report["evaluation"],
        evaluation_of_a_alone=[row for row in alone["evaluation"] if row["preconditioner"] == "learned"],
    )


def histories(A, b, networks) -> dict[str, list[float]]:
    """Relative residuals of FGMRES(10) on one right-hand side, and of LSQR, which works with A^T A."""
    others = {"none": None, "inner GMRES": inner_gmres(A, 10)}
    found = {}
    for name, M in {**networks, **others}.items():
        solution = ls.solvers.fgmres(A, b, M=M, restart=10, rtol=1e-9, maxiter=100)
        found[name] = (solution.residual_norms / b.norm()).tolist()
    solution = ls.solvers.lsqr(A, b, atol=1e-9, btol=1e-9, maxiter=100)
    found["LSQR"] = (solution.residual_norms / b.norm()).tolist()
    return found


def reached(curve: list[float], rtol: float) -> str:
    at = next((k for k, r in enumerate(curve) if r <= rtol), None)
    return "" if at is None else str(at)


def figure(curves: dict[str, list[float]], where: str):
    result, axes = new_figure(f"FGMRES(10), {where}", "iteration", r"$\|b - A x_k\| / \|b\|$")
    looks = {"A and its transpose": (BLUE, "-"), "A alone": (ORANGE, "-"), "none": (BLACK, "--")}
    looks["LSQR"] = (PURPLE, ":")
    for name, curve in curves.items():
        color, line = looks.get(name, (GRAY, "-."))
        label = f"GNP, {name}" if name.startswith("A ") else name
        axes.semilogy(curve, color=color, linestyle=line, label=label, linewidth=1.8)
    axes.legend(frameon=False)
    return result


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore", ls.solvers.ConvergenceWarning)
    main()
