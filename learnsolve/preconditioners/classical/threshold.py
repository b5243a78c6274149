"""Threshold incomplete factors: two triangular solves.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 10.4.
"""

import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.symmetry import symmetry
from learnsolve.ops.threshold import ict, ilut
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.classical.factored import Factored


class ICT(Factored):
    r"""Incomplete Cholesky with a threshold, :math:`M = (L L^T)^{-1}`: linear, symmetric, positive definite.

    Parameters
    ----------
    A : CSR, shape (n, n), values (nnz,), assumed symmetric: only its lower triangle is read
    fill, droptol, shift, on_breakdown : as for `ops.ict`

    Attributes
    ----------
    L : CSR, the factor
    shift : Tensor, the shift used

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        as for `ops.ict`; for a batch of matrices use ``IC0(A, pattern=M.L.pattern)``, with M of one of them.

    Notes
    -----
    Gradient: exact on the chosen pattern, for A's values, a tensor shift, and r, to any order. Cost: the
    choice and the factorization once, then two triangular solves with L, 2 nnz flops per column. The compiled
    loop of `cg` supports it. For another matrix on the same pattern, ``IC0(A, pattern=M.L.pattern)`` is
    faster.

    References
    ----------
    C.-J. Lin and J. J. Moré, "Incomplete Cholesky factorizations with limited memory", SIAM J. Sci. Comput.
    21 (1999) 24-45, doi:10.1137/S1064827597327334

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((50, 50)), torch.ones(2500, dtype=torch.float64)
    >>> M = ls.preconditioners.ICT(A, fill=5)
    >>> ls.solvers.cg(A, b, M=M).iterations < ls.solvers.cg(A, b, M=ls.preconditioners.IC0(A)).iterations / 2
    True
    """

    def __init__(
        self,
        A: CSR,
        *,
        fill: int = 5,
        droptol: float = 1e-3,
        shift: float | Tensor = 0.0,
        on_breakdown: str = "raise",
    ):
        Preconditioner.__init__(self, A, shift, finite=False)
        self.L, self.shift = ict(A, fill=fill, droptol=droptol, shift=shift, on_breakdown=on_breakdown)


class ILUT(Factored):
    r"""Incomplete LU with a threshold, :math:`M = (L U)^{-1}`: linear, symmetric if A and the pattern are.

    Parameters
    ----------
    A : CSR, shape (n, n), values (nnz,)
    fill, droptol, shift, on_breakdown : as for `ops.ilut`
    symmetric : bool, as for `ILU0`; for a symmetric A prefer `ICT`

    Attributes
    ----------
    L, U : CSR, the factors; the unit diagonal of L is stored
    shift : Tensor, the shift used

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        as for `ops.ilut`.

    Notes
    -----
    Gradient and cost are as for `ICT`, with two factors: a triangular solve with L and one with U per call.

    References
    ----------
    Y. Saad, "ILUT: a dual threshold incomplete LU factorization", Numer. Linear Algebra Appl. 1 (1994)
    387-402, doi:10.1002/nla.1680010405

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.convection_diffusion(torch.ones(2, 30, 30, dtype=torch.float64))
    >>> b = torch.ones(900, dtype=torch.float64)
    >>> P, gmres = ls.preconditioners, ls.solvers.gmres
    >>> gmres(A, b, M=P.ILUT(A)).iterations < gmres(A, b, M=P.ILU0(A)).iterations
    True
    """

    def __init__(
        self,
        A: CSR,
        *,
        fill: int = 5,
        droptol: float = 1e-3,
        shift: float | Tensor = 0.0,
        on_breakdown: str = "raise",
        symmetric: bool | None = None,
    ):
        Preconditioner.__init__(self, A, shift, finite=False)
        factors = ilut(A, fill=fill, droptol=droptol, shift=shift, on_breakdown=on_breakdown)
        self.L, self.U, self.shift = factors
        T, U = self.L.pattern.T, self.U.pattern
        pairs = ((T.crow_indices, U.crow_indices), (T.col_indices, U.col_indices))
        if symmetric is None and not all(torch.equal(*pair) for pair in pairs):
            symmetric = False
        self.symmetric = symmetry("ILUT", A, symmetric)
