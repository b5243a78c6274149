"""Incomplete Cholesky and LU factors, on a given pattern or with a threshold by which values choose it,
differentiable in the matrix."""

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.arguments import Index, NotNegative
from learnsolve.matrix import checks
from learnsolve.matrix.cache import makes_plain_tensors
from learnsolve.matrix.checks import RealSquareMatrix, SquarePattern
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops.arithmetic import plain_values, union_plan
from learnsolve.ops.complete import complete_fill
from learnsolve.ops.incomplete_factors import (
    REMEDY,
    Search,
    append_omega,
    attempts,
    breakdown_error,
    breakdown_message,
    expand_omega,
    expand_shift,
    factor,
    missing_diagonal,
    shift_diagonal,
    warn,
)
from learnsolve.ops.indexing import construct_pattern, onto
from learnsolve.ops.structure import symmetric_pattern
from learnsolve.ops.triangular import triangle_pattern


class IncompleteCholesky(NamedTuple):
    """A ~ L L^T, from `ic`, `mic` or `ict`.

    Attributes
    ----------
    L : CSR, lower triangular, with its diagonal
    shift : Tensor, the shift used, with the batch shape (...)

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
    >>> L, shift = ls.ops.ic(A)
    >>> L.to_dense(), shift
    (tensor([[2., 0.],
            [1., 2.]]), tensor(0.))
    """

    L: CSR
    shift: Tensor


class IncompleteLU(NamedTuple):
    """A ~ L U, from `ilu` or `ilut`.

    Attributes
    ----------
    L : CSR, lower triangular, with its unit diagonal stored
    U : CSR, upper triangular, with its diagonal
    shift : Tensor, the shift used, with the batch shape (...)

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [4.0, 5.0]]))
    >>> factors = ls.ops.ilu(A)
    >>> (factors.L @ (factors.U @ torch.ones(2))), A @ torch.ones(2)
    (tensor([3., 9.]), tensor([3., 9.]))
    """

    L: CSR
    U: CSR
    shift: Tensor


def ic(
    A: RealSquareMatrix,
    *,
    level: Index | None = 0,
    pattern: SparsityPattern | None = None,
    shift: float | Tensor = 0.0,
    on_breakdown: Literal["raise", "shift"] = "raise",
) -> IncompleteCholesky:
    r"""Incomplete Cholesky factor IC(k), k = `level`: L on the lower triangle of A's pattern with fill, with

    .. math:: (L L^T)_{ij} = (A + \sigma\, \mathrm{diag}(A))_{ij} \quad \text{for all entries } i \ge j.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, with every entry of its diagonal. Values may have batch axes.
        Only the lower triangle is read. The rest has a zero gradient
    level : int, not negative, or None, as for `preconditioners.fill_pattern`
    pattern : SparsityPattern with its diagonal, instead of `level`. Entries of A outside of it are dropped
    shift : sigma, float or Tensor of A's dtype, shape () or A's batch shape, finite and not negative
    on_breakdown : for a pivot that is not positive, "raise", or "shift": start from sigma = 1e-3 and double
        it until the factor exists, at most 30 times, for each matrix of a batch separately

    Returns
    -------
    IncompleteCholesky : ``L``, on one pattern object for each pattern of A and level, and ``shift``, sigma

    Raises
    ------
    ValueError, TypeError
        if a diagonal entry is missing, a pivot is not positive (the message names its row), the factor
        overflows, sigma is negative, the plan exceeds 8 GiB, or the arguments do not fit A.

    Notes
    -----
    Gradient: the reverse sweep of the elimination (Murray, arXiv 1602.07527). A searched sigma is a
    constant. Any order, forward mode, vmap, `torch.compile` (not "shift"). A RuntimeWarning reports the
    shift and how many factorizations failed. Cost: two flops per product l_ik l_jk on an entry, twice as many
    for the gradient (docs/operations.md). On a CUDA device a breakdown yields NaN. Source: Meijerink and van
    der Vorst, doi:10.1090/S0025-5718-1977-0438681-4.

    Examples
    --------
    >>> import learnsolve as ls
    >>> L = ls.ops.ic(ls.problems.poisson((3,))).L
    >>> (L.to_dense() @ L.to_dense().mT).round(decimals=6)[0]
    tensor([ 2., -1.,  0.], dtype=torch.float64)
    """
    return cholesky("ic", A, level_pattern("ic", A, level, pattern, lower=True), shift, on_breakdown)


