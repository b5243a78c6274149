"""Sums and means over the rows or columns of a pattern."""

from torch import Tensor

from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core import segments


def segment_sum(E: Tensor, pattern: SparsityPattern, by: str = "row") -> Tensor:
    r"""Sum of the features of all entries in a row, :math:`x_i = \sum_j e_{ij}`, or in a column.

    Parameters
    ----------
    E : Tensor, shape (nnz,) or (..., nnz, f), float32 or float64, or complex: features of the entries
    pattern : SparsityPattern, shape (m, n)
    by : "row" or "column", the segments

    Returns
    -------
    Tensor, shape (m,) or (..., m, f) by rows, (n,) or (..., n, f) by columns; 0 for a segment without
    entries.

    Raises
    ------
    ValueError
        if the shape is wrong, or `by` is invalid.
    TypeError
        if dtypes or devices do not match.

    Notes
    -----
    Gradient: the gradient of the segment at each of its entries, which is `gather`, and vice versa. Any
    order; forward mode, vmap, `torch.compile`. For a single feature, ``CSR(e, pattern).sum(1)`` is the same.

    Cost: reads nnz f values once. The result has the same bits on every run and for every number of threads.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [0.0, 1.0]])).pattern
    >>> e = torch.tensor([1.0, 2.0, 4.0])
    >>> ls.ops.segment_sum(e, P, "row"), ls.ops.segment_sum(e, P, "column")
    (tensor([3., 4.]), tensor([1., 6.]))
    """
    segments.check("segment_sum", "E", E, pattern, by, entries=True, or_complex=True)
    return segments.summed(E, pattern, by)


def segment_mean(E: Tensor, pattern: SparsityPattern, by: str = "row") -> Tensor:
    """Mean of the features of all entries in a row or column: `segment_sum` divided by the number of entries.

    Parameters
    ----------
    E, pattern, by : as for `segment_sum`

    Returns
    -------
    Tensor, as for `segment_sum`; 0 for a segment without entries.

    Raises
    ------
    ValueError, TypeError
        as for `segment_sum`.

    Notes
    -----
    Gradient and cost are as for `segment_sum`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [0.0, 1.0]])).pattern
    >>> ls.ops.segment_mean(torch.tensor([1.0, 2.0, 4.0]), P)
    tensor([1.5000, 4.0000])
    """
    segments.check("segment_mean", "E", E, pattern, by, entries=True, or_complex=True)
    count = segments.lengths(pattern, by)
    return segments.summed(E, pattern, by) / (count[:, 0] if E.dim() == 1 else count)
