"""Rows of the table: products, sampled products, products of sparse matrices, stencils."""

import numpy as np
import torch
from ops import grids
from ops.case import Case
from reference import coordinates, densify, on_pattern, transpose_order
from torch import Tensor

import learnsolve as ls
from learnsolve import CSR, ops


def _vector_product(D: Tensor, x: Tensor) -> Tensor:
    return (D @ x.unsqueeze(-1)).squeeze(-1)


def _outer(u: Tensor, w: Tensor) -> Tensor:
    return u.unsqueeze(-1) @ w.unsqueeze(-2) if u.dim() == 1 else u @ w.mT


def _spmm(P, v, x):
    return ops.spmm(CSR(v, P), x)


def _spmm_transpose(P, v, x):
    return ops.spmm(CSR(v, P), x, transpose=True)


def _dense_spmm(P, v, x):
    return densify(P, v) @ x


def _dense_spmm_transpose(P, v, x):
    return densify(P, v).mT @ x


def _sddmm(P, u, w):
    return ops.sddmm(u, w, P)


def _dense_sddmm(P, u, w):
    return on_pattern(P, _outer(u, w))


def _spgemm(P, v, w):
    return ops.spgemm(CSR(v, P), CSR(w, P.T)).values


def _dense_transposed(P: ls.SparsityPattern, w: Tensor) -> Tensor:
    """The dense matrices with values w on the pattern P.T."""
    return densify(P, w[..., torch.argsort(transpose_order(P))]).mT


def _on_product(P: ls.SparsityPattern, D: Tensor, *, left: bool = True) -> Tensor:
    """The entries of D where P P^T, or P^T P, has any."""
    paths = np.zeros(P.shape, dtype=np.int64)
    paths[coordinates(P)] = 1
    i, j = np.nonzero(paths @ paths.T if left else paths.T @ paths @ paths.T @ paths)
    return D[..., torch.as_tensor(i), torch.from_numpy(j)]


def _dense_spgemm(P, v, w):
    return _on_product(P, densify(P, v) @ _dense_transposed(P, w))


def _spgemm_mask(P, v, w):
    A = CSR(v, P)
    return ops.spgemm(ops.spgemm(A, CSR(w, P.T)), A, mask=P).values


def _dense_spgemm_mask(P, v, w):
    A = densify(P, v)
    return on_pattern(P, A @ _dense_transposed(P, w) @ A)


def _galerkin(P, v, w):
    A = CSR(v, P)
    return ops.galerkin(A, ops.spgemm(A, CSR(w, P.T))).values


def _dense_galerkin(P, v, w):
    A = densify(P, v)
    return _on_product(P, A.mT @ A @ _dense_transposed(P, w) @ A, left=False)


