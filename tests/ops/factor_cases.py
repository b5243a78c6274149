"""Incomplete factors as plain loops over dictionaries, complete ones and what is computed from them by dense
torch, and the matrices that they are tested on."""

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import coordinates, densify, grid, on_pattern, pattern_of, power_law, random
from torch import Tensor

import learnsolve as ls

KINDS = ("ic", "mic", "ilu")
OMEGA = 0.6  # of "relaxed"
every_kind = pytest.mark.parametrize("kind", KINDS)
every_elimination = pytest.mark.parametrize("kind", [*KINDS, "relaxed"])


def library(kind: str, P: ls.SparsityPattern, v: Tensor, **keywords) -> Tensor:
    """Values of L and, for LU, of U behind them."""
    if kind == "relaxed":
        kind, keywords = "mic", {"omega": OMEGA} | keywords
    result = getattr(ls.ops, kind)(ls.CSR(v, P), **keywords)
    if kind == "ilu":
        return torch.cat([result.L.values, result.U.values], -1)
    return result.L.values


def loops(kind: str, P: ls.SparsityPattern, v: Tensor) -> Tensor:
    """The same, eliminating column after column (right-looking, where the library looks left), differentiable
    by torch."""
    rows, columns = coordinates(P)
    places = list(zip(rows.tolist(), columns.tolist(), strict=True))
    n = P.shape[0]
    if kind == "ilu":
        a = {place: v[..., e] for e, place in enumerate(places)}
        for k in range(n):
            for i in range(k + 1, n):
                if (i, k) not in a:
                    continue
                a[i, k] = a[i, k] / a[k, k]
                for j in range(k + 1, n):
                    if (i, j) in a and (k, j) in a:
                        a[i, j] = a[i, j] - a[i, k] * a[k, j]
        one = torch.ones_like(v[..., 0]) if n else None
        out = [one if i == j else a[i, j] for i, j in places if j <= i]
        out += [a[i, j] for i, j in places if j >= i]
    else:
        a = {(i, j): v[..., e] for e, (i, j) in enumerate(places) if j <= i}
        for k in range(n):
            a[k, k] = a[k, k].sqrt()
            below = [i for i in range(k + 1, n) if (i, k) in a]
            for i in below:
                a[i, k] = a[i, k] / a[k, k]
            for i in below:
                for j in below:
                    if j > i:
                        continue
                    product = a[i, k] * a[j, k]
                    if (i, j) in a:
                        a[i, j] = a[i, j] - product
                    elif kind != "ic":
                        product = product if kind == "mic" else OMEGA * product
                        a[i, i], a[j, j] = a[i, i] - product, a[j, j] - product
        out = [a[i, j] for i, j in places if j <= i]
    return torch.stack(out, -1) if out else v[..., :0]


def dominant(P: ls.SparsityPattern, batch: tuple = (), dtype=torch.float64, seed: int = 0) -> Tensor:
    """Values with a diagonal that outweighs its row and its column."""
    rows, columns = coordinates(P)
    rng = np.random.default_rng(seed)
    v = rng.uniform(-1, 1, (*batch, P.nnz))
    on = rows == columns
    count = np.bincount(rows[~on], minlength=P.shape[0]) + np.bincount(columns[~on], minlength=P.shape[0])
    v[..., on] = 1 + count[rows[on]] + rng.uniform(0, 1, (*batch, on.sum()))
    return torch.as_tensor(v).to(dtype)


def with_diagonal(S: scipy.sparse.sparray) -> scipy.sparse.csr_array:
    S = scipy.sparse.csr_array(S + scipy.sparse.eye_array(S.shape[0]))
    S.data[:] = 1
    return S


def _arrow(n: int) -> np.ndarray:
    """Eliminating the first column would fill the matrix."""
    D = np.eye(n)
    D[0] = D[:, 0] = 1
    return D


STRUCTURES = {
    "random": with_diagonal(random(9, 9, 0.3)),
    "random symmetric": with_diagonal(random(9, 9, 0.2) + random(9, 9, 0.2).T),
    "full": with_diagonal(scipy.sparse.csr_array(np.ones((6, 6)))),
    "tridiagonal": with_diagonal(
        scipy.sparse.diags_array([1.0, 1.0, 1.0], offsets=(-1, 0, 1), shape=(8, 8)).tocsr()
    ),
    "lower": with_diagonal(scipy.sparse.tril(random(7, 7, 0.5))),
    "upper": with_diagonal(scipy.sparse.triu(random(7, 7, 0.5))),
    "diagonal": with_diagonal(scipy.sparse.csr_array((5, 5))),
    "arrow": with_diagonal(scipy.sparse.csr_array(_arrow(7))),
    "5 points": with_diagonal(grid(5, 4)),
    "9 points": with_diagonal(grid(9, 4)),
    "7 points": with_diagonal(grid(7, 3)),
    "power law": with_diagonal(power_law(16)),
    "1 x 1": with_diagonal(scipy.sparse.csr_array((1, 1))),
    "0 x 0": scipy.sparse.csr_array((0, 0)),
}


