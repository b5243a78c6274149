"""Richardson's iteration, x <- x + w M (b - A x), and its form with momentum, the heavy ball.

Sources: Richardson, Phil. Trans. R. Soc. A 210 (1911) 307-357; Saad, "Iterative Methods for Sparse Linear
Systems" (2003), section 4.2; Polyak, "Some methods of speeding up the convergence of iteration methods", USSR
Comput. Math. Math. Phys. 4 (1964) 1-17; trained: Nytko et al., arXiv 2212.05159, section 4.2.
"""

from typing import Any, Unpack

import torch

from learnsolve.matrix.convert import TensorLike
from learnsolve.solvers.core.parameters import FixedNumber, Parameters, Value, bounds, given_bounds
from learnsolve.solvers.core.stationary import run
from learnsolve.solvers.options import Options, StationaryOptions, solver
from learnsolve.solvers.solution import Solution


def richardson_weight(lmin: Any, lmax: Any) -> Any:
    r"""The best weight, :math:`2 / (\lambda_{\min} + \lambda_{\max})`, for an M A with positive eigenvalues.

    Parameters
    ----------
    lmin, lmax : floats or Tensors, the extreme eigenvalues of M A; differentiable

    Returns
    -------
    float or Tensor. The error shrinks by (kappa - 1) / (kappa + 1) per step, kappa = lmax / lmin.

    Raises
    ------
    ValueError, TypeError
        if a bound is not positive and finite, not a number or a float32 or float64 tensor (values of tensors
        are not checked under `torch.compile`, under `torch.func` transformations or on a GPU), or if numbers
        have lmin > lmax.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.solvers.richardson_weight(1.0, 3.0)
    0.5
    """
    return _best_weight(*given_bounds("richardson_weight", lmin, lmax))


def _best_weight(lmin: Any, lmax: Any) -> Any:
    return 2 / (lmin + lmax)


@solver(StationaryOptions, rtol=None, atol=None, gradient=None)
def richardson(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    weight: Value | None = None,
    lmin: Value | None = None,
    lmax: Value | None = None,
    iterations: int | None = None,
    **options: Unpack[StationaryOptions],
) -> Solution:
    r"""Richardson's iteration, :math:`x_{k+1} = x_k + w_k \circ M (b - A x_k)`.

    Parameters
    ----------
    A : as for `cg`; M A with eigenvalues of positive real part
    b, x0 : as for `cg`
    weight : float or Tensor, () or one per row, step or member of the batch ("Shapes of parameters" in
        docs/solvers.md). Default: 1 with an M and no bounds, else `richardson_weight(lmin, lmax)`
    lmin, lmax : instead of `weight`: bounds of the spectrum of M A, as for `chebyshev`. With the estimated
        bounds the iteration converges for a symmetric positive definite A, unless the largest eigenvalue was
        underestimated by more than an eighth
    options : shared keywords

    Notes
    -----
    Implicit gradient as for `bicgstab`; with `iterations` the gradient is exact, for all inputs that require
    grad, to any order. For a CSR and M None or diagonal (`preconditioners.Jacobi`), all steps are one
    compiled operation, and so is their adjoint (formulas: docs/gradients.md). Cost: one product with A and
    one with M per step. Backward: one product with the transpose, another product with A if a parameter or M
    requires grad or a norm is in the loss, and a sampled product if A's values require grad.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> w = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    >>> ls.solvers.richardson(A, b, weight=w, iterations=50).residual_norms[-1].backward()
    >>> bool(w.grad < 0)  # a larger weight would have converged faster
    True
    """

    def coefficients(read: Parameters, settings: Options) -> tuple[Any, None]:
        w, free = weight, lmin is None and lmax is None
        if w is None:
            w = 1.0 if free and settings.M is not None else _best_weight(*bounds(read, lmin, lmax, settings))
        elif not free:
            raise ValueError("richardson: weight must not be given beside lmin or lmax, which determine it")
        return read.coefficient("weight", w), None

    return run("richardson", A, b, x0, iterations, options, coefficients)


class Richardson(FixedNumber):
    """`richardson` with a trainable weight.

    Parameters
    ----------
    weight : the initial weight
    options : shared keywords

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> smoother = ls.solvers.Richardson(0.4, iterations=3).double()
    >>> smoother(A, b).residual_norms.shape
    torch.Size([4])
    """

    function, keywords = staticmethod(richardson), ("weight", "M")
    weight: torch.nn.Parameter

    def __init__(self, weight: Value = 1.0, iterations: int = 1, M: Any = None, gradient: str = "unrolled"):
        super().__init__(iterations, gradient, weight=weight)
        self.M = M


