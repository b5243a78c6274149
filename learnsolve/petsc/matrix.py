"""A sparse matrix whose rows are distributed over several processes, from memory or from a file, with
products and sums that are closed under differentiation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve.arguments import Index, instance
from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops.operators import LinearOperator
from learnsolve.ops.products import dots, product, sddmm_values
from learnsolve.petsc._processes import Linear, Local, Rows, check_dtype, engine, processes, share

_KEPT = 4  # the number of column counts with cached scatters


class Halo:
    """Entries `columns`, sorted, of vectors with these rows, by a PETSc scatter.

    The only copies are into and out of PETSc's messages.
    """

    def __init__(self, rows: Rows, columns: np.ndarray):
        self.rows, self.columns = rows, columns
        self._scatters: dict[int, tuple[Any, Any, Any]] = {}

    def fetch(self, x: Tensor) -> Tensor:
        """x[columns], (halo, k), of x (rows here, k)."""
        return _Fetch.apply(x, self)  # type: ignore[return-value]

    def deliver(self, g: Tensor) -> Tensor:
        """(rows here, k): the sums over all processes of the entries of g (halo, k) for these rows."""
        return _Deliver.apply(g, self)  # type: ignore[return-value]

    def move(self, t: Tensor, back: bool) -> Tensor:
        k = t.shape[1]
        out = t.new_zeros((self.rows.count if back else len(self.columns), k))
        if k == 0:
            return out
        scatter, whole, halo = self._scatter(k)
        t = t.detach().contiguous()
        inner, outer = (out, t) if back else (t, out)
        whole.placeArray(inner.numpy().reshape(-1))
        halo.placeArray(outer.numpy().reshape(-1))
        try:
            if back:
                scatter.scatter(halo, whole, addv=True, mode="reverse")
            else:
                scatter.scatter(whole, halo)
        finally:
            whole.resetArray()
            halo.resetArray()
        return out

    def _scatter(self, k: int) -> tuple[Any, Any, Any]:
        if k in self._scatters:
            return self._scatters[k]
        PETSc, count = engine(), len(self.columns)
        most = np.iinfo(PETSc.IntType).max
        if self.rows.rows * k > most:
            raise ValueError(
                f"petsc: {self.rows.rows} rows of {k} columns are more than this PETSc can count, {most}. "
                "Use fewer columns, or a PETSc with 64-bit indices"
            )
        if len(self._scatters) >= _KEPT:
            for each in self._scatters.pop(next(iter(self._scatters))):
                each.destroy()
        whole = PETSc.Vec().create(comm=PETSc.COMM_WORLD)
        whole.setSizes((self.rows.count * k, self.rows.rows * k), bsize=k)
        whole.setType("mpi")
        halo = PETSc.Vec().createSeq(count * k, bsize=k, comm=PETSc.COMM_SELF)
        theirs = PETSc.IS().createBlock(k, self.columns.astype(PETSc.IntType), comm=PETSc.COMM_SELF)
        ours = PETSc.IS().createBlock(k, np.arange(count, dtype=PETSc.IntType), comm=PETSc.COMM_SELF)
        scatter = PETSc.Scatter().create(whole, theirs, halo, ours)
        theirs.destroy()
        ours.destroy()
        self._scatters[k] = scatter, whole, halo
        return self._scatters[k]


class _Fetch(Linear):
    @staticmethod
    def forward(x, halo):
        return halo.move(x, False)

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return ctx.by.deliver(g), None

    @staticmethod
    def jvp(ctx, t, _):  # type: ignore[override]
        return ctx.by.fetch(t)


class _Deliver(Linear):
    @staticmethod
    def forward(g, halo):
        return halo.move(g, True)

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return ctx.by.fetch(g), None

    @staticmethod
    def jvp(ctx, t, _):  # type: ignore[override]
        return ctx.by.deliver(t)


# A matrix from a file of which each process reads its share.
#
# PETSc's binary format: the header (class, rows, columns, entries), the length of each row, columns,
# values, all big-endian; a process maps the file and reads its parts. Matrix Market: a process reads the
# lines in its part of the bytes, and a scatter of PETSc brings each entry to the process that has its row.


_CLASS = 1211216  # of a matrix in PETSc's binary files
_LONGEST_HEADER = 1 << 20


def read(path: str | os.PathLike[str]) -> tuple[CSR, tuple[int, int]]:
    """The local rows, (hi - lo, n), and (lo, hi)."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"petsc.Matrix.from_file: there is no file {path}")
    with path.open("rb") as stream:
        start = stream.read(64)
    if start.startswith(b"%%MatrixMarket"):
        return _matrix_market(path)
    if start.startswith(b"\x1f\x8b"):
        _fail(path, "is compressed, so that no process could read its part alone. Decompress it")
    if len(start) >= 16:
        for size in (4, 8):
            if int.from_bytes(start[:size], "big") == _CLASS:
                return _binary(path, np.dtype(f">i{size}"))
    _fail(path, "is neither a Matrix Market file nor a matrix in PETSc's binary format")


