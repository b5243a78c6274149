"""A[rows, columns] and permutations, differentiable in the values.

An int drops its axis, as in NumPy and torch: the result is a dense vector or a scalar. Slices and index
arrays keep their axes: the result is a matrix. Two index arrays select entries one by one, unless they have
shapes (r, 1) and (1, c), as from ``numpy.ix_``. So a submatrix is also ``A[rows][:, columns]``. A mask of
A's shape selects entries one by one too, in the order of rows.
"""

from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.ops.core.gather import permuted, place, take
from learnsolve.ops.core.selection import Selection, find, handed_out, places, selected, trusted


def index(A: CSR, key: Any) -> CSR | Tensor:
    """``A[key]``, see `CSR.__getitem__`.

    Slices are planned once, with the pattern of the result, which is the same in every later call. Index
    arrays are planned in every call, in O(nnz), outside the code that `torch.compile` traces.
    """
    key = key if isinstance(key, tuple) else (key,)
    if not key:
        raise IndexError("A[...]: expected one or two indices, got none; A[:, :] is the whole matrix")
    if len(key) > 2:
        raise IndexError(f"A[...]: a matrix has two axes, got {len(key)} indices")
    if len(key) == 1 and isinstance(key[0], (Tensor, np.ndarray)) and key[0].ndim == 2:
        key = _selected_by_mask(key[0], A.shape)
    axes: list[Any] = [_axis(k, n) for k, n in zip((*key, slice(None))[:2], A.shape, strict=True)]
    rows, columns = axes
    if isinstance(rows, tuple) and isinstance(columns, tuple):
        whole = rows == (0, A.shape[0], 1) and columns == (0, A.shape[1], 1)
        return A if whole else selected(A, A.pattern._planned(_plan_slices, *rows, *columns))
    dense = isinstance(rows, int) or isinstance(columns, int)
    arrays = isinstance(rows, np.ndarray) and isinstance(columns, np.ndarray)
    if arrays and _crossed(*axes):
        rows, columns, arrays = axes[0][:, 0], axes[1][0], False
    if dense or arrays:
        return _entries(A, rows, columns)
    for k in (rows, columns):
        if isinstance(k, np.ndarray) and k.ndim != 1:
            raise IndexError(f"A[...]: index arrays must have one axis, got shape {k.shape}")
    return selected(A, _plan_submatrix(A.pattern, rows, columns))


def permute(A: CSR, p: Any, q: Any = None) -> CSR:
    """A[p][:, q], with permuted rows and columns; q defaults to p: P A P^T for a square A.

    The gradient is permuted back. The plan is made in every call, in O(nnz), outside the code that
    `torch.compile` traces.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    p, q : permutations of the rows and of the columns, arrays or tensors of integers

    Returns
    -------
    CSR, shape (m, n)

    Raises
    ------
    ValueError, TypeError
        if p is not a permutation of 0, ..., m - 1, or q of 0, ..., n - 1.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    >>> ls.ops.permute(A, [1, 0]).to_dense()
    tensor([[3., 0.],
            [2., 1.]])
    """
    checks.matrix("permute", "A", A)
    if p is None:
        raise TypeError("permute: p must be an array of integers, got None; range(A.shape[0]) keeps the rows")
    if q is None and A.shape[0] != A.shape[1]:
        raise ValueError(
            f"permute: q may be left out for a square A only, got shape {A.shape}; range(A.shape[1]) keeps "
            "the columns"
        )
    plan, inverse = _plan_permutation(A.pattern, p, p if q is None else q)
    return CSR(permuted(A.values, plan.at, inverse), plan.pattern)  # type: ignore[arg-type]


@makes_plain_tensors
def _selected_by_mask(mask: Any, shape: tuple[int, int]) -> tuple[Any, ...]:
    """The rows and columns that a boolean array of the matrix's shape selects."""
    a = as_numpy(mask) if isinstance(mask, Tensor) else mask
    if a.dtype != bool:
        return (mask,)
    if a.shape != shape:
        raise IndexError(
            f"A[...]: a mask of entries must have A's shape {shape}, one of rows the shape ({shape[0]},), "
            f"got {a.shape}"
        )
    return np.nonzero(a)


def _axis(k: Any, n: int) -> int | tuple[int, int, int] | np.ndarray:
    """An index of an axis of length n: an int, the (start, stop, step) of a slice, or an int64 array."""
    if isinstance(k, slice):
        return k.indices(n)
    if isinstance(k, (bool, np.bool_)) or k is None or k is Ellipsis:
        raise IndexError(f"A[...]: {k!r} is no index of a sparse matrix; index A.values for its batch axes")
    if isinstance(k, (int, np.integer)):
        if not -n <= k < n:
            raise IndexError(f"A[...]: index {k} is out of range for an axis of length {n}")
        return int(k) % n
    return _array(k, n)


