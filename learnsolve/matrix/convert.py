"""Conversion of values and pattern from and to SciPy, torch and dense tensors: the code of `CSR.from_*` and
`CSR.to_*`."""

from typing import Any, Protocol

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.autograd import forward_ad

from learnsolve.matrix import scipy_sparse
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.pattern_checks import (
    as_numpy,
    check_range,
    check_structure,
    check_tensors,
    matrix_shape,
)
from learnsolve.matrix.plain import readable, unmapped

Shape = tuple[int, int]
TensorLike = Tensor | np.ndarray  # accepted by `tensor_of`


class SciPyMatrix(Protocol):
    """A SciPy sparse array or matrix, for type checkers, since SciPy has no types."""

    def tocsr(self, copy: bool = False) -> Any: ...


REAL_FORM = (
    "solve the real system [[Re A, -Im A], [Im A, Re A]] for [Re x; Im x], whose matrix "
    "learnsolve.ops.real_form makes"
)


def real_on_a_device(function: str, name: str, value: Tensor) -> None:
    if value.is_complex() and not value.is_cpu:
        raise TypeError(
            f"{function}: {name} is complex and on {value.device}; complex values are for the CPU; there "
            f"{REAL_FORM}"
        )


def check_real(function: str, name: str, dtype: Any) -> None:
    """Reject complex dtypes of torch and NumPy: a conversion would drop imaginary parts."""
    if "complex" in str(dtype):
        raise TypeError(f"{function}: {name} must be real, got {dtype}; {REAL_FORM}")


def from_scipy(S: Any, dtype: torch.dtype | None) -> tuple[Tensor, SparsityPattern]:
    values, pattern = scipy_parts(S)
    return cast("CSR.from_scipy", values, dtype), pattern


def cast(function: str, values: Tensor, dtype: torch.dtype | None, device: Any = None) -> Tensor:
    """`values.to` that never drops imaginary parts."""
    if dtype is not None and values.is_complex() and not dtype.is_complex:
        raise TypeError(
            f"{function}: {dtype} would drop the imaginary parts of {values.dtype}; use A.real, A.imag or "
            "A.abs(), or a complex dtype"
        )
    return values.to(device=device, dtype=dtype)


def conjugate(t: Tensor) -> Tensor:
    """The conjugate, not lazy; torch 2.13 has no batching rule for `torch.conj_physical`, and no batched
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
    crow, col, data = scipy_sparse.arrays(S, shape)
    pattern = SparsityPattern._trusted(torch.from_numpy(crow), torch.from_numpy(col), shape)
    return torch.from_numpy(np.array(data, dtype=data.dtype.newbyteorder("="))), pattern


def to_scipy(values: Tensor, pattern: SparsityPattern, format: str) -> Any:
    if format not in _FORMATS:
        raise ValueError(f"CSR.to_scipy: format must be one of {_FORMATS}, got {format!r}")
    arrays = tuple(as_numpy(t).copy() for t in (values, pattern.col_indices, pattern.crow_indices))
    return scipy.sparse.csr_array(arrays, shape=pattern.shape).asformat(format)


_FORMATS = ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")


def tensor_of(value: Any, like: Tensor | None = None) -> Any:
    """A copy of a NumPy array as a tensor, on the device of `like`; anything else is returned unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind not in "fiubc":
        raise TypeError(f"a NumPy array must hold numbers, got {value.dtype}; convert it with .astype")
    tensor = torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
    return tensor if like is None else tensor.to(like.device)


def from_torch(T: Tensor) -> tuple[Tensor | None, Any, Tensor, Shape]:
    """(crow_indices, col_indices, values, shape) of a CSR or COO tensor, and of the transpose of a CSC
    tensor; for blocks and unsorted columns, (None, (rows, columns), values, shape)."""
    if not isinstance(T, Tensor) or T.layout not in _LAYOUTS or T.dim() != 2:
        raise TypeError(
            "CSR.from_torch: T must be a 2-D sparse tensor of torch (CSR, COO, CSC, BSR, BSC); see from_dense"
        )
    shape = matrix_shape("CSR.from_torch", T.shape)
    if T.layout == torch.sparse_coo:
        return _from_coo(T, shape)
    if T.requires_grad and T.is_leaf and T.layout != torch.sparse_csr:
        layout = str(T.layout).removeprefix("torch.sparse_").upper()
        raise NotImplementedError(
            f"CSR.from_torch: torch cannot accumulate a gradient in a {layout} tensor; make it of values "
            "that require grad, or use the CSR or COO layout"
        )
    return _from_compressed(T, shape) if T.layout in _LAYOUTS[:2] else _from_blocks(T, shape)


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
                check_range(name, what, as_numpy(T._indices()[axis]), shape[axis])
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
            "gradient of such values back in the wrong order; pass T.detach(), or sort with "
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


def check_dense(D: Any) -> None:
    if not isinstance(D, Tensor) or D.dim() != 2 or D.layout != torch.strided:
        raise TypeError("CSR.from_dense: D must be a 2-D torch.Tensor or NumPy array, dense; see from_torch")
    if D.is_meta:
        raise ValueError("CSR.from_dense: D must have data, got a tensor on meta")


def from_dense(D: Tensor) -> tuple[Tensor, SparsityPattern]:
    check_dense(D)
    rows, columns = unmapped(D).detach().nonzero(as_tuple=True)
    crow = torch.searchsorted(rows, torch.arange(D.shape[0] + 1, device=D.device))
    return D[rows, columns], SparsityPattern._trusted(crow, columns, (D.shape[0], D.shape[1]))


def to_dense(values: Tensor, pattern: SparsityPattern) -> Tensor:
    rows, columns = pattern.shape
    if rows * columns > 2**62:
        raise ValueError(f"CSR.to_dense: a dense matrix of shape {pattern.shape} is too large")
    at = pattern.row_indices.long() * columns + pattern.col_indices
    flat = values.new_zeros((*values.shape[:-1], rows * columns))
    return flat.index_copy(-1, at, values).unflatten(-1, (rows, columns))