def heavyball_parameters(lmin: Any, lmax: Any) -> tuple[Any, Any]:
    r"""The asymptotically best (alpha, beta) for an M A with positive eigenvalues.

    .. math:: \alpha = 4 / (\sqrt{\lambda_{\max}} + \sqrt{\lambda_{\min}})^2, \quad
              \beta = \left(\frac{\sqrt{\kappa} - 1}{\sqrt{\kappa} + 1}\right)^2, \quad
              \kappa = \lambda_{\max} / \lambda_{\min}

    Parameters
    ----------
    lmin, lmax : as for `richardson_weight`

    Returns
    -------
    two floats or Tensors. The error shrinks by sqrt(beta) per step asymptotically, not from the first step.

    Raises
    ------
    ValueError, TypeError
        as `richardson_weight`.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.solvers.heavyball_parameters(1.0, 9.0)
    (0.25, 0.25)
    """
    return _best_momentum(*given_bounds("heavyball_parameters", lmin, lmax))


def _best_momentum(lmin: Any, lmax: Any) -> tuple[Any, Any]:
    low, high = lmin**0.5, lmax**0.5
    return 4 / (high + low) ** 2, ((high - low) / (high + low)) ** 2


@solver(StationaryOptions, rtol=None, atol=None, gradient=None)
def heavyball(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    alpha: Value | None = None,
    beta: Value | None = None,
    lmin: Value | None = None,
    lmax: Value | None = None,
    iterations: int | None = None,
    **options: Unpack[StationaryOptions],
) -> Solution:
    r"""The heavy ball, :math:`x_{k+1} = x_k + \alpha_k M (b - A x_k) + \beta_k (x_k - x_{k-1})`,
    :math:`x_{-1} = x_0`. Gradients and cost are as for `richardson`.

    Parameters
    ----------
    A : as for `cg`; M A with positive eigenvalues
    b, x0 : as for `cg`
    alpha, beta : floats or Tensors, () or one per row (alpha only), step or member of the batch ("Shapes of
        parameters" in docs/solvers.md). Default: `heavyball_parameters(lmin, lmax)`
    lmin, lmax : instead of `alpha` and `beta`: bounds of the spectrum of M A, as for `chebyshev`
    options : shared keywords

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> alpha, beta = (torch.tensor(0.3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    >>> ls.solvers.heavyball(A, b, alpha=alpha, beta=beta, iterations=20).residual_norms[-1].backward()
    >>> bool(alpha.grad < 0 and beta.grad < 0)  # larger ones would have converged faster
    True
    """

    def coefficients(read: Parameters, settings: Options) -> tuple[Any, Any]:
        keys = [key for key, value in (("alpha", alpha), ("beta", beta)) if value is not None]
        if not keys:
            a, c = _best_momentum(*bounds(read, lmin, lmax, settings))
            return read.coefficient("alpha", a), read.momentum("beta", c)
        if not (lmin is None and lmax is None):
            keys = " and ".join(keys)
            raise ValueError(f"heavyball: {keys} must not be given beside lmin or lmax, which determine both")
        if len(keys) == 1:
            missing = "beta" if beta is None else "alpha"
            raise ValueError(
                f"heavyball: {keys[0]} must be given with {missing}, got {missing}=None; or give neither, "
                "and optionally lmin and lmax"
            )
        return read.coefficient("alpha", alpha), read.momentum("beta", beta)

    return run("heavyball", A, b, x0, iterations, options, coefficients)


class Heavyball(FixedNumber):
    """`heavyball` with trainable parameters.

    Parameters
    ----------
    alpha, beta : the initial step and momentum
    options : shared keywords

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((16,)), torch.ones(16, dtype=torch.float64)
    >>> solver = ls.solvers.Heavyball(0.5, 0.5, iterations=12).double()
    >>> solver(A, b).x.sum().backward()
    >>> solver.beta.grad.shape
    torch.Size([])
    """

    function, keywords = staticmethod(heavyball), ("alpha", "beta", "M")
    alpha: torch.nn.Parameter
    beta: torch.nn.Parameter

    def __init__(
        self,
        alpha: Value = 0.5,
        beta: Value = 0.5,
        iterations: int = 1,
        M: Any = None,
        gradient: str = "unrolled",
    ):
        super().__init__(iterations, gradient, alpha=alpha, beta=beta)
        self.M = M
