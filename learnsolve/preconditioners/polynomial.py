"""A polynomial in the matrix with trainable coefficients.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 12.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np
import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.nn._holds_pattern import HoldsPattern, parameter
from learnsolve.ops._symmetry import symmetry
from learnsolve.ops.arithmetic import absolute
from learnsolve.ops.diagonal import inverse_diagonal
from learnsolve.ops.structure import sum
from learnsolve.preconditioners._held import Holder, check_constant, check_start, one_kind
from learnsolve.preconditioners._spectrum import RATIO
from learnsolve.preconditioners.diagonal import Diagonal
from learnsolve.preconditioners.matrix_polynomial import MatrixPolynomial, as_coefficients, as_interval

_INSTEAD = "use preconditioners.MatrixPolynomial, which keeps the graph of A's values and of coefficients"


class Polynomial(HoldsPattern, Holder):
    r"""Learned coefficients of a polynomial, :math:`M = \sum_k c_k\, B_k(D^{-1} A)\, D^{-1}`.

    D is the diagonal of A. :math:`D^{-1/2} M' D^{-1/2}` with a polynomial M' in
    :math:`D^{-1/2} A D^{-1/2}` is the same: for a symmetric A this is symmetric.

    Parameters
    ----------
    A : CSR, shape (n, n), without zeros on its diagonal, values (..., nnz) that do not require grad
    coefficients : numbers or Tensor (degree + 1,), where c starts
    interval : None for the basis of powers, :math:`B_k(t) = t^k`; (lo, hi) for Chebyshev's polynomials of
        this interval, far better conditioned for degrees above four or so
    symmetric : is A symmetric? None: its values are compared, to rounding

    Attributes
    ----------
    coefficients : Parameter (degree + 1,)
    interval : buffer (2,), in the state with the coefficients, which mean nothing without it; or None
    values, inverse : A's values and :math:`D^{-1}`, buffers that are not in the state: coefficients may be
        loaded for another matrix

    Raises
    ------
    ValueError
        if a diagonal entry is missing or zero, A's values require grad, there is no coefficient, or the
        interval is invalid.

    Notes
    -----
    Linear; symmetric if A is; positive definite where the polynomial is positive on the eigenvalues of
    :math:`D^{-1} A`, as it is at the start from ``neumann`` (if they lie below 2) and ``chebyshev`` (below
    hi), but need not be later. ``M.on(B)`` has the same coefficients, the same parameter, for another matrix.

    Gradient: exact, for the coefficients and r, to any order. Cost: `degree` products with A a column.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((16, 16)), torch.ones(256, dtype=torch.float64)
    >>> M = ls.preconditioners.Polynomial.chebyshev(A, degree=3)
    >>> ls.solvers.cg(A, b, M=M.requires_grad_(False)).iterations < ls.solvers.cg(A, b).iterations
    True
    """

    values: Tensor
    inverse: Tensor
    interval: Tensor | None

    def __init__(
        self,
        A: CSR,
        coefficients: Sequence[float] | Tensor,
        *,
        interval: tuple[float, float] | None = None,
        symmetric: bool | None = None,
    ):
        super().__init__()
        name = type(self).__name__
        check_constant(name, A, _INSTEAD)
        coefficients = as_coefficients(name, coefficients, A.values)
        check_start(name, "coefficients", coefficients, _INSTEAD)
        if coefficients.dim() != 1:
            raise ValueError(
                f"{name}: coefficients must have shape (degree + 1,), got {tuple(coefficients.shape)}"
            )
        with torch.no_grad():
            inverse = inverse_diagonal(A)
            self.symmetric = symmetry(name, A, symmetric)
        self._given_symmetric = symmetric
        self.coefficients = parameter(coefficients)
        self._hold(A.pattern, persistent=False)
        self.register_buffer("values", A.values.detach().clone(), persistent=False)
        self.register_buffer("inverse", inverse, persistent=False)
        self.register_buffer("interval", None if interval is None else _interval(name, interval, A.values))
        self.shape, self.batch_shape = A.shape, A.batch_shape

    @classmethod
    def neumann(cls, A: CSR, degree: int, *, symmetric: bool | None = None) -> Polynomial:
        r"""Start as Neumann's series, :math:`\sum_{k=0}^{d} (I - D^{-1} A)^k D^{-1}`, in powers of
        :math:`D^{-1} A`."""
        degree = _check.integer("Polynomial.neumann", "degree", degree, 0)
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
        r"""Start with the smallest error :math:`\max |1 - t\, p(t)|` for eigenvalues t of
        :math:`D^{-1} A` in [lmin, lmax].

        lmax if not given: Gershgorin's bound; lmin: lmax / 30. A smoother then, and safe, since p is positive
        below lmin too.
        """
        name = "Polynomial.chebyshev"
        degree = _check.integer(name, "degree", degree, 0)
        check_constant(name, A, _INSTEAD)
        if lmax is None:
            with torch.no_grad():
                rows = sum(absolute(A), 1) * inverse_diagonal(A).abs()
            lmax = float(rows.max()) if rows.numel() else 1.0
        hi = _check.real(name, "lmax", lmax, "positive and finite")
        lo = hi / RATIO if lmin is None else _check.real(name, "lmin", lmin, "positive and finite")
        if lo >= hi:
            raise ValueError(f"{name}: lmin must be below lmax, got {lo} and {hi}; swap them")
        return cls(A, _chebyshev_coefficients(degree, lo, hi), interval=(lo, hi), symmetric=symmetric)

    def on(self, A: CSR) -> Polynomial:
        """The same coefficients, with their parameter, for another matrix; `symmetric` as it was given."""
        ends = None if self.interval is None else (float(self.interval[0]), float(self.interval[1]))
        other = type(self)(A, self.coefficients.detach(), interval=ends, symmetric=self._given_symmetric)
        other.coefficients = self.coefficients
        return other

    def current(self) -> MatrixPolynomial:
        one_kind(self, self.coefficients, self.values)
        return self._with(
            MatrixPolynomial,
            A=CSR(self.values, self.pattern),
            M=self._with(Diagonal, d=self.inverse),
            coefficients=self.coefficients,
            interval=self.interval,
            symmetric=self.symmetric,
        )

    def extra_repr(self) -> str:
        basis = "powers" if self.interval is None else f"Chebyshev on {self.interval.tolist()}"
        return f"shape={self.shape}, degree={len(self.coefficients) - 1}, basis={basis}"


def _interval(function: str, given: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    ends = as_interval(function, given, like, always=True)
    check_start(function, "interval", ends, _INSTEAD)
    return ends


def _chebyshev_coefficients(degree: int, lo: float, hi: float) -> list[float]:
    """Of p with 1 - t p(t) = T_{d+1}(s(t)) / T_{d+1}(s(0)), s the map of the interval onto (-1, 1) turned
    round, in the Chebyshev polynomials of the interval."""
    T = np.polynomial.chebyshev.Chebyshev.basis(degree + 1)

    def p(s):
        t = (lo + hi + (hi - lo) * s) / 2
        return (1 - T(-s) / T((hi + lo) / (hi - lo))) / t

    return np.polynomial.chebyshev.chebinterpolate(p, degree).tolist()
