"""Chebyshev's semi-iteration: momentum chosen from bounds of the spectrum.

Source: Golub and Varga, "Chebyshev semi-iterative methods, successive overrelaxation iterative methods, and
second order Richardson iterative methods", Numer. Math. 3 (1961) 147-168; Saad, "Iterative Methods for Sparse
Linear Systems" (2003), section 12.3.2.
"""

from typing import Any, Unpack

import torch
from torch import Tensor

from learnsolve._conversion import TensorLike
from learnsolve._inputs import operands
from learnsolve.solvers.core.fixed import FixedNumber
from learnsolve.solvers.core.parameters import Parameters, trainable
from learnsolve.solvers.core.spectrum import bounds
from learnsolve.solvers.core.stationary import run
from learnsolve.solvers.options import StationaryOptions, solver
from learnsolve.solvers.solution import Solution


def _coefficients(lmin: Any, lmax: Any, iterations: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """Those of all steps, (..., iterations), for bounds (..., 1 or iterations): with
    q = (sqrt kappa - 1) / (sqrt kappa + 1),

        a_0 = 2 / (lmin + lmax),  a_k = rho_k 4 / (lmax - lmin),  c_k = rho_k rho_{k-1},
        rho_k = T_k(s) / T_{k+1}(s) = q (1 + q^2k) / (1 + q^(2k+2)),  s = (lmax + lmin) / (lmax - lmin)

    written so that lmin = lmax needs no special case. A step with bounds of its own has the coefficients that
    they give its number.
    """
    root = lmin**0.5 * lmax**0.5  # their product may leave the range of the dtype
    middle, radius = (lmax + lmin) / 2, (lmax - lmin) / 2
    q2 = (radius / (middle + root)) ** 2
    p = 1 + _powers(q2, iterations, b)
    first = torch.arange(iterations, device=b.device) == 0
    now, after = _at_each_step(p, 0), _at_each_step(p, 1)
    a = torch.where(first, 1, 2) * now / (after * (middle + root))
    before = torch.cat((now[..., :1], _at_each_step(p, -1)), -1)
    return a, torch.where(first, 0, q2 * before / after)


def _at_each_step(p: Tensor, ahead: int) -> Tensor:
    """p_{k + ahead} of each step k that has one, by its own bounds; p (..., 1 or steps, steps + 1)."""
    steps = p.shape[-1] - 1
    if p.shape[-2] != 1:
        return p.diagonal(ahead, -2, -1)
    return p[..., 0, max(ahead, 0) : max(steps + ahead, 0)]


def _powers(q: Any, last: int, b: Tensor) -> Tensor:
    """q^0, ..., q^last along a new last axis; (1, last + 1) for a number"""
    if not isinstance(q, Tensor) and not b.is_cpu:
        # Nothing is copied from the host: a graph could not hold it.
        powers = torch.full((last + 1,), q, dtype=torch.float64, device=b.device)
        powers[:1].fill_(1)
        return powers.cumprod(0).to(b.dtype).unsqueeze(0)
    powers = [0 * q + 1]  # not q ** k, whose second derivatives at 0 are NaN
    for _ in range(last):
        powers.append(powers[-1] * q)
    if isinstance(q, Tensor):
        return torch.stack(powers, -1)
    return b.new_tensor(powers).unsqueeze(0)


@solver(StationaryOptions, rtol=None, atol=None, gradient=None)
def chebyshev(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    lmin: float | Tensor | None = None,
    lmax: float | Tensor | None = None,
    iterations: int | None = None,
    **options: Unpack[StationaryOptions],
) -> Solution:
    r"""Chebyshev's semi-iteration for an M A whose eigenvalues lie between lmin and lmax.

    .. math:: x_{k+1} = x_k + a_k M (b - A x_k) + c_k (x_k - x_{k-1})

    Of all polynomials of its degree, that of the error is the smallest on [lmin, lmax]: after k steps the
    energy norm of the error, for symmetric positive definite A and M, has shrunk by
    :math:`2 q^k / (1 + q^{2k})` at least, with :math:`q = (\sqrt\kappa - 1) / (\sqrt\kappa + 1)` and
    :math:`\kappa = \mathtt{lmax} / \mathtt{lmin}`. No inner products.

    Parameters
    ----------
    A : CSR, BlockBatch, LinearOperator or callable, shape (n, n), as for `cg`
    b : Tensor or NumPy array, shape (n,) or (..., n, k)
    x0 : like b; zero if not given
    lmin, lmax : numbers or Tensors, positive bounds of the spectrum of M A; differentiable. For
        N = iterations and a batch B: (), (N,), (B,), (N, B) or in full (B, N, 1) with ones allowed ("Shapes
        of parameters" in docs/solvers.md); a step with bounds of its own has their a_k and c_k. lmax if not
        given: 1.1 times an estimate by 10 steps of Arnoldi's method from a fixed vector, a constant; lmin:
        lmax / 30. Eigenvalues below lmin only converge more slowly, those above lmax may diverge
    iterations, gradient, throw : as for `richardson`
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
    Gradient with iterations: exact, of the steps that ran, for everything that requires grad, including lmin
    and lmax, to any order. Else the implicit one, as for `bicgstab`.
    With iterations, a CSR and M None or diagonal (`preconditioners.Jacobi`) all steps are one
    compiled operation, and so is their adjoint (formulas: `heavyball`).
    Cost: one product with A and one with M a step.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> s = torch.sin(torch.tensor(torch.pi / 18)) ** 2  # of 1D Poisson
    >>> solution = ls.solvers.chebyshev(A, b, lmin=4 * float(s), lmax=4 - 4 * float(s), rtol=1e-8)
    >>> solution.status.name
    'CONVERGED'
    >>> solution.iterations < ls.solvers.chebyshev(A, b, rtol=1e-8).iterations  # with estimates
    True
    """
    name = "chebyshev"
    A, b, x0 = operands(name, A, b, x0)

    def fixed(read: Parameters) -> tuple[Tensor, Tensor]:
        low, high = (t.squeeze(-1) if isinstance(t, Tensor) else t for t in bounds(read, lmin, lmax, options))
        assert read.steps is not None
        scale, momenta = _coefficients(low, high, read.steps, b)
        return scale.unsqueeze(-1), momenta

    def until(read: Parameters):
        low, high = bounds(read, lmin, lmax, options)
        middle, half = (high + low) / 2, (high - low) / 2

        def coefficients(t: Tensor) -> tuple[Any, Any, Tensor]:
            # t_k = rho_k 2 / (lmax - lmin), by the recurrence of the Chebyshev polynomials; 0: none yet.
            new = torch.where(t == 0, 1 / middle, 1 / (2 * middle - half * (half * t)))
            return torch.where(t == 0, new, 2 * new), half * t * (half * new), new

        return coefficients

    return run(name, A, b, x0, iterations, options, fixed, until, lmin=lmin, lmax=lmax)


class Chebyshev(FixedNumber):
    """`chebyshev` with trainable bounds: their logarithms are the parameters, so that they stay positive.

    An iteration; `preconditioners.Chebyshev` is a fixed number of its steps from zero, as an M.

    Parameters
    ----------
    lmin, lmax : positive numbers or floating-point Tensors, the initial bounds, of any shape that `chebyshev`
        takes. Numbers become parameters of torch's default dtype; ``.double()`` for float64 matrices.
    iterations : int
    M : as for `chebyshev`; a Module's parameters are then those of this module
    gradient : "unrolled" or "checkpointed"

    Attributes
    ----------
    log_lmin, log_lmax : the parameters
    lmin, lmax : the bounds

    Raises
    ------
    ValueError
        if a bound is not positive and finite, or requires grad; if iterations is negative, or gradient not
        one of the two.
    TypeError
        if a bound is not a number or a float32 or float64 tensor, or iterations not an int.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> smoother = ls.solvers.Chebyshev(1.0, 4.0, iterations=3).double()
    >>> smoother(A, b).x.sum().backward()
    >>> smoother.log_lmax.grad.shape
    torch.Size([])
    """

    def __init__(
        self,
        lmin: float | Tensor,
        lmax: float | Tensor,
        iterations: int = 1,
        M: Any = None,
        gradient: str = "unrolled",
    ):
        super().__init__(iterations, gradient)
        for key, value in (("lmin", lmin), ("lmax", lmax)):
            bound = trainable("Chebyshev", key, value)
            start = bound.detach()
            if not ((start > 0) & start.isfinite()).all():
                raise ValueError(f"Chebyshev: {key} must be positive and finite, got {value}")
            setattr(self, f"log_{key}", torch.nn.Parameter(start.log()))
        self.M = M

    log_lmin: torch.nn.Parameter
    log_lmax: torch.nn.Parameter

    @property
    def lmin(self) -> Tensor:
        return self.log_lmin.exp()

    @property
    def lmax(self) -> Tensor:
        return self.log_lmax.exp()

    def forward(self, A: Any, b: TensorLike, x0: TensorLike | None = None) -> Solution:
        """`chebyshev` with the bounds as they are now; arguments and result as there."""
        return chebyshev(
            A,
            b,
            x0,
            lmin=self.lmin,
            lmax=self.lmax,
            iterations=self.iterations,
            M=self.M,
            gradient=self.gradient,
        )

    def extra_repr(self) -> str:
        lmin, lmax = (_shown(t.detach()) for t in (self.lmin, self.lmax))
        return f"lmin={lmin}, lmax={lmax}, iterations={self.iterations}, gradient={self.gradient!r}"


def _shown(bound: Tensor) -> str:
    return f"{float(bound):.3g}" if bound.numel() == 1 else f"{tuple(bound.shape)}"
