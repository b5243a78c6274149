"""A sparse approximate inverse by gradient descent on ||A X - I||_F^2 + ||X A - I||_F^2.

First the authors' public demonstration, demos/spai_grad.ipynb in nicknytko/numml: 1D Poisson with 8 points,
X with five diagonals. Then 2D Poisson, with X on the pattern of A and on that of A^2 as a preconditioner,
compared with direct constructions on the same pattern: SPAI, the minimizer of ||A M - I||_F alone, and FSAI,
L L^T with L on the lower half.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import BLACK, BLUE, GRAY, ORANGE, PURPLE, Experiment, difference, new_figure, new_panels, table
from torch import Tensor

import learnsolve as ls

RTOL = 1e-8


class Loss:
    """A quadratic in the values of X on its pattern."""

    def __init__(self, A: ls.CSR, pattern: ls.SparsityPattern):
        self.A, self.pattern, self.I = A, pattern, ls.ops.eye(A.shape[0], dtype=A.dtype)

    def parts(self, values: Tensor) -> tuple[Tensor, Tensor]:
        X = ls.CSR(values, self.pattern)
        right, left = self.A @ X - self.I, X @ self.A - self.I
        return right.values.square().sum(), left.values.square().sum()

    def __call__(self, values: Tensor) -> Tensor:
        right, left = self.parts(values)
        return right + left

    @torch.enable_grad()
    def gradient(self, values: Tensor) -> Tensor:
        values = values.detach().requires_grad_()
        return torch.autograd.grad(self(values), values)[0]

    def minimizer(self) -> Tensor:
        """Where the gradient H x - c is zero."""
        c = -self.gradient(torch.zeros(self.pattern.nnz, dtype=self.A.dtype))
        return ls.solvers.cg(lambda v: self.gradient(v) + c, c, rtol=1e-13).x


def learned(loss: Loss, start: Tensor, lr: float, steps: int, decay: float = 1.0):
    """Values after `steps` of Adam, and the loss before each step."""
    values = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([values], lr=lr)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)
    history = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(values)
        value.backward()
        optimizer.step()
        schedule.step()
        history.append(value.item())
    return values.detach(), [*history, float(loss(values.detach()))]


def demonstration(steps: int):
    """N = 8, starting from A's values and ones on the second diagonals, Adam with a rate of 0.1."""
    A = ls.problems.poisson(8)
    ones = torch.ones(6, dtype=A.dtype)
    start = A + ls.ops.diag(ones, 2) + ls.ops.diag(ones, -2)
    loss = Loss(A, start.pattern)
    best = loss.minimizer()
    values, history = learned(loss, start.values, 0.1, steps)
    summary = {
        "loss at the start": history[0],
        "loss at the end": history[-1],
        "smallest loss": float(loss(best)),
        "values differ from the minimizer by": difference(values, best),
    }
    return summary, history, ls.CSR(values, start.pattern), A


def on_pattern(A: ls.CSR, power: int) -> ls.SparsityPattern:
    product = A
    for _ in range(power - 1):
        product = product @ A
    return product.pattern


def solutions(A: ls.CSR, b: Tensor, M, symmetric: bool) -> dict[str, ls.solvers.Solution]:
    found = {"gmres": ls.solvers.gmres(A, b, M=M, rtol=RTOL, restart=200)}
    if symmetric:
        found["cg"] = ls.solvers.cg(A, b, M=M, rtol=RTOL)
    for solution in found.values():
        assert solution.converged
    return found


class Comparison:
    """Rows of a table: how close M is to an inverse, and the iterations that it needs."""

    def __init__(self, A: ls.CSR):
        self.A, self.b = A, torch.randn(A.shape[0], dtype=A.dtype, generator=torch.Generator().manual_seed(0))
        self.rows: list[dict] = []
        self.solved: dict[str, dict[str, ls.solvers.Solution]] = {}

    def add(self, name: str, M, matrix: ls.CSR | None = None, *, symmetric: bool = True) -> None:
        right = left = None
        if matrix is not None:
            right, left = (float(part) ** 0.5 for part in Loss(self.A, matrix.pattern).parts(matrix.values))
        self.solved[name] = solutions(self.A, self.b, M, symmetric)
        kappa = float(ls.analysis.condition_number(self.A, M, rtol=1e-4).value) if symmetric else None
        self.rows.append(
            {
                "M": name,
                "entries": None if matrix is None else matrix.nnz,
                "right": right,
                "left": left,
                "condition number": kappa,
                "gmres": self.solved[name]["gmres"].iterations,
                "cg": self.solved[name]["cg"].iterations if symmetric else None,
            }
        )


