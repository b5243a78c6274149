"""Conversion of values and pattern from and to SciPy, torch and dense tensors: the code of `CSR.from_*` and
`CSR.to_*`, and files."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef

from learnsolve import _analysis
from learnsolve.matrix.cache import readable, unwrap_values
from learnsolve.matrix.pattern import (
    SparsityPattern,
    check_range,
    check_structure,
    check_tensors,
    matrix_shape,
    sort_checked_triples,
    to_numpy,
)

# SciPy's compiled functions check nothing: arrays changed after the matrix was made would send them out of
# bounds, so these are checked before anything reads them.


_NAME = "CSR.from_scipy"
_INT32 = np.iinfo(np.int32).max

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]  # indptr, indices and data of a CSR matrix


def arrays(S: Any, shape: Shape) -> Arrays:
    """New arrays of the CSR matrix equal to S, which may have any format. They form a valid pattern."""
    if S.format == "bsr":
        S = _without_blocks(S, shape)
    return (
        _read_compressed(S, shape) if S.format in ("csr", "csc") else _sum_triples(*_triples(S, shape), shape)
    )


def _index(name: str, a: object) -> np.ndarray:
    """A copy, with 32 bits if the array has 32, else 64."""
    a = np.asarray(a)
    if a.dtype.kind not in "iu" or a.ndim != 1:
        raise TypeError(
            f"{_NAME}: {name} must be integers in one axis, got {a.dtype} of shape {a.shape}. Convert the "
            "array of the matrix"
        )
    return a.astype(np.int32 if a.dtype.kind == "i" and a.dtype.itemsize <= 4 else np.int64)


def _check_index(name: str, a: object, size: int) -> np.ndarray:
    a = _index(name, a)
    check_range(_NAME, name, a, size)
    return a


def _one_length(name: str, a: np.ndarray, data: np.ndarray) -> None:
    if data.shape[:1] != a.shape:
        raise ValueError(
            f"{_NAME}: data and {name} must have the same length, got {data.shape[:1]} and {a.shape}. One of "
            "them was changed after the matrix was made"
        )


def _check_arrays(S: Any, shape: Shape, by_columns: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
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
    indptr, indices, data, _ = _check_arrays(S, blocks, False)
    check_range(_NAME, "indices", indices, blocks[1], "columns")  # before SciPy reads them
    return scipy.sparse.bsr_array((data, indices, indptr), shape=shape).tocsr()


def _read_compressed(S: Any, shape: Shape) -> Arrays:
    by_columns = S.format == "csc"
    rows, columns = shape
    indptr, indices, data, ordered = _check_arrays(S, (columns, rows) if by_columns else shape, by_columns)
    if data.ndim != 1:
        raise ValueError(f"{_NAME}: data must have one axis, got shape {data.shape}")
    if ordered and not by_columns:
        return indptr, indices, data
    if ordered:
        crow, col, permutation = _analysis.transpose(indptr, indices, shape[0])
        return crow, col, data[permutation]
    outer = np.repeat(np.arange(len(indptr) - 1, dtype=indices.dtype), np.diff(indptr))
    rows, columns = (indices, outer) if by_columns else (outer, indices)
    return _sum_triples(rows, columns, data, shape)


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
            _check_index(name, keys[:, axis], shape[axis]).astype(narrow)
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
        raise ValueError(f"{_NAME}: rows and data must hold lists of the same length in every row")
    flat = _join_lists("rows", lists, None)
    columns = _check_index("rows", flat if len(flat) else np.empty(0, dtype=np.int64), shape[1])
    narrow = np.int32 if max(*shape, len(flat)) <= _INT32 else np.int64
    rows = np.repeat(np.arange(shape[0], dtype=narrow), lengths)
    return rows, columns.astype(narrow), _join_lists("data", values, S.dtype)


def _join_lists(name: str, lists: Any, dtype: Any) -> np.ndarray:
    """The elements of all lists, concatenated."""
    try:
        return np.array([v for row in lists for v in row], dtype=dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise TypeError(
            f"{_NAME}: {name} must hold lists of numbers ({error}). One was changed after the matrix was made"
        ) from error


def _sum_triples(rows: np.ndarray, columns: np.ndarray, data: np.ndarray, shape: Shape) -> Arrays:
    """Duplicates are summed."""
    if data.ndim != 1:
        raise ValueError(f"{_NAME}: data must have one axis, got shape {data.shape}")
    crow, col, order, starts = sort_checked_triples(_NAME, rows, columns, shape, ("row", "col"))
    narrow = rows.dtype == columns.dtype == np.int32 and max(*shape, len(rows)) <= _INT32
    index, data = np.int32 if narrow else np.int64, data[order]
    if len(col) < len(order):
        data = np.add.reduceat(data, starts[:-1], dtype=data.dtype)
    return crow.astype(index), col.astype(index), data


Shape = tuple[int, int]
TensorLike = Tensor | np.ndarray  # accepted by `copy_array`


class SciPyMatrix(Protocol):
    """A SciPy sparse array or matrix, for type checkers, since SciPy has no types."""

    def tocsr(self, copy: bool = False) -> Any: ...


REAL_FORM = (
    "solve the real system [[Re A, -Im A], [Im A, Re A]] for [Re x; Im x], whose matrix "
    "learnsolve.ops.real_equivalent makes"
)


def real_on_a_device(function: str, name: str, value: Tensor) -> None:
    if value.is_complex() and not value.is_cpu:
        raise TypeError(
            f"{function}: {name} is complex and on {value.device}, but complex values are only supported on "
            f"the CPU. On this device, {REAL_FORM}"
        )


def check_real(function: str, name: str, dtype: object) -> None:
    """Reject complex dtypes of torch and NumPy: a conversion would drop imaginary parts."""
    if "complex" in str(dtype):
        raise TypeError(f"{function}: {name} must be real, got {dtype}. Instead, {REAL_FORM}")


def from_scipy(S: object, dtype: torch.dtype | None) -> tuple[Tensor, SparsityPattern]:
    values, pattern = scipy_parts(S)
    return cast("CSR.from_scipy", values, dtype), pattern


def cast(
    function: str, values: Tensor, dtype: torch.dtype | None, device: torch.device | str | None = None
) -> Tensor:
    """`values.to` that never drops imaginary parts."""
    if dtype is not None and values.is_complex() and not dtype.is_complex:
        raise TypeError(
            f"{function}: {dtype} would drop the imaginary parts of {values.dtype}. Use A.real, A.imag or "
            "A.abs(), or a complex dtype"
        )
    return values.to(device=device, dtype=dtype)


def conjugate(t: Tensor) -> Tensor:
    """The conjugate, not lazy: torch 2.13 has no batching rule for `torch.conj_physical`, and no batched
    gradient of `conj`."""
    if not t.is_complex():
        return t
    if readable(t) and forward_ad._current_level < 0 and not (t.requires_grad and torch.is_grad_enabled()):
        return t.conj().resolve_conj()  # in one pass
    t = t.resolve_conj()
    return torch.complex(t.real, -t.imag)


def scipy_parts(S: Any) -> tuple[Tensor, SparsityPattern]:
    if not scipy.sparse.issparse(S):
        raise TypeError(f"CSR.from_scipy: expected a scipy.sparse matrix, got {type(S).__name__}")
    if S.ndim != 2:
        raise ValueError(f"CSR.from_scipy: expected a matrix of two axes, got shape {S.shape}")
    shape = matrix_shape("CSR.from_scipy", S.shape)
    crow, col, data = arrays(S, shape)
    pattern = SparsityPattern._construct(torch.from_numpy(crow), torch.from_numpy(col), shape)
    return torch.from_numpy(np.array(data, dtype=data.dtype.newbyteorder("="))), pattern


def to_scipy(values: Tensor, pattern: SparsityPattern, format: str) -> Any:
    if format not in _FORMATS:
        raise ValueError(f"CSR.to_scipy: format must be one of {_FORMATS}, got {format!r}")
    arrays = tuple(to_numpy(t).copy() for t in (values, pattern.col_indices, pattern.crow_indices))
    return scipy.sparse.csr_array(arrays, shape=pattern.shape).asformat(format)


_FORMATS = ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")


def copy_array(value: object, like: Tensor | None = None) -> Any:
    """A copy of a NumPy array as a tensor, on the device of `like`. Anything else is returned unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind not in "fiubc":
        raise TypeError(f"a NumPy array must hold numbers, got {value.dtype}. Convert it with .astype")
    tensor = torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
    return tensor if like is None else tensor.to(like.device)


