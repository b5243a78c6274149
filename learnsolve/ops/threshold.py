"""Threshold incomplete Cholesky and LU factors: values choose the pattern for `ic0` and `ilu0`."""

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.ops.core.factor_arguments import as_shift, check, missing_diagonal
from learnsolve.ops.core.incomplete import REMEDY, breakdown_message
from learnsolve.ops.core.operands import plain_values
from learnsolve.ops.core.selection import trusted
from learnsolve.ops.core.shift import attempts, in_vain, warn
from learnsolve.ops.incomplete import IncompleteCholesky, IncompleteLU, cholesky, lu


def ict(
    A: CSR,
    *,
    fill: int = 5,
    droptol: float = 1e-3,
    shift: float | Tensor = 0.0,
    on_breakdown: str = "raise",
) -> IncompleteCholesky:
    r"""Incomplete Cholesky factor with a threshold, ICT: `ic0` on a pattern chosen from the values of A.

    Column by column, :math:`w_i = a_{ij} - \sum_{k<j} l_{ik} l_{jk}`, i > j, is computed from the entries
    kept so far. Entries with :math:`|w_i| < \mathrm{droptol}\, \|a_j\|_2` are dropped, where a_j is the
    column of (shifted) A on and below the diagonal. Of the others the largest are kept (ties in order), and
    the diagonal.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, with every entry of its diagonal; one matrix, values (nnz,)
    fill : int; column j of L has at most `fill` entries more than column j of tril(A)
    droptol : float, relative to the norm of a column; 0: only `fill` bounds the pattern
    shift, on_breakdown : as for `ic0`; a search for a shift chooses a new pattern in each trial

    Returns
    -------
    IncompleteCholesky : ``L``, on the last call's pattern object if the choice is equal, and ``shift``

    Raises
    ------
    ValueError, TypeError
        as for `ic0`; if `fill` or `droptol` is negative.
    NotImplementedError
        for a batch of matrices (also under `vmap`) and under `torch.compile`: choose the pattern from one
        matrix, then ``ic0(A, pattern=L.pattern)``.

    Notes
    -----
    Gradient: as for `ic0` on the pattern, which is a constant. Cost: two flops per product l_ik l_jk of kept
    entries, in float64 on one thread of the host, then `ic0`, whose plan is reused for an equal choice. In
    a training loop choose once, then use ``ic0(A, pattern=pattern)``. Deterministic. Sources: Lin, Moré,
    doi:10.1137/S1064827597327334; Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 10.4.1.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((30, 30))
    >>> pattern = ls.ops.ict(A, fill=2).L.pattern
    >>> ls.ops.ic0(A).L.nnz, ls.ops.ic0(2.0 * A, pattern=pattern).L.nnz  # nothing is chosen for 2 A
    (2640, 4377)
    """
    pattern, shift = _choose("ict", A, fill, droptol, shift, on_breakdown)
    return cholesky("ict/ic0", A, pattern, shift, on_breakdown)


def ilut(
    A: CSR,
    *,
    fill: int = 5,
    droptol: float = 1e-3,
    shift: float | Tensor = 0.0,
    on_breakdown: str = "raise",
) -> IncompleteLU:
    r"""Incomplete LU factors with a threshold, ILUT: `ilu0` on a pattern chosen from the values of A.

    Saad's dual threshold: row by row, an entry :math:`l_{ik} u_{kk}` or u_ij smaller than
    :math:`\mathrm{droptol}\, \|a_i\|_2` is dropped, where a_i is the row of (shifted) A. Of a complete row
    the largest entries are kept, in L and U separately (ties in order), and the diagonal. Saad compares l_ik
    itself, which depends on the scaling of the rows; this pattern does not.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, with every entry of its diagonal; one matrix, values (nnz,)
    fill : int; rows of L and of U have at most `fill` entries more than that part of the row of A
    droptol : float, relative to the norm of a row; 0: only `fill` bounds the pattern
    shift, on_breakdown : as for `ilu0`; a search for a shift chooses a new pattern in each trial

    Returns
    -------
    IncompleteLU : ``L`` and ``U`` as for `ilu0`, on patterns as for `ict`, and ``shift``

    Raises
    ------
    ValueError, TypeError
        as for `ilu0`; if `fill` or `droptol` is negative.
    NotImplementedError
        for a batch of matrices (also under `vmap`) and under `torch.compile`: use the pattern of one matrix,
        ``pattern = (L + U).pattern``, and ``ilu0(A, pattern=pattern)``.

    Notes
    -----
    Values are as for `ilu0` on the kept pattern: they differ from the values used for the choice, which
    include entries that `fill` removes at the end. Gradient: as for `ilu0` on the pattern, which is a
    constant. Cost as for `ict`. Source: Y. Saad, "ILUT: a dual threshold incomplete LU factorization", Numer.
    Linear Algebra Appl. 1 (1994), doi:10.1002/nla.1680010405.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[4.0, 1.0, 1.0], [1.0, 4.0, 0.0], [1.0, 0.0, 4.0]]))
    >>> [ls.ops.ilut(A, fill=1, droptol=tol).U.nnz for tol in (0.0, 0.1)]  # entry (1, 2) is small
    [6, 5]
    """
    pattern, shift = _choose("ilut", A, fill, droptol, shift, on_breakdown)
    return lu("ilut/ilu0", A, pattern, shift, on_breakdown)


