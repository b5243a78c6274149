"""Sparse-sparse matrix products."""

from typing import Any

import torch

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.sparse_product import PRODUCT, contraction, result_pattern
from learnsolve.ops.structure import transpose


def spgemm(A: CSR, B: CSR, *, mask: SparsityPattern | None = None) -> CSR:
    r"""Sparse matrix times sparse matrix, :math:`C = A B`.

    Parameters
    ----------
    A : CSR, shape (m, n), float32 or float64, or complex; its values may have batch axes, (..., nnz)
    B : CSR, shape (n, k), of A's precision and device; may have batch axes
    mask : SparsityPattern, shape (m, k): the entries of A B to compute

    Returns
    -------
    CSR, shape (m, k); batch axes broadcast. Without `mask` it has an entry for every product a_ij b_jl of
    entries, including zeros and sums that cancel, and its pattern is the same object in every call while the
    plan is cached. With `mask` it has that pattern: products outside are skipped, entries without products
    are zero.

    Raises
    ------
    ValueError
        if shapes do not match, or the result has more entries than the index type can represent.
    TypeError
        if dtypes or devices do not match, or A or B is not a CSR.

    Notes
    -----
    Gradient: :math:`\bar A = \bar C B^T` on the pattern of A and :math:`\bar B = A^T \bar C` on the pattern
    of B, in one pass over the products, through the entries of C only. Any order; forward mode, vmap,
    `torch.compile`. The same bits on every run and for every number of threads.

    Cost: 2 F flops for F products, 4 F for both gradients. The second call with two patterns, or the first
    gradient, plans the positions of the products, which takes 4 F bytes: docs/operations.md. Source: Nytko et
    al., arXiv 2212.05159, 2022.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((4,))
    >>> ls.ops.spgemm(A, A).to_dense()[1]
    tensor([-4.,  6., -4.,  1.], dtype=torch.float64)
    >>> ls.ops.spgemm(A, A, mask=A.pattern).to_dense()[1]
    tensor([-4.,  6., -4.,  0.], dtype=torch.float64)
    """
    _check_factors("spgemm", "A", A, "B", B)
    if A.shape[1] != B.shape[0]:
        raise ValueError(
            f"spgemm: A.shape[1] must equal B.shape[0], got {A.shape} and {B.shape}; a transpose is A.T"
        )
    if mask is not None:
        _check_mask(mask, A, B)
    return _multiply(A, B, mask)


def galerkin(P: CSR, A: CSR) -> CSR:
    r"""The Galerkin product :math:`P^T A P`, the coarse operator of a multigrid method.

    Parameters
    ----------
    P : CSR, shape (n, k), the interpolation; its values may have batch axes, (..., nnz)
    A : CSR, shape (n, n), of P's precision and device; may have batch axes

    Returns
    -------
    CSR, shape (k, k), on its full pattern, as from `spgemm`; batch axes broadcast.

    Raises
    ------
    ValueError
        if shapes do not match.
    TypeError
        if dtypes or devices do not match, or P or A is not a CSR.

    Notes
    -----
    Computed as :math:`P^T (A P)` by two calls of `spgemm`, whose plans are cached: for P^T and the second
    product with P's pattern, for A P with A's pattern. Differentiable in P and A, to any order.

    Cost: 2 flops per product in A P and P^T (A P); twice that for the gradients.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((3,))
    >>> P = ls.CSR.from_dense(torch.tensor([[0.5], [1.0], [0.5]], dtype=torch.float64))
    >>> ls.ops.galerkin(P, A).to_dense()
    tensor([[1.]], dtype=torch.float64)
    """
    _check_factors("galerkin", "P", P, "A", A)
    if A.shape[0] != A.shape[1] or A.shape[1] != P.shape[0]:
        raise ValueError(
            "galerkin: A must be square with as many rows as P, got shapes "
            f"{A.shape} for A and {P.shape} for P"
        )
    return _multiply(transpose(P), _multiply(A, P, None), None)


def _multiply(A: CSR, B: CSR, mask: SparsityPattern | None) -> CSR:
    left, right, on = A.pattern, B.pattern, mask
    if not left.dtype == right.dtype == (left if on is None else on).dtype:
        left, right = left.to(dtype=torch.int64), right.to(dtype=torch.int64)
        on = None if on is None else on.to(dtype=torch.int64)
    values = contraction(PRODUCT, A.values, B.values, left, right, on)
    return CSR(values, result_pattern(left, right, None) if mask is None else mask)


def _check_factors(function: str, first: str, A: Any, second: str, B: Any) -> None:
    for name, M in ((first, A), (second, B)):
        remedy = "; make one with CSR.from_*, or multiply by a dense tensor with spmm"
        checks.matrix(function, name, M, remedy)
        checks.dtype(function, f"{name}.values", M.values, or_complex=True)
    checks.same_kind(function, f"{second}.values", B.values, A.values, or_complex=True)
    checks.batches(function, A.batch_shape, B.batch_shape, f"{first}.values and {second}.values")


def _check_mask(mask: Any, A: CSR, B: CSR) -> None:
    if not isinstance(mask, SparsityPattern):
        raise TypeError(
            f"spgemm: mask must be a SparsityPattern, got {type(mask).__name__}; for a CSR pass C.pattern"
        )
    if mask.shape != (A.shape[0], B.shape[1]):
        raise ValueError(
            f"spgemm: mask must have the shape of A B, {(A.shape[0], B.shape[1])}, got {mask.shape}"
        )
    if mask.device != A.device:
        raise TypeError(f"spgemm: mask is on {mask.device}, A on {A.device}; move one with .to()")
