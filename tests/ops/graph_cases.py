"""Rows of the table: features gathered at the entries of a pattern, and reduced over its rows and columns."""

import numpy as np
import torch
from ops.case import Case
from reference import coordinates
from torch import Tensor

import learnsolve as ls
from learnsolve import ops

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


CASES = []
for by in BY:
    columns = by == "column"
    CASES += [
        Case(
            f"gather {by}",
            lambda P, x, by=by: ops.gather(x, P, by),
            dense_gather(by),
            lambda m, n, z, columns=columns: ((n if columns else m, 3),),
        ),
        Case(
            f"gather {by}, batch",
            lambda P, x, by=by: ops.gather(x, P, by),
            dense_gather(by),
            lambda m, n, z, columns=columns: ((2, 2, n if columns else m, 1),),
        ),
        Case(
            f"gather {by}, vector",
            lambda P, x, by=by: ops.gather(x, P, by),
            dense_gather(by),
            lambda m, n, z, columns=columns: ((n if columns else m,),),
        ),
        Case(
            f"segment_sum {by}", lambda P, e, by=by: ops.segment_sum(e, P, by), dense_sum(by), at_entries(3)
        ),
        Case(
            f"segment_sum {by}, batch",
            lambda P, e, by=by: ops.segment_sum(e, P, by),
            dense_sum(by),
            at_entries(2, 2),
        ),
        Case(
            f"segment_mean {by}",
            lambda P, e, by=by: ops.segment_mean(e, P, by),
            dense_sum(by, lambda n: 1 / max(n, 1)),
            at_entries(2),
        ),
        Case(
            f"segment_mean {by}, vector",
            lambda P, e, by=by: ops.segment_mean(e, P, by),
            dense_sum(by, lambda n: 1 / max(n, 1)),
            lambda m, n, z: ((z,),),
        ),
    ]
    for name, shape in (("vector", ()), ("features", (3,)), ("batch", (2, 2, 1))):
        CASES += [
            Case(
                f"segment_max {by}, {name}",
                lambda P, e, by=by: ops.segment_max(e, P, by),
                dense_max(by),
                make=distinct(shape),
            ),
            Case(
                f"segment_softmax {by}, {name}",
                lambda P, e, by=by: ops.segment_softmax(e, P, by),
                dense_softmax(by),
                make=distinct(shape),
            ),
        ]
