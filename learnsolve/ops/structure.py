"""Transpose, sums, norms, scalings and the diagonal of a matrix, differentiable in the values, and whether it
is symmetric."""

import contextlib
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.arguments import Offset
from learnsolve.matrix import checks
from learnsolve.matrix.cache import numbers, plain_tensors
from learnsolve.matrix.checks import AnyMatrix, Matrix, RealSquareMatrix, like
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops import complex_values
from learnsolve.ops.arithmetic import plain_values
from learnsolve.ops.autograd import OfLastAxes, dispatch, needs_graph
from learnsolve.ops.indexing import drop_empty_columns
from learnsolve.ops.products import product, sddmm_values, total
from learnsolve.ops.sweeps import residual_norm

# Entries count as equal up to 512 eps sqrt(m_i m_j), with m_i the largest modulus in row and column i: an
# entry that is a sum is off by some eps times the largest of its terms, which may cancel (a discontinuous
# Galerkin matrix of pyamg is off by 246). Two rows give the scale: a diagonal may be zero, and units may
# differ by row.


_ROUNDINGS = 512


def symmetry(function: str, A: CSR, given: bool | None) -> bool:
    """The argument `symmetric` if `given`, otherwise a test of A's values: O(nnz), on the host."""
    if given is not None:
        return checks.flag(function, "symmetric", given)
    compiling = torch.compiler.is_dynamo_compiling()
    if not compiling and (found := _test_symmetry(numbers(A.values), A.pattern)) is not None:
        return found
    if not symmetric_pattern(A.pattern):
        return False
    if compiling:
        raise NotImplementedError(
            f"{function}: whether A is symmetric cannot be read off its values under torch.compile. Pass "
            "symmetric=True or symmetric=False"
        )
    with plain_tensors(), torch.no_grad():
        return _equal(numbers(A.values), A.pattern)


def _test_symmetry(v: Tensor, P: SparsityPattern) -> bool | None:
    """For one matrix on the CPU, without its transpose, or None if values differ, possibly by rounding."""
    if v.dim() > 1 or v.dtype not in (torch.float32, torch.float64) or not v.is_cpu:
        return None
    if P.shape[0] != P.shape[1]:
        return False
    with plain_tensors(), torch.no_grad():
        arrays = to_numpy(P.crow_indices), to_numpy(P.col_indices), to_numpy(v.contiguous())
    return (False, None, True)[_analysis.symmetry_of(*arrays)]


def symmetric_pattern(P: SparsityPattern) -> bool:
    return P._plan_once(_symmetric_pattern)[0]


def symmetric_blocks(B: Tensor) -> bool:
    """The same test for dense blocks (..., n, n)."""
    m = torch.maximum(B.abs(), B.mT.abs()).amax(-1).sqrt()
    return _alike(B, B.mT, m.unsqueeze(-1), m.unsqueeze(-2))


def _alike(a: Tensor, b: Tensor, *roots: Tensor) -> bool:
    return bool(((a - b).abs() <= _ROUNDINGS * torch.finfo(a.dtype).eps * roots[0] * roots[1]).all())


def _equal(v: Tensor, P: SparsityPattern) -> bool:
    turned = v.index_select(-1, P.transpose_permutation).conj().resolve_conj()
    if torch.equal(v, turned):
        return True
    sizes, rows = torch.maximum(v.abs(), turned.abs()), P.row_indices
    m = sizes.new_zeros((*v.shape[:-1], P.shape[0]))
    m = m.scatter_reduce(-1, rows.long().expand(v.shape), sizes, "amax").sqrt()
    return _alike(v, turned, m.index_select(-1, rows), m.index_select(-1, P.col_indices))


def _symmetric_pattern(P: SparsityPattern) -> tuple[bool]:
    if P.shape[0] != P.shape[1]:
        return (False,)
    pairs = ((P.crow_indices, P.T.crow_indices), (P.col_indices, P.T.col_indices))
    return (all((to_numpy(a) == to_numpy(b)).all() for a, b in pairs),)


