"""The inverse of the diagonal.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 10.2.
"""

from learnsolve.csr import CSR
from learnsolve.ops.diagonal import shared_inverse_diagonal
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.diagonal import Diagonal


class Jacobi(Diagonal):
    r"""The inverse of the diagonal, :math:`M = D^{-1}`: linear, symmetric, one product of numbers a row.

    A preconditioner, M of a solver; `solvers.Jacobi` is weighted Jacobi sweeps with a trainable weight.

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

    def __init__(self, A: CSR):
        Preconditioner.__init__(self, A)
        self.d = shared_inverse_diagonal(A, "Jacobi")
