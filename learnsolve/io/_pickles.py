"""Arrays and SciPy matrices from pickles of Python 2, without running anything that a pickle names.

A pickle is a program: it may call anything that it can name, and set its attributes. Here a name resolves to
a class of this file, which only stores its arguments and has no attributes to set, or to an empty container;
every other name is rejected. Arrays are created from the stored data by `numpy.frombuffer`, so that no
constructor of NumPy or SciPy receives a state from the file. Before it runs, the program is scanned for
operations that take memory or stack out of proportion to its length.
"""

import collections
import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy.sparse

KINDS = {"i4", "i8", "f4", "f8"}
COLUMNS = 2**24  # the largest of Planetoid's matrices has some 60,000
TUPLES = 1000  # arrays and matrices need fewer than 20


class Refused(ValueError):
    """The file is not an accepted pickle. The message says why, without the file's name."""


def load(path: Path) -> Any:
    """The content of the file: an array, a csr_array or a dict of lists.

    Raises
    ------
    Rejected
        for a name that is not allowed, and for damaged files.
    """
    content = path.read_bytes()
    try:
        _scan(content)
        return _finish(_Unpickler(io.BytesIO(content), encoding="latin1").load())
    except Refused:
        raise
    except Exception as error:  # damaged bytes make the unpickler raise errors of many types
        raise Refused(f"is damaged or not a pickle ({type(error).__name__}: {error})") from error


def _scan(content: bytes) -> None:
    """Reject programs that would take more memory or stack than a valid file needs. `genops` runs nothing,
    and raises if a length exceeds the end."""
    tuples, largest, operations = 0, 0, 0
    for operation, value, _ in pickletools.genops(content):
        operations += 1
        tuples += "TUPLE" in operation.name
        # The unpickler allocates a table for the largest index, and a frame before it checks its end.
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT", "FRAME"):
            assert isinstance(value, int)
            if not 0 <= value <= len(content):
                raise Refused(f"is damaged: {operation.name} of {value} in {len(content)} bytes")
            largest = max(largest, 0 if operation.name == "FRAME" else value)
    if largest > operations:
        raise Refused(f"is damaged: a memo of {largest} in {operations} operations")
    if tuples > TUPLES:  # nested: the hash of the outermost needs a stack frame for each
        raise Refused(f"has {tuples} tuples, Planetoid files have a few")


class _Dtype:
    """numpy.dtype(kind, align, copy), then its state (version, byte order, ...)."""

    __slots__ = ("kind", "order")

    def __init__(self, kind: Any, *_: Any):
        if kind not in KINDS:
            raise Refused(f"has an array of type {kind!r}, Planetoid files have {', '.join(sorted(KINDS))}")
        self.kind, self.order = kind, "<"

    def __setstate__(self, state: tuple) -> None:
        self.order = ">" if state[1] == ">" else "<"


class _NDArray:
    """The result of `_reconstruct`, then the state (version, shape, dtype, Fortran order, bytes)."""

    __slots__ = ("state",)

    def __init__(self, *_: Any):
        self.state: tuple | None = None

    def __setstate__(self, state: tuple) -> None:
        # A program may use one string for many arrays: they are created on demand.
        self.state = state

    def array(self) -> np.ndarray:
        if self.state is None:
            raise Refused("lacks an array")
        _, shape, dtype, fortran, data = self.state
        if not isinstance(dtype, _Dtype) or not isinstance(data, str):
            raise Refused("has an array that does not contain numbers")
        flat = np.frombuffer(data.encode("latin1"), dtype=dtype.order + dtype.kind)
        native = flat.astype(dtype.kind)
        return native.reshape(shape, order="F" if fortran else "C")


class _Matrix:
    """scipy.sparse.csr_matrix: its attributes, four of which are read."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def __setstate__(self, state: dict) -> None:
        self.state = dict(state)


class _Reconstruct:
    """numpy's function of that name. Not a function: a file could set the attributes of one."""

    __slots__ = ()

    def __call__(self, *_: Any) -> _NDArray:
        return _NDArray()

    def __setstate__(self, state: Any) -> NoReturn:
        raise Refused("sets attributes of what it names, which no Planetoid file does")


class _Unpickler(pickle.Unpickler):
    ALLOWED = {  # noqa: RUF012  (never changed)
        ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
        ("numpy", "ndarray"): _NDArray,
        ("numpy", "dtype"): _Dtype,
        ("scipy.sparse.csr", "csr_matrix"): _Matrix,
        ("collections", "defaultdict"): collections.defaultdict,
        ("__builtin__", "list"): list,
    }

    def find_class(self, module: str, name: str) -> Any:
        # The base class would translate names of Python 2 first; here they are looked up as written.
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
        # A plain dict: a defaultdict would return values for missing keys.
        return dict(value)
    raise Refused(f"holds a {type(value).__name__}, not an array, a matrix or a graph")


def _array(value: Any) -> np.ndarray:
    if not isinstance(value, _NDArray):
        raise Refused("lacks an array")
    return value.array()


def _csr(state: dict[str, Any]) -> scipy.sparse.csr_array:
    data, indices, indptr = (_array(state.get(key)) for key in ("data", "indices", "indptr"))
    shape = state.get("_shape", state.get("shape"))
    if not (isinstance(shape, tuple) and len(shape) == 2 and all(type(s) is int and s >= 0 for s in shape)):
        raise Refused(f"has a matrix of shape {shape!r}")
    rows, columns = shape
    if columns > COLUMNS:
        raise Refused(f"has a matrix of {columns} columns, at most {COLUMNS} are read")
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
        raise Refused("has a matrix with inconsistent index arrays, or an entry that is not finite")
    return scipy.sparse.csr_array((data, indices, indptr), shape=shape)
