"""The interface of a direct-solver library, and PARDISO, CHOLMOD and SuperLU behind it.

An `Analysis` of a pattern makes a `Factor` per matrix. A pattern keeps its analyses (`Structure`), so that
further matrices on it are factored faster. A factor is immutable: a graph that holds it differentiates
through it after the analysis has made others.
"""

from __future__ import annotations

import copy
import functools
import re
import sys
import threading
import warnings
from collections import deque
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from scipy.sparse.linalg import splu

from learnsolve import _analysis
from learnsolve.matrix.pattern import SparsityPattern

_SHOWN = 5


def why_singular(S: Any) -> str:
    """The reason and a remedy, for a matrix that is not structurally singular."""
    nonzero = S.copy()
    nonzero.eliminate_zeros()
    found = no_matching(nonzero)
    if found:
        return (
            f"singular: without its explicit zeros, {found}. Remove that row and column, or change its values"
        )
    found = sums_to_zero(S) or _dependence(S)
    return (
        f"singular: the elimination met a pivot that is exactly zero{found}. Fix one of the unknowns that "
        "are not determined, or add a shift to the diagonal"
    )


def no_matching(S: Any) -> str:
    """Why no permutation puts entries on the whole diagonal, empty if one does."""
    for name, counts in (
        ("row", np.diff(S.indptr)),
        ("column", np.bincount(S.indices, minlength=S.shape[1])),
    ):
        empty = np.flatnonzero(counts == 0)
        if len(empty):
            return f"{name} {empty[0]} has no entry"
    row_of = _analysis.match_rows(S.indptr, S.indices, S.shape[1])
    unmatched = np.setdiff1d(np.arange(S.shape[0]), row_of)
    if not len(unmatched):
        return ""
    rank = S.shape[0] - len(unmatched)
    return (
        f"its rank is at most {rank} of {S.shape[0]}, whatever the values: row {unmatched[0]} finds no "
        "column that the other rows leave over"
    )


def sums_to_zero(S: Any) -> str:
    """The most common null vectors, the constants of a pure Neumann problem, or empty if A 1 is not zero."""
    tolerance = 4 * S.shape[0] * np.finfo(S.dtype).eps
    size = abs(S)
    for axis, line in ((1, "row"), (0, "column")):
        if (np.abs(S.sum(axis)) <= tolerance * size.sum(axis)).all():
            return f" (every {line} sums to zero up to rounding)"
    return ""


def _dependence(S: Any) -> str:
    """Linearly dependent columns, empty if none are found."""
    try:
        v = _null_vector(S.astype(np.result_type(S.dtype, np.float64)))
    except RuntimeError:  # singular even with the shift
        return ""
    tolerance = 32 * np.finfo(S.dtype).eps
    if np.abs(S @ v).max() > tolerance * (abs(S) @ np.abs(v)).max():
        return ""
    columns = np.flatnonzero(np.abs(v) > 1e-6)
    names = ", ".join(map(str, columns[:_SHOWN])) + (", ..." if len(columns) > _SHOWN else "")
    return f" (columns {names} depend on each other)"


def _null_vector(S: Any) -> np.ndarray:
    """A vector v, max |v| = 1, with S v nearly 0 if there is one, by inverse iteration."""
    n = S.shape[0]
    rng = np.random.default_rng(0)
    # Small but above rounding; random, because a fixed value could be minus an eigenvalue.
    shift = 8 * np.finfo(np.float64).eps * np.abs(S.data).max() * rng.uniform(1, 2, n)
    lu = splu(scipy.sparse.csc_array(S + scipy.sparse.diags_array(shift)))
    v = rng.standard_normal(n).astype(S.dtype)
    for _ in range(3):
        v = lu.solve(v)
        v /= np.abs(v).max()
    return v


