"""Systems of every character for the harness `converged`: a batch of matrices on one pattern, of different
kinds, each with right-hand sides of different kinds, so that a NaN, a zero or a huge number of one system
stands beside ordinary ones in one solve."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import learnsolve as ls
from learnsolve.solvers import Status
from learnsolve.solvers.core import advance
from learnsolve.solvers.options import KRYLOV

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


def length(v: Any) -> np.longdouble:
    return np.sqrt((v * v).sum())


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


# --- columns beside others against the same columns alone ---

LEAST_SQUARES = ("lsqr", "lsmr")


def beside(seed: int, counts: Counter) -> Iterator[str]:
    """1 to 33 columns of a system for which the method is made: each gets what it gets alone, to the bit
    where columns have loops of their own, also in tiles, which large matrices have."""
    rng = np.random.default_rng((seed, 33))
    name = str(rng.choice((*KRYLOV, *LEAST_SQUARES, "jacobi", "chebyshev")))
    n, k = int(rng.choice([3, 8, 20, 30])), int(rng.integers(1, 34))
    P = pattern(n, float(rng.choice([0.15, 0.5])), int(rng.integers(3)))
    rows, places = place(P)
    mask = np.zeros((n, n), bool)
    mask[rows, places] = True
    kind = "nonsymmetric" if name in ("bicgstab", "gmres", "fgmres", *LEAST_SQUARES) else "spd"
    D = one_matrix(kind, mask, rng)
    A = ls.CSR(torch.as_tensor(D[rows, places]), P)
    b = torch.as_tensor(rng.standard_normal((n, k)) * (rng.random(k) > 0.1))
    x0 = torch.as_tensor(rng.standard_normal((n, k))) if rng.random() < 0.3 else None
    keywords: dict[str, Any] = {"atol": 1e-10, "btol": 1e-10} if name in LEAST_SQUARES else {"rtol": 1e-8}
    M = str(rng.choice(["none", "Jacobi", "ILU"])) if name in KRYLOV else "none"
    if name == "jacobi":
        keywords = {"iterations": int(rng.integers(1, 12))}
    elif name == "chebyshev":
        low, *_, high = np.linalg.eigvalsh((D + D.T) / 2)
        keywords |= {"lmin": low, "lmax": high}
    elif M != "none":
        symmetric = name in ("cg", "fcg", "minres") and M == "ILU"
        keywords["M"] = getattr(ls.preconditioners, "IC" if symmetric else M)(A)
    solve, told = getattr(ls.solvers, name), f"{name}, {k} columns, n = {n}, M {M}, beside({seed})"
    rows_of_tiles = 1 if rng.random() < 0.5 else advance._MANY_ROWS
    with patch.multiple(advance, _MANY_ROWS=rows_of_tiles, _ROWS=rows_of_tiles):
        block = solve(A, b, x0, **keywords)
    counts["columns"] += k
    exact = (name == "cg" and k < 4) or (name in KRYLOV and block.backend == "compiled" and name != "cg")
    for j in range(k):
        one = solve(A, b[:, j].contiguous(), None if x0 is None else x0[:, j].contiguous(), **keywords)
        x, y = block.x[:, j], one.x
        if name != "jacobi" and block.statuses[j] is not one.status:
            yield f"{told}: column {j} is {block.statuses[j].name}, alone {one.status.name}"
        tolerance = 0 if exact else 1e-13 if name == "jacobi" else 1e-5
        if not ((x - y).abs().max() <= tolerance * y.abs().max()):
            yield f"{told}: column {j} is off by {(x - y).abs().max():.2g} of {y.abs().max():.2g}"
        tail = block.residual_norms[one.iterations :, j]
        if not bool((tail - tail[0] == 0).all()) and exact:
            yield f"{told}: the history of column {j} goes on after its stop"


# --- near the border between regular and singular, and near that between symmetric and not ---

KINDS = ("shifted", "shifted", "rounded", "exact", "grounded", "zero diagonal", "wrong null space")
COLUMNS = (None, None, 0, 1, 2, 3, 5, 8, 16, 17, 31, 32, 33)


def near(seed: int, counts: Counter) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(KINDS))
    dtype = torch.float32 if rng.random() < 0.5 else torch.float64
    A, shift = _near_singular(kind, dtype, rng)
    counts["near singular or symmetric"] += 1
    case = _wrong_null_space if kind == "wrong null space" else _solve
    told = f"{kind}, {str(dtype)[6:]}, n = {A.shape[0]}, shift {shift:.2g}"
    for fault in case(kind, A, shift, rng):
        yield f"converged, _systems.near({seed}, Counter()): {fault} ({told})"


def _near_singular(kind: str, dtype: torch.dtype, rng: np.random.Generator) -> tuple[ls.CSR, float]:
    """With its shift, relative to its largest entry. Its graph is connected."""
    n = int(rng.choice([2, 3, 5, 8, 20, 60]))
    ends = np.stack([np.arange(n - 1), np.arange(1, n)])
    ends = np.concatenate([ends, rng.integers(n, size=(2, int(rng.integers(3 * n))))], 1)
    ends = torch.as_tensor(ends[:, ends[0] != ends[1]])
    weights = rng.integers(1, 9, ends.shape[1]).astype(float)
    if kind in ("rounded", "wrong null space") or rng.random() < 0.3:
        weights = 10 ** rng.uniform(-3, 0, ends.shape[1])
    weights = torch.as_tensor(weights).to(dtype)
    L = ls.problems.graph_laplacian(ends, weights, n=n, both_directions=False)
    eps, shift = torch.finfo(dtype).eps, 0.0
    if kind in ("shifted", "grounded", "wrong null space"):
        shift = float(2 ** rng.uniform(np.log2(eps) if kind != "wrong null space" else -3, 0))
        where = np.ones(n) if kind != "grounded" else np.eye(n)[rng.integers(n)]
        added = torch.as_tensor(shift * where * float(L.values.max())).to(dtype)
        L = L + ls.ops.diag(added)
    if kind == "zero diagonal":
        on = L.pattern.row_indices == L.col_indices
        noise = 1 + 64 * eps * torch.as_tensor(rng.uniform(-1, 1, L.nnz)).to(dtype)
        L = L.with_values(torch.where(on, 0, L.values * noise))
    most = {torch.float32: 25, torch.float64: 200}[dtype]
    power = rng.uniform(-most, most) if rng.random() < 0.3 or kind == "wrong null space" else 0.0
    return L * 2.0 ** round(power * 3.3), shift


def _special(t: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """t, in a third of the cases with torch's neg bit."""
    return torch._neg_view(-t) if rng.random() < 0.3 else t