def mic(
    A: RealSquareMatrix,
    *,
    level: Index | None = 0,
    pattern: SparsityPattern | None = None,
    shift: float | Tensor = 0.0,
    omega: float | Tensor = 1.0,
    on_breakdown: Literal["raise", "shift"] = "raise",
) -> IncompleteCholesky:
    r"""Modified incomplete Cholesky factor MIC(k): `ic` that keeps the row sums, for omega = 1:
    :math:`L L^T \mathbf{1} = (A + \sigma\, \mathrm{diag}(A))\, \mathbf{1}`.

    A product l_ik l_jk outside the pattern is multiplied by omega and subtracted from the diagonals of rows i
    and j: L L^T agrees with the (shifted) matrix off the diagonal and, for omega = 1, in its row sums. omega
    = 0 is `ic`. In between is the relaxed factor [2]_. Entries of A outside a pattern are dropped first.

    Parameters
    ----------
    A, level, pattern, shift, on_breakdown : see `ic`
    omega : float or Tensor of A's dtype, between 0 and 1, shape () or A's batch shape

    Returns
    -------
    IncompleteCholesky, as for `ic`

    Raises
    ------
    ValueError, TypeError : see `ic`, and if omega is not between 0 and 1.

    Notes
    -----
    For elliptic problems the preconditioned condition number is O(1/h) instead of O(1/h^2) if A is slightly
    more than diagonally dominant [1]_. Gradient (also for omega), cost and warnings are as for `ic`, but
    dropped products also cost flops, and for 0 < omega < 1 two values are stored per entry of L.

    References
    ----------
    .. [1] I. Gustafsson, "A class of first order factorization methods", BIT 18, 1978,
       doi:10.1007/BF01931691.
    .. [2] O. Axelsson, G. Lindskog, "On the eigenvalue distribution of a class of preconditioning methods",
       Numer. Math. 48, 1986, doi:10.1007/BF01389447.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((3, 3))
    >>> L = ls.ops.mic(A).L.to_dense()
    >>> bool(((L @ L.mT).sum(1) - A.sum(1)).abs().max() < 1e-12)
    True
    """
    relaxed = expand_omega("mic", omega, A.values)
    pattern = level_pattern("mic", A, level, pattern, lower=True)
    if not isinstance(omega, Tensor) and omega in (0, 1):  # no product is scaled
        return cholesky("mic" if omega else "mic/ic", A, pattern, shift, on_breakdown)
    return cholesky("mic/relaxed", A, pattern, shift, on_breakdown, relaxed)


def ilu(
    A: RealSquareMatrix,
    *,
    level: Index | None = 0,
    pattern: SparsityPattern | None = None,
    shift: float | Tensor = 0.0,
    on_breakdown: Literal["raise", "shift"] = "raise",
) -> IncompleteLU:
    r"""Incomplete LU factors ILU(k), k = `level`: L and U on the triangles of A's pattern with fill, with

    .. math:: (L U)_{ij} = (A + \sigma\, \mathrm{diag}(A))_{ij} \quad \text{for all entries } (i, j),
        \qquad L_{ii} = 1.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, with every entry of its diagonal. Values may have batch axes
    level, pattern : as for `ic`. A pattern can also be that of `ilut`
    shift, on_breakdown : as for `ic`. A breakdown is a zero pivot. Rows are not exchanged

    Returns
    -------
    IncompleteLU : ``L`` with its unit diagonal stored, so that ``L @ (U @ x)`` is the product (`sptrsv` with
        unit_diagonal does not read it), and ``U`` with its diagonal, both on the same pattern objects in
        every call with A's pattern and level. ``shift`` is as for `ic`

    Raises
    ------
    ValueError, TypeError
        as for `ic`, and for a pivot that is zero or not finite.

    Notes
    -----
    Gradient: the reverse sweep of the elimination on the same pattern. Gradients with respect to the unit
    diagonal of L are ignored. Cost, order of derivatives and threads are as for `ic`. Source: Y. Saad,
    "Iterative Methods for Sparse Linear Systems", 2nd edition, SIAM, 2003, section 10.3.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [4.0, 5.0]]))
    >>> L, U, shift = ls.ops.ilu(A)
    >>> L.to_dense(), U.to_dense()
    (tensor([[1., 0.],
            [2., 1.]]), tensor([[2., 1.],
            [0., 3.]]))
    """
    return lu("ilu", A, level_pattern("ilu", A, level, pattern), shift, on_breakdown)


