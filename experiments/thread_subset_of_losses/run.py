"""Backward of the hardest losses only: the cost of a subset, for unrolled solvers.

A preconditioner is trained on a batch of test vectors through a fixed number of iterations. Only the largest
losses have a gradient. Measures the time against their fraction, for

    plain, one pass   op by op with a graph, then losses[hardest].mean().backward()
    plain, two pass   all losses without a graph, then the hardest ones again with a graph
    ours, one pass    the same two lines with the compiled loop; its adjoint skips zero cotangents
    ours, two pass    as plain, two pass, with the compiled loop
"""

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import BLACK, BLUE, GRAY, ORANGE, PURPLE, Experiment, difference, new_figure, table
from torch import Tensor

import learnsolve as ls

Solve = Callable[[ls.CSR, Tensor, Tensor, int], Tensor]


class LowerFactor(ls.preconditioners.Preconditioner):
    """M = L L^T, in the form that the compiled loop of cg supports."""

    symmetric = True

    def __init__(self, L: ls.CSR):
        self.L, self.shape, self.depends_on = L, L.shape, (L.values,)

    def mv(self, R: Tensor) -> Tensor:
        return self.L @ ls.ops.spmm(self.L, R, transpose=True)

    def pcg_form(self):
        return "product", self.L.values, self.L.pattern


def start_cg(A: ls.CSR) -> Tensor:
    """Values for the pattern of A's lower triangle: a scaled diagonal, and small entries below."""
    L = A.tril()
    on = L.pattern.row_indices == L.pattern.col_indices
    return torch.where(on, 0.5, 0.1).to(A.dtype)


def plain_cg(A: ls.CSR, V: Tensor, theta: Tensor, iterations: int) -> Tensor:
    """The textbook's loop, op by op in torch, with our product."""
    M = LowerFactor(A.tril().with_values(theta))
    r = V.T
    x = torch.zeros_like(r)
    p = z = M(r)
    rho = (r * z).sum(0)
    for _ in range(iterations):
        q = A @ p
        alpha = rho / (p * q).sum(0)
        x, r = x + alpha * p, r - alpha * q
        z = M(r)
        old, rho = rho, (r * z).sum(0)
        p = z + rho / old * p
    return x.T


def compiled_cg(A: ls.CSR, B: Tensor, theta: Tensor, iterations: int) -> Tensor:
    M = LowerFactor(A.tril().with_values(theta))
    return ls.solvers.cg(A, B, iterations=iterations, gradient="unrolled", M=M).x


@dataclass
class Solver:
    """`start` returns the trainable tensor; the others take A, vectors (count, n), that tensor and the number
    of iterations."""

    name: str
    iterations: int
    start: Callable[[ls.CSR], Tensor]
    plain: Solve
    ours: dict[str, Solve]


SOLVERS = [
    Solver(
        "cg",
        20,
        start_cg,
        plain_cg,
        {
            "ours": lambda A, V, *rest: compiled_cg(A, V.unsqueeze(-1), *rest).squeeze(-1),
            "ours, one block of columns": lambda A, V, *rest: compiled_cg(A, V.T, *rest).T,
        },
    ),
]
STYLES = {
    "plain, all losses": {"color": BLACK, "linestyle": "--"},
    "plain, one pass": {"color": ORANGE, "marker": "s"},
    "plain, two pass": {"color": PURPLE, "marker": "D"},
    "ours, one pass": {"color": BLUE, "marker": "o", "linewidth": 2},
    "ours, one block of columns, one pass": {"color": BLUE, "marker": "v", "linestyle": ":"},
    "ours, two pass": {"color": GRAY, "marker": "^"},
}


def losses_of(x: Tensor, exact: Tensor) -> Tensor:
    return (x - exact).square().sum(1)


def one_pass(solve: Solve, problem, theta: Tensor, count: int):
    A, V, exact, iterations = problem
    start = time.perf_counter()
    losses = losses_of(solve(A, V, theta, iterations), exact)
    loss = losses[losses.detach().topk(count).indices].mean()
    middle = time.perf_counter()
    (gradient,) = torch.autograd.grad(loss, theta)
    return middle - start, time.perf_counter() - middle, gradient


def two_pass(solve: Solve, problem, theta: Tensor, count: int):
    A, V, exact, iterations = problem
    start = time.perf_counter()
    with torch.no_grad():
        hardest = losses_of(solve(A, V, theta, iterations), exact).topk(count).indices
    loss = losses_of(solve(A, V[hardest], theta, iterations), exact[hardest]).mean()
    middle = time.perf_counter()
    (gradient,) = torch.autograd.grad(loss, theta)
    return middle - start, time.perf_counter() - middle, gradient


