"""A polynomial in the matrix, of coefficients that may carry a graph.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 12.3.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops._dots import over, scaled
from learnsolve.preconditioners._polynomial import Apply, PolynomialPreconditioner
from learnsolve.preconditioners.base import readable


class MatrixPolynomial(PolynomialPreconditioner):
    r"""The polynomial of given coefficients, :math:`M_p = \sum_k c_k\, B_k(M A)\, M`.

    The coefficients may carry a graph: what a network predicts. Linear; symmetric if A and M are.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)
    coefficients : numbers or Tensor (degree + 1,), or (..., degree + 1), for each matrix of the batch its own
    interval : None for the basis of powers, :math:`B_k(t) = t^k`; (lo, hi), numbers or Tensors, for
        Chebyshev's polynomials of this interval, far better conditioned for degrees above four or so
    M : Preconditioner, the inner one, linear; "jacobi" for the inverse of the diagonal, None for none
    symmetric : bool, whether A is symmetric; if not given its numbers are compared (not
        under `torch.compile`)

    Attributes
    ----------
    coefficients, interval : Tensors as given, or of the numbers; interval may be None
    degree : int

    Raises
    ------
    ValueError
        if there is no coefficient, the interval is invalid, a diagonal entry is missing or zero (M="jacobi"),
        M is not linear, shapes do not fit, or A is not finite.
    TypeError
        if types, dtypes or devices do not fit.

    Notes
    -----
    Positive definite, for symmetric A and positive definite M, where the polynomial is positive on the
    eigenvalues of M A.

    Gradient: exact, for the coefficients, the interval, A's values, what M is made of, and r, to any order.
    Cost: `degree` products with A, one more with M. Coefficients that are parameters themselves:
    `Polynomial`; those of the best polynomial for bounds of the spectrum: `Chebyshev`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)  # a network's parameters
    >>> M = ls.preconditioners.MatrixPolynomial(A, 1 + theta.tanh(), interval=(0.0, 2.0))
    >>> ls.solvers.cg(A, b, M=M, rtol=0.0, maxiter=4, gradient="unrolled").residual_norms[-1].backward()
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
        _check.matrix(name, "A", A)
        self.coefficients = as_coefficients(name, coefficients, A.values)
        super().__init__(A, self.coefficients.shape[-1] - 1, M, symmetric)
        batch = self.coefficients.shape[:-1]
        _check.batches(name, self.batch_shape, batch, "A.values, or M, and coefficients")
        self.batch_shape = torch.broadcast_shapes(self.batch_shape, batch)
        self.interval = None if interval is None else as_interval(name, interval, A.values)
        self.depends_on += (self.coefficients, *(() if self.interval is None else (self.interval,)))

    def _polynomial(self, A: Apply, M: Apply, R: Tensor) -> Tensor:
        """By Horner's and Clenshaw's schemes."""
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


def as_coefficients(function: str, given: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    """A tensor (..., degree + 1) of the dtype and on the device of `like`."""
    if not isinstance(given, Tensor):
        given = torch.tensor(
            [_check.real(function, "coefficients", c) for c in given], dtype=like.dtype, device=like.device
        )
    _check.same_kind(function, "coefficients", given, like)
    if given.dim() == 0 or given.shape[-1] == 0:
        raise ValueError(f"{function}: coefficients must have shape (degree + 1,), got {tuple(given.shape)}")
    if readable(given) and not (good := given.detach().isfinite()).all():
        k = (~good).nonzero()[0].tolist()[-1]
        raise ValueError(
            f"{function}: coefficients must be finite, got infinities or NaNs, that of degree {k} is one; "
            "find out where they come from"
        )
    return given


def as_interval(function: str, given: Sequence[float] | Tensor, like: Tensor, always: bool = False) -> Tensor:
    """A tensor (lo, hi) of the dtype and on the device of `like`. Numbers are checked, tensors where they can
    be read without waiting for a device, or `always`."""
    valid = True
    if isinstance(given, Tensor):
        ends = given
    elif any(isinstance(t, Tensor) for t in given):
        ends = torch.stack([torch.as_tensor(t, dtype=like.dtype, device=like.device) for t in given])
    else:
        numbers = [_check.real(function, "interval", t) for t in given]
        valid = len(numbers) == 2 and -math.inf < numbers[0] < numbers[1] < math.inf
        ends = torch.tensor(numbers, dtype=like.dtype, device=like.device)
    _check.same_kind(function, "interval", ends, like)
    valid = valid and ends.shape == (2,)
    if valid and (always or readable(ends)):
        lo, hi = ends.detach()
        valid = bool(lo < hi) and bool(ends.detach().isfinite().all())
    if not valid:
        raise ValueError(f"{function}: interval must be (lo, hi) with lo < hi, got {given}")
    return ends
