"""Message passing on the entries of a matrix against torch's gathers and scatters.

Each operation on the 5-point pattern, by rows and by columns, forward and backward, and one training step of
a `GraphNetBlock` with each aggregation, and one of the recipe precorrector, loss included. "torch" is
index_select, index_add and scatter_reduce, which PyTorch Geometric uses. The larger grid is beyond all
caches: there the share of the triad's bandwidth says how near an operation is to the bytes that it must move.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

import learnsolve as ls
from benchmarks.harness import BACKWARD, FORWARD, OURS, Op, Run, Task, ways
from learnsolve.recipes.family import PrecorrectorRecipe, PrecorrectorSettings


class Scatters:
    """The operations by torch alone, for indices of the segments."""

    def __init__(self, index: Tensor, n: int):
        self.index, self.n = index.long(), n
        self.counts = torch.bincount(self.index, minlength=n).clamp(min=1).unsqueeze(-1)

    def zeros(self, e: Tensor) -> Tensor:
        return e.new_zeros(self.n, e.shape[-1])

    def gather(self, x: Tensor) -> Tensor:
        return x.index_select(0, self.index)

    def sum(self, e: Tensor) -> Tensor:
        return self.zeros(e).index_add(0, self.index, e)

    def mean(self, e: Tensor) -> Tensor:
        return self.sum(e) / self.counts

    def max(self, e: Tensor) -> Tensor:
        places = self.index.unsqueeze(-1).expand(e.shape)
        return self.zeros(e).scatter_reduce(0, places, e, "amax", include_self=False)

    def softmax(self, e: Tensor) -> Tensor:
        y = (e - self.gather(self.max(e.detach()))).exp()
        return y / self.gather(self.sum(y))


def measure(run: Run, args: argparse.Namespace) -> None:
    side, features = (6, (2,)) if run.quick else (100, (1, 16, 32))
    P = ls.problems.poisson((side, side)).pattern
    for dtype in (torch.float32,) if run.quick else (torch.float32, torch.float64):
        for f in features:
            for by in ("row", "column"):
                operations(run, P, by, f, dtype)
                if f == 16:
                    operations(run, ls.problems.poisson((500, 500)).pattern, by, f, dtype)
            for how in ("sum", "max", "softmax"):
                step(run, P, how, f, dtype)
    for how in ("mean", "max", "softmax"):
        precorrector(run, how)


def least_bytes(name: str, way: str, P: ls.SparsityPattern, by: str, f: int, size: int) -> int:
    """What an operation must read and write, each number once, and the indices of its segments."""
    n, indices = P.shape[0], 4 * (P.nnz if by == "column" else P.shape[0] + 1)
    entries, nodes = size * f * P.nnz, size * f * n
    if name == "softmax":
        return indices + (2 if way == FORWARD else 3) * entries
    return indices + entries + nodes + (4 * f * n if name == "max" else 0)  # the places of maxima


def operations(run: Run, P: ls.SparsityPattern, by: str, f: int, dtype: torch.dtype) -> None:
    scatters, ops = Scatters(P.row_indices if by == "row" else P.col_indices, P.shape[0]), ls.ops
    mine = {
        "gather": ops.gather,
        "sum": ops.segment_sum,
        "mean": ops.segment_mean,
        "max": ops.segment_max,
        "softmax": ops.segment_softmax,
    }
    for name, operation in mine.items():
        t = torch.randn(P.shape[0] if name == "gather" else P.nnz, f, dtype=dtype).requires_grad_()
        theirs = getattr(scatters, name)
        both = {
            OURS: lambda operation=operation, t=t: Op(lambda: operation(t, P, by), [t]),
            "torch": lambda theirs=theirs, t=t: Op(lambda: theirs(t), [t]),
        }
        for way in (FORWARD, BACKWARD):
            run.row(
                f"{name} by {by}, {f} features, {P.nnz} entries",
                ways(both, way),
                way=way,
                dtype=dtype,
                least=least_bytes(name, way, P, by, f, dtype.itemsize),
                nnz=P.nnz,
            )


def plain_block(block: ls.nn.GraphNetBlock, by_rows: Scatters, by_columns: Scatters, x: Tensor, e: Tensor):
    """The same block with joined features, as PyTorch Geometric's MetaLayer has it."""

    def aggregate(e: Tensor, how: str, s: Scatters) -> Tensor:
        return s.sum(s.softmax(e) * e) if how == "softmax" else getattr(s, how)(e)

    e = block.edge_mlp(torch.cat((by_rows.gather(x), by_columns.gather(x), e), -1))
    if block.node_mlp is None:
        return None, e
    parts = [aggregate(e, how, by_rows) for how in block.rows]
    parts += [aggregate(e, how, by_columns) for how in block.columns]
    return block.node_mlp(torch.cat((x, *parts), -1)), e