def transpose(A: AnyMatrix) -> CSR:
    """The transposed matrix, on the cached transposed pattern. O(nnz). The gradient is transposed back.

    ``spmm(A, x, transpose=True)`` multiplies by the transpose without forming it.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)

    Returns
    -------
    CSR, shape (n, m)

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    >>> A.T.to_dense()
    tensor([[1., 0.],
            [2., 3.]])
    """
    return CSR(dispatch(_Transpose, (A.values,), A.pattern), A.pattern.T)


class _Transpose(OfLastAxes):
    """The gradient uses the transposed pattern, whose permutation is computed on demand."""

    @staticmethod
    def forward(values, P):
        return values.index_select(-1, P.transpose_permutation)

    @staticmethod
    def backward(ctx, g):
        return dispatch(_Transpose, (g,), ctx.constants[0].T), None


def sum(A: AnyMatrix, dim: Literal[0, 1, -1, -2] | None = None) -> Tensor:
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

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.sum(ls.problems.poisson((4,)), dim=1)
    tensor([1., 0., 0., 1.], dtype=torch.float64)
    """
    if dim is None:
        return total(A.values)
    columns = dim in (0, -2)
    P = A.pattern if columns else drop_empty_columns(A.pattern)
    ones = torch.ones(P.shape[0 if columns else 1], dtype=A.dtype, device=A.device)
    checks.dtype("sum", "A.values", A.values, or_complex=True)
    return product(A.values, ones, P, columns)


def scale_rows(A: Matrix, d: Annotated[Tensor, like("A", or_complex=True)]) -> CSR:
    """diag(d) A for d of shape (..., m), differentiable in both.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    d : Tensor, shape (..., m), of A's precision and device

    Returns
    -------
    CSR on A's pattern. Batch axes broadcast

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    >>> ls.ops.scale_rows(A, torch.tensor([10.0, 1.0])).to_dense()
    tensor([[10., 20.],
            [ 0.,  3.]])
    """
    return _scale("scale_rows", A, d, 0)


def scale_columns(A: Matrix, d: Annotated[Tensor, like("A", or_complex=True)]) -> CSR:
    """A diag(d) for d of shape (..., n), differentiable in both.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    d : Tensor, shape (..., n), of A's precision and device

    Returns
    -------
    CSR on A's pattern. Batch axes broadcast

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
    if d.dim() == 0 or d.shape[-1] != A.shape[side]:
        raise ValueError(
            f"{function}: d must have shape (..., A.shape[{side}] = {A.shape[side]}), got {tuple(d.shape)}. "
            "Multiply by a scalar with A * s"
        )
    checks.batches(function, A.batch_shape, d.shape[:-1], "A.values and d")
    # d on the pattern is a sampled product with ones: its gradient is a deterministic sum over rows, where
    # indexing by the row of each entry would scatter.
    P = drop_empty_columns(A.pattern) if side == 0 else A.pattern
    ones = torch.ones(P.shape[1 - side], dtype=d.dtype, device=d.device)
    if d.dim() > 1:
        d, ones = d.unsqueeze(-1), ones.unsqueeze(-1)
    spread = sddmm_values(d, ones, P) if side == 0 else sddmm_values(ones, d, P)
    return A.with_values(A.values * spread)


def diagonal(A: AnyMatrix, k: Offset = 0) -> Tensor:
    """Diagonal k, the entries (i, i + k), shape (..., length), zero where the pattern has no entry.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    k : int, above the main diagonal if positive

    Returns
    -------
    Tensor

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.diagonal(ls.problems.poisson((3,)), 1)
    tensor([-1., -1.], dtype=torch.float64)
    """
    at = A.pattern.diagonal_positions if k == 0 else A.pattern._plan_once(_plan_diagonal, k)
    if A.nnz == 0:
        return A.values.sum(-1, keepdim=True).expand(A.batch_shape + at.shape)  # zeros with a graph
    if k == 0 and not torch.compiler.is_dynamo_compiling() and A.pattern._missing_diagonal < 0:
        return A.values.index_select(-1, at)
    return torch.where(at >= 0, A.values.index_select(-1, at.clamp(min=0)), 0)


