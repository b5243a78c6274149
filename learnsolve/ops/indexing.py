"""A[rows, columns], permutations, and matrices from triples in any order, differentiable in the values."""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix import checks
from learnsolve.matrix.cache import makes_plain_tensors
from learnsolve.matrix.checks import AnyMatrix
from learnsolve.matrix.convert import TensorLike, copy_array
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import (
    SparsityPattern,
    check_device,
    matrix_shape,
    sort_checked_triples,
    to_numpy,
)
from learnsolve.ops.autograd import OfLastAxes, dispatch
from learnsolve.ops.products import product

# Positions are planned once by the operation. Those of `take` and `place` are distinct, and the two are
# adjoints of each other: nothing is added up, so gradients are exact and deterministic, to any order.


def take(values: Tensor, at: Tensor, dim: int = -1) -> Tensor:
    """values[..., at] for distinct positions, or along another axis `dim` < 0."""
    return dispatch(_Take, (values,), at, dim)


def place(values: Tensor, at: Tensor, size: int, dim: int = -1) -> Tensor:
    """Zeros (..., size) with values at distinct positions, or along another axis."""
    return dispatch(_Place, (values,), at, size, dim)


def permute_values(values: Tensor, forward: Tensor, backward: Tensor, dim: int = -1) -> Tensor:
    """values[..., forward], or along another axis `dim` < 0. `backward` is the inverse."""
    return dispatch(_Permute, (values,), forward, backward, dim)


def sum_at_places(values: Tensor, places: SparsityPattern) -> Tensor:
    """Value i of the result is the sum of the `values` (..., n) at the columns of row i of `places`, a 0/1
    matrix, so that the gradient of a repeated value is a sum in a fixed order."""
    ones = torch.ones(places.nnz, dtype=values.real.dtype, device=values.device)
    if values.dim() == 1:
        return product(ones, values, places, False)
    return product(ones, values.unsqueeze(-1), places, False).squeeze(-1)


class _Take(OfLastAxes):
    @staticmethod
    def forward(values, at, dim):
        return values.index_select(dim, at)

    @staticmethod
    def setup_context(ctx, inputs, output):
        values, *ctx.constants = inputs
        ctx.size = values.shape[inputs[2]]

    @staticmethod
    def backward(ctx, g):
        at, dim = ctx.constants
        return place(g, at, ctx.size, dim), None, None


class _Place(OfLastAxes):
    @staticmethod
    def forward(values, at, size, dim):
        shape = list(values.shape)
        shape[dim] = size
        return values.new_zeros(shape).index_copy(dim, at.long(), values)

    @staticmethod
    def backward(ctx, g):
        at, _, dim = ctx.constants
        return take(g, at, dim), None, None, None


class _Permute(OfLastAxes):
    """Its gradient is also a gather, whereas torch's would add into zeros."""

    @staticmethod
    def forward(values, forward, backward, dim):
        return values.index_select(dim, forward)

    @staticmethod
    def backward(ctx, g):
        forward, backward, dim = ctx.constants
        return permute_values(g, backward, forward, dim), None, None, None


class Selection(NamedTuple):
    """Another pattern and the position of the value of each of its entries. None means the pattern itself."""

    pattern: SparsityPattern | None
    at: Tensor | None
    repeats: SparsityPattern | None = None  # if values repeat: the 0/1 matrix that distributes them


def apply_selection(A: CSR, plan: Selection) -> CSR:
    if plan.pattern is None or plan.at is None:
        return A
    if plan.repeats is None:
        return CSR(take(A.values, plan.at), plan.pattern)
    return CSR(repeat_values(A.values, plan.repeats), plan.pattern)


def repeat_values(values: Tensor, places: SparsityPattern) -> Tensor:
    """Row i of `places` has the position of value i of the result, or no entry for a zero."""
    checks.dtype("A[...]", "A.values", values, or_complex=True)
    return sum_at_places(values, places)


def places(P: SparsityPattern, at: np.ndarray) -> SparsityPattern:
    """The 0/1 matrix for `repeat_values`. at = -1 means a zero."""
    crow = np.concatenate(([0], np.cumsum(at >= 0)))
    return construct_pattern(P, crow, at[at >= 0], (len(at), P.nnz))


