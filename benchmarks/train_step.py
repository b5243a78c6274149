"""One training step of the Jacobi recipe, compared with the same mathematics in dense, batched PyTorch.

    python benchmarks/train_step.py [--n 16] [--vectors 100] [--threads 1] [--json FILE]

Both run loss, backward and one step of the same Adam on the same vectors, alternately. The two losses are
compared first. Times are medians in microseconds; a ratio below 1 means that learnsolve is faster.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from learnsolve.recipes.jacobi import JacobiRecipe, JacobiSettings

BATCH = 50  # steps per measurement, so that the clock itself is negligible
AGREEMENT = 1e-12


def sparse_step(recipe: JacobiRecipe) -> Callable[[], float]:
    optimizer = recipe.optimizer()
    weight = recipe.weight

    def step() -> float:
        weight.grad = None
        loss = recipe.loss(0)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def dense_step(recipe: JacobiRecipe) -> Callable[[], float]:
    A, E = recipe.A.to_dense(), recipe.test_vectors
    b, d = torch.zeros_like(E), A.diagonal().clone()
    weight = torch.ones_like(d, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=recipe.settings.lr)

    def step() -> float:
        weight.grad = None
        x = E + (weight / d).unsqueeze(1) * (b - A @ E)
        loss = (x * (A @ x)).sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def microseconds(step: Callable[[], float]) -> float:
    start = time.perf_counter()
    for _ in range(BATCH):
        step()
    return (time.perf_counter() - start) / BATCH * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--n", type=int, default=16, help="grid points of the 1D Poisson problem")
    parser.add_argument("--vectors", type=int, default=100, help="test vectors")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    settings = JacobiSettings(test_vectors=options.vectors)
    settings.problem.shape = options.n
    settings.check()
    recipe = JacobiRecipe(settings)
    ours, dense = sparse_step(recipe), dense_step(recipe)
    for _ in range(BATCH):  # to the same weights, and warm
        a, b = ours(), dense()
        if abs(a - b) > AGREEMENT * abs(b):
            raise SystemExit(f"the two losses differ: {a!r} and {b!r}")
    times = [(microseconds(ours), microseconds(dense)) for _ in range(options.repeats)]
    result = {
        "n": options.n,
        "vectors": options.vectors,
        "threads": options.threads,
        "learnsolve_us": statistics.median(t for t, _ in times),
        "dense_us": statistics.median(t for _, t in times),
        # Each pair ran at about the same time: the median of ratios, not the ratio of medians.
        "ratio": statistics.median(t / u for t, u in times),
    }
    print(
        f"n = {options.n}, {options.vectors} vectors: learnsolve {result['learnsolve_us']:.0f} us, dense "
        f"{result['dense_us']:.0f} us, ratio {result['ratio']:.2f} (target <= 1.0 at n = 16)"
    )
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
