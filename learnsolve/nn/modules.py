"""Sparse matrices and their patterns inside modules: parameters, dropout, factors with a positive
diagonal."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_buffer_registration_hook

from learnsolve.arguments import NotNegative, within
from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.products import spmm


def parameter(value: Tensor) -> torch.nn.Parameter:
    """A parameter with its own storage that starts at `value`."""
    return torch.nn.Parameter(value.detach().clone(memory_format=torch.contiguous_format))


class HoldsPattern(torch.nn.Module):
    """A module on a `pattern`, which moves with it and whose index arrays are in its state dict.

    The state dict has copies of the arrays, since safetensors rejects tensors that share memory, and patterns
    are shared. Weights of another pattern raise an error that names it, since they would be meaningless here.
    """

    pattern: SparsityPattern
    crow_indices: Tensor
    col_indices: Tensor

    def _hold(self, pattern: SparsityPattern, persistent: bool = True) -> None:
        self.pattern = pattern
        for name in ("crow_indices", "col_indices"):
            array = getattr(pattern, name)
            self.register_buffer(name, array.clone() if persistent else array, persistent=persistent)

    def _apply(self, fn: object, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        if self.pattern.device != self.crow_indices.device:
            self.pattern = self.pattern.to(self.crow_indices.device)
        return self

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        for name in ("crow_indices", "col_indices"):
            theirs, ours = state_dict.get(prefix + name), getattr(self, name)
            if theirs is None or name in self._non_persistent_buffers_set:
                continue
            if (fault := _difference(theirs, ours)) is not None:
                error_msgs.append(
                    f"{type(self).__name__}: the weights belong to another pattern, {prefix}{name} {fault}. "
                    "Make the module on SparsityPattern(crow_indices, col_indices, shape) of the weights"
                )
                return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def _difference(theirs: Tensor, ours: Tensor) -> str | None:
    if theirs.shape != ours.shape:
        return f"has shape {tuple(theirs.shape)} there and {tuple(ours.shape)} here"
    theirs = theirs.to(ours.device, ours.dtype)
    if torch.equal(theirs, ours):
        return None
    at = int((theirs != ours).nonzero()[0])
    return f"at {at} is {int(theirs[at])} there and {int(ours[at])} here"


class SparseMatrix(HoldsPattern):
    """A sparse matrix as a module: it moves, converts, saves and loads with its parent module.

    Parameters
    ----------
    A : CSR, float32 or float64. Its values, which may have batch axes and must not require grad, are copied
    trainable : whether the values are a parameter, otherwise a buffer

    Attributes
    ----------
    values : Tensor, shape (..., nnz), a buffer or a Parameter
    pattern : SparsityPattern, the same object until the module moves to another device: plans are reused
    crow_indices, col_indices : buffers, copies of the pattern's, for the state dict

    Raises
    ------
    ValueError
        if A's values require grad: the module would cut their graph.

    Notes
    -----
    ``module(x)`` is A x, and ``module()`` the CSR with the current values. With a parameter both carry
    gradients. A CSR itself can be neither a buffer nor a parameter, and as an attribute it would not follow
    the module. `.to`, `state_dict`, `load_state_dict` (values of another pattern raise an error),
    `copy.deepcopy`, pickles and DistributedDataParallel work as for any module. Copies and pickles share the
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
    is_sparse_matrix = True  # for functions that accept matrices (matrix/checks.py)

    def __init__(self, A: checks.RealMatrix, trainable: bool = False):
        super().__init__()
        checks.start(
            "SparseMatrix", "A.values", A.values, "use A itself, which stays attached to the autograd graph"
        )
        self._hold(A.pattern)
        values = parameter(A.values)
        if trainable:
            self.values = values
        else:
            self.register_buffer("values", values.detach())

    @property
    def matrix(self) -> CSR:
        """The CSR with the current values, also ``module()``."""
        return CSR(self.values, self.pattern)

    def forward(self, x: Tensor | None = None) -> CSR | Tensor:
        """The product with x, by `spmm`, or without x the CSR with the current values. With a
        parameter both carry gradients."""
        return self.matrix if x is None else spmm(self.matrix, x)

    def extra_repr(self) -> str:
        trainable = isinstance(self.values, torch.nn.Parameter)
        return f"{self.pattern.shape}, nnz={self.pattern.nnz}, trainable={trainable}"


def _reject(module: object, name: str, buffer: object) -> None:
    # torch accepts any object with __torch_function__, and fails later, in `.to` or `state_dict`.
    if isinstance(buffer, CSR):
        raise TypeError(
            f"{type(module).__name__}.register_buffer: {name!r} must be a tensor, got a CSR. Write "
            f"self.{name} = learnsolve.nn.SparseMatrix(A), and self.{name}() for the matrix"
        )


register_module_buffer_registration_hook(_reject)