def fill_pattern(A: SquarePattern, level: Index | None = 1) -> SparsityPattern:
    r"""The pattern of ILU(k) and IC(k), k = `level`: the entries (i, j) with :math:`\mathrm{lev}_{ij} \le k`.

    The level of an entry of A, and of the diagonal, is 0. The level of fill is
    :math:`\mathrm{lev}_{ij} = \min_{k < \min(i, j)} (\mathrm{lev}_{ik} + \mathrm{lev}_{kj} + 1)`, so level 0
    is A's pattern, and level n the pattern of L and U without dropping. Level None is the complete fill of A
    + A^T from its elimination tree, as for `ops.cholesky` and `ops.lu` in natural order. ``level=`` of `IC`,
    `MIC`, `ILU` and the operations behind them uses these patterns. For a matrix with only one triangle,
    pass ``A + A.T``, since one triangle has no fill.

    Parameters
    ----------
    A : CSR or SparsityPattern, shape (n, n)
    level : int, not negative, or None

    Returns
    -------
    SparsityPattern
        with its diagonal, the same object in every call. A's own pattern if nothing is added.

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
    >>> [cg(A, b, M=P.IC(A, pattern=P.fill_pattern(A, k))).iterations for k in (0, 1, 2)]
    [28, 20, 17]
    """
    P = A.pattern if isinstance(A, CSR) else A
    if level is None:
        return complete_fill("fill_pattern", P, "natural", False, True).pattern
    return P._plan_once(_plan_fill, min(level, P.shape[0]))[0] or P


def _plan_fill(P: SparsityPattern, level: int) -> tuple[SparsityPattern | None]:
    crow, col = _analysis.level_fill(to_numpy(P.crow_indices), to_numpy(P.col_indices), level)
    return (None if len(col) == P.nnz else construct_pattern(P, crow, col, P.shape),)


def level_pattern(
    function: str, A: CSR, level: int | None, pattern: SparsityPattern | None, lower: bool = False
) -> SparsityPattern | None:
    """The pattern of the factors, None for A's own. `lower`: only the lower triangle of A is read."""
    if level == 0:
        return pattern
    if pattern is not None:
        raise ValueError(
            f"{function}: pass level or pattern, not both, since a level chooses a pattern, got "
            f"level={level} and a pattern. Remove one (fill_pattern(A, {level}) is the pattern of this level)"
        )
    P = A.pattern
    if lower and not symmetric_pattern(P):
        L = triangle_pattern(P, "lower")
        P = union_plan(L, L.T).pattern or L
    return fill_pattern(P, level)


def cholesky(
    kind: str,
    A: CSR,
    pattern: SparsityPattern | None,
    shift: float | Tensor,
    on_breakdown: str,
    omega: Tensor | None = None,
) -> IncompleteCholesky:
    """`kind`: as in incomplete_factors.py."""
    function = kind.partition("/")[0]
    if pattern is not None:
        checks.pattern(function, "pattern", pattern, A.shape, A)
        pattern = triangle_pattern(pattern, "lower")
    f, P, shift = _factors(kind, A, pattern, shift, on_breakdown, omega)
    lower = triangle_pattern(P, "lower")
    return IncompleteCholesky(CSR(f if omega is None else f[..., : lower.nnz], lower), shift)


def lu(
    kind: str, A: CSR, pattern: SparsityPattern | None, shift: float | Tensor, on_breakdown: str
) -> IncompleteLU:
    function = kind.partition("/")[0]
    if pattern is not None:
        checks.pattern(function, "pattern", pattern, A.shape, A)
    f, P, shift = _factors(kind, A, pattern, shift, on_breakdown)
    lower, upper = triangle_pattern(P, "lower"), triangle_pattern(P, "upper")
    lower_values, upper_values = f.split([lower.nnz, upper.nnz], dim=-1)
    return IncompleteLU(CSR(lower_values, lower), CSR(upper_values, upper), shift)


