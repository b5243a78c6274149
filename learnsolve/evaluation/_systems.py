"""The systems A x = b of an evaluation, one matrix and one right-hand side each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.inputs import matrix, operands
from learnsolve.ops.block_batch import BlockBatch
from learnsolve.ops.stencil_operator import StencilOperator

Matrix = CSR | StencilOperator
Matrices = Matrix | BlockBatch


class System(NamedTuple):
    """One matrix and one right-hand side."""

    A: Matrix
    b: Tensor  # (n,)


def systems_of(name: str, A: Any, b: Any) -> list[tuple[Matrix, list[System]]]:
    """Each matrix of a batch separately, with its right-hand sides."""
    A = [matrix(one) for one in A] if isinstance(A, (list, tuple)) else matrix(A)
    if isinstance(A, Matrices):
        return _of_one(name, A, b)
    if not isinstance(A, Sequence) or not isinstance(b, Sequence):
        raise TypeError(
            f"{name}: A must be a CSR, BlockBatch or StencilOperator, or A and b sequences of them and of "
            "tensors, got "
            f"{type(A).__name__} and {type(b).__name__}"
        )
    if len(A) != len(b) or not A:
        raise ValueError(
            f"{name}: needs one b for each A, got {len(A)} matrices and {len(b)} right-hand sides"
        )
    for one in A:
        if not isinstance(one, Matrices):
            raise TypeError(
                f"{name}: A must hold CSRs, BlockBatches or StencilOperators, got {type(one).__name__}; make "
                "a CSR with CSR.from_scipy, CSR.from_torch or CSR.from_dense"
            )
    return [group for one, columns in zip(A, b, strict=True) for group in _of_one(name, one, columns)]


def _of_one(name: str, A: Matrices, b: Any) -> list[tuple[Matrix, list[System]]]:
    A, b = operands(name, A, b)
    if isinstance(A, BlockBatch):
        checks.same_kind(name, "b", b, A.matrix.values)
        pairs = zip(A.split(A.matrix), A.split(b), strict=True)
        return [group for one, columns in pairs for group in _of_one(name, one, columns)]
    entries = (A.values if isinstance(A, CSR) else A.coefficients).detach()
    checks.same_kind(name, "b", b, entries)
    n = A.shape[0]
    if A.shape[1] != n:
        raise ValueError(f"{name}: A must be square, got shape {A.shape}")
    if b.dim() == 0 or b.shape[0 if b.dim() == 1 else -2] != n:
        raise ValueError(f"{name}: b must have A.shape[0] = {n} rows, got shape {tuple(b.shape)}")
    b = b.detach()
    b = b.unsqueeze(-1) if b.dim() == 1 else b
    checks.batches(name, A.batch_shape, b.shape[:-2], "A and b")
    if not A.batch_shape:
        one = _with_entries(A, entries)
        return [(one, [System(one, c) for c in b.mT.reshape(-1, n)])]
    batch = torch.broadcast_shapes(A.batch_shape, b.shape[:-2])
    B = b.expand(*batch, *b.shape[-2:]).reshape(batch.numel(), *b.shape[-2:])
    core = entries.shape[len(A.batch_shape) :]
    matrices = [_with_entries(A, e) for e in entries.expand(*batch, *core).reshape(batch.numel(), *core)]
    return [(one, [System(one, c) for c in columns.mT]) for one, columns in zip(matrices, B, strict=True)]


def _with_entries(A: Matrix, entries: Tensor) -> Matrix:
    return A.with_values(entries) if isinstance(A, CSR) else A.with_coefficients(entries)
