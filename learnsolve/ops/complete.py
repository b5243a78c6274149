"""Complete Cholesky, L D L^T and LU factors as sparse matrices, log-determinants and entries of the inverse,
differentiable in the matrix."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix.cache import makes_plain_tensors
from learnsolve.matrix.checks import RealSquareMatrix
from learnsolve.matrix.convert import conjugate
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops import direct, incomplete_factors
from learnsolve.ops.autograd import Operation, dispatch, needs_graph
from learnsolve.ops.direct import Factors, has_numbers, solve_values
from learnsolve.ops.indexing import (
    construct_pattern,
    diagonal_mask,
    find,
    permutation,
    permute_values,
    place,
    take,
)
from learnsolve.ops.structure import symmetric_pattern, symmetry
from learnsolve.ops.triangular import triangle_pattern
from learnsolve.ordering import minimum_degree

ORDERINGS = ("minimum_degree", "natural")


class Fill(NamedTuple):
    """The fill of P A P^T, whose row i is row permutation[i] of A."""

    pattern: SparsityPattern  # of L, or of L and U
    at: Tensor  # the positions of A's values that are read, in the lower triangle if it holds them all
    where: Tensor
    permutation: Tensor


class CompleteFactors(NamedTuple):
    """values: of L and, for LU, of U after them, (size) or (B, size) for any batch axes."""

    values: Tensor
    fill: Fill
    kind: str
    batch: torch.Size

    def factors(self) -> list[CSR]:
        P, f = self.fill.pattern, self.values
        sides = ("lower",) if _is_cholesky(self.kind) else ("lower", "upper")
        parts = [triangle_pattern(P, side) for side in sides]
        values = f.reshape(*self.batch, f.shape[-1]).split([part.nnz for part in parts], -1)
        return [CSR(v, part) for v, part in zip(values, parts, strict=True)]

    def pivots(self) -> Tensor:
        """The diagonal of L of L L^T, or of U."""
        return self.values.index_select(-1, self._places)

    def inverse(self) -> Tensor:
        """The entries of A^-T on the pattern, permuted; those off the diagonal twice for L L^T. This is the
        gradient of log |det A|, by the adjoint of the factorization, Takahashi's recurrence."""
        if not torch.compiler.is_dynamo_compiling() and not needs_graph(self.values):
            nothing = self.values[..., :0]  # in place of the gradient with respect to the factors
            return incomplete_factors._Adjoint.forward(self.values, nothing, self.fill.pattern, self.kind)
        weight = 2.0 if _is_cholesky(self.kind) else 1.0
        g = place(weight / self.pivots(), self._places, self.values.shape[-1])
        return dispatch(incomplete_factors._Adjoint, (self.values, g), self.fill.pattern, self.kind)

    @property
    def _places(self) -> Tensor:
        return self.fill.pattern._plan_once(_plan_pivots, self.kind.rpartition("/")[2])[0]


def factor_complete(A: CSR, kind: str, ordering: str | Tensor, *, symmetric: bool = False) -> CompleteFactors:
    """`kind` as in incomplete_factors.py, such as "cholesky/complete". `symmetric`: for L U of the matrix
    whose half is A's lower triangle."""
    function = kind.partition("/")[0]
    lower = symmetric or _is_cholesky(kind)
    fill = complete_fill(function, A.pattern, ordering, lower, not _is_cholesky(kind))
    batch, P = A.batch_shape, fill.pattern
    values = A.values if len(batch) < 2 else A.values.reshape(batch.numel(), A.nnz)
    a = place(take(values, fill.at), fill.where, P.nnz)
    if symmetric:
        a = torch.where(diagonal_mask(P), a, a + transpose_values(a, P))
    try:
        f = incomplete_factors.factor(a, P, kind)
    except incomplete_factors.Breakdown as breakdown:
        raise ValueError(_message(function, fill, _is_cholesky(kind), *breakdown.args)) from None
    return CompleteFactors(f, fill, kind, batch)


def transpose_values(a: Tensor, P: SparsityPattern) -> Tensor:
    """The values of the transpose on a symmetric pattern."""
    return permute_values(a, P.transpose_permutation, P._inverse_permutation)


def _is_cholesky(kind: str) -> bool:
    return kind.endswith("/complete")


