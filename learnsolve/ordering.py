"""Orders of the rows of a square matrix, and groups of mutually independent rows."""

from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph
from torch import Tensor

from learnsolve import _analysis, _check
from learnsolve.csr import CSR
from learnsolve.pattern import SparsityPattern, as_numpy


class Colouring(NamedTuple):
    """Colours of rows such that rows of the same colour are not coupled, and the rows by colour."""

    colours: Tensor
    """Colour of each row, 0 <= colour < count, shape (n,)."""
    count: int
    """Number of colours."""
    ptr: Tensor
    """Rows of colour c are ``rows[ptr[c]:ptr[c + 1]]``, in order; shape (count + 1,)."""
    rows: Tensor
    """All rows, colour by colour, shape (n,)."""


def reverse_cuthill_mckee(P: SparsityPattern | CSR) -> Tensor:
    """The reverse Cuthill-McKee order, which moves the entries close to the diagonal.

    Parameters
    ----------
    P : SparsityPattern or CSR, square; if not symmetric, the pattern of A + A^T is ordered

    Returns
    -------
    Tensor, shape (n,), of the pattern's index type: row ``p[i]`` becomes row i.

    Raises
    ------
    ValueError
        if P is not square.
    TypeError
        if P is neither a SparsityPattern nor a CSR.

    Notes
    -----
    Uses `scipy.sparse.csgraph.reverse_cuthill_mckee`, about O(nnz). Computed once and cached with the
    pattern: do not change it in place. An order has no gradient.

    References
    ----------
    E. Cuthill and J. McKee, "Reducing the bandwidth of sparse symmetric matrices", 1969.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> D = torch.eye(4)
    >>> D[0, 3] = D[3, 0] = D[1, 3] = D[3, 1] = D[1, 2] = D[2, 1] = 1
    >>> p = ls.ordering.reverse_cuthill_mckee(ls.CSR.from_dense(D))
    >>> D[p][:, p]
    tensor([[1., 1., 0., 0.],
            [1., 1., 1., 0.],
            [0., 1., 1., 1.],
            [0., 0., 1., 1.]])
    """
    return _square("reverse_cuthill_mckee", P)._planned(_reverse_cuthill_mckee)[0]


def greedy_colouring(
    P: SparsityPattern | CSR, order: Literal["natural", "largest_first"] = "natural"
) -> Colouring:
    """Colour the rows such that coupled rows differ, for multicolour sweeps.

    Rows i and j are coupled if there is an entry (i, j) or (j, i), i != j. Rows of one colour can be relaxed
    at the same time.

    Parameters
    ----------
    P : SparsityPattern or CSR, square
    order : "natural" or "largest_first"
        The order in which rows are coloured, each with the smallest colour that none of its neighbours has:
        the given order, or rows with most neighbours first.

    Returns
    -------
    Colouring(colours, count, ptr, rows)
        At most one colour more than the largest number of neighbours of a row. On a grid with a stencil of
        3, 5 or 7 points in natural order, two: red and black.

    Raises
    ------
    ValueError
        if P is not square, or the order is not one of the above.
    TypeError
        if P is neither a SparsityPattern nor a CSR.

    Notes
    -----
    O(n + nnz). Deterministic. Computed once and cached with the pattern: do not change it in place. No
    gradient.

    References
    ----------
    Y. Saad, "Iterative Methods for Sparse Linear Systems", SIAM 2003, section 3.3.3.

    Examples
    --------
    >>> import learnsolve as ls
    >>> colouring = ls.ordering.greedy_colouring(ls.problems.poisson((2, 3)))
    >>> colouring.count, colouring.colours
    (2, tensor([0, 1, 0, 1, 0, 1], dtype=torch.int32))
    >>> colouring.rows[colouring.ptr[0] : colouring.ptr[1]]
    tensor([0, 2, 4], dtype=torch.int32)
    """
    _check.one_of("greedy_colouring", "order", order, ("natural", "largest_first"))
    return _square("greedy_colouring", P)._planned(_greedy_colouring, order)


def _square(function: str, P: Any) -> SparsityPattern:
    pattern = P.pattern if isinstance(P, CSR) else P
    if not isinstance(pattern, SparsityPattern):
        raise TypeError(f"{function}: P must be a SparsityPattern or a CSR, got {type(P).__name__}")
    if pattern.shape[0] != pattern.shape[1]:
        raise ValueError(
            f"{function}: P must be square, got shape {pattern.shape}; use that of A^T A or A A^T"
        )
    return pattern


def _reverse_cuthill_mckee(pattern: SparsityPattern) -> tuple[Tensor]:
    n = pattern.shape[0]
    crow, col = as_numpy(pattern.crow_indices), as_numpy(pattern.col_indices)
    order = np.empty(0, dtype=np.int64)
    if n > 0:
        S = scipy.sparse.csr_array((np.ones(pattern.nnz, dtype=np.int8), col, crow), shape=pattern.shape)
        order = csgraph.reverse_cuthill_mckee(scipy.sparse.csr_array(S + S.T), symmetric_mode=True)
    return (pattern._tensor(order.astype(crow.dtype)),)


def _greedy_colouring(pattern: SparsityPattern, order: str) -> Colouring:
    crow, col = as_numpy(pattern.crow_indices), as_numpy(pattern.col_indices)
    tcrow, tcol = as_numpy(pattern.T.crow_indices), as_numpy(pattern.T.col_indices)
    arrays = _analysis.greedy_colouring(crow, col, tcrow, tcol, order == "largest_first")
    colours, ptr, rows = (pattern._tensor(a) for a in arrays)
    return Colouring(colours, len(ptr) - 1, ptr, rows)
