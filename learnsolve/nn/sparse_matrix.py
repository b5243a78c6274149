"""A sparse matrix inside a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_buffer_registration_hook

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.nn._holds_pattern import HoldsPattern, parameter
from learnsolve.ops.spmm import spmm


class SparseMatrix(HoldsPattern):
    """A sparse matrix as a module: it moves, converts, saves and loads with its parent module.

    Parameters
    ----------
    A : CSR, float32 or float64; its values, which may have batch axes and must not require grad, are copied
    trainable : whether the values are a parameter; otherwise a buffer

    Attributes
    ----------
    values : Tensor, shape (..., nnz), a buffer or a Parameter
    pattern : SparsityPattern, the same object until the module moves to another device: plans are reused
    crow_indices, col_indices : buffers, copies of the pattern's, for the state dict

    Raises
    ------
    TypeError
        if A is not a CSR of float32 or float64.
    ValueError
        if A's values require grad: the module would cut their graph.

    Notes
    -----
    ``module(x)`` is A x, and ``module()`` the CSR with the current values; with a parameter both carry
    gradients. A CSR itself can be neither a buffer nor a parameter, and as an attribute it would not follow
    the module. `.to`, `state_dict`, `load_state_dict` (values of another pattern raise an error),
    `copy.deepcopy`, pickles and DistributedDataParallel work as for any module; copies and pickles share the
    pattern. Moves cost O(nnz).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> class Residual(torch.nn.Module):
    ...     def __init__(self, A):
    ...         super().__init__()
    ...         self.A = ls.nn.SparseMatrix(A)
    ...     def forward(self, x, b):
    ...         return b - self.A(x)
    >>> model = Residual(ls.problems.poisson((3,))).float()
    >>> model(torch.ones(3), torch.ones(3))
    tensor([0., 1., 0.])
    """

    values: Tensor
    is_sparse_matrix = True  # for functions that accept matrices (matrix/inputs.py)

    def __init__(self, A: CSR, trainable: bool = False):
        super().__init__()
        checks.matrix("SparseMatrix", "A", A)
        checks.dtype("SparseMatrix", "A.values", A.values)
        checks.flag("SparseMatrix", "trainable", trainable)
        checks.start("SparseMatrix", "A.values", A.values, "use A itself, which keeps the graph")
        self._hold(A.pattern)
        values = parameter(A.values)
        if trainable:
            self.values = values
        else:
            self.register_buffer("values", values.detach())

    @property
    def matrix(self) -> CSR:
        """The CSR with the current values; also ``module()``."""
        return CSR(self.values, self.pattern)

    def forward(self, x: Tensor | None = None) -> CSR | Tensor:
        """The product with x, by `spmm`; without x the CSR with the current values. With a
        parameter both carry gradients."""
        return self.matrix if x is None else spmm(self.matrix, x)

    def extra_repr(self) -> str:
        trainable = isinstance(self.values, torch.nn.Parameter)
        return f"{self.pattern.shape}, nnz={self.pattern.nnz}, trainable={trainable}"


def _reject(module: Any, name: str, buffer: Any) -> None:
    # torch accepts any object with __torch_function__, and fails later, in `.to` or `state_dict`.
    if isinstance(buffer, CSR):
        raise TypeError(
            f"{type(module).__name__}.register_buffer: {name!r} must be a tensor, got a CSR; write "
            f"self.{name} = learnsolve.nn.SparseMatrix(A), and self.{name}() for the matrix"
        )


register_module_buffer_registration_hook(_reject)
