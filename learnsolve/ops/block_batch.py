"""Square matrices of different patterns and sizes as one matrix: `BlockBatch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.plain import plain_tensors
from learnsolve.ops.core.gather import place, take
from learnsolve.ops.core.selection import trusted
from learnsolve.ops.spmm import spmm
from learnsolve.ops.stack import block_diag, check_matrices


class Layout(NamedTuple):
    """The positions of the rows of blocks, concatenated and in a batch padded with zeros to the size of the
    largest. `padded` and `joined` are adjoints of each other."""

    sizes: tuple[int, ...]
    batch: Tensor  # the block of each row
    at: Tensor | None  # the position of each row in the padded batch; None: all blocks have the same size
    largest: int

    def padded(self, X: Tensor) -> Tensor:
        """(..., n, k) as (..., B, largest, k)"""
        if self.at is not None:
            X = place(X, self.at, len(self.sizes) * self.largest, -2)
        return X.unflatten(-2, (len(self.sizes), self.largest))

    def joined(self, X: Tensor) -> Tensor:
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
    matrix : the block-diagonal CSR. Networks work on its graph, ``matrix.pattern``; preconditioners are built
        from it: ``IC0(batch.matrix)``
    sizes : tuple of int, the sizes of the blocks
    batch : int64 Tensor, shape (n,), n the sum of the sizes: the index of the block of each row
    shape : (n, n)
    T : the batch of the transposed matrices
    dtype, device, requires_grad

    Raises
    ------
    ValueError, TypeError
        if a matrix is not square, has batch axes, or their dtypes or devices differ.

    Notes
    -----
    Vectors are concatenated (`torch.cat`): b has shape (n,) or (..., n, k), and `split` separates the blocks.
    In a solve, M is any preconditioner of the block-diagonal matrix that does not couple its blocks, or a
    list of one per block. Gradients flow back into the values of the given matrices. Cost: O(nnz); the
    pattern is planned once. `CSR.stack` is faster for matrices on the same pattern: docs/batching.md.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> batch = ls.BlockBatch([ls.problems.poisson((3, 4)), ls.problems.poisson((9,))])
    >>> M = ls.preconditioners.IC0(batch.matrix)
    >>> solution = ls.solvers.cg(batch, torch.ones(21, dtype=batch.dtype), M=M)
    >>> [status.name for status in solution.statuses], solution.residual_norms.shape[0]
    (['CONVERGED', 'CONVERGED'], 2)
    >>> [x.shape for x in batch.split(solution.x)]
    [torch.Size([12]), torch.Size([9])]
    """

    matrix: CSR
    sizes: tuple[int, ...]

    def __init__(self, matrices: Sequence[CSR]):
        name = type(self).__name__
        check_matrices(name, matrices)
        for i, A in enumerate(matrices):
            checks.square(name, f"matrix {i}", A.shape)
            if A.batch_shape:
                raise ValueError(
                    f"{name}: matrices must have no batch axes, matrix {i} has {tuple(A.batch_shape)}; list "
                    "the matrices one by one, or solve with the CSR, which is a batch already"
                )
        self._fill(block_diag(matrices), _layout(tuple(A.shape[0] for A in matrices), matrices[0].device))
        self._patterns = tuple(A.pattern for A in matrices)
        self._sources = tuple(A.values for A in matrices)

    def _fill(self, matrix: CSR, layout: Layout) -> None:
        self.matrix, self.sizes, self._layout = matrix, layout.sizes, layout
        self._patterns: tuple[SparsityPattern, ...] | None = None  # of the blocks, if known
        self._sources: tuple[Tensor, ...] = ()  # the values of the matrices given to the constructor

    def _like(self, matrix: CSR, patterns: tuple[SparsityPattern, ...] | None) -> BlockBatch:
        other = object.__new__(type(self))
        layout = self._layout if matrix.device == self.device else _layout(self.sizes, matrix.device)
        other._fill(matrix, layout)
        other._patterns = patterns
        return other

    def __reduce__(self):
        return _restored, (self.matrix, self.sizes)

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
        return self._like(self.matrix.T, None)

    def __matmul__(self, x: Tensor) -> Tensor:
        return spmm(self.matrix, x)

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"BlockBatch(blocks={len(self)}, shape={self.shape}, nnz={self.matrix.nnz}, dtype={dtype}, "
            f"device={self.device})"
        )

    # --- the same blocks, other values ---
    def with_values(self, values: Tensor) -> BlockBatch:
        """The same blocks with these values on ``matrix.pattern``, shape (nnz,)."""
        checks.tensor("BlockBatch.with_values", "values", values)
        if values.dim() != 1:
            raise ValueError(
                f"BlockBatch.with_values: values must have shape (nnz,) = ({self.matrix.nnz},), got "
                f"{tuple(values.shape)}"
            )
        return self._like(self.matrix.with_values(values), self._patterns)

    def to(
        self, *args: Any, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> BlockBatch:
        """Move or convert, like `CSR.to`."""
        matrix = self.matrix.to(*args, device=device, dtype=dtype)
        same = matrix.pattern is self.matrix.pattern
        return self._like(matrix, self._patterns if same else None)

    def requires_grad_(self, requires_grad: bool = True) -> BlockBatch:
        """Set whether the values of `matrix` require grad; their gradient is in ``matrix.values.grad``."""
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
        value : a Tensor over the rows, shape (n,) or (..., n, k); with `entries`, over the entries of
            `matrix`, shape (nnz,) or (..., nnz, k); or a CSR of shape (n, n) on any pattern without entries
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
                + ("" if entries else "; entries=True for one of the entries")
            )
        return list(value.split(counts, axis))

    def _own_patterns(self) -> tuple[SparsityPattern, ...]:
        if self._patterns is None:
            self._patterns = self._patterns_of(self.matrix.pattern)
        return self._patterns

    def _patterns_of(self, P: SparsityPattern) -> tuple[SparsityPattern, ...]:
        return P._planned(_plan_blocks, *self.sizes)

    def _split_matrix(self, name: str, A: CSR) -> list[CSR]:
        if A.shape != self.shape:
            raise ValueError(f"{name}: the matrix must have the shape {self.shape}, got {A.shape}")
        own = A.pattern is self.matrix.pattern
        patterns = self._own_patterns() if own else self._patterns_of(A.pattern)
        parts = A.values.split([P.nnz for P in patterns], -1)
        return [CSR(v, P) for v, P in zip(parts, patterns, strict=True)]


def _restored(matrix: CSR, sizes: tuple[int, ...]) -> BlockBatch:
    batch = object.__new__(BlockBatch)
    batch._fill(matrix, _layout(sizes, matrix.device))
    return batch


def _plan_blocks(P: SparsityPattern, *sizes: int) -> tuple[SparsityPattern, ...]:
    """The patterns of the blocks on the diagonal."""
    crow, col = as_numpy(P.crow_indices), as_numpy(P.col_indices).astype(np.int64)
    ends = np.cumsum(sizes)
    starts = ends - np.array(sizes)
    block = np.repeat(np.arange(len(sizes)), sizes)[as_numpy(P.row_indices)]
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
        made.append(trusted(P, crow[first : last + 1] - low, col[low:high], (size, size)))
    return tuple(made)


torch.serialization.add_safe_globals([BlockBatch, _restored])
