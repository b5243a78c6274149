"""What a solver sees of A and of M: products with blocks of columns, and the tensors they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops._product import product, sampled


class Matrix:
    """A CSR matrix or its transpose."""

    def __init__(self, A: CSR, transpose: bool = False):
        self.A, self.transpose = A, transpose
        self.parameters = (A.values,)

    def __call__(self, x: Tensor) -> Tensor:
        return product(self.A.values, x, self.A.pattern, self.transpose)

    @property
    def T(self) -> Matrix:
        return Matrix(self.A, not self.transpose)

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Matrix:
        return Matrix(self.A.with_values(parameters[0]), self.transpose)

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient of <y, A x> for the parameters, differentiable."""
        u, w = (x, y) if self.transpose else (y, x)
        values = self.A.values
        out = sampled(u, w, self.A.pattern)
        return (out.sum_to_size(values.shape),)


class Function:
    """A callable x -> A x on blocks of columns, with `parameters` that it computes with."""

    def __init__(
        self,
        function: str,
        apply: Callable[[Tensor], Tensor],
        transpose: Callable[[Tensor], Tensor] | None,
        parameters: tuple[Tensor, ...],
    ):
        self.function, self.apply, self.transpose = function, apply, transpose
        self.parameters = parameters

    def __call__(self, x: Tensor) -> Tensor:
        return self.apply(x)

    @property
    def T(self) -> Function:
        if self.transpose is None:
            raise ValueError(
                f"{self.function}: the implicit gradient solves with the transpose of A, which a callable "
                "does not tell; pass transpose=, a callable x -> A^T x"
            )
        return Function(self.function, self.transpose, self.apply, self.parameters)

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Function:
        raise NotImplementedError(
            f"{self.function}: forward-mode derivatives need A as a CSR; a callable's parameters cannot be "
            "replaced by their tangents"
        )

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        learn = [p for p in self.parameters if p.requires_grad]
        if not learn:
            return (None,) * len(self.parameters)
        with torch.enable_grad():
            form = (y * self.apply(x)).sum()
            found = torch.autograd.grad(form, learn, create_graph=torch.is_grad_enabled(), allow_unused=True)
        grads = iter(found)
        return tuple(next(grads) if p.requires_grad else None for p in self.parameters)


Operator = Matrix | Function


def as_operator(
    function: str, A: Any, transpose: Any, parameters: tuple[Tensor, ...], symmetric: bool, vector: bool
) -> Operator:
    """A CSR, a SciPy LinearOperator or a callable as what the loops work with."""
    if isinstance(A, CSR):
        for name, given in (("transpose", transpose is not None), ("parameters", len(parameters) > 0)):
            if given:
                raise ValueError(f"{function}: {name} belongs to a callable A; a CSR brings its own")
        _check.dtype(function, "A.values", A.values)
        if A.shape[0] != A.shape[1]:
            raise ValueError(f"{function}: A must be square, got shape {A.shape}; see lsqr for others")
        return Matrix(A)
    if isinstance(A, scipy.sparse.linalg.LinearOperator):
        if transpose is not None:
            raise ValueError(f"{function}: transpose belongs to a callable A; a LinearOperator has rmatmat")
        return Function(function, _host(A.matmat, A.rmatmat), _host(A.rmatmat, A.matmat), parameters)
    if not callable(A):
        raise TypeError(
            f"{function}: A must be a CSR, a scipy.sparse.linalg.LinearOperator or a callable, got "
            f"{type(A).__name__}; make a CSR with CSR.from_*"
        )
    if transpose is None and symmetric:
        transpose = A
    columns = _columns(A, vector)
    return Function(
        function,
        columns,
        columns if transpose is A else transpose and _columns(transpose, vector),
        parameters,
    )


def as_preconditioner(function: str, M: Any, vector: bool) -> Callable[[Tensor], Tensor] | None:
    """M as a function of blocks of columns."""
    if M is None:
        return None
    if isinstance(M, CSR):
        return Matrix(M)
    if isinstance(M, scipy.sparse.linalg.LinearOperator):
        return _host(M.matmat, M.rmatmat)
    if not callable(M):
        raise TypeError(
            f"{function}: M must be a callable r -> M r, a CSR or a LinearOperator, got {type(M).__name__}"
        )
    return _columns(M, vector)


def _columns(f: Callable[[Tensor], Tensor], vector: bool) -> Callable[[Tensor], Tensor]:
    """Callables are given what the user gave: a vector if b is one."""
    return (lambda x: f(x.squeeze(-1)).unsqueeze(-1)) if vector else f


def _host(f: Callable, transpose: Callable) -> Callable[[Tensor], Tensor]:
    """A NumPy function on (n, k) arrays as one of tensors."""
    return lambda x: _Host.apply(x, f, transpose)  # type: ignore[return-value]


class _Host(torch.autograd.Function):
    """Linear in x; nothing learns inside of it."""

    @staticmethod
    def forward(x, f, transpose):
        blocks = x.detach().cpu().reshape(-1, *x.shape[-2:])
        out = [torch.from_numpy(f(block.numpy())) for block in blocks]
        return torch.stack(out).reshape(x.shape).to(x) if out else x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.f, ctx.transpose = inputs

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return _Host.apply(g, ctx.transpose, ctx.f), None, None
