"""The entries of an AMG's smoothers, learned by differentiating through its cycles.

First the authors' public demonstration, demos/multigrid.ipynb in nicknytko/numml: the smoother S of a
prolongation P = S T, where T has three aggregates of three points; the loss is the relative residual after
three cycles.

Then the relaxation of a two-grid cycle on 16 x 16 points, x <- x + S r before the coarse correction and
x <- x + S^T r after it, with a diagonal S and with S on A's pattern. The loss is the mean energy left after a
cycle if all modes have equal energy: the sum of the squares of the eigenvalues of its error propagator.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import BLACK, BLUE, GRAY, ORANGE, PURPLE, Experiment, new_figure, new_panels, table
from torch import Tensor

import learnsolve as ls

# Losses in the notebook's output, by step.
PUBLISHED = {
    0: 0.2270,
    10: 0.0501,
    20: 0.0156,
    30: 0.0137,
    40: 0.0115,
    50: 0.0102,
    60: 0.0092,
    70: 0.0085,
    80: 0.0079,
    90: 0.0075,
    102: 0.0070,
}
ENOUGH = 0.007  # the loss at which it stops
CYCLES = 40


def radius(A: ls.CSR, M) -> float:
    return float(ls.analysis.spectral_radius(ls.analysis.ErrorPropagator(A, M)).value)


# --- the demonstration -------------------------------------------------------------------------------------


@dataclass
class Demonstration:
    """A = tridiag(-1, 2, -1) with 9 points, Jacobi with the weight 0.6, three cycles from each guess."""

    A: ls.CSR
    T: ls.CSR
    b: Tensor

    @classmethod
    def make(cls):
        A = ls.problems.poisson(9)
        points = torch.arange(9)
        T = ls.CSR.from_coo(points, points // 3, torch.ones(9, dtype=A.dtype), (9, 3))
        b = torch.zeros(9, 1, dtype=A.dtype)
        b[4] = 1
        return cls(A, T, b)

    def guesses(self, seed: int, twenties: int = 1) -> Tensor:
        """Scaled as in the notebook: each unknown has norm 1 over twenty guesses."""
        generator = torch.Generator().manual_seed(seed)
        X = torch.randn(twenties, 20, 9, dtype=self.A.dtype, generator=generator)
        return (X / X.norm(dim=1, keepdim=True)).reshape(-1, 9).T

    def cycle(self, P: ls.CSR) -> ls.preconditioners.AMG:
        hierarchy = ls.preconditioners.Hierarchy([P])
        return ls.preconditioners.AMG(self.A, hierarchy=hierarchy, weight=0.6, symmetric=True)

    def loss(self, P: ls.CSR, guesses: Tensor) -> Tensor:
        M, x = self.cycle(P), guesses
        for _ in range(3):
            x = x + M(self.b - self.A @ x)
        residuals = [(self.b - self.A @ y).norm(dim=0) for y in (x, guesses)]
        return (residuals[0] / residuals[1]).mean()

    def learned(self, most: int) -> tuple[ls.CSR, list[float]]:
        values = self.A.values.clone().requires_grad_()
        optimizer = torch.optim.Adam([values], lr=0.1)
        guesses, history = self.guesses(0), []
        while True:
            optimizer.zero_grad()
            loss = self.loss(self.A.with_values(values) @ self.T, guesses)
            history.append(float(loss.detach()))
            if history[-1] < ENOUGH or len(history) > most:
                return self.A.with_values(values.detach()), history
            loss.backward()
            optimizer.step()

    def rows(self, S: ls.CSR) -> list[dict]:
        I = ls.ops.eye(9, dtype=self.A.dtype)  # noqa: E741
        found = {"I": I, "I - 0.4 A": I - self.A * 0.4, "A, the start": self.A, "learned": S}
        new = self.guesses(1, 50)
        return [
            {
                "S": name,
                "loss": float(self.loss(matrix @ self.T, self.guesses(0))),
                "new guesses": float(self.loss(matrix @ self.T, new)),
                "radius": radius(self.A, self.cycle(matrix @ self.T)),
            }
            for name, matrix in found.items()
        ]


# --- relaxation --------------------------------------------------------------------------------------------


class Cycle(ls.preconditioners.Preconditioner):
    """One cycle on two grids from zero: S, the coarse correction, S^T."""

    symmetric = True

    def __init__(self, A: ls.CSR, P: ls.CSR, S: ls.CSR):
        self.A, self.P, self.S = A, P, S
        self.coarse = torch.linalg.inv(ls.ops.galerkin(P, A).to_dense())
        self.shape, self.depends_on = A.shape, (S.values,)

    def mv(self, R: Tensor) -> Tensor:
        x = self.S @ R
        r = R - self.A @ x
        x = x + self.P @ (self.coarse @ ls.ops.spmm(self.P, r, transpose=True))
        return x + ls.ops.spmm(self.S, R - self.A @ x, transpose=True)


def jacobi(A: ls.CSR, *weights: float) -> ls.CSR:
    """Sweeps with these weights, one or two, as one S."""
    D = ls.ops.diag(A.diagonal().reciprocal())
    if len(weights) == 1:
        return D * weights[0]
    first, second = weights
    return D * (first + second) - A.scale_rows(D.values).scale_columns(D.values) * (first * second)


def best_jacobi(A: ls.CSR, P: ls.CSR, sweeps: int, usual: float, step: float) -> tuple[float, ...]:
    """The weights with the smallest radius, from a grid and the usual weight."""
    axis = [usual, *torch.arange(0.3, 3.5, step).tolist()]
    choices = [(w,) for w in axis] if sweeps == 1 else [(v, w) for v in axis for w in axis if v <= w]
    return min(choices, key=lambda weights: radius(A, Cycle(A, P, jacobi(A, *weights))))


def energy_left(A: ls.CSR, M) -> Tensor:
    E = ls.analysis.ErrorPropagator(A, M)(torch.eye(A.shape[0], dtype=A.dtype))
    return (E * E.T).sum()


def learned(A: ls.CSR, P: ls.CSR, start: ls.CSR, pattern: ls.SparsityPattern, steps: int):
    """S on the pattern, from a diagonal start; and the loss of each step."""
    on = pattern.row_indices == pattern.col_indices
    values = torch.zeros(pattern.nnz, dtype=A.dtype)
    values[on] = start.values
    values.requires_grad_()
    optimizer = torch.optim.Adam([values], lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.02 ** (1 / steps))
    history = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = energy_left(A, Cycle(A, P, ls.CSR(values, pattern)))
        loss.backward()
        history.append(float(loss.detach()))
        optimizer.step()
        schedule.step()
    return ls.CSR(values.detach(), pattern), history


def residuals(A: ls.CSR, M) -> Tensor:
    """Relative ||b - A x|| over the cycles, for A x = b from zero with a random b."""
    b = torch.randn(A.shape[0], dtype=A.dtype, generator=torch.Generator().manual_seed(0))
    x, norms = torch.zeros_like(b), [b.norm()]
    for _ in range(CYCLES):
        x = x + M(b - A @ x)
        norms.append((b - A @ x).norm())
    return torch.stack(norms) / b.norm()


def factor(curve: Tensor) -> float:
    """Mean convergence factor of the later cycles above rounding level."""
    return float(ls.analysis.convergence_factor(curve[curve > 1e-13], rtol=1).value)


def smoothers(A: ls.CSR, P: ls.CSR, usual: float, steps: int, step: float) -> dict[str, ls.CSR]:
    start = jacobi(A, usual)
    one, two = (best_jacobi(A, P, sweeps, usual, step) for sweeps in (1, 2))
    words = ", ".join(f"{w:.2f}" for w in two)
    return {
        f"Jacobi, usual weight {usual:.2f}": start,
        f"Jacobi, best weight {one[0]:.2f}": jacobi(A, *one),
        f"Jacobi, two sweeps {words}": jacobi(A, *two),
        "learned, diagonal": learned(A, P, start, start.pattern, steps)[0],
        "learned, A's pattern": learned(A, P, start, A.pattern, steps)[0],
    }


def relaxation(matrix: str, A: ls.CSR, steps: int, step: float):
    """Rows of a table, residuals by cycle, and the smoothers."""
    usual = ls.preconditioners.AMG(A, max_levels=2, max_coarse=10, smoother="jacobi", symmetric=True)
    (P,), weight = usual.hierarchy.prolongations, float(usual.weights[0])
    found = smoothers(A, P, weight, steps, step)
    rows, curves = [], {}
    for name, S in found.items():
        M = Cycle(A, P, S)
        curves[name] = residuals(A, M)
        rows.append(
            {
                "matrix": matrix,
                "S": name,
                "entries": S.nnz,
                "energy left": float(energy_left(A, M)),
                "radius": radius(A, M),
                "measured factor": factor(curves[name]),
                "cg": ls.solvers.cg(A, torch.ones(A.shape[0], dtype=A.dtype), M=M, rtol=1e-8).iterations,
            }
        )
    difference = abs(rows[0]["radius"] - radius(A, usual))
    assert difference < 1e-8, "the same cycle as the library's AMG"
    return rows, curves, found


# --- pictures ----------------------------------------------------------------------------------------------


def demonstration_figure(history: list[float], rows: list[dict]):
    figure, axes = new_figure(
        "A smoother of aggregates, 1D Poisson, 9 points",
        "step of Adam",
        "residual left by three cycles, mean",
    )
    axes.semilogy(history, color=BLUE, linewidth=2, label="learned")
    axes.semilogy(list(PUBLISHED), list(PUBLISHED.values()), "o", color=ORANGE, label="published")
    classical = next(row for row in rows if row["S"] == "I - 0.4 A")
    axes.axhline(classical["loss"], color=GRAY, linestyle="--", label="S = I - 0.4 A")
    axes.axhline(ENOUGH, color=BLACK, linestyle=":", label="where it stops")
    axes.margins(x=0.02)
    axes.legend(frameon=False)
    return figure


def convergence_figure(matrix: str, curves: dict[str, Tensor]):
    figure, axes = new_figure(f"Two-grid cycles, {matrix}", "cycle", r"$\|b - A x_k\| / \|b\|$")
    styles = (
        {"color": GRAY, "linestyle": "--"},
        {"color": BLACK, "linestyle": "--"},
        {"color": ORANGE, "linestyle": "-."},
        {"color": PURPLE, "linewidth": 2},
        {"color": BLUE, "linewidth": 2},
    )
    for (name, curve), style in zip(curves.items(), styles, strict=True):
        axes.semilogy(curve.clamp(min=1e-16), label=name, **style)
    axes.margins(x=0.01)
    axes.legend(frameon=False)
    return figure


def weights_figure(A: ls.CSR, side: int, found: dict[str, ls.CSR]):
    """s_ii a_ii at every grid point."""
    kinds = ("learned, diagonal", "learned, A's pattern")
    figure, panels = new_panels("Diagonal of S times that of A, 2D Poisson", len(kinds))
    for axes, kind in zip(panels, kinds, strict=True):
        w = (found[kind].diagonal() * A.diagonal()).reshape(side, side)
        axes.set_title(kind)
        figure.colorbar(axes.imshow(w, cmap="viridis"), ax=axes, shrink=0.8)
    return figure


def main() -> None:
    experiment = Experiment(__file__, __doc__)
    side, steps, step = (6, 40, 0.2) if experiment.quick else (16, 300, 0.1)
    task = Demonstration.make()
    S, history = task.learned(5000)
    rows = task.rows(S)
    print(f"the demonstration, {len(history) - 1} steps\n{table(rows)}\n")
    experiment.figure("demonstration.png", demonstration_figure(history, rows))

    matrices: dict[str, Callable[[], ls.CSR]] = {
        "2D Poisson": lambda: ls.problems.poisson((side, side)),
        "anisotropic": lambda: ls.problems.anisotropic((side, side), 0.05, 0.5),
    }
    everything: list[dict] = []
    for matrix, make in matrices.items():
        A = make()
        of_it, curves, found = relaxation(matrix, A, steps, step)
        everything += of_it
        name = "poisson" if matrix == "2D Poisson" else matrix
        experiment.figure(f"convergence_{name}.png", convergence_figure(matrix, curves))
        if name == "poisson":
            experiment.figure("weights.png", weights_figure(A, side, found))
    print(table(everything))
    experiment.csv("smoothers.csv", everything)
    experiment.json(
        "summary.json",
        demonstration={
            "steps": len(history) - 1,
            "losses": history,
            "published": PUBLISHED,
            "compared": rows,
        },
        relaxation={"grid": [side, side], "steps": steps, "smoothers": everything},
    )


if __name__ == "__main__":
    main()