def _plan_pivots(P: SparsityPattern, factors: str) -> tuple[Tensor]:
    lower = triangle_pattern(P, "lower")
    if factors == "complete":
        return (lower.diagonal_positions.long(),)
    return (triangle_pattern(P, "upper").diagonal_positions.long() + lower.nnz,)


_REMEDIES = {
    "cholesky": "use ops.ldlt or ops.lu",
    "logdet": "use ops.slogdet",
    "selected_inverse": 'pass kind="lu"',
}


def _message(function: str, fill: Fill, positive: bool, row: int, pivot: float, matrix: int | None) -> str:
    batch = "" if matrix is None else f" of matrix {matrix} of the batch (counted through all its axes)"
    rule, remedy = "nonzero", "Pass another ordering, or solve with spsolve, which exchanges rows"
    if positive:
        rule = "positive"
        remedy = f"A is not positive definite: {_REMEDIES[function]}, or add to its diagonal"
    if not math.isfinite(pivot):
        remedy = "Values of A are not finite, or the factors leave the range of its dtype: scale A"
    return (
        f"{function}: every pivot must be {rule} and finite, but the pivot of row "
        f"{int(fill.permutation[row])}{batch}, number {row} in the order of elimination, is {pivot:.6g}. "
        f"{remedy}"
    )


class _TooMany(ValueError):
    pass


def complete_fill(function: str, P: SparsityPattern, ordering: object, lower: bool, both: bool) -> Fill:
    """lower: only this triangle of A is read. both: the fill of L and U, otherwise only of L."""
    try:
        if isinstance(ordering, Tensor):
            return _fill_in_order(function, P, ordering, lower, both)
        if ordering not in ORDERINGS:
            rule = f"one of {ORDERINGS} or a permutation, a Tensor of shape (n,)"
            raise ValueError(f"{function}: ordering must be {rule}, got {ordering!r}")
        return P._plan_once(_plan_fill, ordering, lower, both)
    except _TooMany as too_many:
        raise ValueError(f"{function}: {too_many}") from None


@makes_plain_tensors
def _fill_in_order(function: str, P: SparsityPattern, ordering: Tensor, lower: bool, both: bool) -> Fill:
    """The fill for the last ordering is cached."""
    key = f"complete fill {lower} {both}"
    last: Fill | None = P._last(key)
    if last is not None and torch.equal(last.permutation, ordering.to(last.permutation)):
        return last
    order = permutation(
        function, "ordering", ordering, P.shape[0], ". learnsolve.ordering computes orderings"
    )
    fill = _make_fill(P, order.astype(to_numpy(P.crow_indices).dtype), lower, both)
    P._keep_last(key, fill)
    return fill


def _plan_fill(P: SparsityPattern, ordering: str, lower: bool, both: bool) -> Fill:
    crow = to_numpy(P.crow_indices)
    natural = ordering == "natural"
    order = np.arange(P.shape[0], dtype=crow.dtype) if natural else to_numpy(minimum_degree(P))
    return _make_fill(P, order, lower, both)


def _make_fill(P: SparsityPattern, order: np.ndarray, lower: bool, both: bool) -> Fill:
    n = P.shape[0]
    part = triangle_pattern(P, "lower") if lower else P
    arrays = to_numpy(part.crow_indices), to_numpy(part.col_indices)
    most = incomplete_factors.PLAN_LIMIT // (32 if both else 16)
    entries, crow, col = _analysis.complete_fill(*arrays, order, most)
    if entries > most:
        raise _TooMany(
            f"L would have {entries} entries, more than the {most} that "
            "learnsolve.ops.incomplete_factors.PLAN_LIMIT allows. Pass another ordering, take an incomplete "
            "factor and an iterative solver, or raise the limit"
        )
    Q = construct_pattern(P, crow, col, P.shape)
    if both:
        T = Q.T
        up, above = to_numpy(T.crow_indices).astype(np.int64), to_numpy(T.col_indices)
        rows, columns = (to_numpy(t).astype(np.int64) for t in (Q.row_indices, T.row_indices))
        joined = np.empty(2 * entries - n, above.dtype)
        joined[np.arange(entries) + (up[:-1] - np.arange(n))[rows]] = col  # the diagonal is set again below
        joined[np.arange(entries) + (crow[1:] - np.arange(1, n + 1))[columns]] = above
        Q = construct_pattern(P, crow + up - np.arange(n + 1), joined, P.shape)
    rows, columns = (to_numpy(t).astype(np.int64) for t in (P.row_indices, P.col_indices))
    at = np.flatnonzero(rows >= columns) if lower else np.arange(P.nnz)
    inverse = np.empty(n, np.int64)
    inverse[order] = np.arange(n)
    i, j = inverse[rows[at]], inverse[columns[at]]
    if lower:
        i, j = np.maximum(i, j), np.minimum(i, j)
    return Fill(Q, P._tensor(at), P._tensor(find(Q, i, j)), P._tensor(order))


