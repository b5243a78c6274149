"""Learned incomplete factors, M = (L L^T)^-1 or (L U)^-1 through triangular solves.

Sources: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation",
arXiv 2212.05159, section 4.3; Saad, "Iterative Methods for Sparse Linear Systems" (2003), chapter 10.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops.incomplete import IncompleteLU, ic0, ilu0, mic0
from learnsolve.preconditioners._factor import TriangularFactor, assign
from learnsolve.preconditioners._held import Holder, check_constant
from learnsolve.preconditioners.factored import Factored, check_ones

_METHODS = {"ic0": ic0, "mic0": mic0, "ilu0": ilu0}


class IncompleteFactor(Holder):
    r"""Learned triangular factors, :math:`M = (L L^T)^{-1}` or :math:`M = (L U)^{-1}`.

    Parameters
    ----------
    L : CSR, shape (n, n), float32 or float64, lower triangular; the start of the factor. Without `U` it has
        a positive diagonal; with `U` it has ones there, or no entries. Values may have batch axes, (..., nnz)
    U : CSR, upper triangular, without zeros on its diagonal
    positive : "exp" or "softplus", how the diagonal is kept away from zero: the parameter is its logarithm,
        or the inverse softplus of it. That of U keeps the signs that it starts with; the ones of L are not
        learned

    Attributes
    ----------
    L, U : modules with the parameters `off_diagonal` and `diagonal` (L beside a U: `values`, below the ones);
        ``M.L.matrix()`` is the CSR. U is None for (L L^T)^-1

    Raises
    ------
    ValueError
        if a factor is not triangular, or its diagonal is not as said above (the message names the row).

    Notes
    -----
    Linear. (L L^T)^-1 is symmetric and positive definite for all values of the parameters, so `cg` may be
    trained through it; its fixed number of iterations runs compiled. (L U)^-1 is not symmetric, its transpose
    is :math:`L^{-T} U^{-T}`.

    Gradient: exact, for the parameters and r, to any order. Cost: two triangular solves, 4 nnz flops a column
    of r; to put the diagonal in its place, one pass over the values.

    References
    ----------
    N. Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation",
    arXiv 2212.05159, 2022.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((16, 16)), torch.ones(256, dtype=torch.float64)
    >>> M = ls.preconditioners.IncompleteFactor.initialise_from(A, "ic0")
    >>> ls.solvers.cg(A, b, M=M, rtol=0.0, maxiter=4, gradient="unrolled").residual_norms[-1].backward()
    >>> M.L.diagonal.grad.shape
    torch.Size([256])
    """

    def __init__(self, L: CSR, U: CSR | None = None, *, positive: str = "exp"):
        super().__init__()
        name = type(self).__name__
        self.L = TriangularFactor(name, "L", L, lower=True, unit_diagonal=U is not None, positive=positive)
        self.U = None
        self.shape, self.batch_shape, self.symmetric = L.shape, L.batch_shape, U is None
        if U is None:
            return
        self.U = TriangularFactor(name, "U", U, lower=False, positive=positive, any_sign=True)
        if U.shape != L.shape:
            raise ValueError(f"{name}: L and U must have one shape, got {L.shape} and {U.shape}")
        _check.same_kind(name, "U.values", U.values, L.values)
        _check.batches(name, L.batch_shape, U.batch_shape, "L and U")
        check_ones(name, L)
        self.batch_shape = torch.broadcast_shapes(L.batch_shape, U.batch_shape)

    @classmethod
    def initialise_from(
        cls,
        A: CSR,
        method: str = "ic0",
        *,
        shift: float = 0.0,
        on_breakdown: str = "raise",
        positive: str = "exp",
    ) -> IncompleteFactor:
        """One that starts as an incomplete factorisation of A.

        Parameters
        ----------
        A : CSR, shape (n, n); symmetric positive definite for "ic0" and "mic0"
        method : "ic0", "mic0" or "ilu0", of `learnsolve.ops`
        shift, on_breakdown : as for these
        positive : as for the class

        Notes
        -----
        A and `shift` are constants to it: what requires grad is refused. To start again on the same pattern:
        ``M.assign_(*factors)``.
        """
        _check.one_of("IncompleteFactor.initialise_from", "method", method, tuple(_METHODS))
        function = "IncompleteFactor.initialise_from"
        instead = "use preconditioners.IC0, MIC0 or ILU0, or Factored(L, U), which keep the graph"
        check_constant(function, A, instead)
        if isinstance(shift, Tensor):
            _check.start(function, "shift", shift, instead)
        with torch.no_grad():
            factors = _METHODS[method](A, shift=shift, on_breakdown=on_breakdown)
        U = factors.U if isinstance(factors, IncompleteLU) else None
        return cls(factors.L, U, positive=positive)

    def assign_(self, L: CSR, U: CSR | None = None) -> IncompleteFactor:
        """Set the parameters, in place, so that the factors are L and U on the patterns of this module, in
        its dtype. After an error nothing has changed."""
        name = type(self).__name__
        if (U is None) != (self.U is None):
            has = "(L L^T)^-1" if self.U is None else "(L U)^-1"
            raise ValueError(f"{name}.assign_: this is {has}; give {'L alone' if self.U is None else 'L, U'}")
        if self.U is not None and U is not None:
            _check.matrix(f"{name}.assign_", "L", L)
            check_ones(f"{name}.assign_", L)
        pairs = self.L.assignments(L)
        if self.U is not None and U is not None:
            pairs += self.U.assignments(U)
        assign(pairs)
        return self

    def current(self) -> Factored:
        U = None if self.U is None else self.U.matrix()
        return self._with(Factored, L=self.L.matrix(), U=U, symmetric=self.symmetric)