def variants(solver: Solver) -> dict[str, tuple[Callable, Solve]]:
    first = next(iter(solver.ours))
    return {
        "plain, one pass": (one_pass, solver.plain),
        "plain, two pass": (two_pass, solver.plain),
        **{f"{name}, one pass": (one_pass, solve) for name, solve in solver.ours.items()},
        f"{first}, two pass": (two_pass, solver.ours[first]),
    }


def measured(solver: Solver, grid: tuple[int, int], vectors: int, rounds: int) -> tuple[list[dict], float]:
    """Interleaved medians for each variant and fraction; and the fraction of losses above their average."""
    A = ls.problems.poisson(grid)
    # Smooth and rough vectors: some converge much faster than others.
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(vectors, A.shape[0], dtype=A.dtype, generator=generator)
    for sweeps in range(1, vectors):
        exact[sweeps:] -= (A @ exact[sweeps:].T).T / 8
    exact /= exact.norm(dim=1, keepdim=True)
    problem = A, (A @ exact.T).T.contiguous(), exact, solver.iterations
    theta = solver.start(A).requires_grad_()
    with torch.no_grad():
        losses = losses_of(solver.plain(*problem[:2], theta, solver.iterations), exact)
    above = int((losses > losses.mean()).sum())
    counts = sorted({2**i for i in range(int(math.log2(vectors)) + 1)} | {vectors, above})

    samples: dict[tuple[int, str], list[tuple[float, float]]] = {}
    gradients: dict[tuple[int, str], Tensor] = {}
    for turn in range(rounds + 1):
        for count in counts:
            for name, (run, solve) in variants(solver).items():
                *times, gradients[count, name] = run(solve, problem, theta, count)
                if turn:  # the first turn creates plans
                    samples.setdefault((count, name), []).append((times[0], times[1]))

    rows = []
    for count in counts:
        exact_gradient = gradients[count, "plain, one pass"]
        for name in variants(solver):
            each = samples[count, name]
            rows.append(
                {
                    "solver": solver.name,
                    "variant": name,
                    "losses": count,
                    "fraction": count / vectors,
                    "forward ms": 1e3 * statistics.median(t[0] for t in each),
                    "backward ms": 1e3 * statistics.median(t[1] for t in each),
                    "step ms": 1e3 * statistics.median(sum(t) for t in each),
                    "gradient differs by": difference(gradients[count, name], exact_gradient),
                }
            )
    return rows, above / vectors


def picture(rows: list[dict], solver: Solver, above: float, what: str):
    title = f"{solver.name}, {solver.iterations} iterations: {what} for the hardest losses"
    figure, axes = new_figure(title, "fraction of the losses that have a gradient", "ms")
    for name, style in STYLES.items():
        kept = [row for row in rows if row["variant"] == name]
        if kept:
            axes.plot(
                [row["fraction"] for row in kept], [row[f"{what} ms"] for row in kept], label=name, **style
            )
    whole = next(row for row in rows if row["variant"] == "plain, one pass" and row["fraction"] == 1)
    axes.axhline(whole[f"{what} ms"], label="plain, all losses", **STYLES["plain, all losses"])
    axes.axvline(above, color=GRAY, linewidth=0.8)
    axes.annotate("above average", (above, 0), (3, 4), textcoords="offset points", color=GRAY, fontsize=8)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, 1.02)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def main() -> None:
    experiment = Experiment(__file__, __doc__)
    grid, vectors, rounds = ((8, 8), 8, 2) if experiment.quick else ((64, 64), 32, 9)
    if experiment.quick:  # do not solve the small problem to rounding level
        SOLVERS[:] = [replace(solver, iterations=5) for solver in SOLVERS]
    everything = []
    averages = {}
    for solver in SOLVERS:
        rows, averages[solver.name] = measured(solver, grid, vectors, rounds)
        print(f"\n{solver.name}, Poisson {grid[0]} x {grid[1]}, {vectors} vectors\n{table(rows)}")
        everything += rows
        for what in ("step", "backward"):
            figure = picture(rows, solver, averages[solver.name], what)
            experiment.figure(f"{solver.name}_{what}.png", figure)
    experiment.csv("times.csv", everything)
    experiment.json(
        "times.json",
        problem={"grid": grid, "vectors": vectors, "iterations": {s.name: s.iterations for s in SOLVERS}},
        fraction_above_average=averages,
        rows=everything,
    )


if __name__ == "__main__":
    main()
