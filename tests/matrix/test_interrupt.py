"""Long analyses let Python handle signals, an interrupt above all."""

import functools
import os
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reference import grid

import learnsolve as ls
from learnsolve import _analysis

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a timer that sends signals")

n, cols = 1_000_000, 1_000_006


@functools.cache
def arrays():
    """A line of points, each coupled with the six next: seven million entries."""
    d = SimpleNamespace()
    d.ptr = 7 * np.arange(n + 1)
    d.idx = (np.arange(n)[:, None] + np.arange(7)).reshape(-1)
    d.square = np.minimum(d.idx, n - 1)  # repeats columns in the last rows, which no analysis minds
    d.lower = (np.arange(n)[:, None] - np.arange(6, -1, -1)).clip(0).reshape(-1)
    d.products = _analysis.count_products(d.square, d.ptr)
    d.perm = _analysis.transpose(d.ptr, d.idx, cols)[2]
    d.entry = np.arange(7 * n)
    d.shuffled = np.random.default_rng(0).permutation(7 * n)
    d.dominant = np.where(np.arange(7 * n) % 7, 0.1, 1.0)
    d.values, d.diagonal = np.where(np.arange(7 * n) % 7, -0.1, 1.0), np.ones(n)
    d.coarse = (np.arange(n) % 3 == 0).astype(np.uint8)
    d.of = np.arange(n) // 3
    band = np.arange(n)[:, None] + np.arange(-3, 4)
    inside = (band >= 0) & (band < n)
    d.middle = np.append(0, np.cumsum(inside.sum(1))), band[inside]
    d.level = np.arange(n), np.full(n, -1), np.repeat(d.lower, 2)
    return d


ANALYSES = {  # name to arguments
    "validate": lambda d: (d.ptr, d.idx, cols),
    "row_indices": lambda d: (d.ptr, len(d.idx)),
    "symmetry_of": lambda d: (d.middle[0], d.middle[1], np.ones(len(d.middle[1]))),
    "transpose": lambda d: (d.ptr, d.idx, cols),
    "diagonal_positions": lambda d: (d.ptr, d.idx, cols),
    "row_blocks": lambda d: (d.ptr, d.idx, None, 8192),
    "merge_patterns": lambda d: (d.ptr, d.idx, d.ptr, d.idx),
    "common_positions": lambda d: (d.ptr, d.idx, d.ptr, d.idx),
    "sort_triples": lambda d: (d.square[d.shuffled], d.idx, n),
    "greedy_coloring": lambda d: (d.ptr, d.square, d.ptr, d.square, True),
    "column_coloring": lambda d: (d.ptr, d.square, d.ptr, d.square, 0),
    "symmetric_coloring": lambda d: (d.ptr, d.square, d.entry, 1, True),
    "substitution": lambda d: (d.ptr, d.square, d.entry, d.square),
    "as_column_coloring": lambda d: (d.ptr, d.square, np.arange(n), n),
    "complete_fill": lambda d: (*d.middle, np.arange(n), 2**40),
    "match_rows": lambda d: (d.ptr, d.lower, n),
    "count_products": lambda d: (d.square, d.ptr),
    "product_pattern": lambda d: (d.ptr, d.square, d.ptr, d.idx, cols, 2**40, 1),
    "positions_of_products": lambda d: (
        *(d.ptr, d.square, d.ptr, d.idx, cols),
        *(d.ptr, d.idx, d.products, 1),
    ),
    "row_product_blocks": lambda d: (d.ptr, d.square, d.ptr, d.ptr, None, 8192),
    "column_product_blocks": lambda d: (d.ptr, d.perm, d.ptr, None, None, 8192),
    "product_starts": lambda d: (d.square, d.ptr, d.entry),
    "triangle": lambda d: (d.ptr, d.lower, None, False, 0),
    "triangle_blocks": lambda d: (d.ptr, d.lower, None),
    "level_schedule": lambda d: (d.ptr, d.lower, False),
    "elimination_products": lambda d: (d.ptr, d.square, d.ptr[:-1], 0, -1),
    "elimination_plan": lambda d: (d.ptr, d.square, d.ptr[:-1], 0, True, 0),
    "level_fill": lambda d: (d.ptr, d.square, 1),
    "threshold_pattern": lambda d: (d.ptr, d.square, d.dominant, False, 2, 1e-3),
    "aggregate": lambda d: (d.ptr, d.square, d.values, 1, 0.25),
    "orthonormalize": lambda d: (d.of, 1, n // 3 + 1, np.ones((n, 4))),
    "smoothed_prolongation": lambda d: (
        *(d.ptr, d.square, d.values, d.of, 1, n // 3 + 1),
        *(np.ones((n, 1)), 0.5),
    ),
    "arnoldi": lambda d: (d.ptr, d.square, d.values, d.diagonal, 3, True),
    "classical_splitting": lambda d: (d.ptr, d.square, d.values, 0.25, False, True),
    "interpolation": lambda d: (
        *(d.ptr, d.square, d.values, d.diagonal),
        *(np.ones(7 * n, np.uint8), d.coarse, 4),
    ),
    "elimination_levels": lambda d: (d.level[0], d.level[1], d.ptr, d.level[2], n),
}


def test_no_analysis_is_forgotten():
    assert set(ANALYSES) == {name for name in dir(_analysis) if not name.startswith("_")}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "sort_triples")) for name in ANALYSES],
)
def test_signals_are_handled_during_an_analysis(name):
    """One that waits for the end is handled once."""
    handled, arguments = [], ANALYSES[name](arrays())
    before = signal.signal(signal.SIGALRM, lambda *_: handled.append(time.perf_counter()))
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        start = len(handled)
        getattr(_analysis, name)(*arguments)
        count = len(handled) - start
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert count >= 3


def test_an_interrupt_is_heard():
    """By all of a public call: it ends long before it would have."""
    d = arrays()
    rows, columns = (torch.from_numpy(a[:3_000_000]) for a in (d.square[d.shuffled], d.idx))
    values = torch.ones(len(rows))
    begin = time.perf_counter()
    ls.CSR.from_coo(rows, columns, values, (n, cols))
    whole = time.perf_counter() - begin

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    begin = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, whole / 10)
    try:
        with pytest.raises(KeyboardInterrupt):
            ls.CSR.from_coo(rows, columns, values, (n, cols))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.perf_counter() - begin < whole / 2
    A = ls.CSR.from_scipy(grid(5, 5))
    assert torch.equal(A.T.T.to_dense(), A.to_dense())  # and the library is as it was
