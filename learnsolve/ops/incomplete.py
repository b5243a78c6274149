"""Incomplete Cholesky and LU factors without fill, differentiable in the matrix."""

from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops._incomplete import factor, plan_of
from learnsolve.ops._operands import broadcasts_to, plain_values
from learnsolve.ops._shift import Search
from learnsolve.ops.triangle import triangle_of


class IncompleteCholesky(NamedTuple):
    """A ~ L L^T, by `ic0` or `mic0`."""

    L: CSR
    shift: Tensor  # that was used, shape (...) of the batch


class IncompleteLU(NamedTuple):
    """A ~ L U, by `ilu0`. L's ones are stored."""

    L: CSR
    U: CSR
    shift: Tensor  # that was used, shape (...) of the batch


def ic0(A: CSR, *, shift: float | Tensor = 0.0, on_breakdown: str = "raise") -> IncompleteCholesky:
    r"""Incomplete Cholesky factor without fill: L on the pattern of A's lower triangle with

    .. math:: (L L^T)_{ij} = (A + \sigma\, \mathrm{diag}(A))_{ij} \quad \text{for all entries } i \ge j.

    A is taken to be symmetric: only its lower triangle is read, the rest gets a zero gradient.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, with every entry of its diagonal; values may have batch axes
    shift : float or Tensor of A's dtype, shape () or one that broadcasts to A's batch axes
        sigma, relative to the diagonal, finite and not negative. Differentiable if it is a tensor.
    on_breakdown : "raise" or "shift"
        what to do at a pivot that is not positive: raise, or search a shift: double it, from 1e-3 on, until
        the factor exists, at most 30 times, each matrix of a batch for itself.

    Returns
    -------
    IncompleteCholesky
        ``L``, a `CSR` whose pattern is the same object for every call with A's pattern, and ``shift``, that
        was used, a tensor of A's batch shape.

    Raises
    ------
    ValueError
        if A is not square, if an entry of the diagonal is missing, at a pivot that is not positive (row and
        value are named), if another entry of the factor overflows, if a shift is negative, or if the plan
        would take more than 8 GiB (a pattern that is nearly full).
    TypeError
        if dtypes do not fit.

    Warns
    -----
    RuntimeWarning
        if ``on_breakdown="shift"`` had to shift; it names the largest shift.

    Notes
    -----
    Gradient: the reverse sweep of the elimination on the same pattern [1]_; a shift that was searched is a
    constant to it. Any order; forward mode, vmap, `torch.compile` (not with ``on_breakdown="shift"``).

    Cost: two flops for each product l_ik l_jk that falls on an entry (i, j), a division for each entry of L,
    in one pass over a plan that is made once per pattern: 8 bytes a product, 16 an entry. The gradient is one
    pass more, of twice as many flops. One matrix runs on one thread, those of a batch in parallel; the same
    bits for any number of threads. On a CUDA device the steps run by levels of those that do not wait for one
    another; there breakdowns are not checked for, which would wait for the device; one makes the whole factor
    NaN. A search for a shift costs a factorisation for each trial, and waits for the device.

    References
    ----------
    .. [1] I. Murray, "Differentiation of the Cholesky decomposition", 2016, arXiv:1602.07527, restricted to
       the pattern.
    .. [2] J. A. Meijerink and H. A. van der Vorst, "An iterative solution method for linear systems of which
       the coefficient matrix is a symmetric M-matrix", Math. Comp. 31, 1977,
       doi:10.1090/S0025-5718-1977-0438681-4.

    Examples
    --------
    >>> import learnsolve as ls
    >>> L = ls.ops.ic0(ls.problems.poisson((3,))).L
    >>> (L.to_dense() @ L.to_dense().mT).round(decimals=6)
    tensor([[ 2., -1.,  0.],
            [-1.,  2., -1.],
            [ 0., -1.,  2.]], dtype=torch.float64)
    """
    return _cholesky("ic0", A, shift, on_breakdown)


def mic0(A: CSR, *, shift: float | Tensor = 0.0, on_breakdown: str = "raise") -> IncompleteCholesky:
    r"""Modified incomplete Cholesky factor without fill: `ic0` that keeps the row sums,

    .. math:: L L^T \mathbf{1} = (A + \sigma\, \mathrm{diag}(A))\, \mathbf{1}.

    Where a product l_ik l_jk falls on no entry (i, j) it is taken from the diagonal of row i and from that of
    row j. So L L^T agrees with the (shifted) matrix on all entries off the diagonal, and in its row sums.
    Where no fill is dropped it equals `ic0`. For elliptic problems the preconditioned condition number is
    O(1/h) instead of O(1/h^2) if A is a little more than diagonally dominant [1]_: give a small `shift`.

    Arguments, result, errors, gradient and cost are those of `ic0`; dropped products count too.

    References
    ----------
    .. [1] I. Gustafsson, "A class of first order factorization methods", BIT 18, 1978,
       doi:10.1007/BF01931691.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((3, 3))
    >>> L = ls.ops.mic0(A).L.to_dense()
    >>> ((L @ L.mT).sum(1) - A.sum(1)).abs().max() < 1e-12
    tensor(True)
    """
    return _cholesky("mic0", A, shift, on_breakdown)


