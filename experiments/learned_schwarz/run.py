"""Interface values of a restricted Schwarz method, learned, against the best constant Robin value.

    M = sum_i R~_i^T (A_i + L_i)^-1 R_i,      loss: max_j ||(I - M A)^K u_j||, ||u_j|| = 1

with K = 4, the published choice, and K = 12, which is closer to the spectral radius of I - M A.

L_i has entries between the interface rows of subdomain i. A constant Robin value puts -c times the sum of
what is cut off, sum_j |a_kj| over j outside, on the diagonal: c = 0 is Dirichlet's condition, 1 Neumann's.
"two parameters": c and a factor of A's entries along the interface; "entries": all of L.

Problems: Poisson on a grid in squares; (K - k^2 mass) u = f with linear elements on an unstructured mesh.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import BLUE, GRAY, ORANGE, PURPLE, Experiment, new_panels, table
from torch import Tensor

import learnsolve as ls

DEPTHS = (4, 12)
VECTORS = 200  # of a step of training
TESTED = 500
OVERLAP = 1
STYLES = {
    "Dirichlet": {"color": GRAY, "linestyle": "--"},
    "constant, smallest radius": {"color": GRAY, "linestyle": ":", "linewidth": 2},
    "constant, best for K = 4": {"color": ORANGE, "linestyle": "--", "linewidth": 2},
    "constant, best for K = 12": {"color": ORANGE, "linewidth": 2},
    "two learned parameters, K = 12": {"color": PURPLE, "linewidth": 2},
    "learned entries, K = 4": {"color": BLUE, "linestyle": "--", "linewidth": 2},
    "learned entries, K = 12": {"color": BLUE, "linewidth": 2},
}


class Problem:
    """A matrix, its subdomains, and their interface."""

    def __init__(self, name: str, A: ls.CSR, subdomains: list | None, count: int):
        self.name, self.A = name, A
        self.given = {"subdomains": subdomains} if subdomains is not None else {"n_subdomains": count}
        self.given["overlap"] = OVERLAP
        self.pattern = ls.preconditioners.learned.interface_pattern(A, **self.given)
        plain = ls.preconditioners.AdditiveSchwarz(A, restricted=True, **self.given)
        self.sizes, rows = plain.sizes, plain.rows
        # What is cut off each local row: absolute entries of A outside of its subdomain.
        D, cut = A.to_dense().abs(), []
        for own in rows.split(self.sizes):
            outside = torch.ones(A.shape[0], dtype=torch.bool)
            outside[own] = False
            cut.append(D[own][:, outside].sum(1))
        i, j = self.pattern.row_indices.long(), self.pattern.col_indices.long()
        self.diagonal = (i == j).to(A.dtype)
        self.cut = -torch.cat(cut)[i] * self.diagonal
        self.along = A.to_dense()[rows[i], rows[j]] * (1 - self.diagonal)

    def local(self, c: Tensor | float, along: Tensor | float = 0.0) -> Tensor:
        """Values on the pattern; a factor along the interface leaves row sums of a Laplacian zero."""
        inside = torch.zeros(self.pattern.shape[0], dtype=self.A.dtype)
        inside = inside.index_add(0, self.pattern.row_indices.long(), self.along)
        return c * self.cut + along * (self.along - inside[self.pattern.row_indices.long()] * self.diagonal)

    def schwarz(self, values: Tensor) -> ls.preconditioners.AdditiveSchwarz:
        L = ls.CSR(values, self.pattern)
        return ls.preconditioners.AdditiveSchwarz(
            self.A, restricted=True, local=L, symmetric=False, **self.given
        )


def problems(quick: bool) -> list[Problem]:
    n, parts = (12, 2) if quick else (24, 3)
    grid = torch.arange(n * n).reshape(n, n)
    squares = [block.flatten() for rows in grid.chunk(parts) for block in rows.chunk(parts, 1)]
    mesh = ls.problems.random_mesh(200 if quick else 600, seed=0)
    stiffness, mass = ls.problems.p1_stiffness(mesh), ls.problems.p1_mass(mesh)
    return [
        Problem(f"Poisson, {n} x {n} points, {parts**2} squares", ls.problems.poisson((n, n)), squares, 0),
        Problem("Helmholtz, k = 3, mesh, 8 parts", stiffness - 9.0 * mass, None, 8),
    ]


def errors(problem: Problem, values: Tensor, u: Tensor, steps: int) -> Tensor:
    """(I - M A)^steps u"""
    M = problem.schwarz(values)
    for _ in range(steps):
        u = u - M(problem.A @ u)
    return u


def loss(problem: Problem, values: Tensor, u: Tensor, depth: int) -> Tensor:
    return torch.linalg.vector_norm(errors(problem, values, u, depth), dim=0).amax()


def vectors(problem: Problem, generator: torch.Generator, count: int) -> Tensor:
    u = torch.randn(problem.A.shape[0], count, dtype=torch.float64, generator=generator)
    return u / torch.linalg.vector_norm(u, dim=0)


@torch.no_grad()
def radius(problem: Problem, values: Tensor) -> float:
    E = errors(problem, values, torch.eye(problem.A.shape[0], dtype=torch.float64), 1)
    return float(torch.linalg.eigvals(E).abs().max())


def scanned(problem: Problem, u: Tensor) -> list[dict]:
    """Losses and spectral radius of constant Robin values."""
    rows = []
    for c in (torch.arange(-10, 20) / 20).tolist():
        values = problem.local(c)
        losses = {f"K = {depth}": float(loss(problem, values, u, depth)) for depth in DEPTHS}
        rows.append({"c": c, **losses, "radius": radius(problem, values)})
    return rows


def learned(problem: Problem, constants: set[float], depth: int, entries: bool, steps: int) -> Tensor:
    """From each of these constants; the values with the smaller loss at the end of training."""
    return min((trained(problem, c, depth, entries, steps) for c in sorted(constants)), key=lambda t: t[1])[0]


def trained(problem: Problem, c: float, depth: int, entries: bool, steps: int) -> tuple[Tensor, float]:
    """From c, by Adam with new vectors in every step: the last values, the mean of the last losses."""
    start = problem.local(c) if entries else torch.tensor([c, 0.0], dtype=torch.float64)
    parameters = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([parameters], lr=0.02)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.02 ** (1 / steps))
    generator, history = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        optimizer.zero_grad()
        values = parameters if entries else problem.local(parameters[0], parameters[1])
        value = loss(problem, values, vectors(problem, generator, VECTORS), depth)
        value.backward()
        history.append(float(value.detach()))
        optimizer.step()
        schedule.step()
    found = parameters.detach()
    values = found if entries else problem.local(found[0], found[1])
    return values, sum(history[-10:]) / len(history[-10:])


@torch.no_grad()
def measured(problem: Problem, values: Tensor, u: Tensor) -> dict:
    M = problem.schwarz(values)
    history, v = [1.0], u
    for _ in range(30):
        v = v - M(problem.A @ v)
        history.append(float(torch.linalg.vector_norm(v, dim=0).amax()))
    return {
        **{f"K = {depth}": history[depth] for depth in DEPTHS},
        "radius": radius(problem, values),
        "gmres": ls.solvers.gmres(problem.A, u[:, 0], M=M, rtol=1e-8, restart=100).iterations,
        "history": history,
    }


def scan_figure(found: dict[str, dict], scans: dict[str, list[dict]]):
    figure, panels = new_panels("Loss with K = 12 on new vectors", len(found))
    for axes, (name, its) in zip(panels, found.items(), strict=True):
        scan = [(r["c"], r["K = 12"]) for r in scans[name]]
        axes.semilogy(*zip(*scan, strict=True), color=ORANGE, label="the constant c")
        for what in ("two learned parameters, K = 12", "learned entries, K = 4", "learned entries, K = 12"):
            axes.axhline(its[what]["K = 12"], label=what, **STYLES[what])
        axes.set(title=name, xlabel="constant Robin value c", ylim=(None, 0.5))
    return with_legend(figure, panels, 2)


def convergence_figure(found: dict[str, dict]):
    figure, panels = new_panels("Stationary Schwarz iteration, 500 random vectors", len(found))
    for axes, (name, its) in zip(panels, found.items(), strict=True):
        for what, row in its.items():
            axes.semilogy(row["history"], label=what, **STYLES[what])
        axes.set(title=name, xlabel="step")
        axes.margins(x=0.01)
    panels[0].set_ylabel("largest error")
    return with_legend(figure, panels, 3)


def with_legend(figure, panels, columns: int):
    figure.set_size_inches(8.4, 4.5)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", frameon=False, ncols=columns)
    return figure


def compared(problem: Problem, steps: int) -> tuple[dict[str, dict], list[dict], dict[str, float]]:
    """What is measured of each choice, the scan, and the constants."""
    u = vectors(problem, torch.Generator().manual_seed(2), TESTED)
    scan = scanned(problem, u)
    best = {of: min(scan, key=lambda row: row[of])["c"] for of in ("radius", "K = 4", "K = 12")}
    constants = {"Dirichlet": 0.0, "constant, smallest radius": best["radius"]}
    constants |= {f"constant, best for K = {depth}": best[f"K = {depth}"] for depth in DEPTHS}
    values = {what: problem.local(c) for what, c in constants.items()}
    starts = {depth: {best["radius"], best[f"K = {depth}"]} for depth in DEPTHS}
    values["two learned parameters, K = 12"] = learned(problem, starts[12], 12, False, steps)
    for depth in DEPTHS:
        values[f"learned entries, K = {depth}"] = learned(problem, starts[depth], depth, True, steps)
    return {what: measured(problem, v, u) for what, v in values.items()}, scan, constants


def main() -> None:
    experiment = Experiment(__file__, __doc__)
    steps = 20 if experiment.quick else 300
    found, scans, rows = {}, {}, []
    for problem in problems(experiment.quick):
        found[problem.name], scans[problem.name], constants = compared(problem, steps)
        for what, its in found[problem.name].items():
            numbers = 0 if what == "Dirichlet" else 1 if what in constants else 2 if "two" in what else None
            rows.append(
                {
                    "problem": problem.name,
                    "interface values": what,
                    "numbers": problem.pattern.nnz if numbers is None else numbers,
                    "c": constants.get(what, ""),
                    **{key: its[key] for key in ("K = 4", "K = 12", "radius", "gmres")},
                }
            )
    print(table(rows))
    experiment.csv("interfaces.csv", rows)
    experiment.figure("constants.png", scan_figure(found, scans))
    experiment.figure("convergence.png", convergence_figure(found))
    experiment.json("summary.json", overlap=OVERLAP, steps=steps, interfaces=rows)


if __name__ == "__main__":
    main()
