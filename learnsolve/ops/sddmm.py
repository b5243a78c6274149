"""Sampled dense-dense matrix product."""

from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.product import sampled


def sddmm(U: Tensor, V: Tensor, pattern: SparsityPattern | CSR) -> Tensor:
    r"""Entries of :math:`U V^T` on a pattern, :math:`c_{ij} = u_i^T v_j`: without conjugation.

    Parameters
    ----------
    U : Tensor, shape (m,) or (..., m, k), float32 or float64, or complex
    V : Tensor, shape (n,) or (..., n, k), of U's precision and device
    pattern : SparsityPattern, shape (m, n), or a CSR, whose values are not read

    Returns
    -------
    Tensor, shape (..., nnz): values for `CSR`. U V^T itself is never formed.

    Raises
    ------
    ValueError
        if shapes do not match.
    TypeError
        if dtypes or devices do not match.

    Notes
    -----
    Gradient: :math:`\bar U = \bar C V`, :math:`\bar V = \bar C^T U` where the matrix :math:`\bar C` has
    the incoming gradient as its values. Any order; forward mode, vmap, `torch.compile`.

    Cost: 2 nnz k flops; reads the indices and writes the values once. Deterministic.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.problems.poisson((3,)).pattern
    >>> ls.ops.sddmm(torch.tensor([1.0, 2.0, 3.0]), torch.ones(3), P)
    tensor([1., 1., 2., 2., 2., 3., 3.])
    """
    checks.tensor("sddmm", "U", U)
    checks.tensor("sddmm", "V", V)
    if isinstance(pattern, CSR):
        pattern = pattern.pattern
    if not isinstance(pattern, SparsityPattern):
        raise TypeError(f"sddmm: pattern must be a SparsityPattern or a CSR, got {type(pattern).__name__}")
    checks.dtype("sddmm", "U", U, or_complex=True)
    if not checks.one_precision(V.dtype, U.dtype) or U.device != pattern.device or V.device != pattern.device:
        raise TypeError(
            f"sddmm: U ({U.dtype}, {U.device}) and V ({V.dtype}, {V.device}) must have one dtype and the "
            f"pattern's device, {pattern.device}; convert with .to()"
        )
    if (U.dim() == 1) != (V.dim() == 1) or U.dim() == 0:
        raise ValueError(
            f"sddmm: U and V must both be vectors or both (..., rows, k), got shapes {tuple(U.shape)} and "
            f"{tuple(V.shape)}"
        )
    checks.rows("sddmm", "U", U, "pattern", pattern.shape, 0)
    checks.rows("sddmm", "V", V, "pattern", pattern.shape, 1)
    if U.dim() > 1 and U.shape[-1] != V.shape[-1]:
        raise ValueError(
            f"sddmm: U and V must have as many columns as each other, got {U.shape[-1]} and {V.shape[-1]}"
        )
    checks.batches("sddmm", U.shape[:-2], V.shape[:-2], "U and V")
    return sampled(U, V, pattern)
