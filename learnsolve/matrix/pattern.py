"""`SparsityPattern`, the structure of a sparse matrix: checks of its index arrays, its analysis, pickles that
share it."""

from __future__ import annotations

import operator
import threading
import weakref
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Generic, TypeVar
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix import device_analysis
from learnsolve.matrix.cache import CacheOwner, Immutable, kept, plain_tensors, unwrap_values

# Sizes beyond this would overflow in sums of a few of them.
MOST = 2**60


def to_numpy(t: Tensor) -> np.ndarray:
    with torch._C._DisableFuncTorch():  # which would wrap what `detach` returns
        return unwrap_values(t).detach().resolve_conj().resolve_neg().cpu().contiguous().numpy()


def check_device(function: str, device: torch.device | str | None) -> None:
    """Torch's own error would describe how torch was compiled, or a missing driver."""
    if device is not None and torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            f"{function}: there is no device {str(device)!r}, torch.cuda.is_available() is False. Stay with "
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
            f"{function}: a matrix may have 2^60 rows and columns at most, got shape {(rows, columns)}. "
            "Split it into smaller matrices"
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
            f"{function}: {names[0]} and {names[1]} must have the same dtype and device, got "
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
    so is this one if `canonical`. Otherwise columns after the first such fault are not checked."""
    rows, columns = shape
    if len(crow) != rows + 1:
        what = "rows" if names[2] == "columns" else "columns"
        raise ValueError(f"{function}: {names[0]} must have {what} + 1 = {rows + 1} entries, got {len(crow)}")
    if device_analysis.here(crow) and device_analysis.is_valid(crow, col, columns):
        return True
    kind, position, value = _analysis.validate(to_numpy(crow), to_numpy(col), columns)
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
        5: f"a {row} must not hold a {one} twice, got {col} again. CSR.from_coo adds up duplicates",
        6: f"{many} must be sorted within a {row}, got {col} after a larger one. CSR.from_coo sorts them",
    }[kind]


def sort_checked_triples(
    function: str,
    rows: np.ndarray,
    columns: np.ndarray,
    shape: tuple[int, int],
    names: tuple[str, str] = ("rows", "columns"),
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`sort_triples` of indices of any integer type, which are checked."""
    # Copies, that no other code can modify.
    i, j = (a.astype(np.int32 if a.dtype == np.int32 else np.int64) for a in (rows, columns))
    for name, indices, size in zip(names, (i, j), shape, strict=True):
        check_range(function, name, indices, size)
    return sort_triples(i, j, shape)