def through_host(operation: Callable, A: CSR, **keywords: object) -> Any:
    """For a matrix on a device: compute the result on the host and move it back."""
    out = operation(A.to("cpu"), **keywords)
    return type(out)(*(t.to(A.device) for t in out)) if isinstance(out, tuple) else out.to(A.device)


class Cholesky(NamedTuple):
    """P A P^T = L L^T, from `cholesky`.

    Attributes
    ----------
    L : CSR, lower triangular, with its diagonal
    permutation : Tensor, shape (n,): row ``permutation[i]`` of A is row i of P A P^T

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
    >>> L, p = ls.ops.cholesky(A, ordering="natural")
    >>> L.to_dense(), p
    (tensor([[2., 0.],
            [1., 2.]]), tensor([0, 1]))
    """

    L: CSR
    permutation: Tensor


class LDLT(NamedTuple):
    """P A P^T = L D L^T, from `ldlt`.

    Attributes
    ----------
    L : CSR, lower triangular, with its unit diagonal stored
    D : Tensor, shape (..., n), the diagonal of D
    permutation : Tensor, as for `Cholesky`

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, 2.0], [2.0, -1.0]]))
    >>> ls.ops.ldlt(A, ordering="natural").D
    tensor([ 2., -3.])
    """

    L: CSR
    D: Tensor
    permutation: Tensor


class LU(NamedTuple):
    """P A P^T = L U, from `lu`.

    Attributes
    ----------
    L : CSR, lower triangular, with its unit diagonal stored
    U : CSR, upper triangular, with its diagonal, on the transposed pattern of L
    permutation : Tensor, as for `Cholesky`

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> L, U, p = ls.ops.lu(ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [4.0, 5.0]])), ordering="natural")
    >>> L.to_dense(), U.to_dense()
    (tensor([[1., 0.],
            [2., 1.]]), tensor([[2., 1.],
            [0., 3.]]))
    """

    L: CSR
    U: CSR
    permutation: Tensor


def cholesky(A: RealSquareMatrix, *, ordering: str | Tensor = "minimum_degree") -> Cholesky:
    r"""Cholesky factor of a sparse positive definite matrix, with complete fill: :math:`P A P^T = L L^T`.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64. Values may have batch axes. Only the lower triangle is read.
        The rest has a zero gradient
    ordering : "minimum_degree" (`ordering.minimum_degree`), "natural", or a permutation, Tensor of shape
        (n,): row ``ordering[i]`` becomes row i

    Returns
    -------
    Cholesky : ``L``, on one pattern object for all calls with A's pattern, and ``permutation``

    Raises
    ------
    ValueError, TypeError
        if A is not positive definite (the message names the row of the pivot), the factor overflows,
        `ordering` is not a permutation, or L would have more than 5e8 entries.

    Notes
    -----
    Gradient: the reverse sweep of the elimination (Murray, arXiv 1602.07527), which stores only L. Any order,
    forward mode, vmap, `torch.compile`. Cost: ordering and fill once per pattern, two flops per product l_ik
    l_jk, and twice as many for the gradient, by supernodes, with one thread per matrix of a batch. Computed
    on the host: CUDA tensors are copied.

    Source: Ng, Peyton, "Block sparse Cholesky algorithms on advanced uniprocessor computers", SIAM J. Sci.
    Comput. 14, 1993, doi:10.1137/0914063.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((30, 30))
    >>> L, p = ls.ops.cholesky(A)
    >>> bool(((L @ L.T).to_dense() - A.to_dense()[p][:, p]).abs().max() < 1e-14)
    True
    """
    if A.values.is_cuda:
        return through_host(cholesky, A, ordering=ordering)
    F = factor_complete(A, "cholesky/complete", ordering)
    (L,) = F.factors()
    return Cholesky(L, F.fill.permutation)