def from_torch(T: Tensor) -> tuple[Tensor | None, Any, Tensor, Shape]:
    """(crow_indices, col_indices, values, shape) of a CSR or COO tensor, and of the transpose of a CSC
    tensor. For blocks and unsorted columns, (None, (rows, columns), values, shape)."""
    if not isinstance(T, Tensor) or T.layout not in _LAYOUTS or T.dim() != 2:
        raise TypeError(
            "CSR.from_torch: T must be a 2-D sparse tensor of torch (CSR, COO, CSC, BSR, BSC). See from_dense"
        )
    shape = matrix_shape("CSR.from_torch", T.shape)
    if T.layout == torch.sparse_coo:
        return _from_coo(T, shape)
    if T.requires_grad and T.is_leaf and T.layout != torch.sparse_csr:
        layout = str(T.layout).removeprefix("torch.sparse_").upper()
        raise NotImplementedError(
            f"CSR.from_torch: torch cannot accumulate a gradient in a {layout} tensor. Make it from values "
            "that require grad, or use the CSR or COO layout"
        )
    return _from_compressed(T, shape) if T.layout in _LAYOUTS[:2] else _from_blocks(T, shape)


# The patterns of the last CSR tensors of torch, by the storages of their indices, which are not kept alive: a
# loop that calls a solver with such a tensor analyzes it once.
_patterns: dict[tuple[object, ...], tuple[list[StorageWeakRef], SparsityPattern]] = {}
_MOST = 8


