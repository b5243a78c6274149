"""Preconditioned conjugate gradients on dense matrices, by torch alone, and systems to test the compiled ones
on."""

from typing import NamedTuple

import scipy.sparse
import torch
from reference import coordinates, densify, grid, normal, pattern_of
from torch import Tensor

import learnsolve as ls
from learnsolve.ops.core import pcg_unfused
from learnsolve.ops.pcg import KINDS, pcg_iterations

# Batch axes of the values, of m; shape of b for n rows.
SHAPES = {
    "vector": ((), (), lambda n: (n,)),
    "one column": ((), (), lambda n: (n, 1)),
    "columns": ((), (), lambda n: (n, 3)),
    "many columns": ((), (), lambda n: (n, 13)),
    "batch of b": ((), (), lambda n: (2, n, 2)),
    "batch of values": ((2,), (), lambda n: (2, n, 1)),
    "batch of m": ((), (2,), lambda n: (2, n, 2)),
    "batch of all": ((2,), (2,), lambda n: (2, n, 3)),
}


class System(NamedTuple):
    """Tensors that learn, and what stays."""

    values: Tensor
    m: Tensor | None
    b: Tensor
    x0: Tensor | None
    P: ls.SparsityPattern
    factor: ls.SparsityPattern | None
    kind: str

    @property
    def inputs(self) -> list[Tensor]:
        return [t for t in self[:4] if t is not None]

    def with_inputs(self, *inputs: Tensor) -> "System":
        rest = iter(inputs)
        return self._replace(
            **{name: next(rest) for name in self._fields[:4] if getattr(self, name) is not None}
        )

    def leaves(self) -> "System":
        return self.with_inputs(*(t.detach().clone().requires_grad_() for t in self.inputs))


def lower(P: ls.SparsityPattern) -> ls.SparsityPattern:
    """The lower triangle of P."""
    S = ls.CSR(torch.ones(P.nnz, dtype=torch.float64), P).to_scipy()
    return pattern_of(scipy.sparse.tril(S).tocsr(), P.dtype)


def system(
    kind: str,
    shape: str = "vector",
    S=None,
    dtype: torch.dtype = torch.float64,
    index: torch.dtype = torch.int32,
    start: bool = True,
    symmetric: bool = True,
    seed: int = 0,
) -> System:
    """A matrix with the pattern S, symmetric positive definite or nearly, L on its lower triangle."""
    P = pattern_of(grid(5, 5) if S is None else S, index)
    n = P.shape[0]
    of_values, of_m, of_b = SHAPES[shape]
    rows, columns = (torch.as_tensor(t) for t in coordinates(P))
    v = 0.2 * normal((*of_values, P.nnz), seed=seed + 1) - 0.5
    if symmetric:
        v = 0.5 * (v + v[..., P.transpose_permutation.long()])
    v = torch.where(rows == columns, v.abs() + 5, v)
    factor = m = None
    if kind == "diagonal":
        m = 0.2 + 0.1 * normal((*of_m, n), seed=seed + 2).abs()
    elif kind != "none":
        factor = lower(P)
        rows, columns = (torch.as_tensor(t) for t in coordinates(factor))
        m = 0.1 * normal((*of_m, factor.nnz), seed=seed + 2)
        m = torch.where(rows == columns, m.abs() + (0.6 if kind == "product" else 2), m).to(dtype)
    b = normal(of_b(n), dtype, seed=seed + 3)
    x0 = normal(of_b(n), dtype, seed=seed + 4) if start else None
    return System(v.to(dtype), None if m is None else m.to(dtype), b, x0, P, factor, kind)


def fused(s: System, iterations: int, checkpointed: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    return pcg_iterations(
        s.values, s.b, s.x0, s.P, iterations, kind=s.kind, m=s.m, factor=s.factor, checkpointed=checkpointed
    )


def unfused(s: System, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    empty = s.values.new_empty(0)
    return pcg_unfused.unfused(
        s.values, empty if s.m is None else s.m, s.b, empty if s.x0 is None else s.x0,
        s.P, s.factor, KINDS.index(s.kind), iterations, s.x0 is None,
    )  # fmt: skip


def dense(s: System, iterations: int) -> tuple[Tensor, Tensor]:
    """The textbook's iterations, which know of no column that stops."""
    A = densify(s.P, s.values)
    b = s.b.unsqueeze(-1) if s.b.dim() == 1 else s.b
    x = torch.zeros_like(b) if s.x0 is None else s.x0.reshape(b.shape)
    if s.factor is not None:
        L = densify(s.factor, s.m)
        M = L @ L.mT if s.kind == "product" else torch.linalg.inv(L @ L.mT)
    else:
        M = torch.eye(s.P.shape[0], dtype=b.dtype) if s.m is None else torch.diag_embed(s.m)
    r = b - A @ x
    p = z = M @ r
    rho, norms = (r * z).sum(-2, keepdim=True), [r.square().sum(-2).sqrt()]
    for _ in range(iterations):
        q = A @ p
        alpha = rho / (p * q).sum(-2, keepdim=True)
        x, r = x + alpha * p, r - alpha * q
        z = M @ r
        old, rho = rho, (r * z).sum(-2, keepdim=True)
        p = z + rho / old * p
        norms.append(r.square().sum(-2).sqrt())
    norms = torch.stack(norms, -2)
    return (x.squeeze(-1), norms.squeeze(-1)) if s.b.dim() == 1 else (x, norms)


def gradients(s: System, function, iterations: int, gx: bool = True, gnorms: bool = True, **options):
    """x, norms, and the gradients of every input for random cotangents."""
    s = s.leaves()
    x, norms = function(s, iterations, **options)[:2]
    loss = torch.zeros((), dtype=x.dtype)
    if gx:
        loss = loss + (x * normal(x.shape, x.dtype, seed=8)).sum()
    if gnorms:
        loss = loss + (norms * normal(norms.shape, x.dtype, seed=9)).sum()
    grads = torch.autograd.grad(loss, s.inputs, allow_unused=True, materialize_grads=True)
    return [x.detach(), norms.detach(), *grads]