def _factors(
    kind: str,
    A: CSR,
    given: SparsityPattern | None,
    shift: float | Tensor,
    on_breakdown: str,
    omega: Tensor | None = None,
) -> tuple[Tensor, SparsityPattern, Tensor]:
    """(factors, their pattern, the shift used); factors and shift have A's batch axes."""
    function = kind.partition("/")[0]
    pattern = A.pattern if given is None else given
    missing_diagonal(function, pattern, "A" if given is None else "the pattern")
    values, batch = onto(A, pattern).values, A.batch_shape
    used = expand_shift(function, shift, values)
    unshifted = not isinstance(shift, Tensor) and shift == 0
    if omega is not None:
        values = append_omega(values, omega, pattern)
    size = values.shape[-1]
    if on_breakdown == "shift":
        if torch.compiler.is_dynamo_compiling():
            raise NotImplementedError(
                f'{function}: on_breakdown="shift" cannot be traced by torch.compile, because the search '
                "depends on values. Pass a shift"
            )
        flat = values.detach().reshape(batch.numel(), size)
        start = used.detach().reshape(batch.numel())
        found = Search.apply(flat, start, pattern, kind).reshape(batch)  # type: ignore[union-attr]
        # If the first attempt succeeded, this is the given shift, with its gradient.
        used = torch.where(found == used, used, found)
        unshifted = False
    if not unshifted:
        values = shift_diagonal(values, used, pattern)
    if len(batch) > 1:
        f = factor(values.reshape(batch.numel(), size), pattern, kind)
        f = f.reshape(*batch, f.shape[-1])
    else:
        f = factor(values, pattern, kind)
    return f, pattern, used


def ict(
    A: RealSquareMatrix,
    *,
    max_fill: Index = 5,
    drop_tol: NotNegative = 1e-3,
    shift: float | Tensor = 0.0,
    on_breakdown: Literal["raise", "shift"] = "raise",
) -> IncompleteCholesky:
    r"""Incomplete Cholesky factor with a threshold, ICT: `ic` on a pattern chosen from the values of A.

    Column by column, :math:`w_i = a_{ij} - \sum_{k<j} l_{ik} l_{jk}`, i > j, is computed from the entries
    kept so far. Entries with :math:`|w_i| < \mathtt{drop\_tol}\, \|a_j\|_2` are dropped, where a_j is the
    column of (shifted) A on and below the diagonal. Of the others the largest are kept (ties in order), and
    the diagonal.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, with every entry of its diagonal, one matrix with values (nnz,)
    max_fill : int. Column j of L has at most `max_fill` entries more than column j of tril(A)
    drop_tol : float, relative to the norm of a column. 0: only `max_fill` bounds the pattern
    shift, on_breakdown : see `ic`. A search for a shift chooses a new pattern in each trial

    Returns
    -------
    IncompleteCholesky : ``L``, on the last call's pattern object if the choice is equal, and ``shift``

    Raises
    ------
    ValueError, TypeError
        as for `ic`.
    NotImplementedError
        for a batch of matrices (also under `vmap`) and under `torch.compile`: choose the pattern from one
        matrix, then ``ic(A, pattern=L.pattern)``.

    Notes
    -----
    Gradient: as for `ic` on the pattern, which is a constant. Cost: two flops per product l_ik l_jk of kept
    entries, in float64 on one thread of the host, then `ic`, whose plan is reused for an equal choice. In
    a training loop choose once, then use ``ic(A, pattern=pattern)``. Deterministic. Sources: Lin, Moré,
    doi:10.1137/S1064827597327334; Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 10.4.1.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((30, 30))
    >>> pattern = ls.ops.ict(A, max_fill=2).L.pattern
    >>> ls.ops.ic(A).L.nnz, ls.ops.ic(2.0 * A, pattern=pattern).L.nnz  # nothing is chosen for 2 A
    (2640, 4377)
    """
    pattern, shift = _choose("ict", A, max_fill, drop_tol, shift, on_breakdown)
    return cholesky("ict/ic", A, pattern, shift, on_breakdown)


