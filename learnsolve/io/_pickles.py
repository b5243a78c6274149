"""Arrays and SciPy matrices from pickles of Python 2, without running anything that a pickle names.

A pickle is a program: it may call whatever it can name. Here a name stands for a class of this file, which
only keeps what it is given, or for an empty container; every other name is refused. Arrays are made from
what was kept by `numpy.frombuffer`, so that no constructor of NumPy or SciPy sees a state from the file.
"""

import collections
import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy.sparse

KINDS = {"i4", "i8", "f4", "f8"}


class Refused(ValueError):
    """The file is no such pickle. The message says why, without the file's name."""


def load(path: Path) -> Any:
    """What the file holds: an array, a csr_array or a dict of lists.

    Raises
    ------
    Refused
        for a name that is not allowed, and whatever is damaged.
    """
    with path.open("rb") as file:
        try:
            return _finish(_Unpickler(file, encoding="latin1").load())
        except Refused:
            raise
        except Exception as error:  # whatever damaged bytes make the unpickler raise
            raise Refused(f"is damaged or no pickle ({type(error).__name__}: {error})") from error


class _Dtype:
    """numpy.dtype(kind, align, copy), then its state (version, byte order, ...)."""

    def __init__(self, kind: Any, *_: Any):
        if kind not in KINDS:
            raise Refused(f"has an array of type {kind!r}, Planetoid files have {', '.join(sorted(KINDS))}")
        self.kind, self.order = kind, "<"

    def __setstate__(self, state: tuple) -> None:
        self.order = ">" if state[1] == ">" else "<"


class _NDArray:
    """What `_reconstruct` returns, then the state (version, shape, dtype, Fortran order, bytes)."""

    array: np.ndarray | None = None

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, str):
            raise Refused("has an array that does not hold numbers")
        flat = np.frombuffer(data.encode("latin1"), dtype=dtype.order + dtype.kind)
        native = flat.astype(dtype.kind)
        self.array = native.reshape(shape, order="F" if fortran else "C")


class _Matrix:
    """scipy.sparse.csr_matrix: its attributes, of which four are read."""

    state: dict[str, Any]

    def __setstate__(self, state: dict) -> None:
        self.state = dict(state)


def _reconstruct(*_: Any) -> _NDArray:
    return _NDArray()


class _Unpickler(pickle.Unpickler):
    ALLOWED = {  # noqa: RUF012  (never changed)
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): _NDArray,
        ("numpy", "dtype"): _Dtype,
        ("scipy.sparse.csr", "csr_matrix"): _Matrix,
        ("collections", "defaultdict"): collections.defaultdict,
        ("__builtin__", "list"): list,
    }

    def find_class(self, module: str, name: str) -> Any:
        # The base class would translate names of Python 2 first; these are looked up as they are written.
        if (module, name) not in self.ALLOWED:
            raise Refused(f"asks for {module}.{name}, which no Planetoid file needs, and is not read")
        return self.ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> NoReturn:
        raise Refused("refers to an object outside of the file, which no Planetoid file does")


def _finish(value: Any) -> Any:
    if isinstance(value, _NDArray):
        return _array(value)
    if isinstance(value, _Matrix):
        return _csr(value.state)
    if isinstance(value, dict):
        # A plain dict: a defaultdict would answer for keys it does not have.
        return dict(value)
    raise Refused(f"holds a {type(value).__name__}, not an array, a matrix or a graph")


def _array(value: Any) -> np.ndarray:
    if not isinstance(value, _NDArray) or value.array is None:
        raise Refused("lacks an array")
    return value.array


def _csr(state: dict[str, Any]) -> scipy.sparse.csr_array:
    data, indices, indptr = (_array(state.get(key)) for key in ("data", "indices", "indptr"))
    shape = state.get("_shape", state.get("shape"))
    if not (isinstance(shape, tuple) and len(shape) == 2 and all(type(s) is int and s >= 0 for s in shape)):
        raise Refused(f"has a matrix of shape {shape!r}")
    rows, columns = shape
    if (
        data.shape != indices.shape
        or indptr.shape != (rows + 1,)
        or data.ndim != 1
        or indices.dtype.kind != "i"
        or indptr.dtype.kind != "i"
        or indptr[0] != 0
        or indptr[-1] != len(data)
        or np.any(np.diff(indptr) < 0)
        or (len(data) and (indices.min() < 0 or indices.max() >= columns))
        or not np.all(np.isfinite(data))
    ):
        raise Refused("has a matrix whose index arrays do not fit together, or an entry that is not finite")
    return scipy.sparse.csr_array((data, indices, indptr), shape=shape)
