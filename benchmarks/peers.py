"""The operations of the tables in every library: for each a dictionary of columns, name -> () -> Op.

All start from one SciPy matrix, and every converted matrix is compared with it before it is used. A library
appears where it has the operation and is installed; pyamg's products are SciPy's. Gradients are in the order
of the sparse operands, then the dense one. torch's gradient for the matrix of a product with a dense one, or
of a triangular solve, needs n^2 numbers: those columns differentiate by x only, unless `values` asks for all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch
from torch import Tensor

import learnsolve as ls
from benchmarks.harness import OURS, Op, canonical, deviation

Columns = dict[str, Callable[[], Op]]
absent: list[str] = []


@functools.cache
def peer(name: str) -> Any:
    """A module, or None where it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        absent.append(f"{name}: left out, {error}")
        return None


def csr(S: Any, dtype: torch.dtype = torch.float64) -> sp.csr_array:
    """With 32-bit indices, sorted, of one dtype."""
    S = sp.csr_array(S, dtype={torch.float64: np.float64, torch.float32: np.float32}[dtype])
    S.sum_duplicates()
    S.indptr, S.indices = S.indptr.astype(np.int32), S.indices.astype(np.int32)
    return S


def fresh(A: ls.CSR) -> ls.CSR:
    """The same matrix on a new pattern, without plans."""
    P = A.pattern
    return ls.CSR(A.values, ls.SparsityPattern(P.crow_indices.clone(), P.col_indices.clone(), P.shape))


class Matrix:
    """One matrix, as every library takes it; each call returns a new leaf that requires grad."""

    def __init__(self, S: sp.csr_array, device: torch.device):
        self.S, self.device, self.shape = S, device, S.shape
        coo = S.tocoo()
        self.places = coo.coords
        self._ours = ls.CSR.from_scipy(S).to(device=device)  # its pattern keeps the plans, as in training

    def _same(self, M: Any) -> Any:
        if deviation(canonical(M), [self.S]) != 0:
            raise ValueError("the converted matrix differs")
        return M

    def ours(self) -> ls.CSR:
        return self._same(self._ours.with_values(self._ours.values.detach().clone()).requires_grad_())

    def torch_csr(self, grad: bool = True) -> Tensor:
        return self._same(self._ours.detach().to_torch()).requires_grad_(grad)

    def torch_coo(self, grad: bool = True) -> Tensor:
        return self._same(self._ours.detach().to_torch(torch.sparse_coo)).coalesce().requires_grad_(grad)

    def dense(self) -> Tensor:
        return torch.from_numpy(self.S.toarray()).to(self.device).requires_grad_()

    def sla(self) -> tuple[Any, Tensor]:
        rows, columns = (
            torch.from_numpy(np.ascontiguousarray(i)).long().to(self.device) for i in self.places
        )
        values = torch.from_numpy(self.S.data).to(self.device).clone().requires_grad_()
        return peer("torch_sla").SparseTensor(values, rows, columns, self.shape), values

    def cupy(self) -> Any:
        from cupyx.scipy import sparse

        return self._same(sparse.csr_matrix(sp.csr_matrix(self.S)))

    def warp(self) -> Any:
        wp, sparse = peer("warp"), peer("warp.sparse")
        kind = wp.float64 if self.S.dtype == np.float64 else wp.float32
        rows, columns = (
            wp.array(i.astype(np.int32), dtype=int, device=str(self.device)) for i in self.places
        )
        values = wp.array(self.S.data, dtype=kind, device=str(self.device))
        return sparse.bsr_from_triplets(*self.shape, rows, columns, values, prune_numerical_zeros=False)


def _there(columns: Columns, device: torch.device) -> Columns:
    """Those of the device whose library is installed."""
    on_cpu = {"SciPy": "scipy", "torchsparsegradutils": "torchsparsegradutils", "torch-sla": "torch_sla"}
    on_cuda = {"CuPy": "cupy", "Warp": "warp"}
    wanted, other = (on_cpu, on_cuda) if device.type == "cpu" else (on_cuda, on_cpu)
    return {
        name: make
        for name, make in columns.items()
        if name not in other and (name not in wanted or peer(wanted[name]) is not None)
    }