def ilut(
    A: RealSquareMatrix,
    *,
    max_fill: Index = 5,
    drop_tol: NotNegative = 1e-3,
    shift: float | Tensor = 0.0,
    on_breakdown: Literal["raise", "shift"] = "raise",
) -> IncompleteLU:
    r"""Incomplete LU factors with a threshold, ILUT: `ilu` on a pattern chosen from the values of A.

    Saad's dual threshold: row by row, an entry :math:`l_{ik} u_{kk}` or u_ij smaller than
    :math:`\mathtt{drop\_tol}\, \|a_i\|_2` is dropped, where a_i is the row of (shifted) A. Of a complete row
    the largest entries are kept, in L and U separately (ties in order), and the diagonal. Saad compares l_ik
    itself, which depends on the scaling of the rows. This pattern does not.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, with every entry of its diagonal, one matrix with values (nnz,)
    max_fill : int. Rows of L and of U have at most `max_fill` entries more than that part of the row of A
    drop_tol : float, relative to the norm of a row. 0: only `max_fill` bounds the pattern
    shift, on_breakdown : see `ilu`. A search for a shift chooses a new pattern in each trial

    Returns
    -------
    IncompleteLU : ``L`` and ``U`` as for `ilu`, on patterns as for `ict`, and ``shift``

    Raises
    ------
    ValueError, TypeError
        as for `ilu`.
    NotImplementedError
        for a batch of matrices (also under `vmap`) and under `torch.compile`: use the pattern of one matrix,
        ``pattern = (L + U).pattern``, and ``ilu(A, pattern=pattern)``.

    Notes
    -----
    Values are as for `ilu` on the kept pattern: they differ from the values used for the choice, which
    include entries that `max_fill` removes at the end. Gradient: as for `ilu` on the pattern, which is a
    constant. Cost as for `ict`. Source: Y. Saad, "ILUT: a dual threshold incomplete LU factorization", Numer.
    Linear Algebra Appl. 1 (1994), doi:10.1002/nla.1680010405.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[4.0, 1.0, 1.0], [1.0, 4.0, 0.0], [1.0, 0.0, 4.0]]))
    >>> [ls.ops.ilut(A, max_fill=1, drop_tol=tol).U.nnz for tol in (0.0, 0.1)]  # entry (1, 2) is small
    [6, 5]
    """
    pattern, shift = _choose("ilut", A, max_fill, drop_tol, shift, on_breakdown)
    return lu("ilut/ilu", A, pattern, shift, on_breakdown)


def _choose(
    function: str, A: CSR, max_fill: int, drop_tol: float, shift: float | Tensor, on_breakdown: str
) -> tuple[SparsityPattern, float | Tensor]:
    """The pattern and the shift: the argument, or the result of the search."""
    twin = "ic(A, pattern=L.pattern)" if function == "ict" else "ilu(A, pattern=(L + U).pattern)"
    if torch.compiler.is_dynamo_compiling():
        raise NotImplementedError(
            f"{function}: torch.compile cannot trace the choice of a pattern, which depends on values. "
            f"Choose it before, then {twin}"
        )
    used = expand_shift(function, shift, A.values)
    values, start = plain_values(A.values), plain_values(used)
    if values.dim() > 1 or start.dim() > 0:
        raise NotImplementedError(
            f"{function}: each matrix of a batch would choose a pattern of its own, got values of shape "
            f"{tuple(values.shape)} and shifts of shape {tuple(start.shape)}. Choose the pattern from one "
            f"matrix, then {twin}"
        )
    missing_diagonal(function, A.pattern, "A")
    most = min(max_fill, A.shape[0])
    return _search(function, A.pattern, values, most, drop_tol, shift, float(start), on_breakdown)


@makes_plain_tensors
def _search(
    function: str,
    P: SparsityPattern,
    values: Tensor,
    max_fill: int,
    drop_tol: float,
    given: float | Tensor,
    start: float,
    on_breakdown: str,
) -> tuple[SparsityPattern, float | Tensor]:
    numbers = to_numpy(values.double())
    on = to_numpy(P.diagonal_positions)
    if cholesky := function == "ict":  # by columns
        by = to_numpy(P.transpose_permutation)
        Q = P.T
    else:
        by, Q = slice(None), P
    ptr, idx = (to_numpy(a).astype("int64", copy=False) for a in (Q.crow_indices, Q.col_indices))
    message, shift = "", start
    for failed, shift in enumerate(attempts(start)):
        shifted = numbers.copy()
        shifted[on] *= 1 + shift
        crow, col, row, pivot = _analysis.threshold_pattern(
            ptr, idx, shifted[by], cholesky, max_fill, drop_tol
        )
        if row < 0:
            if shift != start:
                warn(function, shift, failed)
            return _reuse_choice(function, P, crow, col), given if shift == start else shift
        message = breakdown_message("ict/ic" if cholesky else "ilut/ilu", row, pivot, None)
        if on_breakdown == "raise":
            raise ValueError(message + REMEDY)
    raise breakdown_error(message, shift)


def _reuse_choice(function: str, P: SparsityPattern, crow: np.ndarray, col: np.ndarray) -> SparsityPattern:
    """The last choice for P if it is the same, so that its plans are reused."""
    pattern, last = P._make(construct_pattern, P, crow, col, P.shape), P._last(function)
    if last is not None and last[0].equals(pattern):
        return last[0]
    P._keep_last(function, (pattern,))
    return pattern
