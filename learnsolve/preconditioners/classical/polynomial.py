"""A polynomial in the matrix with arbitrary coefficients.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 12.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.plain import readable
from learnsolve.ops.arithmetic import absolute
from learnsolve.ops.core.dots import over, scaled
from learnsolve.ops.diagonal import inverse_diagonal
from learnsolve.ops.structure import sum
from learnsolve.preconditioners.base import Part, check_finite
from learnsolve.preconditioners.classical._polynomial import Apply, PolynomialPreconditioner
from learnsolve.preconditioners.classical._spectrum import RATIO


class Polynomial(PolynomialPreconditioner):
    r"""The polynomial with given coefficients, :math:`M_p = \sum_k c_k\, B_k(M A)\, M`.

    Linear; symmetric if A and M are; positive definite if M is and p > 0 on the eigenvalues of M A.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)
    coefficients : floats or Tensor (degree + 1,), or (..., degree + 1), one set per matrix of the batch
    interval : None for powers, :math:`B_k(t) = t^k`; (lo, hi), floats or Tensors, for Chebyshev polynomials
        on this interval, which are better conditioned for degrees above about four
    M : inner Preconditioner, linear; "jacobi" for the inverse of the diagonal; or None
    symmetric : bool, whether A is symmetric; default: determined from the values (not under `torch.compile`)

    Attributes
    ----------
    coefficients, interval : Tensors; interval may be None
    degree : int

    Raises
    ------
    ValueError
        if there are no coefficients, the interval is invalid, a diagonal entry is zero ("jacobi"), M is not
        linear, shapes do not match, or A is not finite.
    TypeError
        if a type, dtype or device is wrong.

    Notes
    -----
    Gradient: exact, for coefficients, interval, A's values, the tensors of M, and r, to any order. Cost:
    `degree` products with A, one more with M. ``neumann(A, degree)`` and ``chebyshev(A, degree)`` are
    initial polynomials for training; ``on`` applies the coefficients to another matrix.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)  # a network's parameters
    >>> M = ls.preconditioners.Polynomial(ls.problems.poisson((8, 8)), 1 + theta.tanh(), interval=(0.0, 2.0))
    >>> M(torch.ones(64, dtype=torch.float64)).sum().backward()
    >>> theta.grad.shape
    torch.Size([3])
    """

    coefficients: Tensor
    interval: Tensor | None

    def __init__(
        self,
        A: CSR,
        coefficients: Sequence[float] | Tensor,
        *,
        interval: Sequence[float] | Tensor | None = None,
        M: Any = "jacobi",
        symmetric: bool | None = None,
    ):
        name = type(self).__name__
        checks.matrix(name, "A", A)
        self.coefficients = _coefficients(name, coefficients, A.values)
        super().__init__(A, self.coefficients.shape[-1] - 1, M, symmetric)
        batch = self.coefficients.shape[:-1]
        checks.batches(name, self.batch_shape, batch, "A.values, or M, and coefficients")
        self.batch_shape = torch.broadcast_shapes(self.batch_shape, batch)
        self.interval = None if interval is None else _interval(name, interval, A.values)
        self.depends_on += (self.coefficients, *(() if self.interval is None else (self.interval,)))

    @classmethod
    def neumann(cls, A: CSR, degree: int, *, symmetric: bool | None = None) -> Polynomial:
        r"""Neumann's series, :math:`\sum_{k=0}^{d} (I - D^{-1} A)^k D^{-1}`, in powers of
        :math:`D^{-1} A`."""
        degree = checks.integer("Polynomial.neumann", "degree", degree, 0)
        c = [(-1.0) ** k * comb(degree + 1, k + 1) for k in range(degree + 1)]
        return cls(A, c, symmetric=symmetric)

    @classmethod
    def chebyshev(
        cls,
        A: CSR,
        degree: int,
        *,
        lmin: float | None = None,
        lmax: float | None = None,
        symmetric: bool | None = None,
    ) -> Polynomial:
        r"""The smallest error :math:`\max |1 - t\, p(t)|` for eigenvalues t of
        :math:`D^{-1} A` in [lmin, lmax].

        Default lmax: Gershgorin's bound, a constant; default lmin: lmax / 30. The result is then a smoother,
        and safe, since p is positive below lmin too.
        """
        name = "Polynomial.chebyshev"
        degree = checks.integer(name, "degree", degree, 0)
        checks.matrix(name, "A", A)
        checks.dtype(name, "A.values", A.values)
        check_finite(name, A)
        if lmax is None:
            with torch.no_grad():
                rows = sum(absolute(A), 1) * inverse_diagonal(A).abs()
            lmax = float(rows.max()) if rows.numel() else 1.0
        hi = checks.real(name, "lmax", lmax, "positive and finite")
        lo = hi / RATIO if lmin is None else checks.real(name, "lmin", lmin, "positive and finite")
        if lo >= hi:
            raise ValueError(f"{name}: lmin must be below lmax, got {lo} and {hi}; swap them")
        return cls(A, _chebyshev_coefficients(degree, lo, hi), interval=(lo, hi), symmetric=symmetric)

    def _learnable(self) -> dict[str, Part]:
        parts = {"coefficients": Part(self.coefficients, "all")}
        if self.interval is not None:
            parts["interval"] = Part(self.interval, default=False, state=True)
        return parts

    def _polynomial(self, A: Apply, M: Apply, R: Tensor) -> Tensor:
        """Evaluate the polynomial by Horner's and Clenshaw's schemes."""
        c = [t[..., None, None] if t.dim() else t for t in self.coefficients.unbind(-1)]
        V = M(R)
        out = scaled(c[-1], V)
        if self.interval is None:
            for k in reversed(range(len(c) - 1)):
                out = scaled(c[k], V) + M(A(out))
            return out
        lo, hi = self.interval.unbind()
        before = torch.zeros_like(out)
        for k in reversed(range(len(c) - 1)):
            mapped = over(2 * M(A(out)) - scaled(hi + lo, out), hi - lo)
            out, before = scaled(c[k], V) + (mapped if k == 0 else 2 * mapped) - before, out
        return out


def _coefficients(function: str, given: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    """A tensor (..., degree + 1) with the dtype and device of `like`."""
    if not isinstance(given, Tensor):
        numbers = checks.sequence(function, "coefficients", given, "floats")
        numbers = [checks.real(function, "coefficients", c) for c in numbers]
        given = torch.tensor(numbers, dtype=like.dtype, device=like.device)
    checks.same_kind(function, "coefficients", given, like)
    if given.dim() == 0 or given.shape[-1] == 0:
        raise ValueError(f"{function}: coefficients must have shape (degree + 1,), got {tuple(given.shape)}")
    if readable(given) and not (good := given.detach().isfinite()).all():
        k = (~good).nonzero()[0].tolist()[-1]
        raise ValueError(
            f"{function}: coefficients must be finite, got infinities or NaNs, that of degree {k} is one; "
            "find out where they come from"
        )
    return given


def _interval(function: str, given: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    """A tensor (lo, hi) with the dtype and device of `like`. Floats are checked, and tensors if they can be
    read without synchronizing a device."""
    valid = True
    given = given if isinstance(given, Tensor) else checks.sequence(function, "interval", given, "floats")
    if isinstance(given, Tensor):
        ends = given
    elif any(isinstance(t, Tensor) for t in given):
        ends = torch.stack([torch.as_tensor(t, dtype=like.dtype, device=like.device) for t in given])
    else:
        numbers = [checks.real(function, "interval", t) for t in given]
        valid = len(numbers) == 2 and -math.inf < numbers[0] < numbers[1] < math.inf
        ends = torch.tensor(numbers, dtype=like.dtype, device=like.device)
    checks.same_kind(function, "interval", ends, like)
    valid = valid and ends.shape == (2,)
    if valid and readable(ends):
        lo, hi = ends.detach()
        valid = bool(lo < hi) and bool(ends.detach().isfinite().all())
    if not valid:
        raise ValueError(f"{function}: interval must be (lo, hi) with lo < hi, got {given}")
    return ends


def _chebyshev_coefficients(degree: int, lo: float, hi: float) -> list[float]:
    """The coefficients of p with 1 - t p(t) = T_{d+1}(s(t)) / T_{d+1}(s(0)), where s maps the interval onto
    (-1, 1) in reverse, in the Chebyshev polynomials of the interval."""
    T = np.polynomial.chebyshev.Chebyshev.basis(degree + 1)

    def p(s):
        t = (lo + hi + (hi - lo) * s) / 2
        return (1 - T(-s) / T((hi + lo) / (hi - lo))) / t

    return np.polynomial.chebyshev.chebinterpolate(p, degree).tolist()
