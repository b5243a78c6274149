"""Lower and upper triangles."""

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops._selection import Selection, kept, selected
from learnsolve.pattern import SparsityPattern, as_numpy


def tril(A: CSR, k: int = 0) -> CSR:
    """The entries (i, j) of A with j <= i + k, on a pattern that is the same in every call.

    Planned once, then a gather of values; the gradient puts the incoming one back, zeros elsewhere. Explicit
    zeros stay. A itself, if all its entries lie there.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.ops.tril(ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))).to_dense()
    tensor([[1., 0.],
            [3., 4.]])
    """
    return _triangle("tril", A, k, "lower")


def triu(A: CSR, k: int = 0) -> CSR:
    """The entries (i, j) of A with j >= i + k, on a pattern that is the same in every call; see `tril`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.ops.triu(ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [3.0, 4.0]])), 1).to_dense()
    tensor([[0., 2.],
            [0., 0.]])
    """
    return _triangle("triu", A, k, "upper")


def _triangle(function: str, A: CSR, k: int, side: str) -> CSR:
    _check.matrix(function, "A", A)
    k = _check.integer(function, "k", k, -(2**62))
    return selected(A, A.pattern._planned(plan_triangle, k, side))


def plan_triangle(P: SparsityPattern, k: int, side: str) -> Selection:
    offset = as_numpy(P.col_indices).astype("int64") - as_numpy(P.row_indices)
    return kept(P, offset <= k if side == "lower" else offset >= k)
