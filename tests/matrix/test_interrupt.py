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
    d.level = np.arange(n), np.full(n, -1), np.repeat(d.lower, 2)
    return d


ANALYSES = {
    "validate": lambda d: _analysis.validate(d.ptr, d.idx, cols),
    "row_indices": lambda d: _analysis.row_indices(d.ptr, len(d.idx)),
    "transpose": lambda d: _analysis.transpose(d.ptr, d.idx, cols),
    "diagonal_positions": lambda d: _analysis.diagonal_positions(d.ptr, d.idx, cols),
    "row_blocks": lambda d: _analysis.row_blocks(d.ptr, d.idx, None, 8192),
    "merge_patterns": lambda d: _analysis.merge_patterns(d.ptr, d.idx, d.ptr, d.idx),
    "sort_triples": lambda d: _analysis.sort_triples(d.square[d.shuffled], d.idx, n),
    "greedy_coloring": lambda d: _analysis.greedy_coloring(d.ptr, d.square, d.ptr, d.square, True),
    "match_rows": lambda d: _analysis.match_rows(d.ptr, d.lower, n),
    "count_products": lambda d: _analysis.count_products(d.square, d.ptr),
    "product_pattern": lambda d: _analysis.product_pattern(
        d.ptr, d.square, d.ptr, d.idx, cols, d.products, True, 2**40
    ),
    "masked_positions": lambda d: _analysis.masked_positions(
        d.ptr, d.square, d.ptr, d.idx, cols, d.ptr, d.idx, d.products
    ),
    "row_product_blocks": lambda d: _analysis.row_product_blocks(
        d.ptr, d.square, d.ptr, d.ptr, None, None, 8192
    ),
    "column_product_blocks": lambda d: _analysis.column_product_blocks(
        d.ptr, d.perm, d.ptr, None, None, 8192
    ),
    "product_starts": lambda d: _analysis.product_starts(d.square, d.ptr, d.entry),
    "triangle_size": lambda d: _analysis.triangle_size(d.ptr, d.lower, False, False),
    "triangle": lambda d: _analysis.triangle(d.ptr, d.lower, None, False, False),
    "triangle_blocks": lambda d: _analysis.triangle_blocks(d.ptr, d.lower, None),
    "level_schedule": lambda d: _analysis.level_schedule(d.ptr, d.lower, False),
    "elimination_products": lambda d: _analysis.elimination_products(d.ptr, d.square, d.ptr[:-1], 0),
    "elimination_plan": lambda d: _analysis.elimination_plan(d.ptr, d.square, d.ptr[:-1], 0, True),
    "level_fill": lambda d: _analysis.level_fill(d.ptr, d.square, 1),
    "threshold_pattern": lambda d: _analysis.threshold_pattern(
        d.ptr, d.square, np.where(np.arange(7 * n) % 7, 0.1, 1.0), False, 2, 1e-3
    ),
    "elimination_levels": lambda d: _analysis.elimination_levels(
        d.level[0], d.level[1], d.ptr, d.level[2], n
    ),
}


def test_no_analysis_is_forgotten():
    assert set(ANALYSES) == {name for name in dir(_analysis) if not name.startswith("_")}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "sort_triples")) for name in ANALYSES],
)
def test_signals_are_handled_during_an_analysis(name):
    """One that waits for the end is handled once."""
    handled, d = [], arrays()
    before = signal.signal(signal.SIGALRM, lambda *_: handled.append(time.perf_counter()))
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        start = len(handled)
        ANALYSES[name](d)
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
