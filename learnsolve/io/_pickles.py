"""Arrays and SciPy matrices from pickles of Python 2, without running anything that a pickle names.

A pickle is a program: it may call anything that it can name, and set its attributes. Here a name resolves to
a class that only stores its arguments, or to a type that is empty and has no attributes to set. Every other
name is rejected. Arrays are created from the stored data by `numpy.frombuffer`, so that no constructor of
NumPy or SciPy receives a state from the file.
"""

import collections
import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

KINDS = ("f4", "f8", "i4", "i8")
COLUMNS = 2**24  # the largest of Planetoid's matrices has some 60,000
TUPLES = 1000  # arrays and matrices need fewer than 20


class InvalidPickleError(ValueError):
    """The file is not an accepted pickle. The message says why, without the file's name."""


class _Placeholder:
    """Stands for an array, a matrix, a type, or the function that makes an array."""

    __slots__ = ("arguments", "state")

    def __init__(self, *arguments: object):
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state  # a program may use one string for many arrays: they are created on demand


# Python's own unpickler, because the compiled one allocates what a file asks for before it reads.
class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined]
    ALLOWED = {  # noqa: RUF012  (never changed)
        ("numpy.core.multiarray", "_reconstruct"): _Placeholder,
        ("numpy", "ndarray"): _Placeholder,
        ("numpy", "dtype"): _Placeholder,
        ("scipy.sparse.csr", "csr_matrix"): _Placeholder,
        ("collections", "defaultdict"): collections.defaultdict,
        ("__builtin__", "list"): list,
    }

    def find_class(self, module: str, name: str) -> Any:
        # The base class would translate names of Python 2 first; here they are looked up as written.
        if (module, name) not in self.ALLOWED:
            raise InvalidPickleError(
                f"asks for {module}.{name}, which no Planetoid file needs, and is not read"
            )
        return self.ALLOWED[module, name]


def load(path: Path) -> Any:
    """The content of the file: an array, a csr_array or a dict of lists. `InvalidPickleError` for a name that
    is not allowed, and for damaged files."""
    content = path.read_bytes()
    try:
        # Nested tuples: the hash of the outermost needs a stack frame for each.
        tuples = sum("TUPLE" in operation.name for operation, _, _ in pickletools.genops(content))
        if tuples > TUPLES:
            raise InvalidPickleError(f"has {tuples} tuples, Planetoid files have a few")
        value = _Unpickler(io.BytesIO(content), encoding="latin1").load()
        if isinstance(value, _Placeholder):
            return _csr(value.state) if isinstance(value.state, dict) else _array(value)
    except InvalidPickleError:
        raise
    except Exception as error:  # damaged bytes make the unpickler raise errors of many types
        raise InvalidPickleError(f"is damaged or not a pickle ({type(error).__name__}: {error})") from error
    if not isinstance(value, dict):
        raise InvalidPickleError(f"holds a {type(value).__name__}, not an array, a matrix or a graph")
    return dict(value)  # a defaultdict would return values for missing keys


def _array(value: Any) -> np.ndarray:
    if not isinstance(value, _Placeholder):
        raise InvalidPickleError("lacks an array")
    _, shape, dtype, fortran, data = value.state
    kind = dtype.arguments[0]
    if kind not in KINDS:
        raise InvalidPickleError(f"has an array of type {kind!r}, Planetoid files have {', '.join(KINDS)}")
    flat = np.frombuffer(data.encode("latin1"), dtype=(">" if dtype.state[1] == ">" else "<") + kind)
    return flat.astype(kind).reshape(shape, order="F" if fortran else "C")


def _csr(state: dict[str, object]) -> scipy.sparse.csr_array:
    data, indices, indptr = (_array(state.get(key)) for key in ("data", "indices", "indptr"))
    shape = state.get("_shape", state.get("shape"))
    if not (isinstance(shape, tuple) and len(shape) == 2 and all(type(s) is int and s >= 0 for s in shape)):
        raise InvalidPickleError(f"has a matrix of shape {shape!r}")
    if shape[1] > COLUMNS:
        raise InvalidPickleError(f"has a matrix of {shape[1]} columns, at most {COLUMNS} are read")
    try:
        S = scipy.sparse.csr_array((data, indices, indptr), shape=shape)
        S.check_format(full_check=True)
    except ValueError as error:
        raise InvalidPickleError(f"has a matrix with inconsistent index arrays ({error})") from error
    # Of a matrix without entries, SciPy does not check indptr.
    ordered = indptr[0] == 0 and indptr[-1] == len(data) and bool(np.all(np.diff(indptr) >= 0))
    if indices.dtype.kind + indptr.dtype.kind != "ii" or not ordered:
        raise InvalidPickleError("has a matrix with inconsistent index arrays")
    if not np.all(np.isfinite(data)):
        raise InvalidPickleError("has a matrix with an entry that is not finite")
    return S