def _leaf(x: np.ndarray, device: torch.device, columns: bool = False) -> Tensor:
    x = x.reshape(-1, 1) if columns and x.ndim == 1 else x
    return torch.from_numpy(x).to(device).requires_grad_()


def _warp_array(x: np.ndarray, device: torch.device) -> Any:
    return peer("warp").array(x, device=str(device))


def _cupy_array(x: np.ndarray) -> Any:
    return peer("cupy").asarray(x)


def _warp_dense(W: Any) -> sp.csr_array:
    """The first nnz entries: Warp's arrays may be longer."""
    count = int(W.nnz_sync())
    parts = W.values.numpy()[:count].reshape(-1), W.columns.numpy()[:count], W.offsets.numpy()[: W.nrow + 1]
    return sp.csr_array(parts, (W.nrow, W.ncol))


def product(A: Matrix, x: np.ndarray, values: bool = False, dense: bool = False) -> Columns:
    """A x for x of shape (n,) or (n, k)."""
    device = A.device

    def ours() -> Op:
        M, v = A.ours(), _leaf(x, device)
        return Op(lambda: M @ v, [M.values, v])

    def torch_csr() -> Op:
        T, v = A.torch_csr(values), _leaf(x, device, columns=True)
        return Op(lambda: T @ v, [T if values else None, v])

    def torch_coo() -> Op:
        T, v = A.torch_coo(values), _leaf(x, device, columns=True)
        return Op(lambda: torch.sparse.mm(T, v), [T if values else None, v])

    def gradutils() -> Op:
        T, v = A.torch_csr(), _leaf(x, device, columns=True)
        return Op(lambda: peer("torchsparsegradutils").sparse_mm(T, v), [T, v])

    def sla() -> Op:
        (M, leaf), v = A.sla(), _leaf(x, device)
        return Op(lambda: M @ v, [leaf, v])

    def cupy() -> Op:
        M, v = A.cupy(), _cupy_array(x)
        return Op(lambda: M @ v)

    def warp() -> Op:
        M, v, sparse = A.warp(), _warp_array(x, device), peer("warp.sparse")
        if x.ndim > 1:
            raise NotImplementedError("bsr_mv takes vectors")
        return Op(lambda: sparse.bsr_mv(M, v))

    def full() -> Op:
        D, v = A.dense(), _leaf(x, device)
        return Op(lambda: D @ v, [D, v])

    columns: Columns = {OURS: ours, "SciPy": lambda: Op(lambda: A.S @ x), "torch CSR": torch_csr}
    columns |= {"torch COO": torch_coo, "torchsparsegradutils": gradutils, "torch-sla": sla}
    columns |= {"CuPy": cupy, "Warp": warp}
    return _there(columns | ({"torch dense": full} if dense else {}), device)


def _pair(A: Matrix, B: Matrix, ours: Any, coo: Any, warp: Any, plain: Any, dense: bool) -> Columns:
    """An operation on two sparse matrices; `plain` is its operator in SciPy, torch, torch-sla and CuPy."""

    def mine() -> Op:
        M, N = A.ours(), B.ours()
        return Op(lambda: ours(M, N), [M.values, N.values])

    def tensors(f: Callable, kind: str) -> Callable[[], Op]:
        def make() -> Op:
            T, U = getattr(A, kind)(), getattr(B, kind)()
            return Op(lambda: f(T, U), [T, U])

        return make

    def sla() -> Op:
        (M, a), (N, b) = A.sla(), B.sla()

        def call() -> Tensor:
            C = plain(M, N)
            indices = torch.stack((C.row_indices, C.col_indices))
            return torch.sparse_coo_tensor(indices, C.values, C.shape)

        return Op(call, [a, b])

    def cupy() -> Op:
        M, N = A.cupy(), B.cupy()
        return Op(lambda: plain(M, N))

    def in_warp() -> Op:
        M, N = A.warp(), B.warp()
        return Op(lambda: _warp_dense(warp(peer("warp.sparse"), M, N)))

    columns: Columns = {OURS: mine, "SciPy": lambda: Op(lambda: plain(A.S, B.S))}
    columns |= {
        "torch CSR": tensors(plain, "torch_csr"),
        "torch COO": tensors(coo, "torch_coo"),
        "torch-sla": sla,
    }
    columns |= {"CuPy": cupy, "Warp": in_warp}
    return _there(columns | ({"torch dense": tensors(plain, "dense")} if dense else {}), A.device)