def _fail(path: Path, what: str) -> NoReturn:
    raise ValueError(f"petsc.Matrix.from_file: {path} {what}")


def _binary(path: Path, index: np.dtype) -> tuple[CSR, tuple[int, int]]:
    header = np.fromfile(path, index, 4).astype(np.int64)
    rows, columns, entries = header[1:].tolist()
    if rows != columns:
        _fail(path, f"holds a matrix of shape ({rows}, {columns}), and only a square one is read")
    at = 4 * index.itemsize
    after = at + (rows + entries) * index.itemsize
    if entries < 0 or path.stat().st_size < after + 8 * entries:
        _fail(path, f"is truncated, or of another format: {entries} entries do not fit")
    (lo, hi), p = share(rows), processes()

    def part(dtype: Any, offset: int, first: int, count: int) -> np.ndarray:
        return np.fromfile(path, dtype, count, offset=offset + first * np.dtype(dtype).itemsize)

    lengths = part(index, at, lo, hi - lo).astype(np.int64)
    counts = p.gather(torch.tensor([float(lengths.sum())])).flatten()
    if int(counts.sum()) != entries:
        _fail(path, f"is damaged: its rows have {int(counts.sum())} entries, not {entries}")
    first, own = int(counts[: p.rank].sum()), int(lengths.sum())
    col = part(index, at + rows * index.itemsize, first, own).astype(np.int64)
    values = part(">f8", after, first, own).astype(np.float64)
    crow = np.concatenate(([0], lengths.cumsum()))
    S = scipy.sparse.csr_array((values, col, crow), shape=(hi - lo, columns))
    return _rows(path, S), (lo, hi)


class _Header(NamedTuple):
    symmetry: str
    pattern: bool
    rows: int
    entries: int
    body: int  # where the lines of entries begin, in bytes


def _matrix_market(path: Path) -> tuple[CSR, tuple[int, int]]:
    header = _header(path)
    i, j, v = _entries(path, header)
    total = int(processes().gather(torch.tensor([float(len(i))])).sum())
    if total != header.entries:
        _fail(path, f"has {total} entries, and its size line says {header.entries}")
    outside = (np.minimum(i, j) < 0) | (np.maximum(i, j) >= header.rows)
    if outside.any():
        at = int(outside.nonzero()[0][0])
        _fail(path, f"has an entry in row {i[at] + 1}, column {j[at] + 1}, outside of its size {header.rows}")
    if header.symmetry != "general":
        off = i != j
        sign = -1 if header.symmetry == "skew-symmetric" else 1
        i, j, v = np.append(i, j[off]), np.append(j, i[off]), np.append(v, sign * v[off])
    lo, hi = share(header.rows)
    i, j, v = _sent(i, j, v, header.rows)
    S = scipy.sparse.csr_array(scipy.sparse.coo_array((v, (i - lo, j)), shape=(hi - lo, header.rows)))
    return _rows(path, S), (lo, hi)


