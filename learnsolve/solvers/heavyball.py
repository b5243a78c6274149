"""The heavy ball: Richardson's iteration with momentum.

Source: Polyak, "Some methods of speeding up the convergence of iteration methods", USSR Comput. Math. Math.
Phys. 4 (1964) 1-17; learned: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic
Differentiation", arXiv 2212.05159, section 4.2.
"""

from collections.abc import Mapping
from typing import Any, Unpack

from torch import Tensor

from learnsolve._conversion import TensorLike
from learnsolve._inputs import operands
from learnsolve.solvers.core.fixed import FixedNumber
from learnsolve.solvers.core.parameters import Parameters, trainable
from learnsolve.solvers.core.spectrum import bounds, given_bounds
from learnsolve.solvers.core.stationary import run
from learnsolve.solvers.options import StationaryOptions, solver
from learnsolve.solvers.solution import Solution


def heavyball_parameters(lmin: Any, lmax: Any) -> tuple[Any, Any]:
    r"""The asymptotically best (alpha, beta) for an M A with positive eigenvalues.

    .. math:: \alpha = 4 / (\sqrt{\lambda_{\max}} + \sqrt{\lambda_{\min}})^2, \quad
              \beta = \left(\frac{\sqrt{\kappa} - 1}{\sqrt{\kappa} + 1}\right)^2, \quad
              \kappa = \lambda_{\max} / \lambda_{\min}

    Parameters
    ----------
    lmin, lmax : numbers or Tensors, the extreme eigenvalues of M A; differentiable

    Returns
    -------
    two numbers or Tensors. The error shrinks by sqrt(beta) a step in the end, not from the beginning.

    Raises
    ------
    ValueError
        if a bound is not positive and finite (of tensors: not checked under `torch.compile`, under
        transformations of `torch.func` and on a GPU), or the number lmin is larger than the number lmax.
    TypeError
        if a bound is not a number or a float32 or float64 tensor.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.solvers.heavyball_parameters(1.0, 9.0)
    (0.25, 0.25)
    """
    return _best(*given_bounds("heavyball_parameters", lmin, lmax))


def _best(lmin: Any, lmax: Any) -> tuple[Any, Any]:
    low, high = lmin**0.5, lmax**0.5
    return 4 / (high + low) ** 2, ((high - low) / (high + low)) ** 2


@solver(StationaryOptions, rtol=None, atol=None, gradient=None)
def heavyball(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    alpha: float | Tensor | None = None,
    beta: float | Tensor | None = None,
    lmin: float | Tensor | None = None,
    lmax: float | Tensor | None = None,
    iterations: int | None = None,
    **options: Unpack[StationaryOptions],
) -> Solution:
    r"""The heavy ball, :math:`x_{k+1} = x_k + \alpha_k M (b - A x_k) + \beta_k (x_k - x_{k-1})`,
    :math:`x_{-1} = x_0`.

    Parameters
    ----------
    A : CSR, BlockBatch, LinearOperator or callable, shape (n, n), as for `cg`; M A with positive eigenvalues
    b : Tensor or NumPy array, shape (n,) or (..., n, k)
    alpha : number or Tensor, for N = iterations and a batch B: (), (n,), (N,), (N, n), (B,), (N, B) or in
        full (B, N, n) with ones allowed ("Shapes of parameters" in docs/solvers.md)
    beta : the same without n: number or Tensor, (), (N,), (B,), (N, B) or (B, N, 1). If neither is given,
        alpha and beta are the `heavyball_parameters` of lmin and lmax
    lmin, lmax : instead of `alpha` and `beta`: bounds of the spectrum of M A, with shapes and estimates as
        for `chebyshev`; differentiable
    x0, iterations, gradient, throw : as for `richardson`
    options : shared keywords

    Returns
    -------
    Solution

    Raises
    ------
    ValueError, TypeError, SolverError
        as `richardson`.

    Notes
    -----
    Gradient with iterations: exact, of the steps that ran, for everything that requires grad, to any order.
    Else the implicit one, as for `bicgstab`.
    With iterations, a CSR and M None or diagonal (`preconditioners.Jacobi`) all steps are one
    compiled operation, and so is their adjoint: with :math:`\lambda_N = \bar x`,

    .. math:: \rho_k = \alpha_k M^T \lambda_{k+1}, \quad
              \lambda_k = \lambda_{k+1} + \beta_k \lambda_{k+1} - \beta_{k+1} \lambda_{k+2}
              - A^T \rho_k, \quad
              \bar\beta_k = \langle \lambda_{k+1}, x_k - x_{k-1} \rangle, \quad
              \bar\alpha_k = \langle \lambda_{k+1}, M r_k \rangle, \quad
              \bar b = \sum_k \rho_k, \quad \bar A = -\sum_k \rho_k x_k^T.

    Cost: one product with A and one with M a step. Backward, a step: one product with the transpose, one with
    A more if alpha or M requires grad or a norm is in the loss, a sampled product if A's values require grad.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> alpha = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    >>> beta = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    >>> solution = ls.solvers.heavyball(A, b, alpha=alpha, beta=beta, iterations=20)
    >>> solution.residual_norms[-1].backward()
    >>> bool(alpha.grad < 0 and beta.grad < 0)  # larger ones would have converged faster
    True
    >>> ls.solvers.heavyball(A, b, lmin=0.12, lmax=3.88).converged  # the best of these bounds
    True
    """
    name = "heavyball"
    A, b, x0 = operands(name, A, b, x0)

    def fixed(read: Parameters) -> tuple[Tensor, Tensor]:
        a, c = _coefficients(read, alpha, beta, lmin, lmax, options)
        return read.tensor("alpha", a), read.of_steps("beta", c)

    def until(read: Parameters):
        a, c = _coefficients(read, alpha, beta, lmin, lmax, options)
        a, c = read.of_columns("alpha", a), read.of_columns("beta", c, rows=False)
        return lambda t: (a, c, t)

    return run(
        name, A, b, x0, iterations, options, fixed, until, alpha=alpha, beta=beta, lmin=lmin, lmax=lmax
    )


