"""A matrix from a file of which each process reads its share.

PETSc's binary format: the header (class, rows, columns, entries), the length of each row, columns, values,
all big-endian; a process maps the file and reads its parts. Matrix Market: a process reads the lines in its
part of the bytes, and a scatter of PETSc brings each entry to the process that has its row.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy.sparse
import torch

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.petsc._engine import engine
from learnsolve.petsc._processes import processes
from learnsolve.petsc._rows import share

_CLASS = 1211216  # of a matrix in PETSc's binary files
_LONGEST_HEADER = 1 << 20


def read(path: str | os.PathLike[str]) -> tuple[CSR, tuple[int, int]]:
    """The local rows, (hi - lo, n), and (lo, hi)."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"petsc.Matrix.from_file: there is no file {path}")
    with path.open("rb") as stream:
        start = stream.read(64)
    if start.startswith(b"%%MatrixMarket"):
        return _matrix_market(path)
    if start.startswith(b"\x1f\x8b"):
        _fail(path, "is compressed, so that no process could read its part alone; decompress it")
    if len(start) >= 16:
        for size in (4, 8):
            if int.from_bytes(start[:size], "big") == _CLASS:
                return _binary(path, np.dtype(f">i{size}"))
    _fail(path, "is neither a Matrix Market file nor a matrix in PETSc's binary format")


def _fail(path: Path, what: str) -> NoReturn:
    raise ValueError(f"petsc.Matrix.from_file: {path} {what}")


def _binary(path: Path, index: np.dtype) -> tuple[CSR, tuple[int, int]]:
    header = np.fromfile(path, index, 4).astype(np.int64)
    rows, columns, entries = header[1:].tolist()
    if rows != columns:
        _fail(path, f"holds a matrix of shape ({rows}, {columns}), and only a square one is read")
    at = 4 * index.itemsize
    after = at + (rows + entries) * index.itemsize
    if entries < 0 or path.stat().st_size < after + 8 * entries:
        _fail(path, f"is truncated, or of another format: {entries} entries do not fit")
    (lo, hi), p = share(rows), processes()

    def part(dtype: Any, offset: int, first: int, count: int) -> np.ndarray:
        return np.fromfile(path, dtype, count, offset=offset + first * np.dtype(dtype).itemsize)

    lengths = part(index, at, lo, hi - lo).astype(np.int64)
    counts = p.gathered(torch.tensor([float(lengths.sum())])).flatten()
    if int(counts.sum()) != entries:
        _fail(path, f"is damaged: its rows have {int(counts.sum())} entries, not {entries}")
    first, own = int(counts[: p.rank].sum()), int(lengths.sum())
    col = part(index, at + rows * index.itemsize, first, own).astype(np.int64)
    values = part(">f8", after, first, own).astype(np.float64)
    crow = np.concatenate(([0], lengths.cumsum()))
    S = scipy.sparse.csr_array((values, col, crow), shape=(hi - lo, columns))
    return _rows(path, S), (lo, hi)


class _Header(NamedTuple):
    symmetry: str
    pattern: bool
    rows: int
    entries: int
    body: int  # where the lines of entries begin, in bytes


def _matrix_market(path: Path) -> tuple[CSR, tuple[int, int]]:
    header = _header(path)
    i, j, v = _entries(path, header)
    total = int(processes().gathered(torch.tensor([float(len(i))])).sum())
    if total != header.entries:
        _fail(path, f"has {total} entries, and its size line says {header.entries}")
    outside = (np.minimum(i, j) < 0) | (np.maximum(i, j) >= header.rows)
    if outside.any():
        at = int(outside.nonzero()[0][0])
        _fail(path, f"has an entry in row {i[at] + 1}, column {j[at] + 1}, outside of its size {header.rows}")
    if header.symmetry != "general":
        off = i != j
        sign = -1 if header.symmetry == "skew-symmetric" else 1
        i, j, v = np.append(i, j[off]), np.append(j, i[off]), np.append(v, sign * v[off])
    lo, hi = share(header.rows)
    i, j, v = _sent(i, j, v, header.rows)
    S = scipy.sparse.csr_array(scipy.sparse.coo_array((v, (i - lo, j)), shape=(hi - lo, header.rows)))
    return _rows(path, S), (lo, hi)


