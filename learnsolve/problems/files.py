"""Matrices that come in files: of the MatrixMarket format, and with pyamg."""

import gzip
import os
import re
import zlib
from io import BufferedIOBase
from pathlib import Path
from typing import Annotated, NoReturn

import numpy as np
import scipy.sparse
import torch

from learnsolve.matrix.checks import COMPLEX, RealDtype, choice
from learnsolve.matrix.convert import REAL_FORM
from learnsolve.matrix.csr import CSR
from learnsolve.problems._grid import INT32_MAX, MatrixProperties


def pyamg_gallery(
    name: str, *, dtype: RealDtype = torch.float64, device: torch.device | str | None = None
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


def matrix_market(
    path: str | os.PathLike[str],
    *,
    dtype: Annotated[torch.dtype, choice((*COMPLEX, *COMPLEX.values()))] = torch.float64,
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
        if the file is not a MatrixMarket file of a matrix, is truncated or too long for its size line, or
        contains an index outside its size or a value that is not a finite number of `dtype`. Memory for
        entries is allocated only if the file holds them.
    NotImplementedError
        for complex and Hermitian matrices with a real dtype, vectors, and more than 2^31 - 1 rows or columns.

    Notes
    -----
    `scipy.io.mmread` reads the file after every line has been found to hold numbers alone, because it stops
    at the first character that it does not expect, and reads Fortran's 1.5D3 as 1.5. Source: Boisvert, Pozo,
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
    path = Path(path)
    from scipy.io import mminfo, mmread  # take long to import

    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            line = _size_line(path, stream)
            rows, columns, entries, format, field, symmetry = mminfo(path)
            if not dtype.is_complex and "complex" in (field, symmetry.replace("hermitian", "complex")):
                raise NotImplementedError(
                    f"matrix_market: {path} holds complex entries. Read them with dtype=torch.complex128, or "
                    f"for a solver without complex values, {REAL_FORM}"
                )
            if max(rows, columns) > INT32_MAX:
                raise NotImplementedError(
                    f"matrix_market: {path} states {rows} rows and {columns} columns. At most {INT32_MAX} "
                    "are supported"
                )
            if symmetry != "general" and rows != columns:
                _fail(path, f"is declared {symmetry} but has {rows} rows and {columns} columns")
            if field not in _VALUE or (symmetry == "hermitian" and field != "complex"):
                _fail(path, f"combines {symmetry} with {field}, which is not supported")
            if field == "pattern" and (format == "array" or symmetry == "skew-symmetric"):
                _fail(path, f"combines pattern with {format} and {symmetry}, which is invalid")
            if format == "array" and symmetry != "general":
                entries = rows * (rows - 1 if symmetry == "skew-symmetric" else rows + 1) // 2
            # Before mmread allocates all entries; of a truncated triangle it would read a part.
            found = _numbers(path, stream, line, format, field)
            stated = entries * (2 * (format == "coordinate") + {"pattern": 0, "complex": 2}.get(field, 1))
            if found != stated:
                what = "truncated" if found < stated else "too long"
                _fail(path, f"is {what}: {entries} entries make {stated} numbers, the file has {found}")
        S = mmread(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"matrix_market: there is no file {path}") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        _fail(path, f"is damaged and cannot be decompressed ({error})")
    except (ValueError, OverflowError) as error:
        if str(error).startswith("matrix_market: "):
            raise
        _fail(path, f"is damaged ({str(error).strip(' .:')})")
    S = scipy.sparse.coo_array(S)
    if symmetry == "skew-symmetric" and np.any(S.data[S.row == S.col]):
        _fail(path, "is declared skew-symmetric but has an entry on its diagonal")
    if symmetry == "hermitian" and np.any(np.imag(S.data)[S.row == S.col]):
        _fail(path, "is declared hermitian but has an entry on its diagonal that is not real")
    A = CSR.from_scipy(S, dtype=dtype)
    if symmetry != "general" and A.nnz != S.nnz:
        _fail(path, f"is declared {symmetry} but lists an entry twice or in both triangles")
    if not bool(torch.isfinite(A.values).all()):
        at = int((~torch.isfinite(A.values)).nonzero()[0])
        row, column = int(A.pattern.row_indices[at]) + 1, int(A.col_indices[at]) + 1
        _fail(path, f"has an entry too large for {dtype}, in row {row}, column {column}")
    return A.to(device=device)


_LONGEST_LINE = 4096  # four times what the format allows; a line is held in memory
_TOO_LONG = f"of more than {_LONGEST_LINE} characters, the format allows 1024"


def _fail(path: Path, what: str) -> NoReturn:
    raise ValueError(f"matrix_market: {path} {what}. Write it with scipy.io.mmwrite")


def _size_line(path: Path, stream: BufferedIOBase) -> int:
    """The number of the line behind the banner and comments, which is read."""
    banner = stream.readline(_LONGEST_LINE + 1).lower().split()
    if len(banner) != 5:
        start = b" ".join(banner)[:40].decode("ascii", "replace")
        _fail(path, f"must begin with '%%MatrixMarket object format field symmetry', got {start!r}")
    if banner[1] == b"vector":
        raise NotImplementedError(
            f"matrix_market: {path} holds a vector object, not supported. Write a matrix of one column"
        )
    line = 2
    while len(text := stream.readline(_LONGEST_LINE + 1)) <= _LONGEST_LINE:
        if not (text.startswith(b"%") or text.isspace()):
            if not all(word.isdigit() for word in text.split()):
                start = text[:80].decode("ascii", "replace").strip()
                _fail(path, f"must state sizes in line {line}, got {start!r}")
            return line
        line += 1
    _fail(path, f"has a line {line} {_TOO_LONG}")


# What each line holds, and how it is written. Possessive (++): a line is tried once.
_INTEGER = rb"-?+[0-9]++"
_REAL = rb"-?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+"
_VALUE = {
    "real": ("a number such as -1.5e-3", rb"[ \t]++" + _REAL),
    "integer": ("an integer", rb"[ \t]++" + _INTEGER),
    "pattern": ("no value", rb""),
    "complex": ("two numbers, real and imaginary", rb"[ \t]++" + _REAL + rb"[ \t]++" + _REAL),
}


def _numbers(path: Path, stream: BufferedIOBase, line: int, format: str, field: str) -> int:
    """How many numbers there are in the lines after `line`, which must hold nothing else. Reads the file in
    pieces."""
    what, value = _VALUE[field]
    if format == "coordinate":
        what, entry = f"a row, a column and {what}", rb"[ \t]*+[0-9]++[ \t]++[0-9]++" + value
    else:
        what, entry = f"{what} alone", rb"[ \t]*+" + value.removeprefix(rb"[ \t]++")
    short = rb"(?=[^\n]{0,%d}(?:\n|\Z))" % _LONGEST_LINE
    lines = re.compile(rb"(?:" + short + rb"(?:" + entry + rb")?+[ \t]*+(?:\r?+\n|\r?+\Z))*+")
    numbers = 0
    while piece := stream.read(1 << 20) + stream.readline(_LONGEST_LINE + 1):
        match = lines.match(piece)
        good = match.end() if match else 0
        line += piece.count(b"\n", 0, good) + 1
        if good < len(piece):
            text = piece[good : good + _LONGEST_LINE + 1].split(b"\n", 1)[0].decode("ascii", "replace")
            shown = text.strip() if len(text) <= 80 else text.strip()[:80] + "..."
            fault = f"that does not hold {what}: {shown!r}" if len(text) <= _LONGEST_LINE else _TOO_LONG
            _fail(path, f"has a line {line} {fault}. Correct it, or write the file with scipy.io.mmwrite")
        if re.search(rb"\S[ \t\r]+\Z", piece[-_LONGEST_LINE:]):  # SciPy 1.17 would read on behind the end
            _fail(path, f"ends with blanks in line {line}. End it with a newline")
        line -= piece.endswith(b"\n")
        blank = np.frombuffer(b"\n" + piece, dtype=np.uint8) <= ord(" ")
        numbers += int(np.count_nonzero(blank[:-1] & ~blank[1:]))
    return numbers


PROPERTIES = {
    name: MatrixProperties(
        formula="given entry by entry",
        symmetric=None,
        positive_definite=None,
        positive_semidefinite=None,
        source=source,
    )
    for name, source in (
        ("matrix_market", "Boisvert, Pozo, Remington, The Matrix Market Exchange Formats, NISTIR 5935, 1996"),
        ("pyamg_gallery", "Bell, Olson, Schroder, PyAMG, JOSS 2022"),
    )
}
