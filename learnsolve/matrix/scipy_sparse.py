"""The arrays of scipy.sparse matrices, checked before anything reads them: SciPy's compiled functions check
nothing, and arrays that were changed after the matrix was made would send them out of bounds."""

from typing import Any

import numpy as np
import scipy.sparse
import torch

from learnsolve import _analysis
from learnsolve.matrix.pattern_checks import check_range, check_structure, sorted_triples

_NAME = "CSR.from_scipy"
_INT32 = np.iinfo(np.int32).max

Shape = tuple[int, int]
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]  # indptr, indices and data of a CSR matrix


def arrays(S: Any, shape: Shape) -> Arrays:
    """New arrays of the CSR matrix equal to S, which may have any format; they form a valid pattern."""
    if S.format == "bsr":
        S = _without_blocks(S, shape)
    return _compressed(S, shape) if S.format in ("csr", "csc") else _from_triples(*_triples(S, shape), shape)


def _index(name: str, a: Any) -> np.ndarray:
    """A copy, with 32 bits if the array has 32, else 64."""
    a = np.asarray(a)
    if a.dtype.kind not in "iu" or a.ndim != 1:
        raise TypeError(
            f"{_NAME}: {name} must be integers in one axis, got {a.dtype} of shape {a.shape}; convert the "
            "array of the matrix"
        )
    return a.astype(np.int32 if a.dtype.kind == "i" and a.dtype.itemsize <= 4 else np.int64)


def _in_range(name: str, a: Any, size: int) -> np.ndarray:
    a = _index(name, a)
    check_range(_NAME, name, a, size)
    return a


def _one_length(name: str, a: np.ndarray, data: np.ndarray) -> None:
    if data.shape[:1] != a.shape:
        raise ValueError(
            f"{_NAME}: data and {name} must have one length, got {data.shape[:1]} and {a.shape}; one of them "
            "was changed after the matrix was made"
        )