@makes_plain_tensors
def _array(k: Any, n: int) -> Any:
    try:
        a = as_numpy(k) if isinstance(k, Tensor) else np.asarray(k)
    except ValueError:  # lists of different lengths
        raise IndexError(f"A[...]: an index must be an array, got {k!r}, which has no shape") from None
    if a.dtype == bool:
        if a.shape != (n,):
            raise IndexError(f"A[...]: a mask must have one axis of length {n}, got shape {a.shape}")
        return np.flatnonzero(a)
    if a.size == 0 and not isinstance(k, (Tensor, np.ndarray)):
        a = a.astype(np.int64)
    if a.dtype.kind not in "iu":
        raise IndexError(
            f"A[...]: an index must be an int, a slice, or integers or booleans in an array, got {a.dtype}"
        )
    outside = (a < -n) | (a >= n)  # before the cast, which wraps large unsigned integers
    if outside.any():
        raise IndexError(f"A[...]: index {a[outside][0]} is out of range for an axis of length {n}")
    a = a.astype(np.int64)
    a = np.where(a < 0, a + n, a)
    return int(a) if a.ndim == 0 else a


def _crossed(rows: np.ndarray, columns: np.ndarray) -> bool:
    return rows.ndim == columns.ndim == 2 and rows.shape[1] == columns.shape[0] == 1


def _plan_slices(P: SparsityPattern, *bounds: int) -> Selection:
    return _submatrix(P, np.arange(*bounds[:3]), range(*bounds[3:]))


@makes_plain_tensors
def _plan_submatrix(P: SparsityPattern, *axes: Any) -> Selection:
    rows, columns = axes
    rows = np.arange(*rows) if isinstance(rows, tuple) else rows
    return _submatrix(P, rows, range(*columns) if isinstance(columns, tuple) else columns)


def _submatrix(P: SparsityPattern, rows: np.ndarray, columns: range | np.ndarray) -> Selection:
    # SciPy keeps nonzero entries, so each entry is its position in P, plus one.
    numbers = np.arange(1, P.nnz + 1)
    S = scipy.sparse.csr_array((numbers, as_numpy(P.col_indices), as_numpy(P.crow_indices)), shape=P.shape)
    S = _columns_of(S[rows], columns)
    S.sort_indices()
    at = S.data - 1
    repeats = places(P, at) if len(at) and np.bincount(at).max() > 1 else None
    return Selection(trusted(P, S.indptr, S.indices, (len(rows), len(columns))), P._tensor(at), repeats)


def _columns_of(S: Any, columns: range | np.ndarray) -> Any:
    """S[:, columns], without SciPy's array over all columns of S if most of them are empty."""
    if isinstance(columns, range):
        steps, off = np.divmod(S.indices.astype(np.int64) - columns.start, columns.step)
        keep = (off == 0) & (steps >= 0) & (steps < len(columns))
        indptr = np.concatenate(([0], np.cumsum(keep)))[S.indptr]
        return scipy.sparse.csr_array((S.data[keep], steps[keep], indptr), (S.shape[0], len(columns)))
    if S.shape[1] > S.nnz + len(columns):
        used, col = np.unique(S.indices, return_inverse=True)
        at = np.searchsorted(used, columns)
        there = np.append(used, -1)[at] == columns  # otherwise a column without entries, after the others
        S = scipy.sparse.csr_array((S.data, col, S.indptr), (S.shape[0], len(used) + 1))
        columns = np.where(there, at, len(used))
    return S[:, columns]


@makes_plain_tensors
def _plan_permutation(P: SparsityPattern, p: Any, q: Any) -> tuple[Selection, Tensor]:
    orders = []
    for name, order, n in (("p", p, P.shape[0]), ("q", q, P.shape[1])):
        try:
            a = as_numpy(order) if isinstance(order, Tensor) else np.asarray(order)
        except ValueError:  # lists of different lengths
            raise TypeError(f"permute: {name} must be an array of integers, got {order!r}") from None
        a = a.astype(np.int64) if a.size == 0 else a
        if a.dtype.kind not in "iu" or a.shape != (n,) or not np.array_equal(np.sort(a), np.arange(n)):
            raise ValueError(
                f"permute: {name} must hold each of 0, ..., {n - 1} once, got {a.dtype} of shape {a.shape}"
                + (" that does not" if a.shape == (n,) else "")
            )
        orders.append(a.astype(np.int64))
    plan = _submatrix(P, *orders)
    assert plan.at is not None
    inverse = torch.empty_like(plan.at)
    inverse[plan.at] = torch.arange(P.nnz, device=inverse.device)
    return plan, inverse


def _entries(A: CSR, rows: Any, columns: Any) -> Tensor:
    """The entries (rows, columns) one by one, zero if missing."""
    plan = _plan_entries(A.pattern, rows, columns)
    shape, size, at, where, repeats = plan
    if repeats is not None:
        values = handed_out(A.values, repeats)
    elif where is None:
        values = take(A.values, at)
    else:
        values = place(take(A.values, at), where, size)
    return values.reshape(A.batch_shape + shape)


@makes_plain_tensors
def _plan_entries(P: SparsityPattern, rows: Any, columns: Any) -> tuple:
    rows, columns = (np.arange(*k) if isinstance(k, tuple) else np.asarray(k) for k in (rows, columns))
    try:
        rows, columns = np.broadcast_arrays(rows, columns)
    except ValueError:
        raise IndexError(
            f"A[...]: index arrays must broadcast, got shapes {rows.shape} and {columns.shape}; "
            "A[rows][:, columns] is the submatrix"
        ) from None
    at = find(P, rows.reshape(-1), columns.reshape(-1))
    there = at >= 0
    found = at[there]
    repeats = places(P, at) if len(found) and np.bincount(found).max() > 1 else None
    where = None if there.all() else P._tensor(np.flatnonzero(there))
    return rows.shape, len(at), P._tensor(found), where, repeats