CASES = [
    # spmm
    Case("spmm vector", _spmm, _dense_spmm, lambda m, n, z: ((z,), (n,))),
    Case("spmm matrix", _spmm, _dense_spmm, lambda m, n, z: ((z,), (n, 3))),
    Case("spmm one column", _spmm, _dense_spmm, lambda m, n, z: ((z,), (n, 1))),
    Case("spmm transpose vector", _spmm_transpose, _dense_spmm_transpose, lambda m, n, z: ((z,), (m,))),
    Case("spmm transpose matrix", _spmm_transpose, _dense_spmm_transpose, lambda m, n, z: ((z,), (m, 2))),
    Case("spmm batch of x", _spmm, _dense_spmm, lambda m, n, z: ((z,), (2, n, 3))),
    Case("spmm batch of values", _spmm, _dense_spmm, lambda m, n, z: ((2, z), (n, 3))),
    Case("spmm batch of both", _spmm, _dense_spmm, lambda m, n, z: ((2, z), (2, n, 3))),
    Case(
        "spmm batch of values, vector",
        _spmm,
        lambda P, v, x: _vector_product(densify(P, v), x),
        lambda m, n, z: ((2, z), (n,)),
    ),
    Case(
        "spmm transpose batch of values",
        _spmm_transpose,
        _dense_spmm_transpose,
        lambda m, n, z: ((2, z), (m, 2)),
    ),
    Case("spmm broadcast batches", _spmm, _dense_spmm, lambda m, n, z: ((3, 1, z), (2, n, 2))),
    Case("spmm two batch axes of x", _spmm, _dense_spmm, lambda m, n, z: ((z,), (2, 2, n, 2))),
    Case("A @ X", lambda P, v, x: CSR(v, P) @ x, _dense_spmm, lambda m, n, z: ((z,), (n, 2)), compiles=False),
    Case(
        "x @ A",
        lambda P, v, x: x @ CSR(v, P),
        lambda P, v, x: x @ densify(P, v),
        lambda m, n, z: ((z,), (m,)),
        compiles=False,
    ),
    Case(
        "X @ A",
        lambda P, v, x: x @ CSR(v, P),
        lambda P, v, x: x @ densify(P, v),
        lambda m, n, z: ((z,), (2, m)),
        compiles=False,
    ),
    # sddmm
    Case("sddmm vector", _sddmm, _dense_sddmm, lambda m, n, z: ((m,), (n,))),
    Case("sddmm matrix", _sddmm, _dense_sddmm, lambda m, n, z: ((m, 3), (n, 3))),
    Case("sddmm batch of both", _sddmm, _dense_sddmm, lambda m, n, z: ((2, m, 3), (2, n, 3))),
    Case("sddmm batch of U", _sddmm, _dense_sddmm, lambda m, n, z: ((2, m, 3), (n, 3))),
    Case("sddmm broadcast batches", _sddmm, _dense_sddmm, lambda m, n, z: ((3, 1, m, 2), (2, n, 2))),
    # spgemm
    Case("spgemm", _spgemm, _dense_spgemm, lambda m, n, z: ((z,), (z,))),
    Case("spgemm batch of A", _spgemm, _dense_spgemm, lambda m, n, z: ((2, z), (z,))),
    Case("spgemm batch of both", _spgemm, _dense_spgemm, lambda m, n, z: ((2, z), (2, z))),
    Case("spgemm broadcast batches", _spgemm, _dense_spgemm, lambda m, n, z: ((3, 1, z), (2, z))),
    Case("spgemm mask", _spgemm_mask, _dense_spgemm_mask, lambda m, n, z: ((z,), (z,))),
    Case("galerkin", _galerkin, _dense_galerkin, lambda m, n, z: ((z,), (z,))),
    Case(
        "A @ B",
        lambda P, v, w: (CSR(v, P) @ CSR(w, P.T)).values,
        _dense_spgemm,
        lambda m, n, z: ((z,), (z,)),
        compiles=False,
    ),
    # stencils, on grids whose sizes are the pattern's
    Case(
        "stencil line",
        lambda P, c, x: ops.stencil(c, x, offsets=grids.LINE, boundary="periodic"),
        lambda P, c, x: grids.stencil(c, x, grids.LINE, "periodic"),
        lambda m, n, z: ((4,), (m,)),
    ),
    Case(
        "stencil window",
        lambda P, c, x: ops.stencil(c, x),
        lambda P, c, x: grids.stencil(c.flatten(), x, grids.box(3, 5)),
        lambda m, n, z: ((3, 5), (m, n)),
    ),
    Case(
        "stencil space, batch of x",
        lambda P, c, x: ops.stencil(c, x, offsets=grids.SPACE, boundary=("zero", "periodic", "zero")),
        lambda P, c, x: grids.stencil(c, x, grids.SPACE, ("zero", "periodic", "zero")),
        lambda m, n, z: ((4,), (2, 2, m, n)),
    ),
    Case(
        "stencil variable",
        lambda P, c, x: ops.stencil(c, x, offsets=grids.CROSS),
        lambda P, c, x: grids.stencil(c, x, grids.CROSS),
        lambda m, n, z: ((5, m, n), (m, n)),
    ),
    Case(
        "stencil variable, periodic, batch of both",
        lambda P, c, x: ops.stencil(c, x, offsets=grids.SKEW, boundary="periodic"),
        lambda P, c, x: grids.stencil(c, x, grids.SKEW, "periodic"),
        lambda m, n, z: ((2, 5, m, n), (2, m, n)),
    ),
    Case(
        "stencil batch of constants, broadcast",
        lambda P, c, x: ops.stencil(c, x, offsets=grids.SKEW),
        lambda P, c, x: grids.stencil(c, x, grids.SKEW),
        lambda m, n, z: ((3, 1, 5, 1, 1), (2, m, n)),
    ),
    *(
        Case(
            f"stencil batch of {b} and {x}",
            lambda P, c, x: ops.stencil(c, x, offsets=grids.CROSS),
            lambda P, c, x: grids.stencil(c, x, grids.CROSS),
            lambda m, n, z, b=b, x=x: ((b, 5, m, n), (x, m, n)),
        )
        for b, x in ((1, 2), (2, 1))
    ),
    Case(
        "stencil_matrix",
        lambda P, c, x: ops.spmm(ops.stencil_matrix(c, P.shape, offsets=grids.SKEW, boundary="periodic"), x),
        lambda P, c, x: grids.stencil(c, x.unflatten(-1, P.shape), grids.SKEW, "periodic").flatten(-2),
        lambda m, n, z: ((5,), (m * n,)),
        compiles=False,
    ),
    Case(
        "stencil_matrix variable, batch",
        lambda P, c, x: ops.spmm(ops.stencil_matrix(c, P.shape, offsets=grids.CROSS), x),
        lambda P, c, x: grids.stencil(c, x.unflatten(-1, P.shape), grids.CROSS).flatten(-2),
        lambda m, n, z: ((2, 5, m, n), (m * n,)),
        compiles=False,
    ),
]
