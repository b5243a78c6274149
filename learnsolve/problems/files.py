"""Matrices that come in files: of the MatrixMarket format, and with pyamg."""

import gzip
import os
import re
import zlib
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np
import scipy.sparse
import torch

from learnsolve.matrix.convert import REAL_FORM
from learnsolve.matrix.csr import CSR
from learnsolve.problems._grid import INT32_MAX, MatrixProperties, check_dtype


def pyamg_gallery(
    name: str, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
) -> CSR:
    """An example matrix of pyamg by name, such as "airfoil", "bar", "knot" or "unit_square".

    Parameters
    ----------
    name : one of the names in the installed pyamg. The error for an unknown name lists them
    dtype : torch.float32 or torch.float64
    device : device of the matrix

    Returns
    -------
    CSR, shape (n, n)

    Raises
    ------
    ValueError
        if pyamg has no example of that name.
    NotImplementedError
        if the example is complex.
    ImportError
        if pyamg is not installed.

    Notes
    -----
    The matrices have no properties in common.

    References
    ----------
    N. Bell, L. N. Olson, J. Schroder, "PyAMG: Algebraic Multigrid Solvers in Python", JOSS 7(72) 2022, 4142,
    doi:10.21105/joss.04142

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.problems.pyamg_gallery("unit_square")
    CSR(shape=(191, 191), nnz=1243, dtype=float64, device=cpu, density=3.4%)
    """
    try:
        from pyamg.gallery import example
    except ImportError as error:
        raise ImportError(
            "problems.pyamg_gallery needs pyamg: pip install 'learnsolve[problems]'", name="pyamg"
        ) from error
    check_dtype("pyamg_gallery", dtype)
    if name not in example.example_names:
        raise ValueError(
            f"pyamg_gallery: name must be one of {', '.join(example.example_names)}, got {name!r}"
        )
    A = example.load_example(name)["A"]
    if np.iscomplexobj(A.data):
        raise NotImplementedError(
            f"pyamg_gallery: {name!r} is a complex matrix, which is not supported. Instead, {REAL_FORM}"
        )
    return CSR.from_scipy(A, dtype=dtype, device=device)


GALLERY_PROPERTIES = MatrixProperties(
    formula="given entry by entry",
    symmetric=None,
    positive_definite=None,
    positive_semidefinite=None,
    source="Bell, Olson, Schroder, PyAMG, JOSS 2022",
)


