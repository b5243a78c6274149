"""The training: Adam on log ||x_K - x||_A / ||x||_A after K iterations of cg, on grids that grow.

    A x = b, b from N(0, I), x_K: K iterations from zero with the factor of the network

b is white, so x is made of the modes of the smallest eigenvalues, which decide the iterations. The steps of a
stage are counted, so that weights depend only on the seed; the rate falls as a cosine over all stages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import learnsolve as ls


@dataclass(frozen=True)
class Stage:
    """Steps on matrices of one grid, with K iterations each; `matrices` of them, drawn in advance."""

    side: int
    steps: int
    iterations: int
    matrices: int = 64


def family(split: str, count: int, side: int, dimensions: int, kind: str = "regions") -> Any:
    """Diffusion with a full tensor that turns by regions; split "test" has other seeds than "train"."""
    options: dict[str, Any] = {"n": side, "dimensions": dimensions, "kind": kind}
    return ls.problems.dataset("diffusion_tensor", split, count, regions=(8, 12)[dimensions - 2], **options)


@dataclass
class Example:
    A: ls.CSR
    start: Any  # what the network reads
    B: Tensor  # (n, vectors)
    X: Tensor


@torch.no_grad()
def examples(network: Any, stage: Stage, dimensions: int, seed: int, vectors: int = 8) -> list[Example]:
    generator, found = torch.Generator().manual_seed(seed), []
    for sample in family("train", stage.matrices, stage.side, dimensions):
        A = sample.A
        B = torch.randn(A.shape[0], vectors, dtype=A.dtype, generator=generator)
        found.append(Example(A, network.start(A), B, ls.factorize(A)(B)))
    return found


def error(example: Example, network: Any, iterations: int, columns: Tensor) -> Tensor:
    """The loss, as the mean over these columns."""
    A, X = example.A, example.X[:, columns]
    M = network(example.start)
    x = ls.solvers.cg(A, example.B[:, columns], M=M, iterations=iterations, gradient="unrolled").x
    return (ls.ops.quadratic_form(A, x - X) / ls.ops.quadratic_form(A, X)).log().mean() / 2


def train(
    network: Any,
    stages: Sequence[Stage],
    dimensions: int,
    seed: int,
    rate: float = 3e-3,
    columns: int = 2,
) -> Iterator[dict[str, Any]]:
    """Trains in place; a row of the mean loss for each hundred steps."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate, betas=(0.9, 0.99))
    total, done, begin = sum(stage.steps for stage in stages), 0, time.perf_counter()
    for stage in stages:
        data, losses = examples(network, stage, dimensions, seed), []
        for step in range(stage.steps):
            falling = 0.5 * (1 + math.cos(math.pi * done / total))
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (done + 1) / 50) * (0.98 * falling + 0.02)
            which = int(torch.randint(len(data), (), generator=generator))
            chosen = torch.randperm(data[which].B.shape[1], generator=generator)[:columns]
            loss = error(data[which], network, stage.iterations, chosen)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            done += 1
            if len(losses) == 100 or step == stage.steps - 1:
                seconds = time.perf_counter() - begin
                yield {
                    "step": done,
                    "seconds": seconds,
                    "side": stage.side,
                    "loss": sum(losses) / len(losses),
                }
                losses = []


# In 2D 22 to 28 minutes of a busy core.
STAGES: dict[int, tuple[Stage, ...]] = {
    2: (Stage(16, 1000, 6), Stage(32, 4000, 10), Stage(64, 10_000, 16), Stage(128, 12_000, 24)),
    3: (Stage(8, 1000, 4), Stage(12, 3000, 6), Stage(20, 6000, 9), Stage(32, 3000, 13)),
}


def train_file(path: Path, dimensions: int, seed: int, stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """A trained network in the file `path`, and its rows."""
    torch.set_num_threads(1)
    network = ls.preconditioners.StencilFactor(3**dimensions, seed=seed)
    rows = list(train(network, stages, dimensions, seed))
    network.save(path)
    return rows
