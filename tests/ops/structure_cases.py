"""Rows of the table: sums, scalings, parts and arrangements of matrices."""

import functools
from collections.abc import Callable

import numpy as np
import scipy.sparse
import torch
from ops.case import Case
from reference import coordinates, densify, on_pattern, pattern_of, transpose_order
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

CASES = [
    # structure
    Case("transpose", lambda P, v: CSR(v, P).T.values, lambda P, v: v[..., transpose_order(P)], ONE),
    Case("transpose batch", lambda P, v: CSR(v, P).T.values, lambda P, v: v[..., transpose_order(P)], BATCH),
    Case("to_dense", lambda P, v: CSR(v, P).to_dense(), densify, ONE),
    Case("to_dense batch", lambda P, v: CSR(v, P).to_dense(), densify, BATCH),
    Case("diagonal", lambda P, v: CSR(v, P).diagonal(), _diagonal, ONE),
    Case("diagonal batch", lambda P, v: CSR(v, P).diagonal(), _diagonal, BATCH),
    Case("sum", lambda P, v: CSR(v, P).sum(), lambda P, v: densify(P, v).sum((-2, -1)), ONE),
    Case("sum 0", lambda P, v: CSR(v, P).sum(0), lambda P, v: densify(P, v).sum(-2), ONE),
    Case("sum 1", lambda P, v: CSR(v, P).sum(1), lambda P, v: densify(P, v).sum(-1), ONE),
    Case("sum -1 batch", lambda P, v: CSR(v, P).sum(-1), lambda P, v: densify(P, v).sum(-1), BATCH),
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
    # arithmetic
    Case("A + B", _add, lambda P, v, w: v + w, TWO),
    Case(
        "A - B",
        lambda P, v, w: (CSR(v, P) - CSR(w, P)).values,
        lambda P, v, w: v - w,
        TWO,
        positive=lambda P, v, w: v + w,
    ),
    Case("A * B", lambda P, v, w: (CSR(v, P) * CSR(w, P)).values, lambda P, v, w: v * w, TWO),
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
    Case("tril", lambda P, v: ops.tril(CSR(v, P)).to_dense(), lambda P, v: torch.tril(densify(P, v)), ONE),
    Case(
        "triu 1 batch",
        lambda P, v: CSR(v, P).triu(1).to_dense(),
        lambda P, v: torch.triu(densify(P, v), 1),
        BATCH,
    ),
    Case(
        "diagonal -1",
        lambda P, v: CSR(v, P).diagonal(-1),
        lambda P, v: (
            torch.diagonal(torch.nn.functional.pad(densify(P, v), (1, 0)), dim1=-2, dim2=-1)[..., 1:]
            if min(P.shape[0] - 1, P.shape[1]) > 0
            else v.sum(-1, keepdim=True)[..., :0]
        ),
        ONE,
    ),
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
    Case(
        "hstack",
        lambda P, v, w: ops.hstack([CSR(v, P), CSR(w, P), CSR(v, P)]).to_dense(),
        lambda P, v, w: torch.cat([densify(P, v), densify(P, w), densify(P, v)], -1),
        TWO,
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
        TWO,
    ),
    Case(
        "block",
        lambda P, v, w: ops.block([[None, CSR(v, P)], [CSR(w, P).T, None], [None, CSR(w, P)]]).to_dense(),
        lambda P, v, w: torch.cat(
            [
                torch.nn.functional.pad(densify(P, v), (P.shape[0], 0)),
                torch.nn.functional.pad(densify(P, w).mT, (0, P.shape[1])),
                torch.nn.functional.pad(densify(P, w), (P.shape[0], 0)),
            ],
            -2,
        ),
        TWO,
    ),
    Case(
        "A[slice, slice]",
        lambda P, v: CSR(v, P)[1:, ::-2].to_dense(),
        lambda P, v: densify(P, v)[..., 1:, torch.arange(P.shape[1]).flip(0)[::2]],
        ONE,
    ),
    Case(
        "A[rows][:, columns]",
        lambda P, v: CSR(v, P)[_index(P.shape[0])][:, _index(P.shape[1])].to_dense(),
        lambda P, v: densify(P, v)[..., torch.as_tensor(_index(P.shape[0])), :][
            ..., torch.as_tensor(_index(P.shape[1]))
        ],
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
    Case(
        "permute",
        lambda P, v: ops.permute(
            CSR(v, P), np.arange(P.shape[0])[::-1], np.roll(np.arange(P.shape[1]), 2)
        ).to_dense(),
        lambda P, v: densify(P, v).flip(-2)[..., torch.as_tensor(np.roll(np.arange(P.shape[1]), 2))],
        ONE,
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
