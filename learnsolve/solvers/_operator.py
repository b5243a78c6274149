"""What a solver sees of A and of M: products with blocks of columns, and the tensors they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops._product import product, sampled
from learnsolve.ops.stencil_operator import StencilOperator


class Operator(Protocol):
    """A linear map of blocks of columns (..., n, k), made of `parameters`."""

    parameters: tuple[Tensor, ...]

    def __call__(self, x: Tensor) -> Tensor: ...
    @property
    def T(self) -> Operator: ...
    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Operator: ...
    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of <y, A x> for the parameters, differentiable."""
        ...

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        """dA x, for a change of the parameters."""
        ...

    def size(self) -> Tensor | None:
        """The largest entry, (..., 1, 1), if it is known."""
        ...

    def core(self) -> int:
        """The number of axes of a parameter that are not batch axes."""
        ...


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
        u, w = (x, y) if self.transpose else (y, x)
        return (sampled(u, w, self.A.pattern).sum_to_size(self.A.values.shape),)

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        assert tangents[0] is not None
        return product(tangents[0], x, self.A.pattern, self.transpose)

    def size(self) -> Tensor | None:
        values = self.A.values.detach()
        if values.shape[-1] == 0:
            return None
        return torch.linalg.vector_norm(values, torch.inf, dim=-1)[..., None, None]

    def core(self) -> int:
        return 1


class Stencil:
    """A `StencilOperator`."""

    def __init__(self, A: StencilOperator):
        self.A = A
        self.parameters = (A.coefficients,)

    def __call__(self, x: Tensor) -> Tensor:
        return self.A._product(x)

    @property
    def T(self) -> Stencil:
        return Stencil(self.A.T)

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Stencil:
        return Stencil(self.A.with_coefficients(parameters[0]))

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        return (self.A._outer(y, x),)

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        assert tangents[0] is not None
        return self.A.with_coefficients(tangents[0])._product(x)

    def size(self) -> Tensor | None:
        c = self.A.coefficients.detach()
        if c.numel() == 0:
            return None
        return torch.linalg.vector_norm(c.flatten(-self.core()), torch.inf, dim=-1)[..., None, None]

    def core(self) -> int:
        return 1 + len(self.A.grid)


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
                f"{self.function}: needs the transpose of A, which a callable does not tell; pass "
                "transpose=, a callable x -> A^T x"
            )
        return Function(self.function, self.transpose, self.apply, self.parameters)

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Function:
        # A callable holds its parameters itself, so they cannot be replaced by others.
        if all(new is old for new, old in zip(parameters, self.parameters, strict=True)):
            return self
        raise self._cannot()

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        raise self._cannot()

    def _cannot(self) -> NotImplementedError:
        return NotImplementedError(
            f"{self.function}: transformations of torch.func and forward mode cannot reach the parameters "
            'of a callable A; give A as a CSR, or use gradient="unrolled"'
        )

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        learn = tuple(p for p in self.parameters if p.requires_grad)
        if not learn:
            return (None,) * len(self.parameters)
        found = iter(_Pullback.apply(self.apply, y, x, *learn))  # type: ignore[arg-type]
        return tuple(next(found) if p.requires_grad else None for p in self.parameters)

    def size(self) -> Tensor | None:
        return None

    def core(self) -> int:
        raise self._cannot()


def _partial(apply: Callable, y: Tensor, x: Tensor, parameters: tuple[Tensor, ...], again: bool) -> tuple:
    """d<y, A x>/dp for x and y that depend on nothing: they may be made of the parameters themselves."""
    form = (y * apply(x)).sum()
    found = torch.autograd.grad(form, parameters, create_graph=again, allow_unused=True)
    return tuple(torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True))


