"""Log-determinants of sparse matrices, and the entries of the inverse on the pattern, their gradient."""

from typing import NamedTuple

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.complete import Factored, factored, through_host, transposed
from learnsolve.ops.core.gather import place, take
from learnsolve.ops.core.symmetry import symmetric_pattern, symmetry


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


def logdet(A: CSR, *, ordering: str | Tensor = "minimum_degree") -> Tensor:
    r"""log det A of a sparse symmetric positive definite matrix, from its Cholesky factor:
    :math:`2 \sum_i \log L_{ii}`.

    Parameters
    ----------
    A : CSR, shape (n, n), symmetric, float32 or float64; values may have batch axes
    ordering : as for `cholesky`

    Returns
    -------
    Tensor, with the batch shape (...)

    Raises
    ------
    ValueError
        if A is not symmetric (under `torch.compile`: its pattern), or as for `cholesky`.
    TypeError
        if A is not a CSR of float32 or float64.

    Notes
    -----
    Gradient: the entries of :math:`A^{-1}` on A's pattern (`selected_inverse`), at the cost of about two
    factorizations; any order, at a few factorizations each; forward mode, vmap, `torch.compile`. Source: Rue,
    Held, "Gaussian Markov Random Fields", Chapman & Hall, 2005, chapter 2.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.logdet(ls.problems.poisson((100,))).exp()  # n + 1
    tensor(101.0000, dtype=torch.float64)
    """
    if isinstance(A, CSR) and A.values.is_cuda:
        return through_host(logdet, A, ordering=ordering)
    F = _symmetric("logdet", A, ordering)
    return 2 * F.pivots().log().sum(-1).reshape(F.batch)


def slogdet(A: CSR, *, ordering: str | Tensor = "minimum_degree") -> SignLogdet:
    r"""Sign and logarithm of det A for any sparse matrix with LU factors without row exchanges (`lu`).

    Parameters
    ----------
    A : CSR, as for `lu`
    ordering : as for `lu`

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
    if isinstance(A, CSR) and A.values.is_cuda:
        return through_host(slogdet, A, ordering=ordering)
    F = factored(A, "slogdet/complete lu", ordering)
    d = F.pivots()
    sign = d.detach().sign().prod(-1)
    return SignLogdet(sign.reshape(F.batch), d.abs().log().sum(-1).reshape(F.batch))


def selected_inverse(A: CSR, *, kind: str = "cholesky", ordering: str | Tensor = "minimum_degree") -> CSR:
    r"""The entries of :math:`A^{-1}` on A's pattern only. For a Gaussian field with precision A these are the
    marginal variances, on the diagonal, and the covariances of neighbors.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64; values may have batch axes
    kind : "cholesky", for a symmetric positive definite A, or "lu", for any matrix that `lu` accepts
    ordering : as for `cholesky`

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
    recurrence, a few factorizations without solves. Any order; forward mode, vmap, `torch.compile`.

    Source: Takahashi, Fagan, Chen, "Formation of a sparse bus impedance matrix and its application to short
    circuit study", PICA 1973; Erisman, Tinney, doi:10.1145/360680.360704.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.selected_inverse(ls.problems.poisson((3,))).diagonal()
    tensor([0.7500, 1.0000, 0.7500], dtype=torch.float64)
    """
    checks.one_of("selected_inverse", "kind", kind, ("cholesky", "lu"))
    if isinstance(A, CSR) and A.values.is_cuda:
        return through_host(selected_inverse, A, kind=kind, ordering=ordering)
    if kind == "cholesky":
        F = _symmetric("selected_inverse", A, ordering)
        Z = place(take(F.inverse(), F.fill.where), F.fill.at, A.nnz)
        Z = (Z + transposed(Z, A.pattern)) / 2
    else:
        F = factored(A, "selected_inverse/complete lu", ordering)
        Z = take(transposed(F.inverse(), F.fill.pattern), F.fill.where)
    return CSR(Z.reshape(*F.batch, A.nnz), A.pattern)


def _symmetric(function: str, A: CSR, ordering: str | Tensor) -> Factored:
    """Both triangles have the same weight and get the same gradient."""
    checks.matrix(function, "A", A)
    checks.dtype(function, "A.values", A.values)
    checks.square(function, "A", A.shape)
    compiling = torch.compiler.is_dynamo_compiling()
    if not (symmetric_pattern(A.pattern) if compiling else symmetry(function, A, None)):
        other = "ops.slogdet" if function == "logdet" else 'kind="lu"'
        raise ValueError(
            f"{function}: A must be symmetric, with both triangles; for others take {other}, or (A + A.T) / 2"
        )
    mean = A.with_values((A.values + transposed(A.values, A.pattern)) / 2)
    return factored(mean, f"{function}/complete", ordering)