def compared(A: ls.CSR, steps: int) -> tuple[Comparison, dict[str, list[float]], dict[str, float]]:
    """The table, and for both patterns the loss of each step and the smallest loss."""
    comparison, histories, smallest = Comparison(A), {}, {}
    comparison.add("none", None)
    comparison.add("Jacobi", ls.preconditioners.Jacobi(A))
    for power, words in ((1, "A"), (2, "A²")):
        pattern = on_pattern(A, power)
        direct = ls.preconditioners.SPAI(A, pattern=pattern)
        comparison.add(f"SPAI, {words}", direct, direct.matrix, symmetric=False)
        loss = Loss(A, pattern)
        on = pattern.row_indices == pattern.col_indices
        start = torch.where(on, 1 / A.diagonal().mean(), 0)
        values, histories[words] = learned(loss, start, 0.02, steps, 0.01 ** (1 / steps))
        smallest[words] = float(loss(loss.minimizer()))
        X = ls.CSR(values, pattern)
        # A is symmetric, and so is the loss in X: X stays symmetric.
        assert difference(X.T.values, X.values) < 1e-9
        comparison.add(f"learned, {words}", X, X)
        lower = ls.preconditioners.lower_pattern(A, power)
        factored = ls.preconditioners.FSAI(A, pattern=lower)
        comparison.add(f"FSAI, {words}", factored, factored.L @ factored.L.T)
    return comparison, histories, smallest


def loss_figure(histories: dict[str, tuple[list[float], float]]):
    figure, axes = new_figure(
        r"$\|A X - I\|_F^2 + \|X A - I\|_F^2$ while X learns", "step of Adam", "loss above the smallest one"
    )
    for (name, (history, best)), color in zip(histories.items(), (BLACK, BLUE, ORANGE), strict=True):
        above = [value - best for value in history]
        axes.semilogy(
            [max(v, 1e-13 * history[0]) for v in above], color=color, label=f"{name} (to {best:.4g})"
        )
    axes.margins(x=0.01)
    axes.legend(frameon=False)
    return figure


def matrices_figure(A: ls.CSR, X: ls.CSR):
    """The output of the demonstration: X and A X, with the inverse."""
    figure, panels = new_panels("1D Poisson, 8 points: X with five diagonals", 3)
    shown = {"$A^{-1}$": A.to_dense().inverse(), "X": X.to_dense(), "A X": (A @ X).to_dense()}
    for axes, (name, D) in zip(panels, shown.items(), strict=True):
        axes.set_title(name)
        image = axes.imshow(D, cmap="RdBu_r", vmin=-2.2, vmax=2.2)
        for i, j in (D.abs() > 5e-3).nonzero().tolist():
            axes.text(j, i, f"{float(D[i, j]):.2f}", ha="center", va="center", fontsize=7)
        axes.set_xticks([])
        axes.set_yticks([])
    figure.colorbar(image, ax=panels, shrink=0.8)
    return figure


def convergence_figure(comparison: Comparison, side: int):
    figure, axes = new_figure(
        f"cg, 2D Poisson {side} x {side}: approximate inverses on A's pattern and A²'s",
        "iteration",
        r"$\|r_k\| / \|b\|$",
    )
    colors = {"none": BLACK, "Jacobi": GRAY, "learned": BLUE, "FSAI": ORANGE, "SPAI": PURPLE}
    drawn = [(name, by["cg"]) for name, by in comparison.solved.items() if "cg" in by]
    for name, solution in drawn:
        method, _, pattern = name.partition(", ")
        norms = solution.residual_norms / comparison.b.norm()
        axes.semilogy(
            norms,
            color=colors[method],
            linestyle="--" if pattern == "A" or method == "Jacobi" else "-",
            label=f"{name}: {solution.iterations}",
        )
    axes.margins(x=0.01)
    axes.legend(frameon=False)
    return figure


def main() -> None:
    experiment = Experiment(__file__, __doc__)
    side, demo_steps, steps = (8, 300, 200) if experiment.quick else (32, 1000, 400)
    summary, history, X, small = demonstration(demo_steps)
    comparison, histories, smallest = compared(ls.problems.poisson((side, side)), steps)
    print(table(comparison.rows))
    curves = {"the demonstration, 8 points": (history, summary["smallest loss"])}
    curves |= {f"2D, pattern of {k}": (h, smallest[k]) for k, h in histories.items()}
    experiment.figure("loss.png", loss_figure(curves))
    experiment.figure("matrices.png", matrices_figure(small, X))
    experiment.figure("convergence.png", convergence_figure(comparison, side))
    experiment.csv("preconditioners.csv", comparison.rows)
    experiment.json(
        "summary.json",
        demonstration={"steps": demo_steps, **summary},
        learned={
            k: {"steps": steps, "loss at the end": h[-1], "smallest loss": smallest[k]}
            for k, h in histories.items()
        },
        rtol=RTOL,
        grid=[side, side],
        preconditioners=comparison.rows,
    )


if __name__ == "__main__":
    main()