def _wrong_null_space(kind: str, A: ls.CSR, shift: float, rng: np.random.Generator) -> Iterator[str]:
    name = str(rng.choice(["cg", "minres", "gmres", "bicgstab"]))
    turned: dict[str, Any] = {} if name in ("cg", "minres") else {"transpose": lambda x: A @ x}
    for of, keywords in ((A, {}), (lambda x: A @ x, turned)):
        b = torch.as_tensor(rng.standard_normal(A.shape[0])).to(A.dtype)
        try:
            solution = getattr(ls.solvers, name)(of, b, null_space="constants", **keywords)
        except ValueError as error:
            if "is not in the null space" not in str(error):
                yield f"{name} raised {error}"
        else:
            yield f"{name} took constants for null vectors, {solution.status.name}"


def _solve(kind: str, A: ls.CSR, shift: float, rng: np.random.Generator) -> Iterator[str]:
    n, eps, rtol = A.shape[0], np.longdouble(torch.finfo(A.dtype).eps), 1e-5
    D = A.to_dense().numpy().astype(np.longdouble)
    k = COLUMNS[rng.integers(len(COLUMNS))]
    b = rng.standard_normal((n, 1 if k is None else k))
    if kind in ("exact", "rounded") or rng.random() < 0.5:
        b = b - b.mean(0)
    elif rng.random() < 0.3:
        b = D @ np.ones_like(b)
    else:
        b = b * float(np.abs(D).max())
    b = torch.as_tensor(np.asarray(b, dtype=float)).to(A.dtype)
    b = (b[:, 0] if k is None else b).requires_grad_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            solution = ls.solve(A.with_values(_special(A.values, rng)), _special(b, rng), rtol=rtol)
            g = torch.as_tensor(rng.standard_normal(solution.x.shape)).to(A.dtype)
            g = g - g.mean(0) if rng.random() < 0.3 else g
            (y,) = torch.autograd.grad(solution.x, b, _special(g, rng))
        except Exception as error:
            if "singular" not in str(error) or kind == "shifted":
                yield f"raised {type(error).__name__}: {error}"
            return
    said = " ".join(str(w.message) for w in caught)
    size, sums = np.abs(D).sum(1), D.sum(1)
    taken, nearly = solution.reason.startswith("null_space"), "nearly singular" in said
    if taken and (np.abs(sums) > 8 * np.sqrt(n) * eps * size).any():
        yield f"taken for singular, with sums up to {float((np.abs(sums) / size).max()):.2g} of the entries"
    if not taken and not sums.any() and not D.sum(0).any():
        yield "not taken for singular, though all sums are zero"
    if kind == "zero diagonal" and not A.is_symmetric():
        yield "not symmetric"
    at = slice(None) if k is not None else (slice(None), None)
    X, B, Y, G = (t.detach().numpy()[at].astype(np.longdouble) for t in (solution.x, b, y, g))
    for j, status in enumerate(solution.statuses if X.size else ()):
        slack = (n + 4) * eps * length(np.abs(D) @ np.abs(X[:, j]) + np.abs(B[:, j]))
        if status is Status.CONVERGED and not length(B[:, j] - D @ X[:, j]) <= (
            1.02 * rtol * length(B[:, j]) + slack
        ):
            yield f"column {j} CONVERGED with a residual of {float(length(B[:, j] - D @ X[:, j])):.2g}"
    if taken and not sums.any():  # the gradient of A^+ b
        G = G - G.mean(0)
    adjoint = solution.adjoint
    for j in range(Y.shape[1]):
        exact = not nearly if adjoint is None else adjoint.statuses[j] is Status.CONVERGED
        if not exact:
            if "nearly singular" not in said and "adjoint solve" not in said:
                yield f"the gradient of column {j} is not exact, and nothing says so"
            continue
        left, slack = length(G[:, j] - D.T @ Y[:, j]), length(np.abs(D) @ np.abs(Y[:, j]) + np.abs(G[:, j]))
        if not left <= 1.02 * rtol * length(G[:, j]) + 64 * n * eps * slack:
            yield f"the gradient of column {j} solves its system to {float(left):.2g} without a warning"