def sort_triples(
    rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Triples in any order as a pattern: (crow, col, order, starts), of int32 where it suffices. `order`
    sorts the triples by row and column and keeps the order of duplicates. Those of entry p are
    ``order[starts[p] : starts[p + 1]]``."""
    m, n = shape
    index = np.int32 if max(m, n, len(rows)) <= np.iinfo(np.int32).max else np.int64
    rows, columns = rows.astype(index, copy=False), columns.astype(index, copy=False)
    if max(n, 2**12) > 4 * len(rows):
        order = np.lexsort((columns, rows)).astype(index)
        col, by_row = columns[order], np.append(0, np.bincount(rows, minlength=m).cumsum())
    else:  # counting sorts by columns, with memory for each, then by rows: equal keys keep their order
        ends = np.append(np.arange(0, len(rows), 2**16), len(rows)).astype(index)  # Ctrl-C comes between
        by_column, _, first = _analysis.transpose(ends, columns, n)
        by_row, col, second = _analysis.transpose(by_column, _gather(rows, first), m)
        order = _gather(first, second)
    new = np.ones(len(col) + 1, dtype=bool)  # and an end
    np.not_equal(col[1:], col[:-1], out=new[1:-1])
    new[by_row] = True
    starts = np.flatnonzero(new)
    crow = np.cumsum(new, dtype=index)[by_row] - 1
    return crow, col[starts[:-1]], order, starts.astype(index)


def _gather(a: np.ndarray, at: np.ndarray) -> np.ndarray:
    """a[at], where NumPy would first copy `at` to int64."""
    with plain_tensors():
        return torch.from_numpy(a).index_select(0, torch.from_numpy(at)).numpy()


def check_range(function: str, name: str, indices: np.ndarray, size: int, what: str = "") -> None:
    """Every index must lie in 0 <= index < size."""
    if len(indices) and (indices.min() < 0 or indices.max() >= size):
        at = int(np.flatnonzero((indices < 0) | (indices >= size))[0])
        raise ValueError(
            f"{function}: {what or name} must lie in 0 <= index < {size}, got {name}[{at}] = "
            f"{int(indices[at])}"
        )


# Objects looked up by their contents. Equal patterns that arrive in a process in pickles are one object:
# the first of them, or one that already lives here. Patterns that a program creates itself remain separate;
# they are registered by their contents when the first pickle arrives, so that creating one has no extra
# cost.


S = TypeVar("S")
T = TypeVar("T")

_new: WeakSet[SparsityPattern] = WeakSet()  # not registered yet
_by_contents: WeakValueDictionary[tuple, SparsityPattern] = WeakValueDictionary()


def intern(pattern: SparsityPattern) -> SparsityPattern:
    """The oldest living pattern equal to this new one, or this one itself. A pattern that was changed in
    place is never found."""
    _new.discard(pattern)
    for one in sorted(_new, key=lambda one: int(one._serial[1:])):
        _new.discard(one)
        # Patterns made while torch traces, and those on the meta device, have no contents.
        if all(type(t) is Tensor and not t.is_meta for t in one._arrays) and one._is_current():
            _enter(one)
    return _enter(pattern)


def _enter(pattern: SparsityPattern) -> SparsityPattern:
    crow, col = pattern._arrays
    sums = (zlib.crc32(to_numpy(t).data) for t in (crow, col))
    key = (pattern.shape, crow.dtype, crow.device, len(col), *sums)
    known = _by_contents.get(key)
    if known is None or not known._is_current() or not equal(known, pattern):
        _by_contents[key] = known = pattern
    return known


def equal(P: SparsityPattern, Q: SparsityPattern) -> bool:
    """Whether two patterns on the same device have the same entries."""
    P._check_current()
    Q._check_current()
    if P is Q:
        return True
    if P.shape != Q.shape or P.nnz != Q.nnz or P.device != Q.device:
        return False
    pairs = zip(P._arrays, Q._arrays, strict=True)
    return all(torch.equal(a, b if a.dtype == b.dtype else b.to(a.dtype)) for a, b in pairs)


class Recent(Generic[T]):
    """Results of recent calls from compiled graphs, whose backward is a separate call, so that no object of
    the caller can hold them. At most `count`, with `limit` bytes in total."""

    def __init__(self, count: int, limit: int = 2**30, size: Callable[[T], int] = lambda _: 0):
        self.count, self.limit, self.size = count, limit, size
        self.items: list[T] = []
        self.shared: WeakSet[T] = WeakSet()  # results that a caller holds, also searched
        self.lock = threading.Lock()

    def find(self, match: Callable[[T], S | None]) -> S | None:
        """The first result of `match` that is not None, newest item first."""
        with self.lock:
            matches = (match(item) for item in (*reversed(self.items), *self.shared))
            return next((result for result in matches if result is not None), None)

    def add(self, item: T) -> T:
        with self.lock:
            self.items.append(item)
            while len(self.items) > 1 and (
                len(self.items) > self.count or sum(map(self.size, self.items)) > self.limit
            ):
                del self.items[0]
        return item


# Entries and rows of one block of rows: small enough to distribute evenly, large enough to hide its set-up.
_BLOCK_WEIGHT = 8192


class SparsityPattern(CacheOwner, Immutable):
    """The positions of the entries of a sparse matrix: immutable, checked once, shared between matrices.

    Row i has the entries p with ``crow_indices[i] <= p < crow_indices[i + 1]``, in the columns
    ``col_indices[p]``, sorted and without duplicates.

    Parameters
    ----------
    crow_indices : Tensor, int32 or int64, shape (rows + 1,)
    col_indices : Tensor of the same dtype and device, shape (nnz,)
    shape : (rows, columns)

    Raises
    ------
    ValueError
        if the arrays are not a valid pattern. The message names array, position and value.
    TypeError
        if dtypes or devices do not match.

    Notes
    -----
    The arrays are copied. The pattern returns its own arrays, which must not be changed: after an in-place
    change every use raises, unless the change bypasses torch, through ``.data`` or NumPy. Other data for the
    kernels is computed at first use and cached: the transpose, the row of each entry, the positions of the
    diagonal, blocks of rows of about equal work. Patterns compare equal only if they are the same object, so
    a pattern can be a dictionary key. Creating one costs O(rows + nnz).

    Unpickled patterns, from the workers of a `DataLoader` or a file of `torch.save`, share one object if
    their arrays are equal. This is the existing pattern of the process, if there is one, so that its plans
    are reused. `copy.deepcopy` does not copy a pattern.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.SparsityPattern(torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1]), (2, 2))
    SparsityPattern(shape=(2, 2), nnz=3, indices=int64, device=cpu)
    """

    __slots__ = ("_source", "nnz", "shape")

    _instead = "Make another one with learnsolve.SparsityPattern(crow_indices, col_indices, shape)"

    shape: tuple[int, int]
    nnz: int

    def __init__(self, crow_indices: Tensor, col_indices: Tensor, shape: tuple[int, int]):
        check_tensors("SparsityPattern", crow_indices, col_indices)
        shape = matrix_shape("SparsityPattern", shape)
        with plain_tensors():
            # Copied first: the caller's arrays may share memory with NumPy arrays or another thread.
            crow, col = (
                unwrap_values(t).detach().clone(memory_format=torch.contiguous_format)
                for t in (crow_indices, col_indices)
            )
            check_structure("SparsityPattern", crow, col, shape)
        self._fill(crow, col, shape)

    def _fill(self, crow: Tensor, col: Tensor, shape: tuple[int, int]) -> None:
        assert max(shape) <= MOST  # callers check this and name their function
        crow, col = unwrap_values(crow), unwrap_values(col)
        if crow.is_inference() or col.is_inference():  # without versions, changes would go unnoticed
            with plain_tensors():
                crow, col = crow.clone(), col.clone()
        self._begin(crow, col)
        set_ = object.__setattr__
        set_(self, "shape", shape)
        set_(self, "nnz", len(col))
        set_(self, "_source", None)  # for a transposed pattern: a weak reference to the original
        _new.add(self)

    @classmethod
    def _construct(cls, crow: Tensor, col: Tensor, shape: tuple[int, int]) -> SparsityPattern:
        """A pattern that is valid by construction."""
        pattern = object.__new__(cls)
        pattern._fill(crow, col, shape)
        return pattern

    def __reduce__(self):
        return _unpickle, (self.crow_indices, self.col_indices, self.shape)

    def __copy__(self) -> SparsityPattern:
        return self

    def __deepcopy__(self, memo: dict) -> SparsityPattern:
        return self

    def __repr__(self) -> str:
        indices = str(self.dtype).removeprefix("torch.")
        return f"SparsityPattern(shape={self.shape}, nnz={self.nnz}, indices={indices}, device={self.device})"

    @property
    def crow_indices(self) -> Tensor:
        """The start of each row, shape (rows + 1,)."""
        if not torch.compiler.is_dynamo_compiling():
            self._check_current()
        return self._arrays[0]

    @property
    def col_indices(self) -> Tensor:
        """Column of each entry, shape (nnz,)."""
        if not torch.compiler.is_dynamo_compiling():
            self._check_current()
        return self._arrays[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the indices: int32 or int64."""
        return self._arrays[0].dtype

    @property
    def device(self) -> torch.device:
        return self._arrays[0].device

    def equals(self, other: SparsityPattern) -> bool:
        """Whether both have the same entries, on the same device. ``==`` tests whether they are the same
        object. O(nnz) if they are not. Index types may differ.

        Examples
        --------
        >>> import learnsolve as ls
        >>> P, Q = (ls.problems.poisson((3,)).pattern for _ in range(2))
        >>> P.equals(Q), P == Q
        (True, False)
        """
        if not isinstance(other, SparsityPattern):
            raise TypeError(
                f"SparsityPattern.equals: other must be a SparsityPattern, got {type(other).__name__}. Pass "
                "A.pattern for a CSR"
            )
        return equal(self, other)

    def _tensor(self, array: np.ndarray) -> Tensor:
        owner: object = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, Tensor):  # whose memory `share_memory_` would move, without NumPy's noticing
            array = array.copy()
        return torch.from_numpy(array).to(self.device)

    @kept
    def row_indices(self) -> Tensor:
        """Row of each entry, shape (nnz,)."""
        if device_analysis.here(self.crow_indices):
            return device_analysis.row_indices(self.crow_indices, self.nnz)
        return self._tensor(_analysis.row_indices(to_numpy(self.crow_indices), self.nnz))

    @kept
    def diagonal_positions(self) -> Tensor:
        """Position of entry (i, i), -1 if missing, shape (min(rows, columns),)."""
        crow, col, columns = self.crow_indices, self.col_indices, self.shape[1]
        if device_analysis.here(crow):
            return device_analysis.diagonal_positions(crow, col, columns)
        return self._tensor(_analysis.diagonal_positions(to_numpy(crow), to_numpy(col), columns))

    @kept
    def _missing_diagonal(self) -> int:
        """The first row without a diagonal entry, -1 if there is none."""
        missing = (self.diagonal_positions < 0).nonzero()
        return int(missing[0]) if len(missing) else -1

    @property
    def T(self) -> SparsityPattern:
        """The transposed pattern. ``P.T.T is P``."""
        return self._original() or self._transposition()[0]

    def _original(self) -> SparsityPattern | None:
        """The pattern whose transpose this is, while it lives. It holds this one, not vice versa."""
        return None if self._source is None else self._source()

    @property
    def transpose_permutation(self) -> Tensor:
        """Position in this pattern of each entry of ``P.T``: the transpose has values[permutation]."""
        return self._transposition()[1]

    def _transposition(self) -> tuple[SparsityPattern, Tensor]:
        original = self._original()
        if original is not None:
            return original, original._inverse_permutation
        return self._compute_once("transposed", self._transpose)

    @kept
    def _inverse_permutation(self) -> Tensor:
        """Position in ``P.T`` of each entry of this pattern: ``P.T.transpose_permutation``."""
        permutation = self.transpose_permutation
        inverse = torch.empty_like(permutation)
        inverse[permutation.long()] = torch.arange(self.nnz, dtype=self.dtype, device=self.device)
        return inverse

    def _transpose(self) -> tuple[SparsityPattern, Tensor]:
        rows, columns = self.shape
        if device_analysis.here(self.crow_indices) and self.nnz <= device_analysis.MOST_SORTED:
            crow, col, permutation = device_analysis.transpose(self.crow_indices, self.col_indices, columns)
        else:
            arrays = _analysis.transpose(to_numpy(self.crow_indices), to_numpy(self.col_indices), columns)
            crow, col, permutation = (self._tensor(a) for a in arrays)
            if torch.equal(crow, self.crow_indices) and torch.equal(col, self.col_indices):
                crow, col = self.crow_indices, self.col_indices  # symmetric: held once
        transposed = SparsityPattern._construct(crow, col, (columns, rows))
        object.__setattr__(transposed, "_source", weakref.ref(self))
        return transposed, permutation

    @property
    def _prefers_scatter(self) -> bool:
        """Whether A^T g is faster scattered, in the order of A's rows, than gathered through the transpose.

        This is so if the values exceed a cache, have no regular order, and are many per column: a gather then
        waits for memory at each of them.
        """
        if self.nnz < 2**20 or self.nnz < 32 * self.shape[1]:
            return False

        def judge() -> bool:
            blocks = self.row_blocks.long()
            uniform = (blocks[1:, 0] - blocks[:-1, 0])[blocks[:-1, 1] > 0].sum()
            return bool(2 * uniform < self.shape[0])

        return self._compute_once("prefers scatter", judge)

    @property
    def row_blocks(self) -> Tensor:
        """Blocks of rows of about equal work, shape (blocks + 1, 2): the first row, and the length of each
        row if consecutive rows are copies shifted by one column, else 0. The last line is (rows, 0).

        On a CUDA device: tiles of rows and further pieces of long rows (csrc/kernels/products.cuh)."""
        return self._structure(False)[3]

    @kept
    def _none(self) -> Tensor:
        """An empty tensor, for operators that take a list."""
        return self.crow_indices.new_empty(0)

    def _structure(self, transpose: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Arguments of an operator for A or A^T with A's values: (ptr, idx, perm, blocks), with an empty perm
        for A (csrc/ops/schema.cpp)."""
        key = "adjoint structure" if transpose else "structure"
        return self._compute_once(key, self._make_structure, transpose)

    def _make_structure(self, transpose: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ptr, idx = self.crow_indices, self.col_indices
        perm = self._none
        if transpose:
            transposed, perm = self._transposition()
            ptr, idx = transposed.crow_indices, transposed.col_indices
        # Views: the guards of torch.compile in torch 2.10 fail for a tensor that occurs twice.
        ptr, idx, perm = ptr.detach(), idx.detach(), perm.detach()
        if device_analysis.here(ptr):
            return ptr, idx, perm, device_analysis.row_schedule(ptr, self.nnz)
        blocks = _analysis.row_blocks(
            to_numpy(ptr), to_numpy(idx), to_numpy(perm) if transpose else None, _BLOCK_WEIGHT
        )
        return ptr, idx, perm, self._tensor(blocks)

    def _analyze(self) -> None:
        for P in (self, self.T):
            _ = P._structure(False), P._structure(True)
            _ = P.row_indices, P._missing_diagonal, P._inverse_permutation, P._none
            P._show()

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> SparsityPattern:
        """This pattern on `device` with indices of `dtype`, or the same object if nothing changes."""
        check_device("SparsityPattern.to", device)
        target = self.device if device is None else torch.empty(0, device=device).device
        dtype = dtype or self.dtype
        if dtype not in (torch.int32, torch.int64):
            raise TypeError(f"SparsityPattern.to: indices must be int32 or int64, got {dtype}")
        if dtype == torch.int32 and max(*self.shape, self.nnz) > torch.iinfo(torch.int32).max:
            raise ValueError(
                f"SparsityPattern.to: shape {self.shape}, nnz {self.nnz} do not fit int32 indices"
            )
        if target == self.device and dtype == self.dtype:
            return self
        return self._compute_once(
            f"to {target} {dtype}".replace(".", " "),
            lambda: SparsityPattern._construct(
                self.crow_indices.to(target, dtype), self.col_indices.to(target, dtype), self.shape
            ),
        )


def _unpickle(crow_indices: Tensor, col_indices: Tensor, shape: tuple[int, int]) -> SparsityPattern:
    """The pattern from a pickle: checked, and one object for all equal ones."""
    return intern(SparsityPattern(crow_indices, col_indices, shape))


# torch.load reads them with weights_only=True, its default: both check their arguments.
torch.serialization.add_safe_globals([SparsityPattern, _unpickle])


_SAMPLE = 256


def periodic_coloring(pattern: SparsityPattern, fewest: int) -> tuple[np.ndarray, ...] | None:
    """A column coloring x + a y + b z modulo the number of colors, with `fewest` colors or a few more, for
    the unknowns of a grid in order, or None if there is none. The axes are found from the distances of
    columns that share a row, in a sample of rows. The coloring is then checked in all rows."""
    crow, col = to_numpy(pattern.crow_indices), to_numpy(pattern.col_indices)
    n = pattern.shape[1]
    if not 2 <= fewest <= 64 or n < 4 * fewest:
        return None
    sample = np.unique(np.linspace(0, len(crow) - 2, _SAMPLE).astype(np.int64))
    rows = (col[crow[i] : crow[i + 1]].astype(np.int64) for i in sample)
    distances, number = np.unique(
        np.concatenate([(row[:, None] - row).ravel() for row in rows]), return_counts=True
    )
    distances = distances[(distances > 0) & (8 * number >= len(sample))]  # boundary rows have other distances
    if not 0 < len(distances) <= 512:
        return None
    strides = _strides(distances)
    digits, coordinates = [], []
    nearest, unknown = distances, np.arange(n)
    for stride in reversed(strides):
        digits.append((2 * nearest + stride) // (2 * stride))
        coordinates.append(unknown // stride)
        nearest, unknown = nearest - digits[-1] * stride, unknown % stride
    for count in range(fewest, fewest + 3):
        if count ** (len(strides) - 1) > 2**16:
            return None
        free = len(strides) - 1  # the factor of the innermost axis is 1
        factors = np.ones((len(strides), count**free), dtype=np.int64)
        factors[:free] = np.indices((count,) * free).reshape(free, count**free)
        distinct = (np.stack(digits).T @ factors % count != 0).all(0)
        for choice in factors.T[distinct][:2]:
            colors = np.zeros(n, dtype=np.int64)
            for factor, x in zip(choice, coordinates, strict=True):
                colors += factor * x
            found = _analysis.as_column_coloring(crow, col, (colors % count).astype(crow.dtype), count)
            if found is not None:
                return found
    return None


def _strides(distances: np.ndarray) -> list[int]:
    """Strides of the axes of a grid: 1, and the middle of each cluster of distances that is far larger than
    the previous ones."""
    strides, reach = [1], 0
    for distance, following in pairwise(distances):
        if following > 2 * distance and len(strides) < 4:
            reach = distance
            cluster = distances[(distances >= following) & (distances <= following + 2 * reach)]
            strides.append(int(cluster[0] + cluster[-1]) // 2)
    return strides
