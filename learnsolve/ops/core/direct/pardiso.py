"""MKL's PARDISO, through the library that pypardiso loads (extra `pardiso`).

A handle is an analyzed pattern with the factors of at most one matrix. When a factor is freed, its handle
returns to the analysis, which reuses it for the next matrix: only the numerical factorization is repeated.

Pivots are chosen within supernodes, of order 1 and also 2 if A is symmetric; tiny pivots are replaced. If a
residual is too large, as for indefinite matrices, each solution is refined once. If this is not enough, or
pivots were replaced, LU is tried with a maximum weighted matching and scaling of this matrix; if that fails
too, another library is used. So the factors of a matrix do not depend on earlier matrices.

Source: Schenk and Gaertner, "Solving unsymmetric sparse systems of linear equations with PARDISO", Future
Generation Computer Systems 20 (2004); parameters: Intel's reference of oneMKL, "pardiso iparm".
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import torch

from learnsolve.ops.core.direct.backend import NotDefinite, Structure, Unreliable

_TYPES = {"cholesky": 2, "ldlt": -2, "lu": 11}
_COMPLEX = {"cholesky": 4, "ldlt": -4, "lu": 13}  # the first two for Hermitian matrices
_ANALYZE, _FACTOR, _SOLVE, _FREE_NUMBERS, _FREE = 11, 22, 33, 0, -1
_OUT_OF_MEMORY, _ZERO_PIVOT = (-2, -9, -10, -11), -4
_IDLE = 8  # idle handles that an analysis keeps
_WIDTH = 8  # columns that a thread solves at once
_PARTS = 8  # into which PARDISO splits its work, for the same bits with any number of threads ("CNR mode")


@functools.cache
def mkl() -> Any:
    """MKL as found by pypardiso; ImportError if either is missing."""
    import pypardiso  # type: ignore[import-not-found]

    solver = pypardiso.PyPardisoSolver()  # declares the types of the arguments
    library = solver.libmkl
    library.pardiso_getdiag.restype = None
    return library


class Pardiso:
    name: ClassVar[str] = "pardiso"
    kinds: ClassVar[tuple[str, ...]] = ("cholesky", "ldlt", "lu")
    orderings: ClassVar[dict[str, Any]] = {"nested_dissection": 2, "minimum_degree": 0}
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

    def factor(self, data: np.ndarray) -> Factored:
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
        return Factored(self, handle, data, A if steps else None)

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


class Factored:
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
    """The number of refinement steps, 0 or 1, after which a residual is at rounding level; None if that is
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
    """The upper triangle with the whole diagonal, and the positions of its entries; -1 if missing."""
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
