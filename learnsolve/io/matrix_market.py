"""Write matrices to MatrixMarket files."""

import gzip
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from learnsolve.matrix.checks import Matrix
from learnsolve.matrix.convert import replace_file


def write_matrix_market(
    path: str | os.PathLike[str], A: Matrix, *, symmetric: bool = False, comment: str = ""
) -> None:
    """Write a matrix to a MatrixMarket file, ``.mtx`` or, compressed, ``.mtx.gz``.

    Parameters
    ----------
    path : the file. An existing file is replaced atomically
    A : CSR, real or complex, one matrix
    symmetric : write only the lower triangle of a matrix that equals its transpose exactly
    comment : lines of text for the head of the file

    Raises
    ------
    ValueError
        if A is a batch, or has an infinity or a NaN, which the format lacks, or, with `symmetric`, is not
        symmetric.
    TypeError
        if comment is not a str.

    Notes
    -----
    In coordinate format with enough digits to restore every value exactly, including explicit zeros:
    `problems.matrix_market` reads it. The text is created in memory. No gradient.

    Examples
    --------
    >>> import pathlib, tempfile, torch, learnsolve as ls
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "A.mtx"
    >>> A = ls.problems.poisson((3, 3))
    >>> ls.io.write_matrix_market(path, A, symmetric=True)
    >>> torch.equal(ls.problems.matrix_market(path).values, A.values)
    True
    """
    from scipy.io import mmwrite  # takes long to import

    name = "write_matrix_market"
    if A.batch_shape:
        raise ValueError(
            f"{name}: A must be one matrix, got a batch of shape {tuple(A.batch_shape)}. Write each to a file"
        )
    S: Any = A.to_scipy().tocoo()
    if not np.isfinite(S.data).all():
        at = int(np.flatnonzero(~np.isfinite(S.data))[0])
        raise ValueError(f"{name}: A's values must be finite, got {S.data[at]} in row {S.row[at]}")
    if symmetric:
        if S.shape[0] != S.shape[1] or _differs(S.tocsr()):
            raise ValueError(f"{name}: A must equal its transpose exactly. Remove symmetric")
        lower = S.row >= S.col
        S = scipy.sparse.coo_array((S.data[lower], (S.row[lower], S.col[lower])), S.shape)
    text = io.BytesIO()
    kind = "symmetric" if symmetric else "general"
    if not isinstance(comment, str):
        raise TypeError(f"write_matrix_market: comment must be a str, got {type(comment).__name__}")
    mmwrite(text, S, comment=comment, field="complex" if A.values.is_complex() else "real", symmetry=kind)
    content = text.getvalue()
    replace_file(path, gzip.compress(content, mtime=0) if Path(path).suffix == ".gz" else content)


def _differs(S: scipy.sparse.csr_array) -> bool:
    """From its transpose: in pattern or values."""
    T = S.T.tocsr()
    pairs = ((S.indptr, T.indptr), (S.indices, T.indices), (S.data, T.data))
    return not all(np.array_equal(a, b) for a, b in pairs)
