"""Block Jacobi: the inverses of diagonal blocks.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), sections 4.1.1 and 12.2.
"""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.plain import makes_plain_tensors, numbers, plain_tensors
from learnsolve.ops.core.gather import permuted, place, take
from learnsolve.ops.core.product import product
from learnsolve.ops.core.selection import trusted
from learnsolve.ops.core.symmetry import symmetric_blocks
from learnsolve.ops.triangle import tril
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.multigrid._direct import cholesky, inverses

_LIMIT = 2**27  # entries of all inverses of one matrix: 1 GiB in float64


class BlockJacobi(Preconditioner):
    r"""The inverse of the block diagonal, :math:`M = \mathrm{diag}(A_{11}^{-1}, \dots, A_{mm}^{-1})`.

    Linear; symmetric if the blocks are, positive definite if A is symmetric positive definite.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)
    block_size : int, the size of consecutive blocks (the last may be smaller)
    blocks : integers, shape (n,), instead of block_size: the block of each unknown. The unknowns of a block
        need not be neighbors, and labels need not be consecutive
    symmetric : bool, whether the blocks are symmetric; default: determined from the values (not under
        `torch.compile`)

    Attributes
    ----------
    matrix : CSR, M, with the inverses of the blocks in their positions

    Raises
    ------
    ValueError
        if shapes do not match, not exactly one of block_size and blocks is given, a block is singular or has
        a condition number above 1 / (16 eps) (the message names its unknowns), or the inverses have more than
        2^27 entries per matrix.
    TypeError
        if a type or dtype is wrong.

    Notes
    -----
    Gradient: exact, for A's values and r, to any order. Cost: 2 s^3 flops once for a block of s unknowns,
    then one product with sum s^2 entries per call. The same bits on every run with the same number of threads
    (the inverses use LAPACK).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [1.0, 1.0]]))
    >>> ls.preconditioners.BlockJacobi(A, block_size=2).matrix.to_dense()
    tensor([[ 1., -1.],
            [-1.,  2.]])
    """

    def __init__(
        self, A: CSR, block_size: int | None = None, *, blocks: Any = None, symmetric: bool | None = None
    ):
        name = "BlockJacobi"
        super().__init__(A, finite=False)
        if (block_size is None) == (blocks is None):
            raise ValueError(
                f"{name}: exactly one of block_size and blocks must be given, got "
                f"{'none' if blocks is None else 'both'}"
            )
        if block_size is not None:
            block_size = checks.integer(name, "block_size", block_size, 1)
            plan = A.pattern._planned(_consecutive_blocks, block_size)
        else:
            plan = _labeled_blocks(A.pattern, blocks)
        self.symmetric, values = _inverses(name, A, plan, symmetric)
        self.matrix, self._plan = CSR(values, plan.pattern), plan

    def _columns(self, R: Tensor) -> Tensor:
        return product(self.matrix.values, R, self.matrix.pattern, False)

    def _transposed(self, R: Tensor) -> Tensor:
        return product(self.matrix.values, R, self.matrix.pattern, True)

    def pcg_form(self) -> tuple[str, Tensor, Any] | None:
        if not self.symmetric:
            return None
        L = self._kept_factor(self._cholesky)
        return None if L is None else ("product", L.values, L.pattern)

    def _cholesky(self) -> CSR | None:
        """The lower triangular L with M = L L^T, block by block; None if M is not positive definite."""
        plan = self._plan
        factors = [cholesky(M) for M in plan.split(plan.in_blocks(self.matrix.values))]
        if not factors or any(L is None for L in factors):
            return None
        return tril(CSR(plan.in_rows(factors), plan.pattern))  # type: ignore[arg-type]


class _Blocks(NamedTuple):
    """The entries of blocks: grouped by block size, each block row by row."""

    sizes: tuple[tuple[int, int], ...]  # (size, count)
    unknowns: Tensor  # of all blocks, in this order
    at: Tensor  # positions in A's values of the entries that it has
    where: Tensor  # and their positions among the entries of the blocks
    pattern: SparsityPattern  # of M
    order: Tensor | None  # position of each entry of M among the entries of the blocks; None: same order
    inverse: Tensor | None

    def split(self, entries: Tensor) -> list[Tensor]:
        """The entries of blocks as tensors (..., count, size, size), one per size."""
        parts = entries.split([count * size * size for size, count in self.sizes], -1)
        return [
            t.unflatten(-1, (count, size, size)) for t, (size, count) in zip(parts, self.sizes, strict=True)
        ]

    def in_blocks(self, values: Tensor) -> Tensor:
        """The entries of blocks from the entries of a matrix on M's pattern."""
        return values if self.order is None else permuted(values, self.inverse, self.order)  # type: ignore[arg-type]

    def in_rows(self, blocks: list[Tensor]) -> Tensor:
        """The values of the matrix on M's pattern with these blocks."""
        values = torch.cat([block.flatten(-3) for block in blocks], dim=-1)
        return values if self.order is None else permuted(values, self.order, self.inverse)  # type: ignore[arg-type]


