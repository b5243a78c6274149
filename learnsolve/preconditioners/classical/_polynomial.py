"""Code shared by polynomials in M A: the inner M, the transposed recursion, bounds of the spectrum."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.operands import in_open_interval
from learnsolve.ops.core.product import product
from learnsolve.ops.core.symmetry import symmetry
from learnsolve.ops.richardson import richardson_sweeps
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.classical.diagonal import Diagonal
from learnsolve.preconditioners.classical.jacobi import Jacobi

Apply = Callable[[Tensor], Tensor]


class PolynomialPreconditioner(Preconditioner):
    """p(M A) M for an inner M, so that the transpose is p(M^T A^T) M^T: the same recursion with transposes.

    A subclass defines `_polynomial(A, M, R)`, for products with A and with M as functions of blocks of
    columns.
    """

    def __init__(self, A: CSR, degree: int, M: Any, symmetric: bool | None) -> None:
        name = type(self).__name__
        super().__init__(A)
        self.degree = checks.integer(name, "degree", degree, 0)
        if isinstance(M, str):
            checks.one_of(name, "M", M, ("jacobi",))
            M = Jacobi(A)
        if not (M is None or isinstance(M, Preconditioner)):
            raise TypeError(
                f'{name}: M must be a Preconditioner, "jacobi" or None, got {type(M).__name__}; CSR matrices '
                "and functions are not accepted"
            )
        if M is not None:
            if not M.linear:
                raise ValueError(f"{name}: M must be linear, and {type(M).__name__} is not")
            if M.shape != A.shape:
                raise ValueError(f"{name}: M must have A's shape {A.shape}, got {M.shape}")
            if M.dtype != A.dtype or M.device != A.device:
                raise TypeError(
                    f"{name}: M must be {A.dtype} on {A.device}, as A is, got {M.dtype} on {M.device}"
                )
            checks.batches(name, A.batch_shape, M.batch_shape, "A.values and M")
        self.A, self.M = A.clone(), M
        self.symmetric = (M is None or M.symmetric) and symmetry(name, A, symmetric)
        if M is not None:
            self.batch_shape = torch.broadcast_shapes(A.batch_shape, M.batch_shape)
            self.depends_on += tuple(t for t in M.depends_on if t is not A.values)

    def _polynomial(self, A: Apply, M: Apply, R: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define _polynomial")

    def _operator(self, transpose: bool) -> Apply:
        return lambda X: product(self.A.values, X, self.A.pattern, transpose)

    def _inner(self, transpose: bool) -> Apply:
        if self.M is None:
            return lambda R: R
        return self.M.T if transpose else self.M

    def _columns(self, R: Tensor) -> Tensor:
        return self._polynomial(self._operator(False), self._inner(False), R)

    def _transposed(self, R: Tensor) -> Tensor:
        return self._polynomial(self._operator(True), self._inner(True), R)

    def _inverse_diagonal(self) -> Tensor | None:
        """M as a diagonal, if one compiled operation can run all steps (ops/richardson.py); else None."""
        if self.batch_shape or not (self.M is None or isinstance(self.M, Diagonal)):
            return None
        return torch.ones_like(self.A.values[:1]).expand(self.shape[0]) if self.M is None else self.M.d

    def _swept(
        self, scale: Tensor, R: Tensor, start: Tensor, steps: int, momentum: Tensor | None = None
    ) -> Tensor:
        B, X = (t.reshape(t.shape[:-2].numel(), *t.shape[-2:]) if t.dim() > 3 else t for t in (R, start))
        x, _ = richardson_sweeps(self.A.values, scale, B, X, self.A.pattern, steps, momentum=momentum)
        return x.reshape(R.shape)

    def _parameter(self, key: str, value: Any) -> float | Tensor:
        """A positive float, or a tensor with one per matrix, as a factor of blocks of columns."""
        values = self.A.values.expand(*self.batch_shape, -1)
        value = in_open_interval(type(self).__name__, key, value, values, math.inf, "be positive and finite")
        if not isinstance(value, Tensor):
            return value
        self.depends_on = (*self.depends_on, value)
        return value[..., None, None] if value.dim() else value
