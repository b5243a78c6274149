"""Matrices in MatrixMarket files."""

import gzip
import os
import re
import zlib
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np
import scipy.io
import scipy.sparse
import torch

from learnsolve.csr import CSR
from learnsolve.problems._grid import INT32_MAX, check_dtype
from learnsolve.problems.facts import Facts


def matrix_market(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> CSR:
    """Read a MatrixMarket file, ``.mtx`` or ``.mtx.gz``.

    Parameters
    ----------
    path : file with a matrix in coordinate or array format, with real, integer or pattern entries; general,
        symmetric or skew-symmetric
    dtype : torch.float32 or torch.float64
    device : device of the matrix

    Returns
    -------
    CSR, with both triangles of a symmetric matrix. Entries of a pattern have the value 1. Explicit zeros of a
    coordinate file are kept, those of an array file are not; duplicate entries of a general file are added
    up.

    Raises
    ------
    FileNotFoundError
        if the file does not exist.
    ValueError
        if the file is not a MatrixMarket file, is truncated or too long for its size line, or contains an
        index outside its size or a value that is not a finite number of `dtype`. No memory of the stated size
        is allocated before the whole file has been checked.
    NotImplementedError
        for complex and Hermitian matrices, vectors, and more than 2^31 - 1 rows or columns.

    Notes
    -----
    `scipy.io.mmread` reads the numbers after the file has been checked against its header. The check is
    stricter than the reader, which reads 1.5D3 and 1.5+3, Fortran's 1500, as 1.5.

    References
    ----------
    R. F. Boisvert, R. Pozo, K. A. Remington, "The Matrix Market Exchange Formats: Initial Design", NISTIR
    5935, 1996.

    Examples
    --------
    >>> import pathlib, tempfile, learnsolve as ls
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.mtx"
    >>> lines = "%%MatrixMarket matrix coordinate real symmetric", "2 2 2", "1 1 2.5", "2 1 -1"
    >>> _ = path.write_text("\\n".join(lines))
    >>> ls.problems.matrix_market(path).to_dense()
    tensor([[ 2.5000, -1.0000],
            [-1.0000,  0.0000]], dtype=torch.float64)
    """
    check_dtype("matrix_market", dtype)
    path = Path(path)
    try:
        with _open(path) as stream:
            header = _read_header(path, stream)
            _check_body(path, stream, header)
        S = scipy.io.mmread(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"matrix_market: there is no file {path}") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        _fail(path, f"is damaged and cannot be decompressed ({error})")
    except (ValueError, OverflowError) as error:
        if str(error).startswith("matrix_market: "):
            raise
        _fail(path, f"is damaged ({str(error).rstrip('.')})")
    S = scipy.sparse.coo_array(S)
    if header.symmetry == "skew-symmetric" and np.any(S.data[S.row == S.col]):
        _fail(path, "is declared skew-symmetric but has an entry on its diagonal")
    A = CSR.from_scipy(S, dtype=dtype)
    if header.symmetry != "general" and A.nnz != S.nnz:
        _fail(path, f"is declared {header.symmetry} but lists an entry twice or in both triangles")
    if not bool(torch.isfinite(A.values).all()):
        at = int((~torch.isfinite(A.values)).nonzero()[0])
        row, column = int(A.pattern.row_indices[at]) + 1, int(A.col_indices[at]) + 1
        _fail(path, f"has an entry too large for {dtype}, in row {row}, column {column}")
    return A.to(device=device)


class _Header(NamedTuple):
    format: str
    field: str
    symmetry: str
    entries: int
    line: int  # of the size line, counted from 1


def _open(path: Path) -> Any:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _fail(path: Path, what: str) -> NoReturn:
    raise ValueError(f"matrix_market: {path} {what}")


def _read_header(path: Path, stream: IO[bytes]) -> _Header:
    banner = stream.readline(1024).decode("ascii", "replace").lower().split()
    if banner[:1] != ["%%matrixmarket"]:
        _fail(path, "is not a MatrixMarket file: its first line does not begin with %%MatrixMarket")
    if len(banner) != 5:
        _fail(path, "must begin with '%%MatrixMarket object format field symmetry'")
    _, kind, format, field, symmetry = banner
    unsupported = [w for w in (kind, field, symmetry) if w in ("vector", "complex", "hermitian")]
    if unsupported:
        raise NotImplementedError(
            f"matrix_market: {path} holds a {unsupported[0]} object, which is not supported; real, integer "
            "and pattern matrices are"
        )
    for name, word, allowed in (
        ("object", kind, ("matrix",)),
        ("format", format, ("coordinate", "array")),
        ("field", field, ("real", "integer", "pattern")),
        ("symmetry", symmetry, ("general", "symmetric", "skew-symmetric")),
    ):
        if word not in allowed:
            _fail(path, f"must have one of {', '.join(allowed)} as {name}, got {word!r}")
    if field == "pattern" and (format == "array" or symmetry == "skew-symmetric"):
        _fail(path, f"combines pattern with {format} and {symmetry}, which is invalid")

    line = 2
    while (text := stream.readline()).startswith(b"%") or text.isspace():
        line += 1
    words = text.split()
    names = "rows columns" if format == "array" else "rows columns entries"
    if len(words) != len(names.split()) or not all(word.isdigit() for word in words):
        shown = text.decode("ascii", "replace").strip()[:80]
        _fail(path, f"must state '{names}' in line {line}, got {shown!r}")
    rows, columns, *stated = map(int, words)
    if max(rows, columns) > INT32_MAX:
        raise NotImplementedError(
            f"matrix_market: {path} states {rows} rows and {columns} columns; up to {INT32_MAX} are supported"
        )
    if symmetry != "general" and rows != columns:
        _fail(path, f"is declared {symmetry} but has {rows} rows and {columns} columns")
    triangle = {"general": rows * columns, "symmetric": rows * (rows + 1) // 2}
    entries = stated[0] if stated else triangle.get(symmetry, rows * (rows - 1) // 2)
    return _Header(format, field, symmetry, entries, line)


# A sign inside a number: Fortran writes 1.5+300 for 1.5e300. Two decimal points: a damaged file.
_MALFORMED = re.compile(rb"[0-9.][+-]|\.[0-9]*\.")


def _check_body(path: Path, stream: IO[bytes], header: _Header) -> None:
    """Require a body of numbers, as many as the size line states. Reads the file in pieces."""
    letters = {"real": b".eE+-", "integer": b"+-", "pattern": b""}[header.field]
    allowed = b"0123456789 \t\r\n" + letters
    numbers, line = 0, header.line + 1
    while piece := stream.read(1 << 20) + stream.readline():
        odd = piece.translate(None, allowed)
        malformed = _MALFORMED.search(piece)
        if odd or malformed:
            at = piece.index(odd[:1]) if odd else malformed.start()  # type: ignore[union-attr]
            line += piece.count(b"\n", 0, at)
            text = piece[piece.rfind(b"\n", 0, at) + 1 :].split(b"\n", 1)[0].decode("ascii", "replace")
            _fail(
                path,
                f"has a line {line} that is not made of {header.field} numbers: {text.strip()[:80]!r}",
            )
        blank = np.frombuffer(piece, dtype=np.uint8) <= ord(" ")
        # A number begins after a blank, or at the beginning of the piece, which is the beginning of a line.
        numbers += int(np.count_nonzero(~blank[1:] & blank[:-1])) + int(not blank[0])
        line += piece.count(b"\n")
    expected = header.entries * _numbers_per_entry(header)
    if numbers != expected:
        what = "is truncated" if numbers < expected else "is too long"
        _fail(
            path,
            f"{what}: {header.entries} entries make {expected} numbers after line {header.line}, the file "
            f"has {numbers}",
        )


def _numbers_per_entry(header: _Header) -> int:
    if header.format == "array":
        return 1
    return 2 if header.field == "pattern" else 3


FACTS = Facts(
    formula="given entry by entry",
    symmetric=None,
    positive_definite=None,
    positive_semidefinite=None,
    source="Boisvert, Pozo, Remington, The Matrix Market Exchange Formats, NISTIR 5935, 1996",
)
