"""`SparsityPattern`, the structure of a sparse matrix."""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix import device_analysis, interning
from learnsolve.matrix.cache import Cached
from learnsolve.matrix.pattern_checks import (
    MOST,
    as_numpy,
    check_device,
    check_structure,
    check_tensors,
    matrix_shape,
)
from learnsolve.matrix.plain import plain_tensors, unmapped
from learnsolve.matrix.unchanged import Immutable

# Entries and rows of one block of rows: small enough to distribute evenly, large enough to hide its set-up.
_BLOCK_WEIGHT = 8192


class SparsityPattern(Cached, Immutable):
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
        if the arrays are not a valid pattern; the message names array, position and value.
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
    their arrays are equal; this is the existing pattern of the process, if there is one, so that its plans
    are reused. `copy.deepcopy` does not copy a pattern.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.SparsityPattern(torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1]), (2, 2))
    SparsityPattern(shape=(2, 2), nnz=3, indices=int64, device=cpu)
    """

    __slots__ = ("_source", "nnz", "shape")

    _instead = "make another one with learnsolve.SparsityPattern(crow_indices, col_indices, shape)"

    shape: tuple[int, int]
    nnz: int

    def __init__(self, crow_indices: Tensor, col_indices: Tensor, shape: tuple[int, int]):
        check_tensors("SparsityPattern", crow_indices, col_indices)
        shape = matrix_shape("SparsityPattern", shape)
        with plain_tensors():
            # Copied first: the caller's arrays may share memory with NumPy arrays or another thread.
            crow, col = (
                unmapped(t).detach().clone(memory_format=torch.contiguous_format)
                for t in (crow_indices, col_indices)
            )
            check_structure("SparsityPattern", crow, col, shape)
        self._fill(crow, col, shape)

    def _fill(self, crow: Tensor, col: Tensor, shape: tuple[int, int]) -> None:
        assert max(shape) <= MOST  # callers check this and name their function
        crow, col = unmapped(crow), unmapped(col)
        if crow.is_inference() or col.is_inference():  # without versions, changes would go unnoticed
            with plain_tensors():
                crow, col = crow.clone(), col.clone()
        self._begin(crow, col)
        set_ = object.__setattr__
        set_(self, "shape", shape)
        set_(self, "nnz", len(col))
        set_(self, "_source", None)  # for a transposed pattern: a weak reference to the original
        interning.register(self)

    @classmethod
    def _trusted(cls, crow: Tensor, col: Tensor, shape: tuple[int, int]) -> SparsityPattern:
        """A pattern that is valid by construction."""
        pattern = object.__new__(cls)
        pattern._fill(crow, col, shape)
        return pattern

    def __reduce__(self):
        return _unpickled, (self.crow_indices, self.col_indices, self.shape)

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
            self._check_unchanged()
        return self._arrays[0]

    @property
    def col_indices(self) -> Tensor:
        """Column of each entry, shape (nnz,)."""
        if not torch.compiler.is_dynamo_compiling():
            self._check_unchanged()
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
        object. O(nnz) if they are not; index types may differ.

        Examples
        --------
        >>> import learnsolve as ls
        >>> P, Q = (ls.problems.poisson((3,)).pattern for _ in range(2))
        >>> P.equals(Q), P == Q
        (True, False)
        """
        if not isinstance(other, SparsityPattern):
            raise TypeError(
                f"SparsityPattern.equals: other must be a SparsityPattern, got {type(other).__name__}; of a "
                "CSR take A.pattern"
            )
        return interning.equal(self, other)

    def _tensor(self, array: np.ndarray) -> Tensor:
        owner: object = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, Tensor):  # whose memory `share_memory_` would move, without NumPy's noticing
            array = array.copy()
        return torch.from_numpy(array).to(self.device)

    @property
    def row_indices(self) -> Tensor:
        """Row of each entry, shape (nnz,)."""

        def find() -> Tensor:
            if device_analysis.here(self.crow_indices):
                return device_analysis.row_indices(self.crow_indices, self.nnz)
            return self._tensor(_analysis.row_indices(as_numpy(self.crow_indices), self.nnz))

        return self._cached("row_indices", find)

    @property
    def diagonal_positions(self) -> Tensor:
        """Position of entry (i, i), -1 if missing, shape (min(rows, columns),)."""

        def find() -> Tensor:
            crow, col, columns = self.crow_indices, self.col_indices, self.shape[1]
            if device_analysis.here(crow):
                return device_analysis.diagonal_positions(crow, col, columns)
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
        """The pattern whose transpose this is, while it lives. It holds this one, not vice versa."""
        return None if self._source is None else self._source()

    @property
    def transpose_permutation(self) -> Tensor:
        """Position in this pattern of each entry of ``P.T``: the transpose has values[permutation]."""
        return self._transposed()[1]

    def _transposed(self) -> tuple[SparsityPattern, Tensor]:
        original = self._original()
        if original is not None:
            return original, original._inverse_permutation
        return self._cached("transposed", self._transpose)

    @property
    def _inverse_permutation(self) -> Tensor:
        """Position in ``P.T`` of each entry of this pattern: ``P.T.transpose_permutation``."""

        def invert() -> Tensor:
            permutation = self.transpose_permutation
            inverse = torch.empty_like(permutation)
            inverse[permutation.long()] = torch.arange(self.nnz, dtype=self.dtype, device=self.device)
            return inverse

        return self._cached("inverse", invert)

    def _transpose(self) -> tuple[SparsityPattern, Tensor]:
        rows, columns = self.shape
        if device_analysis.here(self.crow_indices) and self.nnz <= device_analysis.MOST_SORTED:
            crow, col, permutation = device_analysis.transpose(self.crow_indices, self.col_indices, columns)
        else:
            arrays = _analysis.transpose(as_numpy(self.crow_indices), as_numpy(self.col_indices), columns)
            crow, col, permutation = (self._tensor(a) for a in arrays)
            if torch.equal(crow, self.crow_indices) and torch.equal(col, self.col_indices):
                crow, col = self.crow_indices, self.col_indices  # symmetric: held once
        transposed = SparsityPattern._trusted(crow, col, (columns, rows))
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

        return self._cached("prefers scatter", judge)

    @property
    def row_blocks(self) -> Tensor:
        """Blocks of rows of about equal work, shape (blocks + 1, 2): the first row, and the length of each
        row if consecutive rows are copies shifted by one column, else 0. The last line is (rows, 0).

        On a CUDA device: tiles of rows and further pieces of long rows (csrc/kernels/products.cuh)."""
        return self._structure(False)[3]

    @property
    def _none(self) -> Tensor:
        """An empty tensor, for operators that take a list."""
        return self._cached("none", lambda: self.crow_indices.new_empty(0))

    def _structure(self, transpose: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Arguments of an operator for A or A^T with A's values: (ptr, idx, perm, blocks), with an empty perm
        for A (csrc/ops/schema.cpp)."""
        key = "adjoint structure" if transpose else "structure"
        return self._cached(key, self._make_structure, transpose)

    def _make_structure(self, transpose: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ptr, idx = self.crow_indices, self.col_indices
        perm = self._none
        if transpose:
            transposed, perm = self._transposed()
            ptr, idx = transposed.crow_indices, transposed.col_indices
        # Views: the guards of torch.compile in torch 2.10 fail for a tensor that occurs twice.
        ptr, idx, perm = ptr.detach(), idx.detach(), perm.detach()
        if device_analysis.here(ptr):
            return ptr, idx, perm, device_analysis.row_schedule(ptr, self.nnz)
        blocks = _analysis.row_blocks(
            as_numpy(ptr), as_numpy(idx), as_numpy(perm) if transpose else None, _BLOCK_WEIGHT
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
        """This pattern on `device` with indices of `dtype`; the same object if nothing changes."""
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
        return self._cached(
            f"to {target} {dtype}".replace(".", " "),
            lambda: SparsityPattern._trusted(
                self.crow_indices.to(target, dtype), self.col_indices.to(target, dtype), self.shape
            ),
        )


def _unpickled(crow_indices: Tensor, col_indices: Tensor, shape: tuple[int, int]) -> SparsityPattern:
    """The pattern from a pickle: checked, and one object for all equal ones."""
    return interning.intern(SparsityPattern(crow_indices, col_indices, shape))


# torch.load reads them with weights_only=True, its default: both check their arguments.
torch.serialization.add_safe_globals([SparsityPattern, _unpickled])