KINDS = ("cholesky", "ldlt", "lu")
ORDERINGS = ("auto", "minimum_degree", "colamd", "nested_dissection", "natural")
# All libraries count rows and entries in C ints.
LARGEST = int(np.iinfo(np.intc).max)


class Request(NamedTuple):
    """The options of the caller, as words."""

    kind: str = "auto"
    backend: str = "auto"
    ordering: str = "auto"
    unknowns: str = ""  # how many, of least squares: the last ones of the augmented system of ops/direct.py


AUTO = Request()


class Factor(Protocol):
    """The factors of one matrix A.

    Attributes
    ----------
    backend, kind : the library, and "cholesky", "ldlt" or "lu"
    entries : int, stored entries
    """

    backend: str
    kind: str

    @property
    def entries(self) -> int: ...

    def solve(self, b: np.ndarray, transpose: bool) -> np.ndarray:
        """A^-1 b or A^-T b, for b (n,) or (n, k)."""
        ...

    def logdet(self) -> float | None:
        """log |det A|, or None if not available from the factors."""
        ...

    def negative(self) -> int | None:
        """The number of negative eigenvalues of a symmetric A, or None if not available from the factors."""
        ...


class Analysis(Protocol):
    """The data that a library computes from a pattern and keeps.

    Attributes
    ----------
    kinds : the supported kinds of factors
    orderings : the library's name of each supported ordering
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    orderings: ClassVar[dict[str, object]]
    dtypes: ClassVar[tuple[str, ...]]

    def __init__(self, structure: Structure, kind: str, ordering: str): ...

    def factor(self, data: np.ndarray) -> Factor:
        """The factors of the matrix with these finite values. For "cholesky" and "ldlt" the matrix is
        symmetric. Raises one of the exceptions below, or MemoryError."""
        ...


class Singular(Exception):
    """A pivot is zero."""


class NotDefinite(Exception):
    """A pivot of a Cholesky factorization is not positive. `row` is the row of A, or -1 if unknown."""

    def __init__(self, row: int = -1):
        super().__init__(row)
        self.row = row


class Unreliable(Exception):
    """The library had to replace pivots, or has lost accuracy: another library is tried."""


class Structure:
    """A pattern on the host, as C ints, and the data that libraries keep for it.

    `fault`: why every matrix on it is singular, empty if not. SuperLU breaks down on some of them, in calls
    of BLAS with invalid sizes.
    """

    def __init__(self, crow: torch.Tensor, col: torch.Tensor, shape: tuple[int, int]):
        self.shape, self.n, self.nnz = shape, shape[0], len(col)
        self.indptr, self.indices = crow.numpy(), col.numpy()
        self.analyses: dict[tuple[str, str, str], Analysis] = {}
        rows = np.repeat(np.arange(self.n, dtype=np.intc), np.diff(self.indptr))
        self.fault = ""
        if np.count_nonzero(rows == self.indices) < self.n:
            self.fault = no_matching(self.matrix(np.ones(self.nnz, np.int8)))

    def matrix(self, data: np.ndarray) -> scipy.sparse.csr_array:
        return scipy.sparse.csr_array((data, self.indices, self.indptr), shape=self.shape)


def structure(P: SparsityPattern) -> Structure:
    """The structure of a pattern, made once."""
    return P._compute_once("direct", _structure, P)[0]


def _structure(P: SparsityPattern) -> tuple[Structure, torch.Tensor, torch.Tensor]:
    # Copies: NumPy does not notice that `share_memory_` moves what a tensor holds.
    crow, col = (t.to("cpu", torch.int32, copy=True) for t in (P.crow_indices, P.col_indices))
    return Structure(crow, col, P.shape), crow, col  # tensors, so that their memory is counted


# SuiteSparse's CHOLMOD, through scikit-sparse (extra `cholmod`): 0.5, with a `CholeskyFactor` to be analyzed
# and then factored in place, or 0.4, whose analysis makes a factor per matrix. Source: Chen, Davis, Hager and
# Rajamanickam, "Algorithm 887: CHOLMOD, supernodal sparse Cholesky factorization and update/downdate", ACM
# TOMS 35 (2008).


@functools.cache
def library() -> Any:
    """ImportError if it is missing."""
    from sksparse import cholmod  # type: ignore[import-not-found]

    return cholmod


def _older(library: object) -> bool:
    return not hasattr(library, "CholeskyFactor")


class Cholmod:
    name: ClassVar[str] = "cholmod"
    kinds: ClassVar[tuple[str, ...]] = ("cholesky",)
    orderings: ClassVar[dict[str, object]] = {
        "minimum_degree": "amd",
        "nested_dissection": "metis",
        "natural": "natural",
    }
    dtypes: ClassVar[tuple[str, ...]] = ("float64",)

    def __init__(self, structure: Structure, kind: str, ordering: str):
        arrays = np.zeros(structure.nnz), structure.indices, structure.indptr
        self.A = scipy.sparse.csc_matrix(arrays, shape=structure.shape)
        method = "default" if ordering == "auto" else self.orderings[ordering]
        try:
            if _older(library()):
                self.symbolic = library().analyze(self.A, mode="supernodal", ordering_method=method)
            else:  # a copy: 0.5 sorts in place
                self.symbolic = library().CholeskyFactor(
                    self.A.copy(), order=method, supernodal_mode="supernodal"
                )
        except library().CholmodOutOfMemoryError:
            raise MemoryError from None

    def factor(self, data: np.ndarray) -> CholmodFactor:
        A = self.A.copy()
        A.data = data
        older = _older(library())
        too_large = library().CholmodTooLargeError if older else library().CholmodOverflowError
        try:
            factor = self.symbolic.cholesky(A) if older else self.symbolic.copy().factorize(A)
        except library().CholmodNotPositiveDefiniteError as error:
            if older:
                raise NotDefinite(int(self.symbolic.P()[error.column])) from None
            column = re.search(r"column (\d+)", str(error))  # 0.5 says it in words alone
            raise NotDefinite(int(self.symbolic.perm[int(column[1])]) if column else -1) from None
        except (library().CholmodOutOfMemoryError, too_large):
            raise MemoryError from None
        if not older and factor.rcond == 0:  # it would not solve
            raise NotDefinite
        return CholmodFactor(factor)


class CholmodFactor:
    backend: str = "cholmod"
    kind: str = "cholesky"

    def __init__(self, factor: Any):
        self.factor = factor
        self._entries = 0

    @property
    def entries(self) -> int:
        if not self._entries:  # 0.4 copies L
            older = _older(library())
            self._entries = int(self.factor.L().nnz if older else self.factor.nnz)
        return self._entries

    def solve(self, b: np.ndarray, transpose: bool) -> np.ndarray:
        if _older(library()):
            return self.factor.solve_A(b)
        with warnings.catch_warnings():  # of nearly singular matrices: `Factorization` judges by residuals
            warnings.simplefilter("ignore", library().CholmodWarning)
            return self.factor.solve(b)

    def logdet(self) -> float:
        return float(self.factor.logdet())

    def negative(self) -> int:
        return 0


# MKL's PARDISO, through the library that pypardiso loads (extra `pardiso`). Source: Schenk and Gaertner,
# "Solving unsymmetric sparse systems of linear equations with PARDISO", Future Generation Computer Systems
# 20 (2004); parameters: Intel's reference of oneMKL, "pardiso iparm".
#
# A handle is an analyzed pattern with the factors of at most one matrix. When a factor is freed, its handle
# returns to the analysis, which reuses it for the next matrix: only the numerical factorization is
# repeated. Pivots are chosen within supernodes; tiny ones are replaced. If a residual is too large, each
# solution is refined once. If this is not enough, or pivots were replaced, LU is tried with a matching and
# scaling of this matrix, then another library. So the factors of a matrix do not depend on earlier
# matrices.


_TYPES = {"cholesky": 2, "ldlt": -2, "lu": 11}
_COMPLEX = {"cholesky": 4, "ldlt": -4, "lu": 13}  # the first two for Hermitian matrices
_ANALYZE, _FACTOR, _SOLVE, _FREE_NUMBERS, _FREE = 11, 22, 33, 0, -1
_OUT_OF_MEMORY, _ZERO_PIVOT = (-2, -9, -10, -11), -4
_IDLE = 8  # idle handles that an analysis keeps
_WIDTH = 8  # columns that a thread solves at once
_PARTS = 8  # into which PARDISO splits its work, for the same bits with any number of threads ("CNR mode")


@functools.cache
def mkl() -> Any:
    """MKL as found by pypardiso. Raises ImportError if either is missing."""
    import pypardiso  # type: ignore[import-not-found]

    solver = pypardiso.PyPardisoSolver()  # declares the types of the arguments
    library = solver.libmkl
    library.pardiso_getdiag.restype = None  # pyright: ignore[reportOptionalMemberAccess]  # where pypardiso is
    return library


class Pardiso:
    name: ClassVar[str] = "pardiso"
    kinds: ClassVar[tuple[str, ...]] = ("cholesky", "ldlt", "lu")
    orderings: ClassVar[dict[str, object]] = {"nested_dissection": 2, "minimum_degree": 0}
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64", "complex64", "complex128")

    def __init__(self, structure: Structure, kind: str, ordering: str):
        self.kind, self.n, self.structure = kind, structure.n, structure
        self.ordering = self.orderings["nested_dissection" if ordering == "auto" else ordering]
        indptr, indices = structure.indptr, structure.indices
        self.positions: np.ndarray | None = None
        if kind != "lu":
            indptr, indices, self.positions = _upper(self.n, indptr, indices)
        self.indptr, self.indices = indptr + np.intc(1), indices + np.intc(1)
        self.idle: deque[_Handle] = deque(maxlen=_IDLE)

    def factor(self, data: np.ndarray) -> PardisoFactor:
        A = self.structure.matrix(data)
        if self.positions is not None:
            data = np.append(data, data.dtype.type(0))[self.positions]  # -1: no entry
        handle = self._idle(data.dtype) or _Handle(self, data, matched=False)
        handle.call(_FACTOR, data)
        steps = 0 if self.kind == "cholesky" else _refinements(handle, data, A)
        if self.kind == "lu" and steps is None:
            handle = _Handle(self, data, matched=True)
            handle.call(_FACTOR, data)
            steps = _refinements(handle, data, A)
        if steps is None:
            raise Unreliable
        return PardisoFactor(self, handle, data, A if steps else None)

    def _idle(self, dtype: np.dtype) -> _Handle | None:
        try:
            handle = self.idle.pop()
        except IndexError:
            return None
        fits = handle.dtype == dtype and handle.threads == torch.get_num_threads()
        return None if handle.free or not fits else handle


class _Handle:
    """PARDISO's memory for a pattern, and its parameters."""

    def __init__(self, analysis: Pardiso, data: np.ndarray, matched: bool):
        self.matched, self.free = matched, True
        self.kind, self.dtype, self.n = analysis.kind, data.dtype, analysis.n
        self.type = (_COMPLEX if self.dtype.kind == "c" else _TYPES)[self.kind]
        self.arrays = analysis.indptr, analysis.indices
        self.memory, self.parameters = np.zeros(64, np.int64), np.zeros(64, np.int32)
        self.lock = threading.Lock()
        self.threads = torch.get_num_threads()  # a later phase with more threads fails
        for number, value in {
            1: 1,  # these parameters, not the defaults
            2: analysis.ordering,
            10: 13
            if self.kind == "lu"
            else 8,  # pivots below 10^-13 or 10^-8 of the largest value are replaced
            11: int(matched),  # scaling
            13: int(matched),
            18: -1,  # counts the entries
            21: 1,  # pivots of order 2
            28: int(self.dtype in (np.float32, np.complex64)),
            34: _PARTS,
            56: 1,  # keeps the diagonal
        }.items():
            self.parameters[number - 1] = value
        self.free = False
        self.call(_ANALYZE, data)

    def call(
        self, phase: int, data: np.ndarray, b: np.ndarray | None = None, transpose: bool = False
    ) -> np.ndarray:
        x = data if b is None else np.empty_like(b)
        columns = 1 if b is None or b.ndim == 1 else b.shape[1]
        error, one = c_int32(0), byref(c_int32(1))
        with self.lock:
            threads = mkl().MKL_Set_Num_Threads_Local(self.threads)
            self.parameters[11] = 2 * transpose
            mkl().pardiso(
                self.memory.ctypes.data_as(POINTER(c_int64)),
                one,
                one,
                byref(c_int32(self.type)),
                byref(c_int32(phase)),
                byref(c_int32(self.n)),
                _address(data),
                *(a.ctypes.data_as(POINTER(c_int32)) for a in self.arrays),
                None,
                byref(c_int32(columns)),
                self.parameters.ctypes.data_as(POINTER(c_int32)),
                byref(c_int32(0)),
                _address(data if b is None else b),
                _address(x),
                byref(error),
            )
            mkl().MKL_Set_Num_Threads_Local(threads)
        if error.value in _OUT_OF_MEMORY:
            raise MemoryError
        if error.value == _ZERO_PIVOT and self.kind == "cholesky":
            raise NotDefinite(int(self.parameters[29]) - 1)
        if error.value:
            raise Unreliable(error.value)
        return x

    def diagonal(self) -> np.ndarray:
        d, error = np.empty((2, self.n), self.dtype), c_int32(0)
        with self.lock:
            mkl().pardiso_getdiag(
                _address(self.memory), _address(d[0]), _address(d[1]), byref(c_int32(1)), byref(error)
            )
        if error.value:
            raise Unreliable(error.value)
        return d[0]

    def __del__(self) -> None:
        if not sys.is_finalizing() and not self.free:
            self.free = True
            self.call(_FREE, np.zeros(1, self.dtype))


