"""Richardson's iteration, the heavy ball, Chebyshev's semi-iteration, weighted Jacobi, with trainable
weights."""

from collections.abc import Callable
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from learnsolve.arguments import Index
from learnsolve.matrix import checks
from learnsolve.matrix.checks import operands
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.csr import CSR
from learnsolve.ops import across
from learnsolve.ops.autograd import needs_graph
from learnsolve.ops.products import product, times
from learnsolve.ops.structure import reuse_inverse_diagonal
from learnsolve.ops.sweeps import residual_norm
from learnsolve.solvers.core.arguments import check_b, check_x0
from learnsolve.solvers.core.stationary import (
    FixedNumber,
    Parameters,
    Stationary,
    Value,
    bounds,
    given_bounds,
    make_solution,
    run,
    run_iterations,
    run_kernel,
    start,
)
from learnsolve.solvers.options import Options, StationaryOptions, smoother, solver
from learnsolve.solvers.solution import EAGER, Solution

# Richardson's iteration, x <- x + w M (b - A x), and its form with momentum, the heavy ball.
#
# Sources: Richardson, Phil. Trans. R. Soc. A 210 (1911) 307-357; Saad, "Iterative Methods for Sparse Linear
# Systems" (2003), section 4.2; Polyak, "Some methods of speeding up the convergence of iteration methods",
# USSR Comput. Math. Math. Phys. 4 (1964) 1-17; trained: Nytko et al., arXiv 2212.05159, section 4.2.


def richardson_weight(lmin: object, lmax: object) -> Any:
    r"""The best weight, :math:`2 / (\lambda_{\min} + \lambda_{\max})`, for an M A with positive eigenvalues.

    Parameters
    ----------
    lmin, lmax : floats or Tensors, the extreme eigenvalues of M A, differentiable

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
    A: object,
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
    A : as for `cg`, with eigenvalues of M A of positive real part
    b, x0 : see `cg`
    weight : float or Tensor, () or one per row, step or member of the batch ("Shapes of parameters" in
        docs/solvers.md). Default: 1 with an M and no bounds, else `richardson_weight(lmin, lmax)`
    lmin, lmax : instead of `weight`: bounds of the spectrum of M A, as for `chebyshev`. With the estimated
        bounds the iteration converges for a symmetric positive definite A, unless the largest eigenvalue was
        underestimated by more than an eighth
    options : shared keywords

    Notes
    -----
    Implicit gradient as for `bicgstab`. With `iterations` the gradient is exact, for all inputs that require
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
            raise ValueError("richardson: weight must not be passed with lmin or lmax, which determine it")
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

    def __init__(
        self, weight: Value = 1.0, iterations: int = 1, M: object = None, gradient: str = "unrolled"
    ):
        super().__init__(iterations, gradient, weight=weight)
        self.M = M


def heavyball_parameters(lmin: object, lmax: object) -> tuple[Any, Any]:
    r"""The asymptotically best (alpha, beta) for an M A with positive eigenvalues.

    .. math:: \alpha = 4 / (\sqrt{\lambda_{\max}} + \sqrt{\lambda_{\min}})^2, \quad
              \beta = \left(\frac{\sqrt{\kappa} - 1}{\sqrt{\kappa} + 1}\right)^2, \quad
              \kappa = \lambda_{\max} / \lambda_{\min}

    Parameters
    ----------
    lmin, lmax : see `richardson_weight`

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
    A: object,
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
    A : as for `cg`, with positive eigenvalues of M A
    b, x0 : see `cg`
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
            raise ValueError(f"heavyball: {keys} must not be passed with lmin or lmax, which determine both")
        if len(keys) == 1:
            missing = "beta" if beta is None else "alpha"
            raise ValueError(
                f"heavyball: {keys[0]} must be given with {missing}, got {missing}=None. Or pass neither, "
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
        M: object = None,
        gradient: str = "unrolled",
    ):
        super().__init__(iterations, gradient, alpha=alpha, beta=beta)
        self.M = M


# Chebyshev's semi-iteration: momentum chosen from bounds of the spectrum.
#
# Sources: Golub and Varga, "Chebyshev semi-iterative methods [...]", Numer. Math. 3 (1961) 147-168; Saad,
# "Iterative Methods for Sparse Linear Systems" (2003), section 12.3.2.


