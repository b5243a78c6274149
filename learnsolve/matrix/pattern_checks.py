"""Checks that index arrays are a valid pattern."""

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix import device_analysis
from learnsolve.matrix.plain import unmapped

# Sizes beyond this would overflow in sums of a few of them.
MOST = 2**60


def as_numpy(t: Tensor) -> np.ndarray:
    with torch._C._DisableFuncTorch():  # which would wrap what `detach` returns
        return unmapped(t).detach().resolve_conj().resolve_neg().cpu().contiguous().numpy()


def check_device(function: str, device: torch.device | str | None) -> None:
    """Torch's own error would describe how torch was compiled, or a missing driver."""
    if device is not None and torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            f"{function}: there is no device {str(device)!r}, torch.cuda.is_available() is False; stay with "
            'device="cpu", or use a torch that is built for CUDA on a machine with a GPU'
        )


def matrix_shape(function: str, shape: Any) -> tuple[int, int]:
    """Check `shape` and return it as two ints."""
    try:
        rows, columns = (operator.index(s) for s in shape)
    except (TypeError, ValueError):
        raise ValueError(f"{function}: shape must be (rows, columns), got {shape!r}") from None
    if rows < 0 or columns < 0:
        raise ValueError(f"{function}: shape must not be negative, got {(rows, columns)}")
    if rows > MOST or columns > MOST:
        raise ValueError(
            f"{function}: a matrix may have 2^60 rows and columns at most, got shape {(rows, columns)}; make "
            "it of smaller ones"
        )
    return rows, columns


def check_tensors(
    function: str, crow: Any, col: Any, names: tuple[str, str] = ("crow_indices", "col_indices")
) -> None:
    """`crow` and `col` must be 1-D tensors of int32 or int64, of the same dtype and device."""
    for name, t in zip(names, (crow, col), strict=True):
        if not isinstance(t, Tensor) or t.layout != torch.strided:
            what = type(t).__name__ if not isinstance(t, Tensor) else f"layout {t.layout}"
            raise TypeError(f"{function}: {name} must be a torch.Tensor, got {what}")
        if t.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{function}: {name} must be int32 or int64, got {t.dtype}")
        if t.dim() != 1:
            raise ValueError(f"{function}: {name} must have one dimension, got shape {tuple(t.shape)}")
    if crow.dtype != col.dtype or crow.device != col.device:
        raise TypeError(
            f"{function}: {names[0]} and {names[1]} must have one dtype and device, got "
            f"{crow.dtype} on {crow.device} and {col.dtype} on {col.device}"
        )


def check_structure(
    function: str,
    crow: Tensor,
    col: Tensor,
    shape: tuple[int, int],
    *,
    names: tuple[str, str, str] = ("crow_indices", "col_indices", "columns"),
    canonical: bool = True,
) -> bool:
    """Whether the columns of every row are sorted and without duplicates. Every other fault is an error, and
    so is this one if `canonical`; otherwise columns after the first such fault are not checked."""
    rows, columns = shape
    if len(crow) != rows + 1:
        what = "rows" if names[2] == "columns" else "columns"
        raise ValueError(f"{function}: {names[0]} must have {what} + 1 = {rows + 1} entries, got {len(crow)}")
    if device_analysis.here(crow) and device_analysis.is_valid(crow, col, columns):
        return True
    kind, position, value = _analysis.validate(as_numpy(crow), as_numpy(col), columns)
    if kind and (canonical or kind < _DUPLICATE):
        raise ValueError(f"{function}: {_message(kind, position, value, len(col), columns, names)}")
    return not kind


_DUPLICATE = 5  # numbered as in `Fault` of csrc/analysis/pattern.h, also below


def _message(
    kind: int, position: int, value: int, nnz: int, columns: int, names: tuple[str, str, str]
) -> str:
    crow = f"{names[0]}[{position}] = {value}"
    col = f"{names[1]}[{position}] = {value}"
    many = names[2]
    one, row = ("column", "row") if many == "columns" else ("row", "column")
    return {
        1: f"{names[0]} must begin with 0, got {crow}",
        2: f"{names[0]} must not decrease, but {crow} is smaller than the entry before it",
        3: f"{names[0]} must end with len({names[1]}) = {nnz}, got {crow}",
        4: f"{many} must lie in 0 <= {one} < {columns}, got {col}",
        5: f"a {row} must not hold a {one} twice, got {col} again; CSR.from_coo adds duplicates up",
        6: f"{many} must be sorted within a {row}, got {col} after a larger one; CSR.from_coo sorts",
    }[kind]


def sorted_triples(
    function: str,
    rows: np.ndarray,
    columns: np.ndarray,
    shape: tuple[int, int],
    names: tuple[str, str] = ("rows", "columns"),
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Triples in any order as a pattern: (crow, col, order, first). `order` sorts the triples by row and
    column and keeps the order of duplicates; `first` is the index in it of the first of each."""
    i, j = rows.astype(np.int64), columns.astype(np.int64)  # copies, that no other code can modify
    for name, indices, size in zip(names, (i, j), shape, strict=True):
        check_range(function, name, indices, size)
    return _analysis.sort_triples(i, j, shape[0])


def check_range(function: str, name: str, indices: np.ndarray, size: int, what: str = "") -> None:
    """Every index must lie in 0 <= index < size."""
    if len(indices) and (indices.min() < 0 or indices.max() >= size):
        at = int(np.flatnonzero((indices < 0) | (indices >= size))[0])
        raise ValueError(
            f"{function}: {what or name} must lie in 0 <= index < {size}, got {name}[{at}] = "
            f"{int(indices[at])}"
        )
