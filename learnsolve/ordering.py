"""Orderings of the rows of a square matrix, and colorings of rows or columns."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from scipy.sparse import csgraph
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix.checks import SquarePattern, export
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, periodic_coloring, to_numpy

__all__ = [
    "column_coloring",
    "greedy_coloring",
    "minimum_degree",
    "reverse_cuthill_mckee",
    "symmetric_coloring",
]


class Coloring(NamedTuple):
    """Colors of rows (columns for `column_coloring`) in which rows of the same color are independent, and the
    rows sorted by color."""

    colors: Tensor
    """Color of each row, 0 <= color < count, shape (n,)."""
    count: int
    """Number of colors."""
    ptr: Tensor
    """Rows of color c are ``rows[ptr[c]:ptr[c + 1]]``, in order, shape (count + 1,)."""
    rows: Tensor
    """All rows, color by color, shape (n,)."""


def reverse_cuthill_mckee(P: SquarePattern) -> Tensor:
    """The reverse Cuthill-McKee ordering, which moves the entries close to the diagonal.

    Parameters
    ----------
    P : SparsityPattern or CSR, square. If not symmetric, the pattern of A + A^T is ordered

    Returns
    -------
    Tensor, shape (n,), with the pattern's index type: row ``p[i]`` becomes row i.

    Notes
    -----
    Uses `scipy.sparse.csgraph.reverse_cuthill_mckee`, about O(nnz). Computed once and cached with the
    pattern: do not change it in place. An ordering has no gradient.

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
    return _pattern(P)._plan_once(_reverse_cuthill_mckee)[0]


def minimum_degree(P: SquarePattern) -> Tensor:
    """A minimum degree ordering of A + A^T, for little fill in its factors (`ops.cholesky`, `ops.lu`).

    Parameters
    ----------
    P : SparsityPattern or CSR, square

    Returns
    -------
    Tensor, shape (n,), with the pattern's index type: row ``p[i]`` becomes row i.

    Notes
    -----
    Multiple minimum degree, postordered, from SuperLU (SciPy). Computed once and cached with the pattern: do
    not change it in place. An ordering has no gradient.

    References
    ----------
    J. W. H. Liu, "Modification of the minimum-degree algorithm by multiple elimination", ACM Trans. Math.
    Softw. 11, 1985, doi:10.1145/214392.214398

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> D = torch.eye(4)
    >>> D[0] = D[:, 0] = 1
    >>> p = ls.ordering.minimum_degree(ls.CSR.from_dense(D))
    >>> D[p][:, p]  # first, the row that all others are coupled with would fill the factor
    tensor([[1., 0., 0., 1.],
            [0., 1., 0., 1.],
            [0., 0., 1., 1.],
            [1., 1., 1., 1.]])
    """
    return _pattern(P)._plan_once(_minimum_degree)[0]


def greedy_coloring(P: SquarePattern, order: Literal["natural", "largest_first"] = "natural") -> Coloring:
    """Color the rows such that coupled rows have different colors, for multicolor sweeps.

    Rows i and j are coupled if there is an entry (i, j) or (j, i), i != j. Rows of the same color can be
    relaxed simultaneously.

    Parameters
    ----------
    P : SparsityPattern or CSR, square
    order : "natural" or "largest_first", the order in which rows are colored: the given order, or rows with
        most neighbors first. Each row gets the smallest color that none of its neighbors has

    Returns
    -------
    Coloring(colors, count, ptr, rows)
        At most one color more than the largest number of neighbors of a row. On a grid with a stencil of 3, 5
        or 7 points in natural order, two colors: red and black.

    Notes
    -----
    O(n + nnz). Deterministic. Computed once and cached with the pattern: do not change it in place. No
    gradient. Source: Y. Saad, "Iterative Methods for Sparse Linear Systems", SIAM 2003, section 3.3.3.

    Examples
    --------
    >>> import learnsolve as ls
    >>> coloring = ls.ordering.greedy_coloring(ls.problems.poisson((2, 3)))
    >>> coloring.count, coloring.colors
    (2, tensor([0, 1, 0, 1, 0, 1], dtype=torch.int32))
    >>> coloring.rows[coloring.ptr[0] : coloring.ptr[1]]
    tensor([0, 2, 4], dtype=torch.int32)
    """
    return _pattern(P)._plan_once(_greedy_coloring, order)