def ilu0(A: CSR, *, shift: float | Tensor = 0.0, on_breakdown: str = "raise") -> IncompleteLU:
    r"""Incomplete LU factors without fill: L and U on the pattern of A's triangles with

    .. math:: (L U)_{ij} = (A + \sigma\, \mathrm{diag}(A))_{ij} \quad \text{for all entries } (i, j),
        \qquad L_{ii} = 1.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, with every entry of its diagonal; values may have batch axes
    shift, on_breakdown :
        as for `ic0`; a pivot breaks down if it is zero. There is no pivoting: rows are not exchanged.

    Returns
    -------
    IncompleteLU
        ``L`` with its ones stored, so that ``L @ (U @ x)`` is the product; ``sptrsv(L, b,
        unit_diagonal=True)`` does not read them. ``U`` with its diagonal. Both patterns are the same objects
        for every call with A's pattern. ``shift`` as for `ic0`.

    Raises
    ------
    ValueError
        if A is not square, if an entry of the diagonal is missing, at a pivot that is zero or not finite
        (row and value are named), if another entry of a factor overflows, or if a shift is negative.
    TypeError
        if dtypes do not fit.

    Notes
    -----
    Gradient: the reverse sweep of the elimination on the same pattern; what reaches L's ones has no effect.
    Cost, order of derivatives and threads are as for `ic0`.

    References
    ----------
    .. [1] Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd edition, SIAM, 2003, section 10.3.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [4.0, 5.0]]))
    >>> L, U, shift = ls.ops.ilu0(A)
    >>> L.to_dense(), U.to_dense()
    (tensor([[1., 0.],
            [2., 1.]]), tensor([[2., 1.],
            [0., 3.]]))
    """
    f, shift = _factors("ilu0", A, shift, on_breakdown)
    lower, upper = triangle_of(A.pattern, "lower"), triangle_of(A.pattern, "upper")
    lower_values, upper_values = f.split([lower.nnz, upper.nnz], dim=-1)
    return IncompleteLU(CSR(lower_values, lower), CSR(upper_values, upper), shift)


def _cholesky(function: str, A: CSR, shift: float | Tensor, on_breakdown: str) -> IncompleteCholesky:
    f, shift = _factors(function, A, shift, on_breakdown)
    return IncompleteCholesky(CSR(f, triangle_of(A.pattern, "lower")), shift)


def _factors(function: str, A: CSR, shift: float | Tensor, on_breakdown: str) -> tuple[Tensor, Tensor]:
    """(factors, shift that was used), both with A's batch axes."""
    _check.matrix(function, "A", A)
    values, pattern = A.values, A.pattern
    _check.dtype(function, "A.values", values)
    _check.one_of(function, "on_breakdown", on_breakdown, ("raise", "shift"))
    _check.square(function, "A", A.shape)
    row = pattern._missing_diagonal
    if row >= 0:
        raise ValueError(
            f"{function}: A must have an entry on its diagonal in every row, row {row} has none; permute the "
            "rows, or add the entry (an explicit zero will do)"
        )
    batch = A.batch_shape
    used = _as_shift(function, shift, values)
    unshifted = not isinstance(shift, Tensor) and shift == 0
    if on_breakdown == "shift":
        if torch.compiler.is_dynamo_compiling():
            raise NotImplementedError(
                f'{function}: on_breakdown="shift" cannot be traced by torch.compile, because the search '
                "depends on values; give a shift"
            )
        flat = values.detach().reshape(batch.numel(), pattern.nnz)
        start = used.detach().reshape(batch.numel())
        found = Search.apply(flat, start, pattern, function).reshape(batch)  # type: ignore[union-attr]
        # Where the first attempt went well this is the shift that was given, with its gradient.
        used = torch.where(found == used, used, found)
        unshifted = False
    if not unshifted:
        scaled = values * (1 + used.unsqueeze(-1))
        values = torch.where(plan_of(pattern, function).on_diagonal, scaled, values)
    if len(batch) > 1:
        f = factor(values.reshape(batch.numel(), pattern.nnz), pattern, function)
        f = f.reshape(*batch, f.shape[-1])
    else:
        f = factor(values, pattern, function)
    return f, used


def _as_shift(function: str, shift: float | Tensor, values: Tensor) -> Tensor:
    """`shift` for each matrix of the batch."""
    if isinstance(shift, Tensor):
        _check.same_kind(function, "shift", shift, values)
        batch = values.shape[:-1]
        if not broadcasts_to(shift.shape, batch):
            raise ValueError(
                f"{function}: shift must broadcast to the batch axes {tuple(batch)} of A, got shape "
                f"{tuple(shift.shape)}"
            )
        if not torch.compiler.is_dynamo_compiling() and shift.is_cpu:
            given = plain_values(shift)
            if not (good := (given >= 0) & (given < float("inf"))).all():
                raise ValueError(
                    f"{function}: shift must be finite and not negative, got {float(given[~good][0])}"
                )
        return shift.expand(batch)
    if isinstance(shift, bool) or not isinstance(shift, Real):  # NumPy's scalars too
        raise TypeError(f"{function}: shift must be a number or a torch.Tensor, got {type(shift).__name__}")
    if not 0 <= shift < float("inf"):
        raise ValueError(f"{function}: shift must be finite and not negative, got {shift}")
    return torch.full(values.shape[:-1], float(shift), dtype=values.dtype, device=values.device)