def drop_empty_columns(P: SparsityPattern) -> SparsityPattern:
    """P, or P without its empty columns if most are empty: for results that do not depend on column indices,
    such as row sums, in O(nnz + rows)."""
    return P._plan_once(_plan_used_columns) if P.shape[1] > P.nnz + P.shape[0] else P


def _plan_used_columns(P: SparsityPattern) -> SparsityPattern:
    used, col = np.unique(to_numpy(P.col_indices), return_inverse=True)
    return construct_pattern(P, to_numpy(P.crow_indices), col, (P.shape[0], len(used)))


def find(P: SparsityPattern, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Positions of the entries, -1 for missing ones: all binary searches in parallel."""
    crow, col = to_numpy(P.crow_indices), to_numpy(P.col_indices)
    low, high = crow[rows].astype(np.int64), crow[rows + 1].astype(np.int64)
    end = high.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        left = open_ & (col[np.where(open_, middle, 0)] < columns)
        low, high = np.where(left, middle + 1, low), np.where(open_ & ~left, middle, high)
    there = low < end
    there[there] = col[low[there]] == columns[there]
    return np.where(there, low, -1)


def onto(A: CSR, Q: SparsityPattern) -> CSR:
    """A's entries on the pattern Q, zeros where A has none. Entries of A outside Q are dropped."""
    if A.pattern is Q:
        return A
    at, where = A.pattern._plan_once(_plan_onto, Q)
    return CSR(place(take(A.values, at), where, Q.nnz), Q)


def _plan_onto(P: SparsityPattern, Q: SparsityPattern) -> tuple[Tensor, Tensor]:
    arrays = [to_numpy(t) for t in (P.crow_indices, P.col_indices, Q.crow_indices, Q.col_indices)]
    if P.dtype != Q.dtype:
        arrays = [a.astype(np.int64, copy=False) for a in arrays]
    at, where = _analysis.common_positions(*arrays)
    return P._tensor(at), P._tensor(where)


def diagonal_mask(P: SparsityPattern) -> Tensor:
    """For each entry, whether it is on the diagonal."""
    return P._plan_once(_plan_on_diagonal)[0]


def _plan_on_diagonal(P: SparsityPattern) -> tuple[Tensor]:
    return (P.row_indices == P.col_indices,)


class SortedPattern(NamedTuple):
    """A pattern, the order of its entries among the original ones, and the inverse. None means unchanged."""

    pattern: SparsityPattern
    forward: Tensor | None = None
    backward: Tensor | None = None


def sort_by_row(like: SparsityPattern, rows: np.ndarray, columns: np.ndarray, shape: tuple) -> SortedPattern:
    """For distinct entries that are sorted by column within each row."""
    crow = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=shape[0]))))
    if len(rows) < 2 or (np.diff(rows) >= 0).all():
        return SortedPattern(construct_pattern(like, crow, columns, shape))
    order = np.argsort(rows, kind="stable")
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return SortedPattern(
        construct_pattern(like, crow, columns[order], shape), like._tensor(order), like._tensor(inverse)
    )


def reorder_values(values: Tensor, plan: SortedPattern) -> Tensor:
    if plan.forward is None or plan.backward is None:
        return values
    return permute_values(values, plan.forward, plan.backward)


