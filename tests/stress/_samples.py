"""Random matrices of all kinds, with what operations need beside them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

import learnsolve as ls


def _csr(S: Any, shape: tuple[int, int] | None = None) -> Any:
    """A SciPy matrix, whose types pyright does not know well."""
    return scipy.sparse.csr_array(S, shape=shape)


def _bands(n: int, width: int) -> Any:
    rows = np.repeat(np.arange(n), 2 * width + 1)
    columns = rows + np.tile(np.arange(-width, width + 1), n)
    kept = (columns >= 0) & (columns < n)
    return _csr((np.ones(kept.sum()), (rows[kept], columns[kept])), (n, n))


def _stencil(rng: np.random.Generator, entries: int) -> Any:
    """5, 9 or 7 points on a grid with sides of their own."""
    points = int(rng.choice([5, 7, 9]))
    sides = [max(2, round((entries / points) ** (1 / (3 if points == 7 else 2)))) for _ in range(3)]
    sides[0] += int(rng.integers(0, 5))
    lines = [_bands(n, 1) for n in sides]
    eyes = [scipy.sparse.eye_array(n, format="csr") for n in sides]
    kron = scipy.sparse.kron
    if points == 9:
        return _csr(kron(lines[0], lines[1]))
    if points == 5:
        return _csr(kron(lines[0], eyes[1]) + kron(eyes[0], lines[1]))
    return _csr(
        kron(kron(lines[0], eyes[1]), eyes[2])
        + kron(kron(eyes[0], lines[1]), eyes[2])
        + kron(kron(eyes[0], eyes[1]), lines[2])
    )


def _of_lengths(rng: np.random.Generator, lengths: np.ndarray, n: int) -> Any:
    """Rows with these numbers of entries, in columns drawn at random."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    S = _csr((np.ones(len(rows)), (rows, rng.integers(0, max(n, 1), len(rows)))), (len(lengths), n))
    S.sum_duplicates()
    return S


def _random(rng: np.random.Generator, entries: int) -> Any:
    n = entries // int(rng.integers(4, 12))
    return _of_lengths(rng, rng.poisson(entries / n, n), n)


def _power_law(rng: np.random.Generator, entries: int) -> Any:
    """A few rows hold a large part of the entries."""
    n = entries // 8
    lengths = np.minimum(n, 2 + n // (4 * (np.arange(n) + 1)))
    return _of_lengths(rng, rng.permutation(lengths), n)


def _banded(rng: np.random.Generator, entries: int) -> Any:
    width = int(rng.integers(1, 7))
    return _bands(max(entries // (2 * width + 1), width + 1), width)


def _empty_rows(rng: np.random.Generator, entries: int) -> Any:
    """Half of the rows, and a stretch of them, hold nothing."""
    n = entries // 4
    lengths = rng.poisson(8, n) * (rng.random(n) < 0.5)
    lengths[n // 3 : n // 2] = 0
    return _of_lengths(rng, lengths, n)


def _wide(rng: np.random.Generator, entries: int) -> Any:
    m = max(entries // 60, 1)
    return _of_lengths(rng, rng.poisson(60, m), 7 * m)


def _tall(rng: np.random.Generator, entries: int) -> Any:
    m = entries // 3
    return _of_lengths(rng, rng.poisson(3, m), max(m // 40, 1))


def _arrow(rng: np.random.Generator, entries: int) -> Any:
    """A full row, a full column, a diagonal."""
    n = entries // 3
    ends = np.zeros(n, dtype=int) + int(rng.integers(0, n))
    rows = np.concatenate([np.arange(n), ends, np.arange(n)])
    columns = np.concatenate([np.arange(n), np.arange(n), ends])
    return _csr((np.ones(3 * n), (rows, columns)), (n, n))


KINDS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "stencil": _stencil,
    "random": _random,
    "power law": _power_law,
    "banded": _banded,
    "empty rows": _empty_rows,
    "wide": _wide,
    "tall": _tall,
    "arrow": _arrow,
}


@dataclass
class Sample:
    """A pattern and the numbers of everything else, all of them made from the seed alone."""

    kind: str
    seed: int
    S: Any
    dtype: torch.dtype
    index: torch.dtype
    columns: int | None  # of right-hand sides; None: vectors
    P: ls.SparsityPattern
    spd: bool  # symmetric pattern with a full diagonal
    _dominant: Tensor | None = None

    @classmethod
    def draw(cls, kind: str, seed: int, work: int) -> "Sample":
        """About `work` products of an entry and a number. Patterns that are square are symmetric with a full
        diagonal, but for one kind."""
        rng = np.random.default_rng(seed)
        columns = [None, None, 1, 2, 3, 5, 9][int(rng.integers(0, 7))]
        S = KINDS[kind](rng, work // (columns or 1))
        spd = S.shape[0] == S.shape[1] and kind != "empty rows"
        if spd:
            S = _csr(S + S.T + scipy.sparse.eye_array(S.shape[0]))
        S.sort_indices()
        index = [torch.int32, torch.int64][int(rng.integers(0, 2))]
        return cls(kind, seed, S, torch.float64, index, columns, _pattern(S, index), spd)

    def fresh(self) -> None:
        """A pattern that has no plans yet."""
        self.P = _pattern(self.S, self.index)

    def normal(self, *shape: int, salt: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * self.seed + salt)
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(self.dtype)

    def dominant(self) -> Tensor:
        """Symmetric values with a dominant diagonal: entry (i, j) is made of i and j alone."""
        if self._dominant is not None:
            return self._dominant.to(self.dtype, copy=True)
        rows = np.repeat(np.arange(self.S.shape[0]), np.diff(self.S.indptr))
        low, high = np.minimum(rows, self.S.indices), np.maximum(rows, self.S.indices)
        values = (
            -0.2 - 0.8 * np.modf(np.abs(np.sin(low * 12.9898 + high * 78.233 + self.seed) * 43758.5453))[0]
        )
        sums = np.bincount(rows, weights=np.where(low == high, 0, -values), minlength=self.S.shape[0])
        values = np.where(low == high, 0.05 + sums[rows], values)
        self._dominant = torch.from_numpy(values)
        return self._dominant.to(self.dtype, copy=True)

    def leaf(self, code: str, salt: int) -> Tensor:
        """v values, V two members of them, a those of a dominant matrix; x and y blocks of vectors for the
        columns and the rows, X a batch of them; c and r a vector each, e features of entries, s a number; p
        and u a vector and a number between 0.1 and 1."""
        (m, n), tail = self.P.shape, () if self.columns is None else (self.columns,)
        if code == "a":
            return self.dominant()
        if code in "pu":
            return 0.1 + 0.9 * self.normal(*((n,) if code == "p" else ()), salt=salt).sigmoid()
        shape = {
            "v": (self.P.nnz,),
            "V": (2, self.P.nnz),
            "x": (n, *tail),
            "y": (m, *tail),
            "X": (2, n, self.columns or 1),
            "c": (n,),
            "r": (m,),
            "e": (self.P.nnz, 3),
            "s": (),
        }[code]
        return self.normal(*shape, salt=salt)


def _pattern(S: Any, index: torch.dtype) -> ls.SparsityPattern:
    crow, columns = (torch.from_numpy(a.astype(np.int64)).to(index) for a in (S.indptr, S.indices))
    return ls.SparsityPattern(crow, columns, S.shape)


def digest(t: Tensor) -> bytes:
    return hashlib.sha1(t.detach().contiguous().numpy().tobytes(), usedforsecurity=False).digest()