def ldlt(A: RealSquareMatrix, *, ordering: str | Tensor = "minimum_degree") -> LDLT:
    r"""Factors of a sparse symmetric matrix that may be indefinite: :math:`P A P^T = L D L^T`, D diagonal.

    Rows are not exchanged. The factors exist for every ordering if A is quasi-definite (one positive and one
    negative definite diagonal block), otherwise if no leading principal minor is zero.

    Parameters
    ----------
    A, ordering : see `cholesky`

    Returns
    -------
    LDLT : ``L`` with its unit diagonal stored, ``D``, and ``permutation``

    Raises
    ------
    ValueError, TypeError
        as for `cholesky`, and for a pivot that is zero or not finite.

    Warns
    -----
    RuntimeWarning
        if rounding errors grow so much that at least half of the digits are lost (not under `torch.compile`).

    Notes
    -----
    Like `cholesky`, at twice the cost. D has as many positive and negative entries as A has positive and
    negative eigenvalues.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((100,))  # of its eigenvalues 33 are below 1.01
    >>> int((ls.ops.ldlt(A - 1.01 * ls.ops.eye(100, dtype=A.dtype)).D < 0).sum())
    33
    """
    if A.values.is_cuda:
        return through_host(ldlt, A, ordering=ordering)
    F = factor_complete(A, "ldlt/complete lu", ordering, symmetric=True)
    D = F.pivots()
    return LDLT(F.factors()[0], D.reshape(*F.batch, D.shape[-1]), F.fill.permutation)


def lu(A: RealSquareMatrix, *, ordering: str | Tensor = "minimum_degree") -> LU:
    r"""LU factors of a sparse matrix with the complete fill of A + A^T: :math:`P A P^T = L U`, with
    :math:`L_{ii} = 1`.

    Rows are not exchanged: pivots are on the diagonal, regardless of their size. This is stable if A or A^T
    is diagonally dominant, or if A + A^T is positive definite and A - A^T is not large compared with it.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64. Values may have batch axes
    ordering : see `cholesky`, applied to A + A^T

    Returns
    -------
    LU : ``L`` with its unit diagonal stored, ``U``, and ``permutation``

    Raises
    ------
    ValueError, TypeError, RuntimeWarning
        as for `ldlt`

    Notes
    -----
    Like `cholesky`, at twice the cost. Gradients with respect to the unit diagonal of L are ignored.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.convection_diffusion(torch.ones(2, 20, 20, dtype=torch.float64))
    >>> L, U, p = ls.ops.lu(A)
    >>> b, x = torch.ones(400, dtype=A.dtype), torch.empty(400, dtype=A.dtype)
    >>> x[p] = ls.ops.sptrsv(U, ls.ops.sptrsv(L, b[p]), lower=False)
    >>> bool((A @ x - b).abs().max() < 1e-12)
    True
    """
    if A.values.is_cuda:
        return through_host(lu, A, ordering=ordering)
    F = factor_complete(A, "lu/complete lu", ordering)
    L, U = F.factors()
    return LU(L, U, F.fill.permutation)


class SignLogdet(NamedTuple):
    """det A = sign exp(logabsdet), from `slogdet`.

    Attributes
    ----------
    sign, logabsdet : Tensor, with the batch shape (...)

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.ops.slogdet(ls.CSR.from_dense(torch.tensor([[2.0, 3.0], [3.0, 1.0]])))
    SignLogdet(sign=tensor(-1.), logabsdet=tensor(1.9459))
    """

    sign: Tensor
    logabsdet: Tensor