def step(run: Run, P: ls.SparsityPattern, how: str, f: int, dtype: torch.dtype) -> None:
    by_rows, by_columns = (Scatters(i, P.shape[0]) for i in (P.row_indices, P.col_indices))
    x, e = torch.randn(P.shape[0], f, dtype=dtype), torch.randn(P.nnz, f, dtype=dtype)
    torch.manual_seed(0)
    block = ls.nn.GraphNetBlock(f, f, hidden=(f,), rows=how, columns=how, dtype=dtype)

    def of(forward: Callable) -> Callable[[], Task]:
        def run_once() -> list[Tensor | None]:
            block.zero_grad()
            a, b = forward()
            (a.square().mean() + b.square().mean()).backward()
            return [p.grad for p in block.parameters()]

        return lambda: run_once

    columns = {
        OURS: of(lambda: block(P, x, e)),
        "torch": of(lambda: plain_block(block, by_rows, by_columns, x, e)),
    }
    run.row(f"training step with {how}, {f} features", columns, way="step", dtype=dtype, nnz=P.nnz)


class Plain:
    """The network of the recipe and its loss, for matrices on one pattern as one block-diagonal graph."""

    def __init__(self, network: ls.preconditioners.PreCorrector, pattern: ls.SparsityPattern, batch: int):
        n = pattern.shape[0]
        blocks = torch.arange(batch).unsqueeze(-1) * n
        self.network = network
        self.row, self.column = ((blocks + i).reshape(-1) for i in (pattern.row_indices, pattern.col_indices))
        self.by_rows, self.by_columns = Scatters(self.row, batch * n), Scatters(self.column, batch * n)

    def loss(self, start, X: Tensor, B: Tensor) -> Tensor:
        network = self.network
        x, e = start.x.flatten(0, 1), start.e.reshape(-1, 1)
        h = e
        for k, block in enumerate(network.blocks):
            dx, dh = plain_block(block, self.by_rows, self.by_columns, x, h)
            x, h = (dx, dh) if k == 0 else (x if dx is None else x + dx, h + dh)
        g = network.alpha * network.last(torch.cat((h, e), -1)).squeeze(-1)
        v = torch.where(self.row == self.column, e.squeeze(-1) * g.exp(), e.squeeze(-1) + g)
        v = (v * start.scale.reshape(-1).index_select(0, self.row)).unsqueeze(-1)
        X, B = X.flatten(0, 1), B.flatten(0, 1)
        Y = self.by_columns.sum(v * self.by_rows.gather(X))
        return (self.by_rows.sum(v * self.by_columns.gather(Y)) - B).square().sum()


def precorrector(run: Run, how: str) -> None:
    grid, batch = (4, 2) if run.quick else (32, 8)
    settings = PrecorrectorSettings(grid=grid, matrices=batch, batch=batch, aggregate=[how])
    settings.check()
    recipe = PrecorrectorRecipe(settings)
    network = recipe.model
    torch.nn.init.constant_(network.alpha, 0.1)  # zero would give no gradient to the rest
    (part,) = recipe.training.parts(list(range(batch)), *recipe._fixed)
    plain = Plain(network, part.start.pattern, batch)

    def of(loss: Callable[[], Tensor]) -> Callable[[], Task]:
        def run_once() -> list[Tensor | None]:
            network.zero_grad()
            loss().backward()
            return [p.grad for p in network.parameters()]

        return lambda: run_once

    columns = {
        OURS: of(lambda: recipe._part_loss(part).sum()),
        "torch": of(lambda: plain.loss(part.start, part.X, part.B)),
    }
    edges = batch * part.start.pattern.nnz
    dtype = next(network.parameters()).dtype
    run.row(f"precorrector with {how}, {batch} matrices", columns, way="step", dtype=dtype, nnz=edges)
