"""Matrices, vectors and graphs of other libraries as arguments.

A SciPy sparse array, a torch sparse tensor, a dense tensor, a NumPy array or an `nn.SparseMatrix` becomes a
CSR, and a NumPy array of right-hand sides a tensor. A CSR made here has a new pattern, analyzed in each call:
in a loop, convert once with `CSR.from_*`. Edges are integers of shape (2, E), as in PyTorch Geometric.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve.matrix import autocast, checks, convert
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.pattern_checks import as_numpy, check_range
from learnsolve.matrix.plain import makes_plain_tensors

P = ParamSpec("P")
T = TypeVar("T")


def matrix(A: Any) -> Any:
    """A as a CSR if it is a matrix of another library; otherwise A itself.

    A dense tensor that requires grad keeps its zeros as entries, since they have gradients too; any other
    tensor has only its nonzeros as entries.
    """
    if isinstance(A, CSR):
        return A
    if isinstance(A, Tensor) and A.layout == torch.strided and A.dim() == 2:
        return CSR(A.flatten(), _full(A)) if A.requires_grad else CSR.from_dense(A)
    return CSR.from_dense(A) if isinstance(A, np.ndarray) and A.ndim == 2 else sparse_matrix(A)


def sparse_matrix(A: Any) -> Any:
    """A as a CSR if it is a sparse matrix of another library, or an `nn.SparseMatrix`; otherwise A itself."""
    if isinstance(A, CSR):
        return A
    if isinstance(A, Tensor):
        return A if A.layout == torch.strided else CSR.from_torch(A)
    if getattr(type(A), "is_sparse_matrix", False):
        return A.matrix
    return CSR.from_scipy(A) if scipy.sparse.issparse(A) else A


def takes_sparse_matrices(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, whose parameters annotated as CSR, or as a sequence of them, also accept what
    `sparse_matrix` converts. Not dense tensors, which may be arguments in the wrong order. Under
    `torch.autocast` it runs in full precision."""
    parameters = inspect.signature(function).parameters.values()
    matrices = [(i, p.name) for i, p in enumerate(parameters) if "CSR" in str(p.annotation)]
    if not matrices:
        return autocast.full_precision(function)

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        for i, name in matrices:
            if i < len(args):
                if not isinstance(args[i], CSR):
                    args = (*args[:i], _each(args[i]), *args[i + 1 :])
            elif name in keywords and not isinstance(keywords[name], CSR):
                keywords[name] = _each(keywords[name])
        if autocast.enabled():
            return autocast.without_autocast(function, args, keywords)
        return function(*args, **keywords)

    return call


def _each(A: Any) -> Any:
    return [_each(one) for one in A] if isinstance(A, (list, tuple)) else sparse_matrix(A)


@overload
def operands(function: str, A: Any, *vectors: TensorLike) -> tuple[Any, *tuple[Tensor, ...]]: ...
@overload
def operands(
    function: str, A: Any, b: TensorLike, x0: TensorLike | None, /
) -> tuple[Any, Tensor, Tensor | None]: ...
def operands(function: str, A: Any, *vectors: Any) -> tuple[Any, ...]:
    """A converted by `matrix`, and vectors, with NumPy arrays as tensors on its device."""
    A = matrix(A)
    for v in vectors:
        if isinstance(v, np.ndarray):
            break
    else:
        return A, *vectors
    like = A.values if isinstance(A, CSR) else None
    try:
        return A, *(convert.tensor_of(v, like) for v in vectors)
    except TypeError as error:
        raise TypeError(f"{function}: {error}") from None


def _full(D: Tensor) -> SparsityPattern:
    rows, columns = D.shape
    crow = torch.arange(rows + 1, device=D.device) * columns
    col = torch.arange(columns, device=D.device).repeat(rows)
    return SparsityPattern._trusted(crow, col, (rows, columns))


@makes_plain_tensors
def edges(function: str, edge_index: Tensor, n: int | None) -> tuple[np.ndarray, int]:
    """(edges, n): a copy of the edges, int64, shape (2, E), and the number of nodes; by default the largest
    node plus one. The bytes of the edges are the key of cached data: comparing them is cheap compared with
    sorting edges again."""
    checks.tensor(function, "edge_index", edge_index)
    if edge_index.is_floating_point() or edge_index.is_complex() or edge_index.dtype == torch.bool:
        raise TypeError(f"{function}: edge_index must hold integers, got {edge_index.dtype}")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(
            f"{function}: edge_index must have shape (2, E), got {tuple(edge_index.shape)}; of pairs, "
            "(E, 2), give pairs.T"
        )
    ends = as_numpy(edge_index).astype(np.int64)
    if n is None and ends.size == 0:
        raise ValueError(f"{function}: without edges, n must give the number of nodes")
    n = max(int(ends.max()) + 1, 0) if n is None else checks.integer(function, "n", n, 0)
    for k in (0, 1):
        check_range(function, f"edge_index[{k}]", ends[k], n, "nodes")
    return ends, n


def edges_of(key: bytes) -> np.ndarray:
    """The edges, int64, (2, E), from their bytes."""
    return np.frombuffer(key, dtype=np.int64).reshape(2, -1)