def _consecutive_blocks(P: SparsityPattern, size: int) -> _Blocks:
    return _plan(P, np.arange(P.shape[0]) // size)


@makes_plain_tensors
def _labeled_blocks(P: SparsityPattern, blocks: Any) -> _Blocks:
    n = P.shape[0]
    try:
        labels = as_numpy(blocks) if isinstance(blocks, Tensor) else np.asarray(blocks)
    except ValueError:  # lists of different lengths
        raise TypeError(
            "BlockJacobi: blocks must be one integer for each unknown, got nested lists"
        ) from None
    labels = labels.astype(np.int64) if labels.size == 0 else labels
    if labels.dtype.kind not in "iu":
        raise TypeError(f"BlockJacobi: blocks must be integers, got {labels.dtype}")
    if labels.shape != (n,):
        raise ValueError(
            f"BlockJacobi: blocks must have one label for each unknown, shape ({n},), got {labels.shape}"
        )
    labels = np.unique(labels, return_inverse=True)[1]
    key = f"blocks {hashlib.sha256(labels.astype(np.int64).tobytes()).hexdigest()}"
    return P._cached(key, lambda: _plan(P, labels))


def _plan(P: SparsityPattern, labels: np.ndarray) -> _Blocks:
    """The plan for labels 0, 1, 2, ..., all in use."""
    n = len(labels)
    size_of = np.bincount(labels)
    total = int((size_of.astype(np.float64) ** 2).sum())
    if total > _LIMIT:
        raise ValueError(
            f"BlockJacobi: the inverses of {len(size_of)} blocks of up to {size_of.max()} unknowns hold "
            f"{total} values, at most {_LIMIT} are allowed; use smaller blocks"
        )
    # Unknowns sorted by the size of their block, then by block, then by index.
    unknowns = np.lexsort((np.arange(n), labels, size_of[labels]))
    sizes, counts = np.unique(size_of, return_counts=True)
    place_in_order = np.empty(n, dtype=np.int64)
    place_in_order[unknowns] = np.arange(n)
    size_in_order = size_of[labels[unknowns]]
    row_start = np.concatenate(([0], np.cumsum(size_in_order)))  # entries before each unknown's row
    first = np.empty(len(size_of), dtype=np.int64)  # first unknown of each block, in this order
    first[labels[unknowns[::-1]]] = np.arange(n)[::-1]

    rows, columns = as_numpy(P.row_indices).astype(np.int64), as_numpy(P.col_indices).astype(np.int64)
    at = np.flatnonzero(labels[rows] == labels[columns])
    i, j = rows[at], columns[at]
    where = row_start[place_in_order[i]] + place_in_order[j] - first[labels[j]]

    # Row i of M has the unknowns of i's block, sorted.
    lengths = size_of[labels]
    crow = np.concatenate(([0], np.cumsum(lengths)))
    within = np.arange(crow[-1]) - np.repeat(crow[:-1], lengths)
    order = np.repeat(row_start[:-1][place_in_order], lengths) + within
    col = unknowns[np.repeat(first[labels], lengths) + within]
    pattern = trusted(P, crow, col, P.shape)
    same = np.array_equal(order, np.arange(len(order)))
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return _Blocks(
        tuple((int(s), int(m)) for s, m in zip(sizes, counts, strict=True)),
        P._tensor(unknowns),
        P._tensor(at),
        P._tensor(where),
        pattern,
        None if same else P._tensor(order),
        None if same else P._tensor(inverse),
    )


def _inverses(name: str, A: CSR, plan: _Blocks, symmetric: bool | None) -> tuple[bool, Tensor]:
    """Whether the blocks are symmetric, and M's values."""
    if symmetric is not None:
        checks.flag(name, "symmetric", symmetric)
    tracing = torch.compiler.is_dynamo_compiling()
    if tracing and symmetric is None:
        raise NotImplementedError(
            f"{name}: whether the blocks are symmetric cannot be read off their values under torch.compile; "
            "pass symmetric=True or symmetric=False"
        )
    entries = place(take(A.values, plan.at), plan.where, plan.pattern.nnz)
    found, unknown, all_alike = [], 0, True
    for (size, count), blocks in zip(plan.sizes, plan.split(entries), strict=True):
        if symmetric is None and size > 1:
            all_alike = all_alike and symmetric_blocks(numbers(blocks))
        singular = _singular(name, plan.unknowns[unknown : unknown + count * size], size, A.batch_shape)
        found.append(inverses(blocks, singular))
        unknown += count * size
    values = plan.in_rows(found) if found else entries
    return all_alike if symmetric is None else symmetric, values


def _singular(name: str, unknowns: Tensor, size: int, batch_shape: torch.Size) -> Callable[[int], Exception]:
    """A function that makes the error for block i of one size, counted through the batch."""

    def error(i: int) -> Exception:
        count = len(unknowns) // size
        batch = np.unravel_index(i // count, batch_shape) if batch_shape else ()
        at = tuple(int(b) for b in batch)
        where = f" of matrix {at[0] if len(at) == 1 else at} of the batch" if at else ""
        with plain_tensors():
            own = unknowns[i % count * size : (i % count + 1) * size].tolist()
        named = ", ".join(map(str, own[:4])) + (", ..." if size > 4 else "")
        return ValueError(
            f"{name}: every block must have a finite inverse, that of the unknowns {named}{where} is "
            "singular (or nearly so, or holds infinities or NaNs); choose other blocks, or shift the diagonal"
        )

    return error