def _csr_indices(T: Tensor) -> tuple[Tensor, Tensor] | None:
    if type(T) is not Tensor or T.layout != torch.sparse_csr or T.dim() != 2:
        return None
    indices = T.crow_indices(), T.col_indices()
    return indices if all(map(readable, indices)) else None


def _storage_key(T: Tensor, indices: tuple[Tensor, Tensor]) -> tuple[object, ...]:
    storages = (t.untyped_storage()._cdata for t in indices)
    return *storages, *(t.data_ptr() for t in indices), T.shape, T._nnz()


def known_pattern(T: Any) -> SparsityPattern | None:
    """The pattern that was kept for a CSR tensor, if the indices have not changed."""
    if not _patterns or (indices := _csr_indices(T)) is None:
        return None
    for key, (storages, _) in [*_patterns.items()]:
        if any(storage.expired() for storage in storages):
            _patterns.pop(key, None)
    found = _patterns.get(_storage_key(T, indices))
    kept = (found[1].crow_indices, found[1].col_indices) if found else ()
    same = found and all(torch.equal(a, b.to(a.dtype)) for a, b in zip(indices, kept, strict=True))
    return found[1] if same and found else None


def keep_pattern(T: Tensor, pattern: SparsityPattern) -> None:
    """Keep the pattern of a CSR tensor, if it does not keep the tensor alive."""
    if (indices := _csr_indices(T)) is None:
        return
    own = {t.untyped_storage()._cdata for t in (pattern.crow_indices, pattern.col_indices)}
    if own.isdisjoint(t.untyped_storage()._cdata for t in indices):
        for key in [*_patterns][: 1 - _MOST]:
            _patterns.pop(key, None)
        _patterns[_storage_key(T, indices)] = [StorageWeakRef(t.untyped_storage()) for t in indices], pattern


_LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo, torch.sparse_bsr, torch.sparse_bsc)


def _from_coo(T: Tensor, shape: Shape) -> tuple[Tensor | None, Any, Tensor, Shape]:
    name = "CSR.from_torch"
    if T.dense_dim() > 0:
        raise TypeError(
            "CSR.from_torch: T must be a 2-D sparse tensor of torch without dense dimensions, "
            f"got {T.dense_dim()} dense"
        )
    # torch makes sparse tensors from unchecked arrays and reads them unchecked in coalesce.
    if T._indices().shape != (2, len(T._values())):
        raise ValueError(
            f"{name}: the indices of a COO tensor must have shape (2, {len(T._values())}), as it has "
            f"values, got {tuple(T._indices().shape)}"
        )
    if len(T._values()):
        (a, b), (c, d) = torch.stack((T._indices().amin(1), T._indices().amax(1))).tolist()
        for axis, (what, low, high) in enumerate((("rows", a, c), ("columns", b, d))):
            if low < 0 or high >= shape[axis]:
                check_range(name, what, to_numpy(T._indices()[axis]), shape[axis])
    T = T.coalesce()  # sorted, without duplicates
    rows, columns = T.indices()
    if bool((rows.diff() < 0).any()):
        raise ValueError(f"{name}: the rows of a coalesced COO tensor must be sorted")
    crow = torch.searchsorted(rows, torch.arange(shape[0] + 1, device=T.device))
    return crow, columns.contiguous(), T.values(), shape


def _from_compressed(T: Tensor, shape: Shape) -> tuple[Tensor | None, Any, Tensor, Shape]:
    name = "CSR.from_torch"
    by_columns = T.layout == torch.sparse_csc
    if by_columns:
        crow, col, shape = T.ccol_indices(), T.row_indices(), (shape[1], shape[0])
        names = ("ccol_indices", "row_indices", "rows")
    else:
        crow, col = T.crow_indices(), T.col_indices()
        names = ("crow_indices", "col_indices", "columns")
    check_tensors(name, crow, col, names[:2])
    if len(T.values()) != len(col):
        raise ValueError(
            f"{name}: the tensor must have as many values as {names[1]}, got {len(T.values())} and {len(col)}"
        )
    if check_structure(name, crow, col, shape, names=names, canonical=False):  # torch allows unsorted columns
        return crow, col, T.values(), shape
    if T.requires_grad and not by_columns:
        raise NotImplementedError(
            "CSR.from_torch: the columns of this CSR tensor are not sorted, and torch hands the "
            "gradient of such values back in the wrong order. Pass T.detach(), or sort with "
            "T.to_sparse_coo().coalesce()"
        )
    return None, (_rows(crow), col), T.values(), shape


def _from_blocks(T: Tensor, shape: Shape) -> tuple[Tensor | None, Any, Tensor, Shape]:
    """The triples of all entries of the blocks, including zeros."""
    name = "CSR.from_torch"
    values, by_columns = T.values(), T.layout == torch.sparse_bsc
    height, width = values.shape[-2:]
    blocks = shape[0] // height, shape[1] // width
    if by_columns:
        crow, col = T.ccol_indices(), T.row_indices()
        check_structure(
            name, crow, col, (blocks[1], blocks[0]), names=("ccol_indices", "row_indices", "rows")
        )
        rows, columns = col, _rows(crow)
    else:
        crow, col = T.crow_indices(), T.col_indices()
        check_structure(name, crow, col, blocks)
        rows, columns = _rows(crow), col
    i, j = (torch.arange(size, device=T.device) for size in (height, width))
    rows = (rows.view(-1, 1, 1) * height + i.view(-1, 1)).expand(values.shape)
    columns = (columns.view(-1, 1, 1) * width + j).expand(values.shape)
    return None, (rows.flatten(), columns.flatten()), values.flatten(), shape