def matrix_market(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> CSR:
    """Read a MatrixMarket file, ``.mtx`` or ``.mtx.gz``.

    Parameters
    ----------
    path : file with a matrix in coordinate or array format, with real, integer, pattern or complex entries;
        general, symmetric, skew-symmetric or Hermitian
    dtype : torch.float32, torch.float64, torch.complex64 or torch.complex128, a complex one for complex
        entries
    device : device of the matrix

    Returns
    -------
    CSR, with both triangles of a symmetric matrix. Entries of a pattern have the value 1. Explicit zeros of a
    coordinate file are kept, those of an array file are not. Duplicates in a general file are summed.

    Raises
    ------
    FileNotFoundError
        if the file does not exist.
    ValueError
        if the file is not a MatrixMarket file, is truncated or too long for its size line, or contains an
        index outside its size or a value that is not a finite number of `dtype`. No memory of the stated size
        is allocated before the whole file has been checked.
    NotImplementedError
        for complex and Hermitian matrices with a real dtype, vectors, and more than 2^31 - 1 rows or columns.

    Notes
    -----
    `scipy.io.mmread` reads the values after the file has been checked against its header, because it stops at
    the first character that it does not expect, and reads Fortran's 1.5D3 as 1.5. Source: Boisvert, Pozo,
    Remington, "The Matrix Market Exchange Formats: Initial Design", NISTIR 5935, 1996.

    Examples
    --------
    >>> import pathlib, tempfile, learnsolve as ls
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.mtx"
    >>> lines = "%%MatrixMarket matrix coordinate real symmetric", "2 2 2", "1 1 2.5", "2 1 -1"
    >>> _ = path.write_text("\\n".join(lines))
    >>> ls.problems.matrix_market(path).to_dense()[0]
    tensor([ 2.5000, -1.0000], dtype=torch.float64)
    """
    if dtype not in (torch.complex64, torch.complex128):
        check_dtype("matrix_market", dtype)
    path = Path(path)
    from scipy.io import mmread  # takes long to import

    try:
        with _open(path) as stream:
            header = _read_header(path, stream, dtype.is_complex)
            _check_body(path, stream, header)
        S = mmread(path)
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
    if header.symmetry == "hermitian" and np.any(np.imag(S.data)[S.row == S.col]):
        _fail(path, "is declared hermitian but has an entry on its diagonal that is not real")
    A = CSR.from_scipy(S, dtype=dtype)
    if header.symmetry != "general" and A.nnz != S.nnz:
        _fail(path, f"is declared {header.symmetry} but lists an entry twice or in both triangles")
    if not bool(torch.isfinite(A.values).all()):
        at = int((~torch.isfinite(A.values)).nonzero()[0])
        row, column = int(A.pattern.row_indices[at]) + 1, int(A.col_indices[at]) + 1
        _fail(path, f"has an entry too large for {dtype}, in row {row}, column {column}")
    return A.to(device=device)


_LONGEST_LINE = 4096  # four times what the format allows; a line is held in memory


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


def _read_header(path: Path, stream: IO[bytes], or_complex: bool) -> _Header:
    banner = stream.readline(_LONGEST_LINE + 1).decode("ascii", "replace").lower().split()
    if banner[:1] != ["%%matrixmarket"]:
        _fail(path, "is not a MatrixMarket file: its first line does not begin with %%MatrixMarket")
    if len(banner) != 5:
        _fail(path, "must begin with '%%MatrixMarket object format field symmetry'")
    _, kind, format, field, symmetry = banner
    if kind == "vector":
        raise NotImplementedError(
            f"matrix_market: {path} holds a vector object, which is not supported. Read it with "
            "scipy.io.mmread"
        )
    if not or_complex and (field == "complex" or symmetry == "hermitian"):
        raise NotImplementedError(
            f"matrix_market: {path} holds complex entries. Read them with dtype=torch.complex128, or, for a "
            f"solver without complex values, {REAL_FORM}"
        )
    for name, word, allowed in (
        ("object", kind, ("matrix",)),
        ("format", format, ("coordinate", "array")),
        ("field", field, ("real", "integer", "pattern", "complex")),
        ("symmetry", symmetry, ("general", "symmetric", "skew-symmetric", "hermitian")),
    ):
        if word not in allowed:
            _fail(path, f"must have one of {', '.join(allowed)} as {name}, got {word!r}")
    if field == "pattern" and (format == "array" or symmetry == "skew-symmetric"):
        _fail(path, f"combines pattern with {format} and {symmetry}, which is invalid")
    if symmetry == "hermitian" and field != "complex":
        _fail(path, f"combines hermitian with {field}, which is invalid")

    line = 2
    while (text := stream.readline(_LONGEST_LINE + 1)).startswith(b"%") or text.isspace():
        _check_length(path, line, len(text))
        line += 1
    _check_length(path, line, len(text))
    words = text.split()
    names = "rows columns" if format == "array" else "rows columns entries"
    if len(words) != len(names.split()) or not all(word.isdigit() for word in words):
        shown = text.decode("ascii", "replace").strip()[:80]
        _fail(path, f"must state '{names}' in line {line}, got {shown!r}")
    rows, columns, *stated = map(int, words)
    if max(rows, columns) > INT32_MAX:
        raise NotImplementedError(
            f"matrix_market: {path} states {rows} rows and {columns} columns. At most {INT32_MAX} are "
            f"supported"
        )
    if symmetry != "general" and rows != columns:
        _fail(path, f"is declared {symmetry} but has {rows} rows and {columns} columns")
    triangle = {"general": rows * columns, "skew-symmetric": rows * (rows - 1) // 2}
    entries = stated[0] if stated else triangle.get(symmetry, rows * (rows + 1) // 2)
    return _Header(format, field, symmetry, entries, line)


# What each line holds, and how it is written. Possessive (++): a line is tried once.
_INTEGER = rb"-?+[0-9]++"
_REAL = rb"-?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+"
_VALUE = {
    "real": ("a number such as -1.5e-3", rb"[ \t]++" + _REAL),
    "integer": ("an integer", rb"[ \t]++" + _INTEGER),
    "pattern": ("no value", rb""),
    "complex": ("two numbers, real and imaginary", rb"[ \t]++" + _REAL + rb"[ \t]++" + _REAL),
}


def _check_body(path: Path, stream: IO[bytes], header: _Header) -> None:
    """Require as many lines of numbers as the size line states. Reads the file in pieces."""
    what, value = _VALUE[header.field]
    if header.format == "coordinate":
        what, entry = f"a row, a column and {what}", rb"[ \t]*+[0-9]++[ \t]++[0-9]++" + value
    else:
        what, entry = f"{what} alone", rb"[ \t]*+" + value.removeprefix(rb"[ \t]++")
    lines = re.compile(rb"(?:(?:" + entry + rb")?+[ \t]*+(?:\r?+\n|\r?+\Z))*+")
    numbers, line = 0, header.line + 1
    while piece := stream.read(1 << 20) + stream.readline(_LONGEST_LINE + 1):
        bytes_ = np.frombuffer(piece, dtype=np.uint8)
        ends = np.flatnonzero(np.concatenate((bytes_ == ord("\n"), [True])))
        longer = np.diff(ends, prepend=-1) > _LONGEST_LINE
        match = lines.match(piece)
        good = match.end() if match else 0
        if longer.any() and (good == len(piece) or ends[longer][0] <= good):
            _check_length(path, line + int(np.argmax(longer)), _LONGEST_LINE + 1)
        if good < len(piece):
            line += piece.count(b"\n", 0, good)
            text = piece[good : good + _LONGEST_LINE].split(b"\n", 1)[0].decode("ascii", "replace").strip()
            shown = text if len(text) <= 80 else text[:80] + "..."
            _fail(
                path,
                f"has a line {line} that does not hold {what}: {shown!r}. Correct it, or write the file with "
                "scipy.io.mmwrite",
            )
        blank = bytes_ <= ord(" ")
        # A value begins after a blank, or at the beginning of the piece, which is the beginning of a line.
        numbers += int(np.count_nonzero(~blank[1:] & blank[:-1])) + int(not blank[0])
        line += len(ends) - 1
    expected = header.entries * _numbers_per_entry(header)
    if numbers != expected:
        what = "is truncated" if numbers < expected else "is too long"
        _fail(
            path,
            f"{what}: {header.entries} entries make {expected} numbers after line {header.line}, the file "
            f"has {numbers}",
        )


def _check_length(path: Path, line: int, length: int) -> None:
    if length > _LONGEST_LINE:
        _fail(
            path,
            f"has a line {line} of more than {_LONGEST_LINE} characters, the format allows 1024. Write "
            "the file with scipy.io.mmwrite",
        )


def _numbers_per_entry(header: _Header) -> int:
    values = {"pattern": 0, "complex": 2}.get(header.field, 1)
    return values if header.format == "array" else 2 + values


MATRIX_MARKET_PROPERTIES = MatrixProperties(
    formula="given entry by entry",
    symmetric=None,
    positive_definite=None,
    positive_semidefinite=None,
    source="Boisvert, Pozo, Remington, The Matrix Market Exchange Formats, NISTIR 5935, 1996",
)
