"""cuSPARSE through CuPy, for the benchmarks: as CuPy calls it, recreating descriptors, buffers and analysis
in each call, and by hand with all of these reused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

import learnsolve as ls

ROW_MAJOR = 2  # CUSPARSE_ORDER_ROW
DEFAULT, ALG2 = 0, 3  # CUSPARSE_SPMV_ALG_DEFAULT, CUSPARSE_SPMV_CSR_ALG2


def array(t: torch.Tensor) -> Any:
    """The tensor's memory as a CuPy array."""
    import cupy

    return cupy.from_dlpack(t.detach().contiguous())


def matrix(A: ls.CSR) -> Any:
    from cupyx.scipy import sparse

    parts = tuple(array(t) for t in (A.values, A.col_indices, A.crow_indices))
    M = sparse.csr_matrix(parts, shape=A.shape)
    assert M.has_canonical_format  # checked once, not in the timed calls
    return M


def _names() -> tuple[Any, Any, Any, Any]:
    import cupy
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusparse
    from cupyx import cusparse as descriptors

    return cupy, cusparse, descriptors, device.get_cusparse_handle()


def _numbers(dtype: Any) -> tuple[Any, Any, int]:
    """1, 0 and the name of the dtype, for cuSPARSE."""
    import numpy as np
    from cupy._core._dtype import to_cuda_dtype

    return np.array(1, dtype), np.array(0, dtype), to_cuda_dtype(np.dtype(dtype))


def kept_spmv(M: Any, x: Any, algorithm: int = DEFAULT) -> Callable[[], Any]:
    cupy, lib, descriptors, handle = _names()
    one, zero, kind = _numbers(M.dtype)
    y = cupy.empty(M.shape[0], M.dtype)
    a, b, c = (
        descriptors.SpMatDescriptor.create(M),
        descriptors.DnVecDescriptor.create(x),
        descriptors.DnVecDescriptor.create(y),
    )
    op = lib.CUSPARSE_OPERATION_NON_TRANSPOSE
    given = (handle, op, one.ctypes.data, a.desc, b.desc, zero.ctypes.data, c.desc, kind, algorithm)
    room = cupy.empty(lib.spMV_bufferSize(*given), cupy.int8)
    # CuPy does not wrap the analysis that later calls profit from. The library is the one that it has loaded.
    v, i = ctypes.c_void_p, ctypes.c_int
    analyze = ctypes.CDLL("libcusparse.so.12").cusparseSpMV_preprocess
    analyze.argtypes = (v, i, v, v, v, v, v, i, i, v)
    if status := analyze(*given, room.data.ptr):
        raise RuntimeError(f"cusparseSpMV_preprocess: status {status}")

    def call(keep: tuple = (one, zero, a, b, c, M, x)) -> Any:
        lib.spMV(*given, room.data.ptr)
        return y

    return call


def kept_spmm(M: Any, X: Any, rows: bool) -> Callable[[], Any]:
    """X (n, k) in either layout; the product has the same layout."""
    cupy, lib, descriptors, handle = _names()
    one, zero, kind = _numbers(M.dtype)
    order = "C" if rows else "F"
    X = cupy.asarray(X, order=order)
    Y = cupy.empty((M.shape[0], X.shape[1]), M.dtype, order=order)

    def dense(D: Any) -> Any:
        if not rows:
            return descriptors.DnMatDescriptor.create(D)
        made = lib.createDnMat(*D.shape, D.shape[1], D.data.ptr, kind, ROW_MAJOR)
        return descriptors.DnMatDescriptor(made, lib.dnMatGet, lib.destroyDnMat)

    a, b, c = descriptors.SpMatDescriptor.create(M), dense(X), dense(Y)
    op, algorithm = lib.CUSPARSE_OPERATION_NON_TRANSPOSE, lib.CUSPARSE_MM_ALG_DEFAULT
    given = (handle, op, op, one.ctypes.data, a.desc, b.desc, zero.ctypes.data, c.desc, kind, algorithm)
    room = cupy.empty(lib.spMM_bufferSize(*given), cupy.int8)

    def call(keep: tuple = (one, zero, a, b, c, M, X)) -> Any:
        lib.spMM(*given, room.data.ptr)
        return Y

    return call


def kept_spsm(L: Any, b: Any, lower: bool, unit: bool) -> Callable[[], Any]:
    """Triangular solve with one right-hand side, analyzed once."""
    cupy, lib, descriptors, handle = _names()
    one, _, kind = _numbers(L.dtype)
    B = b.reshape(-1, 1)
    X = cupy.zeros(B.shape, L.dtype, order="F")
    l, r, x = (  # noqa: E741
        descriptors.SpMatDescriptor.create(L),
        descriptors.DnMatDescriptor.create(B),
        descriptors.DnMatDescriptor.create(X),
    )
    fill = lib.CUSPARSE_FILL_MODE_LOWER if lower else lib.CUSPARSE_FILL_MODE_UPPER
    diagonal = lib.CUSPARSE_DIAG_TYPE_UNIT if unit else lib.CUSPARSE_DIAG_TYPE_NON_UNIT
    l.set_attribute(lib.CUSPARSE_SPMAT_FILL_MODE, fill)
    l.set_attribute(lib.CUSPARSE_SPMAT_DIAG_TYPE, diagonal)
    op, algorithm = lib.CUSPARSE_OPERATION_NON_TRANSPOSE, lib.CUSPARSE_SPSM_ALG_DEFAULT
    plan = lib.spSM_createDescr()
    given = (handle, op, op, one.ctypes.data, l.desc, r.desc, x.desc, kind, algorithm, plan)
    room = cupy.empty(max(lib.spSM_bufferSize(*given), 1), cupy.int8)
    lib.spSM_analysis(*given, room.data.ptr)

    def call(keep: tuple = (one, l, r, x, L, B)) -> Any:
        lib.spSM_solve(*given, room.data.ptr)
        return X.reshape(-1)

    return call