def first_of_each(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The first index of each distinct position among sorted ones that may repeat."""
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
    return np.flatnonzero(new)


def construct_pattern(
    like: SparsityPattern, crow: np.ndarray, col: np.ndarray, shape: tuple
) -> SparsityPattern:
    """A valid pattern with the index type of `like`, unless that is too narrow."""
    wide = max(*shape, len(col)) > torch.iinfo(torch.int32).max
    dtype = torch.int64 if wide else like.dtype
    rows, columns = (int(s) for s in shape)
    return SparsityPattern._construct(
        like._tensor(np.ascontiguousarray(crow)).to(dtype),
        like._tensor(np.ascontiguousarray(col)).to(dtype),
        (rows, columns),
    )


# An int drops its axis, as in NumPy and torch; slices and index arrays keep theirs. Two index arrays select
# entries one by one, unless they have shapes (r, 1) and (1, c), as from ``numpy.ix_``. So a submatrix is
# also ``A[rows][:, columns]``. A mask of A's shape selects entries one by one too, in the order of rows.


def index(A: CSR, key: object) -> CSR | Tensor:
    """``A[key]``, see `CSR.__getitem__`.

    Slices are planned once, with the pattern of the result, which is the same in every later call. Index
    arrays are planned in every call, in O(nnz), outside the code that `torch.compile` traces.
    """
    key = key if isinstance(key, tuple) else (key,)
    if not key:
        raise IndexError("A[...]: expected one or two indices, got none. A[:, :] is the whole matrix")
    if len(key) > 2:
        raise IndexError(f"A[...]: a matrix has two axes, got {len(key)} indices")
    if len(key) == 1 and isinstance(key[0], (Tensor, np.ndarray)) and key[0].ndim == 2:
        key = _mask_positions(key[0], A.shape)
    axes: list[Any] = [_axis(k, n) for k, n in zip((*key, slice(None))[:2], A.shape, strict=True)]
    rows, columns = axes
    if isinstance(rows, tuple) and isinstance(columns, tuple):
        whole = rows == (0, A.shape[0], 1) and columns == (0, A.shape[1], 1)
        return A if whole else apply_selection(A, A.pattern._plan_once(_plan_slices, *rows, *columns))
    dense = isinstance(rows, int) or isinstance(columns, int)
    arrays = isinstance(rows, np.ndarray) and isinstance(columns, np.ndarray)
    if arrays and _is_outer_index(*axes):
        rows, columns, arrays = axes[0][:, 0], axes[1][0], False
    if dense or arrays:
        return _entries(A, rows, columns)
    for k in (rows, columns):
        if isinstance(k, np.ndarray) and k.ndim != 1:
            raise IndexError(f"A[...]: index arrays must have one axis, got shape {k.shape}")
    return apply_selection(A, _plan_submatrix(A.pattern, rows, columns))


def permute(A: AnyMatrix, p: object, q: object = None) -> CSR:
    """A[p][:, q], with permuted rows and columns. q defaults to p, which is P A P^T for a square A.

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
    if p is None:
        raise TypeError("permute: p must be an array of integers, got None. range(A.shape[0]) keeps the rows")
    if q is None and A.shape[0] != A.shape[1]:
        raise ValueError(
            f"permute: q may be omitted for a square A only, got shape {A.shape}. range(A.shape[1]) keeps "
            "the columns"
        )
    plan, inverse = _plan_permutation(A.pattern, p, p if q is None else q)
    return CSR(permute_values(A.values, plan.at, inverse), plan.pattern)  # type: ignore[arg-type]


@makes_plain_tensors
def _mask_positions(mask: Any, shape: tuple[int, int]) -> tuple[Any, ...]:
    """The rows and columns that a boolean array of the matrix's shape selects."""
    a = to_numpy(mask) if isinstance(mask, Tensor) else mask
    if a.dtype != bool:
        return (mask,)
    if a.shape != shape:
        raise IndexError(
            f"A[...]: a mask of entries must have A's shape {shape}, one of rows the shape ({shape[0]},), "
            f"got {a.shape}"
        )
    return np.nonzero(a)


def _axis(k: object, n: int) -> int | tuple[int, int, int] | np.ndarray:
    """An index of an axis of length n: an int, the (start, stop, step) of a slice, or an int64 array."""
    if isinstance(k, slice):
        return k.indices(n)
    if isinstance(k, (bool, np.bool_)) or k is None or k is Ellipsis:
        raise IndexError(
            f"A[...]: {k!r} is not an index of a sparse matrix. Index A.values for its batch axes"
        )
    if isinstance(k, (int, np.integer)):
        if not -n <= k < n:
            raise IndexError(f"A[...]: index {k} is out of range for an axis of length {n}")
        return int(k) % n
    return _array(k, n)


@makes_plain_tensors
def _array(k: object, n: int) -> Any:
    try:
        a = to_numpy(k) if isinstance(k, Tensor) else np.asarray(k)
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


def _is_outer_index(rows: np.ndarray, columns: np.ndarray) -> bool:
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
    S = scipy.sparse.csr_array((numbers, to_numpy(P.col_indices), to_numpy(P.crow_indices)), shape=P.shape)
    S = _select_columns(S[rows], columns)
    S.sort_indices()
    at = S.data - 1
    repeats = places(P, at) if len(at) and np.bincount(at).max() > 1 else None
    return Selection(
        construct_pattern(P, S.indptr, S.indices, (len(rows), len(columns))), P._tensor(at), repeats
    )


def _select_columns(S: Any, columns: range | np.ndarray) -> Any:
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


def permutation(function: str, name: str, order: object, n: int, remedy: str = "") -> np.ndarray:
    """`order`, which must hold each of 0, ..., n - 1 once, as int64."""
    try:
        a = to_numpy(order) if isinstance(order, Tensor) else np.asarray(order)
    except ValueError:  # lists of different lengths
        raise TypeError(f"{function}: {name} must be an array of integers, got {order!r}") from None
    a = a.astype(np.int64) if a.size == 0 else a
    if a.dtype.kind not in "iu" or a.shape != (n,) or not np.array_equal(np.sort(a), np.arange(n)):
        raise ValueError(
            f"{function}: {name} must hold each of 0, ..., {n - 1} once, got "
            f"{getattr(order, 'dtype', a.dtype)} of shape {a.shape}"
            + (" that does not" if a.shape == (n,) else "")
            + remedy
        )
    return a.astype(np.int64)


@makes_plain_tensors
def _plan_permutation(P: SparsityPattern, p: object, q: object) -> tuple[Selection, Tensor]:
    orders = (permutation("permute", *given) for given in (("p", p, P.shape[0]), ("q", q, P.shape[1])))
    plan = _submatrix(P, *orders)
    assert plan.at is not None
    inverse = torch.empty_like(plan.at)
    inverse[plan.at] = torch.arange(P.nnz, device=inverse.device)
    return plan, inverse


def _entries(A: CSR, rows: object, columns: object) -> Tensor:
    """The entries (rows, columns) one by one, zero if missing."""
    plan = _plan_entries(A.pattern, rows, columns)
    shape, size, at, where, repeats = plan
    if repeats is not None:
        values = repeat_values(A.values, repeats)
    elif where is None:
        values = take(A.values, at)
    else:
        values = place(take(A.values, at), where, size)
    return values.reshape(A.batch_shape + shape)


@makes_plain_tensors
def _plan_entries(P: SparsityPattern, rows: object, columns: object) -> tuple:
    rows, columns = (np.arange(*k) if isinstance(k, tuple) else np.asarray(k) for k in (rows, columns))
    try:
        rows, columns = np.broadcast_arrays(rows, columns)
    except ValueError:
        raise IndexError(
            f"A[...]: index arrays must broadcast, got shapes {rows.shape} and {columns.shape}. "
            "A[rows][:, columns] is the submatrix"
        ) from None
    at = find(P, rows.reshape(-1), columns.reshape(-1))
    there = at >= 0
    found = at[there]
    repeats = places(P, at) if len(found) and np.bincount(found).max() > 1 else None
    where = None if there.all() else P._tensor(np.flatnonzero(there))
    return rows.shape, len(at), P._tensor(found), where, repeats


class Assembly:
    """The plan of matrices that are summed from entries in fixed positions, as in finite element assembly.

    Parameters
    ----------
    rows, columns : integer tensors or NumPy arrays, shape (entries,): positions in any order, also repeated
    shape : (rows, columns)
    device : of the matrices. Default: that of rows

    Attributes
    ----------
    pattern : SparsityPattern of all matrices; int32 if rows and columns are, otherwise int64
    places : SparsityPattern, shape (pattern.nnz, entries): row p has the entries that are summed in entry p

    Raises
    ------
    TypeError, ValueError
        unless rows and columns are 1-D, of integers, equally long and inside shape. In a call, unless values
        has floating-point or complex numbers on the same device, as many as rows along its last axis.

    Notes
    -----
    ``assembly(values)``, for a Tensor or NumPy array of shape (..., entries), is the `CSR` in which entry
    (rows[e], columns[e]) is the sum of the values of all entries there, in the order given. Zeros remain
    entries. The positions are sorted once, in O(entries + rows + columns). A call costs one product with a
    0/1 matrix. `CSR.from_coo` does both. Gradient: each value gets that of its sum, to any order, in forward
    mode, under vmap. Bitwise identical for any number of threads.

    Examples
    --------
    The stiffness matrix of linear elements on an interval:

    >>> import torch, learnsolve as ls
    >>> ends = torch.stack((torch.arange(3), torch.arange(3) + 1), 1)
    >>> rows, columns = ends.repeat_interleave(2, 1), ends.repeat(1, 2)
    >>> assembly = ls.ops.Assembly(rows.flatten(), columns.flatten(), (4, 4))
    >>> kappa = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> K = assembly((kappa[:, None] * torch.tensor([1.0, -1.0, -1.0, 1.0])).flatten())
    >>> K.diagonal().tolist(), K.pattern is assembly.pattern
    ([1.0, 3.0, 5.0, 3.0], True)
    """

    pattern: SparsityPattern
    places: SparsityPattern

    def __init__(
        self,
        rows: TensorLike,
        columns: TensorLike,
        shape: tuple[int, int],
        *,
        device: torch.device | str | None = None,
    ):
        indices = copy_array(rows), copy_array(columns)
        self.pattern, self.places = _sort("Assembly", *indices, shape, device)

    def __call__(self, values: TensorLike) -> CSR:
        return _sum_entries(
            "Assembly", copy_array(values, self.places.crow_indices), self.pattern, self.places
        )

    def __repr__(self) -> str:
        return f"Assembly(shape={self.pattern.shape}, entries={self.places.shape[1]}, nnz={self.pattern.nnz})"


def from_coo(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> CSR:
    """See `CSR.from_coo`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> i, j = torch.tensor([1, 0, 1]), torch.tensor([0, 1, 0])
    >>> ls.CSR.from_coo(i, j, torch.tensor([1.0, 2.0, 3.0]), (2, 2)).to_dense()
    tensor([[0., 2.],
            [4., 0.]])
    """
    checks.tensor("from_coo", "values", values)
    return _sum_entries("from_coo", values, *_sort("from_coo", rows, columns, shape, values.device))


def _sum_entries(function: str, values: Tensor, pattern: SparsityPattern, places: SparsityPattern) -> CSR:
    checks.tensor(function, "values", values)
    checks.dtype(function, "values", values, or_complex=True)
    if values.shape[-1:] != places.shape[1:]:
        raise ValueError(
            f"{function}: the last axis of values must have the length of rows and columns, "
            f"{places.shape[1]}, got shape {tuple(values.shape)}"
        )
    if values.device != places.device:
        raise TypeError(
            f"{function}: values are on {values.device}, the matrices on {places.device}. Pass device= to "
            "Assembly, or move the values with .to()"
        )
    return CSR(sum_at_places(values, places), pattern)


@makes_plain_tensors
def _sort(
    function: str, rows: Tensor, columns: Tensor, shape: tuple[int, int], device: torch.device | str | None
) -> tuple[SparsityPattern, SparsityPattern]:
    """The pattern of the triples, and the pattern of the 0/1 matrix (entries of the pattern x triples)."""
    for name, t in (("rows", rows), ("columns", columns)):
        checks.tensor(function, name, t)
        if t.is_floating_point() or t.is_complex() or t.dtype == torch.bool or t.dim() != 1:
            raise TypeError(
                f"{function}: rows and columns must be 1-D tensors of integers, got "
                f"{t.dtype} of shape {tuple(t.shape)}"
            )
    if len(rows) != len(columns):
        raise ValueError(
            f"{function}: rows and columns must have the same length, got {len(rows)} and {len(columns)}"
        )
    m, n = matrix_shape(function, shape)
    check_device(function, device)
    # Duplicates are added in the order given.
    arrays = sort_checked_triples(function, to_numpy(rows), to_numpy(columns), (m, n))
    crow, col, order, starts = (torch.from_numpy(a).to(device or rows.device) for a in arrays)
    narrow = rows.dtype == columns.dtype == torch.int32
    crow, col = (t if narrow and t.dtype == torch.int32 else t.long() for t in (crow, col))
    pattern = SparsityPattern._construct(crow, col, (m, n))
    return pattern, SparsityPattern._construct(starts, order, (pattern.nnz, len(order)))
