"""The inverse of the diagonal with trainable weights.

Source: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation",
arXiv 2212.05159, section 4.1, whose entry-wise weights these are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.nn._holds_pattern import parameter
from learnsolve.ops._dots import times
from learnsolve.ops.diagonal import inverse_diagonal
from learnsolve.preconditioners._held import (
    POSITIVE,
    Holder,
    check_constant,
    check_start,
    one_kind,
    positive,
    raw,
)
from learnsolve.preconditioners.diagonal import Diagonal

_INSTEAD = "use preconditioners.Diagonal(weight / ops.diagonal(A)), which keeps the graph"


class ScaledJacobi(Holder):
    r"""Learned weights on the inverse of the diagonal, :math:`M = \mathrm{diag}(w) D^{-1}`.

    Parameters
    ----------
    A : CSR, shape (n, n), without zeros on its diagonal D, values (..., nnz) that do not require grad
    weight : number or Tensor (n,), where w starts
    positive : None, or "exp" or "softplus": the parameter is the logarithm of w, or its inverse softplus, so
        that w stays positive

    Attributes
    ----------
    raw_weight : Parameter (n,); w itself where `positive` is None
    weight : w
    inverse : :math:`D^{-1}`, a buffer that is not in the state: weights may be loaded for another matrix

    Raises
    ------
    ValueError
        if a diagonal entry is missing or zero, A's values require grad or are not finite, or `weight` does
        not fit or is not positive.
    TypeError
        if types, dtypes or devices do not fit; in a call, if a module that shares the parameter was converted
        to another dtype or device and this one was not.

    Notes
    -----
    Linear, symmetric; positive definite if w is positive and D is. A fixed number of iterations of `cg` runs
    compiled with it. ``M.on(B)`` has the same weights, the same parameter, for another matrix.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> M = ls.preconditioners.ScaledJacobi(A)
    >>> ls.solvers.cg(A, b, M=M, rtol=0.0, maxiter=4, gradient="unrolled").residual_norms[-1].backward()
    >>> M.raw_weight.grad.shape
    torch.Size([64])
    """

    symmetric = True
    inverse: Tensor

    def __init__(self, A: CSR, weight: float | Tensor = 1.0, *, positive: str | None = None):
        super().__init__()
        name = type(self).__name__
        inverse = _inverse(name, A)
        n = A.shape[0]
        if positive is not None:
            _check.one_of(name, "positive", positive, POSITIVE)
        if not isinstance(weight, Tensor):
            weight = torch.full((n,), _check.real(name, "weight", weight), dtype=A.dtype, device=A.device)
        _check.same_kind(name, "weight", weight, A.values)
        check_start(name, "weight", weight, _INSTEAD)
        if weight.shape != (n,):
            raise ValueError(f"{name}: weight must have shape ({n},), got {tuple(weight.shape)}")
        if positive is not None and not bool((weight > 0).all()):
            raise ValueError(
                f"{name}: weight must be positive for positive={positive!r}, the smallest is "
                f"{float(weight.min()):.6g}; use positive=None"
            )
        self.positive = positive
        self.raw_weight = parameter(raw(weight, positive))
        self.register_buffer("inverse", inverse, persistent=False)
        self.shape, self.batch_shape = A.shape, A.batch_shape

    def on(self, A: CSR) -> ScaledJacobi:
        """The same weights, with their parameter, for another matrix of this size."""
        name = f"{type(self).__name__}.on"
        check_constant(name, A, _INSTEAD)
        if A.shape != self.shape:
            raise ValueError(f"{name}: A must have shape {self.shape}, as the weights do, got {A.shape}")
        _check.same_kind(name, "A.values", A.values, self.raw_weight)
        other = type(self)(A, positive=self.positive)
        other.raw_weight = self.raw_weight
        return other

    @property
    def weight(self) -> Tensor:
        return positive(self.raw_weight, self.positive)

    def current(self) -> Diagonal:
        one_kind(self, self.raw_weight, self.inverse)
        return self._with(Diagonal, d=times(self.inverse, self.weight))

    def extra_repr(self) -> str:
        return f"shape={self.shape}, positive={self.positive!r}"


def _inverse(function: str, A: CSR) -> Tensor:
    check_constant(function, A, _INSTEAD)
    with torch.no_grad():
        return inverse_diagonal(A)
