"""A training step of the recipe precorrector, compared with the same network written with torch alone.

    python benchmarks/factor_network.py [--grid 32] [--batch 8] [--rounds 3] [--width 8] [--vectors 8]

The comparison has the same weights and the same loss ||L L^T x - b||^2, in PyTorch Geometric's style: the
matrices of a batch as one block diagonal graph, features of an edge and its ends joined, `index_select`,
`index_add`, or `scatter_reduce` for maxima, and the products with L and L^T entry by entry. Losses and
gradients of both are compared first. Medians in milliseconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from message_passing import Scatters, agree, plain_block
from timing import medians, table, write
from torch import Tensor

import learnsolve as ls
from learnsolve.recipes.precorrector import PrecorrectorRecipe, PrecorrectorSettings


class Plain:
    """The network and its loss by torch's gathers and scatters, for a batch of matrices on one pattern."""

    def __init__(self, network: ls.preconditioners.PreCorrector, pattern: ls.SparsityPattern, batch: int):
        n = pattern.shape[0]
        blocks = torch.arange(batch).unsqueeze(-1) * n
        self.network, self.n, self.nnz = network, n, pattern.nnz
        self.row, self.column = ((blocks + i).reshape(-1) for i in (pattern.row_indices, pattern.col_indices))
        self.by_rows, self.by_columns = Scatters(self.row, batch * n), Scatters(self.column, batch * n)
        self.on = self.row == self.column

    def loss(self, start, X: Tensor, B: Tensor) -> Tensor:
        network = self.network
        x, e = start.x.flatten(0, 1), start.e.reshape(-1, 1)
        h = e
        for k, block in enumerate(network.blocks):
            dx, dh = plain_block(block, self.by_rows, self.by_columns, x, h)
            x, h = (dx, dh) if k == 0 else (x if dx is None else x + dx, h + dh)
        g = network.alpha * network.last(torch.cat((h, e), -1)).squeeze(-1)
        v = torch.where(self.on, e.squeeze(-1) * g.exp(), e.squeeze(-1) + g)
        v = v * start.scale.reshape(-1).index_select(0, self.row)
        X, B = X.flatten(0, 1), B.flatten(0, 1)
        Y = torch.zeros_like(X).index_add(0, self.column, v.unsqueeze(-1) * X.index_select(0, self.row))
        Z = torch.zeros_like(X).index_add(0, self.row, v.unsqueeze(-1) * Y.index_select(0, self.column))
        return (Z - B).square().sum()


def rows(options: argparse.Namespace) -> list[dict]:
    found = []
    for how in ("mean", "max", "softmax"):
        settings = PrecorrectorSettings(
            grid=options.grid,
            matrices=options.batch,
            batch=options.batch,
            rounds=options.rounds,
            width=options.width,
            test_vectors=options.vectors,
            aggregate=[how],
        )
        settings.check()
        recipe = PrecorrectorRecipe(settings)
        network = recipe.model
        torch.nn.init.constant_(network.alpha, 0.1)  # zero would give no gradient to the rest
        (part,) = recipe.training.parts(list(range(options.batch)), *recipe._fixed)
        plain = Plain(network, part.start.pattern, options.batch)
        optimizer = recipe.optimizer()

        def step(
            loss: Callable[[], Tensor],
            optimizer: torch.optim.Optimizer = optimizer,
            network: torch.nn.Module = network,
            update: bool = True,
        ) -> Tensor:
            network.zero_grad(set_to_none=True)
            value = loss()
            value.backward()
            if update:
                optimizer.step()
            return value.detach()

        ways: dict[str, Callable[[], Tensor]] = {
            "ours": lambda recipe=recipe, part=part: recipe._loss_of(part).sum(),
            "torch": lambda plain=plain, part=part: plain.loss(part.start, part.X, part.B),
        }
        gradients = {}
        values = {}
        for who, loss in ways.items():
            values[who] = step(loss, update=False)
            gradients[who] = [p.grad.clone() for p in network.parameters()]
        agree(values["ours"], values["torch"], f"loss, {how}")
        for a, b in zip(gradients["ours"], gradients["torch"], strict=True):
            agree(a, b, f"gradient, {how}")
        times = medians({who: lambda loss=loss: step(loss) for who, loss in ways.items()}, options.seconds)
        found.append(
            {
                "aggregate": how,
                "edges": options.batch * plain.nnz,
                "ours ms": 1e3 * times["ours"],
                "torch ms": 1e3 * times["torch"],
                "torch / ours": times["torch"] / times["ours"],
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    for name, default in (("grid", 32), ("batch", 8), ("rounds", 3), ("width", 8), ("vectors", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measurement")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = rows(options)
    print(table(found))
    if options.json:
        write(options.json, "factor_network", found, threads=options.threads)


if __name__ == "__main__":
    main()