def small(index: torch.dtype = torch.int64) -> ls.SparsityPattern:
    """5 x 5, not symmetric, with fill that stays and fill that is dropped: for derivative checks."""
    D = np.eye(5)
    for i, j in ((2, 0), (3, 0), (3, 1), (4, 1), (4, 2), (4, 3), (0, 2), (0, 3), (1, 4), (2, 3), (2, 4)):
        D[i, j] = 1
    return pattern_of(scipy.sparse.csr_array(D), index)


def other(index: torch.dtype = torch.int64) -> ls.SparsityPattern:
    """For `small`: with fill, (4, 0) and (3, 4) and more, and without its entries (3, 1) and (2, 4)."""
    D = np.eye(5)
    for i, j in ((2, 0), (3, 0), (4, 1), (4, 2), (4, 3), (0, 2), (0, 3), (1, 4), (2, 3)):
        D[i, j] = 1
    for i, j in ((4, 0), (3, 2), (1, 0), (3, 4), (0, 4), (2, 1)):
        D[i, j] = 1
    return pattern_of(scipy.sparse.csr_array(D), index)


SYMMETRIC = ("logdet", "selected_inverse")  # take no others
COMPLETE = ("cholesky", "ldlt", "lu", "logdet", "slogdet", "selected_inverse", "selected_inverse lu")


def complete_matrix(name: str, P: ls.SparsityPattern, v: Tensor) -> ls.CSR:
    A = ls.CSR(v, P)
    return A + A.T if name in SYMMETRIC else A


def complete_values(
    name: str, P: ls.SparsityPattern, v: Tensor, ordering: str | Tensor = "minimum_degree"
) -> Tensor:
    """All values of the result, one after the other."""
    operation, _, kind = name.partition(" ")
    A = complete_matrix(name, P, v)
    out = getattr(ls.ops, operation)(A, ordering=ordering, **({"kind": kind} if kind else {}))
    if isinstance(out, Tensor):
        return out.unsqueeze(-1)
    if isinstance(out, ls.CSR):
        return out.values
    if name == "slogdet":
        return torch.stack([out.sign, out.logabsdet], -1)
    return torch.cat([t.values if isinstance(t, ls.CSR) else t for t in out[:-1]], -1)


def dense_lu(A: Tensor) -> tuple[Tensor, Tensor]:
    """By outer products."""
    L, U = [], []
    for k in range(A.shape[-1]):
        L.append(A[..., :, k] / A[..., k, k, None])
        U.append(A[..., k, :])
        A = A - L[k].unsqueeze(-1) * U[k].unsqueeze(-2)
    return torch.stack(L, -1), torch.stack(U, -2)


def dense_complete(
    name: str, P: ls.SparsityPattern, v: Tensor, ordering: str | Tensor = "minimum_degree"
) -> Tensor:
    A = densify(P, v)
    if name in ("cholesky", "ldlt"):  # the lower triangle is read
        A = A.tril() + A.tril(-1).mT
    elif name in SYMMETRIC:
        A = A + A.mT
    if "det" in name:
        sign, logabsdet = torch.linalg.slogdet(A)
        return torch.stack([sign, logabsdet], -1) if name == "slogdet" else logabsdet.unsqueeze(-1)
    if "inverse" in name:
        Q = complete_matrix(name, P, dominant(P)).pattern
        return on_pattern(Q, torch.linalg.inv(A))
    *factors, p = getattr(ls.ops, name)(ls.CSR(dominant(P), P), ordering=ordering)
    A = A[..., p.long(), :][..., p.long()]
    L, U = dense_lu(A)
    D = torch.diagonal(U, dim1=-2, dim2=-1)
    out = on_pattern(factors[0].pattern, L / D.rsqrt().unsqueeze(-2) if name == "cholesky" else L)
    rest = {"cholesky": [], "ldlt": [D], "lu": [on_pattern(factors[-1].pattern, U) if name == "lu" else D]}
    return torch.cat([out, *rest[name]], -1)