def _checked(S: Any, shape: Shape, by_columns: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """(indptr, indices, data, whether they are sorted without duplicates)"""
    indptr, indices = _index("indptr", S.indptr), _index("indices", S.indices)
    both = np.promote_types(indptr.dtype, indices.dtype)
    indptr, indices, data = indptr.astype(both), indices.astype(both), np.asarray(S.data)
    _one_length("indices", indices, data)
    names = ("indptr", "indices", "rows" if by_columns else "columns")
    ordered = check_structure(
        _NAME, torch.from_numpy(indptr), torch.from_numpy(indices), shape, names=names, canonical=False
    )
    return indptr, indices, data, ordered


def _without_blocks(S: Any, shape: Shape) -> Any:
    data = np.asarray(S.data)
    if data.ndim != 3 or 0 in data.shape[1:] or shape[0] % data.shape[1] or shape[1] % data.shape[2]:
        raise ValueError(
            f"{_NAME}: data must hold blocks of a size that divides the shape {shape}, got {data.shape}"
        )
    blocks = shape[0] // data.shape[1], shape[1] // data.shape[2]
    indptr, indices, data, _ = _checked(S, blocks, False)
    check_range(_NAME, "indices", indices, blocks[1], "columns")  # before SciPy reads them
    return scipy.sparse.bsr_array((data, indices, indptr), shape=shape).tocsr()


def _compressed(S: Any, shape: Shape) -> Arrays:
    by_columns = S.format == "csc"
    rows, columns = shape
    indptr, indices, data, ordered = _checked(S, (columns, rows) if by_columns else shape, by_columns)
    if data.ndim != 1:
        raise ValueError(f"{_NAME}: data must have one axis, got shape {data.shape}")
    if ordered and not by_columns:
        return indptr, indices, data
    if ordered:
        crow, col, permutation = _analysis.transpose(indptr, indices, shape[0])
        return crow, col, data[permutation]
    outer = np.repeat(np.arange(len(indptr) - 1, dtype=indices.dtype), np.diff(indptr))
    rows, columns = (indices, outer) if by_columns else (outer, indices)
    return _from_triples(rows, columns, data, shape)


def _triples(S: Any, shape: Shape) -> Arrays:
    """(rows, columns, data), unchecked."""
    if S.format == "coo":
        rows, columns, data = _index("row", S.row), _index("col", S.col), np.asarray(S.data)
    elif S.format == "dia":
        rows, columns, data = _diagonals(S, shape)
    elif S.format == "dok":
        keys = np.array(list(S.keys()), dtype=None if S.nnz else np.int64).reshape(-1, 2)
        narrow = np.int32 if max(*shape, len(keys)) <= _INT32 else np.int64
        rows, columns = (
            _in_range(name, keys[:, axis], shape[axis]).astype(narrow)
            for axis, name in enumerate(("rows", "columns"))
        )
        data = np.fromiter(S.values(), S.dtype, len(keys))
    else:
        rows, columns, data = _lists(S, shape)
    for name, indices in (("row", rows), ("col", columns)):
        _one_length(name, indices, data)
    return rows, columns, data


def _diagonals(S: Any, shape: Shape) -> Arrays:
    """As in SciPy: zeros, which pad diagonals, are not entries."""
    offsets, data = _index("offsets", S.offsets).astype(np.int64), np.asarray(S.data)
    _one_length("offsets", offsets, data)
    if data.ndim != 2:
        raise ValueError(f"{_NAME}: data must hold a diagonal in each row, got shape {data.shape}")
    inside = (offsets > -shape[0]) & (offsets < shape[1])
    diagonal, columns = np.nonzero(data[inside, : shape[1]])
    rows = columns - offsets[inside][diagonal]
    inner = (rows >= 0) & (rows < shape[0])
    narrow = np.int32 if max(*shape, len(rows)) <= _INT32 else np.int64
    rows, columns, diagonal = rows[inner].astype(narrow), columns[inner].astype(narrow), diagonal[inner]
    return rows, columns, data[inside][diagonal, columns]


def _lists(S: Any, shape: Shape) -> Arrays:
    lists, values = np.asarray(S.rows), np.asarray(S.data)
    if lists.shape != shape[:1] or values.shape != shape[:1]:
        raise ValueError(
            f"{_NAME}: rows and data must hold a list for each of {shape[0]} rows, got shapes {lists.shape} "
            f"and {values.shape}"
        )
    lengths = [len(row) for row in lists]
    if lengths != [len(row) for row in values]:
        raise ValueError(f"{_NAME}: rows and data must hold lists of one length in every row")
    flat = _joined("rows", lists, None)
    columns = _in_range("rows", flat if len(flat) else np.empty(0, dtype=np.int64), shape[1])
    narrow = np.int32 if max(*shape, len(flat)) <= _INT32 else np.int64
    rows = np.repeat(np.arange(shape[0], dtype=narrow), lengths)
    return rows, columns.astype(narrow), _joined("data", values, S.dtype)


def _joined(name: str, lists: Any, dtype: Any) -> np.ndarray:
    """The elements of all lists, concatenated."""
    try:
        return np.array([v for row in lists for v in row], dtype=dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise TypeError(
            f"{_NAME}: {name} must hold lists of numbers ({error}); one was changed after the matrix was made"
        ) from error


def _from_triples(rows: np.ndarray, columns: np.ndarray, data: np.ndarray, shape: Shape) -> Arrays:
    """Duplicates are summed."""
    if data.ndim != 1:
        raise ValueError(f"{_NAME}: data must have one axis, got shape {data.shape}")
    crow, col, order, first = sorted_triples(_NAME, rows, columns, shape, ("row", "col"))
    narrow = rows.dtype == columns.dtype == np.int32 and max(*shape, len(rows)) <= _INT32
    index, data = np.int32 if narrow else np.int64, data[order]
    if len(first) < len(order):
        data = np.add.reduceat(data, first, dtype=data.dtype)
    return crow.astype(index), col.astype(index), data
