"""A network that corrects prolongations of grids, and how it and that of graphs are trained."""

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

import learnsolve as ls
from learnsolve.preconditioners import AMG, Hierarchy

ROUNDS, WIDTH = 3, 16
RATE, CYCLES, COLUMNS = 3e-3, 3, 8


class Level(NamedTuple):
    """A matrix, or a batch on one pattern, its classical prolongation and what the network reads.

    Attributes
    ----------
    A, P : CSR
    places : positions of P's entries (i, c) among those of A, as (i, the fine number of c)
    fine : 1 for entries of P in rows of fine points, 0 for the ones of coarse points
    x, e : features of points (..., n, features) and of entries of A (..., nnz, features)
    """

    A: ls.CSR
    P: ls.CSR
    places: Tensor
    fine: Tensor
    x: Tensor
    e: Tensor


class Network(torch.nn.Module):
    """p_ij = p^_ij exp(g_ij), rows scaled to the sums they had: untrained, the classical P."""

    def __init__(self, node_features: int, edge_features: int, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        sizes = [(node_features, edge_features), *[(WIDTH, WIDTH)] * (ROUNDS - 1)]
        self.blocks = torch.nn.ModuleList(
            ls.nn.GraphNetBlock(
                nodes,
                edges,
                node_out=WIDTH if number < ROUNDS else 0,
                edge_out=WIDTH,
                hidden=(WIDTH,),
                rows="mean",
                columns="mean",
            )
            for number, (nodes, edges) in enumerate(sizes, 1)
        )
        self.last = torch.nn.Linear(WIDTH, 1)
        torch.nn.init.zeros_(self.last.weight)
        torch.nn.init.zeros_(self.last.bias)

    def prolongation(self, level: Level) -> ls.CSR:
        pattern, P = level.A.pattern, level.P
        x, e = self.blocks[0](pattern, level.x.float(), level.e.float())
        for block in list(self.blocks)[1:]:
            dx, de = block(pattern, x, e)
            x, e = x + dx if dx.shape[-1] else x, e + de
        g = self.last(e).squeeze(-1).to(P.dtype)[..., level.places]
        corrected = P.with_values(P.values * (g * level.fine).exp())
        return corrected.scale_rows(row_sums(P) / row_sums(corrected))


def row_sums(P: ls.CSR) -> Tensor:
    """1 for a row without entries, or whose sum is zero."""
    sums = P.sum(1)
    return torch.where(sums == 0, torch.ones_like(sums), sums)


class Sample:
    """A level, and random errors of which all modes have the same energy: N(0, A^-1)."""

    def __init__(self, level: Any):
        self.level, self.L = level, torch.linalg.cholesky(level.A.to_dense())

    def errors(self, generator: torch.Generator) -> Tensor:
        shape = (*self.L.shape[:-1], COLUMNS)
        noise = torch.randn(shape, dtype=self.L.dtype, generator=generator)
        return torch.linalg.solve_triangular(self.L.mT, noise, upper=True)

    def loss(self, network: Any, generator: torch.Generator) -> Tensor:
        """(tr(E^2K) / n)^(1/2K) by random vectors, E the error propagator of two grids, K cycles."""
        A, error = self.level.A, self.errors(generator)
        M = AMG(A, hierarchy=Hierarchy([network.prolongation(self.level)]), symmetric=True)
        count = error.shape[-1] * error.shape[-2]
        error = ls.analysis.ErrorPropagator(A, M, sweeps=CYCLES)(error)
        return (ls.ops.quadratic_form(A, error, symmetric=True) / count).pow(1 / (2 * CYCLES)).mean()


def train(
    network: torch.nn.Module, samples: list[Sample], validation: list[Sample], steps: int
) -> list[dict]:
    """Ends with the weights whose loss on the validation samples is smallest, if there are any."""
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, RATE / 100)
    generator, order, history, total = torch.Generator().manual_seed(1), [], [], 0.0
    best, kept = math.inf, None
    for step in range(1, steps + 1):
        if not order:
            order = torch.randperm(len(samples), generator=generator).tolist()
        loss = samples[order.pop()].loss(network, generator)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += float(loss.detach())
        if step % len(samples) == 0 or step == steps:
            row = {"step": step, "loss": total / (step % len(samples) or len(samples))}
            if validation:
                with torch.no_grad():
                    same = torch.Generator().manual_seed(2)
                    losses = [float(sample.loss(network, same)) for sample in validation]
                row["validation"] = sum(losses) / len(losses)
                if row["validation"] < best:
                    best, kept = row["validation"], copy.deepcopy(network.state_dict())
            history.append(row)
            total = 0.0
    if kept is not None:
        network.load_state_dict(kept)
    return history