class PardisoFactor:
    backend = "pardiso"

    def __init__(self, analysis: Pardiso, handle: _Handle, data: np.ndarray, refined: Any):
        self.analysis, self.handle, self.data, self.kind = analysis, handle, data, analysis.kind
        self.refined = refined  # the matrix, if solutions are refined once
        self.entries = int(handle.parameters[17])

    def solve(self, b: np.ndarray, transpose: bool) -> np.ndarray:
        x = self._solve(b, transpose)
        if self.refined is not None:
            A = self.refined.T if transpose else self.refined
            x = x + self._solve(b - A @ x, transpose)
        return x

    def _solve(self, b: np.ndarray, transpose: bool) -> np.ndarray:
        if transpose and self.kind != "lu":  # the transpose of a Hermitian matrix is its conjugate
            return self._solve(b.conj(), False).conj()
        if b.ndim == 1:
            return self.handle.call(_SOLVE, self.data, np.ascontiguousarray(b), transpose)
        # Columns are split among threads, and the bits depend on the number per thread, so it is fixed.
        k = b.shape[1]
        width = 1 if k < _WIDTH / 2 else _WIDTH * self.handle.threads
        x = np.empty((len(b), k), b.dtype, "F")
        part = np.zeros((len(b), width), b.dtype, "F")
        for at in range(0, k, width):
            columns = min(width, k - at)
            part[:, :columns] = b[:, at : at + columns]
            solution = self.handle.call(_SOLVE, self.data, part, transpose)
            x[:, at : at + columns] = solution[:, :columns]
        return x

    def logdet(self) -> float | None:
        if self.handle.matched:  # scaled
            return None
        return float(np.log(np.abs(self.handle.diagonal()), dtype=np.float64).sum())

    def negative(self) -> int | None:
        if self.kind == "lu" or (self.kind == "ldlt" and self.data.dtype.kind == "c"):  # not counted
            return None
        return 0 if self.kind == "cholesky" else int(self.handle.parameters[22])

    def __del__(self) -> None:
        # The garbage collector may finalize the handle first.
        if not sys.is_finalizing() and not self.handle.free:
            self.handle.call(_FREE_NUMBERS, self.data)
            if not self.handle.matched:
                self.analysis.idle.append(self.handle)


