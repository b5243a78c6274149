"""Explanations of why a matrix is singular."""

from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import splu

from learnsolve import _analysis

_SHOWN = 5


def why_singular(S: Any) -> str:
    """The reason and a remedy, for a matrix that is not structurally singular."""
    nonzero = S.copy()
    nonzero.eliminate_zeros()
    found = no_matching(nonzero)
    if found:
        return (
            f"singular: without its explicit zeros, {found}; remove that row and column, or change its values"
        )
    found = sums_to_zero(S) or _dependence(S)
    return (
        f"singular: the elimination met a pivot that is exactly zero{found}; fix one of the unknowns that "
        "are not determined, or add a shift to the diagonal"
    )


def no_matching(S: Any) -> str:
    """Why no permutation puts entries on the whole diagonal, empty if one does."""
    for name, counts in (
        ("row", np.diff(S.indptr)),
        ("column", np.bincount(S.indices, minlength=S.shape[1])),
    ):
        empty = np.flatnonzero(counts == 0)
        if len(empty):
            return f"{name} {empty[0]} has no entry"
    row_of = _analysis.match_rows(S.indptr, S.indices, S.shape[1])
    unmatched = np.setdiff1d(np.arange(S.shape[0]), row_of)
    if not len(unmatched):
        return ""
    rank = S.shape[0] - len(unmatched)
    return (
        f"its rank is at most {rank} of {S.shape[0]}, whatever the values: row {unmatched[0]} finds no "
        "column that the other rows leave over"
    )


def sums_to_zero(S: Any) -> str:
    """The most common null vectors, the constants of a pure Neumann problem; empty if A 1 is not zero."""
    tolerance = 4 * S.shape[0] * np.finfo(S.dtype).eps
    size = abs(S)
    for axis, line in ((1, "row"), (0, "column")):
        if (np.abs(S.sum(axis)) <= tolerance * size.sum(axis)).all():
            return f" (every {line} sums to zero up to rounding)"
    return ""


def _dependence(S: Any) -> str:
    """Linearly dependent columns, empty if none are found."""
    try:
        v = _null_vector(S.astype(np.result_type(S.dtype, np.float64)))
    except RuntimeError:  # singular even with the shift
        return ""
    tolerance = 32 * np.finfo(S.dtype).eps
    if np.abs(S @ v).max() > tolerance * (abs(S) @ np.abs(v)).max():
        return ""
    columns = np.flatnonzero(np.abs(v) > 1e-6)
    names = ", ".join(map(str, columns[:_SHOWN])) + (", ..." if len(columns) > _SHOWN else "")
    return f" (columns {names} depend on each other)"


def _null_vector(S: Any) -> np.ndarray:
    """A vector v, max |v| = 1, with S v nearly 0 if there is one, by inverse iteration."""
    n = S.shape[0]
    rng = np.random.default_rng(0)
    # Small but above rounding; random, because a fixed value could be minus an eigenvalue.
    shift = 8 * np.finfo(np.float64).eps * np.abs(S.data).max() * rng.uniform(1, 2, n)
    lu = splu(scipy.sparse.csc_array(S + scipy.sparse.diags_array(shift)))
    v = rng.standard_normal(n).astype(S.dtype)
    for _ in range(3):
        v = lu.solve(v)
        v /= np.abs(v).max()
    return v
