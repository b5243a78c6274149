"""Node features gathered at the entries of a pattern."""

from torch import Tensor

from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core import segments


def gather(X: Tensor, pattern: SparsityPattern, by: str = "row") -> Tensor:
    r"""Gather for each entry (i, j) of a pattern the features :math:`x_i` of its row or :math:`x_j` of its
    column.

    Parameters
    ----------
    X : Tensor, shape (m,) or (..., m, f) by rows, (n,) or (..., n, f) by columns, float32 or float64, or
        complex
    pattern : SparsityPattern, shape (m, n)
    by : "row" or "column"

    Returns
    -------
    Tensor, shape (nnz,) or (..., nnz, f): one row of features per entry.

    Raises
    ------
    ValueError
        if the shape is wrong, or `by` is invalid.
    TypeError
        if dtypes or devices do not match.

    Notes
    -----
    Gradient: :math:`\bar x_i = \sum_{p \text{ in row } i} \bar e_p`, which is `segment_sum`, in a fixed
    order; and vice versa. Any order; forward mode, vmap, `torch.compile`.

    Apply linear maps before gathering: ``gather(X @ W, P)`` is cheaper than ``gather(X, P) @ W``.

    Cost: writes nnz f values and reads as many, from the cache if neighboring rows are close together. From
    32 MiB on, a plan of a few indices per entry is cached with the pattern.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [0.0, 1.0]])).pattern
    >>> x = torch.tensor([10.0, 20.0])
    >>> ls.ops.gather(x, P, "row"), ls.ops.gather(x, P, "column")
    (tensor([10., 10., 20.]), tensor([10., 20., 20.]))
    """
    segments.check("gather", "X", X, pattern, by, entries=False, or_complex=True)
    return segments.spread(X, pattern, by)
