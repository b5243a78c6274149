"""Two-grid cycles for Helmholtz's equation: linear interpolation against learned damping and prolongation.

-u'' - k^2 u on n = 127 points of the unit interval, zero at both ends (`problems.helmholtz`; indefinite from
k = pi on), k = 2, 3, ..., 20. A cycle: a sweep of damped Jacobi, the correction from every other point, a
sweep.
For its error propagator E (`analysis.ErrorPropagator`, `spectral_radius`):

    linear, 2/3       linear interpolation, damping 2/3
    linear, best      linear interpolation, the one damping with the least spectral radius
    damping           linear interpolation, a learned damping of every point
    prolongation      learned entries of P (its pattern stays), damping 2/3
    both              both learned

The loss is (||E^K||_F^2 / n)^(1 / 2K), K = 8: the published one, of K cycles on n vectors, with unit vectors.
"""

import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import BLACK, BLUE, GRAY, ORANGE, PURPLE, Experiment, new_figure, table
from torch import Tensor

import learnsolve as ls

K = 8
WEIGHT = 2 / 3
RATE_P, RATE_W = 2e-4, 0.02
LEARN = {
    "damping": ("weights",),
    "prolongation": ("prolongations",),
    "both": ("prolongations", "weights"),
}
STYLES = {
    "linear, 2/3": {"color": GRAY, "linestyle": "--", "label": "linear interpolation, damping 2/3"},
    "linear, best": {"color": ORANGE, "linestyle": "-.", "label": "linear interpolation, best damping"},
    "damping": {"color": PURPLE, "label": "learned damping"},
    "prolongation": {"color": BLACK, "linestyle": ":", "linewidth": 2, "label": "learned prolongation"},
    "both": {"color": BLUE, "linewidth": 2, "label": "both learned"},
}


def operator(n: int, k: float) -> ls.CSR:
    return ls.problems.helmholtz(torch.full((n,), k / (n + 1), dtype=torch.float64))


def linear(n: int) -> ls.CSR:
    coarse = torch.arange((n - 1) // 2)
    rows = torch.cat([2 * coarse, 2 * coarse + 1, 2 * coarse + 2])
    half, one = torch.full((len(coarse),), 0.5, dtype=torch.float64), torch.ones(len(coarse)).double()
    return ls.CSR.from_coo(rows, coarse.repeat(3), torch.cat([half, one, half]), (n, len(coarse)))


def two_grid(A: ls.CSR, P: ls.CSR, weight: float | Tensor) -> ls.preconditioners.AMG:
    return ls.preconditioners.AMG(
        A, hierarchy=ls.preconditioners.Hierarchy([P]), smoother="jacobi", weight=weight, symmetric=True
    )


def radius(A: ls.CSR, M) -> float:
    return float(ls.analysis.spectral_radius(ls.analysis.ErrorPropagator(A, M)).value.detach())


def loss(A: ls.CSR, M) -> Tensor:
    E, e = ls.analysis.ErrorPropagator(A, M), torch.eye(A.shape[0], dtype=A.dtype)
    for _ in range(K):
        e = E(e)
    return e.square().mean(0).sum() ** (0.5 / K)


def best_damping(A: ls.CSR, P: ls.CSR) -> float:
    weights = [WEIGHT, *torch.linspace(0.3, 1.0, 36).tolist()]
    return min(weights, key=lambda w: radius(A, two_grid(A, P, w)))


def learned(A: ls.CSR, P: ls.CSR, learn: tuple[str, ...], steps: int) -> ls.preconditioners.Trainable:
    """By Adam, from linear interpolation and 2/3; what had the least loss."""
    M = ls.preconditioners.Trainable(two_grid(A, P, WEIGHT), learn=learn)
    # Entries of P far from those of interpolation lose the smooth modes, whose eigenvalues are of order h^2.
    rates = {"prolongations": RATE_P, "weights": RATE_W}
    optimizer = torch.optim.Adam(
        [{"params": M.get_submodule(part).parameters(), "lr": rates[part]} for part in learn]
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.02 ** (1 / steps))
    smallest, best = float("inf"), M.state_dict()
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(A, M.build())
        value.backward()
        if float(value.detach()) < smallest:
            smallest, best = float(value.detach()), {k: v.clone() for k, v in M.state_dict().items()}
        optimizer.step()
        schedule.step()
    M.load_state_dict(best)
    return M


def factors(n: int, k: float, steps: int) -> tuple[dict, ls.preconditioners.Trainable]:
    A, P = operator(n, k), linear(n)
    weight = best_damping(A, P)
    row = {
        "k": k,
        "negative eigenvalues": int((torch.linalg.eigvalsh(A.to_dense()) < 0).sum()),
        "linear, 2/3": radius(A, two_grid(A, P, WEIGHT)),
        "linear, best": radius(A, two_grid(A, P, weight)),
        "best damping": weight,
    }
    for name, learn in LEARN.items():
        M = learned(A, P, learn, steps)
        with torch.no_grad():
            row[name] = radius(A, M.build())
    return row, M


def factor_figure(rows: list[dict], n: int):
    figure, axes = new_figure(
        f"Two-grid cycle for Helmholtz's equation, n = {n}", "wavenumber k", "spectral radius"
    )
    for name, style in STYLES.items():
        axes.semilogy([r["k"] for r in rows], [r[name] for r in rows], marker=".", **style)
    axes.axhline(1, color=GRAY, linewidth=0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside lower center", frameon=False, ncols=2)
    return figure


def damping_figure(M: ls.preconditioners.Trainable, k: float):
    """What is learned: a damping of every point, of two kinds."""
    figure, axes = new_figure(f"Learned damping, with learned prolongation, k = {k:g}", "point", "damping")
    weights = M.weights[0].values.detach()
    for first, name, color in ((0, "fine points", BLUE), (1, "coarse points", ORANGE)):
        points = range(first, len(weights), 2)
        axes.plot(points, weights[first::2], ".-", color=color, label=name)
    axes.axhline(WEIGHT, color=GRAY, linestyle="--", label="2/3")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, loc="center")
    return figure


def main() -> None:
    draw = ("--draw", {"action": "store_true", "help": "factors.png of results/factors.csv, no training"})
    experiment = Experiment(__file__, __doc__, draw)
    n, steps = (31, 15) if experiment.quick else (127, 150)
    if experiment.args.draw:
        with (Path(__file__).parent / "results" / "factors.csv").open() as file:
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
        return experiment.figure("factors.png", factor_figure(rows, n))
    ks = [2.0, 10.0] if experiment.quick else [float(k) for k in range(2, 21)]
    rows, last = [], None
    for k in ks:
        row, last = factors(n, k, steps)
        rows.append(row)
    print(table(rows))
    assert last is not None
    experiment.csv("factors.csv", rows)
    experiment.figure("factors.png", factor_figure(rows, n))
    experiment.figure("damping.png", damping_figure(last, ks[-1]))
    experiment.json("summary.json", points=n, cycles=K, steps=steps, factors=rows)


if __name__ == "__main__":
    main()
