"""Symmetric successive over-relaxation.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 10.2.
"""

from typing import Any

from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.operands import plain_values
from learnsolve.ops.core.symmetry import symmetry
from learnsolve.ops.diagonal import diagonal
from learnsolve.ops.structure import scale_columns
from learnsolve.ops.triangle import tril
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.classical._relaxation import Sweep, check_relaxation


class SSOR(Preconditioner):
    r"""A forward sweep of `SOR` and a backward one: linear, symmetric if A is.

    .. math:: M = \omega (2 - \omega) (D + \omega U)^{-1} D (D + \omega L)^{-1}

    with A = L + D + U. Positive definite for a symmetric positive definite A and every 0 < omega < 2.

    Parameters
    ----------
    A, omega, multicolor : as for `SOR`
    symmetric : bool, whether A is symmetric; default: determined from the values (not
        under `torch.compile`)

    Raises
    ------
    ValueError, TypeError
        as for `SOR`.

    Notes
    -----
    Gradient: exact, for A's values, omega and r. Cost: two triangular solves, 2 nnz flops per column. The
    choice of omega matters little: the best omega of `sor` works well, and 1 is a good start.

    The compiled loop of `cg` supports it if A is symmetric with a positive diagonal and `multicolor` is off,
    as :math:`M = (K K^T)^{-1}` with :math:`K = (D / \omega + L) ((2 - \omega) D / \omega)^{-1/2}`. Then only
    the lower triangle of A is read, and gets the gradient of both.

    References
    ----------
    O. Axelsson, "A generalized SSOR method", BIT 12 (1972) 443-467, doi:10.1007/BF01932955

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((50, 50)), torch.ones(2500, dtype=torch.float64)
    >>> M = ls.preconditioners.SSOR(A, omega=1.8)
    >>> ls.solvers.cg(A, b, M=M).iterations < ls.solvers.cg(A, b).iterations / 2
    True
    """

    def __init__(
        self,
        A: CSR,
        omega: float | Tensor = 1.0,
        *,
        multicolor: bool = False,
        symmetric: bool | None = None,
    ):
        self.omega = check_relaxation("SSOR", A, omega, multicolor)
        super().__init__(A, omega)
        self.symmetric = symmetry("SSOR", A, symmetric)
        self._sweep, self._pattern = Sweep("symmetric", multicolor), A.pattern
        self.omega = self.omega.clone() if isinstance(self.omega, Tensor) else self.omega
        self._system = self._sweep.copied_system(A, self.omega)

    def _columns(self, R: Tensor) -> Tensor:
        return self._sweep.apply(self._system, self._pattern, self.omega, R, False)

    def _transposed(self, R: Tensor) -> Tensor:
        return self._sweep.apply(self._system, self._pattern, self.omega, R, True)

    def pcg_form(self) -> tuple[str, Tensor, Any] | None:
        if not self.symmetric or self._sweep.multicolor:
            return None
        K = self._kept_factor(self._cholesky)
        return None if K is None else ("triangular", K.values, K.pattern)

    def _cholesky(self) -> CSR | None:
        """K of the lower triangle; None if M is not positive definite."""
        d = diagonal(self._system)
        if d.is_cpu and not (plain_values(d) > 0).all():
            return None
        omega = self.omega[..., None] if isinstance(self.omega, Tensor) else self.omega
        return scale_columns(tril(self._system), ((2 - omega) * d).rsqrt())
