"""Chebyshev's semi-iteration: momentum chosen from bounds of the spectrum.

Sources: Golub and Varga, "Chebyshev semi-iterative methods [...]", Numer. Math. 3 (1961) 147-168; Saad,
"Iterative Methods for Sparse Linear Systems" (2003), section 12.3.2.
"""

from typing import Any, Unpack

import torch
from torch import Tensor

from learnsolve.matrix.convert import TensorLike
from learnsolve.solvers.core.parameters import FixedNumber, Parameters, Value, bounds, start
from learnsolve.solvers.core.stationary import Stationary, run
from learnsolve.solvers.options import Options, StationaryOptions, solver
from learnsolve.solvers.solution import Solution


class SemiIteration(Stationary):
    """The three-term recurrence of the Chebyshev polynomials, for loops whose length is not known in advance;
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
    A: Any,
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
    A, b, x0 : as for `cg`
    lmin, lmax : floats or Tensors, positive bounds of the spectrum of M A; differentiable; () or one per
        step or member of the batch ("Shapes of parameters" in docs/solvers.md). Default lmax: 1.1 times
        an estimate by 10 steps of Arnoldi's method from a fixed vector, not differentiated; default lmin:
        lmax / 30. Eigenvalues below lmin only slow convergence down; eigenvalues above lmax may cause
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
        self, lmin: Value, lmax: Value, iterations: int = 1, M: Any = None, gradient: str = "unrolled"
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
