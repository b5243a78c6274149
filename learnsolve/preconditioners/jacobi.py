"""The inverse of the diagonal.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 10.2.
"""

from torch import Tensor

from learnsolve.csr import CSR
from learnsolve.ops.structure import shared_inverse_diagonal
from learnsolve.preconditioners.base import Preconditioner


class Jacobi(Preconditioner):
    r"""The inverse of the diagonal, :math:`M = D^{-1}`: linear, symmetric, one product of numbers a row.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), without zeros on the diagonal

    Raises
    ------
    ValueError
        if a diagonal entry is missing or zero, or A is not finite (the message names the row).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((10, 10))
    >>> M = ls.preconditioners.Jacobi(A)
    >>> bool((M(torch.ones(100, dtype=torch.float64)) == 0.25).all())
    True
    """

    symmetric = True

    def __init__(self, A: CSR):
        super().__init__(A)
        self.inverse = shared_inverse_diagonal(A, "Jacobi")

    def _columns(self, R: Tensor) -> Tensor:
        return self.inverse.unsqueeze(-1) * R

    def pcg_form(self) -> tuple[str, Tensor, None]:
        return "diagonal", self.inverse, None
