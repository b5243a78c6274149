"""The matrices and vectors of other libraries, as the arguments of operations, solvers and preconditioners.

A SciPy sparse array, a sparse tensor of torch, a dense tensor, a NumPy array or an `nn.SparseMatrix` becomes
a CSR, and a NumPy array of right-hand sides a tensor. A CSR made here has a pattern of its own, analyzed in
each call: in a loop convert once, with `CSR.from_*`.
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

from learnsolve.matrix import autocast, convert
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern

P = ParamSpec("P")
T = TypeVar("T")


def matrix(A: Any) -> Any:
    """A as a CSR if it is a matrix of another library; else A itself.

    A dense tensor that requires grad keeps its zeros as entries, since they have gradients too; of any other
    the entries are the nonzeros.
    """
    if isinstance(A, Tensor) and A.layout == torch.strided:
        return CSR(A.flatten(), _full(A)) if A.dim() == 2 and A.requires_grad else CSR.from_dense(A)
    return CSR.from_dense(A) if isinstance(A, np.ndarray) else sparse_matrix(A)


def sparse_matrix(A: Any) -> Any:
    """A as a CSR if it is a sparse matrix of another library, or an `nn.SparseMatrix`; else A itself."""
    if isinstance(A, CSR):
        return A
    if isinstance(A, Tensor):
        return A if A.layout == torch.strided else CSR.from_torch(A)
    if getattr(type(A), "is_sparse_matrix", False):
        return A.matrix
    return CSR.from_scipy(A) if scipy.sparse.issparse(A) else A


def takes_sparse_matrices(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, whose parameters that are annotated as CSR, or as a sequence of them, may be what
    `sparse_matrix` converts. Not dense tensors, which may be arguments in the wrong order. Under
    `torch.autocast`, in full precision."""
    parameters = inspect.signature(function).parameters.values()
    places = [(i, p.name) for i, p in enumerate(parameters) if "CSR" in str(p.annotation)]
    if not places:
        return autocast.full_precision(function)

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        for i, name in places:
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
    """A by `matrix`, and vectors, NumPy arrays among them as tensors on its device."""
    A = matrix(A)
    if not any(isinstance(v, np.ndarray) for v in vectors):
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
