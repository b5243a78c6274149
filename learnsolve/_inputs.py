"""The matrices and vectors of other libraries, as the arguments of solvers and preconditioners.

A SciPy sparse array, a sparse tensor of torch, a dense tensor, a NumPy array or an `nn.SparseMatrix` becomes
a CSR, and a NumPy array of right-hand sides a tensor. A CSR made here has a pattern of its own, analysed in
each call: in a loop convert once, with `CSR.from_*`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve import _conversion
from learnsolve.csr import CSR
from learnsolve.nn.sparse_matrix import SparseMatrix
from learnsolve.pattern import SparsityPattern


def matrix(A: Any) -> Any:
    """A as a CSR if it is a matrix of another library; else A itself.

    A dense tensor that requires grad keeps its zeros as entries, since they have gradients too; of any other
    the entries are the nonzeros.
    """
    if isinstance(A, CSR):
        return A
    if isinstance(A, SparseMatrix):
        return A.matrix
    if isinstance(A, Tensor):
        if A.layout != torch.strided:
            return CSR.from_torch(A)
        return CSR(A.flatten(), _full(A)) if A.dim() == 2 and A.requires_grad else CSR.from_dense(A)
    if isinstance(A, np.ndarray):
        return CSR.from_dense(A)
    return CSR.from_scipy(A) if scipy.sparse.issparse(A) else A


def operands(function: str, A: Any, *vectors: Any) -> tuple[Any, ...]:
    """A by `matrix`, and vectors, NumPy arrays among them as tensors on its device."""
    A = matrix(A)
    if not any(isinstance(v, np.ndarray) for v in vectors):
        return A, *vectors
    like = A.values if isinstance(A, CSR) else None
    try:
        return A, *(_conversion.tensor_of(v, like) for v in vectors)
    except TypeError as error:
        raise TypeError(f"{function}: {error}") from None


def _full(D: Tensor) -> SparsityPattern:
    rows, columns = D.shape
    crow = torch.arange(rows + 1, device=D.device) * columns
    col = torch.arange(columns, device=D.device).repeat(rows)
    return SparsityPattern._trusted(crow, col, (rows, columns))
