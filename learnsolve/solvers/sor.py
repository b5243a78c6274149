"""Gauss-Seidel and successive over-relaxation, forward, backward and symmetric.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 4.1.
"""

from typing import Unpack

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve._conversion import TensorLike
from learnsolve.csr import CSR
from learnsolve.preconditioners.classical._relaxation import DIRECTIONS
from learnsolve.solvers.core.correction import relax
from learnsolve.solvers.core.fixed import FixedNumber
from learnsolve.solvers.core.parameters import trainable
from learnsolve.solvers.options import SweepOptions, solver
from learnsolve.solvers.solution import Solution


@solver(SweepOptions, rtol=None, atol=None, gradient=None)
def sor(
    A: CSR,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    omega: float | Tensor = 1.0,
    direction: str = "forward",
    multicolour: bool = False,
    iterations: int | None = None,
    **options: Unpack[SweepOptions],
) -> Solution:
    r"""Successive over-relaxation: each unknown in turn is moved omega times as far as would solve its row.

    .. math:: x_{k+1} = x_k + \omega (D + \omega L)^{-1} (b - A x_k)

    with A = L + D + U, for a forward sweep. It converges for a symmetric positive definite A and every
    0 < omega < 2. `iterations` sweeps, or as many as the tolerance takes.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, without zeros on the diagonal; its values may be (..., nnz)
    b : Tensor or NumPy array, shape (n,) or (..., n, k): one or k right-hand sides
    x0 : like b; zero if not given
    omega : number or Tensor, which may require grad, 0 < omega < 2; 1 (Gauss-Seidel) if not given. For
        N = iterations and a batch B: (), (N,), (B,), (N, B) or in full (B, N, 1) with ones allowed ("Shapes
        of parameters" in docs/solvers.md)
    direction : "forward", first to last unknown; "backward"; or "symmetric", one of each: `ssor`
    multicolour : sweep through the unknowns colour by colour, as `ordering.greedy_colouring` colours them, so
        that those of one colour are relaxed at the same time
    iterations : int >= 0, exactly this number of sweeps, whatever the residual does. Excludes rtol, atol,
        maxiter, callback, throw, adjoint_rtol and adjoint_maxiter
    rtol, atol : the tolerance without `iterations`; 1e-5 and 0 if not given. A column stops when
        :math:`\|b - A x\| \le \max(\mathtt{rtol} \|b\|, \mathtt{atol})`
    maxiter : int, 10 n if not given
    gradient : "unrolled", the exact gradient of the sweeps that ran, for A's values, b, x0, omega and
        `residual_norms`; "checkpointed", the same numbers in O(sqrt(iterations)) memory; "implicit", not
        beside `iterations`: one adjoint solve at the solution, for A and b. If not given, "unrolled" beside
        `iterations`, else "implicit"
    options : shared keywords

    Returns
    -------
    Solution

    Raises
    ------
    ValueError
        if shapes or values do not fit, a diagonal entry is missing or zero (the message names the row),
        something requires grad that gradient="implicit" has no gradient for, or keywords exclude one another.
    TypeError
        if types, dtypes or devices do not fit.
    SolverError
        if `throw` and a column did not converge.

    Notes
    -----
    Implicit gradient: :math:`\bar b = \lambda`, :math:`\bar A = -\lambda x^T` on the pattern with
    :math:`A^T \lambda = \bar x`, solved by the transposed sweeps, which converge as fast. Cost: one product
    with A and one triangular solve a sweep (two if symmetric); backward, unrolled, the transposes of both and
    the gradients of the values.

    For a matrix with property A in a consistent order (Poisson's on a grid, as it stands or multicolour) and
    :math:`\mu` the spectral radius of Jacobi's iteration the best is
    :math:`\omega = 2 / (1 + \sqrt{1 - \mu^2})`, with rate :math:`\omega - 1` [1]_.

    References
    ----------
    .. [1] D. M. Young, "Iterative methods for solving partial difference equations of elliptic type", Trans.
       AMS 76 (1954) 92-111, doi:10.1090/S0002-9947-1954-0059635-7

    Examples
    --------
    >>> import math, torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((20, 20)), torch.ones(400, dtype=torch.float64)
    >>> best = 2 / (1 + math.sin(math.pi / 21))
    >>> ls.solvers.sor(A, b, omega=best).iterations < ls.solvers.gauss_seidel(A, b).iterations / 8
    True
    >>> omega = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    >>> ls.solvers.sor(A, b, omega=omega, iterations=10).residual_norms[-1].backward()
    >>> bool(omega.grad < 0)  # more than 1 would have been faster
    True
    """
    return relax("sor", A, b, x0, omega, direction, multicolour, iterations, options)