class _Pullback(torch.autograd.Function):
    """d<y, A x>/dp, whose derivatives are found by differentiating once more: no third order."""

    @staticmethod
    def forward(ctx, apply, y, x, *parameters):
        ctx.product, ctx.parameters = apply, parameters
        ctx.save_for_backward(y, x)
        with torch.enable_grad():
            return _partial(apply, y.detach(), x.detach(), parameters, False)

    @staticmethod
    @once_differentiable
    def backward(ctx, *h):
        y, x = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            first = _partial(ctx.product, y, x, ctx.parameters, True)
            total = torch.stack([(a * b).sum() for a, b in zip(first, h, strict=True)]).sum()
            inputs = (y, x, *ctx.parameters)
            if not total.requires_grad:
                return (None,) * (1 + len(inputs))
            return None, *torch.autograd.grad(total, inputs, allow_unused=True)


def as_operator(
    function: str,
    A: Any,
    b: Tensor,
    transpose: Any,
    parameters: tuple[Tensor, ...],
    symmetric: bool = False,
    square: bool = True,
) -> Operator:
    """A CSR, a SciPy LinearOperator or a callable as what the loops work with."""
    for i, p in enumerate(parameters):
        _check.tensor(function, f"parameters[{i}]", p)
    rows = b.shape[0 if b.dim() == 1 else -2]
    if isinstance(A, (CSR, StencilOperator, scipy.sparse.linalg.LinearOperator)):
        if transpose is not None:
            raise ValueError(f"{function}: transpose belongs to a callable A; {type(A).__name__} has its own")
        if square and A.shape[0] != A.shape[1]:
            raise ValueError(f"{function}: A must be square, got shape {A.shape}; lsqr and lsmr take any")
        if rows != A.shape[0]:
            raise ValueError(
                f"{function}: b must have A.shape[0] = {A.shape[0]} rows, got shape {tuple(b.shape)}"
            )
    if isinstance(A, CSR):
        if parameters:
            raise ValueError(f"{function}: parameters belong to a callable A; a CSR's are its values")
        _check.dtype(function, "A.values", A.values)
        return Matrix(A)
    if isinstance(A, StencilOperator):
        if parameters:
            raise ValueError(
                f"{function}: parameters belong to a callable A; a StencilOperator's are its coefficients"
            )
        return Stencil(A)
    if isinstance(A, scipy.sparse.linalg.LinearOperator):
        if parameters:
            raise ValueError(f"{function}: parameters belong to a callable A; a LinearOperator cannot learn")
        forward = _on_host(function, "A", A)
        return Function(function, forward, lambda x: forward(x, True), ())
    if not callable(A):
        raise TypeError(
            f"{function}: A must be a CSR, a StencilOperator, a scipy.sparse.linalg.LinearOperator or a "
            f"callable, got {type(A).__name__}; make a CSR with CSR.from_*"
        )
    if not (transpose is None or callable(transpose)):
        raise TypeError(
            f"{function}: transpose must be a callable x -> A^T x, got {type(transpose).__name__}"
        )
    vector = b.dim() == 1
    apply = _on_columns(function, "A", A, vector, square)
    if transpose is None:
        return Function(function, apply, apply if symmetric else None, parameters)
    return Function(
        function, apply, _on_columns(function, "transpose", transpose, vector, square), parameters
    )


def as_preconditioner(function: str, name: str, M: Any, b: Tensor) -> Callable[[Tensor], Tensor] | None:
    """M as a function of blocks of columns."""
    if M is None:
        return None
    n = b.shape[0 if b.dim() == 1 else -2]
    if isinstance(M, (CSR, scipy.sparse.linalg.LinearOperator)) and M.shape != (n, n):
        raise ValueError(f"{function}: {name} must have shape ({n}, {n}), as A has, got {tuple(M.shape)}")
    if isinstance(M, CSR):
        _check.same_kind(function, f"{name}.values", M.values, b)
        _check.batches(function, M.batch_shape, b.shape[:-2], f"{name}.values and b")
        if len(M.batch_shape) > max(b.dim() - 2, 0):
            raise ValueError(
                f"{function}: {name} must not have more batch axes than A or b, got {tuple(M.batch_shape)}; "
                "give b its shape (..., n, k)"
            )
        return Matrix(M)
    if isinstance(M, scipy.sparse.linalg.LinearOperator):
        return _on_host(function, name, M)
    if not callable(M):
        raise TypeError(
            f"{function}: {name} must be a callable r -> M r, a CSR or a LinearOperator, got "
            f"{type(M).__name__}"
        )
    return _on_columns(function, name, M, b.dim() == 1, True)


