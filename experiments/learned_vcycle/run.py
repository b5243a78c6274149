"""V-cycles of 2D Poisson with learned prolongation, restriction and damping ("Deep multigrid").

On n x n points, n = 7, 15, 31, 63, with all grids down to 3 x 3. Each level has a 3 x 3 stencil for P, one
for R and a weight for damped Jacobi, two sweeps before and two after the correction; coarse operators R A P.
Training starts from bilinear interpolation. Loss:

    log(||E^20 U||_F^2 / m), E the error propagator of a cycle, U random signs in m columns
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import BLUE, GRAY, ORANGE, PURPLE, Experiment, new_figure, table
from torch import Tensor

import learnsolve as ls

SIZES = (7, 15, 31, 63)
# A. Katrutsa, T. Daulbaev, I. Oseledets, arXiv 1711.03825
PUBLISHED = {
    "linear": dict(zip(SIZES, (0.169, 0.190, 0.196, 0.197), strict=True)),
    "learned": dict(zip(SIZES, (0.0656, 0.1125, 0.1304, 0.1267), strict=True)),
}
STEPS = dict(zip(SIZES, (1000, 600, 400, 250), strict=True))
CYCLES, COLUMNS, RATE = 20, 10, 3e-3
BILINEAR = torch.tensor([0.25, 0.5, 0.25, 0.5, 1.0, 0.5, 0.25, 0.5, 0.25], dtype=torch.float64)


def places(P: ls.CSR) -> Tensor:
    """Of each entry of P its place in the 3 x 3 stencil of its column."""
    fine, coarse = (round(size**0.5) for size in P.shape)
    row, column = P.pattern.row_indices.long(), P.pattern.col_indices.long()
    return 3 * (row // fine - 2 * (column // coarse)) + row % fine - 2 * (column % coarse)


class Stencils(torch.nn.Module):
    """P, R and the weight of each level but the coarsest; R has the numbers of its transpose here."""

    def __init__(self, P: Tensor, R: Tensor, log_weights: Tensor):
        super().__init__()
        self.P, self.R, self.log_weights = (torch.nn.Parameter(t.clone()) for t in (P, R, log_weights))

    @classmethod
    def linear(cls, levels: int, weight: float = 2 / 3) -> "Stencils":
        start = BILINEAR.repeat(levels, 1)
        return cls(start, start, torch.full((levels,), weight, dtype=torch.float64).log())

    def cycle(self, A: ls.CSR, H: ls.preconditioners.Hierarchy) -> ls.preconditioners.AMG:
        P, R = [], []
        for Q, p, r in zip(H.prolongations, self.P, self.R, strict=True):
            at, transposed = places(Q), Q.T
            P.append(Q.with_values(p[at]))
            R.append(transposed.with_values(r[at[Q.pattern.transpose_permutation.long()]]))
        return ls.preconditioners.AMG(
            A,
            hierarchy=H.with_prolongations(P, R),
            weight=list(self.log_weights.exp()),
            presweeps=2,
            postsweeps=2,
            symmetric=True,
        )


def problem(n: int) -> tuple[ls.CSR, ls.preconditioners.Hierarchy]:
    return ls.problems.poisson((n, n)), ls.preconditioners.Hierarchy.linear((n, n))


def radius(A: ls.CSR, M) -> float:
    E = ls.analysis.ErrorPropagator(A, M)
    with torch.no_grad():
        return float(ls.analysis.spectral_radius(E, method="arnoldi").value)


def train(stencils: Stencils, n: int, steps: int) -> list[dict]:
    A, H = problem(n)
    optimizer = torch.optim.Adam(stencils.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, RATE / 20)
    generator = torch.Generator().manual_seed(0)
    history = []
    for step in range(steps):
        E = ls.analysis.ErrorPropagator(A, stencils.cycle(A, H), sweeps=CYCLES)
        if n == SIZES[0]:
            U = torch.eye(n * n, dtype=A.dtype)  # as cheap as a few columns
        else:
            U = 2.0 * torch.randint(0, 2, (n * n, COLUMNS), generator=generator).to(A.dtype) - 1
        loss = (E(U).square().sum() / U.shape[1]).log()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            history.append({"n": n, "step": step, "loss": float(loss.detach())})
    return history


def compared(A: ls.CSR, H: ls.preconditioners.Hierarchy, stencils: Stencils) -> dict[str, Stencils]:
    """With linear interpolation: the usual weight, and the one number that is best for all levels."""
    found = {w: Stencils.linear(len(H), w) for w in [2 / 3, *(0.7 + 0.01 * i for i in range(21))]}
    radii = {w: radius(A, used.cycle(A, H)) for w, used in found.items()}
    best = min(radii, key=lambda w: radii[w])
    return {"linear": found[2 / 3], "linear, best weight": found[best], "learned": stencils}


def residuals(A: ls.CSR, M, cycles: int) -> list[float]:
    b = torch.randn(A.shape[0], dtype=A.dtype, generator=torch.Generator().manual_seed(1))
    solution = ls.solvers.richardson(A, b, M=M, iterations=cycles)
    return (solution.residual_norms / b.norm()).tolist()


def factors_figure(rows: list[dict]):
    figure, axes = new_figure("V-cycles, 2D Poisson, n x n points", "n", "spectral radius of a cycle")
    for kind, color in (("linear", GRAY), ("linear, best weight", PURPLE), ("learned", BLUE)):
        mine = [row for row in rows if row["P, R, damping"] == kind]
        n = [row["n"] for row in mine]
        axes.semilogx(n, [row["radius"] for row in mine], "o-", color=color, label=kind)
        if kind in PUBLISHED:
            published = [row["published"] for row in mine]
            axes.semilogx(n, published, "x:", color=ORANGE, markersize=9, label=f"{kind}, published")
    axes.set_xticks(n, [str(v) for v in n])
    axes.minorticks_off()
    axes.set_ylim(0, 0.25)
    axes.legend(frameon=False, loc="lower right")
    return figure


def convergence_figure(curves: dict[str, list[float]], n: int):
    figure, axes = new_figure(f"V-cycles, 2D Poisson, {n} x {n} points", "cycle", "relative residual")
    for (name, curve), color in zip(curves.items(), (GRAY, PURPLE, BLUE), strict=True):
        axes.semilogy(curve, "o-", markersize=3, label=name, color=color)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    return figure


def main() -> None:
    experiment = Experiment(__file__, __doc__)
    sizes = SIZES[:2] if experiment.quick else SIZES
    rows: list[dict] = []
    history: list[dict] = []
    found: list[dict] = []
    curves: dict[str, list[float]] = {}
    for n in sizes:
        A, H = problem(n)
        stencils = Stencils.linear(len(H))
        history += train(stencils, n, STEPS[n] // (20 if experiment.quick else 1))
        for kind, used in compared(A, H, stencils).items():
            M = used.cycle(A, H)
            row = {"n": n, "levels": len(H) + 1, "P, R, damping": kind, "radius": radius(A, M)}
            weights = ", ".join(f"{w:.3g}" for w in used.log_weights.detach().exp().tolist())
            rows.append(row | {"published": PUBLISHED.get(kind, {}).get(n), "weights": weights})
            with torch.no_grad():
                curves[kind] = residuals(A, M, 12)
        found += [
            {"n": n, "level": level, "P": p.tolist(), "R": r.tolist(), "weight": float(w)}
            for level, (p, r, w) in enumerate(
                zip(
                    stencils.P.detach(), stencils.R.detach(), stencils.log_weights.detach().exp(), strict=True
                )
            )
        ]
        print(table(rows[-3:]), flush=True)
    print(table(rows))
    experiment.csv("factors.csv", rows)
    experiment.csv("history.csv", history)
    experiment.figure("factors.png", factors_figure(rows))
    experiment.figure("convergence.png", convergence_figure(curves, sizes[-1]))
    experiment.json("summary.json", cycles=CYCLES, columns=COLUMNS, rate=RATE, factors=rows, stencils=found)


if __name__ == "__main__":
    main()
