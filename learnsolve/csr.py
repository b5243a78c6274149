"""`SparsityPattern`, the structure of a sparse matrix, and `CSR`, a structure with values."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from learnsolve import _analysis, _library

# Entries and rows of one block of rows: small enough to deal out evenly, large enough to hide its set-up.
_BLOCK_WEIGHT = 8192


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
    The arrays are not copied and must not be changed afterwards (a change made through torch is noticed
    and refused). What kernels need beyond them is computed at first use and kept: the transpose, the row
    of each entry, the place of the diagonal, blocks of rows of about equal work. Patterns are equal only
    if they are the same object, so a pattern can be a dictionary key. Making one costs O(rows + nnz).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.SparsityPattern(torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1]), (2, 2))
    SparsityPattern(shape=(2, 2), nnz=3, indices=int64, device=cpu)
    """

    __slots__ = ("__weakref__", "_cache", "_versions", "col_indices", "crow_indices", "nnz", "shape")

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
                raise ValueError(f"SparsityPattern: {name} must have one dimension, got shape {tuple(t.shape)}")
        if crow.dtype != col.dtype or crow.device != col.device:
            raise TypeError(
                "SparsityPattern: crow_indices and col_indices must have one dtype and device, got "
                f"{crow.dtype} on {crow.device} and {col.dtype} on {col.device}"
            )
        try:
            rows, columns = (int(s) for s in shape)
        except (TypeError, ValueError):
            raise ValueError(f"SparsityPattern: shape must be (rows, columns), got {shape!r}") from None
        if rows < 0 or columns < 0:
            raise ValueError(f"SparsityPattern: shape must not be negative, got {(rows, columns)}")
        if len(crow) != rows + 1:
            raise ValueError(
                f"SparsityPattern: crow_indices must have rows + 1 = {rows + 1} entries, got {len(crow)}"
            )
        kind, position, value = _analysis.validate(_numpy(crow), _numpy(col), columns)
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
        set_(self, "_versions", _versions(crow, col))

    @classmethod
    def _trusted(cls, crow: Tensor, col: Tensor, shape: tuple[int, int]) -> SparsityPattern:
        """A pattern that is valid by construction."""
        pattern = object.__new__(cls)
        pattern._fill(crow, col, shape)
        return pattern

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"SparsityPattern is immutable: {name} cannot be set")

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

    def _cached(self, key: Any, make) -> Any:
        if torch.compiler.is_dynamo_compiling():
            _analyse_while_tracing(self)
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = make()
        return found

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    @property
    def row_indices(self) -> Tensor:
        """Row of each entry, shape (nnz,)."""
        return self._cached(
            "row_indices", lambda: self._tensor(_analysis.row_indices(_numpy(self.crow_indices), self.nnz))
        )

    @property
    def diagonal_positions(self) -> Tensor:
        """Place of entry (i, i), -1 where there is none, shape (min(rows, columns),)."""
        return self._cached(
            "diagonal_positions",
            lambda: self._tensor(
                _analysis.diagonal_positions(_numpy(self.crow_indices), _numpy(self.col_indices), self.shape[1])
            ),
        )

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
        return self._transposed()[0]

    @property
    def transpose_permutation(self) -> Tensor:
        """Place in this pattern of each entry of ``P.T``: the transpose has values[permutation]."""
        return self._transposed()[1]

    def _transposed(self) -> tuple[SparsityPattern, Tensor]:
        return self._cached("transposed", self._transpose)

    def _transpose(self) -> tuple[SparsityPattern, Tensor]:
        rows, columns = self.shape
        arrays = _analysis.transpose(_numpy(self.crow_indices), _numpy(self.col_indices), columns)
        crow, col, permutation = (self._tensor(a) for a in arrays)
        transposed = SparsityPattern._trusted(crow, col, (columns, rows))
        inverse = torch.empty_like(permutation)
        inverse[permutation.long()] = torch.arange(self.nnz, dtype=self.dtype, device=self.device)
        transposed._cache["transposed"] = (self, inverse)
        return transposed, permutation

    @property
    def row_blocks(self) -> Tensor:
        """Blocks of rows of about equal work, shape (blocks + 1, 2): first row, and the length of every row
        if consecutive rows repeat one another shifted by a column, else 0. The last line is (rows, 0)."""
        return self._structure(False)[3]

    def _structure(self, transpose: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """What a kernel takes for A or A^T on A's values: (ptr, idx, perm or None, blocks)."""
        key = "adjoint structure" if transpose else "structure"
        if torch.compiler.is_dynamo_compiling():
            _analyse_while_tracing(self)
            return self._cache[key]
        if key not in self._cache:
            self._cache[key] = self._make_structure(transpose)
        if self._versions != _versions(
            self.crow_indices, self.col_indices
        ):
            raise RuntimeError(
                "SparsityPattern: its index arrays were changed in place after it was made. Make a new pattern "
                "from a copy of the arrays."
            )
        return self._cache[key]

    def _make_structure(self, transpose: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        ptr, idx, perm = self.crow_indices, self.col_indices, None
        if transpose:
            transposed, perm = self._transposed()
            ptr, idx = transposed.crow_indices, transposed.col_indices
        blocks = _analysis.row_blocks(
            _numpy(ptr), _numpy(idx), None if perm is None else _numpy(perm), _BLOCK_WEIGHT
        )
        return ptr, idx, perm, self._tensor(blocks)

    def cache_bytes(self) -> int:
        """Bytes held beyond crow_indices and col_indices."""
        own = {self.crow_indices.data_ptr(), self.col_indices.data_ptr()}
        found: dict[int, int] = {}

        def walk(entry: Any) -> None:
            if isinstance(entry, Tensor):
                if entry.data_ptr() not in own:
                    found[entry.data_ptr()] = entry.numel() * entry.element_size()
            elif isinstance(entry, SparsityPattern):
                if entry is not self:
                    walk((entry.crow_indices, entry.col_indices))
                    walk(entry._cache)
            elif isinstance(entry, dict):
                walk(tuple(entry.values()))
            elif isinstance(entry, tuple):
                for e in entry:
                    walk(e)

        walk(self._cache)
        return sum(found.values())

    def drop_caches(self) -> None:
        """Free what is cached. It is computed again when it is needed."""
        self._cache.clear()

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> SparsityPattern:
        """This pattern on `device` with indices of `dtype`; the same object where nothing changes."""
        target = torch.device(device) if device is not None else self.device
        dtype = dtype or self.dtype
        if dtype not in (torch.int32, torch.int64):
            raise TypeError(f"SparsityPattern.to: indices must be int32 or int64, got {dtype}")
        if dtype == torch.int32 and max(*self.shape, self.nnz) > torch.iinfo(torch.int32).max:
            raise ValueError(f"SparsityPattern.to: shape {self.shape}, nnz {self.nnz} do not fit int32 indices")
        if target == self.device and dtype == self.dtype:
            return self
        return self._cached(
            ("to", target, dtype),
            lambda: SparsityPattern._trusted(
                self.crow_indices.to(target, dtype), self.col_indices.to(target, dtype), self.shape
            ),
        )


@torch._dynamo.assume_constant_result
def _analyse_while_tracing(pattern: SparsityPattern) -> bool:
    """Everything that an operation may ask of a pattern, computed for real while torch.compile traces, which
    cannot trace the analysis itself. All at once: Dynamo does not see what changes behind a dictionary that
    it has read."""
    for transpose in (False, True):
        pattern._structure(transpose)
        pattern.T._structure(transpose)
    _ = pattern.row_indices, pattern._missing_diagonal
    return True


def _numpy(t: Tensor) -> np.ndarray:
    return t.detach().cpu().contiguous().numpy()


def _versions(*tensors: Tensor) -> tuple[int, ...]:
    # Inference tensors keep no version; they cannot be changed outside inference mode.
    return tuple(-1 if t.is_inference() else t._version for t in tensors)


class CSR:
    """A sparse matrix: a `SparsityPattern` and a dense tensor of values, which is what autograd sees.

    Parameters
    ----------
    values : Tensor, shape (nnz,), or (..., nnz) for a batch of matrices on one pattern
    pattern : SparsityPattern on the same device

    Notes
    -----
    ``A @ x``, ``A + B``, ``2.0 * A``, ``A.T``, ``A.diagonal()`` and all of `learnsolve.ops` are
    differentiable in the values, to any order. A `CSR` is a pytree with one leaf, its values.

    Examples
    --------
    >>> import scipy.sparse, torch, learnsolve as ls
    >>> A = ls.CSR.from_scipy(scipy.sparse.eye_array(3, format="csr"))
    >>> A
    CSR(shape=(3, 3), nnz=3, dtype=float64, device=cpu, density=33.3%)
    >>> A @ torch.ones(3, dtype=torch.float64)
    tensor([1., 1., 1.], dtype=torch.float64)
    """

    __slots__ = ("__weakref__", "_derived", "pattern", "values")

    __array_ufunc__ = None  # NumPy leaves `array * A` to __rmul__

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """`tensor @ A`, `tensor * A` and their torch names."""
        if len(args) == 2 and not kwargs:
            if func in _MATMUL:
                if isinstance(args[0], CSR):
                    return args[0].__matmul__(args[1])
                if torch.compiler.is_dynamo_compiling():
                    # Dynamo (torch 2.13) hands us `A @ x` and `x @ A` with the same arguments in the same order.
                    raise NotImplementedError(
                        "CSR: under torch.compile the operator @ cannot tell A @ x from x @ A; write "
                        "learnsolve.ops.spmm(A, x) or learnsolve.ops.spmm(A, x, transpose=True)"
                    )
                return args[1].__rmatmul__(args[0])
            if func in _MULTIPLY:
                return args[0] * args[1] if isinstance(args[0], CSR) else args[1] * args[0]
        return NotImplemented

    def __init__(self, values: Tensor, pattern: SparsityPattern):
        if not isinstance(values, Tensor):
            raise TypeError(f"CSR: values must be a torch.Tensor, got {type(values).__name__}")
        if not isinstance(pattern, SparsityPattern):
            raise TypeError(f"CSR: pattern must be a SparsityPattern, got {type(pattern).__name__}")
        if values.dim() == 0 or values.shape[-1] != pattern.nnz:
            raise ValueError(
                f"CSR: values must have shape (..., nnz = {pattern.nnz}), got {tuple(values.shape)}"
            )
        if values.device != pattern.device:
            raise TypeError(
                f"CSR: values are on {values.device}, the pattern on {pattern.device}; use pattern.to(...)"
            )
        self.values = values
        self.pattern = pattern
        self._derived: dict[str, Any] = {}  # what operations keep with constant values

    # --- facts ---
    @property
    def shape(self) -> tuple[int, int]:
        return self.pattern.shape

    @property
    def batch_shape(self) -> torch.Size:
        return self.values.shape[:-1]

    @property
    def nnz(self) -> int:
        return self.pattern.nnz

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def requires_grad(self) -> bool:
        return self.values.requires_grad

    @property
    def crow_indices(self) -> Tensor:
        return self.pattern.crow_indices

    @property
    def col_indices(self) -> Tensor:
        return self.pattern.col_indices

    def __repr__(self) -> str:
        rows, columns = self.shape
        density = self.nnz / max(rows * columns, 1)
        batch = f", batch={tuple(self.batch_shape)}" if self.values.dim() > 1 else ""
        grad = ", requires_grad=True" if self.requires_grad else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"CSR(shape={self.shape}, nnz={self.nnz}{batch}, dtype={dtype}, device={self.device}, "
            f"density={density:.3g}{grad})".replace(f"density={density:.3g}", f"density={density:.1%}")
        )

    # --- from and to other forms ---
    @classmethod
    def from_scipy(
        cls, S: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> CSR:
        """From any scipy.sparse array or matrix. The dtype is kept unless one is given; explicit zeros stay
        entries; duplicates are added up."""
        if not scipy.sparse.issparse(S):
            raise TypeError(f"CSR.from_scipy: expected a scipy.sparse matrix, got {type(S).__name__}")
        csr = S.tocsr()
        if not csr.has_canonical_format:
            csr = csr.copy() if csr is S else csr
            csr.sum_duplicates()
        # Copies: the arrays belong to the caller, who may change them.
        index = np.promote_types(csr.indptr.dtype, csr.indices.dtype)
        pattern = SparsityPattern(
            torch.from_numpy(csr.indptr.astype(index)), torch.from_numpy(csr.indices.astype(index)), csr.shape
        )
        data = csr.data
        values = torch.from_numpy(np.array(data, dtype=data.dtype.newbyteorder("="))).to(dtype)
        return cls(values, pattern).to(device=device)

    def to_scipy(self) -> scipy.sparse.csr_array:
        """A scipy.sparse.csr_array with copies of the values and indices (no gradient)."""
        self._single("to_scipy")
        arrays = tuple(_numpy(t).copy() for t in (self.values, self.col_indices, self.crow_indices))
        return scipy.sparse.csr_array(arrays, shape=self.shape)

    @classmethod
    def from_torch(cls, T: Tensor) -> CSR:
        """From a torch sparse CSR or COO tensor; differentiable in its values."""
        if not isinstance(T, Tensor) or T.layout not in (torch.sparse_csr, torch.sparse_coo) or T.dim() != 2:
            raise TypeError("CSR.from_torch: expected a 2-D torch sparse CSR or COO tensor; see from_dense")
        if T.layout == torch.sparse_coo:
            T = T.coalesce()
            rows, columns = T.indices()
            return cls.from_coo(rows, columns, T.values(), (T.shape[0], T.shape[1]))
        crow, col = T.crow_indices(), T.col_indices()
        kind = _analysis.validate(_numpy(crow), _numpy(col), T.shape[1])[0]
        if kind in (5, 6):  # duplicate or unsorted columns, which torch allows
            rows = torch.repeat_interleave(torch.arange(T.shape[0], device=T.device), crow.diff())
            return cls.from_coo(rows, col, T.values(), (T.shape[0], T.shape[1]))
        return cls(T.values(), SparsityPattern(crow, col, (T.shape[0], T.shape[1])))

    def to_torch(self, layout: torch.layout = torch.sparse_csr) -> Tensor:
        """A torch sparse tensor, CSR or COO; differentiable in the values."""
        self._single("to_torch")
        if layout == torch.sparse_csr:
            return torch.sparse_csr_tensor(
                self.crow_indices, self.col_indices, self.values, self.shape, check_invariants=False
            )
        if layout == torch.sparse_coo:
            indices = torch.stack((self.pattern.row_indices, self.col_indices))
            return torch.sparse_coo_tensor(
                indices, self.values, self.shape, check_invariants=False, is_coalesced=True
            )
        raise ValueError(f"CSR.to_torch: layout must be torch.sparse_csr or torch.sparse_coo, got {layout}")

    @classmethod
    def from_dense(cls, D: Tensor) -> CSR:
        """The nonzeros of a 2-D tensor; differentiable in them."""
        if not isinstance(D, Tensor) or D.dim() != 2:
            raise TypeError("CSR.from_dense: expected a 2-D torch.Tensor")
        rows, columns = D.detach().nonzero(as_tuple=True)
        crow = torch.searchsorted(rows, torch.arange(D.shape[0] + 1, device=D.device))
        return cls(D[rows, columns], SparsityPattern._trusted(crow, columns, (D.shape[0], D.shape[1])))

    def to_dense(self) -> Tensor:
        """The dense matrix, shape (..., rows, columns); differentiable in the values."""
        rows, columns = self.shape
        at = self.pattern.row_indices.long() * columns + self.col_indices
        flat = self.values.new_zeros(self.batch_shape + (rows * columns,))
        return flat.index_copy(-1, at, self.values).unflatten(-1, (rows, columns))

    @classmethod
    def from_coo(cls, rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> CSR:
        """From triples in any order; those of one place are added up. Differentiable in `values`.

        Parameters
        ----------
        rows, columns : integer tensors, shape (entries,)
        values : shape (..., entries)
        shape : (rows, columns)
        """
        from learnsolve.ops.coo import from_coo

        return from_coo(rows, columns, values, shape)

    def _single(self, function: str) -> None:
        if self.values.dim() != 1:
            raise ValueError(
                f"CSR.{function}: needs one matrix, got a batch of shape {tuple(self.batch_shape)}; "
                "take one with A.with_values(A.values[i])"
            )

    # --- the same structure, other values ---
    def with_values(self, values: Tensor) -> CSR:
        """A matrix with this pattern and other values."""
        return CSR(values, self.pattern)

    def to(self, *args: Any, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> CSR:
        """Move or convert, as `torch.Tensor.to`: a device, a dtype, or both. Indices keep their dtype."""
        for arg in args:
            if isinstance(arg, torch.dtype):
                dtype = arg
            elif isinstance(arg, (str, torch.device)):
                device = arg
            else:
                raise TypeError(f"CSR.to: expected a device or a dtype, got {type(arg).__name__}")
        return CSR(self.values.to(device=device, dtype=dtype), self.pattern.to(device))

    def detach(self) -> CSR:
        return CSR(self.values.detach(), self.pattern)

    def clone(self) -> CSR:
        return CSR(self.values.clone(), self.pattern)

    def requires_grad_(self, requires_grad: bool = True) -> CSR:
        self.values.requires_grad_(requires_grad)
        return self

    # --- operations (learnsolve.ops has their documentation) ---
    @property
    def T(self) -> CSR:
        from learnsolve.ops.structure import transpose

        return transpose(self)

    def diagonal(self) -> Tensor:
        from learnsolve.ops.structure import diagonal

        return diagonal(self)

    def sum(self, dim: int | None = None) -> Tensor:
        from learnsolve.ops.structure import sum as sum_

        return sum_(self, dim)

    def scale_rows(self, d: Tensor) -> CSR:
        from learnsolve.ops.structure import scale_rows

        return scale_rows(self, d)

    def scale_columns(self, d: Tensor) -> CSR:
        from learnsolve.ops.structure import scale_columns

        return scale_columns(self, d)

    def __matmul__(self, x: Tensor) -> Tensor:
        from learnsolve.ops.spmm import spmm

        return spmm(self, x)

    def __rmatmul__(self, x: Tensor) -> Tensor:
        # x A = (A^T x^T)^T
        from learnsolve.ops.spmm import spmm

        if x.dim() < 2:
            return spmm(self, x, transpose=True)
        return spmm(self, x.mT, transpose=True).mT

    def __add__(self, other: Any) -> CSR:
        from learnsolve.ops.arithmetic import add_values

        return add_values("A + B", self, other)

    def __sub__(self, other: Any) -> CSR:
        from learnsolve.ops.arithmetic import add_values

        return add_values("A - B", self, other, negate=True)

    def __neg__(self) -> CSR:
        return CSR(-self.values, self.pattern)

    def __mul__(self, other: Any) -> CSR:
        from learnsolve.ops.arithmetic import multiply

        return multiply("A * B", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> CSR:
        from learnsolve.ops.arithmetic import divide

        return divide(self, other)


_MATMUL = {torch.matmul, Tensor.matmul}
_MULTIPLY = {torch.mul, Tensor.mul}


def _unflatten(children: Any, pattern: SparsityPattern) -> CSR:
    # Transformations put placeholders in the leaves: no checks here.
    A = object.__new__(CSR)
    (A.values,) = children
    A.pattern = pattern
    A._derived = {}
    return A


pytree.register_pytree_node(
    CSR,
    lambda A: ([A.values], A.pattern),
    _unflatten,
    serialized_type_name="learnsolve.CSR",
    flatten_with_keys_fn=lambda A: ([(pytree.GetAttrKey("values"), A.values)], A.pattern),
)
assert _library.folder  # the operators are loaded: a CSR without them could do nothing
