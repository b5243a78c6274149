"""One sweep of successive over-relaxation.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), sections 4.1 and 12.4.
"""

from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.classical._relaxation import Sweep, check_relaxation


class SOR(Preconditioner):
    r"""One sweep of successive over-relaxation: linear, not symmetric.

    .. math:: M = \omega (D + \omega L)^{-1} \quad \text{(forward)}, \qquad
              M = \omega (D + \omega U)^{-1} \quad \text{(backward)}

    with A = L + D + U. omega = 1 is Gauss-Seidel. For `gmres`, `fgmres` and `bicgstab`; `cg` needs
    `SSOR`. For sweeps with a trainable omega, see `solvers.SOR`.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), without zeros on the diagonal
    omega : float or Tensor, 0 < omega < 2; shape () or one per matrix of the batch
    direction : "forward" or "backward", first to last unknown or last to first
    multicolor : sweep color by color, with the colors of `ordering.greedy_coloring`; the triangular solve
        then has as many levels as there are colors

    Raises
    ------
    ValueError
        if a diagonal entry is missing or zero, A is not finite (the message names the row), or omega is out
        of its range.
    TypeError
        if a type, dtype or device is wrong.

    Notes
    -----
    Gradient: exact, for A's values, omega and r. Cost: one triangular solve, nnz flops per column, on one
    triangle of the original A; with `multicolor` two more passes over r. The order is planned once per
    pattern.

    Source: D. M. Young, "Iterative methods for solving partial difference equations of elliptic type", Trans.
    AMS 76 (1954), doi:10.1090/S0002-9947-1954-0059635-7.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, -1.0], [-1.0, 2.0]]))
    >>> ls.preconditioners.SOR(A)(torch.tensor([2.0, 1.0]))
    tensor([1., 1.])
    """

    def __init__(
        self,
        A: CSR,
        omega: float | Tensor = 1.0,
        *,
        direction: str = "forward",
        multicolor: bool = False,
    ):
        self.omega = check_relaxation("SOR", A, omega, multicolor)
        super().__init__(A, omega)
        checks.one_of("SOR", "direction", direction, ("forward", "backward"))
        self._sweep, self._pattern = Sweep(direction, multicolor), A.pattern
        self._system = self._sweep.copied_system(A, self.omega)

    def _columns(self, R: Tensor) -> Tensor:
        return self._sweep.apply(self._system, self._pattern, self.omega, R, False)

    def _transposed(self, R: Tensor) -> Tensor:
        return self._sweep.apply(self._system, self._pattern, self.omega, R, True)