def sparse_product(A: Matrix, B: Matrix, dense: bool = False) -> Columns:
    """A B, both sparse."""

    def plain(a: Any, b: Any) -> Any:
        return a @ b

    return _pair(A, B, ls.ops.spgemm, torch.sparse.mm, lambda w, a, b: w.bsr_mm(a, b), plain, dense)


def sparse_sum(A: Matrix, B: Matrix, dense: bool = False) -> Columns:
    """A + B, both sparse."""

    def plain(a: Any, b: Any) -> Any:
        return a + b

    def warp(w: Any, a: Any, b: Any) -> Any:
        return w.bsr_axpy(a, w.bsr_copy(b))

    return _pair(A, B, ls.ops.add, plain, warp, plain, dense)


def triangular_solve(L: Matrix, b: np.ndarray, dense: bool = False) -> Columns:
    """L x = b, L lower triangular."""
    device = L.device

    def ours() -> Op:
        M, r = L.ours(), _leaf(b, device)
        return Op(lambda: ls.ops.sptrsv(M, r), [M.values, r])

    def torch_csr() -> Op:
        T, r = L.torch_csr(grad=False), _leaf(b, device, columns=True)
        return Op(lambda: torch.triangular_solve(r, T, upper=False).solution, [None, r])

    def gradutils() -> Op:
        T, r, solve = L.torch_csr(), _leaf(b, device, columns=True), peer("torchsparsegradutils")
        return Op(lambda: solve.sparse_triangular_solve(T, r, upper=False), [T, r])

    def cupy() -> Op:
        from cupyx.scipy.sparse import linalg

        M, r = L.cupy(), _cupy_array(b)
        return Op(lambda: linalg.spsolve_triangular(M, r, lower=True))

    def full() -> Op:
        D, r = L.dense(), _leaf(b, device, columns=True)
        return Op(lambda: torch.linalg.solve_triangular(D, r, upper=False), [D, r])

    columns: Columns = {OURS: ours, "SciPy": lambda: Op(lambda: spla.spsolve_triangular(L.S, b))}
    columns |= {"torch CSR": torch_csr, "torchsparsegradutils": gradutils, "CuPy": cupy}
    return _there(columns | ({"torch dense": full} if dense else {}), device)


def direct_solve(A: Matrix, b: np.ndarray, dense: bool = False) -> Columns:
    """A x = b, factored in each call (ours keeps the factors for the backward)."""
    device = A.device

    def ours() -> Op:
        M, r = A.ours(), _leaf(b, device)
        return Op(lambda: ls.ops.spsolve(M, r), [M.values, r])

    def sla() -> Op:
        rows, columns = (torch.from_numpy(np.ascontiguousarray(i)).long().to(device) for i in A.places)
        v, r = _leaf(A.S.data, device), _leaf(b, device)
        return Op(lambda: peer("torch_sla").spsolve(v, rows, columns, A.shape, r), [v, r])

    def torch_csr() -> Op:
        T, r = A.torch_csr(), _leaf(b, device)
        return Op(lambda: torch.sparse.spsolve(T, r), [T, r])

    def cupy() -> Op:
        from cupyx.scipy.sparse import linalg

        M, r = A.cupy(), _cupy_array(b)
        return Op(lambda: linalg.spsolve(M, r))

    def full() -> Op:
        D, r = A.dense(), _leaf(b, device)
        return Op(lambda: torch.linalg.solve(D, r), [D, r])

    C = sp.csc_array(A.S)
    columns: Columns = {
        OURS: ours,
        "SciPy": lambda: Op(lambda: spla.splu(C).solve(b)),
        "torch CSR": torch_csr,
    }
    columns |= {"torch-sla": sla, "CuPy": cupy}
    return _there(columns | ({"torch dense": full} if dense else {}), device)
