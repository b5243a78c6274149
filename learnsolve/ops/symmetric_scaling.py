"""Two-sided scaling that preserves symmetry."""

import torch

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.operands import plain_values
from learnsolve.ops.core.product import sampled
from learnsolve.ops.diagonal import diagonal
from learnsolve.ops.structure import sum as sum_


def symmetric_scaling(A: CSR, by: str = "diagonal") -> CSR:
    r"""Symmetric scaling :math:`D^{-1/2} A D^{-1/2}`.

    Parameters
    ----------
    A : CSR, square, float32 or float64; its values may have batch axes
    by : "diagonal", D = diag(A), for a unit diagonal; or "row_sums", D = diag(A 1), for the normalized
        adjacency matrix of a graph convolution

    Returns
    -------
    CSR on A's pattern.

    Raises
    ------
    ValueError
        if D has an entry that is not positive and finite; the message names the row. (Not checked under
        `torch.compile` and on a CUDA device, where it gives infinities or NaNs.)

    Notes
    -----
    Differentiable in A's values, also through D. Cost: a sampled product and a product of values.

    References
    ----------
    Kipf, Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.symmetric_scaling(ls.problems.poisson((3,))).to_dense()[0]
    tensor([ 1.0000, -0.5000,  0.0000], dtype=torch.float64)
    """
    return scaled("symmetric_scaling", A, by)


def scaled(name: str, A: CSR, by: str) -> CSR:
    """`symmetric_scaling`, for a public function of this name."""
    checks.matrix(name, "A", A)
    checks.dtype(name, "A.values", A.values)
    checks.one_of(name, "by", by, ("diagonal", "row_sums"))
    checks.square(name, "A", A.shape)
    d = diagonal(A) if by == "diagonal" else sum_(A, 1)
    if not torch.compiler.is_dynamo_compiling():
        plain = plain_values(d)
        wrong = ~((plain > 0) & torch.isfinite(plain))
        if plain.is_cpu and wrong.any():
            at = wrong.nonzero()[0].tolist()
            what = "diagonal entries" if by == "diagonal" else "row sums"
            remedy = "shift the diagonal, or scale with A.scale_rows and A.scale_columns"
            if name == "gcn_norm":
                what, remedy = f"{what} of A + I", "make the weights nonnegative"
            raise ValueError(
                f"{name}: all {what} must be positive and finite, row {at[-1]} has "
                f"{plain[tuple(at)].item():g}; {remedy}"
            )
    s = d.rsqrt()
    s = s.unsqueeze(-1) if s.dim() > 1 else s
    return A.with_values(A.values * sampled(s, s, A.pattern))
