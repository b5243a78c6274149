"""Sparse direct solve: one factorization for the solution and for its derivatives of any order."""

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.direct.factors import Factors
from learnsolve.ops.core.direct.solve import DEFAULT, check_matrix, check_right_hand_side, solved


def spsolve(A: CSR, b: Tensor, *, transpose: bool = False) -> Tensor:
    r"""Solve :math:`A x = b`, or :math:`A^T x = b`, by a sparse factorization (docs/direct.md).

    Parameters
    ----------
    A : CSR, shape (n, n), real or complex; its values may have batch axes, (..., nnz)
    b : Tensor, shape (n,) or (..., n, k), of A's dtype and device
    transpose : solve with the transpose

    Returns
    -------
    Tensor, shape (..., n) for a vector, (..., n, k) for a matrix; batch axes broadcast.

    Raises
    ------
    ValueError
        if shapes do not match; if A is singular (the message names the row or the reason), or has
        values that are not finite; if the solution overflows.
    TypeError
        if dtypes or devices do not match.

    Notes
    -----
    Gradient: :math:`\bar b = A^{-T} \bar x`, :math:`\bar A = -\bar b\, x^T` on the pattern (if `transpose`,
    :math:`A^{-1} \bar x` and :math:`-x\, \bar b^T`); for complex values with adjoints, not transposes. Any
    order; forward mode, vmap, `torch.compile`. The backward costs a sampled product and two triangular solves
    with the factors of the forward, which live as long as the graph. `ls.factorize` keeps them.

    Cost: one factorization per matrix of the batch, in A's precision, on the host; then 2 flops per entry of
    the factors and column of b. The analysis is cached with the pattern (docs/direct.md). A nearly singular
    matrix is accepted: the relative error is about the condition number times the unit roundoff, and a
    RuntimeWarning is issued if rounding errors in A x are about as large as b.

    Source: Demmel et al., "A supernodal approach to sparse partial pivoting", SIAM J. Matrix Anal. Appl. 20
    (1999).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.ops.spsolve(ls.problems.poisson((3,)), torch.ones(3, dtype=torch.float64))
    tensor([1.5000, 2.0000, 1.5000], dtype=torch.float64)
    """
    check_matrix("spsolve", A)
    check_right_hand_side("spsolve", A, b)
    checks.flag("spsolve", "transpose", transpose)
    factors = DEFAULT if torch.compiler.is_dynamo_compiling() else Factors("spsolve")
    return solved(A.values, b, A.pattern, transpose, factors)