def _header(path: Path) -> _Header:
    with path.open("rb") as stream:
        words = stream.readline(_LONGEST_HEADER).decode("latin-1").lower().split()
        kinds = (("coordinate",), ("real", "integer", "pattern"), ("general", "symmetric", "skew-symmetric"))
        fits = len(words) == 5 and all(w in kind for w, kind in zip(words[2:], kinds, strict=True))
        if not fits:
            _fail(
                path, f"has the header {' '.join(words)!r}. Only coordinate files of real numbers can be read"
            )
        line = stream.readline(_LONGEST_HEADER)
        while line.startswith(b"%") or (line and not line.strip()):
            line = stream.readline(_LONGEST_HEADER)
        try:
            rows, columns, entries = map(int, line.split())
        except ValueError:
            _fail(path, f"has the size line {line[:80]!r}, not three numbers")
        if rows != columns:
            _fail(path, f"holds a matrix of shape ({rows}, {columns}), and only a square one is read")
        return _Header(words[4], words[3] == "pattern", rows, entries, stream.tell())


def _entries(path: Path, header: _Header) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entries in lines that begin in this process's part of the bytes, counted from 0."""
    p, size = processes(), path.stat().st_size - header.body
    first, last = (header.body + size * r // p.size for r in (p.rank, p.rank + 1))
    with path.open("rb") as stream:
        if p.rank:  # lines that begin earlier belong to the previous process
            stream.seek(first - 1)
            stream.readline()
            first = stream.tell()
        stream.seek(first)
        text = stream.read(max(0, last - first))
        if text and not text.endswith(b"\n"):
            text += stream.readline()
    width = 2 if header.pattern else 3
    try:
        table = np.array(text.split(), dtype=np.float64)
        lines = sum(1 for line in text.splitlines() if line.strip())
        table = table.reshape(lines, width)
    except ValueError as error:
        _fail(path, f"has a line that is not {width} numbers, among bytes {first} to {last} ({error})")
    if not np.isfinite(table).all():
        _fail(path, f"has a number that is not finite, among bytes {first} to {last}")
    v = np.ones(len(table)) if header.pattern else table[:, 2].copy()
    return table[:, 0].astype(np.int64) - 1, table[:, 1].astype(np.int64) - 1, v


def _sent(i: np.ndarray, j: np.ndarray, v: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All entries in the rows of this process."""
    p = processes()
    if p.size == 1:
        return i, j, v
    PETSc = engine()
    starts = np.array([n * r // p.size for r in range(1, p.size)])
    owner = np.searchsorted(starts, i, side="right")
    order = np.argsort(owner, kind="stable")
    counts = torch.from_numpy(np.bincount(owner, minlength=p.size).astype(float))
    table = p.gather(counts).numpy().astype(np.int64)  # (from, to)
    begin = np.concatenate(([0], table.sum(1).cumsum()))[:-1] + table[:, : p.rank].sum(1)
    wanted = np.concatenate([np.arange(b, b + c) for b, c in zip(begin, table[:, p.rank], strict=True)])
    # Three values per entry, exact in float64.
    all_of = PETSc.Vec().create(comm=PETSc.COMM_WORLD)
    all_of.setSizes((3 * len(i), PETSc.DECIDE), bsize=3)
    all_of.setType("mpi")
    all_of.array_w[:] = np.stack((i[order], j[order], v[order]), 1).reshape(-1)
    own = PETSc.Vec().createSeq(3 * len(wanted), bsize=3, comm=PETSc.COMM_SELF)
    theirs = PETSc.IS().createBlock(3, wanted.astype(PETSc.IntType), comm=PETSc.COMM_SELF)
    ours = PETSc.IS().createBlock(3, np.arange(len(wanted), dtype=PETSc.IntType), comm=PETSc.COMM_SELF)
    scatter = PETSc.Scatter().create(all_of, theirs, own, ours)
    scatter.scatter(all_of, own)
    found = np.array(own.array_r).reshape(-1, 3)
    for each in (scatter, theirs, ours, own, all_of):
        each.destroy()
    return found[:, 0].astype(np.int64), found[:, 1].astype(np.int64), found[:, 2]


def _rows(path: Path, S: scipy.sparse.csr_array) -> CSR:
    shape: Any = S.shape
    S.sort_indices()
    if S.nnz and not (S.indices.min() >= 0 and S.indices.max() < shape[1]):
        _fail(path, "is damaged: it has a column outside of its size")
    S.sum_duplicates()
    if S.nnz == 0:
        crow = torch.zeros(shape[0] + 1, dtype=torch.int64)
        return CSR(torch.zeros(0, dtype=torch.float64), SparsityPattern(crow, crow[:0], shape))
    return CSR.from_scipy(S)


LIMIT = 100_000_000  # entries that `to_scipy` gathers in every process


class Matrix:
    """A sparse matrix of which each process holds consecutive rows.

    Vectors are tensors of the local rows, (hi - lo,) or (hi - lo, k). All processes must make the same calls.

    Parameters
    ----------
    values : Tensor (nnz,), float64 on the CPU: the local entries; may require grad, or be a parameter
    pattern : SparsityPattern, shape (hi - lo, columns of the whole matrix), of the local rows
    row_range : (lo, hi). The ranges of the processes are consecutive, and may be empty (`share(n)`)
    n : int, rows of the whole matrix
    column_range : the local entries of vectors that the matrix is applied to. Default if square: row_range

    Attributes
    ----------
    values, pattern, row_range, shape, dtype : as for `CSR`, of the whole matrix
    nnz : number of local entries

    Raises
    ------
    ValueError
        if rows and ranges do not match.
    TypeError
        if the values are not float64 on the CPU.

    Notes
    -----
    Solvers that accept a callable accept it (docs/petsc.md), with the same gradients as for a `CSR`. Each
    process has the gradient of its entries, and parameters for all rows get the same gradient. All processes
    must call backward. A product exchanges remote entries of x, then multiplies like `ops.spmm`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> from learnsolve import petsc
    >>> lo, hi = petsc.share(64)
    >>> A = petsc.Matrix.from_rows(ls.problems.poisson((8, 8), rows=(lo, hi)), (lo, hi))
    >>> petsc.norm(A @ torch.ones(hi - lo, dtype=torch.float64))
    tensor(6.3246, dtype=torch.float64)
    """

    def __init__(
        self,
        values: Local,
        pattern: SparsityPattern,
        row_range: tuple[int, int],
        n: Index,
        *,
        column_range: tuple[int, int] | None = None,
    ):
        name = "petsc.Matrix"
        rows = Rows(name, "row_range", row_range, n)
        if pattern.shape[0] != rows.count:
            whole = f". From the whole matrix C pass C[{rows.lo}:{rows.hi}]" if pattern.shape[0] == n else ""
            raise ValueError(
                f"{name}: the pattern must have the {rows.count} rows of row_range {row_range}, got shape "
                f"{pattern.shape}{whole}"
            )
        if values.shape != (pattern.nnz,):
            raise ValueError(
                f"{name}: values must have shape ({pattern.nnz},), as the pattern has entries, got "
                f"{tuple(values.shape)}"
            )
        if column_range is None:
            if pattern.shape[1] != n:
                raise ValueError(
                    f"{name}: a matrix of shape ({n}, {pattern.shape[1]}) needs column_range, the entries "
                    "here of the vectors that it is applied to"
                )
            columns = rows
        else:
            columns = Rows(name, "column_range", column_range, pattern.shape[1])
        self.values = values
        self._structure = Structure(pattern, rows, columns)

    @classmethod
    def from_rows(cls, rows: checks.AnyMatrix, row_range: tuple[int, int]) -> Matrix:
        """A square matrix from the local rows as a `CSR` of shape (hi - lo, n), such as problems return with
        ``rows=``."""
        return cls(rows.values, rows.pattern, row_range, rows.shape[1])

    @classmethod
    def from_scipy(cls, S: Any) -> Matrix:
        """The `share` of a square SciPy array that every process has, for tests and small matrices."""
        name = "petsc.Matrix.from_scipy"
        if not (scipy.sparse.issparse(S) or isinstance(S, np.ndarray)):
            raise TypeError(
                f"{name}: S must be a SciPy sparse array, got {type(S).__name__}. For rows of a CSR, or of "
                "mat.getValuesCSR() of a Mat, use petsc.Matrix.from_rows"
            )
        S = scipy.sparse.csr_array(S)
        checks.square(name, "S", S.shape)
        lo, hi = share(S.shape[0])
        return cls.from_rows(CSR.from_scipy(S[lo:hi]), (lo, hi))

    @classmethod
    def from_file(cls, path: Any) -> Matrix:
        """A square matrix from a file, of which each process reads only its share of rows.

        Parameters
        ----------
        path : a file in PETSc's binary format, or one of Matrix Market, ``.mtx`` (coordinate; general,
            symmetric or skew-symmetric; not compressed)
        """

        rows, row_range = read(path)
        return cls.from_rows(rows, row_range)

    def with_values(self, values: Local) -> Matrix:
        """The same structure with other values, without communication."""
        if values.shape != (self.nnz,):
            raise ValueError(
                f"petsc.Matrix.with_values: values must have shape ({self.nnz},), got {tuple(values.shape)}"
            )
        A = object.__new__(type(self))
        A.values, A._structure = values, self._structure
        return A

    @property
    def pattern(self) -> SparsityPattern:
        return self._structure.pattern

    @property
    def row_range(self) -> tuple[int, int]:
        return self._structure.rows.lo, self._structure.rows.hi

    @property
    def column_range(self) -> tuple[int, int]:
        return self._structure.columns.lo, self._structure.columns.hi

    @property
    def shape(self) -> tuple[int, int]:
        return self._structure.rows.rows, self._structure.columns.rows

    @property
    def nnz(self) -> int:
        return self.pattern.nnz

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def across(self) -> Rows:
        """The processes, for the loops (ops/across.py)."""
        return self._structure.rows

    def to_operator(self, function: str, b: Tensor, square: bool = True) -> Any:

        check_dtype(function, "b", b)
        if self.shape[0] != self.shape[1] or self._structure.rows is not self._structure.columns:
            raise ValueError(
                f"{function}: A must be square, with one range for rows and columns, got {self!r}"
            )
        self._structure.rows.check(function, "b", b)
        return Operator(self)

    def diagonal(self) -> Tensor:
        """The diagonal entries of the local rows, differentiable, or 0 for missing ones."""
        at = self._structure.diagonal()
        here = at >= 0
        return torch.where(here, self.values[at.clamp(min=0)] if self.nnz else here.double(), 0.0)

    def inverse_diagonal(self, function: str) -> Tensor:
        d = self.diagonal()
        zero = (d.detach() == 0).nonzero()
        first = self.row_range[0] + int(zero[0]) if len(zero) else -1
        worst = int(processes().largest(torch.tensor([float(first)])))
        if worst >= 0:
            raise ValueError(
                f"{function}: divides by the diagonal of A, which is zero or missing in row {worst}"
            )
        return 1 / d

    def to_scipy(self) -> scipy.sparse.csr_array:
        """The whole matrix in every process, detached from the autograd graph, for small matrices."""
        parts, total = processes(), int(processes().gather(torch.tensor([float(self.nnz)])).sum())
        if total > LIMIT:
            raise ValueError(
                f"petsc.Matrix.to_scipy: gathers at most {LIMIT} entries in every process, got {total}"
            )
        lengths = parts.concatenate(self.pattern.crow_indices.diff().double())
        columns = parts.concatenate(self.pattern.col_indices.double()).numpy().astype(np.int64)
        crow = np.concatenate(([0], lengths.numpy().astype(np.int64).cumsum()))
        return scipy.sparse.csr_array(
            (parts.concatenate(self.values).numpy(), columns, crow), shape=self.shape
        )

    def to_petsc(self) -> Any:
        """A petsc4py Mat of type aij with a copy of the values. The caller destroys it."""
        S, PETSc = self._structure, engine()
        crow, col = (
            to_numpy(t).astype(PETSc.IntType) for t in (self.pattern.crow_indices, self.pattern.col_indices)
        )
        size = (S.rows.count, S.rows.rows), (S.columns.count, S.columns.rows)
        mat = PETSc.Mat().createAIJ(
            size, csr=(crow, col, self.values.detach().numpy()), comm=PETSc.COMM_WORLD
        )
        mat.assemble()
        return mat

    def __matmul__(self, x: Tensor) -> Tensor:
        return self.product("petsc.spmm", x, False)

    def product(self, function: str, x: Tensor, transpose: bool) -> Tensor:
        """A x or A^T x, with checks."""
        checks.tensor(function, "x", x)
        check_dtype(function, "x", x)
        checks.flag(function, "transpose", transpose)
        (self._structure.rows if transpose else self._structure.columns).check(function, "x", x)
        return self._structure.product(self.values, x, transpose)

    def __repr__(self) -> str:
        rows = ", ".join(map(str, self.row_range))
        return f"petsc.Matrix(shape={self.shape}, rows=({rows}), nnz={self.nnz} here)"


class Structure:
    """The analysis: the entries of x that local rows need, and column indices into x extended by them.

    An extended x is (entries of earlier processes, own entries, entries of later processes), so that columns
    keep their order.
    """

    def __init__(self, pattern: SparsityPattern, rows: Rows, columns: Rows):
        self.pattern, self.rows, self.columns = pattern, rows, columns
        col = to_numpy(pattern.col_indices)
        lo, hi = columns.lo, columns.hi
        halo = np.unique(col[(col < lo) | (col >= hi)])
        self.halo = Halo(columns, halo)
        self.before = int(np.searchsorted(halo, lo))
        width = columns.count + len(halo)
        # The position of a column in an extended x.
        local = np.where(
            col < lo,
            np.searchsorted(halo, col),
            np.where(col < hi, col - (lo - self.before), columns.count + np.searchsorted(halo, col)),
        )
        self.local = SparsityPattern._construct(
            pattern.crow_indices, torch.from_numpy(local).to(pattern.dtype), (rows.count, width)
        )

    def product(self, values: Tensor, x: Tensor, transpose: bool) -> Tensor:
        if transpose:
            return self.add_halo(product(values, x, self.local, True))
        return product(values, self.append_halo(x), self.local, False)

    def append_halo(self, x: Tensor) -> Tensor:
        if processes().size == 1:
            return x
        halo = self.halo.fetch(x if x.dim() == 2 else x.unsqueeze(-1))
        halo = halo if x.dim() == 2 else halo.squeeze(-1)
        return torch.cat((halo[: self.before], x, halo[self.before :]))

    def add_halo(self, y: Tensor) -> Tensor:
        """The adjoint of `append_halo`."""
        if processes().size == 1:
            return y
        before, own, behind = y.split((self.before, self.columns.count, len(self.halo.columns) - self.before))
        halo = torch.cat((before, behind))
        back = self.halo.deliver(halo if y.dim() == 2 else halo.unsqueeze(-1))
        return own + (back if y.dim() == 2 else back.squeeze(-1))

    def diagonal(self) -> Tensor:
        """Positions of the diagonal entries of the local rows, or -1 for missing ones."""
        S = self.pattern
        rows = S.row_indices.long()
        on = (S.col_indices.long() == rows + self.rows.lo).nonzero().flatten()
        at = torch.full((self.rows.count,), -1)
        at[rows[on]] = on
        return at


class Operator(LinearOperator):
    """A `petsc.Matrix` or its transpose, for blocks of columns (n, k) with the local rows."""

    watched = False

    def __init__(self, A: Matrix):
        self.structure, self.across, self.shape = A._structure, A.across, A.shape
        self.parameters = (A.values,)

    def mv(self, x: Tensor, *parameters: Tensor) -> Tensor:
        return self.structure.product(parameters[0], x, False)

    def rmv(self, y: Tensor, *parameters: Tensor) -> Tensor:
        return self.structure.product(parameters[0], y, True)

    def __call__(self, x: Tensor) -> Tensor:
        return self.apply(x)  # x has the local rows, `shape` is of the whole matrix

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        u, w = (x, y) if self.turned else (y, x)
        return (sddmm_values(u, self.structure.append_halo(w), self.structure.local),)

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        assert tangents[0] is not None
        return self.with_parameters((tangents[0],)).apply(x)

    def largest_entry(self) -> Tensor | None:
        values = self.parameters[0].detach().abs()
        largest = values.amax() if len(values) else values.sum()
        return self.across.largest(largest.reshape(1, 1))

    def magnitude(self, x: Tensor) -> Tensor | None:
        return self.with_parameters((self.parameters[0].detach().abs(),)).apply(x.abs())

    def core(self) -> int:
        return 1


# A distributed matrix, for the annotations of functions that have a sibling for a CSR.
_MAKE = ". Make one with petsc.Matrix.from_rows, or for a CSR use "
MatrixOfSpmm = Annotated[Matrix, instance(Matrix, "a petsc.Matrix", _MAKE + "ops.spmm")]
MatrixOfSolve = Annotated[Matrix, instance(Matrix, "a petsc.Matrix", _MAKE + "learnsolve.solve")]


def spmm(A: MatrixOfSpmm, x: Tensor, *, transpose: bool = False) -> Tensor:
    r"""Product of a distributed matrix, or its transpose, with distributed vectors.

    .. math:: y = A x \quad\text{or}\quad y = A^T x

    Parameters
    ----------
    A : petsc.Matrix
    x : Tensor, the local rows, (n,) or (n, k), float64
    transpose : multiply with the transpose

    Returns
    -------
    Tensor, the local rows

    Raises
    ------
    ValueError
        if shapes do not match.
    TypeError
        if A is not a petsc.Matrix or x is not float64 on the CPU.

    Notes
    -----
    Gradient: with respect to A.values and x, to any order, forward mode. Let H be the exchange of entries
    that other processes hold, and its adjoint :math:`H^T`, which adds into them. Then :math:`A x = A_p H x`
    and :math:`A^T y = H^T A_p^T y` for the local rows :math:`A_p`, so :math:`\bar x = H^T A_p^T \bar y`, and
    :math:`\bar A` are the entries of :math:`\bar y (H x)^T`. Cost: one exchange and the product of
    `ops.spmm`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> from learnsolve import petsc
    >>> lo, hi = petsc.share(64)
    >>> A = petsc.Matrix.from_rows(ls.problems.poisson((8, 8), rows=(lo, hi)), (lo, hi))
    >>> x = torch.ones(hi - lo, dtype=torch.float64)
    >>> y = petsc.spmm(A, petsc.spmm(A, x), transpose=True)
    >>> petsc.dot(x, y)  # ||A x||^2
    tensor(40., dtype=torch.float64)
    """
    return A.product("petsc.spmm", x, transpose)


def dot(u: Local, v: Local) -> Tensor:
    r"""Inner product of distributed vectors, :math:`\langle u, v \rangle`, of each column.

    Parameters
    ----------
    u, v : Tensors, the local rows, (n,) or (n, k), float64

    Returns
    -------
    Tensor, () or (k,), the same in every process

    Raises
    ------
    ValueError
        if shapes differ.
    TypeError
        if u or v is not float64 on the CPU.

    Notes
    -----
    Gradient: for u and v, to any order, forward mode. A loss that uses it is the same in every process, and
    each process must call its backward pass. Cost: one reduction over the processes, and none in the first
    backward pass.

    Examples
    --------
    >>> import torch
    >>> from learnsolve import petsc
    >>> lo, hi = petsc.share(64)
    >>> x = torch.arange(lo, hi, dtype=torch.float64)  # 0 to 63 over the processes
    >>> petsc.dot(x, x)
    tensor(85344., dtype=torch.float64)
    """
    if u.shape != v.shape or u.dim() not in (1, 2):
        raise ValueError(
            f"petsc.dot: u and v must have the same shape, (n,) or (n, k), got {tuple(u.shape)} and "
            f"{tuple(v.shape)}"
        )
    if u.dim() == 1:
        u, v = u.unsqueeze(-1), v.unsqueeze(-1)
        return processes().sum(dots(u, v)).squeeze(-1)
    return processes().sum(dots(u, v))


def norm(u: Local) -> Tensor:
    r"""Euclidean norm of a distributed vector, :math:`\sqrt{\langle u, u \rangle}`, of each column, with
    derivative 0 at zero.

    Parameters
    ----------
    u : Tensor, the local rows, (n,) or (n, k), float64

    Returns
    -------
    Tensor, () or (k,), the same in every process. Gradient and cost are as for `dot`

    Raises
    ------
    ValueError, TypeError
        see `dot`.

    Examples
    --------
    >>> import torch
    >>> from learnsolve import petsc
    >>> lo, hi = petsc.share(64)
    >>> petsc.norm(torch.ones(hi - lo, dtype=torch.float64))
    tensor(8., dtype=torch.float64)
    """
    square = dot(u, u)
    zero = square == 0
    return torch.where(zero, 0, torch.where(zero, 1, square).sqrt())
