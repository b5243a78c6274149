"""Complete Cholesky, L D L^T and LU factors as sparse matrices, differentiable in the matrix."""

from typing import NamedTuple

from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.complete import factored, through_host


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


def cholesky(A: CSR, *, ordering: str | Tensor = "minimum_degree") -> Cholesky:
    r"""Cholesky factor of a sparse positive definite matrix, with complete fill: :math:`P A P^T = L L^T`.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64; values may have batch axes. Only the lower triangle is read;
        the rest has a zero gradient
    ordering : "minimum_degree" (`ordering.minimum_degree`), "natural", or a permutation, Tensor of shape
        (n,): row ``ordering[i]`` becomes row i

    Returns
    -------
    Cholesky : ``L``, on one pattern object for all calls with A's pattern, and ``permutation``

    Raises
    ------
    ValueError
        if A is not square or not positive definite (the message names the row of the pivot), the factor
        overflows, `ordering` is not a permutation, or L would have more than 5e8 entries.
    TypeError
        if A is not a CSR of float32 or float64.

    Notes
    -----
    Gradient: the reverse sweep of the elimination (Murray, arXiv 1602.07527), which stores only L. Any order;
    forward mode, vmap, `torch.compile`. Cost: ordering and fill once per pattern; two flops per product l_ik
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
    if isinstance(A, CSR) and A.values.is_cuda:
        return through_host(cholesky, A, ordering=ordering)
    F = factored(A, "cholesky/complete", ordering)
    (L,) = F.factors()
    return Cholesky(L, F.fill.permutation)


def ldlt(A: CSR, *, ordering: str | Tensor = "minimum_degree") -> LDLT:
    r"""Factors of a sparse symmetric matrix that may be indefinite: :math:`P A P^T = L D L^T`, D diagonal.

    Rows are not exchanged. The factors exist for every ordering if A is quasi-definite (one positive and one
    negative definite diagonal block), otherwise if no leading principal minor is zero.

    Parameters
    ----------
    A, ordering : as for `cholesky`

    Returns
    -------
    LDLT : ``L`` with its unit diagonal stored, ``D``, and ``permutation``

    Raises
    ------
    ValueError, TypeError
        as for `cholesky`, for a pivot that is zero or not finite.

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
    if isinstance(A, CSR) and A.values.is_cuda:
        return through_host(ldlt, A, ordering=ordering)
    F = factored(A, "ldlt/complete lu", ordering, symmetric=True)
    D = F.pivots()
    return LDLT(F.factors()[0], D.reshape(*F.batch, D.shape[-1]), F.fill.permutation)


def lu(A: CSR, *, ordering: str | Tensor = "minimum_degree") -> LU:
    r"""LU factors of a sparse matrix with the complete fill of A + A^T: :math:`P A P^T = L U`, with
    :math:`L_{ii} = 1`.

    Rows are not exchanged: pivots are on the diagonal, regardless of their size. This is stable if A or A^T
    is diagonally dominant, or if A + A^T is positive definite and A - A^T is not large compared with it.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64; values may have batch axes
    ordering : as for `cholesky`, applied to A + A^T

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
    if isinstance(A, CSR) and A.values.is_cuda:
        return through_host(lu, A, ordering=ordering)
    F = factored(A, "lu/complete lu", ordering)
    L, U = F.factors()
    return LU(L, U, F.fill.permutation)