class SparseDropout(torch.nn.Module):
    r"""In training mode, set each entry of a sparse matrix to zero with probability p.

    .. math:: y_{ij} = x_{ij} \, m_{ij} / (1 - p), \qquad m_{ij} \in \{0, 1\}, \quad P(m_{ij} = 0) = p

    on the entries of X, so that the expected value of each is x_ij. In evaluation mode: X itself.

    Parameters
    ----------
    p : float, 0 <= p < 1

    Notes
    -----
    The result is on X's pattern: dropped entries are stored as zeros, so that the plans of the pattern are
    used for every draw. Dropped entries are zero even if they were infinite or NaN. Differentiable with
    respect to X's values. Cost: one random number per entry.

    References
    ----------
    N. Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", Journal of
    Machine Learning Research 15, 2014.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> drop = ls.nn.SparseDropout(0.5)
    >>> X = ls.CSR.from_dense(torch.tensor([[1.0, 0.0], [2.0, 3.0]]))
    >>> drop(X, keep=torch.tensor([True, False, True])).to_dense()
    tensor([[2., 0.],
            [0., 6.]])
    >>> drop.eval()(X) is X
    True
    """

    def __init__(self, p: Annotated[float, within("0 <= {} < 1", lambda p: 0 <= p < 1, 1.0)] = 0.5):
        super().__init__()
        self.p = p

    def forward(self, X: CSR, keep: Tensor | None = None) -> CSR:
        """Drop entries of X.

        Parameters
        ----------
        X : CSR. Its values may have batch axes
        keep : Tensor of bool, shape (..., nnz): True for entries to keep, instead of a draw from torch's
            generator, even for p = 0, but ignored in evaluation mode. Additional batch axes make a batch of
            matrices

        Raises
        ------
        ValueError
            if the shape of `keep` does not match X.
        TypeError
            if X is not a CSR, or `keep` is not a tensor of bool on its device.
        """
        checks.matrix("SparseDropout", "X", X, ". Use torch.nn.Dropout for dense features")
        if keep is not None:
            _check_keep(X, keep)
        if not self.training or (self.p == 0 and keep is None):
            return X
        if keep is None:
            keep = torch.rand_like(X.values) >= self.p
        # Not a product with the mask: an infinity times zero is NaN.
        return X.with_values(torch.where(keep, X.values * (1 / (1 - self.p)), 0))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _check_keep(X: CSR, keep: Tensor) -> None:
    name = "SparseDropout"
    checks.tensor(name, "keep", keep)
    if keep.dtype != torch.bool:
        raise TypeError(f"{name}: keep must be a tensor of bool, got {keep.dtype}. Use keep != 0")
    checks.one_device(name, "keep", keep, X, "the matrix")
    checks.last_axes(name, "keep", keep, nnz=X.nnz)
    checks.batches(name, X.batch_shape, keep.shape[:-1], "X and keep")


POSITIVE = {
    "softplus": torch.nn.functional.softplus,
    "exp": torch.exp,
    "sqrt_exp": lambda d: torch.exp(d / 2),
}


def positive_diagonal(
    values: checks.RealNumbers,
    pattern: SparsityPattern,
    how: Literal["softplus", "exp", "sqrt_exp"] = "softplus",
    *,
    shift: NotNegative = 0.0,
) -> Tensor:
    r"""Values with positive entries :math:`f(d_i) + \text{shift}` on the diagonal of a square pattern.

    Then :math:`L L^T` is positive definite for any lower triangular L: a preconditioner for `cg`.

    Parameters
    ----------
    values : Tensor, shape (..., nnz), float32 or float64
    pattern : SparsityPattern, shape (n, n), with all diagonal entries
    how : f: "softplus", log(1 + exp(d)); "exp"; or "sqrt_exp", exp(d / 2), the square root of a positive
        diagonal of A, as in NeuralIF
    shift : not negative, added to the diagonal. With shift = 0 it can underflow to 0, as f(-800) does in
        float64

    Returns
    -------
    Tensor, shape (..., nnz): the same values off the diagonal.

    Raises
    ------
    ValueError
        if the pattern is not square or lacks a diagonal entry, or the shape is wrong.
    TypeError
        if devices do not match.

    Notes
    -----
    Differentiable to any order. Cost: a copy of the values.

    References
    ----------
    P. Häusner, O. Öktem, J. Sjölund, "Neural incomplete factorization: learning preconditioners for the
    conjugate gradient method", Transactions on Machine Learning Research, 2024.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.problems.poisson((2,)).tril().pattern
    >>> ls.CSR(ls.nn.positive_diagonal(torch.zeros(3), P, "exp"), P).to_dense()
    tensor([[1., 0.],
            [0., 1.]])
    """
    name = "positive_diagonal"
    checks.one_device(name, "values", values, pattern, "the pattern")
    checks.square(name, "pattern", pattern.shape)
    checks.last_axes(name, "values", values, nnz=pattern.nnz)
    row = pattern._missing_diagonal
    if row >= 0:
        raise ValueError(f"{name}: the pattern must have every diagonal entry, row {row} has none. Add it")
    at = pattern.diagonal_positions.long()
    return values.index_copy(-1, at, POSITIVE[how](values.index_select(-1, at)) + shift)
