"""Lower and upper triangles."""

from learnsolve import _analysis
from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.ops.core.selection import Selection, selected, trusted


def tril(A: CSR, k: int = 0) -> CSR:
    """The entries (i, j) of A with j <= i + k, on a pattern that is the same in every call.

    Planned once, then a gather of values; the gradient is scattered back, with zeros elsewhere. Explicit
    zeros are kept. Returns A itself if all its entries are there.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    k : int, the last diagonal that is included; below the main one if negative

    Returns
    -------
    CSR

    Raises
    ------
    TypeError
        if A is neither a CSR nor a sparse matrix of another library, or k not an int.

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

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz)
    k : int, the first diagonal that is included

    Returns
    -------
    CSR

    Raises
    ------
    TypeError
        if A is neither a CSR nor a sparse matrix of another library, or k not an int.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.ops.triu(ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [3.0, 4.0]])), 1).to_dense()
    tensor([[0., 2.],
            [0., 0.]])
    """
    return _triangle("triu", A, k, "upper")


def _triangle(function: str, A: CSR, k: int, side: str) -> CSR:
    checks.matrix(function, "A", A)
    k = checks.integer(function, "k", k, -(2**62))
    return selected(A, _selection(A.pattern, side, k))


def triangle_of(P: SparsityPattern, side: str) -> SparsityPattern:
    """The pattern of `tril` or `triu`, side "lower" or "upper": one object for all callers, so that its plans
    are computed once. P itself if all its entries are there."""
    return _selection(P, side, 0).pattern or P


def _selection(P: SparsityPattern, side: str, k: int) -> Selection:
    # With k = 0 the plan is kept as long as P, regardless of `set_plan_cache_limit`.
    return P._planned(_plan_triangle, side, k) if k else P._planned(_plan_triangle, side)


def _plan_triangle(P: SparsityPattern, side: str, k: int = 0) -> Selection:
    part = _analysis.triangle(as_numpy(P.crow_indices), as_numpy(P.col_indices), None, side == "upper", k)
    if part is None:
        return Selection(None, None)
    crow, col, at = part
    return Selection(trusted(P, crow, col, P.shape), P._tensor(at.astype(crow.dtype, copy=False)))
