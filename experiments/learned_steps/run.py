"""Learned steps of Richardson's iteration, and the Chebyshev steps that explain them.

x <- x + w_k (b - A x) for a random Gram matrix A = H^T H / m with H of 600 x 300 normal numbers. The steps
are learned by incremental training, as in deep unfolding: for depths 1 to 25, 500 batches each, by Adam with
2e-3 from w = 1.1; the loss is the mean square error after this number of iterations. In the eigenvectors of A
the iteration is the same and normal x are normal, so it runs there, on the diagonal matrix of the
eigenvalues.

Sources: D. Ito, S. Takabe, T. Wadayama, "Trainable ISTA for sparse signal recovery", IEEE Trans. Signal
Processing 67 (2019), section III; S. Takabe, T. Wadayama, "Convergence acceleration via Chebyshev step:
plausible interpretation of deep-unfolded gradient descent", arXiv 2010.13335.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import BLUE, GRAY, ORANGE, Experiment, new_panels, table

import learnsolve as ls

FIRST, LR = 1.1, 2e-3


def gram(rows: int, columns: int) -> torch.Tensor:
    """Eigenvalues of H^T H / rows."""
    H = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return torch.linalg.svdvals(H).square().flip(0) / rows


def chebyshev_steps(low: float, high: float, count: int) -> torch.Tensor:
    """Reciprocals of the zeros of the Chebyshev polynomial of the interval."""
    angle = (2 * torch.arange(count, dtype=torch.float64) + 1) * torch.pi / (2 * count)
    return 1 / ((high + low) / 2 - (high - low) / 2 * angle.cos())


def learn(A: ls.CSR, depths: int, batches: int, batch: int) -> torch.Tensor:
    weight = torch.nn.Parameter(torch.full((depths,), FIRST, dtype=torch.float64))
    optimizer = torch.optim.Adam([weight], lr=LR)
    for depth in range(1, depths + 1):  # each starts from the steps learned before
        for _ in range(batches):
            x = torch.randn(A.shape[0], batch, dtype=torch.float64)
            solution = ls.solvers.richardson(A, A @ x, weight=weight[:depth], iterations=depth)
            optimizer.zero_grad()
            (solution.x - x).square().mean().backward()
            optimizer.step()
    return weight.detach()


def errors(eigenvalues: torch.Tensor, weight: torch.Tensor) -> list[float]:
    """The expected mean square error after 0, 1, ... iterations, for normal x."""
    factors = (1 - weight.unsqueeze(-1) * eigenvalues).cumprod(0).square().mean(-1)
    return [1.0, *factors.tolist()]


def main() -> None:
    experiment = Experiment(__file__, __doc__)
    depths, batches, batch = (4, 40, 8) if experiment.quick else (25, 500, 32)
    rows, columns = (60, 30) if experiment.quick else (600, 300)
    eigenvalues = gram(rows, columns)
    low, high = float(eigenvalues[0]), float(eigenvalues[-1])
    place = torch.arange(columns)
    A = ls.CSR.from_coo(place, place, eigenvalues, (columns, columns))
    learned = learn(A, depths, batches, batch)
    rank = learned.argsort().argsort()
    steps = {
        "learned": learned,
        # In the order of the learned ones: from the largest to the smallest, errors would grow to 1e16 first.
        "Chebyshev": chebyshev_steps(low, high, depths).sort().values[rank],
        "constant": torch.full((depths,), ls.solvers.richardson_weight(low, high), dtype=torch.float64),
    }
    compared = [
        {
            "steps": name,
            "error after all": errors(eigenvalues, w)[-1],
            "spectral radius": float((1 - w.unsqueeze(-1) * eigenvalues).prod(0).abs().max()),
            "smallest": float(w.min()),
            "largest": float(w.max()),
        }
        for name, w in steps.items()
    ]
    difference = float((learned.sort().values - steps["Chebyshev"].sort().values).abs().mean())
    print(table(compared), f"mean distance of the sorted steps: {difference:.3f}", sep="\n")
    experiment.figure("steps.png", figure(eigenvalues, steps))
    experiment.csv(
        "steps.csv", [{"k": k, **{n: float(w[k]) for n, w in steps.items()}} for k in range(depths)]
    )
    experiment.json(
        "summary.json",
        depths=depths,
        batches=batches,
        batch=batch,
        spectrum=[low, high],
        compared=compared,
        mean_distance_of_sorted_steps=difference,
    )


def figure(eigenvalues: torch.Tensor, steps: dict[str, torch.Tensor]):
    result, _ = new_panels("Steps of Richardson's iteration, random Gram matrix", 1)
    result.clear()
    result.set_size_inches(13, 4.5)
    left, middle, right = result.subplots(1, 3)
    looks = {"learned": (BLUE, "-"), "Chebyshev": (ORANGE, "--"), "constant": (GRAY, ":")}
    count = range(1, len(steps["learned"]) + 1)
    left.plot(count, steps["learned"], ".-", color=BLUE)
    left.set(title="learned steps, in their order", xlabel="iteration k", ylabel="$w_k$")
    for name, (color, line) in looks.items():
        middle.plot(count, steps[name].sort().values, line, marker=".", color=color, label=name)
        right.semilogy(errors(eigenvalues, steps[name]), line, color=color, label=name)
    middle.set(title="sorted", xlabel="rank", ylabel="$w$")
    right.set(title="mean square error", xlabel="iteration")
    for axes in (left, middle, right):
        axes.grid(True, color="#dddddd", linewidth=0.6)
    for axes in (middle, right):
        axes.legend(frameon=False)
    return result


if __name__ == "__main__":
    main()
