"""Message passing on the graph of a matrix, compared with torch's gathers and scatters (docs/networks.md).

    python benchmarks/message_passing.py [--side 100] [--features 1,8,16,32] [--threads 1] [--json FILE]

Each operation on the 5-point pattern of side^2 rows, by rows and by columns, forward ("fwd") and its backward
alone ("bwd"), and one training step of a `GraphNetBlock` with each aggregation. The comparison is
`index_select`, `index_add` and `scatter_reduce` of torch, which PyTorch Geometric uses. The results of both
are compared first. Medians in microseconds. "bytes": the time of a copy that reads and writes as much as the
operation must (features of entries; those of nodes are a fifth), measured in the same run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from timing import medians, table, write
from torch import Tensor

import learnsolve as ls

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-11}
# Passes over the features of entries, read or written: forward, backward.
PASSES = {"gather": (1, 1), "sum": (1, 1), "max": (1, 1), "softmax": (2, 3)}


class Scatters:
    """The operations by torch alone, for indices of the segments."""

    def __init__(self, index: Tensor, n: int):
        self.index, self.n = index, n
        self.counts = torch.bincount(index, minlength=n).clamp(min=1).unsqueeze(-1)

    def zeros(self, e: Tensor) -> Tensor:
        return e.new_zeros(self.n, e.shape[-1])

    def gather(self, x: Tensor) -> Tensor:
        return x.index_select(0, self.index)

    def sum(self, e: Tensor) -> Tensor:
        return self.zeros(e).index_add(0, self.index, e)

    def max(self, e: Tensor) -> Tensor:
        places = self.index.unsqueeze(-1).expand(e.shape)
        return self.zeros(e).scatter_reduce(0, places, e, "amax", include_self=False)

    def softmax(self, e: Tensor) -> Tensor:
        y = (e - self.gather(self.max(e.detach()))).exp()
        return y / self.gather(self.sum(y))


def ours(P: ls.SparsityPattern, by: str) -> dict[str, Callable[[Tensor], Tensor]]:
    ops = ls.ops
    every = {
        "gather": ops.gather,
        "sum": ops.segment_sum,
        "max": ops.segment_max,
        "softmax": ops.segment_softmax,
    }
    return {name: lambda t, f=f: f(t, P, by) for name, f in every.items()}


def agree(a: Tensor, b: Tensor, what: str) -> None:
    tolerance = TOLERANCE[a.dtype] * max(1.0, b.abs().max().item())
    if not torch.allclose(a, b, rtol=0, atol=tolerance):
        raise SystemExit(f"{what}: the results differ by {(a - b).abs().max().item():.3g}")


def operations(P: ls.SparsityPattern, by: str, f: int, dtype: torch.dtype, seconds: float) -> list[dict]:
    index = (P.row_indices if by == "row" else P.col_indices).long()
    scatters, rows = Scatters(index, P.shape[0]), []
    e = torch.randn(P.nnz, f, dtype=dtype)
    into = torch.empty_like(e)
    for name, operation in ours(P, by).items():
        t = torch.randn(P.shape[0], f, dtype=dtype) if name == "gather" else e.clone()
        t.requires_grad_()
        functions: dict[str, Callable[[], object]] = {"copy": lambda: into.copy_(e)}
        outs = {}
        for who, g in (("learnsolve", operation), ("torch", getattr(scatters, name))):
            out = outs[who] = g(t)
            cotangent = torch.ones_like(out)
            functions[f"{who} fwd"] = lambda g=g, t=t: g(t)
            functions[f"{who} bwd"] = lambda out=out, t=t, c=cotangent: torch.autograd.grad(
                out, t, c, retain_graph=True
            )
        agree(outs["learnsolve"], outs["torch"], f"{name} {by}")
        times = medians(functions, seconds)
        row: dict = {"operation": f"{name} {by}", "dtype": str(dtype).removeprefix("torch."), "f": f}
        for k, way in enumerate(("fwd", "bwd")):
            mine, theirs = times[f"learnsolve {way}"], times[f"torch {way}"]
            row |= {way: 1e6 * mine, f"torch {way}": 1e6 * theirs, f"{way} ratio": mine / theirs}
            row[f"{way} / bytes"] = mine / (times["copy"] * PASSES[name][k] / 2)
        rows.append(row)
    return rows


def plain_block(block: ls.nn.GraphNetBlock, by_rows: Scatters, by_columns: Scatters, x: Tensor, e: Tensor):
    """The same block with joined features, as PyTorch Geometric's MetaLayer has it."""

    def aggregate(e: Tensor, how: str, s: Scatters) -> Tensor:
        if how == "mean":
            return s.sum(e) / s.counts
        return s.sum(s.softmax(e) * e) if how == "softmax" else getattr(s, how)(e)

    e = block.edge_mlp(torch.cat((by_rows.gather(x), by_columns.gather(x), e), -1))
    if block.node_mlp is None:
        return None, e
    parts = [aggregate(e, how, by_rows) for how in block.rows]
    parts += [aggregate(e, how, by_columns) for how in block.columns]
    return block.node_mlp(torch.cat((x, *parts), -1)), e


def steps(P: ls.SparsityPattern, f: int, dtype: torch.dtype, seconds: float) -> list[dict]:
    by_rows, by_columns = (Scatters(i.long(), P.shape[0]) for i in (P.row_indices, P.col_indices))
    x, e = torch.randn(P.shape[0], f, dtype=dtype), torch.randn(P.nnz, f, dtype=dtype)
    rows = []
    for how in ("sum", "max", "softmax"):
        torch.manual_seed(0)
        block = ls.nn.GraphNetBlock(f, f, hidden=(f,), rows=how, columns=how, dtype=dtype)

        def step(forward: Callable, block: ls.nn.GraphNetBlock = block) -> Tensor:
            block.zero_grad()
            a, b = forward()
            loss = a.square().mean() + b.square().mean()
            loss.backward()
            return loss.detach()

        functions: dict[str, Callable[[], object]] = {
            "ours": lambda b=block, step=step: step(lambda: b(P, x, e)),
            "torch": lambda b=block, step=step: step(lambda: plain_block(b, by_rows, by_columns, x, e)),
        }
        agree(functions["ours"](), functions["torch"](), f"step with {how}")  # type: ignore[arg-type]
        times = medians(functions, seconds)
        rows.append(
            {
                "training step": how,
                "dtype": str(dtype).removeprefix("torch."),
                "f": f,
                "step": 1e6 * times["ours"],
                "torch": 1e6 * times["torch"],
                "ratio": times["ours"] / times["torch"],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--side", type=int, default=100, help="grid points along each side")
    parser.add_argument("--features", default="1,8,16,32", help="numbers of features")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.2, help="for each measurement")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    P = ls.problems.poisson((options.side, options.side)).pattern
    done, block = [], []
    for dtype in (torch.float32, torch.float64):
        for f in (int(f) for f in options.features.split(",")):
            for by in ("row", "column"):
                done += operations(P, by, f, dtype, options.seconds)
            block += steps(P, f, dtype, options.seconds)
    print(f"{P.shape[0]} nodes, {P.nnz} edges, {options.threads} thread(s)\n{table(done)}\n\n{table(block)}")
    if options.json:
        write(options.json, "message_passing", done + block, threads=options.threads, edges=P.nnz)


if __name__ == "__main__":
    main()
