"""A row of the table of differentiable operations, for which every test of test_contract.py runs.

Each operation is written twice, on a `SparsityPattern` with the library and on dense matrices with torch
alone. Most are sums of products of their inputs with coefficients +1 or -1. Hence the dense form, with every
sign made +, evaluated at |inputs| gives the sums sum |a||x| of the error bound, and at ones the number of
terms; the same holds for its derivatives. Rows with inputs of their own (`make`) are not such sums: they have
a tolerance, and other files test their values.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from reference import coordinates, densify, inputs_for, on_pattern, pattern_of, small_pattern, transpose_order
from torch import Tensor

import learnsolve as ls
from learnsolve import CSR, ops
from learnsolve.matrix.cache import plain_tensors

SHAPES = {  # batch axes of the values, shape of b for n = 5
    "vector": ((), (5,)),
    "one column": ((), (5, 1)),
    "columns": ((), (5, 3)),
    "no column": ((), (5, 0)),
    "batch of b": ((), (2, 5, 3)),
    "batch of values": ((2,), (5, 3)),
    "batch of values, vector": ((2,), (5,)),
    "batch of both": ((2,), (2, 5, 3)),
    "broadcast batches": ((2, 1), (3, 5, 2)),
    "empty batch": ((0,), (5,)),
}
EMPTY = ("no column", "empty batch")
FULL = [shape for shape in SHAPES if shape not in EMPTY]


@dataclass(frozen=True)
class Case:
    """An operation: f(pattern, *inputs) by the library and by dense torch."""

    name: str
    sparse: Callable[..., Tensor]
    dense: Callable[..., Tensor]
    shapes: Callable[[int, int, int], tuple] | None = None  # of the inputs, from m, n, nnz
    positive: Callable[..., Tensor] | None = None  # `dense` with every sign +, if that is another function
    compiles: bool = True
    pattern: Callable[[], ls.SparsityPattern] = small_pattern  # that derivatives are checked on
    make: Callable[[ls.SparsityPattern, int], list[Tensor]] | None = None  # inputs, from a pattern and a seed
    tolerance: float = 1e-12
    bits: bool = True  # that stay the same whatever the layout of an operand
    square: bool = False  # the matrix must be: of others the leading block is taken

    @property
    def majorant(self) -> Callable[..., Tensor]:
        return self.positive or self.dense

    def inputs(
        self,
        P: ls.SparsityPattern,
        dtype: torch.dtype = torch.float64,
        requires_grad: bool = False,
        seed: int = 0,
    ) -> list[Tensor]:
        if self.make is None:
            assert self.shapes is not None
            return inputs_for(self.shapes(*P.shape, P.nnz), dtype, requires_grad, seed)
        return [t.detach().to(dtype).requires_grad_(requires_grad) for t in self.make(P, seed)]


def moved(case: Case, device: str) -> Case:
    """The same operation on `device`, for inputs and results on the CPU."""

    def sparse(P, *inputs):
        return case.sparse(P.to(device), *(t.to(device) for t in inputs)).to("cpu")

    return dataclasses.replace(case, name=f"{case.name}, {device}", sparse=sparse)


CROSS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
SKEW = ((-7, 3), (0, 1), (2, -1), (0, 1), (0, -40))  # beyond small grids; one offset comes twice
LINE = ((0,), (3,), (-1,), (-100,))
SPACE = ((0, 0, 0), (1, -1, 2), (-1, 0, 1), (0, 5, 0))


def box(*sizes: int) -> tuple[tuple[int, ...], ...]:
    """The offsets of a centered window, in the order of its places."""
    return tuple(tuple(int(i) - w // 2 for i, w in zip(at, sizes, strict=True)) for at in np.ndindex(*sizes))


@functools.lru_cache(maxsize=512)
@plain_tensors()
def neighbors(grid: tuple[int, ...], offsets: tuple, boundary: str | tuple) -> tuple[Tensor, Tensor]:
    """Place of each neighbor, 0 where there is none, and whether there is one: both (K, n)."""
    words = (boundary,) * len(grid) if isinstance(boundary, str) else boundary
    shape = (len(offsets), math.prod(grid))
    place, inside = np.zeros(shape, dtype=np.int64), np.ones(shape, dtype=bool)
    points = np.indices(grid).reshape(len(grid), -1)
    for a, (size, word) in enumerate(zip(grid, words, strict=True)):
        at = points[a] + np.array([o[a] for o in offsets])[:, None]
        at = at % size if word == "periodic" and size else at
        inside &= (at >= 0) & (at < size)
        place = place * size + at
    return torch.as_tensor(np.where(inside, place, 0)), torch.as_tensor(inside)


def dense_stencil(c: Tensor, x: Tensor, offsets: Sequence, boundary: str | tuple = "dirichlet") -> Tensor:
    """sum_k c_k(i) x_{i + o_k} for c (K,), (..., K, *grid) or (..., K, 1, ..., 1)."""
    d = len(offsets[0])
    place, inside = neighbors(tuple(x.shape[-d:]), tuple(offsets), boundary)
    c = c.unflatten(-1, (len(offsets), *(1,) * d)) if c.dim() == 1 else c
    xs = torch.where(inside, x.flatten(-d)[..., place], 0).unflatten(-1, x.shape[-d:])
    return (c * xs).sum(-d - 1)


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


PRODUCT_ROWS = [
    # spmm
    Case("spmm vector", _spmm, _dense_spmm, lambda m, n, z: ((z,), (n,))),
    Case("spmm matrix", _spmm, _dense_spmm, lambda m, n, z: ((z,), (n, 3))),
    Case("spmm one column", _spmm, _dense_spmm, lambda m, n, z: ((z,), (n, 1))),
    Case("spmm transpose vector", _spmm_transpose, _dense_spmm_transpose, lambda m, n, z: ((z,), (m,))),
    Case("spmm transpose matrix", _spmm_transpose, _dense_spmm_transpose, lambda m, n, z: ((z,), (m, 2))),
    Case("spmm batch of x", _spmm, _dense_spmm, lambda m, n, z: ((z,), (2, n, 3))),
    Case("spmm batch of values", _spmm, _dense_spmm, lambda m, n, z: ((2, z), (n, 3))),
    Case("spmm batch of both", _spmm, _dense_spmm, lambda m, n, z: ((2, z), (2, n, 3))),
    Case("spmm batch of values, vector", _spmm, lambda P, v, x: _vector_product(densify(P, v), x),
        lambda m, n, z: ((2, z), (n,))),
    Case("spmm transpose batch of values", _spmm_transpose, _dense_spmm_transpose,
        lambda m, n, z: ((2, z), (m, 2))),
    Case("spmm broadcast batches", _spmm, _dense_spmm, lambda m, n, z: ((3, 1, z), (2, n, 2))),
    Case("spmm two batch axes of x", _spmm, _dense_spmm, lambda m, n, z: ((z,), (2, 2, n, 2))),
    Case("A @ X", lambda P, v, x: CSR(v, P) @ x, _dense_spmm, lambda m, n, z: ((z,), (n, 2)), compiles=False),
    Case("x @ A", lambda P, v, x: x @ CSR(v, P), lambda P, v, x: x @ densify(P, v),
        lambda m, n, z: ((z,), (m,)), compiles=False),
    Case("X @ A", lambda P, v, x: x @ CSR(v, P), lambda P, v, x: x @ densify(P, v),
        lambda m, n, z: ((z,), (2, m)), compiles=False),
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
    Case("A @ B", lambda P, v, w: (CSR(v, P) @ CSR(w, P.T)).values, _dense_spgemm,
        lambda m, n, z: ((z,), (z,)), compiles=False),
    # stencils, on grids whose sizes are the pattern's
    Case("stencil line", lambda P, c, x: ops.stencil(c, x, offsets=LINE, boundary="periodic"),
        lambda P, c, x: dense_stencil(c, x, LINE, "periodic"), lambda m, n, z: ((4,), (m,))),
    Case("stencil window", lambda P, c, x: ops.stencil(c, x),
        lambda P, c, x: dense_stencil(c.flatten(), x, box(3, 5)), lambda m, n, z: ((3, 5), (m, n))),
    Case("stencil space, batch of x",
        lambda P, c, x: ops.stencil(c, x, offsets=SPACE, boundary=("dirichlet", "periodic", "dirichlet")),
        lambda P, c, x: dense_stencil(c, x, SPACE, ("dirichlet", "periodic", "dirichlet")),
        lambda m, n, z: ((4,), (2, 2, m, n))),
    Case("stencil variable", lambda P, c, x: ops.stencil(c, x, offsets=CROSS),
        lambda P, c, x: dense_stencil(c, x, CROSS), lambda m, n, z: ((5, m, n), (m, n))),
    Case("stencil variable, periodic, batch of both",
        lambda P, c, x: ops.stencil(c, x, offsets=SKEW, boundary="periodic"),
        lambda P, c, x: dense_stencil(c, x, SKEW, "periodic"), lambda m, n, z: ((2, 5, m, n), (2, m, n))),
    Case("stencil batch of constants, broadcast", lambda P, c, x: ops.stencil(c, x, offsets=SKEW),
        lambda P, c, x: dense_stencil(c, x, SKEW), lambda m, n, z: ((3, 1, 5, 1, 1), (2, m, n))),
    *(
        Case(
            f"stencil batch of {b} and {x}",
            lambda P, c, x: ops.stencil(c, x, offsets=CROSS),
            lambda P, c, x: dense_stencil(c, x, CROSS),
            lambda m, n, z, b=b, x=x: ((b, 5, m, n), (x, m, n)),
        )
        for b, x in ((1, 2), (2, 1))
    ),
    Case("stencil_matrix",
        lambda P, c, x: ops.spmm(ops.stencil_matrix(c, P.shape, offsets=SKEW, boundary="periodic"), x),
        lambda P, c, x: dense_stencil(c, x.unflatten(-1, P.shape), SKEW, "periodic").flatten(-2),
        lambda m, n, z: ((5,), (m * n,)), compiles=False),
    Case("stencil_matrix variable, batch",
        lambda P, c, x: ops.spmm(ops.stencil_matrix(c, P.shape, offsets=CROSS), x),
        lambda P, c, x: dense_stencil(c, x.unflatten(-1, P.shape), CROSS).flatten(-2),
        lambda m, n, z: ((2, 5, m, n), (m * n,)), compiles=False),
]  # fmt: skip


BY = ("row", "column")


def segments(P: ls.SparsityPattern, by: str) -> list[Tensor]:
    """The entries of each row or column, by NumPy alone."""
    of_entry = coordinates(P)[BY.index(by)]
    return [torch.as_tensor(np.flatnonzero(of_entry == i)) for i in range(P.shape[BY.index(by)])]


def with_features(f):
    """f for features (..., nnz, f), also for those of shape (nnz,)."""

    def g(P, e):
        return f(P, e.unsqueeze(-1)).squeeze(-1) if e.dim() == 1 else f(P, e)

    return g


def stacked(rows: list[Tensor], e: Tensor) -> Tensor:
    return torch.stack(rows, -2) if rows else e[..., :0, :]


def dense_gather(by):
    return with_features(lambda P, x: x[..., torch.as_tensor(coordinates(P)[BY.index(by)]), :])


def dense_sum(by, scale=lambda n: 1.0):
    def sums(P, e):
        S = segments(P, by)
        return stacked([e[..., s, :].sum(-2) * scale(len(s)) for s in S], e)

    return with_features(sums)


def dense_max(by):
    def largest(P, e):
        rows = []
        for s in segments(P, by):
            rows.append(e[..., s, :].max(-2).values if len(s) else e[..., s, :].sum(-2))
        return stacked(rows, e)

    return with_features(largest)


def dense_softmax(by):
    def softmax(P, e):
        parts = [torch.softmax(e[..., s, :], -2) for s in segments(P, by) if len(s)]
        if not parts:
            return e
        order = torch.cat(segments(P, by)).argsort()
        return torch.cat(parts, -2)[..., order, :]

    return with_features(softmax)


def distinct(shape):
    """Inputs whose numbers are far from one another: a maximum is differentiable there."""

    def make(P, seed):
        size = (*shape[:-1], P.nnz, shape[-1]) if shape else (P.nnz,)
        order = torch.from_numpy(np.random.default_rng(seed).permutation(int(np.prod(size))))
        order = order.to(torch.get_default_device())
        return [(order.double() / 3 - 2).reshape(size)]

    return make


def at_entries(*tail):
    return lambda m, n, z: (((*tail[:-1], z, *tail[-1:])),)


def by_segments(function, by):
    return lambda P, t: function(t, P, by)


GRAPH_ROWS = []
for by in BY:
    for name, lead, tail in (("", (), (3,)), (", batch", (2, 2), (1,)), (", vector", (), ())):
        GRAPH_ROWS += [
            Case(f"gather {by}{name}", by_segments(ops.gather, by), dense_gather(by),
                lambda m, n, z, by=by, lead=lead, tail=tail: ((*lead, n if by == "column" else m, *tail),)),
        ]  # fmt: skip
    mean = dense_sum(by, lambda n: 1 / max(n, 1))
    GRAPH_ROWS += [
        Case(f"segment_sum {by}", by_segments(ops.segment_sum, by), dense_sum(by), at_entries(3)),
        Case(f"segment_sum {by}, batch", by_segments(ops.segment_sum, by), dense_sum(by), at_entries(2, 2)),
        Case(f"segment_mean {by}", by_segments(ops.segment_mean, by), mean, at_entries(2)),
        Case(f"segment_mean {by}, vector", by_segments(ops.segment_mean, by), mean, at_entries()),
    ]
    for name, shape in (("vector", ()), ("features", (3,)), ("batch", (2, 2, 1))):
        for function, dense in ((ops.segment_max, dense_max), (ops.segment_softmax, dense_softmax)):
            of = f"{function.__name__} {by}, {name}"
            GRAPH_ROWS += [Case(of, by_segments(function, by), dense(by), make=distinct(shape))]


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


def _add(P, v, w):
    return (CSR(v, P) + CSR(w, P)).values


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


def _real_form(other: Callable, sign: int = -1) -> Callable:
    """[[Re, sign Im], [Im, Re]], from dense blocks."""

    def dense(P, v, w):
        (i, j), (k, h), (m, n) = coordinates(P), coordinates(other(P)), P.shape
        rows, columns = np.concatenate((i, k, k + m, i + m)), np.concatenate((j, h + n, h, j + n))
        order = np.lexsort((columns, rows))
        v, w = (t.expand(*torch.broadcast_shapes(v.shape[:-1], w.shape[:-1]), -1) for t in (v, w))
        re, im = densify(P, v), densify(other(P), w)
        C = torch.cat((torch.cat((re, sign * im), -1), torch.cat((im, re), -1)), -2)
        return C[..., torch.as_tensor(rows[order]), torch.as_tensor(columns[order])]

    return dense


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


# Inputs: the values of one matrix, of a batch, of two matrices with one pattern.
ONE, BATCH, TWO = lambda m, n, z: ((z,),), lambda m, n, z: ((2, z),), lambda m, n, z: ((z,), (z,))
pad = torch.nn.functional.pad


def of_one(name: str, sparse: Callable, dense: Callable, shapes=ONE, **options) -> Case:
    """A function of a matrix and of other tensors, sparse and dense. A matrix as its result is made dense."""

    def f(P, v, *others):
        made = sparse(CSR(v, P), *others)
        return made.to_dense() if isinstance(made, CSR) else made

    return Case(name, f, lambda P, v, *others: dense(densify(P, v), *others), shapes, **options)


def of_two(name: str, sparse: Callable, dense: Callable, **options) -> Case:
    """A matrix from two with one pattern."""
    return Case(
        name,
        lambda P, v, w: sparse(CSR(v, P), CSR(w, P)).to_dense(),
        lambda P, v, w: dense(densify(P, v), densify(P, w)),
        TWO,
        **options,
    )


def _band_below(D):
    """The diagonal below the main one."""
    if min(D.shape[-2] - 1, D.shape[-1]) > 0:
        return torch.diagonal(pad(D, (1, 0)), dim1=-2, dim2=-1)[..., 1:]
    return D.sum((-2, -1)).unsqueeze(-1)[..., :0]


def _at(D, rows, columns):
    return D[..., torch.as_tensor(rows), :][..., torch.as_tensor(columns)]


STRUCTURE_ROWS = [
    # structure
    of_one("transpose", lambda A: A.T, lambda D: D.mT),
    of_one("transpose batch", lambda A: A.T, lambda D: D.mT, BATCH),
    of_one("to_dense", lambda A: A, lambda D: D),
    of_one("to_dense batch", lambda A: A, lambda D: D, BATCH),
    Case("diagonal", lambda P, v: CSR(v, P).diagonal(), _diagonal, ONE),
    Case("diagonal batch", lambda P, v: CSR(v, P).diagonal(), _diagonal, BATCH),
    of_one("sum", lambda A: A.sum(), lambda D: D.sum((-2, -1))),
    of_one("sum 0", lambda A: A.sum(0), lambda D: D.sum(-2)),
    of_one("sum 1", lambda A: A.sum(1), lambda D: D.sum(-1)),
    of_one("sum -1 batch", lambda A: A.sum(-1), lambda D: D.sum(-1), BATCH),
    *(
        of_one(
            f"scale_{side}{' batch' if batch else ''}",
            lambda A, d, side=side: getattr(A, f"scale_{side}")(d),
            lambda D, d, axis=axis: D * d.unsqueeze(axis),
            lambda m, n, z, batch=batch, axis=axis: ((z,), (*batch, m if axis == -1 else n)),
        )
        for side, axis, batch in (("rows", -1, ()), ("columns", -2, ()), ("rows", -1, (2,)))
    ),
    # arithmetic
    of_two("A + B", lambda A, B: A + B, lambda D, E: D + E),
    of_two("A - B", lambda A, B: A - B, lambda D, E: D - E, positive=lambda P, v, w: densify(P, v + w)),
    of_two("A * B", lambda A, B: A * B, lambda D, E: D * E),
    Case("s * A", lambda P, v, s: (s * CSR(v, P)).values, lambda P, v, s: s * v, lambda m, n, z: ((z,), ())),
    Case("A * s", lambda P, v, s: (CSR(v, P) * s).values, lambda P, v, s: s * v,
        lambda m, n, z: ((2, z), (2, 1))),
    Case("A / s", lambda P, v, s: (CSR(v, P) / s).values, lambda P, v, s: v / s, lambda m, n, z: ((z,), ()),
        compiles=False),
    Case("-A", lambda P, v: (-CSR(v, P)).values, lambda P, v: -v, ONE, positive=lambda P, v: v),
    # parts and arrangements
    of_one("tril", ops.tril, torch.tril),
    of_one("triu 1 batch", lambda A: A.triu(1), lambda D: torch.triu(D, 1), BATCH),
    of_one("diagonal -1", lambda A: A.diagonal(-1), _band_below),
    Case("trace", lambda P, v: CSR(v, P).trace(), lambda P, v: _diagonal(P, v).sum(-1), BATCH),
    Case("diag", lambda P, d: ops.diag(d, -1).to_dense(), lambda P, d: torch.diag_embed(d, -1),
        lambda m, n, z: ((2, m),), compiles=False),
    Case("real_equivalent", lambda P, v, w: ops.real_equivalent(CSR(v, P), CSR(w, P)).values,
        _real_form(lambda P: P), TWO, positive=_real_form(lambda P: P, 1)),
    Case("real_equivalent, two patterns, batch",
        lambda P, v, w: ops.real_equivalent(CSR(v, P), CSR(w, _flipped(P))).values, _real_form(_flipped),
        lambda m, n, z: ((z,), (2, z)), positive=_real_form(_flipped, 1), compiles=False),
    Case("kron", lambda P, v, w: ops.kron(CSR(v, P), CSR(w, P)).values, _outer_in_order, TWO),
    Case("kron batch", lambda P, v, w: ops.kron(CSR(v, P), CSR(w, P)).values, _outer_in_order,
        lambda m, n, z: ((2, z), (z,))),
    of_two("hstack", lambda A, B: ops.hstack([A, B, A]), lambda D, E: torch.cat([D, E, D], -1)),
    Case("vstack", lambda P, v, w: ops.vstack([CSR(v, P), CSR(w, P)]).values,
        lambda P, v, w: torch.cat([v, w.expand(v.shape)], -1), lambda m, n, z: ((2, z), (z,))),
    of_two("block_diag", lambda A, B: ops.block_diag([A, B.T]),
        lambda D, E: pad(D, (0, D.shape[-2], 0, D.shape[-1])) + pad(E.mT, (D.shape[-1], 0, D.shape[-2], 0))),
    of_two("block", lambda A, B: ops.block([[None, A], [B.T, None], [None, B]]),
        lambda D, E: torch.cat([pad(D, (len(D), 0)), pad(E.mT, (0, E.shape[1])), pad(E, (len(E), 0))])),
    of_one("A[slice, slice]", lambda A: A[1:, ::-2], lambda D: D[1:].flip(-1)[:, ::2]),
    of_one("A[rows][:, columns]", lambda A: A[_index(A.shape[0])][:, _index(A.shape[1])],
        lambda D: _at(D, _index(D.shape[-2]), _index(D.shape[-1])), BATCH, compiles=False),
    Case("A[rows, columns]",
        lambda P, v: CSR(v, P)[np.tile(coordinates(P)[0], 2), np.tile(coordinates(P)[1], 2)],
        lambda P, v: torch.cat([v, v], -1), ONE, compiles=False),
    of_one("permute",
        lambda A: ops.permute(A, np.arange(A.shape[0])[::-1], np.roll(np.arange(A.shape[1]), 2)),
        lambda D: D.flip(-2).roll(2, -1), compiles=False),
    # Two patterns: compiled in test_sums.py, where the second one is made outside of the trace.
    Case("add union", lambda P, v, w, s, t: ops.add(CSR(v, P), CSR(w, _flipped(P)), alpha=s, beta=t).values,
        _dense_sum(_flipped), lambda m, n, z: ((z,), (z,), (), (1,)), compiles=False),
    Case("add contained", lambda P, v, w: ops.add(CSR(v, P), CSR(w, _every_second(P))).values,
        _dense_sum(_every_second), lambda m, n, z: ((z,), ((z + 1) // 2,)), compiles=False),
    Case("add union batch", lambda P, v, w, s: ops.add(CSR(v, P), CSR(w, _flipped(P)), alpha=s).values,
        _dense_sum(_flipped), lambda m, n, z: ((2, z), (z,), (2, 1)), compiles=False),
    Case("add one pattern", lambda P, v, w, s, t: ops.add(CSR(v, P), CSR(w, P), alpha=s, beta=t).values,
        lambda P, v, w, s, t: s * v + t * w, lambda m, n, z: ((z,), (2, z), (2, 1), (2, 1))),
    Case("A - B, two patterns", lambda P, v, w: (CSR(w, _every_second(P)) - CSR(v, P)).values,
        lambda P, v, w: _dense_sum(_every_second)(P, -v, w), lambda m, n, z: ((z,), ((z + 1) // 2,)),
        positive=_dense_sum(_every_second), compiles=False),
    Case("A * B, two patterns", lambda P, v, w: (CSR(v, P) * CSR(w, _flipped(P))).values, _dense_common,
        lambda m, n, z: ((z,), (2, z)), compiles=False),
    # The pattern that comes out depends on the indices, which torch.compile cannot trace.
    Case("from_coo", _from_coo, _add_pairs, lambda m, n, z: ((2 * z,),), compiles=False),
    Case("from_coo batch", _from_coo, _add_pairs, lambda m, n, z: ((2, 2 * z),), compiles=False),
]  # fmt: skip