def _coefficients(
    read: Parameters, alpha: Any, beta: Any, lmin: Any, lmax: Any, options: Mapping[str, Any]
) -> tuple[Any, Any]:
    if alpha is None and beta is None:
        return _best(*bounds(read, lmin, lmax, options))
    key, missing = ("alpha", "beta") if beta is None else ("beta", "alpha")
    if not (lmin is None and lmax is None):
        given = key if alpha is None or beta is None else "alpha and beta"
        raise ValueError(f"heavyball: {given} must not be given beside lmin or lmax, which choose both")
    if alpha is None or beta is None:
        raise ValueError(
            f"heavyball: {key} must be given with {missing}, got {missing}=None; or give neither, and lmin "
            "and lmax"
        )
    return alpha, beta


class Heavyball(FixedNumber):
    """`heavyball` with trainable parameters.

    Parameters
    ----------
    alpha, beta : numbers or floating-point Tensors, the initial parameters, of any shape that `heavyball`
        takes. A number becomes a parameter of torch's default dtype; ``.double()`` for float64 matrices.
    iterations : int
    M : as for `heavyball`; a Module's parameters are then those of this module
    gradient : "unrolled" or "checkpointed"

    Raises
    ------
    ValueError
        if alpha or beta requires grad, iterations is negative, or gradient not one of the two.
    TypeError
        if alpha or beta is not a number or a float32 or float64 tensor, or iterations not an int.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((16,)), torch.ones(16, dtype=torch.float64)
    >>> solver = ls.solvers.Heavyball(0.5, 0.5, iterations=12).double()
    >>> solver(A, b).x.sum().backward()
    >>> solver.beta.grad.shape
    torch.Size([])
    """

    def __init__(
        self,
        alpha: float | Tensor = 0.5,
        beta: float | Tensor = 0.5,
        iterations: int = 1,
        M: Any = None,
        gradient: str = "unrolled",
    ):
        super().__init__(iterations, gradient)
        self.alpha = trainable("Heavyball", "alpha", alpha)
        self.beta = trainable("Heavyball", "beta", beta)
        self.M = M

    def forward(self, A: Any, b: TensorLike, x0: TensorLike | None = None) -> Solution:
        """`heavyball` with the parameters as they are now; arguments and result as there."""
        return heavyball(
            A, b, x0,
            alpha=self.alpha, beta=self.beta, iterations=self.iterations, M=self.M, gradient=self.gradient,
        )  # fmt: skip
