"""The effect of a stationary method on the error.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 4.2.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from learnsolve.analysis._operands import linear, space_of, with_batch_of
from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.linear_steps import LinearSteps, product
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.solvers.core.operators import as_operator, as_preconditioner


class ErrorPropagator:
    r"""The error propagator of :math:`x \leftarrow x + w \circ M (b - A x)`,

    .. math:: E = (I - W_N M A) \cdots (I - W_1 M A), \quad W_k = \mathrm{diag}(w_k).

    Parameters
    ----------
    A : CSR, values (..., nnz), or StencilOperator, shape (n, n); or a scipy.sparse.linalg.LinearOperator; or
        a callable on blocks of columns (n, k)
    M : a preconditioner, as for solvers; Jacobi(A) for Jacobi's method; default: the identity
    weight : float or Tensor of shape (), (n,), or for N sweeps (N, 1) or (N, n)
    sweeps : int >= 1, N, for one weight
    n, dtype : size and dtype (default float64) of a callable A

    Raises
    ------
    ValueError
        if shapes do not match, or M is not linear.
    TypeError
        if a type, dtype or device is wrong.

    Notes
    -----
    For a batch of matrices, or of preconditioners, it is a batch of propagators, and X has shape (..., n, k).

    Applying it to a vector (n,) or a block of columns (..., n, k) costs N products with A and with M, and is
    differentiable with respect to A, M and weight. With an `AMG` of smoother="jacobi" and the weight 1 all
    sweeps are one compiled operation.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((3,))
    >>> E = ls.analysis.ErrorPropagator(A, ls.preconditioners.Jacobi(A), 2 / 3)
    >>> E(torch.eye(3, dtype=torch.float64))
    tensor([[0.3333, 0.3333, 0.0000],
            [0.3333, 0.3333, 0.3333],
            [0.0000, 0.3333, 0.3333]], dtype=torch.float64)
    """

    def __init__(
        self,
        A: Any,
        M: Any = None,
        weight: float | Tensor = 1.0,
        *,
        sweeps: int | None = None,
        n: int | None = None,
        dtype: torch.dtype | None = None,
    ):
        name = "ErrorPropagator"
        space = with_batch_of(name, space_of(name, "A", A, n, dtype), M)
        self.shape, self.dtype, self.device = (space.n, space.n), space.dtype, space.device
        self.batch_shape = space.batch
        start = space.for_all(torch.empty(space.n, 1, dtype=space.dtype, device=space.device))
        linear(name, "the error propagator", M)
        self.A = as_operator(name, A, start, None, ())
        self.M = as_preconditioner(name, "M", M, start)
        weighted = isinstance(weight, Tensor) or weight != 1
        if not isinstance(weight, Tensor):
            if isinstance(weight, bool) or not isinstance(weight, Real):
                raise TypeError(f"{name}: weight must be a number or a Tensor, got {type(weight).__name__}")
            weight = torch.as_tensor(float(weight), dtype=space.dtype, device=space.device)
        checks.same_kind(name, "weight", weight, start)
        if weight.dim() > 2 or (weight.dim() > 0 and weight.shape[-1] not in (1, space.n)):
            raise ValueError(
                f"{name}: weight must have shape (), ({space.n},), (N, 1) or (N, {space.n}), got "
                f"{tuple(weight.shape)}"
            )
        if sweeps is not None:
            sweeps = checks.integer(name, "sweeps", sweeps, 1)
            if weight.dim() == 2:
                raise ValueError(
                    f"{name}: sweeps is for one weight, got weights for {len(weight)} sweeps; leave it out"
                )
        self.weight, self.sweeps = weight, len(weight) if weight.dim() == 2 else sweeps or 1
        traced = torch.compiler.is_dynamo_compiling()
        recorded = M._recorded(False) if isinstance(M, Preconditioner) and not traced else None
        self._steps: LinearSteps | None = None
        if recorded and isinstance(A, CSR) and not A.batch_shape and not weighted:
            cycle, matrices, others = recorded

            def sweep(X: Any) -> Any:
                return X - cycle(product(A.values, X, A.pattern, False))

            self._steps = LinearSteps(sweep, [A, *matrices], others, self.sweeps)

    def __call__(self, X: Tensor) -> Tensor:
        """E X, with X's shape, (n,) or (..., n, k)."""
        name = "ErrorPropagator"
        checks.tensor(name, "X", X)
        n = self.shape[0]
        if X.dim() == 0 or X.shape[0 if X.dim() == 1 else -2] != n:
            raise ValueError(f"{name}: X must have shape ({n},) or (..., {n}, k), got {tuple(X.shape)}")
        if X.dtype != self.dtype or X.device != self.device:
            raise TypeError(
                f"{name}: X must be {self.dtype} on {self.device}, as A is, got {X.dtype} on {X.device}; "
                "convert one with .to()"
            )
        if X.dim() > 1:
            checks.batches(name, self.batch_shape, X.shape[:-2], "the propagator and X")
            return self._columns(X)
        if self.batch_shape:
            raise ValueError(
                f"{name}: for a batch of shape {tuple(self.batch_shape)} X must have shape (..., {n}, k), "
                f"got {tuple(X.shape)}; X.unsqueeze(-1) is one column for all"
            )
        return self._columns(X.unsqueeze(-1)).squeeze(-1)

    def _columns(self, X: Tensor) -> Tensor:
        if self._steps is not None:
            return self._steps(X)
        weight = self.weight
        for w in weight if weight.dim() == 2 else [weight] * self.sweeps:
            Z = self.A(X)
            Z = Z if self.M is None else self.M(Z)
            X = X - (w if w.dim() == 0 else w.unsqueeze(-1)) * Z
        return X

    def __repr__(self) -> str:
        weight = tuple(self.weight.shape)
        return f"ErrorPropagator(shape={self.shape}, weight={weight}, sweeps={self.sweeps})"
