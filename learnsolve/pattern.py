"""`SparsityPattern`, the structure of a sparse matrix."""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis, _device_analysis
from learnsolve._plain import constant_in_graphs, plain_tensors

# Entries and rows of one block of rows: small enough to distribute evenly, large enough to hide its set-up.
_BLOCK_WEIGHT = 8192

_serials = itertools.count()
_by_serial: weakref.WeakValueDictionary[str, SparsityPattern] = weakref.WeakValueDictionary()


def _fault_message(kind: int, position: int, value: int, nnz: int, columns: int) -> str:
    """Words for `Fault` of csrc/analysis/pattern.h."""
    crow = f"crow_indices[{position}] = {value}"
    col = f"col_indices[{position}] = {value}"
    return {
        1: f"crow_indices must begin with 0, got {crow}",
        2: f"crow_indices must not decrease, but {crow} is smaller than the entry before it",
        3: f"crow_indices must end with len(col_indices) = {nnz}, got {crow}",
        4: f"columns must lie in 0 <= column < {columns}, got {col}",
        5: f"a row must not hold a column twice, got {col} again; CSR.from_coo adds duplicates up",
        6: f"columns must be sorted within a row, got {col} after a larger one; CSR.from_coo sorts",
    }[kind]


class _Plans:
    """What `SparsityPattern._planned` keeps: attributes, because Dynamo sees those that are set after it has
    read others, but assumes that a dictionary stays as it was when first read."""


