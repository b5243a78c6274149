"""A triangular solve with a trainable matrix."""

from __future__ import annotations

from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.sptrsv import sptrsv
from learnsolve.ops.triangle import tril, triu
from learnsolve.preconditioners.factors import check_has_diagonal, check_triangular
from learnsolve.preconditioners.trainable import POSITIVE, MatrixValues


class TriangularSolve(MatrixValues):
    r"""A triangular solve whose matrix is trainable, :math:`x = L^{-1} b` or :math:`L^{-T} b`.

    Parameters
    ----------
    L : CSR, shape (n, n), float32 or float64, triangular: the pattern and the initial values (..., nnz)
    lower : L is lower triangular; else upper
    unit_diagonal : the diagonal is one and not trainable; diagonal entries of L are ignored
    transpose : solve with the transpose
    positive : None, "exp" or "softplus": the diagonal is this function of a parameter, so that it stays
        positive and L nonsingular

    Attributes
    ----------
    values : Parameter on the pattern, if `positive` is None
    off_diagonal, and log_diagonal ("exp") or raw_diagonal ("softplus") : Parameters, with `positive`
    matrix() : L, a CSR

    Raises
    ------
    ValueError
        if L has entries in the other triangle, a row without its diagonal entry, or a diagonal that is not
        positive with `positive`; in a call, for a zero on the diagonal (the message names the row).

    Notes
    -----
    The module holds the matrix, so it is called with b only. It returns the Tensor x, not a `Solution`,
    because a direct solve has no iterations, residual history or status; if it fails, it raises. Gradient and
    cost are as for `ops.sptrsv`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> L = ls.problems.poisson((4,)).tril()
    >>> solve = ls.solvers.TriangularSolve(L, positive="exp")
    >>> x = solve(torch.ones(4, dtype=torch.float64))
    >>> x.sum().backward()
    >>> solve.log_diagonal.grad.shape
    torch.Size([4])
    """

    instead = "call ops.sptrsv, which differentiates with respect to it"

    def __init__(
        self,
        L: CSR,
        *,
        lower: bool = True,
        unit_diagonal: bool = False,
        transpose: bool = False,
        positive: str | None = None,
    ):
        for name, value in (("lower", lower), ("unit_diagonal", unit_diagonal), ("transpose", transpose)):
            checks.flag("TriangularSolve", name, value)
        if unit_diagonal and positive is not None:
            raise ValueError(
                f"TriangularSolve: with unit_diagonal=True there is no diagonal to keep positive, got "
                f"positive={positive!r}; leave one of them out"
            )
        if positive is not None:
            checks.one_of("TriangularSolve", "positive", positive, POSITIVE)
        checks.matrix("TriangularSolve", "L", L)
        checks.square("TriangularSolve", "L", L.shape)
        check_triangular("TriangularSolve", "L", L, lower)
        if unit_diagonal:
            L = tril(L, -1) if lower else triu(L, 1)
        else:
            check_has_diagonal("TriangularSolve", "L", L)
        super().__init__("TriangularSolve", "L", L, positive)
        self.lower, self.unit_diagonal, self.transpose = lower, unit_diagonal, transpose

    def forward(self, b: Tensor) -> Tensor:  # type: ignore[override]
        """Solve L x = b, or L^T x = b with `transpose`; b and x have shape (n,) or (..., n, k)."""
        return sptrsv(
            self.matrix(), b, lower=self.lower, unit_diagonal=self.unit_diagonal, transpose=self.transpose
        )

    def extra_repr(self) -> str:
        flags = ("lower", "unit_diagonal", "transpose")
        return ", ".join((super().extra_repr(), *(f"{flag}={getattr(self, flag)}" for flag in flags)))
