"""Parts and reshapes of a matrix: transpose, diagonal, sums, scalings. All differentiable in the values."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from learnsolve import _check
from learnsolve._plain import plain_tensors
from learnsolve.csr import CSR
from learnsolve.ops._autograd import tracked
from learnsolve.ops._dots import total
from learnsolve.ops._gather import permuted
from learnsolve.ops._operands import plain_values
from learnsolve.ops._product import product, sampled
from learnsolve.pattern import SparsityPattern, as_numpy


def transpose(A: CSR) -> CSR:
    """The transposed matrix, on the cached transposed pattern. O(nnz); the gradient is the transpose back.

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
    _check.matrix("transpose", "A", A)
    P = A.pattern
    forward, backward = P.transpose_permutation, P._inverse_permutation
    return CSR(permuted(A.values, forward, backward), P.T)


def diagonal(A: CSR, k: int = 0) -> Tensor:
    """Diagonal k, the entries (i, i + k), shape (..., its length); zero where the pattern has no entry.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    k : int, above the main diagonal if positive

    Returns
    -------
    Tensor

    Raises
    ------
    TypeError
        if A is neither a CSR nor a sparse matrix of another library, or k not an int.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.diagonal(ls.problems.poisson((3,)), 1)
    tensor([-1., -1.], dtype=torch.float64)
    """
    _check.matrix("diagonal", "A", A)
    k = _check.integer("diagonal", "k", k, -(2**62))
    at = A.pattern.diagonal_positions if k == 0 else A.pattern._planned(_plan_diagonal, k)
    if A.nnz == 0:
        return A.values.sum(-1, keepdim=True).expand(A.batch_shape + at.shape)  # zeros, with a graph
    if k == 0 and not torch.compiler.is_dynamo_compiling() and A.pattern._missing_diagonal < 0:
        return A.values.index_select(-1, at)
    return torch.where(at >= 0, A.values.index_select(-1, at.clamp(min=0)), 0)


def _plan_diagonal(P: SparsityPattern, k: int) -> Tensor:
    rows, columns = P.shape
    first = max(0, -k)
    at = np.full(max(0, min(rows - first, columns - max(0, k))), -1, dtype=np.int64)
    i = as_numpy(P.row_indices).astype(np.int64)
    here = np.flatnonzero(as_numpy(P.col_indices) == i + k)
    at[i[here] - first] = here
    return P._tensor(at).to(P.dtype)


def trace(A: CSR) -> Tensor:
    """The sum of the main diagonal, shape (...).

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)

    Returns
    -------
    Tensor, shape (...)

    Raises
    ------
    TypeError
        if A is neither a CSR nor a sparse matrix of another library.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.trace(ls.problems.poisson((3,)))
    tensor(6., dtype=torch.float64)
    """
    _check.matrix("trace", "A", A)
    return total(diagonal(A))


def sum(A: CSR, dim: int | None = None) -> Tensor:
    """Sum of all entries (`dim` None), of each column (0 or -2) or of each row (1 or -1).

    The sums along rows and columns are products with a vector of ones: deterministic, and their gradient
    spreads the incoming one over the pattern.

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
        if `dim` is anything else.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.sum(ls.problems.poisson((4,)), dim=1)
    tensor([1., 0., 0., 1.], dtype=torch.float64)
    """
    _check.matrix("sum", "A", A)
    if dim is None:
        return total(A.values)
    _check.one_of("sum", "dim", dim, (None, 0, 1, -1, -2))
    columns = dim in (0, -2)
    ones = torch.ones(A.shape[0 if columns else 1], dtype=A.dtype, device=A.device)
    _check.dtype("sum", "A.values", A.values)
    return product(A.values, ones, A.pattern, columns)