def _rows(crow: Tensor) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(crow) - 1, device=crow.device), crow.diff())


def to_torch(values: Tensor, pattern: SparsityPattern, layout: torch.layout) -> Tensor:
    if layout == torch.sparse_csr:
        return torch.sparse_csr_tensor(
            pattern.crow_indices.clone(),
            pattern.col_indices.clone(),
            values,
            pattern.shape,
            check_invariants=False,
        )
    if layout == torch.sparse_coo:
        indices = torch.stack((pattern.row_indices, pattern.col_indices))
        return torch.sparse_coo_tensor(
            indices, values, pattern.shape, check_invariants=False, is_coalesced=True
        )
    raise ValueError(f"CSR.to_torch: layout must be torch.sparse_csr or torch.sparse_coo, got {layout}")


def check_dense(D: object) -> None:
    if not isinstance(D, Tensor) or D.dim() != 2 or D.layout != torch.strided:
        raise TypeError("CSR.from_dense: D must be a 2-D torch.Tensor or NumPy array, dense. See from_torch")
    if D.is_meta:
        raise ValueError("CSR.from_dense: D must have data, got a tensor on meta")


def from_dense(D: Tensor) -> tuple[Tensor, SparsityPattern]:
    check_dense(D)
    rows, columns = unwrap_values(D).detach().nonzero(as_tuple=True)
    crow = torch.searchsorted(rows, torch.arange(D.shape[0] + 1, device=D.device))
    return D[rows, columns], SparsityPattern._construct(crow, columns, (D.shape[0], D.shape[1]))


def to_dense(values: Tensor, pattern: SparsityPattern) -> Tensor:
    rows, columns = pattern.shape
    if rows * columns > 2**62:
        raise ValueError(f"CSR.to_dense: a dense matrix of shape {pattern.shape} is too large")
    at = pattern.row_indices.long() * columns + pattern.col_indices
    flat = values.new_zeros((*values.shape[:-1], rows * columns))
    return flat.index_copy(-1, at, values).unflatten(-1, (rows, columns))


def replace_file(path: str | os.PathLike[str], content: bytes, durable: bool = False) -> None:
    """`path` holds the old content or the new content, never a part, whatever happens to this process. With
    `durable` the new content is on the disk when this returns. An OSError names the file.

    The temporary file is in the same folder: a rename is atomic only within a file system.
    """
    path = Path(path)
    # Only digits after the name, by which a resumed run recognizes leftovers of killed writers.
    temporary = path.with_name(f".{path.name}.{os.getpid()}{threading.get_native_id():08}.tmp")
    try:
        try:
            temporary.write_bytes(content)
            if durable:
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        if durable:
            _sync(path.parent)  # the rename itself
    except OSError as error:
        # A failed write or sync does not name a file, and the temporary name would not help the reader.
        error.filename, error.filename2 = str(path), None
        raise


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _safetensors(function: str) -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            f"{function} needs safetensors: pip install 'learnsolve[train]'", name="safetensors"
        ) from error
    return safetensors.torch


def write_tensors(
    function: str, path: str | os.PathLike[str], tensors: dict[str, Tensor], header: dict[str, str]
) -> None:
    """An existing file is replaced atomically."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    replace_file(path, _safetensors(function).save(tensors, header))


def read_tensors(function: str, path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header. Raises a ValueError for a damaged file."""
    content, load = Path(path).read_bytes(), _safetensors(function).load
    try:
        length = int.from_bytes(content[:8], "little")
        return load(content), json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    except Exception as error:  # the parsers raise errors of many classes for a damaged file
        raise ValueError(f"{function}: {path} is damaged, or no safetensors file ({error})") from error