def _plan_diagonal(P: SparsityPattern, k: int) -> Tensor:
    rows, columns = P.shape
    first = max(0, -k)
    at = np.full(max(0, min(rows - first, columns - max(0, k))), -1, dtype=np.int64)
    i = to_numpy(P.row_indices).astype(np.int64)
    here = np.flatnonzero(to_numpy(P.col_indices) == i + k)
    at[i[here] - first] = here
    return P._tensor(at).to(P.dtype)


def trace(A: AnyMatrix) -> Tensor:
    """The sum of the main diagonal, shape (...).

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)

    Returns
    -------
    Tensor, shape (...)

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.trace(ls.problems.poisson((3,)))
    tensor(6., dtype=torch.float64)
    """
    return total(diagonal(A))


def inverse_diagonal(A: AnyMatrix) -> Tensor:
    """1 / diag(A), shape (..., n), for a square A without zeros on its diagonal.

    A missing entry is always an error. A stored zero is an error on the CPU. On a CUDA device the check would
    synchronize, so a zero becomes an infinity, which `Solution.status` reports.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)

    Returns
    -------
    Tensor, shape (..., n)

    Raises
    ------
    ValueError
        if A has no entry or, on the CPU, a zero on its diagonal.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.inverse_diagonal(ls.problems.poisson((2,)))
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    return reuse_inverse_diagonal(A, "inverse_diagonal").clone()


def reuse_inverse_diagonal(A: CSR, function: str) -> Tensor:
    """`inverse_diagonal` for solvers. Do not modify the result.

    It is cached with A and reused while the diagonal has the same values. Versions do not suffice, because
    fused optimizers and ``.data`` change values without a new version. Not cached for values on a device:
    other streams would have to wait for it, and a graph would hold it indefinitely."""
    values, traced = A.values, torch.compiler.is_dynamo_compiling()
    keeps = not traced and values.is_cpu and not needs_graph(values)
    kept = getattr(A, "_inverse_diagonal", None) if keeps else None
    if kept is not None and kept[0].dtype == values.dtype:
        d = values.index_select(-1, A.pattern.diagonal_positions)
        if torch.equal(kept[0], d):
            return kept[1]
    checks.square(function, "A", A.shape)
    row = A.pattern._missing_diagonal
    if row >= 0:
        raise ValueError(
            f"{function}: A must have an entry on its diagonal in every row, row {row} has none. Permute the "
            "rows, or add the entry"
        )
    with plain_tensors() if keeps else contextlib.nullcontext():
        d = diagonal(A)
        if not traced:
            _nonzero(function, d)
        inverse = d.reciprocal()
    if keeps:
        object.__setattr__(A, "_inverse_diagonal", (d, inverse))
    return inverse


def _nonzero(function: str, d: Tensor) -> None:
    d = plain_values(d)
    if d.is_cpu and (zero := d == 0).any():
        at = zero.nonzero()[0].tolist()
        raise ValueError(
            f"{function}: A must not have zeros on its diagonal, row {at[-1]} has one. Permute the rows or "
            "shift the diagonal"
        )


def symmetric_scaling(A: RealSquareMatrix, by: Literal["diagonal", "row_sums"] = "diagonal") -> CSR:
    r"""Symmetric scaling :math:`D^{-1/2} A D^{-1/2}`.

    Parameters
    ----------
    A : CSR, square, float32 or float64. Its values may have batch axes
    by : "diagonal", D = diag(A), for a unit diagonal, or "row_sums", D = diag(A 1), for the normalized
        adjacency matrix of a graph convolution

    Returns
    -------
    CSR on A's pattern.

    Raises
    ------
    ValueError
        if D has an entry that is not positive and finite. The message names the row. (Not checked under
        `torch.compile` and on a CUDA device, where it yields infinities or NaNs.)

    Notes
    -----
    Differentiable in A's values, also through D. Cost: a sampled product and a product of values.

    References
    ----------
    Kipf, Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.symmetric_scaling(ls.problems.poisson((3,))).to_dense()[0]
    tensor([ 1.0000, -0.5000,  0.0000], dtype=torch.float64)
    """
    return scale_symmetric("symmetric_scaling", A, by)


def scale_symmetric(name: str, A: CSR, by: str) -> CSR:
    """`symmetric_scaling`, for a public function of this name."""
    d = diagonal(A) if by == "diagonal" else sum(A, 1)
    if not torch.compiler.is_dynamo_compiling():
        plain = plain_values(d)
        wrong = ~((plain > 0) & torch.isfinite(plain))
        if plain.is_cpu and wrong.any():
            at = wrong.nonzero()[0].tolist()
            what = "diagonal entries" if by == "diagonal" else "row sums"
            remedy = "Shift the diagonal, or scale with A.scale_rows and A.scale_columns"
            if name == "gcn_norm":
                what, remedy = f"{what} of A + I", "Make the weights nonnegative"
            raise ValueError(
                f"{name}: all {what} must be positive and finite, row {at[-1]} has "
                f"{plain[tuple(at)].item():g}. {remedy}"
            )
    s = d.rsqrt()
    s = s.unsqueeze(-1) if s.dim() > 1 else s
    return A.with_values(A.values * sddmm_values(s, s, A.pattern))


def norm(A: Matrix, ord: float | str | None = None, dim: Literal[0, 1, -1, -2] | None = None) -> Tensor:
    r"""Norm of the matrix (`dim` None), of each column (0 or -2) or of each row (1 or -1).

    Parameters
    ----------
    A : CSR, float32 or float64, or complex. Its values may have batch axes
    ord : for a matrix None or "fro" (Frobenius), 1 (largest column sum of magnitudes) or infinity (largest
        row sum). For rows and columns None or 2 (Euclidean), or 1 (sum of magnitudes)
    dim : as in `sum`

    Returns
    -------
    Tensor, shape (...), (..., n) or (..., m).

    Notes
    -----
    Euclidean norms sum unscaled squares: entries below 1e-154 in magnitude (1e-19 in float32) lose digits,
    entries below 1e-161 (1e-22) count as zeros, with a zero gradient, and a norm above 1.3e154 (1.8e19) is
    infinite. If that matters, scale the matrix: ``(A * s).norm() / s``.

    Gradient of a Euclidean norm: :math:`\bar a = \bar\nu\, a / \nu`, and zero (with all further derivatives)
    where the norm is zero. The gradient of a largest sum goes to the largest, split equally among ties.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((3,))
    >>> ls.ops.norm(A), ls.ops.norm(A, 1, dim=1)
    (tensor(4., dtype=torch.float64), tensor([3., 4., 3.], dtype=torch.float64))
    """
    checks.check_choice("norm", "ord", ord, (None, "fro", 1, float("inf")) if dim is None else (None, 2, 1))
    if dim is None:
        if ord in (None, "fro"):
            return residual_norm(A.values, -1)
        A = CSR(A.values.abs(), drop_empty_columns(A.pattern))  # an empty column is never the largest
        sums = sum(A, 0 if ord == 1 else 1)
        return sums.amax(-1) if sums.shape[-1] else sums.sum(-1)
    if ord == 1:
        return sum(A.abs(), dim)
    values = A.values
    squares = complex_values.parts(values).square().sum(-1) if values.is_complex() else values * values
    square = sum(A.with_values(squares), dim)
    zero = square == 0
    return torch.where(zero, 0, torch.where(zero, 1, square).sqrt())
