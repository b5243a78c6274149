"""Complete factors, determinants and entries of inverses, and the same by dense torch."""

import torch
from ops.incomplete_cases import dominant
from reference import densify, on_pattern
from torch import Tensor

import learnsolve as ls

SYMMETRIC = ("logdet", "selected_inverse")  # take no others
NAMES = ("cholesky", "ldlt", "lu", "logdet", "slogdet", "selected_inverse", "selected_inverse lu")


def matrix(name: str, P: ls.SparsityPattern, v: Tensor) -> ls.CSR:
    A = ls.CSR(v, P)
    return A + A.T if name in SYMMETRIC else A


def library(name: str, P: ls.SparsityPattern, v: Tensor, ordering: str | Tensor = "minimum_degree") -> Tensor:
    """All values of the result, one after the other."""
    operation, _, kind = name.partition(" ")
    A = matrix(name, P, v)
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


def dense(name: str, P: ls.SparsityPattern, v: Tensor, ordering: str | Tensor = "minimum_degree") -> Tensor:
    A = densify(P, v)
    if name in ("cholesky", "ldlt"):  # the lower triangle is read
        A = A.tril() + A.tril(-1).mT
    elif name in SYMMETRIC:
        A = A + A.mT
    if "det" in name:
        sign, logabsdet = torch.linalg.slogdet(A)
        return torch.stack([sign, logabsdet], -1) if name == "slogdet" else logabsdet.unsqueeze(-1)
    if "inverse" in name:
        Q = matrix(name, P, dominant(P)).pattern
        return on_pattern(Q, torch.linalg.inv(A))
    *factors, p = getattr(ls.ops, name)(ls.CSR(dominant(P), P), ordering=ordering)
    A = A[..., p.long(), :][..., p.long()]
    L, U = dense_lu(A)
    D = torch.diagonal(U, dim1=-2, dim2=-1)
    out = on_pattern(factors[0].pattern, L / D.rsqrt().unsqueeze(-2) if name == "cholesky" else L)
    rest = {"cholesky": [], "ldlt": [D], "lu": [on_pattern(factors[-1].pattern, U) if name == "lu" else D]}
    return torch.cat([out, *rest[name]], -1)