def scale_rows(A: CSR, d: Tensor) -> CSR:
    """diag(d) A for d of shape (..., m), differentiable in both.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    d : Tensor, shape (..., m), of A's dtype and device

    Returns
    -------
    CSR on A's pattern; batch axes broadcast

    Raises
    ------
    ValueError, TypeError
        if shapes, dtypes or devices do not fit.

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
    d : Tensor, shape (..., n), of A's dtype and device

    Returns
    -------
    CSR on A's pattern; batch axes broadcast

    Raises
    ------
    ValueError, TypeError
        if shapes, dtypes or devices do not fit.

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
    _check.matrix(function, "A", A)
    _check.dtype(function, "A.values", A.values)
    _check.same_kind(function, "d", d, A.values)
    if d.dim() == 0 or d.shape[-1] != A.shape[side]:
        raise ValueError(
            f"{function}: d must have shape (..., A.shape[{side}] = {A.shape[side]}), got {tuple(d.shape)}; "
            "multiply by a scalar with A * s"
        )
    _check.batches(function, A.batch_shape, d.shape[:-1], "A.values and d")
    # d on the pattern is a sampled product with ones: its gradient is a deterministic sum of rows, where
    # indexing by the row of each entry would scatter.
    ones = torch.ones(A.shape[1 - side], dtype=d.dtype, device=d.device)
    if d.dim() > 1:
        d, ones = d.unsqueeze(-1), ones.unsqueeze(-1)
    spread = sampled(d, ones, A.pattern) if side == 0 else sampled(ones, d, A.pattern)
    return A.with_values(A.values * spread)


def inverse_diagonal(A: CSR) -> Tensor:
    """1 / diag(A), shape (..., n), for a square A without zeros on its diagonal.

    A missing entry is always an error; a stored zero is one on the CPU. On a CUDA tensor a check would
    wait for the device: it becomes an infinity, which `Solution.status` reports.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)

    Returns
    -------
    Tensor, shape (..., n)

    Raises
    ------
    ValueError
        if A is not square, or has no entry or, on the CPU, a zero on its diagonal.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.inverse_diagonal(ls.problems.poisson((2,)))
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    _check.matrix("inverse_diagonal", "A", A)
    return shared_inverse_diagonal(A, "inverse_diagonal").clone()


def shared_inverse_diagonal(A: CSR, function: str) -> Tensor:
    """`inverse_diagonal` for solvers, not to be changed: it is `kept_with_values`."""
    _check.square(function, "A", A.shape)
    row = A.pattern._missing_diagonal
    if row >= 0:
        raise ValueError(
            f"{function}: A must have an entry on its diagonal in every row, row {row} has none; permute the "
            "rows, or add the entry"
        )

    def make() -> Tensor:
        d = diagonal(A)
        if not torch.compiler.is_dynamo_compiling():
            _nonzero(function, d)
        return d.reciprocal()

    return kept_with_values(A, "inverse diagonal", make)


def kept_with_values(A: CSR, name: str, make: Callable[[], Tensor]) -> Tensor:
    """`make()`, a function of A's values, not to be changed. It is kept with `A` while its values do not
    require grad and do not change (torch notices, except for changes through ``values.data``). Nothing is
    kept for trainable values: fused optimizers change parameters without a new version. Nor for values on a
    device: other streams would have to wait for it, and a graph would hold it indefinitely."""
    values = A.values
    if (
        torch.compiler.is_dynamo_compiling()
        or values.requires_grad
        or tracked(values)
        or values.is_inference()
        or not values.is_cpu
    ):
        return make()
    kept = A._derived.get(name)
    state = (values.data_ptr(), values._version)
    if kept is None or kept[0] is not values or kept[1] != state:
        with plain_tensors():
            kept = A._derived[name] = (values, state, make())
    return kept[2]


def _nonzero(function: str, d: Tensor) -> None:
    d = plain_values(d)
    if d.is_cpu and (zero := d == 0).any():
        at = zero.nonzero()[0].tolist()
        raise ValueError(
            f"{function}: A must not have zeros on its diagonal, row {at[-1]} has one; permute the rows or "
            "shift the diagonal"
        )