def logdet(A: RealSquareMatrix, *, ordering: str | Tensor = "minimum_degree") -> Tensor:
    r"""log det A of a sparse symmetric positive definite matrix, from its Cholesky factor:
    :math:`2 \sum_i \log L_{ii}`.

    Parameters
    ----------
    A : CSR, shape (n, n), symmetric, float32 or float64. Values may have batch axes
    ordering : see `cholesky`

    Returns
    -------
    Tensor, with the batch shape (...)

    Raises
    ------
    ValueError
        if A is not symmetric (under `torch.compile`: its pattern), or as for `cholesky`.

    Notes
    -----
    Gradient: the entries of :math:`A^{-1}` on A's pattern (`selected_inverse`), at the cost of about two
    factorizations. Any order, at a few factorizations each, forward mode, vmap, `torch.compile`. Source: Rue,
    Held, "Gaussian Markov Random Fields", Chapman & Hall, 2005, chapter 2.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.logdet(ls.problems.poisson((100,))).exp()  # n + 1
    tensor(101.0000, dtype=torch.float64)
    """
    if A.values.is_cuda:
        return through_host(logdet, A, ordering=ordering)
    F = _symmetric("logdet", A, ordering)
    return 2 * F.pivots().log().sum(-1).reshape(F.batch)


def slogdet(A: RealSquareMatrix, *, ordering: str | Tensor = "minimum_degree") -> SignLogdet:
    r"""Sign and logarithm of det A for any sparse matrix with LU factors without row exchanges (`lu`).

    Parameters
    ----------
    A : CSR, as for `lu`
    ordering : see `lu`

    Returns
    -------
    SignLogdet : ``sign``, 1 or -1, without a gradient, and ``logabsdet``

    Raises
    ------
    ValueError, TypeError, RuntimeWarning
        as for `lu`: a singular matrix is an error

    Notes
    -----
    Gradient of ``logabsdet``: the entries of :math:`A^{-T}` on A's pattern. Like `logdet`, at twice the cost.

    Examples
    --------
    >>> import learnsolve as ls
    >>> sign, logabsdet = ls.ops.slogdet(-1.0 * ls.problems.poisson((100,)))
    >>> float(sign), logabsdet.exp()
    (1.0, tensor(101.0000, dtype=torch.float64))
    """
    if A.values.is_cuda:
        return through_host(slogdet, A, ordering=ordering)
    F = factor_complete(A, "slogdet/complete lu", ordering)
    d = F.pivots()
    sign = d.detach().sign().prod(-1)
    return SignLogdet(sign.reshape(F.batch), d.abs().log().sum(-1).reshape(F.batch))


def selected_inverse(
    A: RealSquareMatrix,
    *,
    kind: Literal["cholesky", "lu"] = "cholesky",
    ordering: str | Tensor = "minimum_degree",
) -> CSR:
    r"""The entries of :math:`A^{-1}` on A's pattern only. For a Gaussian field with precision A these are the
    marginal variances, on the diagonal, and the covariances of neighbors.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64. Values may have batch axes
    kind : "cholesky", for a symmetric positive definite A, or "lu", for any matrix that `lu` accepts
    ordering : see `cholesky`

    Returns
    -------
    CSR, on A's pattern

    Raises
    ------
    ValueError, TypeError, RuntimeWarning
        as for `logdet` or `lu`

    Notes
    -----
    Takahashi's recurrence on the complete fill, from the last column to the first, costs about two
    factorizations. Gradient for the incoming G: :math:`-A^{-T} G A^{-T}` on A's pattern, by the adjoint
    recurrence, a few factorizations without solves. Any order, forward mode, vmap, `torch.compile`.

    Source: Takahashi, Fagan, Chen, "Formation of a sparse bus impedance matrix and its application to short
    circuit study", PICA 1973; Erisman, Tinney, doi:10.1145/360680.360704.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.selected_inverse(ls.problems.poisson((3,))).diagonal()
    tensor([0.7500, 1.0000, 0.7500], dtype=torch.float64)
    """
    if A.values.is_cuda:
        return through_host(selected_inverse, A, kind=kind, ordering=ordering)
    if kind == "cholesky":
        F = _symmetric("selected_inverse", A, ordering)
        Z = place(take(F.inverse(), F.fill.where), F.fill.at, A.nnz)
        Z = (Z + transpose_values(Z, A.pattern)) / 2
    else:
        F = factor_complete(A, "selected_inverse/complete lu", ordering)
        Z = take(transpose_values(F.inverse(), F.fill.pattern), F.fill.where)
    return CSR(Z.reshape(*F.batch, A.nnz), A.pattern)