def compiled_form(M: Any) -> tuple[str, Tensor | None, Any] | None:
    """(kind, m, factor) of M as the compiled loop of `cg` takes them (ops/pcg.py), else None. A
    preconditioner states it by a method `pcg_form()`."""
    return ("none", None, None) if M is None else getattr(M, "pcg_form", lambda: None)()


def _on_columns(
    function: str, name: str, f: Callable[..., Any], vector: bool, square: bool
) -> Callable[[Tensor], Tensor]:
    """Callables receive what the user passed, a vector if b is one, and must return the same."""

    def apply(x: Tensor) -> Tensor:
        as_vector = vector and x.dim() == 2  # under vmap it has a batch axis
        given = x.squeeze(-1) if as_vector else x
        y = f(given)
        _check.tensor(function, f"the result of {name}", y)
        same = y.shape == given.shape
        if not square:
            same = y.dim() == given.dim() and (as_vector or y.shape[-1] == given.shape[-1])
        if not same:
            rule = (
                f"shape {tuple(given.shape)}"
                if square
                else f"as many columns as its argument, {given.shape[-1]}"
            )
            raise ValueError(f"{function}: the result of {name} must have {rule}, got shape {tuple(y.shape)}")
        if y.dtype != given.dtype or y.device != given.device:
            raise TypeError(
                f"{function}: the result of {name} must be {given.dtype} on {given.device}, as b is, got "
                f"{y.dtype} on {y.device}; convert what it computes with"
            )
        return y.unsqueeze(-1) if as_vector else y

    return apply


def _on_host(function: str, name: str, A: scipy.sparse.linalg.LinearOperator) -> Callable[..., Tensor]:
    """Products with a SciPy operator, or its transpose, as a function of blocks of columns."""

    def real(dtype: Any, what: str) -> None:
        if dtype is not None and np.dtype(dtype).kind == "c":
            raise TypeError(
                f"{function}: {what} must be real, got {np.dtype(dtype)}; solve the real system "
                "[[Re A, -Im A], [Im A, Re A]] for the real and the imaginary part"
            )

    real(A.dtype, f"the LinearOperator {name}")

    def product(X: np.ndarray, transpose: bool) -> np.ndarray:
        Y = np.asarray(A.rmatmat(X) if transpose else A.matmat(X))
        real(Y.dtype, f"the result of the LinearOperator {name}")  # its dtype need not be what it says
        return Y

    def apply(x: Tensor, transpose: bool = False) -> Tensor:
        if x.shape[:-2].numel() == 0:
            raise ValueError(
                f"{function}: a LinearOperator {name} cannot be applied to an empty batch, got shape "
                f"{tuple(x.shape)}; leave the solve out"
            )
        return _Host.apply(x, product, transpose)  # type: ignore[return-value]

    return apply


class _Host(torch.autograd.Function):
    """product(X, transpose) of NumPy arrays (n, k) for tensors (..., n, k): linear, without parameters."""

    @staticmethod
    def forward(x, product, transpose):
        blocks = x.detach().cpu().reshape(x.shape[:-2].numel(), *x.shape[-2:])
        out = [torch.from_numpy(np.ascontiguousarray(product(block.numpy(), transpose))) for block in blocks]
        y = torch.stack(out)
        return y.reshape(*x.shape[:-2], *y.shape[1:]).to(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.product, ctx.transpose = inputs

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return _Host.apply(g, ctx.product, not ctx.transpose), None, None

    @staticmethod
    def jvp(ctx, t, *_):  # type: ignore[override]
        return _Host.apply(t, ctx.product, ctx.transpose)
