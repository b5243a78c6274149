"""Sparse-dense matrix products."""

from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.product import product


def spmm(A: CSR, x: Tensor, *, transpose: bool = False) -> Tensor:
    r"""Sparse matrix times dense vector or matrix, :math:`y = A x` or :math:`y = A^T x`.

    Parameters
    ----------
    A : CSR, shape (m, n), float32 or float64, or complex; its values may have batch axes, (..., nnz)
    x : Tensor, shape (n,) or (..., n, k), of A's precision and device ((m,) or (..., m, k) if `transpose`)
    transpose : multiply by the transpose, which is not formed

    Returns
    -------
    Tensor, shape (..., m) for a vector, (..., m, k) for a matrix; batch axes broadcast.

    Raises
    ------
    ValueError
        if shapes do not match.
    TypeError
        if dtypes or devices do not match.

    Notes
    -----
    Gradient: :math:`\bar x = A^T \bar y`, :math:`\bar A = (\bar y x^T)` on the pattern, at the cost of about
    one pass over the cached transposed pattern. Any order; forward mode, vmap, `torch.compile`. For complex
    values :math:`\bar x = A^H \bar y`, as in torch; the transpose is :math:`A^T`, not ``A.H``.

    Cost: 2 nnz k flops; values and indices are read once per 32 columns (float64) or 64 columns (float32)
    with AVX2. The backward reads and writes values once more. The result has the same bits on every run and
    for every number of threads.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((4,))
    >>> ls.ops.spmm(A, torch.arange(4.0, dtype=torch.float64))
    tensor([-1.,  0.,  0.,  4.], dtype=torch.float64)
    """
    if not (type(A) is CSR and transpose is False and checks.fits(A.values, x, A.pattern)):
        checks.matrix("spmm", "A", A)
        checks.dtype("spmm", "A.values", A.values, or_complex=True)
        checks.same_kind("spmm", "x", x, A.values, or_complex=True)
        if x.dim() == 0:
            raise ValueError("spmm: x must have shape (n,) or (..., n, k), got a scalar")
        checks.flag("spmm", "transpose", transpose)
        checks.rows("spmm", "x", x, "A", A.pattern.shape, 0 if transpose else 1)
        if A.values.dim() > 1 and x.dim() > 2:
            checks.batches("spmm", A.values.shape[:-1], x.shape[:-2], "A.values and x")
    return product(A.values, x, A.pattern, transpose)
