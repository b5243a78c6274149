"""The truncated Neumann series.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 12.3.1.
"""

from typing import Any

from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.dots import scaled, times
from learnsolve.preconditioners.classical._polynomial import Apply, PolynomialPreconditioner


class Neumann(PolynomialPreconditioner):
    r"""The first terms of the Neumann series of the inverse: `degree` + 1 weighted sweeps from zero.

    .. math:: M_p = \sum_{i=0}^{d} (I - w M A)^i\, w M

    Linear; symmetric if A and M are. If, in addition, both are positive definite, it is positive definite for
    every even degree, and for odd degrees if w < 2 / lmax, where lmax is the largest eigenvalue of M A.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)
    degree : int >= 0, products with A per call
    weight : float or Tensor, positive; a tensor may require grad and has shape () or one value per
        matrix of the batch
    M, symmetric : as for `Chebyshev`

    Raises
    ------
    ValueError, TypeError
        as for `Chebyshev`.

    Notes
    -----
    Gradient: exact, for A's values, the weight, the tensors of M, and r, to any order. Cost: `degree`
    products with A and one more with M; with M="jacobi" and one matrix the whole polynomial is one compiled
    operation. A Chebyshev polynomial of the same degree is better at the same cost, if the spectrum is
    known.

    References
    ----------
    P. F. Dubois, A. Greenbaum, G. H. Rodrigue, "Approximating the inverse of a matrix for use in iterative
    algorithms on vector processors", Computing 22 (1979) 257-268, doi:10.1007/BF02243566

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((3,))
    >>> ls.preconditioners.Neumann(A, degree=1)(torch.tensor([0.0, 4.0, 0.0], dtype=torch.float64))
    tensor([1., 2., 1.], dtype=torch.float64)
    """

    def __init__(
        self,
        A: CSR,
        *,
        degree: int = 1,
        weight: float | Tensor = 1.0,
        M: Any = "jacobi",
        symmetric: bool | None = None,
    ):
        super().__init__(A, degree, M, symmetric)
        self.weight, self._weight = weight, self._parameter("weight", weight)

    def _polynomial(self, A: Apply, M: Apply, R: Tensor) -> Tensor:
        x = scaled(self._weight, M(R))
        for _ in range(self.degree):
            x = x + scaled(self._weight, M(R - A(x)))
        return x

    def _columns(self, R: Tensor) -> Tensor:
        inverse = self._inverse_diagonal()
        if inverse is None:
            return super()._columns(R)
        scale = times(inverse, self._weight)
        return self._swept(scale, R, scale.unsqueeze(-1) * R, self.degree)