def _symmetric(function: str, A: CSR, ordering: str | Tensor) -> CompleteFactors:
    """Both triangles have the same weight and get the same gradient."""
    compiling = torch.compiler.is_dynamo_compiling()
    if not (symmetric_pattern(A.pattern) if compiling else symmetry(function, A, None)):
        other = "ops.slogdet" if function == "logdet" else 'kind="lu"'
        raise ValueError(
            f"{function}: A must be symmetric, with both triangles. For others take {other}, or (A + A.T) / 2"
        )
    mean = A.with_values((A.values + transpose_values(A.values, A.pattern)) / 2)
    return factor_complete(mean, f"{function}/complete", ordering)


# The gradient of log |det A| is A^-T on A's pattern. No library computes entries of the inverse, so this
# uses the factors of `selected_inverse`, made when a derivative is computed. If elimination without row
# exchanges breaks down or is unstable, and for complex values, it solves with the existing factors, once
# per column of A.


_raw = torch.ops.learnsolve.direct_logdet.default
_COLUMNS = 64  # columns of the inverse at a time


def logdet_of_factors(values: Tensor, pattern: SparsityPattern, factors: Factors | str) -> Tensor:
    """log |det A|, () or (B,), for values (nnz,) or (B, nnz)."""
    return dispatch(_Logdet, (values,), pattern, factors)


class _Logdet(Operation):
    @staticmethod
    def forward(values, pattern, factors):
        if not isinstance(factors, str):
            if has_numbers(values):
                return direct.logdets(factors.of(pattern, values), values)
            factors.share()
            factors = " ".join(factors.how)
        return _raw(*pattern._structure(False)[:2], values, factors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.constants = inputs[1:]

    @staticmethod
    def backward(ctx, g):
        (values,) = ctx.saved_tensors
        return g.unsqueeze(-1) * conjugate(_inverse(values, *ctx.constants)), None, None

    @staticmethod
    def jvp(ctx, tv, *_):
        (values,) = ctx.saved_tensors
        t = (_inverse(values, *ctx.constants) * tv).sum(-1)
        return t.real.clone() if t.is_complex() else t

    @staticmethod
    def vmap(info, in_dims, values, pattern, factors):
        v = values.movedim(in_dims[0], 0)
        return logdet_of_factors(v.reshape(-1, v.shape[-1]), pattern, factors).reshape(v.shape[:-1]), 0


def _inverse(values: Tensor, pattern: SparsityPattern, factors: Factors | str) -> Tensor:
    """The entries of A^-T on A's pattern, differentiable."""
    if values.is_complex():
        return _invert_by_columns(values, pattern, factors)
    A = CSR(values, pattern).to("cpu")
    if torch.compiler.is_dynamo_compiling():
        return _invert_by_elimination(A).to(values.device)
    try:
        # Further derivatives are for a matrix that need not stay symmetric.
        if not torch.is_grad_enabled() and _definite(factors):
            return selected_inverse(A).values.to(values.device)
        return _invert_by_elimination(A).to(values.device)
    except ValueError:  # a pivot is zero or too small
        return _invert_by_columns(values, pattern, factors)


def _definite(factors: Factors | str) -> bool:
    return not isinstance(factors, str) and all(
        f.factor.negative() == 0 and direct.symmetric(f.pattern, torch.from_numpy(f.data))
        for f in factors.all
    )


def _invert_by_elimination(A: CSR) -> Tensor:
    F = factor_complete(A, "factorize/complete lu", "minimum_degree")
    return take(F.inverse(), F.fill.where).reshape(A.values.shape)


def _invert_by_columns(values: Tensor, pattern: SparsityPattern, factors: Factors | str) -> Tensor:
    n, T = pattern.shape[0], pattern.T  # its rows are A's columns
    parts = []
    for first in range(0, n, _COLUMNS):
        last = min(n, first + _COLUMNS)
        E = torch.eye(n, dtype=values.dtype, device=values.device)[:, first:last]
        X = solve_values(values, E, pattern, True, factors)
        entries = slice(int(T.crow_indices[first]), int(T.crow_indices[last]))
        parts.append(X[..., T.col_indices[entries].long(), T.row_indices[entries].long() - first])
    return permute_values(torch.cat(parts, -1), pattern._inverse_permutation, pattern.transpose_permutation)