def column_coloring(
    P: SparsityPattern | CSR, order: Literal["best", "natural", "largest_first", "smallest_last"] = "best"
) -> Coloring:
    """Color the columns such that no row has entries in two columns of the same color.

    A product with one vector per color then yields every entry of the matrix: the distance-2 coloring of
    compressed Jacobians. For rows pass ``P.T``.

    Parameters
    ----------
    P : SparsityPattern or CSR of any shape
    order : the order in which columns are colored, each with the smallest possible color: "natural";
        "largest_first", columns that share rows with most others first, or "smallest_last", each sharing rows
        with few previous ones. "best" is the best of these and, for stencils on a grid, of colorings that
        repeat along its axes

    Returns
    -------
    Coloring(colors, count, ptr, rows), with columns in the place of rows
        At least as many colors as the longest row has entries: 5 for the 5-point stencil.

    Notes
    -----
    O(sum of the squares of the lengths of the rows); rows of more than 128 entries cost less. Deterministic.
    Computed once and cached with the pattern: do not change it in place. No gradient. Source: A. Gebremedhin,
    F. Manne and A. Pothen, "What color is your Jacobian?", SIAM Review 47 (2005).

    Examples
    --------
    >>> import learnsolve as ls
    >>> coloring = ls.ordering.column_coloring(ls.problems.poisson((6,)))
    >>> coloring.count, coloring.colors
    (3, tensor([0, 1, 2, 0, 1, 2], dtype=torch.int32))
    """
    return _pattern(P)._plan_once(_column_coloring, order)


def symmetric_coloring(
    P: SquarePattern,
    method: Literal["star", "acyclic"] = "star",
    order: Literal["best", "natural", "largest_first", "smallest_last"] = "best",
) -> Coloring:
    """Color the rows of a symmetric pattern with fewer colors than `column_coloring`, using the symmetry.

    A product with one vector per color, the sum of the unit vectors of its rows, determines the symmetric
    matrix: compressed Hessians.

    Parameters
    ----------
    P : SparsityPattern or CSR, square, with an entry (j, i) for each entry (i, j)
    method : "star": neighbors differ, and no path of four rows has only two colors, so that each entry
        appears alone in one of the products. "acyclic": no cycle has only two colors, which needs fewer
        colors. Entries follow successively
    order : the order in which rows are colored, as for `column_coloring`

    Returns
    -------
    Coloring(colors, count, ptr, rows)

    Raises
    ------
    ValueError
        if P is not symmetric.

    Notes
    -----
    O(sum of the squares of the numbers of neighbors), times the largest number for "star"; rows with very
    many neighbors have separate colors and cost less. Deterministic, cached, no gradient. Source: A.
    Gebremedhin et al., "New acyclic and star coloring algorithms with application to computing Hessians",
    SIAM J. Sci. Comput. 29 (2007).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> arrow = torch.eye(5)
    >>> arrow[4] = arrow[:, 4] = 1
    >>> A = ls.CSR.from_dense(arrow)
    >>> ls.ordering.symmetric_coloring(A).count, ls.ordering.column_coloring(A).count
    (2, 5)
    """
    pattern = _pattern(P)
    if not pattern.equals(pattern.T):
        raise ValueError(
            "symmetric_coloring: P must have an entry (j, i) for each entry (i, j). Use the pattern of A + "
            "A^T"
        )
    return pattern._plan_once(_symmetric_coloring, method, order)


_ORDERS = ("natural", "largest_first", "smallest_last")  # numbered as in csrc/analysis/coloring.h


