"""Rows of the table: sums, scalings, parts and arrangements of matrices."""

import functools
from collections.abc import Callable

import numpy as np
import scipy.sparse
import torch
from ops.case import Case
from reference import coordinates, densify, pattern_of
from torch import Tensor

import learnsolve as ls
from learnsolve import CSR, ops
from learnsolve.matrix.plain import plain_tensors


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


CASES = [
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
    Case("-A", lambda P, v: (-CSR(v, P)).values, lambda P, v: -v, ONE, positive=lambda P, v: v),
    # parts and arrangements
    of_one("tril", ops.tril, torch.tril),
    of_one("triu 1 batch", lambda A: A.triu(1), lambda D: torch.triu(D, 1), BATCH),
    of_one("diagonal -1", lambda A: A.diagonal(-1), _band_below),
    Case("trace", lambda P, v: CSR(v, P).trace(), lambda P, v: _diagonal(P, v).sum(-1), BATCH),
    Case(
        "diag",
        lambda P, d: ops.diag(d, -1).to_dense(),
        lambda P, d: torch.diag_embed(d, -1),
        lambda m, n, z: ((2, m),),
        compiles=False,
    ),
    Case(
        "real_form",
        lambda P, v, w: ops.real_form(CSR(v, P), CSR(w, P)).values,
        _real_form(lambda P: P),
        TWO,
        positive=_real_form(lambda P: P, 1),
    ),
    Case(
        "real_form, two patterns, batch",
        lambda P, v, w: ops.real_form(CSR(v, P), CSR(w, _flipped(P))).values,
        _real_form(_flipped),
        lambda m, n, z: ((z,), (2, z)),
        positive=_real_form(_flipped, 1),
        compiles=False,
    ),
    Case("kron", lambda P, v, w: ops.kron(CSR(v, P), CSR(w, P)).values, _outer_in_order, TWO),
    Case(
        "kron batch",
        lambda P, v, w: ops.kron(CSR(v, P), CSR(w, P)).values,
        _outer_in_order,
        lambda m, n, z: ((2, z), (z,)),
    ),
    of_two("hstack", lambda A, B: ops.hstack([A, B, A]), lambda D, E: torch.cat([D, E, D], -1)),
    Case(
        "vstack",
        lambda P, v, w: ops.vstack([CSR(v, P), CSR(w, P)]).values,
        lambda P, v, w: torch.cat([v, w.expand(v.shape)], -1),
        lambda m, n, z: ((2, z), (z,)),
    ),
    of_two(
        "block_diag",
        lambda A, B: ops.block_diag([A, B.T]),
        lambda D, E: pad(D, (0, D.shape[-2], 0, D.shape[-1])) + pad(E.mT, (D.shape[-1], 0, D.shape[-2], 0)),
    ),
    of_two(
        "block",
        lambda A, B: ops.block([[None, A], [B.T, None], [None, B]]),
        lambda D, E: torch.cat([pad(D, (len(D), 0)), pad(E.mT, (0, E.shape[1])), pad(E, (len(E), 0))]),
    ),
    of_one("A[slice, slice]", lambda A: A[1:, ::-2], lambda D: D[1:].flip(-1)[:, ::2]),
    of_one(
        "A[rows][:, columns]",
        lambda A: A[_index(A.shape[0])][:, _index(A.shape[1])],
        lambda D: _at(D, _index(D.shape[-2]), _index(D.shape[-1])),
        BATCH,
        compiles=False,
    ),
    Case(
        "A[rows, columns]",
        lambda P, v: CSR(v, P)[np.tile(coordinates(P)[0], 2), np.tile(coordinates(P)[1], 2)],
        lambda P, v: torch.cat([v, v], -1),
        ONE,
        compiles=False,
    ),
    of_one(
        "permute",
        lambda A: ops.permute(A, np.arange(A.shape[0])[::-1], np.roll(np.arange(A.shape[1]), 2)),
        lambda D: D.flip(-2).roll(2, -1),
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
]
