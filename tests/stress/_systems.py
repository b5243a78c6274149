"""Systems of every character for the harness `converged`: a batch of matrices on one pattern, of different
kinds, each with right-hand sides of different kinds, so that a NaN, a zero or a huge number of one system
stands beside ordinary ones in one solve."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import learnsolve as ls

# What a method is made for: a failure on these, where they are well conditioned, is a miss.
DEFINITE, SYMMETRIC = {"spd", "diagonal"}, {"spd", "diagonal", "indefinite"}
REGULAR = {*SYMMETRIC, "nonsymmetric"}
MATRICES = (
    *("spd", "spd", "spd", "spd", "diagonal", "indefinite", "indefinite", "indefinite", "nonsymmetric"),
    *("nonsymmetric", "nonsymmetric", "spd", "spd", "indefinite", "laplacian", "singular"),
    *("ill-conditioned", "laplacian", "singular", "skew", "zero", "zero rows", "nan", "inf", "inf far away"),
)
SOBER = ("spd", "spd", "diagonal", "indefinite", "nonsymmetric")
SCALES = (*("one",) * 9, "huge", "tiny", "subnormal")
RIGHT = (
    *("normal", "normal", "normal", "normal", "consistent", "consistent", "unit vector", "zero", "uneven"),
    *("nan", "inf", "huge", "tiny", "subnormal"),
)
PRECONDITIONERS = (
    *("none",) * 10,
    *("jacobi", "identity", "negative", "zero", "nan", "inf", "singular"),
    *("huge", "tiny", "nonsymmetric", "nan later", "noise"),
)
STARTS = (*("none",) * 10, "normal", "normal", "huge", "nan", "zeros")
EXTREMES = {  # huge, tiny, subnormal
    torch.float64: {"one": 1.0, "huge": 1e150, "tiny": 1e-150, "subnormal": 1e-311},
    torch.float32: {"one": 1.0, "huge": 1e18, "tiny": 1e-18, "subnormal": 1e-40},
}


@dataclass
class Systems:
    """A (B, n, n), b (B, n, k) and what they are; `kinds[i]` of member i, `right[i][j]` of its column j."""

    pattern: ls.SparsityPattern
    values: torch.Tensor  # (B, nnz), or (nnz,) for one matrix
    b: torch.Tensor  # (B, n, k), (n, k) or (n,)
    x0: torch.Tensor | None
    M: Any
    kinds: list[str]
    scales: list[str]
    right: list[list[str]]
    condition: list[float]
    told: dict[str, str]  # kind of M and x0

    @property
    def matrix(self) -> ls.CSR:
        return ls.CSR(self.values, self.pattern)

    def dense(self) -> np.ndarray:
        """(B, n, n) in extended precision."""
        rows, columns = place(self.pattern)
        values = self.values.detach().reshape(-1, self.pattern.nnz).numpy().astype(np.longdouble)
        A = np.zeros((len(values), *self.pattern.shape), np.longdouble)
        A[:, rows, columns] = values
        return A

    def columns(self, t: torch.Tensor) -> np.ndarray:
        """(B, n, k) in extended precision."""
        t = t.detach().unsqueeze(-1) if t.dim() == 1 else t.detach()
        return t.reshape(len(self.kinds), -1, t.shape[-1]).numpy().astype(np.longdouble)


@functools.cache
def pattern(n: int, density: float, seed: int) -> ls.SparsityPattern:
    """A symmetric pattern with its diagonal."""
    rng = np.random.default_rng((n, seed))
    full = rng.random((n, n)) < density
    D = torch.as_tensor((full | full.T | np.eye(n, dtype=bool)).astype(float))
    return ls.CSR.from_dense(D).pattern


@functools.cache
def place(P: ls.SparsityPattern) -> tuple[np.ndarray, np.ndarray]:
    crow, col = P.crow_indices.numpy(), P.col_indices.numpy()
    return np.repeat(np.arange(P.shape[0]), np.diff(crow)), col


def one_matrix(kind: str, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Of size one, on the pattern `mask`."""
    n = len(mask)
    N = rng.standard_normal((n, n)) * mask
    S = (N + N.T) / 2
    loose = np.diag(np.abs(S).sum(1))  # dominance: condition at most 2 (1 + t) / t for loose + t loose
    shift = loose + 0.5 * max(loose.max(), 1e-3) * np.eye(n)
    if kind in ("spd", "nan", "inf", "inf far away", "zero rows"):
        A = S + shift
    elif kind == "diagonal":
        A = np.diag(10 ** rng.uniform(-1, 1, n))
    elif kind == "indefinite":
        signs = np.where(np.arange(n) % 2, -1.0, 1.0)
        A = S + shift * signs
    elif kind == "nonsymmetric":
        A = N + np.diag(np.abs(N).sum(1) + 0.5 * max(np.abs(N).sum(1).max(), 1e-3))
    elif kind == "ill-conditioned":
        d = 10 ** rng.uniform(-rng.choice([4, 8]), 0, n)
        A = (S + shift) * d[:, None] * d
    elif kind == "laplacian":
        W = -np.abs(S) * (1 - np.eye(n))
        A = W - np.diag(W.sum(1))
    elif kind == "singular":
        A = S + shift
        A[n // 2] = A[0] * mask[n // 2]
        A[:, 0] = 0
    elif kind == "skew":
        A = N - N.T
    else:
        A = np.zeros((n, n))
    if kind == "zero rows":
        gone = rng.random(n) < 0.3
        A[gone], A[:, gone] = 0, 0
    if kind in ("nan", "inf", "inf far away"):
        i, j = (n - 1, n - 1) if kind == "inf far away" else np.argwhere(mask)[rng.integers(mask.sum())]
        A[i, j] = np.nan if kind == "nan" else rng.choice([-np.inf, np.inf])
    return A


def one_side(kind: str, A: np.ndarray, extremes: dict[str, float], rng: np.random.Generator) -> np.ndarray:
    n = len(A)
    b = rng.standard_normal(n)
    if kind == "consistent":
        with np.errstate(all="ignore"):
            b = A @ b
        b = np.where(np.isfinite(b), b, 1)
    elif kind == "unit vector":
        b = np.eye(n)[rng.integers(n)]
    elif kind == "zero":
        b = np.zeros(n)
    elif kind == "uneven":
        b = b * 10 ** rng.uniform(-10, 10, n)
    elif kind in ("nan", "inf"):
        b[rng.integers(n)] = np.nan if kind == "nan" else np.inf
    elif kind in extremes:
        b = b * extremes[kind]
    return b


class Later:
    """The identity, until its fourth call; then NaN."""

    linear = symmetric = True
    calls = 0

    @property
    def T(self) -> Later:
        return self

    def __call__(self, r: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return r * (torch.nan if self.calls > 3 else 1)


class Noise:
    """Not even linear, though it says so."""

    linear = symmetric = True

    @property
    def T(self) -> Noise:
        return self

    def __call__(self, r: torch.Tensor) -> torch.Tensor:
        return r.roll(1, -2) * torch.sign(r) if r.dim() > 1 else r.flip(0)


def preconditioner(kind: str, P: ls.SparsityPattern, A: np.ndarray, dtype, rng) -> Any:
    """One for all members, a CSR or a callable; A is that of the first, in double precision."""
    n = P.shape[0]
    d = np.ones(n)
    if kind == "none":
        return None
    if kind in ("nan later", "noise"):
        return Later() if kind == "nan later" else Noise()
    if kind == "jacobi":
        own = np.diag(A)
        d = np.divide(1, own, out=d, where=np.isfinite(own) & (np.abs(own) > 1e-30))
    elif kind in ("negative", "zero"):
        d = d * (-1 if kind == "negative" else 0)
    elif kind in ("nan", "inf", "singular"):
        d[rng.integers(n)] = {"nan": np.nan, "inf": np.inf, "singular": 0}[kind]
    elif kind in ("huge", "tiny"):
        d = d * EXTREMES[dtype][kind]
    rows, columns = place(P)
    values = np.where(rows == columns, d[rows], 0)
    if kind == "nonsymmetric":
        values = rng.standard_normal(P.nnz)
    return ls.CSR(torch.as_tensor(values).to(dtype), P)


def draw(rng: np.random.Generator) -> Systems:
    dtype = torch.float64 if rng.random() < 0.6 else torch.float32
    extremes = EXTREMES[dtype]
    n = int(rng.choice([1, 2, 3, 5, 8, 13, 20, 30]))
    P = pattern(n, float(rng.choice([0.15, 0.5, 1.0])), int(rng.integers(3)))
    rows, columns = place(P)
    mask = np.zeros((n, n), bool)
    mask[rows, columns] = True
    alone = rng.random() < 0.4  # one right-hand side, one matrix: the compiled steps
    members = 1 if alone or rng.random() < 0.3 else int(rng.integers(2, 25))
    k = 1 if alone else int(rng.integers(1, 5))
    sober = rng.random() < 0.3  # as a user has them: here a failure is a miss
    kinds = [str(rng.choice(SOBER if sober else MATRICES)) for _ in range(members)]
    scales = [str(rng.choice(SCALES)) for _ in range(members)]
    right = [[str(rng.choice(RIGHT)) for _ in range(k)] for _ in range(members)]
    values, sides, condition = [], [], []
    with np.errstate(all="ignore"):
        for kind, scale, its in zip(kinds, scales, right, strict=True):
            A = one_matrix(kind, mask, rng)
            condition.append(np.linalg.cond(A) if np.isfinite(A).all() else np.inf)
            A = A * extremes[scale]
            sides.append(np.stack([one_side(one, A, extremes, rng) for one in its], -1))
            values.append(A[rows, columns])
        first = A if members == 1 else np.zeros((n, n))
    V, b = torch.as_tensor(np.stack(values)).to(dtype), torch.as_tensor(np.stack(sides)).to(dtype)
    told = {"M": str(rng.choice(PRECONDITIONERS)), "x0": str(rng.choice(STARTS))}
    told = dict.fromkeys(told, "none") if sober else told
    M = preconditioner(told["M"], P, first, dtype, rng)
    x0 = None
    if told["x0"] != "none":
        x0 = torch.as_tensor(rng.standard_normal(b.shape)).to(dtype)
        if told["x0"] == "zeros":
            x0 = torch.zeros_like(x0)
        elif told["x0"] == "nan":
            x0[..., int(rng.integers(n)), :] = torch.nan
        else:
            x0 = x0 * extremes.get(told["x0"], 1.0)
    if members == 1:
        V, b, x0 = V[0], b[0], None if x0 is None else x0[0]
        if alone:
            b, x0 = b[:, 0], None if x0 is None else x0[:, 0]
    return Systems(P, V, b, x0, M, kinds, scales, right, condition, told)