class SparsityPattern:
    """Where a sparse matrix has entries: immutable, checked once, shared by all matrices that have it.

    Row i holds the entries p with ``crow_indices[i] <= p < crow_indices[i + 1]``, in the columns
    ``col_indices[p]``, sorted and without duplicates.

    Parameters
    ----------
    crow_indices : Tensor, int32 or int64, shape (rows + 1,)
    col_indices : Tensor of the same dtype and device, shape (nnz,)
    shape : (rows, columns)

    Raises
    ------
    ValueError
        if the arrays are not a pattern; the message names array, position and value.
    TypeError
        if dtypes or devices do not fit.

    Notes
    -----
    The arrays are not copied and must not be changed afterwards. A change in place is noticed and refused,
    unless it bypasses torch, through ``.data`` or NumPy. What kernels need beyond them is
    computed at first use and kept: the transpose, the row of each entry, the place of the diagonal, blocks of
    rows of about equal work. Patterns are equal only if they are the same object, so a pattern can be a
    dictionary key. Making one costs O(rows + nnz).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.SparsityPattern(torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1]), (2, 2))
    SparsityPattern(shape=(2, 2), nnz=3, indices=int64, device=cpu)
    """

    __slots__ = (
        "__weakref__",
        "_cache",
        "_plans",
        "_serial",
        "_source",
        "_users",
        "_versions",
        "col_indices",
        "crow_indices",
        "nnz",
        "shape",
    )

    crow_indices: Tensor
    col_indices: Tensor
    shape: tuple[int, int]
    nnz: int

    def __init__(self, crow_indices: Tensor, col_indices: Tensor, shape: tuple[int, int]):
        crow, col = crow_indices, col_indices
        for name, t in (("crow_indices", crow), ("col_indices", col)):
            if not isinstance(t, Tensor):
                raise TypeError(f"SparsityPattern: {name} must be a torch.Tensor, got {type(t).__name__}")
            if t.dtype not in (torch.int32, torch.int64):
                raise TypeError(f"SparsityPattern: {name} must be int32 or int64, got {t.dtype}")
            if t.dim() != 1:
                raise ValueError(
                    f"SparsityPattern: {name} must have one dimension, got shape {tuple(t.shape)}"
                )
        if crow.dtype != col.dtype or crow.device != col.device:
            raise TypeError(
                "SparsityPattern: crow_indices and col_indices must have one dtype and device, got "
                f"{crow.dtype} on {crow.device} and {col.dtype} on {col.device}"
            )
        rows, columns = matrix_shape("SparsityPattern", shape)
        if len(crow) != rows + 1:
            raise ValueError(
                f"SparsityPattern: crow_indices must have rows + 1 = {rows + 1} entries, got {len(crow)}"
            )
        kind, position, value = 0, 0, 0
        if not (_device_analysis.here(crow) and _device_analysis.is_valid(crow, col, columns)):
            kind, position, value = _analysis.validate(as_numpy(crow), as_numpy(col), columns)
        if kind:
            raise ValueError(f"SparsityPattern: {_fault_message(kind, position, value, len(col), columns)}")
        self._fill(crow.contiguous(), col.contiguous(), (rows, columns))

    def _fill(self, crow: Tensor, col: Tensor, shape: tuple[int, int]) -> None:
        set_ = object.__setattr__
        set_(self, "crow_indices", crow)
        set_(self, "col_indices", col)
        set_(self, "shape", shape)
        set_(self, "nnz", len(col))
        set_(self, "_cache", {})
        set_(self, "_plans", _Plans())
        set_(self, "_serial", f"p{next(_serials)}")  # names this pattern in the plans of others
        _by_serial[self._serial] = self
        set_(self, "_users", None)  # plans of other patterns that involve this one, and their names
        set_(self, "_source", None)  # of a transposed pattern: a weak reference to the original
        set_(self, "_versions", _versions(crow, col))

    @classmethod
    def _trusted(cls, crow: Tensor, col: Tensor, shape: tuple[int, int]) -> SparsityPattern:
        """A pattern that is valid by construction."""
        pattern = object.__new__(cls)
        pattern._fill(crow, col, shape)
        return pattern

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"SparsityPattern is immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"SparsityPattern is immutable: {name} cannot be deleted")

    def __reduce__(self):
        return SparsityPattern, (self.crow_indices, self.col_indices, self.shape)

    def __copy__(self) -> SparsityPattern:
        return self

    def __deepcopy__(self, memo: dict) -> SparsityPattern:
        return self

    def __repr__(self) -> str:
        indices = str(self.dtype).removeprefix("torch.")
        return f"SparsityPattern(shape={self.shape}, nnz={self.nnz}, indices={indices}, device={self.device})"

    @property
    def dtype(self) -> torch.dtype:
        """Of the indices: int32 or int64."""
        return self.crow_indices.dtype

    @property
    def device(self) -> torch.device:
        return self.crow_indices.device

    def _check_unchanged(self) -> None:
        """No analysis and no kernel may use arrays that differ from the validated ones."""
        if self._versions and self._versions != (self.crow_indices._version, self.col_indices._version):
            raise RuntimeError(
                "SparsityPattern: its index arrays were changed in place after it was made. Make a new "
                "pattern from a copy of the arrays."
            )

    def _cached(self, key: Any, make: Callable[[], Any]) -> Any:
        if torch.compiler.is_dynamo_compiling():
            _analyse_while_tracing(self._serial)
            return self._cache[key]
        self._check_unchanged()
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._make(make)
        return found

    def _make(self, make: Callable[..., Any], *others: Any) -> Any:
        """`make(*others)` among plain tensors. On a CUDA device every stream can use it when this returns,
        since later calls may be on other streams than the first."""
        if not self.crow_indices.is_cuda:
            with plain_tensors():
                return make(*others)
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "SparsityPattern: an operation is captured in a CUDA graph before what it plans for its "
                "patterns is there. Run it once, forward and backward, before the capture."
            )
        with torch.cuda.device(self.device), plain_tensors():
            made = make(*others)
            torch.cuda.current_stream().synchronize()
        return made

    def _planned(self, make: Callable[..., Any], *others: Any) -> Any:
        """`make(self, *others)`, computed once: what an operation plans for this pattern together with other
        patterns, or with numbers. The plan is freed with the first of the patterns; so it must not hold any
        of `others`. Tensors and patterns in tuples, so that `cache_bytes` finds them."""
        name = f"{make.__module__} {make.__name__}".replace(".", " ")  # Dynamo takes no dots in attributes
        for other in others:
            name += f" {other._serial}" if isinstance(other, SparsityPattern) else f" {other}"
        if torch.compiler.is_dynamo_compiling():
            names = [o._serial if isinstance(o, SparsityPattern) else o for o in others]
            _plan_while_tracing(self._serial, make, *names)
            return getattr(self._plans, name)
        self._check_unchanged()
        for other in others:
            if isinstance(other, SparsityPattern):
                other._check_unchanged()
        plan = getattr(self._plans, name, None)
        if plan is None:
            plan = self._make(make, self, *others)
            setattr(self._plans, name, plan)
            for other in others:
                if isinstance(other, SparsityPattern) and other is not self:
                    other._free_plan(self._plans, name)
        else:
            for part in plan if isinstance(plan, tuple) else (plan,):
                if isinstance(part, SparsityPattern):
                    part._check_unchanged()
        return plan

    def _free_plan(self, plans: _Plans, name: str) -> None:
        """Drop the plan `name` among `plans` when this pattern dies."""
        if self._users is None:
            users = weakref.WeakKeyDictionary()
            object.__setattr__(self, "_users", users)
            weakref.finalize(self, _drop_plans, users).atexit = False
        self._users.setdefault(plans, set()).add(name)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    @property
    def row_indices(self) -> Tensor:
        """Row of each entry, shape (nnz,)."""

        def find() -> Tensor:
            if _device_analysis.here(self.crow_indices):
                return _device_analysis.row_indices(self.crow_indices, self.nnz)
            return self._tensor(_analysis.row_indices(as_numpy(self.crow_indices), self.nnz))

        return self._cached("row_indices", find)

    @property
    def diagonal_positions(self) -> Tensor:
        """Place of entry (i, i), -1 where there is none, shape (min(rows, columns),)."""

        def find() -> Tensor:
            crow, col, columns = self.crow_indices, self.col_indices, self.shape[1]
            if _device_analysis.here(crow):
                return _device_analysis.diagonal_positions(crow, col, columns)
            return self._tensor(_analysis.diagonal_positions(as_numpy(crow), as_numpy(col), columns))

        return self._cached("diagonal_positions", find)

    @property
    def _missing_diagonal(self) -> int:
        """The first row without a diagonal entry, -1 if there is none."""

        def find() -> int:
            missing = (self.diagonal_positions < 0).nonzero()
            return int(missing[0]) if len(missing) else -1

        return self._cached("missing diagonal", find)

    @property
    def T(self) -> SparsityPattern:
        """The transposed pattern; ``P.T.T is P``."""
        return self._original() or self._transposed()[0]

    def _original(self) -> SparsityPattern | None:
        """The pattern that this one is the transpose of, while it lives: it holds this one, not the
        reverse."""
        return None if self._source is None else self._source()

    @property
    def transpose_permutation(self) -> Tensor:
        """Place in this pattern of each entry of ``P.T``: the transpose has values[permutation]."""
        return self._transposed()[1]

    def _transposed(self) -> tuple[SparsityPattern, Tensor]:
        original = self._original()
        if original is not None:
            return original, original._inverse_permutation
        return self._cached("transposed", self._transpose)

    @property
    def _inverse_permutation(self) -> Tensor:
        """Place in ``P.T`` of each entry of this pattern: ``P.T.transpose_permutation``."""

        def invert() -> Tensor:
            permutation = self.transpose_permutation
            inverse = torch.empty_like(permutation)
            inverse[permutation.long()] = torch.arange(self.nnz, dtype=self.dtype, device=self.device)
            return inverse

        return self._cached("inverse", invert)

    def _transpose(self) -> tuple[SparsityPattern, Tensor]:
        rows, columns = self.shape
        if _device_analysis.here(self.crow_indices) and self.nnz <= _device_analysis.MOST_SORTED:
            crow, col, permutation = _device_analysis.transpose(self.crow_indices, self.col_indices, columns)
        else:
            arrays = _analysis.transpose(as_numpy(self.crow_indices), as_numpy(self.col_indices), columns)
            crow, col, permutation = (self._tensor(a) for a in arrays)
        transposed = SparsityPattern._trusted(crow, col, (columns, rows))
        object.__setattr__(transposed, "_source", weakref.ref(self))
        return transposed, permutation

    @property
    def _prefers_scatter(self) -> bool:
        """Is A^T g better scattered, in the order of A's rows, than gathered through the transpose?

        This is so if the values exceed a cache, have no regular order, and are many per column: a gather then
        waits for memory at each of them.
        """

        def judge() -> bool:
            if self.nnz < 2**20 or self.nnz < 32 * self.shape[1]:
                return False
            blocks = self.row_blocks.long()
            uniform = (blocks[1:, 0] - blocks[:-1, 0])[blocks[:-1, 1] > 0].sum()
            return bool(2 * uniform < self.shape[0])

        return self._cached("prefers scatter", judge)

    @property
    def row_blocks(self) -> Tensor:
        """Blocks of rows of about equal work, shape (blocks + 1, 2): first row, and the length of every row
        if consecutive rows repeat one another shifted by a column, else 0. The last line is (rows, 0).

        On a CUDA device: (rows, nnz) alone or, for rows of very different lengths, the row and the entry
        where each of many equal stretches of rows and entries begins, and (rows, nnz) at the end."""
        return self._structure(False)[3]

    @property
    def _none(self) -> Tensor:
        """An empty tensor: none, where operators take a list."""
        return self._cached("none", lambda: self.crow_indices.new_empty(0))

    def _structure(self, transpose: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What an operator takes for A or A^T on A's values: (ptr, idx, perm, blocks), perm empty for A
        (csrc/ops/schema.cpp)."""
        key = "adjoint structure" if transpose else "structure"
        return self._cached(key, lambda: self._make_structure(transpose))

    def _make_structure(self, transpose: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ptr, idx = self.crow_indices, self.col_indices
        perm = self._none
        if transpose:
            transposed, perm = self._transposed()
            ptr, idx = transposed.crow_indices, transposed.col_indices
        # Views: the guards of torch.compile in torch 2.10 fail for one tensor in two places.
        ptr, idx, perm = ptr.detach(), idx.detach(), perm.detach()
        if _device_analysis.here(ptr):
            return ptr, idx, perm, _device_analysis.row_schedule(ptr, self.nnz)
        blocks = _analysis.row_blocks(
            as_numpy(ptr), as_numpy(idx), as_numpy(perm) if transpose else None, _BLOCK_WEIGHT
        )
        return ptr, idx, perm, self._tensor(blocks)

    def cache_bytes(self) -> int:
        """Bytes held beyond crow_indices and col_indices."""
        found: dict[int, int] = {}
        seen = {id(self)}

        def walk(entry: Any) -> None:
            if isinstance(entry, Tensor):
                found[entry.data_ptr()] = entry.numel() * entry.element_size()
            elif isinstance(entry, SparsityPattern) and id(entry) not in seen:
                seen.add(id(entry))
                walk((entry.crow_indices, entry.col_indices))
                walk((*entry._cache.values(), *vars(entry._plans).values()))
            elif isinstance(entry, tuple):
                for e in entry:
                    walk(e)

        walk((*self._cache.values(), *vars(self._plans).values()))
        for own in (self.crow_indices, self.col_indices):
            found.pop(own.data_ptr(), None)
        return sum(found.values())

    def drop_caches(self) -> None:
        """Free what is cached. It is computed again when it is needed."""
        self._cache.clear()
        vars(self._plans).clear()

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> SparsityPattern:
        """This pattern on `device` with indices of `dtype`; the same object where nothing changes."""
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
        return self._cached(
            ("to", target, dtype),
            lambda: SparsityPattern._trusted(
                self.crow_indices.to(target, dtype), self.col_indices.to(target, dtype), self.shape
            ),
        )


@constant_in_graphs
def _analyse_while_tracing(serial: str) -> bool:
    """Everything that an operation may need of a pattern, actually computed while torch.compile traces, which
    cannot trace the analysis itself. All at once: Dynamo does not see what changes behind a dictionary that
    it has read. The argument is a string, because torch before 2.12 takes no other objects here."""
    pattern = _by_serial[serial]
    for P in (pattern, pattern.T):
        _ = P._structure(False), P._structure(True)
        _ = P.row_indices, P._missing_diagonal, P._inverse_permutation, P._none
    return True


@constant_in_graphs
def _plan_while_tracing(serial: str, make: Callable[..., Any], *others: Any) -> bool:
    """A plan, actually computed while torch.compile traces."""
    _by_serial[serial]._planned(make, *(_by_serial.get(o, o) for o in others))
    return True


def _drop_plans(users: weakref.WeakKeyDictionary) -> None:
    for plans, names in users.items():
        for name in names:
            vars(plans).pop(name, None)


def matrix_shape(function: str, shape: Any) -> tuple[int, int]:
    """`shape` as two sizes."""
    try:
        rows, columns = (operator.index(s) for s in shape)
    except (TypeError, ValueError):
        raise ValueError(f"{function}: shape must be (rows, columns), got {shape!r}") from None
    if rows < 0 or columns < 0:
        raise ValueError(f"{function}: shape must not be negative, got {(rows, columns)}")
    return rows, columns


def as_numpy(t: Tensor) -> np.ndarray:
    return t.detach().cpu().contiguous().numpy()


def _versions(crow: Tensor, col: Tensor) -> tuple[int, int] | None:
    # Inference tensors keep no version; they cannot be changed outside inference mode.
    if crow.is_inference() or col.is_inference():
        return None
    return crow._version, col._version