def _pattern(P: SparsityPattern | CSR) -> SparsityPattern:
    return P.pattern if isinstance(P, CSR) else P


def _reverse_cuthill_mckee(pattern: SparsityPattern) -> tuple[Tensor]:
    n = pattern.shape[0]
    crow, col = to_numpy(pattern.crow_indices), to_numpy(pattern.col_indices)
    order = np.empty(0, dtype=np.int64)
    if n > 0:
        S = scipy.sparse.csr_array((np.ones(pattern.nnz, dtype=np.int8), col, crow), shape=pattern.shape)
        order = csgraph.reverse_cuthill_mckee(scipy.sparse.csr_array(S + S.T), symmetric_mode=True)
    return (pattern._tensor(order.astype(crow.dtype)),)


def _minimum_degree(pattern: SparsityPattern) -> tuple[Tensor]:
    n, crow = pattern.shape[0], to_numpy(pattern.crow_indices)
    if n == 0:
        return (pattern._tensor(crow[:0]),)
    arrays = (np.ones(pattern.nnz), to_numpy(pattern.col_indices).astype(np.int32), crow.astype(np.int32))
    S = scipy.sparse.csr_array(arrays, shape=pattern.shape)
    S = scipy.sparse.csc_array(S + S.T + scipy.sparse.eye_array(n))
    # SuperLU computes orderings only together with factors. The factors of an almost diagonal matrix, almost
    # all of them dropped, cost less than the ordering.
    S.data = np.where(S.indices == np.repeat(np.arange(n), np.diff(S.indptr)), 1.0, 1e-30)
    factors = scipy.sparse.linalg.spilu(
        S,
        drop_tol=1.0,
        fill_factor=1.0,
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    order = np.empty(n, dtype=crow.dtype)
    order[factors.perm_c] = np.arange(n)
    return (pattern._tensor(order),)


def _greedy_coloring(pattern: SparsityPattern, order: str) -> Coloring:
    return _coloring(pattern, _analysis.greedy_coloring(*_both_ways(pattern), order == "largest_first"))


def _both_ways(pattern: SparsityPattern) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    one, other = pattern, pattern.T
    return (
        *(to_numpy(one.crow_indices), to_numpy(one.col_indices)),
        *(to_numpy(other.crow_indices), to_numpy(other.col_indices)),
    )


def _coloring(pattern: SparsityPattern, arrays: tuple[np.ndarray, ...]) -> Coloring:
    colors, ptr, rows = (pattern._tensor(a) for a in arrays)
    return Coloring(colors, len(ptr) - 1, ptr, rows)


def _column_coloring(pattern: SparsityPattern, order: str) -> Coloring:
    arrays = _both_ways(pattern)
    # A lower bound: the longest row.
    fewest = int(np.diff(arrays[0]).max(initial=0))
    best = periodic_coloring(pattern, fewest) if order == "best" else None

    def color(number: int) -> tuple[np.ndarray, ...]:
        return _analysis.column_coloring(*arrays, number)

    return _coloring(pattern, _best(color, order, fewest, best))


def _symmetric_coloring(pattern: SparsityPattern, method: str, order: str) -> Coloring:
    ptr, idx = to_numpy(pattern.crow_indices), to_numpy(pattern.col_indices)
    permutation = to_numpy(pattern.transpose_permutation)

    def color(number: int) -> tuple[np.ndarray, ...]:
        return _analysis.symmetric_coloring(ptr, idx, permutation, number, method == "acyclic")

    return _coloring(pattern, _best(color, order, 2))


def _best(color: Callable, order: str, fewest: int, best: tuple | None = None) -> tuple[np.ndarray, ...]:
    """The coloring (colors, ptr, rows) with the fewest colors, trying orders until one has `fewest`."""
    for number, name in enumerate(_ORDERS):
        if order in ("best", name) and (best is None or len(best[1]) - 1 > fewest):
            found = color(number)
            best = found if best is None or len(found[1]) < len(best[1]) else best
    assert best is not None
    return best


export(globals())
