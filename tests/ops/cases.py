"""The table of differentiable operations. A row buys every test of test_contract.py.

Each operation is written twice, on a `SparsityPattern` with the library and on dense matrices with torch
alone. All but the division are sums of products of their inputs with coefficients +1 or -1. Hence the dense
form, with every sign made +, evaluated at |inputs| gives the sums sum |a||x| of the error bound, and at
ones the number of terms; the same holds for its derivatives.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from ops import grids
from reference import coordinates, densify, on_pattern, pattern_of, transpose_order
from torch import Tensor

import learnsolve as ls
from learnsolve import CSR, ops
from learnsolve._plain import plain_tensors


@dataclass(frozen=True)
class Case:
    """An operation: f(pattern, *inputs) by the library and by dense torch."""

    name: str
    sparse: Callable[..., Tensor]
    dense: Callable[..., Tensor]
    shapes: Callable[[int, int, int], tuple]  # of the inputs, from m, n, nnz
    positive: Callable[..., Tensor] | None = None  # `dense` with every sign +, if that is another function
    compiles: bool = True

    @property
    def majorant(self) -> Callable[..., Tensor]:
        return self.positive or self.dense

    def shapes_on(self, P: ls.SparsityPattern) -> tuple:
        return self.shapes(*P.shape, P.nnz)


def moved(case: Case, device: str) -> Case:
    """The same operation on `device`, for inputs and results on the CPU."""

    def sparse(P, *inputs):
        return case.sparse(P.to(device), *(t.to(device) for t in inputs)).to("cpu")

    return dataclasses.replace(case, name=f"{case.name}, {device}", sparse=sparse)


def _vector_product(D: Tensor, x: Tensor) -> Tensor:
    return (D @ x.unsqueeze(-1)).squeeze(-1)


def _outer(u: Tensor, w: Tensor) -> Tensor:
    return u.unsqueeze(-1) @ w.unsqueeze(-2) if u.dim() == 1 else u @ w.mT


def _shuffle(nnz: int) -> tuple[Tensor, Tensor]:
    """A fixed order of twice the entries, and its inverse."""
    order = np.random.default_rng(0).permutation(2 * nnz)
    return torch.as_tensor(order), torch.from_numpy(np.argsort(order))


def _from_coo(P: ls.SparsityPattern, w: Tensor) -> Tensor:
    """Every entry of P as two triples, in random order."""
    order, _ = _shuffle(P.nnz)
    rows, columns = (torch.as_tensor(np.tile(a, 2)).to(P.dtype)[order].to(P.device) for a in coordinates(P))
    return CSR.from_coo(rows, columns, w, P.shape).values


def _add_pairs(P: ls.SparsityPattern, w: Tensor) -> Tensor:
    _, inverse = _shuffle(P.nnz)
    return w[..., inverse].unflatten(-1, (2, P.nnz)).sum(-2)


def _diagonal(P: ls.SparsityPattern, v: Tensor) -> Tensor:
    return torch.diagonal(densify(P, v), dim1=-2, dim2=-1)


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


def _add(P, v, w):
    return (CSR(v, P) + CSR(w, P)).values


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


def _pattern_at(P: ls.SparsityPattern, rows: np.ndarray, columns: np.ndarray) -> ls.SparsityPattern:
    with plain_tensors():  # the first use may be inside of a transformation
        S = scipy.sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=P.shape)
        return pattern_of(S, P.dtype).to(P.device)


@functools.lru_cache(maxsize=64)
def _flipped(P: ls.SparsityPattern) -> ls.SparsityPattern:
    """As many entries as P, in other places: the columns in opposite order."""
    rows, columns = coordinates(P)
    return _pattern_at(P, rows, P.shape[1] - 1 - columns)


@functools.lru_cache(maxsize=64)
def _every_second(P: ls.SparsityPattern) -> ls.SparsityPattern:
    """Every second entry of P, the first included."""
    rows, columns = coordinates(P)
    return _pattern_at(P, rows[::2], columns[::2])


def _dense_sum(other: Callable) -> Callable:
    """s A + t B on the union of the patterns, from the dense sum."""

    def dense(P, v, w, s=1, t=1):
        Q = other(P)
        places = np.unique(np.concatenate([i * P.shape[1] + j for i, j in (coordinates(P), coordinates(Q))]))
        D = s * densify(P, v).flatten(-2) + t * densify(Q, w).flatten(-2)
        return D[..., torch.as_tensor(places)]

    return dense


def _dense_common(P, v, w):
    """The entries of A * B that both patterns have."""
    Q = _flipped(P)
    a, b = (i * P.shape[1] + j for i, j in (coordinates(P), coordinates(Q)))
    places = torch.as_tensor(np.intersect1d(a, b))
    return densify(P, v).flatten(-2)[..., places] * densify(Q, w).flatten(-2)[..., places]


def _outer_in_order(P, v, w):
    """The entries of kron(A, B), by row and column."""
    i, j = coordinates(P)
    rows, columns = ((a[:, None] * size + a).reshape(-1) for a, size in ((i, P.shape[0]), (j, P.shape[1])))
    return (v.unsqueeze(-1) * w.unsqueeze(-2)).flatten(-2)[..., torch.as_tensor(np.lexsort((columns, rows)))]


def _index(n: int) -> np.ndarray:
    """Some of 0, ..., n - 1, several times, negative ones too; nothing if n = 0."""
    return np.concatenate((np.arange(0, n, 2), np.arange(n)[::-1][:3], -np.arange(1, n + 1)[:2]))


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
    # structure
    Case(
        "transpose",
        lambda P, v: CSR(v, P).T.values,
        lambda P, v: v[..., transpose_order(P)],
        lambda m, n, z: ((z,),),
    ),
    Case(
        "transpose batch",
        lambda P, v: CSR(v, P).T.values,
        lambda P, v: v[..., transpose_order(P)],
        lambda m, n, z: ((2, z),),
    ),
    Case("to_dense", lambda P, v: CSR(v, P).to_dense(), densify, lambda m, n, z: ((z,),)),
    Case("to_dense batch", lambda P, v: CSR(v, P).to_dense(), densify, lambda m, n, z: ((2, z),)),
    Case("diagonal", lambda P, v: CSR(v, P).diagonal(), _diagonal, lambda m, n, z: ((z,),)),
    Case("diagonal batch", lambda P, v: CSR(v, P).diagonal(), _diagonal, lambda m, n, z: ((2, z),)),
    Case(
        "sum", lambda P, v: CSR(v, P).sum(), lambda P, v: densify(P, v).sum((-2, -1)), lambda m, n, z: ((z,),)
    ),
    Case("sum 0", lambda P, v: CSR(v, P).sum(0), lambda P, v: densify(P, v).sum(-2), lambda m, n, z: ((z,),)),
    Case("sum 1", lambda P, v: CSR(v, P).sum(1), lambda P, v: densify(P, v).sum(-1), lambda m, n, z: ((z,),)),
    Case(
        "sum -1 batch",
        lambda P, v: CSR(v, P).sum(-1),
        lambda P, v: densify(P, v).sum(-1),
        lambda m, n, z: ((2, z),),
    ),
    Case(
        "scale_rows",
        lambda P, v, d: CSR(v, P).scale_rows(d).values,
        lambda P, v, d: on_pattern(P, densify(P, v) * d.unsqueeze(-1)),
        lambda m, n, z: ((z,), (m,)),
    ),
    Case(
        "scale_columns",
        lambda P, v, d: CSR(v, P).scale_columns(d).values,
        lambda P, v, d: on_pattern(P, densify(P, v) * d.unsqueeze(-2)),
        lambda m, n, z: ((z,), (n,)),
    ),
    Case(
        "scale_rows batch",
        lambda P, v, d: CSR(v, P).scale_rows(d).values,
        lambda P, v, d: on_pattern(P, densify(P, v) * d.unsqueeze(-1)),
        lambda m, n, z: ((z,), (2, m)),
    ),
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
    # arithmetic
    Case("A + B", _add, lambda P, v, w: v + w, lambda m, n, z: ((z,), (z,))),
    Case(
        "A - B",
        lambda P, v, w: (CSR(v, P) - CSR(w, P)).values,
        lambda P, v, w: v - w,
        lambda m, n, z: ((z,), (z,)),
        positive=lambda P, v, w: v + w,
    ),
    Case(
        "A * B",
        lambda P, v, w: (CSR(v, P) * CSR(w, P)).values,
        lambda P, v, w: v * w,
        lambda m, n, z: ((z,), (z,)),
    ),
    Case("s * A", lambda P, v, s: (s * CSR(v, P)).values, lambda P, v, s: s * v, lambda m, n, z: ((z,), ())),
    Case(
        "A * s",
        lambda P, v, s: (CSR(v, P) * s).values,
        lambda P, v, s: s * v,
        lambda m, n, z: ((2, z), (2, 1)),
    ),
    Case(
        "A / s",
        lambda P, v, s: (CSR(v, P) / s).values,
        lambda P, v, s: v / s,
        lambda m, n, z: ((z,), ()),
        compiles=False,
    ),
    Case(
        "-A",
        lambda P, v: (-CSR(v, P)).values,
        lambda P, v: -v,
        lambda m, n, z: ((z,),),
        positive=lambda P, v: v,
    ),
    # parts and arrangements
    Case(
        "tril",
        lambda P, v: ops.tril(CSR(v, P)).to_dense(),
        lambda P, v: torch.tril(densify(P, v)),
        lambda m, n, z: ((z,),),
    ),
    Case(
        "triu 1 batch",
        lambda P, v: CSR(v, P).triu(1).to_dense(),
        lambda P, v: torch.triu(densify(P, v), 1),
        lambda m, n, z: ((2, z),),
    ),
    Case(
        "diagonal -1",
        lambda P, v: CSR(v, P).diagonal(-1),
        lambda P, v: (
            torch.diagonal(torch.nn.functional.pad(densify(P, v), (1, 0)), dim1=-2, dim2=-1)[..., 1:]
            if min(P.shape[0] - 1, P.shape[1]) > 0
            else v.sum(-1, keepdim=True)[..., :0]
        ),
        lambda m, n, z: ((z,),),
    ),
    Case(
        "trace",
        lambda P, v: CSR(v, P).trace(),
        lambda P, v: _diagonal(P, v).sum(-1),
        lambda m, n, z: ((2, z),),
    ),
    Case(
        "diag",
        lambda P, d: ops.diag(d, -1).to_dense(),
        lambda P, d: torch.diag_embed(d, -1),
        lambda m, n, z: ((2, m),),
        compiles=False,
    ),
    Case(
        "kron",
        lambda P, v, w: ops.kron(CSR(v, P), CSR(w, P)).values,
        _outer_in_order,
        lambda m, n, z: ((z,), (z,)),
    ),
    Case(
        "kron batch",
        lambda P, v, w: ops.kron(CSR(v, P), CSR(w, P)).values,
        _outer_in_order,
        lambda m, n, z: ((2, z), (z,)),
    ),
    Case(
        "hstack",
        lambda P, v, w: ops.hstack([CSR(v, P), CSR(w, P), CSR(v, P)]).to_dense(),
        lambda P, v, w: torch.cat([densify(P, v), densify(P, w), densify(P, v)], -1),
        lambda m, n, z: ((z,), (z,)),
    ),
    Case(
        "vstack",
        lambda P, v, w: ops.vstack([CSR(v, P), CSR(w, P)]).values,
        lambda P, v, w: torch.cat([v, w.expand(v.shape)], -1),
        lambda m, n, z: ((2, z), (z,)),
    ),
    Case(
        "block_diag",
        lambda P, v, w: ops.block_diag([CSR(v, P), CSR(w, P).T]).to_dense(),
        lambda P, v, w: (
            torch.nn.functional.pad(densify(P, v), (0, P.shape[0], 0, P.shape[1]))
            + torch.nn.functional.pad(densify(P, w).mT, (P.shape[1], 0, P.shape[0], 0))
        ),
        lambda m, n, z: ((z,), (z,)),
    ),
    Case(
        "A[slice, slice]",
        lambda P, v: CSR(v, P)[1:, ::-2].to_dense(),
        lambda P, v: densify(P, v)[..., 1:, torch.arange(P.shape[1]).flip(0)[::2]],
        lambda m, n, z: ((z,),),
    ),
    Case(
        "A[rows][:, columns]",
        lambda P, v: CSR(v, P)[_index(P.shape[0])][:, _index(P.shape[1])].to_dense(),
        lambda P, v: densify(P, v)[..., torch.as_tensor(_index(P.shape[0])), :][
            ..., torch.as_tensor(_index(P.shape[1]))
        ],
        lambda m, n, z: ((2, z),),
        compiles=False,
    ),
    Case(
        "A[rows, columns]",
        lambda P, v: CSR(v, P)[np.tile(coordinates(P)[0], 2), np.tile(coordinates(P)[1], 2)],
        lambda P, v: torch.cat([v, v], -1),
        lambda m, n, z: ((z,),),
        compiles=False,
    ),
    Case(
        "permute",
        lambda P, v: ops.permute(
            CSR(v, P), np.arange(P.shape[0])[::-1], np.roll(np.arange(P.shape[1]), 2)
        ).to_dense(),
        lambda P, v: densify(P, v).flip(-2)[..., torch.as_tensor(np.roll(np.arange(P.shape[1]), 2))],
        lambda m, n, z: ((z,),),
        compiles=False,
    ),
    # Two patterns: compiled in test_add.py, where the second one is made outside of the trace.
    Case(
        "add union",
        lambda P, v, w, s, t: ops.add(CSR(v, P), CSR(w, _flipped(P)), alpha=s, beta=t).values,
        _dense_sum(_flipped),
        lambda m, n, z: ((z,), (z,), (), (1,)),
        compiles=False,
    ),
    Case(
        "add contained",
        lambda P, v, w: ops.add(CSR(v, P), CSR(w, _every_second(P))).values,
        _dense_sum(_every_second),
        lambda m, n, z: ((z,), ((z + 1) // 2,)),
        compiles=False,
    ),
    Case(
        "add union batch",
        lambda P, v, w, s: ops.add(CSR(v, P), CSR(w, _flipped(P)), alpha=s).values,
        _dense_sum(_flipped),
        lambda m, n, z: ((2, z), (z,), (2, 1)),
        compiles=False,
    ),
    Case(
        "add one pattern",
        lambda P, v, w, s, t: ops.add(CSR(v, P), CSR(w, P), alpha=s, beta=t).values,
        lambda P, v, w, s, t: s * v + t * w,
        lambda m, n, z: ((z,), (2, z), (2, 1), (2, 1)),
    ),
    Case(
        "A - B, two patterns",
        lambda P, v, w: (CSR(w, _every_second(P)) - CSR(v, P)).values,
        lambda P, v, w: _dense_sum(_every_second)(P, -v, w),
        lambda m, n, z: ((z,), ((z + 1) // 2,)),
        positive=_dense_sum(_every_second),
        compiles=False,
    ),
    Case(
        "A * B, two patterns",
        lambda P, v, w: (CSR(v, P) * CSR(w, _flipped(P))).values,
        _dense_common,
        lambda m, n, z: ((z,), (2, z)),
        compiles=False,
    ),
    # The pattern that comes out depends on the indices, which torch.compile cannot trace.
    Case("from_coo", _from_coo, _add_pairs, lambda m, n, z: ((2 * z,),), compiles=False),
    Case("from_coo batch", _from_coo, _add_pairs, lambda m, n, z: ((2, 2 * z),), compiles=False),
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