def _choose(
    function: str, A: CSR, fill: int, droptol: float, shift: float | Tensor, on_breakdown: str
) -> tuple[SparsityPattern, float | Tensor]:
    """The pattern and the shift: the argument, or the result of the search."""
    check(function, A, on_breakdown)
    fill = min(checks.integer(function, "fill", fill, 0), A.shape[0])
    checks.tolerance(function, "droptol", droptol)
    twin = "ic0(A, pattern=L.pattern)" if function == "ict" else "ilu0(A, pattern=(L + U).pattern)"
    if torch.compiler.is_dynamo_compiling():
        raise NotImplementedError(
            f"{function}: torch.compile cannot trace the choice of a pattern, which depends on values; "
            f"choose it before, then {twin}"
        )
    used = as_shift(function, shift, A.values)
    values, start = plain_values(A.values), plain_values(used)
    if values.dim() > 1 or start.dim() > 0:
        raise NotImplementedError(
            f"{function}: each matrix of a batch would choose a pattern of its own, got values of shape "
            f"{tuple(values.shape)} and shifts of shape {tuple(start.shape)}; choose the pattern from one "
            f"matrix, then {twin}"
        )
    missing_diagonal(function, A.pattern, "A")
    return _search(function, A.pattern, values, fill, float(droptol), shift, float(start), on_breakdown)


@makes_plain_tensors
def _search(
    function: str,
    P: SparsityPattern,
    values: Tensor,
    fill: int,
    droptol: float,
    given: float | Tensor,
    start: float,
    on_breakdown: str,
) -> tuple[SparsityPattern, float | Tensor]:
    numbers = as_numpy(values.double())
    on = as_numpy(P.diagonal_positions)
    if cholesky := function == "ict":  # by columns
        by = as_numpy(P.transpose_permutation)
        Q = P.T
    else:
        by, Q = slice(None), P
    ptr, idx = (as_numpy(a).astype("int64", copy=False) for a in (Q.crow_indices, Q.col_indices))
    message, shift = "", start
    for shift in attempts(start):
        shifted = numbers.copy()
        shifted[on] *= 1 + shift
        crow, col, row, pivot = _analysis.threshold_pattern(ptr, idx, shifted[by], cholesky, fill, droptol)
        if row < 0:
            if shift != start:
                warn(function, shift)
            return _chosen(function, P, crow, col), given if shift == start else shift
        message = breakdown_message("ict/ic0" if cholesky else "ilut/ilu0", row, pivot, None)
        if on_breakdown == "raise":
            raise ValueError(message + REMEDY)
    raise in_vain(message, shift)


def _chosen(function: str, P: SparsityPattern, crow: np.ndarray, col: np.ndarray) -> SparsityPattern:
    """The last choice for P if it is the same, so that its plans are reused."""
    pattern, last = P._make(trusted, P, crow, col, P.shape), P._last(function)
    if last is not None and last[0].equals(pattern):
        return last[0]
    P._keep_last(function, (pattern,))
    return pattern