def _address(a: np.ndarray) -> c_void_p:
    return a.ctypes.data_as(c_void_p)


def _refinements(handle: _Handle, data: np.ndarray, A: scipy.sparse.csr_array) -> int | None:
    """The number of refinement steps, 0 or 1, after which a residual is at rounding level, or None if that is
    not enough or a pivot was replaced."""
    if handle.parameters[13]:
        return None
    r = b = np.ones(handle.n, data.dtype)
    x = np.zeros_like(b)
    for steps in (0, 1):
        x = x + handle.call(_SOLVE, data, r)
        r = b - A @ x
        size = (abs(A) @ np.abs(x)).max() + 1
        if np.abs(r).max() <= 64 * np.finfo(data.dtype).eps * size:
            return steps
    return None


def _upper(n: int, indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The upper triangle with the whole diagonal, and the positions of its entries, or -1 if missing."""
    rows = np.repeat(np.arange(n, dtype=np.intc), np.diff(indptr))
    there = np.zeros(n, bool)
    there[rows[rows == indices]] = True
    missing = np.flatnonzero(~there).astype(np.intc)
    at = np.flatnonzero(indices >= rows)
    i, j = (np.concatenate((a[at], missing)) for a in (rows, indices))
    at = np.concatenate((at, np.full(len(missing), -1)))
    order = np.lexsort((j, i)) if len(missing) else slice(None)
    starts = np.concatenate(([0], np.cumsum(np.bincount(i, minlength=n)))).astype(np.intc)
    return starts, j[order], at[order]


# SciPy's SuperLU: always available, for every matrix. The CSR arrays of A are the CSC arrays of A^T, so
# SuperLU factors A^T. The column order is cached with the pattern; applied to rows and columns, with the
# entries of each column in their old order, it leads to the same pivots, hence the same bits, without
# searching again.


# For diagonally dominant matrices: growth is at most 2 (Higham, Accuracy and Stability of Numerical
# Algorithms, section 9.5), and an ordering for pivots on the diagonal gives at most half the fill.
NO_PIVOTING = {
    "permc_spec": "MMD_AT_PLUS_A",
    "diag_pivot_thresh": 0.0,
    "options": {"SymmetricMode": True},
}
# Pivots on the diagonal, unless they are much smaller than others.
_RARE_PIVOTING = NO_PIVOTING | {"diag_pivot_thresh": 0.01}


class _Order(NamedTuple):
    """Row and column i come from `old[i]` and go to `new[i]`."""

    old: np.ndarray
    new: np.ndarray
    positions: np.ndarray  # of the entries, column by column
    transposed: scipy.sparse.csc_array


class SuperLU:
    name: ClassVar[str] = "superlu"
    kinds: ClassVar[tuple[str, ...]] = ("cholesky", "ldlt", "lu")
    orderings: ClassVar[dict[str, object]] = {
        "minimum_degree": "MMD_AT_PLUS_A",
        "colamd": "COLAMD",
        "natural": "NATURAL",
    }
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64", "complex64", "complex128")

    def __init__(self, structure: Structure, kind: str, ordering: str):
        self.kind, self.ordering, self.n = kind, ordering, structure.n
        self.indptr, self.indices = structure.indptr, structure.indices
        self.transposed = self._matrix(self.indices, self.indptr)
        self._columns: dict[str, np.ndarray] = {}
        self._orders: dict[str, _Order] = {}

    def factor(self, data: np.ndarray) -> SuperLUFactor:
        if self.kind == "lu":
            options = NO_PIVOTING if self._diagonally_dominant(data) else {}
        else:
            options = NO_PIVOTING if self.kind == "cholesky" else _RARE_PIVOTING
        if self.ordering != "auto":
            options = options | {"permc_spec": self.orderings[self.ordering]}
        way = str(options)
        order = self._order(way)
        S = copy.copy(self.transposed if order is None else order.transposed)
        S.data = data if order is None else data[order.positions]
        if order is not None:
            options = options | {"permc_spec": "NATURAL"}
        try:
            lu = scipy.sparse.linalg.splu(S, **options)
        except RuntimeError as error:
            if "singular" not in str(error):
                raise
            raise (NotDefinite() if self.kind == "cholesky" else Singular()) from None
        if order is None:
            self._columns[way] = lu.perm_c
        factor = SuperLUFactor(self.kind, lu, order)
        if self.kind == "cholesky":
            factor.check_definite()
        return factor

    def _matrix(self, indices: np.ndarray, indptr: np.ndarray) -> scipy.sparse.csc_array:
        """A^T without values. SuperLU does not need sorted columns."""
        S = scipy.sparse.csc_array((np.empty(len(indices)), indices, indptr), shape=(self.n, self.n))
        S.has_canonical_format = True
        return S

    def _order(self, way: str) -> _Order | None:
        """Computed for the second matrix, since most patterns have only one."""
        order = self._orders.get(way)
        if order is None and (new := self._columns.get(way)) is not None:
            old = np.argsort(new)
            lengths = np.diff(self.indptr)[old]
            indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.intc)
            positions = np.arange(len(self.indices)) + np.repeat(self.indptr[old] - indptr[:-1], lengths)
            indices = new[self.indices[positions]].astype(np.intc)
            order = self._orders[way] = _Order(old, new, positions, self._matrix(indices, indptr))
        return order

    def _diagonally_dominant(self, data: np.ndarray) -> bool:
        """|a_ii| >= sum of the |a_ij|, i != j, in every row, or in every column."""
        size = np.abs(data)
        rows = np.repeat(np.arange(self.n, dtype=np.intc), np.diff(self.indptr))
        on_diagonal = rows == self.indices
        twice = 2 * np.bincount(rows[on_diagonal], size[on_diagonal], self.n)
        return any(bool((twice >= np.bincount(along, size, self.n)).all()) for along in (rows, self.indices))


class SuperLUFactor:
    """SuperLU's factors of the transpose of a matrix, whose rows and columns are reordered."""

    backend = "superlu"

    def __init__(self, kind: str, lu: Any, order: _Order | None):
        self.kind, self.lu, self.order = kind, lu, order

    @property
    def entries(self) -> int:
        return self.lu.nnz

    def solve(self, b: np.ndarray, transpose: bool) -> np.ndarray:
        trans = "N" if transpose else "T"
        if self.order is None:
            return self.lu.solve(b, trans)
        return self.lu.solve(b[self.order.old], trans)[self.order.new]

    def check_definite(self) -> None:
        new = self.lu.perm_c
        bad = ~(self.lu.U.diagonal().real > 0)
        bad[new] |= self.lu.perm_r != new  # a pivot off the diagonal
        if bad.any():
            row = int(np.flatnonzero(new == np.argmax(bad))[0])
            raise NotDefinite(row if self.order is None else int(self.order.old[row]))

    def logdet(self) -> float:
        return float(np.log(np.abs(self.lu.U.diagonal()), dtype=np.float64).sum())

    def negative(self) -> int | None:
        on_diagonal = np.array_equal(self.lu.perm_r, self.lu.perm_c)
        return int((self.lu.U.diagonal().real < 0).sum()) if on_diagonal else None
