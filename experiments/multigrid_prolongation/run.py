"""The entries of a prolongation, learned on a 1D problem through the Galerkin product P^T A P.

A two-grid cycle (a sweep of Jacobi's method, the correction from every other point, a sweep) for
-(k u')' = f with 31 points; P has three entries per column and starts as linear interpolation. Losses, for
the error propagator E of a cycle:

    radius         its spectral radius
    squares        the sum of the squares of its eigenvalues: all modes have equal energy
    random errors  the mean energy after a cycle of errors from N(0, I)

For comparison: linear interpolation, the ideal one, and a lower bound of the radius for any P of this size.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import BLACK, BLUE, GRAY, ORANGE, PURPLE, Experiment, new_figure, table
from torch import Tensor

import learnsolve as ls

GREEN = "#009E73"  # of the same palette
N = 31
WEIGHT = 2 / 3
CYCLES = 20
STYLES = {
    "linear": {"color": GRAY, "linestyle": "--"},
    "ideal": {"color": ORANGE, "linestyle": "-."},
    "learned, radius": {"color": BLUE, "linewidth": 2},
    "learned, squares": {"color": PURPLE, "linewidth": 2},
    "learned, random errors": {"color": GREEN, "linewidth": 2},
    "bound": {"color": BLACK, "linestyle": ":", "linewidth": 2},
}


def diffusion(k: Tensor) -> ls.CSR:
    """Unknowns between the faces, on which k is given; u = 0 at both ends."""
    inner = -k[1:-1]
    return ls.ops.diag(k[:-1] + k[1:]) + ls.ops.diag(inner, 1) + ls.ops.diag(inner, -1)


def problems() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    exponents = 2 * torch.rand(N + 1, dtype=torch.float64, generator=generator)
    return {"constant": torch.ones(N + 1, dtype=torch.float64), "rough": 10**exponents}


def prolongation(weights: Tensor) -> ls.CSR:
    """P from the weights of the coarse points before and after each fine point: shape (2, (N + 1) / 2)."""
    coarse = torch.arange((N - 1) // 2)
    rows = torch.cat([2 * coarse, 2 * coarse + 1, 2 * coarse + 2])
    # Fine point number i (row 2 i) lies before coarse point i and after coarse point i - 1.
    values = torch.cat([weights[1, :-1], torch.ones(len(coarse), dtype=weights.dtype), weights[0, 1:]])
    return ls.CSR.from_coo(rows, coarse.repeat(3), values, (N, len(coarse)))


def linear() -> ls.CSR:
    return prolongation(torch.full((2, (N + 1) // 2), 0.5, dtype=torch.float64))


def ideal(k: Tensor) -> ls.CSR:
    """-A_ff^-1 A_fc, sparse here because fine points are coupled to coarse ones only."""
    before, after = k[0::2], k[1::2]
    return prolongation(torch.stack([before, after]) / (before + after))


def two_grid(A: ls.CSR, P: ls.CSR) -> ls.preconditioners.AMG:
    hierarchy = ls.preconditioners.Hierarchy([P])
    return ls.preconditioners.AMG(A, hierarchy=hierarchy, weight=WEIGHT, symmetric=True)


def radius(A: ls.CSR, M) -> Tensor:
    return ls.analysis.spectral_radius(ls.analysis.ErrorPropagator(A, M)).value


def squares(A: ls.CSR, M) -> Tensor:
    E = ls.analysis.ErrorPropagator(A, M)(torch.eye(N, dtype=A.dtype))
    return (E * E.T).sum()


def random_errors(A: ls.CSR, M) -> Tensor:
    """The mean of (E e)^T A (E e) over e, relative to that of e^T A e."""
    E = ls.analysis.ErrorPropagator(A, M)(torch.eye(N, dtype=A.dtype))
    return ls.ops.quadratic_form(A, E).sum() / A.trace()


LOSSES = {"radius": radius, "squares": squares, "random errors": random_errors}


def bound(A: ls.CSR, columns: int) -> float:
    """A cycle is S (I - pi) S with pi a projection of rank `columns`, orthogonal in the energy: at least the
    square of the next singular value of S."""
    scale = A.diagonal().rsqrt()
    scaled = A.scale_rows(scale).scale_columns(scale)
    smoothing = (1 - WEIGHT * torch.linalg.eigvalsh(scaled.to_dense())).abs().sort(descending=True).values
    return float(smoothing[columns] ** 2)


def learned(A: ls.CSR, loss: str, steps: int) -> tuple[ls.CSR, list[float]]:
    """The best P, and the radius of each step."""
    M = ls.preconditioners.Trainable(two_grid(A, linear()), learn=("prolongations",))
    optimizer = torch.optim.Adam(M.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.02 ** (1 / steps))
    (entries,) = M.parameters()
    smallest, best, history = float("inf"), entries.detach(), []
    for _ in range(steps):
        optimizer.zero_grad()
        current = M.build()  # the Galerkin product of these entries, with its graph
        value = LOSSES[loss](A, current)
        value.backward()
        with torch.no_grad():
            history.append(float(radius(A, current)))
            if float(value) < smallest:
                smallest, best = float(value), entries.clone()
        optimizer.step()
        schedule.step()
    return M.M.hierarchy.prolongations[0].with_values(best), history


def energies(A: ls.CSR, M) -> list[float]:
    """sqrt(e^T A e) after 0, 1, ... cycles, relative to the first."""
    E = ls.analysis.ErrorPropagator(A, M)
    e = torch.randn(N, 1, dtype=A.dtype, generator=torch.Generator().manual_seed(1))
    found = []
    for _ in range(CYCLES + 1):
        found.append(float(ls.ops.quadratic_form(A, e).sum()) ** 0.5)
        e = E(e)
    return [value / found[0] for value in found]


def history_figure(histories: dict[str, list[float]], rows: list[dict]):
    figure, axes = new_figure(
        "Learning a prolongation, rough coefficient", "step of Adam", "spectral radius of the cycle"
    )
    for row in rows:
        if row["P"] in ("linear", "ideal", "bound"):
            axes.axhline(row["radius"], label=row["P"], **STYLES[row["P"]])
    for loss, history in histories.items():
        axes.plot(history, label=f"loss: {loss}", **STYLES[f"learned, {loss}"])
    axes.set_ylim(0, 1)
    axes.margins(x=0.01)
    axes.legend(frameon=False, loc="center right")
    return figure


def convergence_figure(curves: dict[str, list[float]]):
    figure, axes = new_figure("Two-grid cycles, rough coefficient", "cycle", r"$\|e_k\|_A / \|e_0\|_A$")
    for name, curve in curves.items():
        axes.semilogy(curve, label=name, **STYLES[name])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(x=0.01)
    axes.legend(frameon=False)
    return figure


def entries_figure(found: dict[str, ls.CSR]):
    """Entries of P in the rows of the fine points, scaled to ones in those of the coarse points."""
    figure, axes = new_figure(
        "What a fine point takes of the coarse point before it, rough coefficient", "fine point", "entry of P"
    )
    points = range(3, N, 2)
    for (name, P), marker in zip(found.items(), ("_", "s", "o", "D"), strict=False):
        D = P.to_dense()
        D = D / D[1::2].diagonal()
        shown = [float(D[2 * i, i - 1]) for i in range(1, (N - 1) // 2)]
        size = 10 if marker in "_s" else 5
        axes.plot(points, shown, marker, label=name, markersize=size, color=STYLES[name]["color"])
    axes.set_ylim(0, 1.3)
    axes.legend(frameon=False, loc="upper center", ncols=4, columnspacing=1)
    return figure


def main() -> None:
    experiment = Experiment(__file__, __doc__)
    steps = 60 if experiment.quick else 600
    rows: list[dict] = []
    for name, k in problems().items():
        A = diffusion(k)
        found, histories = {"linear": linear(), "ideal": ideal(k)}, {}
        for loss in LOSSES:
            found[f"learned, {loss}"], histories[loss] = learned(A, loss, steps)
        cycles = {what: two_grid(A, P) for what, P in found.items()}
        rows += [
            {"k": name, "P": what} | {loss: float(f(A, M)) for loss, f in LOSSES.items()}
            for what, M in cycles.items()
        ]
        rows.append({"k": name, "P": "bound", "radius": bound(A, (N - 1) // 2)})
        if name == "rough":
            of_it = [row for row in rows if row["k"] == name]
            experiment.figure("history.png", history_figure(histories, of_it))
            curves = {what: energies(A, M) for what, M in cycles.items()}
            experiment.figure("convergence.png", convergence_figure(curves))
            experiment.figure("entries.png", entries_figure(found))
            steps_of = [{"step": i} | {loss: h[i] for loss, h in histories.items()} for i in range(steps)]
            experiment.csv("history.csv", steps_of[:: max(1, steps // 60)])
    print(table(rows))
    experiment.csv("prolongations.csv", rows)
    experiment.json("summary.json", points=N, weight=WEIGHT, steps=steps, prolongations=rows)


if __name__ == "__main__":
    main()