def _header(path: Path) -> _Header:
    with path.open("rb") as stream:
        words = stream.readline(_LONGEST_HEADER).decode("latin-1").lower().split()
        kinds = (("coordinate",), ("real", "integer", "pattern"), ("general", "symmetric", "skew-symmetric"))
        fits = len(words) == 5 and all(w in kind for w, kind in zip(words[2:], kinds, strict=True))
        if not fits:
            _fail(path, f"has the header {' '.join(words)!r}; coordinate files of real numbers are read")
        line = stream.readline(_LONGEST_HEADER)
        while line.startswith(b"%") or (line and not line.strip()):
            line = stream.readline(_LONGEST_HEADER)
        try:
            rows, columns, entries = map(int, line.split())
        except ValueError:
            _fail(path, f"has the size line {line[:80]!r}, not three numbers")
        if rows != columns:
            _fail(path, f"holds a matrix of shape ({rows}, {columns}), and only a square one is read")
        return _Header(words[4], words[3] == "pattern", rows, entries, stream.tell())


def _entries(path: Path, header: _Header) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entries in lines that begin in this process's part of the bytes, counted from 0."""
    p, size = processes(), path.stat().st_size - header.body
    first, last = (header.body + size * r // p.size for r in (p.rank, p.rank + 1))
    with path.open("rb") as stream:
        if p.rank:  # lines that begin earlier belong to the previous process
            stream.seek(first - 1)
            stream.readline()
            first = stream.tell()
        stream.seek(first)
        text = stream.read(max(0, last - first))
        if text and not text.endswith(b"\n"):
            text += stream.readline()
    width = 2 if header.pattern else 3
    try:
        table = np.array(text.split(), dtype=np.float64)
        lines = sum(1 for line in text.splitlines() if line.strip())
        table = table.reshape(lines, width)
    except ValueError as error:
        _fail(path, f"has a line that is not {width} numbers, among bytes {first} to {last} ({error})")
    if not np.isfinite(table).all():
        _fail(path, f"has a number that is not finite, among bytes {first} to {last}")
    v = np.ones(len(table)) if header.pattern else table[:, 2].copy()
    return table[:, 0].astype(np.int64) - 1, table[:, 1].astype(np.int64) - 1, v


def _sent(i: np.ndarray, j: np.ndarray, v: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All entries in the rows of this process."""
    p = processes()
    if p.size == 1:
        return i, j, v
    PETSc = engine()
    starts = np.array([n * r // p.size for r in range(1, p.size)])
    owner = np.searchsorted(starts, i, side="right")
    order = np.argsort(owner, kind="stable")
    counts = torch.from_numpy(np.bincount(owner, minlength=p.size).astype(float))
    table = p.gathered(counts).numpy().astype(np.int64)  # (from, to)
    begin = np.concatenate(([0], table.sum(1).cumsum()))[:-1] + table[:, : p.rank].sum(1)
    wanted = np.concatenate([np.arange(b, b + c) for b, c in zip(begin, table[:, p.rank], strict=True)])
    # Three values per entry, exact in float64.
    all_of = PETSc.Vec().create(comm=PETSc.COMM_WORLD)
    all_of.setSizes((3 * len(i), PETSc.DECIDE), bsize=3)
    all_of.setType("mpi")
    all_of.array_w[:] = np.stack((i[order], j[order], v[order]), 1).reshape(-1)
    own = PETSc.Vec().createSeq(3 * len(wanted), bsize=3, comm=PETSc.COMM_SELF)
    theirs = PETSc.IS().createBlock(3, wanted.astype(PETSc.IntType), comm=PETSc.COMM_SELF)
    ours = PETSc.IS().createBlock(3, np.arange(len(wanted), dtype=PETSc.IntType), comm=PETSc.COMM_SELF)
    scatter = PETSc.Scatter().create(all_of, theirs, own, ours)
    scatter.scatter(all_of, own)
    found = np.array(own.array_r).reshape(-1, 3)
    for each in (scatter, theirs, ours, own, all_of):
        each.destroy()
    return found[:, 0].astype(np.int64), found[:, 1].astype(np.int64), found[:, 2]


def _rows(path: Path, S: scipy.sparse.csr_array) -> CSR:
    shape: Any = S.shape
    S.sort_indices()
    if S.nnz and not (S.indices.min() >= 0 and S.indices.max() < shape[1]):
        _fail(path, "is damaged: it has a column outside of its size")
    S.sum_duplicates()
    if S.nnz == 0:
        crow = torch.zeros(shape[0] + 1, dtype=torch.int64)
        return CSR(torch.zeros(0, dtype=torch.float64), SparsityPattern(crow, crow[:0], shape))
    return CSR.from_scipy(S)