@solver(SweepOptions, rtol=None, atol=None, gradient=None)
def ssor(
    A: CSR,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    omega: float | Tensor = 1.0,
    multicolour: bool = False,
    iterations: int | None = None,
    **options: Unpack[SweepOptions],
) -> Solution:
    r"""Symmetric successive over-relaxation: a forward sweep of `sor`, then a backward one.

    .. math:: x_{k+1} = x_k + \omega (2 - \omega) (D + \omega U)^{-1} D (D + \omega L)^{-1} (b - A x_k)

    An iteration, of one product with A and two triangular solves, counts as one. Gradients are those of
    `sor`.

    Parameters
    ----------
    A, b, x0, omega, multicolour, iterations, gradient : as for `sor`
    options : shared keywords

    Returns
    -------
    Solution

    Raises
    ------
    ValueError, TypeError, SolverError
        as `sor`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> forward = ls.solvers.sor(A, b, omega=1.5, iterations=1)
    >>> both = ls.solvers.sor(A, b, forward.x, omega=1.5, direction="backward", iterations=1)
    >>> torch.allclose(ls.solvers.ssor(A, b, omega=1.5, iterations=1).x, both.x)
    True
    """
    return relax("ssor", A, b, x0, omega, "symmetric", multicolour, iterations, options)


@solver(SweepOptions, rtol=None, atol=None, gradient=None)
def gauss_seidel(
    A: CSR,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    direction: str = "forward",
    multicolour: bool = False,
    iterations: int | None = None,
    **options: Unpack[SweepOptions],
) -> Solution:
    r"""Gauss-Seidel: each unknown in turn solves its row, with the current values of the others.

    .. math:: x_{k+1} = x_k + (D + L)^{-1} (b - A x_k)

    `sor` with omega = 1, and with its gradients.

    Parameters
    ----------
    A, b, x0, direction, multicolour, iterations, gradient : as for `sor`
    options : shared keywords

    Returns
    -------
    Solution

    Raises
    ------
    ValueError, TypeError, SolverError
        as `sor`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, -1.0], [-1.0, 2.0]]))
    >>> ls.solvers.gauss_seidel(A, torch.tensor([2.0, 1.0]), iterations=1).x
    tensor([1., 1.])
    """
    return relax("gauss_seidel", A, b, x0, 1.0, direction, multicolour, iterations, options)


class SOR(FixedNumber):
    r"""`sor` for a fixed number of sweeps, with a trainable omega: omega = 2 sigmoid(logit), so that every
    value of the parameter `logit` is a relaxation that can converge.

    Sweeps towards a solution; `preconditioners.SOR` is one of them from zero, as an M.

    Parameters
    ----------
    omega : number or floating-point Tensor, 0 < omega < 2, the initial one, of any shape that `sor` takes. A
        number becomes a parameter of torch's default dtype; ``.double()`` for float64 matrices.
    iterations : int >= 0
    direction, multicolour : as for `sor`
    gradient : "unrolled" or "checkpointed"

    Attributes
    ----------
    omega : Tensor, the present one, with its graph

    Raises
    ------
    ValueError
        if omega is not within 0 < omega < 2, or requires grad; if iterations is negative, or direction or
        gradient not one of those.
    TypeError
        if omega is not a number or a float32 or float64 tensor, iterations not an int, or multicolour not a
        bool.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> solver = ls.solvers.SOR(1.0, iterations=4).double()
    >>> solver(A, b).residual_norms[-1].backward()
    >>> bool(solver.logit.grad < 0)  # a larger omega would have converged faster
    True
    """

    def __init__(
        self,
        omega: float | Tensor = 1.0,
        iterations: int = 1,
        *,
        direction: str = "forward",
        multicolour: bool = False,
        gradient: str = "unrolled",
    ):
        super().__init__(iterations, gradient)
        _check.one_of("SOR", "direction", direction, DIRECTIONS)
        _check.flag("SOR", "multicolour", multicolour)
        omega = trainable("SOR", "omega", omega).detach()
        if not ((omega > 0) & (omega < 2)).all():
            raise ValueError(f"SOR: omega must lie in 0 < omega < 2, got {omega.tolist()}; 1 is Gauss-Seidel")
        self.logit = torch.nn.Parameter(torch.log(omega / (2 - omega)))
        self.direction, self.multicolour = direction, multicolour

    @property
    def omega(self) -> Tensor:
        info = torch.finfo(self.logit.dtype)  # far out sigmoid rounds to 0 or 1
        return (2 * torch.sigmoid(self.logit)).clamp(info.tiny, 2 - info.eps)

    def forward(self, A: CSR, b: TensorLike, x0: TensorLike | None = None) -> Solution:
        """`sor` with the parameters as they are now; arguments and result as there."""
        return sor(
            A, b, x0, omega=self.omega, direction=self.direction, multicolour=self.multicolour,
            iterations=self.iterations, gradient=self.gradient,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"iterations={self.iterations}, direction={self.direction!r}, multicolour={self.multicolour}, "
            f"gradient={self.gradient!r}"
        )
