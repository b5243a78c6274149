"""Files of a `CSR`: values and index arrays as safetensors, the shape in the header."""

from __future__ import annotations

import json
import os

from torch import Tensor

from learnsolve import _arrivals, _files
from learnsolve.pattern import SparsityPattern

_NAMES = {"values", "crow_indices", "col_indices"}


def save(path: str | os.PathLike[str], values: Tensor, pattern: SparsityPattern) -> None:
    tensors = {
        "values": values,
        "crow_indices": pattern.crow_indices,
        "col_indices": pattern.col_indices,
    }
    about = json.dumps({"format": 1, "matrix": "CSR", "shape": pattern.shape})
    _files.write_tensors("CSR.save", path, tensors, {"learnsolve": about})


def load(path: str | os.PathLike[str]) -> tuple[Tensor, SparsityPattern]:
    tensors, header = _files.read_tensors("CSR.load", path)
    shape = _shape(path, header)
    if tensors.keys() != _NAMES:
        raise ValueError(f"CSR.load: {path} is damaged, it must hold {sorted(_NAMES)}, got {sorted(tensors)}")
    try:
        pattern = SparsityPattern(tensors["crow_indices"], tensors["col_indices"], shape)
        if tensors["values"].dim() == 0 or tensors["values"].shape[-1] != pattern.nnz:
            raise ValueError(f"values have shape {tuple(tensors['values'].shape)}, entries are {pattern.nnz}")
        if tensors["values"].is_complex():
            raise TypeError(f"values must be real, got {tensors['values'].dtype}")
    except (ValueError, TypeError) as error:
        raise ValueError(f"CSR.load: {path} is damaged ({error})") from error
    return tensors["values"], _arrivals.arrived(pattern)


def _shape(path: str | os.PathLike[str], header: dict[str, str]) -> tuple[int, int]:
    try:
        about = json.loads(header["learnsolve"])
        made_by, kind = about["format"], about["matrix"]
        rows, columns = about["shape"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"CSR.load: {path} is not the file of a matrix; take one that A.save(path) has written"
        ) from error
    if (made_by, kind) != (1, "CSR"):
        raise ValueError(
            f"CSR.load: {path} has format {made_by!r} of {kind!r}, this version reads 1 of 'CSR'; update "
            "learnsolve"
        )
    return rows, columns
