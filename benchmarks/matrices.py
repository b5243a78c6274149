"""Products and solves over families of matrices, as performance profiles, forward and backward.

Poisson in two and three dimensions, random rows, power-law rows, bands, pyamg's examples, and the files of
--matrices. Dolan and More's profile: the share of matrices on which a library takes at most a factor of the
best time.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

import learnsolve as ls
from benchmarks import peers
from benchmarks.harness import BACKWARD, FORWARD, Run, apart, limit_memory, ways

GALLERY = ("airfoil", "bar", "knot", "local_disc_galerkin_diffusion", "unit_cube", "unit_square")
DIRECT = 30_000  # rows, above which a factorization takes seconds


def irregular(n: int, seed: int = 0) -> sp.csr_array:
    """Rows of 1 to 60 entries in random columns: no uniform blocks."""
    rng = np.random.default_rng(seed)
    return _rows(np.minimum(60, rng.geometric(0.12, size=n)), rng)


def power_law(n: int, seed: int = 0) -> sp.csr_array:
    """Rows whose lengths have the tail l^-2.4, at least 2 and at most n / 10 entries, in random columns."""
    rng = np.random.default_rng(seed)
    return _rows(np.clip(2 * (1 - rng.random(n)) ** (-1 / 1.4), 2, max(2, n // 10)).astype(int), rng)


def _rows(lengths: np.ndarray, rng: np.random.Generator) -> sp.csr_array:
    n, crow = len(lengths), np.concatenate(([0], np.cumsum(lengths)))
    S = sp.csr_array((rng.standard_normal(crow[-1]), rng.integers(0, n, size=crow[-1]), crow), shape=(n, n))
    S.sum_duplicates()
    return S


def banded(n: int, width: int, seed: int = 0) -> sp.csr_array:
    rng = np.random.default_rng(seed)
    offsets = range(-width, width + 1)
    return sp.csr_array(sp.diags_array([rng.standard_normal(n - abs(k)) for k in offsets], offsets=offsets))


def regression_matrix(
    m: int, n: int, length: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(crow, cols, values) of random rows of `length` entries, float32, int32, without copies."""
    rng = np.random.default_rng(seed)
    # One column from each of `length` equal slices: sorted and distinct without sorting 178.5 M numbers.
    width = n // length
    slices = np.arange(0, width * length, width, dtype=np.int32)
    cols = np.empty((m, length), dtype=np.int32)
    values = np.empty((m, length), dtype=np.float32)
    for begin in range(0, m, 50_000):
        block = slice(begin, min(begin + 50_000, m))
        cols[block] = rng.integers(0, width, size=cols[block].shape, dtype=np.int32)
        cols[block] += slices
        rng.standard_normal(out=values[block], dtype=np.float32)
    crow = np.arange(0, m * length + 1, length, dtype=np.int32)
    return crow, cols.reshape(-1), values.reshape(-1)


def families(run: Run, args: argparse.Namespace) -> Iterator[tuple[str, sp.csr_array]]:
    quick = run.quick
    for shape in (
        ((8, 8), (4, 4, 4)) if quick else ((64, 64), (150, 150), (500, 500), (16, 16, 16), (50, 50, 50))
    ):
        yield f"Poisson {'x'.join(map(str, shape))}", ls.problems.poisson(shape).to_scipy()
    for n in (50,) if quick else (2_000, 20_000, 200_000):
        yield f"random uniform, {n}", _rows(np.full(n, 12), np.random.default_rng(n))
        yield f"geometric rows, {n}", irregular(n)
        yield f"power law, {n}", power_law(n)
        yield f"band of 4, {n}", banded(n, 4)
    for name in ("unit_square",) if quick else GALLERY:
        try:
            yield f"pyamg {name}", ls.problems.pyamg_gallery(name).to_scipy()
        except (ImportError, ValueError, NotImplementedError) as error:
            run.note(f"{name}: left out, {error}")
    for path in sorted(args.matrices.glob("**/*.mtx*")) if args.matrices else ():
        with run.attempt(path.name):
            yield path.name, ls.problems.matrix_market(os.fspath(path)).to_scipy()


def measure(run: Run, args: argparse.Namespace) -> None:
    for name, S in families(run, args):
        S = peers.csr(S)
        if S.shape[0] != S.shape[1]:
            run.note(f"{name}: left out, not square")
            continue
        with run.attempt(name):
            run.rows, run.notes = one(run, name, S) if run.quick else apart(one, run, name, S)


def one(run: Run, name: str, S: sp.csr_array) -> tuple[list[dict], list[str]]:
    limit_memory()
    n = S.shape[0]
    rng = np.random.default_rng(1)
    x, X = rng.standard_normal(n), rng.standard_normal((n, 16))
    # With a diagonal that dominates, so that solves with random matrices are well-conditioned.
    diagonal = sp.diags_array(np.asarray(abs(S).sum(1)).reshape(-1) + 1.0)
    D = peers.csr(S + diagonal)
    A, L, M = (peers.Matrix(T, run.device) for T in (S, peers.csr(sp.tril(D)), D))
    T = peers.Matrix(peers.csr(S.T), run.device)
    tasks = {
        "A x": (A, None, peers.product(A, x)),
        "A X, 16 columns": (A, None, peers.product(A, X)),
        "A + A^T": (A, T, peers.sparse_sum(A, T)),
        "L x = b": (L, None, peers.triangular_solve(L, x)),
    }
    products = int(np.diff(S.indptr)[S.indices].sum())
    if products < 20_000_000:
        tasks["A A"] = (A, A, peers.sparse_product(A, peers.Matrix(S, run.device)))
    if n <= 3_000 or (n <= DIRECT and name.startswith(("Poisson", "band", "pyamg"))):  # others fill in
        tasks["A x = b, direct"] = (M, None, peers.direct_solve(M, x))
    for task, (matrix, other, columns) in tasks.items():
        for way in (FORWARD, BACKWARD):
            facts = {"nnz": matrix.S.nnz, "profile": task, "places": [matrix.places, other and other.places]}
            limit = 1e-6 if "=" in task else None
            run.row(f"{task}, {name}", ways(columns, way), way=way, tolerance=limit, **facts)
    return run.rows, run.notes