class SemiIteration(Stationary):
    """The three-term recurrence of the Chebyshev polynomials, for loops whose length is not known in advance.
    t_k is rho_k 2 / (lmax - lmin) of `_coefficients`."""

    def __init__(self, lmin: Any, lmax: Any):
        self.middle, self.half = (lmax + lmin) / 2, (lmax - lmin) / 2  # half**2 may leave the range

    def coefficients(self, t: Tensor) -> tuple[Any, Any, Tensor]:
        first = t == 0
        new = torch.where(first, 1 / self.middle, 1 / (2 * self.middle - self.half * (self.half * t)))
        return torch.where(first, new, 2 * new), self.half * t * (self.half * new), new


def _coefficients(lmin: Any, lmax: Any, iterations: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """The coefficients (..., iterations) of all steps in closed form, for bounds (..., 1 or iterations): with
    q = (sqrt kappa - 1) / (sqrt kappa + 1),

        a_0 = 2 / (lmin + lmax),  a_k = rho_k 4 / (lmax - lmin),  c_k = rho_k rho_{k-1},
        rho_k = T_k(s) / T_{k+1}(s) = q (1 + q^2k) / (1 + q^(2k+2)),  s = (lmax + lmin) / (lmax - lmin)

    written so that lmin = lmax needs no special case. If bounds differ from step to step, step k has
    the coefficients k of its own bounds.
    """
    root = lmin**0.5 * lmax**0.5  # their product may leave the range of the dtype
    middle, radius = (lmax + lmin) / 2, (lmax - lmin) / 2
    q2 = (radius / (middle + root)) ** 2
    # Powers of q2 by ** would have NaN second derivatives at 0, and powers copied from the host could not be
    # captured in a graph.
    if isinstance(q2, Tensor):
        powers = [0 * q2 + 1]
        for _ in range(iterations):
            powers.append(powers[-1] * q2)
        p = 1 + torch.stack(powers, -1)
    else:
        powers = torch.full((1, iterations + 1), q2, dtype=torch.float64, device=b.device)
        powers[:, :1].fill_(1)
        p = 1 + powers.cumprod(-1).to(b.dtype)
    first = torch.arange(iterations, device=b.device) == 0

    def at(ahead: int) -> Tensor:
        """p_{k + ahead} for each step k, from its own bounds."""
        if p.shape[-2] != 1:
            return p.diagonal(ahead, -2, -1)
        return p[..., 0, max(ahead, 0) : max(iterations + ahead, 0)]

    now, after = at(0), at(1)
    a = torch.where(first, 1, 2) * now / (after * (middle + root))
    before = torch.cat((now[..., :1], at(-1)), -1)
    return a, torch.where(first, 0, q2 * before / after)


@solver(StationaryOptions, rtol=None, atol=None, gradient=None)
def chebyshev(
    A: object,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    lmin: Value | None = None,
    lmax: Value | None = None,
    iterations: int | None = None,
    **options: Unpack[StationaryOptions],
) -> Solution:
    r"""Chebyshev's semi-iteration for an M A whose eigenvalues lie between lmin and lmax.

    .. math:: x_{k+1} = x_k + a_k M (b - A x_k) + c_k (x_k - x_{k-1})

    It needs no inner products. Gradients and cost are as for `richardson`. The error polynomial is the
    smallest of its degree on [lmin, lmax]: for symmetric positive definite A and M, k steps reduce the energy
    norm of the error to at most :math:`2 q^k / (1 + q^{2k})` times its initial value, with :math:`q =
    (\sqrt\kappa - 1) / (\sqrt\kappa + 1)` and :math:`\kappa = \mathtt{lmax} / \mathtt{lmin}`.

    Parameters
    ----------
    A, b, x0 : see `cg`
    lmin, lmax : floats or Tensors, positive bounds of the spectrum of M A, differentiable; () or one per
        step or member of the batch ("Shapes of parameters" in docs/solvers.md). Default lmax: 1.1 times
        an estimate by 10 steps of Arnoldi's method from a fixed vector, not differentiated. Default lmin:
        lmax / 30. Eigenvalues below lmin only slow convergence down, but eigenvalues above lmax may cause
        divergence
    options : shared keywords

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> solution = ls.solvers.chebyshev(A, b, lmin=0.12, lmax=3.88, rtol=1e-8)
    >>> solution.iterations < ls.solvers.chebyshev(A, b, rtol=1e-8).iterations  # with estimates
    True
    """

    def coefficients(read: Parameters, settings: Options) -> tuple[Any, Any]:
        low, high = bounds(read, lmin, lmax, settings)
        if read.steps is None:
            return low, high
        low, high = (t.squeeze(-1) if isinstance(t, Tensor) else t for t in (low, high))
        a, c = _coefficients(low, high, read.steps, read.b)
        return a.unsqueeze(-1), c

    return run("chebyshev", A, b, x0, iterations, options, coefficients, SemiIteration)


class Chebyshev(FixedNumber):
    """`chebyshev` with trainable bounds `lmin` and `lmax`, positive because the parameters are their
    logarithms, `log_lmin` and `log_lmax`. For a fixed number of steps from zero as a preconditioner, see
    `preconditioners.Chebyshev`.

    Parameters
    ----------
    lmin, lmax : the initial bounds, positive
    options : shared keywords

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> smoother = ls.solvers.Chebyshev(1.0, 4.0, iterations=3).double()
    >>> smoother(A, b).x.sum().backward()
    >>> smoother.log_lmax.grad.shape
    torch.Size([])
    """

    function, keywords = staticmethod(chebyshev), ("lmin", "lmax", "M")
    log_lmin: torch.nn.Parameter
    log_lmax: torch.nn.Parameter

    def __init__(
        self, lmin: Value, lmax: Value, iterations: int = 1, M: object = None, gradient: str = "unrolled"
    ):
        super().__init__(iterations, gradient)
        for key, value in (("lmin", lmin), ("lmax", lmax)):
            bound = start("Chebyshev", key, value)
            if not ((bound > 0) & bound.isfinite()).all():
                raise ValueError(f"Chebyshev: {key} must be positive and finite, got {value}")
            setattr(self, f"log_{key}", torch.nn.Parameter(bound.log()))
        self.M = M

    @property
    def lmin(self) -> Tensor:
        return self.log_lmin.exp()

    @property
    def lmax(self) -> Tensor:
        return self.log_lmax.exp()

    def extra_repr(self) -> str:
        lmin, lmax = (
            f"{float(t.detach()):.3g}" if t.numel() == 1 else f"{tuple(t.shape)}"
            for t in (self.lmin, self.lmax)
        )
        return f"lmin={lmin}, lmax={lmax}, iterations={self.iterations}, gradient={self.gradient!r}"


# Weighted Jacobi, x <- x + w D^-1 (b - A x), with trainable weights.
#
# Source: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation",
# arXiv 2212.05159, section 4.1; Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 4.1.


@smoother
def jacobi(
    A: CSR,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    weight: Value = 1.0,
    iterations: Index = 1,
    gradient: Literal["unrolled", "checkpointed"] = "unrolled",
) -> Solution:
    r"""Weighted Jacobi sweeps, :math:`x_{k+1} = x_k + w_k \circ D^{-1} (b - A x_k)`, `iterations` of them.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, without zeros on the diagonal D. Its values may be (..., nnz)
    b : Tensor or NumPy array, shape (n,) or (..., n, k): one or k right-hand sides
    x0 : like b, or zero if not given
    weight : float or Tensor, () or one per row, sweep or member of the batch ("Shapes of parameters" in
        docs/solvers.md)
    options : shared keywords

    Notes
    -----
    The gradient is exact for the values of A, b, x0 and weight, to any order. Adjoint and cost are as for
    `richardson`. There is no gradient="implicit": a converged solution does not depend on the weight.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((8,))
    >>> w = torch.full((8,), 2 / 3, dtype=torch.float64, requires_grad=True)
    >>> solution = ls.solvers.jacobi(A, torch.ones(8, dtype=torch.float64), weight=w, iterations=50)
    >>> solution.residual_norms[-1].backward()
    >>> bool((w.grad < 0).all())  # larger weights would have converged faster
    True
    """
    name = "jacobi"
    A, b, x0 = operands(name, A, b, x0)
    if (
        across.find_processes(A) is not None
    ):  # rows in several processes: sweep by sweep, with w of the local rows
        check_b(name, b)
        w = Parameters(name, A, b, iterations).read("weight", weight)
        scale = w * A.inverse_diagonal(name).unsqueeze(0)  # pyright: ignore[reportAttributeAccessIssue]
        return run_iterations(name, A, b, x0, Options(gradient=gradient), iterations, scale, None)
    checks.matrix(name, "A", A)
    values = A.values
    checks.dtype(name, "A.values", values)
    checks.same_kind(name, "b", b, values)
    checks.rows(name, "b", b, "A", A.pattern.shape)
    check_x0(name, x0, b)
    x0 = torch.zeros_like(b) if x0 is None else x0
    if values.dim() > 1:
        checks.batches(name, values.shape[:-1], b.shape[:-2], "A.values and b")
        if b.dim() == 1:  # one vector for a batch of matrices: add an axis of columns, removed at the end
            columns = jacobi(
                A, b[:, None], x0[:, None], weight=weight, iterations=iterations, gradient=gradient
            )
            x = columns.x.squeeze(-1)
            norms = lambda: columns.residual_norms.squeeze(-1)  # noqa: E731
            return Solution(x, iterations, norms, -1, (x,), method=name)
    scale = _scale(A, b, weight, iterations)
    if iterations == 1 and _only_scale_learns(scale, values, b, x0):
        return make_solution(name, A, b, *_one_sweep(A, scale, b, x0), iterations, EAGER)
    return run_kernel(name, A, b, x0, scale, iterations, gradient == "checkpointed")


def _only_scale_learns(scale: Tensor, *others: Tensor) -> bool:
    return needs_graph(scale) and not needs_graph(*others) and not torch.compiler.is_dynamo_compiling()


def _one_sweep(A: CSR, scale: Tensor, b: Tensor, x0: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
    """x and the norm before the sweep. If the residual is a constant, three torch operations are faster than
    the fused one (python -m benchmarks training)."""
    vector, r = b.dim() == 1, b - product(A.values, x0, A.pattern, False)
    scale = scale.squeeze(-2) if scale.dim() > 1 else scale
    x = torch.addcmul(x0, scale if vector else scale.unsqueeze(-1), r)
    return x, lambda: residual_norm(r, 0 if vector else -2, keepdim=True)


def _scale(A: CSR, b: Tensor, weight: Value, iterations: int) -> Tensor:
    """weight / D, shape (n,) or (..., 1 or iterations, n)."""
    inverse, single = reuse_inverse_diagonal(A, "jacobi"), A.values.dim() == 1
    if isinstance(weight, Tensor) and single:
        checks.same_kind("jacobi", "weight", weight, b)
        of_rows = weight.shape == inverse.shape and weight.shape[0] != iterations and b.dim() <= 2
        if of_rows or weight.dim() == 0:
            return times(inverse, weight)  # views would cost a small step more than the product
    factor = Parameters("jacobi", A, b, iterations).read("weight", weight)
    if isinstance(factor, Tensor):
        return times(inverse if single else inverse.unsqueeze(-2), factor)
    scale = inverse if factor == 1 else factor * inverse
    return scale if single else scale.unsqueeze(-2)


class Jacobi(FixedNumber):
    """`jacobi` with a trainable weight. As a preconditioner: `preconditioners.Jacobi`.

    Parameters
    ----------
    weight : the initial weight
    options : shared keywords

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((8,))
    >>> smoother = ls.solvers.Jacobi(torch.ones(8, dtype=torch.float64), iterations=2)
    >>> smoother(A, torch.ones(8, dtype=torch.float64)).x.shape
    torch.Size([8])
    """

    function, keywords = staticmethod(jacobi), ("weight",)
    weight: torch.nn.Parameter

    def __init__(self, weight: Value = 1.0, iterations: int = 1, gradient: str = "unrolled"):
        super().__init__(iterations, gradient, weight=weight)
