"""Matrices made of others: stacked, along a diagonal, in a grid, Kronecker products, real forms, batches of
any sizes, and diagonal matrices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from learnsolve.arguments import Index, Offset
from learnsolve.matrix import checks, pattern
from learnsolve.matrix.cache import makes_plain_tensors, plain_tensors
from learnsolve.matrix.checks import AnyTensor, IndexDtype, Matrix, Rule, sparse_matrix, with_entries
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, check_device, matrix_shape, to_numpy
from learnsolve.ops.arithmetic import fit, matrix_like, one_shape
from learnsolve.ops.indexing import SortedPattern, construct_pattern, place, reorder_values, sort_by_row, take
from learnsolve.ops.products import spmm


def check_matrices(function: str, name: str, value: object) -> tuple[CSR, ...]:
    every = tuple(with_entries(A) for A in checks.sequence(function, name, value, "CSR matrices"))
    if not every:
        raise ValueError(
            f"{function}: {name} must hold at least one matrix, got an empty {type(value).__name__}"
        )
    for i, A in enumerate(every):
        checks.matrix(function, f"matrix {i}", A)
        checks.same_kind(function, f"matrix {i}", A.values, every[0].values, or_complex=True)
    return every


_WRONG = ([], object(), 3.0)
Matrices = Annotated[
    Sequence[CSR], Rule(check_matrices, "a list of sparse matrices of one precision and device", _WRONG)
]


def hstack(matrices: Matrices) -> CSR:
    """[A, B, ...]: matrices with the same number of rows, side by side.

    Planned once per sequence of patterns. Then values are concatenated and permuted, and the gradient is
    permuted back and split. Batch axes broadcast. A single matrix is returned unchanged.

    Parameters
    ----------
    matrices : nonempty sequence of CSR with the same number of rows, precision and device

    Returns
    -------
    CSR, shape (m, n1 + n2 + ...)

    Raises
    ------
    ValueError
        if shapes or batch axes do not match.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.hstack([ls.ops.eye(2), 3.0 * ls.ops.eye(2)]).to_dense()
    tensor([[1., 0., 3., 0.],
            [0., 1., 0., 3.]], dtype=torch.float64)
    """
    return _place_matrices("hstack", matrices, lambda i: (0, i))


def vstack(matrices: Matrices) -> CSR:
    """[A; B; ...]: matrices with the same number of columns, on top of one another. See `hstack`.

    Parameters
    ----------
    matrices : nonempty sequence of CSR with the same number of columns, precision and device

    Returns
    -------
    CSR, shape (m1 + m2 + ..., n)

    Raises
    ------
    ValueError
        if shapes or batch axes do not match.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.vstack([ls.ops.eye(1, 2), 3.0 * ls.ops.eye(1, 2)]).to_dense()
    tensor([[1., 0.],
            [3., 0.]], dtype=torch.float64)
    """
    return _place_matrices("vstack", matrices, lambda i: (i, 0))


def block_diag(matrices: Matrices) -> CSR:
    """Matrices of any shapes along the diagonal, without entries elsewhere. See `hstack`.

    Parameters
    ----------
    matrices : nonempty sequence of CSR, of the same precision and device

    Returns
    -------
    CSR of the summed shapes. Batch axes broadcast

    Raises
    ------
    ValueError
        if batch axes do not match.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.block_diag([ls.ops.eye(1), 3.0 * ls.ops.eye(1, 2)]).to_dense()
    tensor([[1., 0., 0.],
            [0., 3., 0.]], dtype=torch.float64)
    """
    return _place_matrices("block_diag", matrices, lambda i: (i, i))


def block(blocks: Sequence[Sequence[CSR | None]]) -> CSR:
    """[[A, B], [C, None]]: matrices in a grid. None is a block without entries. See `hstack`.

    Parameters
    ----------
    blocks : sequence of rows of equal length, each a sequence of CSR, of the same precision and device, and
        None. Each row and column needs at least one matrix, which sets its size; `zeros` makes an empty one

    Returns
    -------
    CSR of the summed shapes. Batch axes broadcast

    Raises
    ------
    ValueError, TypeError
        if a row or a column has no matrix, or shapes, dtypes, devices or batch axes do not match.

    Examples
    --------
    >>> import learnsolve as ls
    >>> B = ls.ops.eye(1, 2)
    >>> ls.ops.block([[3.0 * ls.ops.eye(2), B.T], [B, None]]).to_dense()
    tensor([[3., 0., 1.],
            [0., 3., 0.],
            [1., 0., 0.]], dtype=torch.float64)
    """
    if not isinstance(blocks, Sequence) or not all(isinstance(row, Sequence) for row in blocks):
        raise TypeError("block: expected a list of rows, each a list of CSR matrices and None")
    if len({len(row) for row in blocks}) > 1:
        raise ValueError(f"block: rows must have equal length, got {[len(row) for row in blocks]}")
    for kind, lines in (("row", blocks), ("column", zip(*blocks, strict=True))):
        for i, line in enumerate(lines):
            if all(A is None for A in line):
                raise ValueError(
                    f"block: {kind} {i} has no matrix that gives its size. Put ops.zeros(rows, columns) there"
                )
    cells = [(i, j) for i, row in enumerate(blocks) for j, A in enumerate(row) if A is not None]
    matrices = check_matrices("block", "blocks", [A for row in blocks for A in row if A is not None])
    return _place_matrices("block", matrices, lambda i: cells[i])


def stack(matrices: Sequence[CSR]) -> CSR:
    """See `CSR.stack`.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((3,))
    >>> ls.CSR.stack([A, 2.0 * A])
    CSR(shape=(3, 3), nnz=7, batch=(2,), dtype=float64, device=cpu, density=77.8%)
    """
    function = "CSR.stack"
    matrices = check_matrices(function, "matrices", matrices)
    first = matrices[0]
    for i, A in enumerate(matrices):
        if not pattern.equal(A.pattern, first.pattern):
            raise ValueError(
                f"{function}: the matrices must have the same pattern, but the pattern of matrix {i}, "
                f"{A.pattern}, differs from the first, {first.pattern}. BlockBatch accepts different "
                "patterns, or build all on one with CSR.from_*(..., pattern=)"
            )
        if A.batch_shape != first.batch_shape:
            raise ValueError(
                f"{function}: the matrices must have one batch shape, got {tuple(A.batch_shape)} in matrix "
                f"{i}, {tuple(first.batch_shape)} in the first"
            )
    return first.with_values(torch.stack([A.values for A in matrices]))


def _place_matrices(function: str, matrices: Sequence[CSR], cell: Callable[[int], tuple[int, int]]) -> CSR:
    """Matrix i in the block (row, column) = cell(i) of a grid, sorted by row, then column. Every row and
    every column of blocks has a matrix."""
    first = matrices[0]
    batch = torch.Size()
    heights: dict[int, int] = {}
    widths: dict[int, int] = {}
    for i, A in enumerate(matrices):
        checks.batches(function, batch, A.batch_shape, f"matrix {i} and those before it")
        batch = torch.broadcast_shapes(batch, A.batch_shape)
        for axis, sizes in enumerate((heights, widths)):
            if (size := sizes.setdefault(cell(i)[axis], A.shape[axis])) != A.shape[axis]:
                where, lines = (("side by side", "rows"), ("on top of one another", "columns"))[axis]
                raise ValueError(
                    f"{function}: matrices {where} must have {size} {lines} as the first, got "
                    f"{A.shape[axis]} in matrix {i}"
                )
    if len(matrices) == 1:
        return first
    top, left = ((0, *accumulate(sizes[k] for k in range(len(sizes)))) for sizes in (heights, widths))
    shape = matrix_shape(function, (top[-1], left[-1]))
    corners = tuple((top[cell(i)[0]], left[cell(i)[1]]) for i in range(len(matrices)))
    others = (A.pattern for A in matrices[1:])
    plan = first.pattern._plan_once(_plan_stack, shape, corners, *others)
    values = torch.cat([A.values.expand(batch + A.values.shape[-1:]) for A in matrices], -1)
    return CSR(reorder_values(values, plan), plan.pattern)


def _plan_stack(
    first: SparsityPattern, shape: tuple, corners: tuple, *others: SparsityPattern
) -> SortedPattern:
    patterns = (first, *others)
    rows, columns = (
        np.concatenate(
            [
                to_numpy(getattr(P, name)).astype(np.int64) + corner[axis]
                for P, corner in zip(patterns, corners, strict=True)
            ]
        )
        for axis, name in enumerate(("row_indices", "col_indices"))
    )
    widest = next((P for P in patterns if P.dtype == torch.int64), first)
    return sort_by_row(widest, rows, columns, shape)


def kron(A: Matrix, B: Annotated[CSR, matrix_like("A")]) -> CSR:
    r"""Kronecker product: the block matrix with the blocks :math:`a_{ij} B`.

    Parameters
    ----------
    A, B : CSR of the same device and precision, real or complex. Batch axes of their values broadcast

    Returns
    -------
    CSR, shape (A.shape[0] B.shape[0], A.shape[1] B.shape[1]), with one entry per pair of entries.

    Raises
    ------
    ValueError
        if the product has more than 2^60 rows or columns.

    Notes
    -----
    Gradient: :math:`\bar a_{ij} = \langle V_{ij}, B \rangle`, :math:`\bar B = \sum_{ij} a_{ij} V_{ij}` for
    the blocks :math:`V_{ij}` of the incoming gradient. Planned once per pair of patterns. Then an outer
    product of values and a permutation. Any order, deterministic.

    Examples
    --------
    >>> import learnsolve as ls
    >>> T, I = ls.problems.poisson((2,)), ls.ops.eye(2).to(ls.problems.poisson((2,)).dtype)
    >>> (ls.ops.kron(T, I) + ls.ops.kron(I, T)).to_dense()[0]
    tensor([ 4., -1., -1.,  0.], dtype=torch.float64)
    """
    matrix_shape("kron", _product_shape(A.shape, B.shape))
    plan = A.pattern._plan_once(_plan_kron, B.pattern)
    outer = (A.values.unsqueeze(-1) * B.values.unsqueeze(-2)).flatten(-2)
    return CSR(reorder_values(outer, plan), plan.pattern)


def _plan_kron(P: SparsityPattern, Q: SparsityPattern) -> SortedPattern:
    i1, j1, i2, j2 = (
        to_numpy(t).astype(np.int64) for t in (P.row_indices, P.col_indices, Q.row_indices, Q.col_indices)
    )
    rows = (i1[:, None] * Q.shape[0] + i2).reshape(-1)
    columns = (j1[:, None] * Q.shape[1] + j2).reshape(-1)
    like = P if P.dtype == torch.int64 else Q
    return sort_by_row(like, rows, columns, _product_shape(P.shape, Q.shape))


def _product_shape(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] * b[0], a[1] * b[1]


def real_equivalent(re: Any, im: CSR | None = None) -> CSR:
    r"""The equivalent real formulation of a complex matrix :math:`A = \mathrm{re} + i\,\mathrm{im}`.

    .. math::
        \begin{pmatrix} \mathrm{Re} A & -\mathrm{Im} A \\ \mathrm{Im} A & \mathrm{Re} A \end{pmatrix}
        \begin{pmatrix} \mathrm{Re} x \\ \mathrm{Im} x \end{pmatrix} =
        \begin{pmatrix} \mathrm{Re} A x \\ \mathrm{Im} A x \end{pmatrix}

    Parameters
    ----------
    re, im : CSR, shape (m, n), of the same dtype (float32 or float64) and device, on any two patterns; batch
        axes of their values broadcast. Or only re, a complex CSR or sparse matrix of SciPy or torch

    Returns
    -------
    CSR, shape (2 m, 2 n), with every entry of re and of im twice

    Raises
    ------
    ValueError, TypeError
        if a single re is not a complex sparse matrix, or re and im do not fit.

    Notes
    -----
    Its transpose is the real form of :math:`A^H`: symmetric for a Hermitian A, and positive definite with it.
    Each eigenvalue of A and its conjugate are eigenvalues of the real form. Gradient, any order:
    :math:`\bar{\mathrm{re}} = \bar C_{11} + \bar C_{22}`, :math:`\bar{\mathrm{im}} = \bar C_{21} - \bar
    C_{12}` on the patterns. Planned once. Source: Day, Heroux, SIAM J. Sci. Comput. 23 (2001),
    doi:10.1137/S1064827500372262.

    Examples
    --------
    >>> import numpy as np, scipy.sparse, torch, learnsolve as ls
    >>> S = scipy.sparse.diags_array([-1.0, 2.0 + 0.5j, -1.0], offsets=[-1, 0, 1], shape=(50, 50))
    >>> b = torch.complex(torch.ones(50).double(), torch.zeros(50).double())
    >>> y = ls.solvers.gmres(ls.ops.real_equivalent(S), torch.cat((b.real, b.imag)), rtol=1e-10).x
    >>> np.allclose(S @ torch.complex(*y.chunk(2)).numpy(), b.numpy())
    True
    """
    name = "real_equivalent"
    if im is None:
        A = sparse_matrix(re)
        if not isinstance(A, CSR) or not A.values.is_complex():
            raise TypeError(
                f"{name}: without im, re must be a complex sparse matrix, got {type(re).__name__}"
                f"{' of ' + str(re.dtype) if hasattr(re, 'dtype') else ''}. Pass the imaginary part as im"
            )
        re, im = A.real, A.imag
    re = sparse_matrix(re)
    for key, part in (("re", re), ("im", im)):
        checks.matrix(name, key, part)
        checks.dtype(name, f"{key}.values", part.values)
    fit(name, re, im, "re", "im")
    one_shape(name, re, im, "re and im")
    return vstack([hstack([re, -im]), hstack([im, re])])


def eye(
    n: Index,
    m: Index | None = None,
    *,
    k: Offset = 0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    index_dtype: IndexDtype = torch.int64,
) -> CSR:
    """The identity with n rows and m (default n) columns and ones on diagonal k.

    Equal arguments return the same pattern object while it is among the last 64 requested.

    Parameters
    ----------
    n, m : int, rows and columns
    k : int, above the main diagonal if positive
    dtype : default float64, as for `learnsolve.problems`, regardless of torch's default dtype
    device : default: the CPU
    index_dtype : torch.int32 or torch.int64

    Returns
    -------
    CSR, shape (n, m)

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.eye(2, 3).to_dense()
    tensor([[1., 0., 0.],
            [0., 1., 0.]], dtype=torch.float64)
    """
    m = n if m is None else m
    check_device("eye", device)
    ones = torch.ones(max(0, min(n + min(k, 0), m - max(k, 0))), dtype=dtype, device=device)
    return CSR(ones, _pattern(n, m, k, index_dtype, ones.device))


def zeros(
    n: Index,
    m: Index | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    index_dtype: IndexDtype = torch.int64,
) -> CSR:
    """A matrix without entries, with n rows and m (default n) columns. See `eye`.

    Parameters
    ----------
    n, m : int, rows and columns
    dtype, device, index_dtype : see `eye`

    Returns
    -------
    CSR, shape (n, m)

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.zeros(2, 3)
    CSR(shape=(2, 3), nnz=0, dtype=float64, device=cpu, density=0.0%)
    """
    m = n if m is None else m
    check_device("zeros", device)
    none = torch.zeros(0, dtype=dtype, device=device)
    return CSR(none, _pattern(n, m, m, index_dtype, none.device))


def diag(d: AnyTensor, k: Offset = 0, *, index_dtype: IndexDtype = torch.int64) -> CSR:
    """The square matrix with a copy of d on diagonal k.

    `diagonal` reads a diagonal. Patterns are shared as in `eye`. Cannot be called under `torch.compile`,
    which cannot create patterns: make a matrix first, then use ``D.with_values(d)``.

    Parameters
    ----------
    d : Tensor, shape (..., n)
    k : int, above the main diagonal if positive
    index_dtype : torch.int32 or torch.int64

    Returns
    -------
    CSR, shape (n + abs(k), n + abs(k)), of d's dtype and device, with d's batch axes

    Raises
    ------
    ValueError
        if d is a scalar.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.ops.diag(torch.tensor([5.0, 6.0]), 1).to_dense()
    tensor([[0., 5., 0.],
            [0., 0., 6.],
            [0., 0., 0.]])
    """
    if d.dim() == 0:
        raise ValueError("diag: d must have shape (..., n), got a scalar. Use A * s with A = eye(n)")
    n = d.shape[-1] + abs(k)
    return CSR(d.clone(), _pattern(n, n, k, index_dtype, d.device))


@makes_plain_tensors
@functools.lru_cache(maxsize=64)
def _pattern(n: int, m: int, k: int, dtype: torch.dtype, device: torch.device) -> SparsityPattern:
    rows = np.arange(n)
    inside = (rows + k >= 0) & (rows + k < m)
    crow = np.concatenate(([0], np.cumsum(inside)))
    crow, col = (torch.from_numpy(a).to(device, dtype) for a in (crow, rows[inside] + k))
    return SparsityPattern._construct(crow, col, (n, m))


class Layout(NamedTuple):
    """The positions of the rows of blocks, concatenated and in a batch padded with zeros to the size of the
    largest. `pad` and `unpad` are adjoints of each other."""

    sizes: tuple[int, ...]
    batch: Tensor  # the block of each row
    at: Tensor | None  # the position of each row in the padded batch; None: all blocks have the same size
    largest: int

    def pad(self, X: Tensor) -> Tensor:
        """(..., n, k) as (..., B, largest, k)"""
        if self.at is not None:
            X = place(X, self.at, len(self.sizes) * self.largest, -2)
        return X.unflatten(-2, (len(self.sizes), self.largest))

    def unpad(self, X: Tensor) -> Tensor:
        """(..., B, largest, k) as (..., n, k)"""
        X = X.flatten(-3, -2)
        return X if self.at is None else take(X, self.at, -2)


def _layout(sizes: tuple[int, ...], device: torch.device) -> Layout:
    counts, largest = np.array(sizes), max(sizes)
    batch = np.repeat(np.arange(len(sizes)), counts)
    at = np.arange(len(batch)) + np.repeat(
        largest * np.arange(len(sizes)) - np.cumsum(counts) + counts, counts
    )
    with plain_tensors():
        equal = min(sizes) == largest
        places = None if equal else torch.from_numpy(at).to(device)
        return Layout(sizes, torch.from_numpy(batch).to(device), places, largest)


class BlockBatch:
    """Square matrices of different patterns and sizes as one block-diagonal matrix, each block of which is an
    independent system: solvers give each its own recurrence, stop, status and residual history.

    Parameters
    ----------
    matrices : sequence of square CSRs of the same dtype and device, without batch axes

    Attributes
    ----------
    matrix : the block-diagonal CSR. Networks work on its graph, ``matrix.pattern``. Preconditioners are built
        from it: ``IC(batch.matrix)``
    sizes : tuple of int, the sizes of the blocks
    batch : int64 Tensor, shape (n,), n the sum of the sizes: the index of the block of each row
    shape : (n, n)
    T : the batch of the transposed matrices
    dtype, device, requires_grad

    Raises
    ------
    ValueError
        if a matrix is not square, or has batch axes.

    Notes
    -----
    Vectors are concatenated (`torch.cat`): b has shape (n,) or (..., n, k), and `split` separates the blocks.
    In a solve, M is any preconditioner of the block-diagonal matrix that does not couple its blocks, or a
    list of one per block. Gradients flow back into the values of the given matrices. Cost: O(nnz). The
    pattern is planned once. `CSR.stack` is faster for matrices on the same pattern: docs/batching.md.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> batch = ls.BlockBatch([ls.problems.poisson((3, 4)), ls.problems.poisson((9,))])
    >>> M = ls.preconditioners.IC(batch.matrix)
    >>> solution = ls.solvers.cg(batch, torch.ones(21, dtype=batch.dtype), M=M)
    >>> [status.name for status in solution.statuses], solution.residual_norms.shape[0]
    (['CONVERGED', 'CONVERGED'], 2)
    >>> [x.shape for x in batch.split(solution.x)]
    [torch.Size([12]), torch.Size([9])]
    """

    matrix: CSR
    sizes: tuple[int, ...]

    def __init__(self, matrices: Matrices):
        name = type(self).__name__
        for i, A in enumerate(matrices):
            checks.square(name, f"matrix {i}", A.shape)
            if A.batch_shape:
                raise ValueError(
                    f"{name}: matrices must have no batch axes, matrix {i} has {tuple(A.batch_shape)}. List "
                    "the matrices one by one, or solve with the CSR, which is a batch already"
                )
        self._fill(block_diag(matrices), _layout(tuple(A.shape[0] for A in matrices), matrices[0].device))
        self._patterns = tuple(A.pattern for A in matrices)
        self._sources = tuple(A.values for A in matrices)

    def _fill(self, matrix: CSR, layout: Layout) -> None:
        self.matrix, self.sizes, self._layout = matrix, layout.sizes, layout
        self._patterns: tuple[SparsityPattern, ...] | None = None  # of the blocks, if known
        self._sources: tuple[Tensor, ...] = ()  # the values of the matrices given to the constructor

    def _replace_matrix(self, matrix: CSR, patterns: tuple[SparsityPattern, ...] | None) -> BlockBatch:
        other = object.__new__(type(self))
        layout = self._layout if matrix.device == self.device else _layout(self.sizes, matrix.device)
        other._fill(matrix, layout)
        other._patterns = patterns
        return other

    def __reduce__(self):
        return _rebuild_batch, (self.matrix, self.sizes)

    # --- facts ---
    def __len__(self) -> int:
        return len(self.sizes)

    __iter__ = None  # otherwise Python would try batch[0], batch[1], ...

    @property
    def batch(self) -> Tensor:
        return self._layout.batch

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    @property
    def requires_grad(self) -> bool:
        return self.matrix.requires_grad

    @property
    def T(self) -> BlockBatch:
        return self._replace_matrix(self.matrix.T, None)

    def __matmul__(self, x: Tensor) -> Tensor:
        return spmm(self.matrix, x)

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"BlockBatch(blocks={len(self)}, shape={self.shape}, nnz={self.matrix.nnz}, dtype={dtype}, "
            f"device={self.device})"
        )

    # --- the same blocks, other values ---
    def with_values(self, values: AnyTensor) -> BlockBatch:
        """The same blocks with these values on ``matrix.pattern``, shape (nnz,)."""
        if values.dim() != 1:
            raise ValueError(
                f"BlockBatch.with_values: values must have shape (nnz,) = ({self.matrix.nnz},), got "
                f"{tuple(values.shape)}"
            )
        return self._replace_matrix(self.matrix.with_values(values), self._patterns)

    def to(
        self, *args: object, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> BlockBatch:
        """Move or convert, like `CSR.to`."""
        matrix = self.matrix.to(*args, device=device, dtype=dtype)
        same = matrix.pattern is self.matrix.pattern
        return self._replace_matrix(matrix, self._patterns if same else None)

    def requires_grad_(self, requires_grad: bool = True) -> BlockBatch:
        """Set whether the values of `matrix` require grad. Their gradient is in ``matrix.values.grad``."""
        self.matrix.requires_grad_(requires_grad)
        return self

    # --- splitting ---
    @overload
    def split(self, value: Tensor, *, entries: bool = False) -> list[Tensor]: ...
    @overload
    def split(self, value: CSR) -> list[CSR]: ...
    def split(self, value: Tensor | CSR, *, entries: bool = False) -> list[Tensor] | list[CSR]:
        """Split a tensor or matrix into the parts of the blocks.

        Parameters
        ----------
        value : a Tensor over the rows, shape (n,) or (..., n, k). With `entries`, over the entries of
            `matrix`, shape (nnz,) or (..., nnz, k), or a CSR of shape (n, n) on any pattern without entries
            outside the blocks, for example a factor

        Returns
        -------
        list of views, or of CSRs on the same patterns in each call (for `matrix` the given ones)
        """
        name = "BlockBatch.split"
        if isinstance(value, CSR):
            return self._split_matrix(name, value)
        checks.tensor(name, "value", value)
        counts = [P.nnz for P in self._own_patterns()] if entries else list(self.sizes)
        total, axis = sum(counts), 0 if value.dim() == 1 else -2
        if value.dim() == 0 or value.shape[axis] != total:
            rule = "entries must have shape (nnz,) or (..., nnz, k) with nnz" if entries else (
                "rows must have shape (n,) or (..., n, k) with n"
            )  # fmt: skip
            raise ValueError(
                f"{name}: a tensor of the {rule} = {total}, got {tuple(value.shape)}"
                + ("" if entries else ". entries=True for one of the entries")
            )
        return list(value.split(counts, axis))

    def _own_patterns(self) -> tuple[SparsityPattern, ...]:
        if self._patterns is None:
            self._patterns = self._block_patterns(self.matrix.pattern)
        return self._patterns

    def _block_patterns(self, P: SparsityPattern) -> tuple[SparsityPattern, ...]:
        return P._plan_once(_plan_blocks, *self.sizes)

    def _split_matrix(self, name: str, A: CSR) -> list[CSR]:
        if A.shape != self.shape:
            raise ValueError(f"{name}: the matrix must have the shape {self.shape}, got {A.shape}")
        own = A.pattern is self.matrix.pattern
        patterns = self._own_patterns() if own else self._block_patterns(A.pattern)
        parts = A.values.split([P.nnz for P in patterns], -1)
        return [CSR(v, P) for v, P in zip(parts, patterns, strict=True)]


def _rebuild_batch(matrix: CSR, sizes: tuple[int, ...]) -> BlockBatch:
    batch = object.__new__(BlockBatch)
    batch._fill(matrix, _layout(sizes, matrix.device))
    return batch


def _plan_blocks(P: SparsityPattern, *sizes: int) -> tuple[SparsityPattern, ...]:
    """The patterns of the blocks on the diagonal."""
    crow, col = to_numpy(P.crow_indices), to_numpy(P.col_indices).astype(np.int64)
    ends = np.cumsum(sizes)
    starts = ends - np.array(sizes)
    block = np.repeat(np.arange(len(sizes)), sizes)[to_numpy(P.row_indices)]
    outside = (col < starts[block]) | (col >= ends[block])
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        raise ValueError(
            f"BlockBatch.split: the matrix must have no entry outside of the blocks, but has one in row "
            f"{int(P.row_indices[at])}, column {int(col[at])}"
        )
    col = col - starts[block]
    made = []
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        low, high = int(crow[first]), int(crow[last])
        size = last - first
        made.append(construct_pattern(P, crow[first : last + 1] - low, col[low:high], (size, size)))
    return tuple(made)


torch.serialization.add_safe_globals([BlockBatch, _rebuild_batch])
