"""Patterns of incomplete factors by level of fill.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 10.3.3.
"""

from learnsolve import _analysis
from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.ops.core.complete import complete_fill
from learnsolve.ops.core.selection import trusted


def fill_pattern(A: CSR | SparsityPattern, level: int | None = 1) -> SparsityPattern:
    r"""The pattern of ILU(k) and IC(k), k = `level`: the entries (i, j) with :math:`\mathrm{lev}_{ij} \le k`.

    The level of an entry of A, and of the diagonal, is 0; the level of fill is
    :math:`\mathrm{lev}_{ij} = \min_{k < \min(i, j)} (\mathrm{lev}_{ik} + \mathrm{lev}_{kj} + 1)`. So level 0
    is A's pattern, and level n the pattern of L and U without dropping. Pass the result as ``pattern=`` to
    `IC0`, `MIC0`, `ILU0` and the operations behind them; IC(k) uses its lower triangle. For a matrix with
    only one triangle, pass ``A + A.T``, since one triangle has no fill. Level None is the complete fill of A
    + A^T from its elimination tree, as for `ops.cholesky` and `ops.lu` in natural order.

    Parameters
    ----------
    A : CSR or SparsityPattern, shape (n, n)
    level : int, not negative, or None

    Returns
    -------
    SparsityPattern
        with its diagonal, the same object in every call. A's own pattern if nothing is added.

    Raises
    ------
    ValueError
        if A is not square, or `level` is negative.

    Notes
    -----
    Cost: once per pattern and level, as many steps as the elimination on the result has products, on one
    thread, with 8 bytes per entry of the result (16 temporarily). For None, one step per entry of the result.

    References
    ----------
    Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd edition, SIAM, 2003, section 10.3.3

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((50, 50)), torch.ones(2500, dtype=torch.float64)
    >>> P, cg = ls.preconditioners, ls.solvers.cg
    >>> [cg(A, b, M=P.IC0(A, pattern=P.fill_pattern(A, k))).iterations for k in (0, 1, 2)]
    [28, 20, 17]
    """
    P = A.pattern if isinstance(A, CSR) else A
    if not isinstance(P, SparsityPattern):
        raise TypeError(f"fill_pattern: A must be a CSR or a SparsityPattern, got {type(A).__name__}")
    checks.square("fill_pattern", "A", P.shape)
    if level is None:
        return complete_fill("fill_pattern", P, "natural", False, True).pattern
    level = min(checks.integer("fill_pattern", "level", level, 0), P.shape[0])
    return P._planned(_plan_fill, level)[0] or P


def _plan_fill(P: SparsityPattern, level: int) -> tuple[SparsityPattern | None]:
    crow, col = _analysis.level_fill(as_numpy(P.crow_indices), as_numpy(P.col_indices), level)
    return (None if len(col) == P.nnz else trusted(P, crow, col, P.shape),)
