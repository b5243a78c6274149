"""A sparse matrix whose rows are distributed over several processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.ops.core.product import product
from learnsolve.petsc._engine import check_dtype, engine
from learnsolve.petsc._halo import Halo
from learnsolve.petsc._processes import processes
from learnsolve.petsc._rows import Rows, share

LIMIT = 100_000_000  # entries that `to_scipy` gathers in every process


class Matrix:
    """A sparse matrix of which each process holds consecutive rows.

    Vectors are tensors of the local rows, (hi - lo,) or (hi - lo, k). All processes must make the same calls.

    Parameters
    ----------
    values : Tensor (nnz,), float64 on the CPU: the local entries; may require grad, or be a parameter
    pattern : SparsityPattern, shape (hi - lo, columns of the whole matrix), of the local rows
    row_range : (lo, hi); the ranges of the processes are consecutive, and may be empty (`share(n)`)
    n : int, rows of the whole matrix
    column_range : the local entries of vectors that the matrix is applied to; default if square: row_range

    Attributes
    ----------
    values, pattern, row_range, shape, dtype : as for `CSR`; of the whole matrix
    nnz : number of local entries

    Raises
    ------
    ValueError
        if rows and ranges do not match.
    TypeError
        if the values are not float64 on the CPU.

    Notes
    -----
    Solvers that accept a callable accept it (docs/petsc.md), with the same gradients as for a `CSR`; each
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
        values: Tensor,
        pattern: SparsityPattern,
        row_range: tuple[int, int],
        n: int,
        *,
        column_range: tuple[int, int] | None = None,
    ):
        name = "petsc.Matrix"
        checks.tensor(name, "values", values)
        check_dtype(name, "values", values)
        if not isinstance(pattern, SparsityPattern):
            raise TypeError(f"{name}: pattern must be a SparsityPattern, got {type(pattern).__name__}")
        n = checks.integer(name, "n", n, 0)
        rows = Rows(name, "row_range", row_range, n)
        if pattern.shape[0] != rows.count:
            whole = f"; of the whole matrix C take C[{rows.lo}:{rows.hi}]" if pattern.shape[0] == n else ""
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
    def from_rows(cls, rows: CSR, row_range: tuple[int, int]) -> Matrix:
        """A square matrix from the local rows as a `CSR` of shape (hi - lo, n), such as problems return with
        ``rows=``."""
        checks.matrix("petsc.Matrix.from_rows", "rows", rows)
        return cls(rows.values, rows.pattern, row_range, rows.shape[1])

    @classmethod
    def from_scipy(cls, S: Any) -> Matrix:
        """The `share` of a square SciPy array that every process has, for tests and small matrices."""
        name = "petsc.Matrix.from_scipy"
        if not (scipy.sparse.issparse(S) or isinstance(S, np.ndarray)):
            raise TypeError(
                f"{name}: S must be a SciPy sparse array, got {type(S).__name__}; rows of a CSR, or of "
                "mat.getValuesCSR() of a Mat, are given to petsc.Matrix.from_rows"
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
        from learnsolve.petsc._files import read

        rows, row_range = read(path)
        return cls.from_rows(rows, row_range)

    def with_values(self, values: Tensor) -> Matrix:
        """The same structure with other values, without communication."""
        checks.tensor("petsc.Matrix.with_values", "values", values)
        check_dtype("petsc.Matrix.with_values", "values", values)
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
        """The processes, for the loops (ops/core/across.py)."""
        return self._structure.rows

    def as_operator(self, function: str, b: Tensor) -> Any:
        from learnsolve.petsc._operator import Operator

        check_dtype(function, "b", b)
        if self.shape[0] != self.shape[1] or self._structure.rows is not self._structure.columns:
            raise ValueError(
                f"{function}: A must be square, with one range for rows and columns, got {self!r}"
            )
        self._structure.rows.check(function, "b", b)
        return Operator(self)

    def diagonal(self) -> Tensor:
        """The diagonal entries of the local rows, differentiable; 0 for missing ones."""
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
        """The whole matrix in every process, without a graph; for small matrices."""
        parts, total = processes(), int(processes().gathered(torch.tensor([float(self.nnz)])).sum())
        if total > LIMIT:
            raise ValueError(
                f"petsc.Matrix.to_scipy: gathers at most {LIMIT} entries in every process, got {total}"
            )
        lengths = parts.concatenated(self.pattern.crow_indices.diff().double())
        columns = parts.concatenated(self.pattern.col_indices.double()).numpy().astype(np.int64)
        crow = np.concatenate(([0], lengths.numpy().astype(np.int64).cumsum()))
        return scipy.sparse.csr_array(
            (parts.concatenated(self.values).numpy(), columns, crow), shape=self.shape
        )

    def to_petsc(self) -> Any:
        """A petsc4py Mat of type aij with a copy of the values; the caller destroys it."""
        S, PETSc = self._structure, engine()
        crow, col = (
            as_numpy(t).astype(PETSc.IntType) for t in (self.pattern.crow_indices, self.pattern.col_indices)
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
        col = as_numpy(pattern.col_indices)
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
        self.local = SparsityPattern._trusted(
            pattern.crow_indices, torch.from_numpy(local).to(pattern.dtype), (rows.count, width)
        )

    def product(self, values: Tensor, x: Tensor, transpose: bool) -> Tensor:
        if transpose:
            return self.contracted(product(values, x, self.local, True))
        return product(values, self.extended(x), self.local, False)

    def extended(self, x: Tensor) -> Tensor:
        if processes().size == 1:
            return x
        halo = self.halo.fetch(x if x.dim() == 2 else x.unsqueeze(-1))
        halo = halo if x.dim() == 2 else halo.squeeze(-1)
        return torch.cat((halo[: self.before], x, halo[self.before :]))

    def contracted(self, y: Tensor) -> Tensor:
        """The adjoint of `extended`."""
        if processes().size == 1:
            return y
        before, own, behind = y.split((self.before, self.columns.count, len(self.halo.columns) - self.before))
        halo = torch.cat((before, behind))
        back = self.halo.deliver(halo if y.dim() == 2 else halo.unsqueeze(-1))
        return own + (back if y.dim() == 2 else back.squeeze(-1))

    def diagonal(self) -> Tensor:
        """Positions of the diagonal entries of the local rows; -1 for missing ones."""
        S = self.pattern
        rows = S.row_indices.long()
        on = (S.col_indices.long() == rows + self.rows.lo).nonzero().flatten()
        at = torch.full((self.rows.count,), -1)
        at[rows[on]] = on
        return at
