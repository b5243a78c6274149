"""The learned contestants: modules A -> M, all trained in the same way on small matrices of a family.

    loss = log ||x_K - x||_A / ||x||_A,  A x = b, b from N(0, I),  x_K: K iterations of conjugate gradients

b is white, so x is made of the modes of the smallest eigenvalues, which decide the iterations; conjugate
gradients reduce this norm in every step. Of systems that are not symmetric: 2-norms, and gmres.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from families import Family
from torch import Tensor

import learnsolve as ls
from benchmarks.contestants import is_symmetric

P = ls.preconditioners
COLUMNS = 4  # right-hand sides of a step
RATE = 5e-3


class FromMIC(P.PreCorrector):
    """PreCorrector that starts from MIC(0)."""

    def classical(self, A: ls.CSR) -> Any:
        return P.MIC(A, shift=1e-3, on_breakdown="shift")


class Shift(torch.nn.Module):
    """The shift of MIC on two levels of fill, predicted from features of the matrix."""

    def __init__(self) -> None:
        super().__init__()
        last = torch.nn.Linear(8, 1)
        self.net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), last).double()
        torch.nn.init.zeros_(last.weight)

    def forward(self, A: ls.CSR) -> Any:
        shift = (self.net(features(A)).squeeze(-1) - 7).exp()
        return P.MIC(A, level=2, shift=shift, on_breakdown="shift")


class Polynomial(torch.nn.Module):
    """The coefficients of a polynomial in D^-1 A."""

    def __init__(self, degree: int = 4) -> None:
        super().__init__()
        start = P.Polynomial.chebyshev(ls.problems.poisson((8, 8)), degree, lmin=0.02, lmax=2.0)
        self.interval, self.coefficients = (0.02, 2.0), torch.nn.Parameter(start.coefficients.clone())

    def forward(self, A: ls.CSR) -> Any:
        return P.Polynomial(A, self.coefficients, interval=self.interval)


class Schwarz(torch.nn.Module):
    """Two interface values: what is cut off a subdomain goes to its diagonal, c times; and a coarse space."""

    def __init__(self) -> None:
        super().__init__()
        self.c = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, A: ls.CSR) -> Any:
        pattern = P.learned.interface_pattern(A)
        plain = P.AdditiveSchwarz(A, coarse=True)
        cut = cut_off(A, plain.rows.numpy().copy(), np.asarray(plain.sizes))
        i = pattern.row_indices.long()
        diagonal = (i == pattern.col_indices.long()).to(A.dtype)
        local = ls.CSR(-torch.tanh(self.c) * torch.from_numpy(cut)[i] * diagonal, pattern)
        return P.AdditiveSchwarz(A, coarse=True, local=local)


def cut_off(A: ls.CSR, rows: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Sums of |a_ij| over columns outside of the subdomain, for all local rows."""
    S = abs(A.detach().to_scipy())
    part = np.repeat(np.arange(len(sizes)), sizes)
    members = sp.csr_array((np.ones(len(rows)), (rows, part)), (S.shape[0], len(sizes)))
    inside = sp.csr_array(S @ members)  # of a row and a subdomain: the sum of |a_ij| over its columns
    total = np.asarray(S.sum(1)).ravel()
    return total[rows] - np.asarray(inside[rows, part]).ravel()


FEATURES = 6


def features(A: ls.CSR) -> Tensor:
    """Of the scaled matrix, for any size: log n, entries of a row, and shares of its off-diagonal ones."""
    with torch.no_grad():
        row, column = A.pattern.row_indices.long(), A.pattern.col_indices.long()
        d, off = A.diagonal(), row != column
        v = (A.values / (d[row] * d[column]).abs().sqrt())[off]
        size, near = v.abs().sum().clamp(min=1e-300), (row - column).abs()[off] == 1
        n = torch.tensor(float(A.shape[0]), dtype=A.dtype)
        shares = v.clamp(min=0).sum() / size, v.abs()[near].sum() / size, v.square().sum() * len(v) / size**2
        return torch.stack((n.log() / 10, off.sum() / n / 10, *shares, d.abs().log().std() / 4))


def small(**options: Any) -> dict[str, Any]:
    return {"rounds": 1, "width": 8} | options


class Learned(NamedTuple):
    """make(family) is an untrained module; K of its loss; families that it takes."""

    make: Callable[[Family], torch.nn.Module]
    depth: int = 10
    takes: Callable[[Family], bool] = lambda family: family.symmetric


LEARNED: dict[str, Learned] = {
    "StencilFactor": Learned(lambda family: P.StencilFactor(family.diagonals), 16, lambda f: f.diagonals > 0),
    "RowFactor": Learned(lambda _: P.RowFactor(), 16),
    "PreCorrector of IC(0)": Learned(lambda _: P.PreCorrector(**small())),
    "PreCorrector of MIC(0)": Learned(lambda _: FromMIC(**small())),
    "NeuralIF": Learned(lambda _: P.NeuralIF(**small())),
    "NeuralAMG": Learned(lambda _: P.NeuralAMG(**small(max_coarse=50)), 2),
    "learned Schwarz": Learned(lambda _: Schwarz()),
    "learned polynomial": Learned(lambda _: Polynomial(), 4, lambda _: True),
    "learned shift of MIC fill 2": Learned(lambda _: Shift(), 12),
}


def train(
    network: torch.nn.Module, matrices: list[ls.CSR], depth: int, seconds: float, steps: int | None
) -> dict[str, Any]:
    """Adam until the processor seconds (or steps) are over. The rate falls as a cosine. The weights with
    the smallest loss of a pass are kept."""
    generator = torch.Generator().manual_seed(0)
    symmetric = is_symmetric(matrices[0].to_scipy())
    factors = [ls.factorize(A) for A in matrices]
    # What a network takes of a matrix: of multigrid, two grids.
    start = getattr(network, "start", lambda A: A)
    with torch.no_grad():
        inputs = [start(A) for A in matrices]
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    kept, done, spent, losses, passes = None, 0, 0.0, [], []
    begin = time.process_time()
    while (share := done / steps if steps else spent / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * (0.51 + 0.49 * math.cos(math.pi * share))
        which = done % len(matrices)
        A, M, factor = matrices[which], inputs[which], factors[which]
        b = torch.randn(A.shape[0], COLUMNS, dtype=A.dtype, generator=generator)
        loss = error(A, b, factor(b), network(M), depth, symmetric)
        optimizer.zero_grad()
        loss.backward()
        size = torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        losses.append(loss.item())
        done += 1
        if done % len(matrices) == 0:
            passes.append(sum(losses[-len(matrices) :]) / len(matrices))
            if passes[-1] == min(passes):
                kept = {k: v.clone() for k, v in network.state_dict().items()}
        if (
            size.isfinite()
        ):  # else the factor's solves have overflowed: its off-diagonal entries are too large
            optimizer.step()
        spent = time.process_time() - begin
    if kept is not None:
        network.load_state_dict(kept)
    ends = {"first loss": passes[0], "loss": min(passes)} if passes else {}
    return {"training s": spent, "steps": done, **ends}


def error(A: ls.CSR, b: Tensor, x: Tensor, M: Any, depth: int, symmetric: bool) -> Tensor:
    method = ls.solvers.cg if symmetric else ls.solvers.gmres
    e = method(A, b, M=M, iterations=depth, gradient="unrolled").x - x
    if symmetric:
        return (ls.ops.quadratic_form(A, e).sum() / ls.ops.quadratic_form(A, x).sum()).log() / 2
    return (e.square().sum() / x.square().sum()).log() / 2
