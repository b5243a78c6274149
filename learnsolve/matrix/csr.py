"""`CSR`, a sparse matrix: a pattern with values. Its arithmetic calls `learnsolve.ops`. Its other methods
have the names of torch and NumPy."""

from __future__ import annotations

import html as escaping
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, cast, overload

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.utils import _pytree as pytree

from learnsolve import _library
from learnsolve.matrix import convert
from learnsolve.matrix.cache import Immutable, unwrap_values
from learnsolve.matrix.convert import SciPyMatrix, TensorLike
from learnsolve.matrix.pattern import SparsityPattern, check_device, intern, to_numpy


class Views:
    """Mixin of `CSR`."""

    __slots__ = ()

    values: Tensor
    pattern: SparsityPattern
    shape: Any
    to: Any
    T: Any

    # --- transposes and sizes ---
    @property
    def mT(self) -> Self:
        """``A.T``: batch axes stay in front."""
        return self.T

    @property
    def H(self) -> Self:
        """The conjugate transpose, ``A.T`` if values are real."""
        return self.conj().T

    def conj(self) -> Self:
        """With conjugate values, or A itself if they are real."""
        return self._replace_values(convert.conjugate(self.values)) if self.values.is_complex() else self

    @property
    def real(self) -> Self:
        """The real parts of the values, on A's pattern, or A itself if they are real."""
        return self._replace_values(self.values.real) if self.values.is_complex() else self

    @property
    def imag(self) -> Self:
        """The imaginary parts of the values, on A's pattern, or zeros if they are real."""
        return self._replace_values(
            self.values.imag if self.values.is_complex() else torch.zeros_like(self.values)
        )

    def _replace_values(self, values: Tensor) -> Self:
        made: Any = type(self)
        return made(values, self.pattern)

    @property
    def ndim(self) -> int:
        """2, the length of ``A.shape``, also for a batch, whose axes are ``A.batch_shape``."""
        return len(self.shape)

    def __len__(self) -> int:
        """The number of rows, ``A.shape[0]``."""
        return self.shape[0]

    def __bool__(self) -> bool:
        # Otherwise Python would use __len__.
        raise TypeError("CSR: a matrix is neither true nor false. Compare with None, or look at A.nnz")

    # --- moves and conversions ---
    def cpu(self) -> Self:
        return self.to(device="cpu")

    def cuda(self, device: torch.device | int | str | None = None) -> Self:
        """A copy on the current CUDA device, or another one."""
        if isinstance(device, int) and not isinstance(device, bool):
            device = torch.device("cuda", device)
        return self.to(device="cuda" if device is None else device)

    def float(self) -> Self:
        """A copy with float32 values."""
        return self.to(dtype=torch.float32)

    def double(self) -> Self:
        """A copy with float64 values."""
        return self.to(dtype=torch.float64)

    # --- pictures ---
    def __repr__(self) -> str:
        (rows, columns), nnz, batch = self.shape, self.pattern.nnz, tuple(self.values.shape[:-1])
        facts = {
            "shape": (rows, columns),
            "nnz": nnz,
            **({"batch": batch} if batch else {}),
            "dtype": str(self.values.dtype).removeprefix("torch."),
            "device": self.values.device,
            "density": f"{nnz / max(rows * columns, 1):.1%}",
            **({"requires_grad": True} if self.values.requires_grad else {}),
        }
        return f"CSR({', '.join(f'{name}={value}' for name, value in facts.items())})"

    def spy(self, ax: object = None, **options: object) -> Any:
        """Plot the pattern with matplotlib (``pip install 'learnsolve[train]'``).

        Parameters
        ----------
        ax : matplotlib Axes. Default: the axes of a new figure
        options : for ``Axes.imshow``, such as ``cmap``

        Returns
        -------
        The Axes. A cell is dark if it has an entry, even a zero. For a matrix with more than 512 rows or
        columns a cell covers several entries. O(nnz). No gradient.
        """
        return _spy(self.pattern, ax, options)

    def _repr_html_(self) -> str:
        """For notebooks: the properties and a small picture of the pattern."""
        return _html(repr(self), self.pattern)

    # --- files ---
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write values and pattern to a safetensors file, which `CSR.load` reads (``pip install
        'learnsolve[train]'``). An existing file is replaced atomically. No gradient."""
        _save(path, self.values, self.pattern)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: torch.device | str | None = None) -> Self:
        """A matrix from a file written by ``A.save(path)``, checked. Reading runs no code.

        Matrices with the same pattern share the object, like pickled ones. Raises ValueError for a file that
        is damaged or holds something else.

        Examples
        --------
        >>> import tempfile, learnsolve as ls
        >>> path = f"{tempfile.mkdtemp()}/A.safetensors"
        >>> ls.problems.poisson((3,)).save(path)
        >>> ls.CSR.load(path)
        CSR(shape=(3, 3), nnz=7, dtype=float64, device=cpu, density=77.8%)
        """
        made: Any = cls
        return made(*_load(path)).to(device=device)


_SPY_CELLS, _HTML_CELLS = 512, 48  # along the longer axis, at most


def _spy(pattern: SparsityPattern, ax: Any, options: dict[str, Any]) -> Any:
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise ImportError(
                "CSR.spy needs matplotlib: pip install 'learnsolve[train]'", name="matplotlib"
            ) from error
        ax = pyplot.figure().add_subplot()
    rows, columns = pattern.shape
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)  # of the matrix, independent of the cells
    defaults = {"cmap": "Greys", "vmin": 0, "vmax": 1, "interpolation": "nearest", "extent": extent}
    ax.imshow(_cells(pattern, _SPY_CELLS), **{**defaults, **options})
    ax.set_title(f"{rows} x {columns}, {pattern.nnz} entries")
    return ax


def _html(text: str, pattern: SparsityPattern) -> str:
    """The text above an SVG with one square per cell that has an entry."""
    line = f"<code>{escaping.escape(text)}</code>"
    if pattern.device.type == "meta":
        return line
    cells = _cells(pattern, _HTML_CELLS)
    height, width = cells.shape
    squares = "".join(f"M{j} {i}h1v1h-1z" for i, j in np.argwhere(cells).tolist())
    return (
        f'{line}<br><svg viewBox="0 0 {width} {height}" width="{4 * width}" height="{4 * height}" '
        f'style="border:1px solid"><path fill="currentColor" d="{squares}"/></svg>'
    )


def _cells(pattern: SparsityPattern, most: int) -> np.ndarray:
    """The cells of a grid of at most most x most that have an entry."""
    rows, columns = pattern.shape
    scale = max(1, -(-max(rows, columns) // most))
    cells = np.zeros((max(1, -(-rows // scale)), max(1, -(-columns // scale))), dtype=bool)
    cells[to_numpy(pattern.row_indices) // scale, to_numpy(pattern.col_indices) // scale] = True
    return cells


_KEYS = {"values", "crow_indices", "col_indices"}


def _save(path: str | os.PathLike[str], values: Tensor, pattern: SparsityPattern) -> None:
    with torch._C._DisableFuncTorch():
        values = unwrap_values(values)
    is_complex = values.is_complex()
    tensors = {
        "values": torch.view_as_real(values.detach().resolve_conj()) if is_complex else values,
        "crow_indices": pattern.crow_indices,
        "col_indices": pattern.col_indices,
    }
    parts = {"complex": True} if is_complex else {}  # the format has no complex128
    about = json.dumps({"format": 1, "matrix": "CSR", "shape": pattern.shape, **parts})
    convert.write_tensors("CSR.save", path, tensors, {"learnsolve": about})


def _load(path: str | os.PathLike[str]) -> tuple[Tensor, SparsityPattern]:
    tensors, header = convert.read_tensors("CSR.load", path)
    shape, is_complex = _read_shape(path, header)
    if tensors.keys() != _KEYS:
        raise ValueError(f"CSR.load: {path} is damaged, it must hold {sorted(_KEYS)}, got {sorted(tensors)}")
    try:
        pattern = SparsityPattern(tensors["crow_indices"], tensors["col_indices"], shape)
        values = tensors["values"]
        if is_complex:
            if values.dtype not in (torch.float32, torch.float64) or values.shape[-1:] != (2,):
                raise ValueError(f"complex values are of {values.dtype} and shape {tuple(values.shape)}")
            values = torch.view_as_complex(values)
        if values.dim() == 0 or values.shape[-1] != pattern.nnz:
            raise ValueError(f"values have shape {tuple(values.shape)}, entries are {pattern.nnz}")
    except (ValueError, TypeError) as error:
        raise ValueError(f"CSR.load: {path} is damaged ({error})") from error
    return values, intern(pattern)


def _read_shape(path: str | os.PathLike[str], header: dict[str, str]) -> tuple[tuple[int, int], bool]:
    """The shape, and whether a last axis of the values holds real and imaginary parts."""
    try:
        about = json.loads(header["learnsolve"])
        made_by, kind = about["format"], about["matrix"]
        rows, columns = about["shape"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"CSR.load: {path} is not the file of a matrix. Pass a file that A.save(path) has written"
        ) from error
    if (made_by, kind) != (1, "CSR"):
        raise ValueError(
            f"CSR.load: {path} has format {made_by!r} of {kind!r}, this version reads 1 of 'CSR'. Update "
            "learnsolve"
        )
    return (rows, columns), about.get("complex") is True


_INSTEAD = {
    **{name: f"A.values.{name}(), or with the zeros A.to_dense().{name}()" for name in ("max", "min")},
    **{f"to{name}": f'A.to_scipy("{name}")' for name in ("csr", "csc", "coo")},
    **dict.fromkeys(("dot", "mm", "mv", "matmul"), "A @ x"),
    "astype": "A.to(dtype)",
    "copy": "A.clone()",
    "data": "A.values",
    "indices": "A.col_indices",
    "indptr": "A.crow_indices",
    "mean": "A.sum(dim) / A.shape[dim]",
    "multiply": "A * B",
    "numpy": "A.toarray()",
    "to_sparse_csr": "A.to_torch()",
    "todense": "A.to_dense() for a tensor, A.toarray() for an array",
    "transpose": "A.T",
}


class _Missing:
    """A missing attribute, whose error says what to write instead."""

    def __init__(self, name: str, remedy: str):
        self.message = f"CSR: a matrix has no attribute {name!r}. Write {remedy}"

    def __get__(self, A: object, owner: object) -> Any:
        raise AttributeError(self.message)


class Habits:
    """Mixin of `CSR`."""

    __slots__ = ()

    shape: tuple[int, int]
    T: Any
    to_dense: Any

    # --- supported ---
    def t(self) -> Any:
        """``A.T``, as in torch."""
        return self.T

    @overload
    def size(self) -> tuple[int, int]: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> tuple[int, int] | int:
        """``A.shape``, or ``A.shape[dim]``, as in torch. No gradient."""
        return self.shape if dim is None else self.shape[dim]

    def toarray(self) -> np.ndarray:
        """The dense NumPy array, as in SciPy: a copy on the host, without gradient."""
        dense: Tensor = self.to_dense()
        return to_numpy(dense)

    # --- not supported: errors with a remedy ---
    __array_ufunc__ = None  # NumPy leaves `array * A` to __rmul__

    if not TYPE_CHECKING:  # otherwise type checkers would find every attribute and treat a CSR as an array

        def __dir__(self) -> list[str]:
            return sorted(set(super().__dir__()) - set(_INSTEAD))

        def __array__(self, *_: object, **__: object) -> Any:
            # Otherwise NumPy would make an array of one object.
            raise TypeError(
                "CSR: a sparse matrix is not a NumPy array. Use A.toarray(), or A.to_scipy() for a sparse "
                "one. For S @ A with a SciPy matrix S write CSR.from_scipy(S) @ A"
            )

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_is_param":  # the mark that torch.nn.Parameter sets on its argument
            raise TypeError(
                "Parameter: takes a tensor, got a CSR. A matrix with trainable values is "
                "learnsolve.nn.SparseMatrix(A, trainable=True), and "
                "A.with_values(torch.nn.Parameter(A.values)) one whose values are a parameter held elsewhere"
            )
        super().__setattr__(name, value)


for _name, _remedy in _INSTEAD.items():  # a __getattr__ would slow down every other attribute
    setattr(Habits, _name, _Missing(_name, _remedy))


def alias(method: str, default: object, **names: object) -> Any:
    """The value of an argument with several names."""
    arguments = {name: value for name, value in names.items() if value is not None}
    if len(arguments) > 1:
        raise TypeError(f"CSR.{method}: {' and '.join(arguments)} are names of the same argument. Remove one")
    return next(iter(arguments.values()), default)


def no_matrix_function(func: object, types: Any) -> Any:
    """Raise the error of a torch function that does not accept a CSR."""
    if is_dynamo_compiling() or any(not issubclass(t, (Habits, Tensor)) for t in types):
        return NotImplemented
    name = getattr(func, "__name__", str(func))
    raise TypeError(
        f"torch.{name}: takes no CSR. Write A @ x, use an operation of learnsolve.ops, or pass A.values, "
        "A.to_dense() or A.to_torch()"
    )


_ops: Any = None  # learnsolve.ops, which imports CSR and sets this: the methods of a CSR are operations


def is_operator(other: object) -> bool:
    """Whether this is a `LinearOperator`, whose own methods make sums and products of the two."""
    return getattr(type(other), "is_linear_operator", False)


class CSR(Views, Habits, Immutable):
    """A sparse matrix: a `SparsityPattern` and a dense tensor of values, which autograd differentiates.

    Parameters
    ----------
    values : Tensor, shape (nnz,), or (..., nnz) for a batch of matrices on the same pattern
    pattern : SparsityPattern on the same device

    Raises
    ------
    ValueError
        if the length of the last axis of values is not the number of entries of the pattern.
    TypeError
        if values is not a tensor, pattern not a SparsityPattern, or they are on different devices.

    Notes
    -----
    ``A @ x``, ``A + B``, ``2.0 * A``, ``A.T``, ``A.diagonal()`` and all of `learnsolve.ops` are
    differentiable in the values, to any order. A `CSR` is immutable, and a pytree with one leaf, its values.

    Examples
    --------
    >>> import scipy.sparse, torch, learnsolve as ls
    >>> A = ls.CSR.from_scipy(scipy.sparse.eye_array(3, format="csr"))
    >>> A
    CSR(shape=(3, 3), nnz=3, dtype=float64, device=cpu, density=33.3%)
    >>> A @ torch.ones(3, dtype=torch.float64)
    tensor([1., 1., 1.], dtype=torch.float64)
    """

    __slots__ = ("__weakref__", "_inverse_diagonal", "pattern", "values")  # the second: ops/structure.py

    _instead = "Make another one with A.with_values(values) or learnsolve.CSR(values, pattern)"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """`tensor @ A`, `tensor * A` and their torch names."""
        if len(args) != 2 or kwargs:
            return no_matrix_function(func, types)
        if func in (torch.mul, Tensor.mul):
            A, factor = args if isinstance(args[0], CSR) else args[::-1]
            return _ops.arithmetic.multiply("A * B", A, factor)
        if isinstance(args[1], CSR) and is_dynamo_compiling():
            # Dynamo (torch 2.13) passes `A @ x` and `x @ A` with the same arguments, in the same order.
            raise NotImplementedError(
                "CSR: under torch.compile the operators @ and / cannot tell A @ x from x @ A. Write "
                "learnsolve.ops.spmm(A, x), learnsolve.ops.spmm(A, x, transpose=True) or A * (1 / s)"
            )
        if func in (torch.matmul, Tensor.matmul):
            left = isinstance(args[0], CSR)
            return args[0].__matmul__(args[1]) if left else args[1].__rmatmul__(args[0])
        return no_matrix_function(func, types)

    def __init__(self, values: Tensor, pattern: SparsityPattern):
        if not isinstance(values, Tensor):
            raise TypeError(f"CSR: values must be a torch.Tensor, got {type(values).__name__}")
        if not isinstance(pattern, SparsityPattern):
            raise TypeError(f"CSR: pattern must be a SparsityPattern, got {type(pattern).__name__}")
        shape = values.shape
        if not shape or shape[-1] != pattern.nnz:
            raise ValueError(f"CSR: values must have shape (..., nnz = {pattern.nnz}), got {tuple(shape)}")
        # Devices are compared only if one is not the CPU: this takes longer than all other checks.
        if not (values.is_cpu and pattern._arrays[0].is_cpu):
            if values.device != pattern.device:
                raise TypeError(
                    f"CSR: values are on {values.device}, the pattern on {pattern.device}. Use "
                    "pattern.to(...)"
                )
            convert.real_on_a_device("CSR", "values", values)
        if is_dynamo_compiling():  # Dynamo supports only this
            object.__setattr__(self, "values", values)
            object.__setattr__(self, "pattern", pattern)
        else:
            _set_values(self, values)
            _set_pattern(self, pattern)

    def __reduce__(self):
        return CSR, (self.values, self.pattern)

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

    # --- from and to other forms ---
    @classmethod
    def from_scipy(
        cls,
        S: object,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        pattern: SparsityPattern | None = None,
    ) -> CSR:
        """From any scipy.sparse array or matrix. The dtype is kept unless one is given. Explicit zeros remain
        entries. Duplicates are summed.

        With `pattern` the matrix has exactly this pattern object, with zeros where S has no entry, so that
        the matrices of a data set share it and its plans. An entry of S outside the pattern, even a zero, is
        a ValueError. It costs O(nnz).
        """
        A = cls(*convert.from_scipy(S, dtype))
        if pattern is not None:
            A = _ops.arithmetic.expand_pattern(
                "CSR.from_scipy", A.to(device=getattr(pattern, "device", None)), pattern
            )
        return A.to(device=device)

    def to_scipy(self, format: str = "csr") -> Any:
        """A scipy.sparse array, csr_array or another `format` ("csc", "coo", "bsr", "dia", ...), with copies
        of the values and indices (no gradient). Explicit zeros remain entries in "csr", "csc" and "coo"."""
        self._single("to_scipy")
        return convert.to_scipy(self.values, self.pattern, format)

    def to_scipy_linear_operator(self) -> scipy.sparse.linalg.LinearOperator:
        """A scipy.sparse.linalg.LinearOperator that uses our products without a copy (no gradient)."""
        self._single("to_scipy_linear_operator")
        return _ops.products.HostOperator(self, _ops.products.matrix_product)

    @classmethod
    def from_torch(cls, T: Tensor, pattern: SparsityPattern | None = None) -> CSR:
        """From a torch sparse CSR, COO, CSC, BSR or BSC tensor. Differentiable in its values, which are
        copied only if they must be sorted. The gradient arrives at a CSR or COO tensor, or at the values that
        a tensor of any layout was made from. All entries of blocks are kept. `pattern` as for
        `from_scipy`."""
        if (known := convert.known_pattern(T)) is not None:
            A = cls(T.values(), known)
        else:
            crow, col, values, shape = convert.from_torch(T)
            if crow is not None:
                A = cls(values, SparsityPattern(crow, col, shape))
                convert.keep_pattern(T, A.pattern)
            else:
                rows, columns = col
                A = cls.from_coo(rows, columns, values, shape)
        if T.layout == torch.sparse_csc:
            A = A.T
        return A if pattern is None else _ops.arithmetic.expand_pattern("CSR.from_torch", A, pattern)

    def to_torch(self, layout: torch.layout = torch.sparse_csr) -> Tensor:
        """A torch sparse tensor, CSR or COO, with a copy of the indices and A's own values, in which it is
        differentiable."""
        self._single("to_torch")
        return convert.to_torch(self.values, self.pattern, layout)

    @classmethod
    def from_dense(cls, D: TensorLike, pattern: SparsityPattern | None = None) -> CSR:
        """The nonzeros of a 2-D tensor, in which it is differentiable, or of a NumPy array. With `pattern`,
        the values at its entries, including zeros, as in `from_scipy`."""
        D = cast(Tensor, convert.copy_array(D))
        if pattern is None:
            return cls(*convert.from_dense(D))
        convert.check_dense(D)
        return _ops.arithmetic.dense_on_pattern(D, pattern)

    def to_dense(self) -> Tensor:
        """The dense matrix, shape (..., rows, columns), differentiable in the values."""
        return convert.to_dense(self.values, self.pattern)

    @classmethod
    def from_coo(
        cls,
        rows: TensorLike,
        columns: TensorLike,
        values: TensorLike,
        shape: tuple[int, int],
        pattern: SparsityPattern | None = None,
    ) -> CSR:
        """From triples in any order. Duplicates are summed. Differentiable in `values`.

        Parameters
        ----------
        rows, columns : integer tensors, or NumPy arrays, shape (entries,)
        values : Tensor or NumPy array, shape (..., entries)
        shape : (rows, columns)
        pattern : see `from_scipy`
        """
        rows, columns, values = (convert.copy_array(t) for t in (rows, columns, values))
        A = _ops.indexing.from_coo(rows, columns, values, shape)
        return A if pattern is None else _ops.arithmetic.expand_pattern("CSR.from_coo", A, pattern)

    @classmethod
    def stack(cls, matrices: Sequence[CSR]) -> CSR:
        """A batch of matrices with equal patterns, values (B, ..., nnz). Differentiable in all of them.

        The pattern is the first matrix's. Other pattern objects are accepted if their entries are the same,
        otherwise a ValueError is raised: `BlockBatch` supports matrices of different patterns and sizes.
        """
        return _ops.blocks.stack(matrices)

    def _single(self, function: str) -> None:
        if self.values.dim() != 1:
            raise ValueError(
                f"CSR.{function}: needs one matrix, got a batch of shape {tuple(self.batch_shape)}. "
                "Select one with A.with_values(A.values[i])"
            )

    # --- the same structure, other values ---
    def with_values(self, values: Tensor) -> CSR:
        """A matrix with this pattern and other values, which are not copied."""
        return CSR(values, self.pattern)

    def to(
        self, *args: object, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> CSR:
        """Move or convert, like `torch.Tensor.to`: a device, a dtype, or both. Indices keep their dtype.
        Parts that need no change are not copied."""
        for arg in args:
            if isinstance(arg, torch.dtype) and dtype is None:
                dtype = arg
            elif isinstance(arg, (str, torch.device)) and device is None:
                device = arg
            elif isinstance(arg, (torch.dtype, str, torch.device)):
                raise TypeError(f"CSR.to: a device or a dtype was passed twice, the second time {arg}")
            else:
                raise TypeError(f"CSR.to: expected a device or a dtype, got {type(arg).__name__}")
        check_device("CSR.to", device)
        return CSR(convert.cast("CSR.to", self.values, dtype, device), self.pattern.to(device))

    def detach(self) -> CSR:
        """The same values, not copied, detached from the autograd graph."""
        return CSR(self.values.detach(), self.pattern)

    def clone(self) -> CSR:
        return CSR(self.values.clone(), self.pattern)

    def requires_grad_(self, requires_grad: bool = True) -> CSR:
        self.values.requires_grad_(requires_grad)
        return self

    # --- operations (documented in learnsolve.ops; k and dim have torch's and NumPy's names too) ---
    @property
    def T(self) -> CSR:
        return _ops.transpose(self)

    def is_symmetric(self) -> bool:
        """Whether A equals its transpose, pattern included, up to
        ``|a_ij - a_ji| <= 512 eps sqrt(m_i m_j)``, with ``m_i`` the largest modulus in row and column i.

        For a batch: whether all do. O(nnz), on the host, and not under `torch.compile`."""
        return _ops.structure.symmetry("CSR.is_symmetric", self, None)

    def diagonal(self, k: int | None = None, *, offset: int | None = None) -> Tensor:
        return _ops.diagonal(self, alias("diagonal", 0, k=k, offset=offset))

    def trace(self) -> Tensor:
        return _ops.trace(self)

    def tril(self, k: int | None = None, *, diagonal: int | None = None) -> CSR:
        return _ops.tril(self, alias("tril", 0, k=k, diagonal=diagonal))

    def triu(self, k: int | None = None, *, diagonal: int | None = None) -> CSR:
        return _ops.triu(self, alias("triu", 0, k=k, diagonal=diagonal))

    def norm(
        self, ord: float | str | None = None, dim: int | None = None, *, axis: int | None = None
    ) -> Tensor:
        return _ops.norm(self, ord, alias("norm", None, dim=dim, axis=axis))

    def abs(self) -> CSR:
        """The absolute values of the entries, also ``abs(A)``."""
        return _ops.arithmetic.absolute(self)

    __abs__ = abs

    def pow(self, exponent: float) -> CSR:
        """The entries raised to a positive power, also ``A ** e``."""
        return _ops.arithmetic.power(self, exponent)

    __pow__ = pow

    def __getitem__(self, key: object) -> CSR | Tensor:
        """``A[rows, columns]`` or ``A[rows]``: ints, slices, integer arrays, boolean masks.

        Slices and arrays keep an axis, so ``A[1:5]``, ``A[p]``, ``A[p][:, q]``, ``A[numpy.ix_(p, q)]`` are
        matrices. Explicit zeros remain entries. An int drops its axis: ``A[i]`` is a dense row, ``A[i, j]`` a
        scalar. Two index arrays, or a mask of A's shape, select entries into a dense vector. Batch axes stay
        in front. Results are differentiable, also for repeated entries. ``A[:, :]`` is A itself.
        """
        return _ops.indexing.index(self, key)

    __iter__ = None  # otherwise Python would try A[0], A[1], ...

    def sum(self, dim: int | None = None, *, axis: int | None = None) -> Tensor:
        return _ops.sum(self, alias("sum", None, dim=dim, axis=axis))

    def scale_rows(self, d: Tensor) -> CSR:
        return _ops.scale_rows(self, d)

    def scale_columns(self, d: Tensor) -> CSR:
        return _ops.scale_columns(self, d)

    @overload
    def __matmul__(self, x: TensorLike) -> Tensor: ...
    @overload
    def __matmul__(self, x: CSR | SciPyMatrix) -> CSR: ...
    def __matmul__(self, x: TensorLike | CSR | SciPyMatrix) -> Tensor | CSR:
        if not isinstance(x, Tensor):
            if isinstance(x, CSR) or scipy.sparse.issparse(x):
                return _ops.spgemm(self, x)
            if is_operator(x):
                return NotImplemented
            x = convert.copy_array(x, self.values)
        return _ops.spmm(self, x)

    def __rmatmul__(self, x: TensorLike) -> Tensor:
        # x A = (A^T x^T)^T
        x = convert.copy_array(x, self.values)
        if not isinstance(x, Tensor):
            raise TypeError(f"x @ A: x must be a torch.Tensor or a NumPy array, got {type(x).__name__}")
        if x.dim() < 2:
            return _ops.spmm(self, x, transpose=True)
        return _ops.spmm(self, x.mT, transpose=True).mT

    def __add__(self, other: object) -> CSR:
        if not isinstance(other, CSR) and is_operator(other):
            return NotImplemented
        return _ops.arithmetic.add_values("A + B", self, other)

    def __sub__(self, other: object) -> CSR:
        if not isinstance(other, CSR) and is_operator(other):
            return NotImplemented
        return _ops.arithmetic.add_values("A - B", self, other, negate=True)

    def __neg__(self) -> CSR:
        return CSR(-self.values, self.pattern)

    def __mul__(self, other: object) -> CSR:
        return _ops.arithmetic.multiply("A * B", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> CSR:
        return _ops.arithmetic.divide(self, other)


# Bypass the __setattr__ of the class; 3 times faster than object.__setattr__.
_set_values, _set_pattern = CSR.values.__set__, CSR.pattern.__set__  # type: ignore[attr-defined]


def _unflatten(children: Any, pattern: SparsityPattern) -> CSR:
    # Transformations put placeholders into the leaves: no checks here.
    A = object.__new__(CSR)
    object.__setattr__(A, "values", *children)
    object.__setattr__(A, "pattern", pattern)
    return A


pytree.register_pytree_node(
    CSR,
    lambda A: ([A.values], A.pattern),
    _unflatten,
    serialized_type_name="learnsolve.CSR",
    flatten_with_keys_fn=lambda A: ([(pytree.GetAttrKey("values"), A.values)], A.pattern),  # type: ignore
)
torch.serialization.add_safe_globals([CSR])  # read by torch.load with weights_only=True, its default
assert _library.folder  # load the operators, without which a CSR is useless
