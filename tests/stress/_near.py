"""Systems near the border between regular and singular, and near that between symmetric and not, for the
harness `converged`: through `ls.solve`, with gradients, in up to 33 columns."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import learnsolve as ls
from learnsolve.solvers import Status

KINDS = ("shifted", "shifted", "rounded", "exact", "grounded", "zero diagonal", "wrong null space")
COLUMNS = (None, None, 0, 1, 2, 3, 5, 8, 16, 17, 31, 32, 33)


def faults(seed: int, counts: Counter) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(KINDS))
    dtype = torch.float32 if rng.random() < 0.5 else torch.float64
    A, shift = _matrix(kind, dtype, rng)
    counts["near singular or symmetric"] += 1
    case = _wrong_null_space if kind == "wrong null space" else _solve
    told = f"{kind}, {str(dtype)[6:]}, n = {A.shape[0]}, shift {shift:.2g}"
    for fault in case(kind, A, shift, rng):
        yield f"converged, _near.faults({seed}, Counter()): {fault} ({told})"


def _matrix(kind: str, dtype: torch.dtype, rng: np.random.Generator) -> tuple[ls.CSR, float]:
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
    taken, nearly = solution.selected.startswith("null_space"), "nearly singular" in said
    if taken and (np.abs(sums) > 8 * np.sqrt(n) * eps * size).any():
        yield f"taken for singular, with sums up to {float((np.abs(sums) / size).max()):.2g} of the entries"
    if not taken and not sums.any() and not D.sum(0).any():
        yield "not taken for singular, though all sums are zero"
    if kind == "zero diagonal" and not A.is_symmetric():
        yield "not symmetric"
    at = slice(None) if k is not None else (slice(None), None)
    X, B, Y, G = (t.detach().numpy()[at].astype(np.longdouble) for t in (solution.x, b, y, g))
    for j, status in enumerate(solution.statuses if X.size else ()):
        slack = (n + 4) * eps * _length(np.abs(D) @ np.abs(X[:, j]) + np.abs(B[:, j]))
        if status is Status.CONVERGED and not _length(B[:, j] - D @ X[:, j]) <= (
            1.02 * rtol * _length(B[:, j]) + slack
        ):
            yield f"column {j} CONVERGED with a residual of {float(_length(B[:, j] - D @ X[:, j])):.2g}"
    if taken and not sums.any():  # the gradient of A^+ b
        G = G - G.mean(0)
    adjoint = solution.adjoint
    for j in range(Y.shape[1]):
        exact = not nearly if adjoint is None else adjoint.statuses[j] is Status.CONVERGED
        if not exact:
            if "nearly singular" not in said and "adjoint solve" not in said:
                yield f"the gradient of column {j} is not exact, and nothing says so"
            continue
        left, slack = _length(G[:, j] - D.T @ Y[:, j]), _length(np.abs(D) @ np.abs(Y[:, j]) + np.abs(G[:, j]))
        if not left <= 1.02 * rtol * _length(G[:, j]) + 64 * n * eps * slack:
            yield f"the gradient of column {j} solves its system to {float(left):.2g} without a warning"


def _length(v: np.ndarray) -> np.longdouble:
    return np.sqrt((v * v).sum())
