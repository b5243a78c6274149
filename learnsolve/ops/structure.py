"""Transpose, sums and scalings of a matrix, differentiable in the values."""

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.autograd import OfLastAxes, dispatch
from learnsolve.ops.core.dots import total
from learnsolve.ops.core.product import product, sampled
from learnsolve.ops.core.selection import used_columns


def transpose(A: CSR) -> CSR:
    """The transposed matrix, on the cached transposed pattern. O(nnz); the gradient is transposed back.

    ``spmm(A, x, transpose=True)`` multiplies by the transpose without forming it.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)

    Returns
    -------
    CSR, shape (n, m)

    Raises
    ------
    TypeError
        if A is neither a CSR nor a sparse matrix of another library.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    >>> A.T.to_dense()
    tensor([[1., 0.],
            [2., 3.]])
    """
    checks.matrix("transpose", "A", A)
    return CSR(dispatch(_Transpose, (A.values,), A.pattern), A.pattern.T)


class _Transpose(OfLastAxes):
    """The gradient uses the transposed pattern, whose permutation is computed on demand."""

    @staticmethod
    def forward(values, P):
        return values.index_select(-1, P.transpose_permutation)

    @staticmethod
    def backward(ctx, g):
        return dispatch(_Transpose, (g,), ctx.constants[0].T), None


def sum(A: CSR, dim: int | None = None) -> Tensor:
    """Sum of all entries (`dim` None), of each column (0 or -2) or of each row (1 or -1).

    The sums along rows and columns are products with a vector of ones: deterministic, and the gradient
    spreads the incoming gradient over the pattern.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    dim : None, 0, 1, -1 or -2

    Returns
    -------
    Tensor, shape (...), (..., n) or (..., m)

    Raises
    ------
    ValueError
        if `dim` is invalid.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.sum(ls.problems.poisson((4,)), dim=1)
    tensor([1., 0., 0., 1.], dtype=torch.float64)
    """
    checks.matrix("sum", "A", A)
    if dim is None:
        return total(A.values)
    checks.one_of("sum", "dim", dim, (None, 0, 1, -1, -2))
    columns = dim in (0, -2)
    P = A.pattern if columns else used_columns(A.pattern)
    ones = torch.ones(P.shape[0 if columns else 1], dtype=A.dtype, device=A.device)
    checks.dtype("sum", "A.values", A.values, or_complex=True)
    return product(A.values, ones, P, columns)


def scale_rows(A: CSR, d: Tensor) -> CSR:
    """diag(d) A for d of shape (..., m), differentiable in both.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    d : Tensor, shape (..., m), of A's precision and device

    Returns
    -------
    CSR on A's pattern; batch axes broadcast

    Raises
    ------
    ValueError, TypeError
        if shapes, dtypes or devices do not match.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    >>> ls.ops.scale_rows(A, torch.tensor([10.0, 1.0])).to_dense()
    tensor([[10., 20.],
            [ 0.,  3.]])
    """
    return _scale("scale_rows", A, d, 0)


def scale_columns(A: CSR, d: Tensor) -> CSR:
    """A diag(d) for d of shape (..., n), differentiable in both.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    d : Tensor, shape (..., n), of A's precision and device

    Returns
    -------
    CSR on A's pattern; batch axes broadcast

    Raises
    ------
    ValueError, TypeError
        if shapes, dtypes or devices do not match.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    >>> ls.ops.scale_columns(A, torch.tensor([10.0, 1.0])).to_dense()
    tensor([[10.,  2.],
            [ 0.,  3.]])
    """
    return _scale("scale_columns", A, d, 1)


def _scale(function: str, A: CSR, d: Tensor, side: int) -> CSR:
    checks.matrix(function, "A", A)
    checks.dtype(function, "A.values", A.values, or_complex=True)
    checks.same_kind(function, "d", d, A.values, or_complex=True)
    if d.dim() == 0 or d.shape[-1] != A.shape[side]:
        raise ValueError(
            f"{function}: d must have shape (..., A.shape[{side}] = {A.shape[side]}), got {tuple(d.shape)}; "
            "multiply by a scalar with A * s"
        )
    checks.batches(function, A.batch_shape, d.shape[:-1], "A.values and d")
    # d on the pattern is a sampled product with ones: its gradient is a deterministic sum over rows, where
    # indexing by the row of each entry would scatter.
    P = used_columns(A.pattern) if side == 0 else A.pattern
    ones = torch.ones(P.shape[1 - side], dtype=d.dtype, device=d.device)
    if d.dim() > 1:
        d, ones = d.unsqueeze(-1), ones.unsqueeze(-1)
    spread = sampled(d, ones, P) if side == 0 else sampled(ones, d, P)
    return A.with_values(A.values * spread)
