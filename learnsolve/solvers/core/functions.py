"""Callables and SciPy's LinearOperators for the loops: checked functions of blocks of columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from learnsolve.matrix import checks, convert
from learnsolve.matrix.autocast import full_precision
from learnsolve.matrix.convert import conjugate
from learnsolve.ops.core.autograd import Nestable
from learnsolve.solvers.core.system import Operator

Edge = tuple[Any, int]  # a node of autograd's graph, and the index of its result


class Function(Operator):
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
                f"{self.function}: needs the transpose of A, which cannot be derived from a callable; "
                "pass transpose=, a callable x -> A^T x"
            )
        return Function(self.function, self.transpose, self.apply, self.parameters)

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Function:
        # A callable holds its own parameters, so they cannot be replaced.
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
        grads = iter(_Pullback.apply(self.apply, y, x, *learn))  # type: ignore[arg-type]
        return tuple(next(grads) if p.requires_grad else None for p in self.parameters)

    def core(self) -> int:
        raise self._cannot()


class Watched:
    """A function of blocks of columns that raises `error` if its first result depends on tensors that require
    grad, other than by way of the `named` ones."""

    def __init__(
        self, function: Callable[[Tensor], Tensor], error: Exception, named: tuple[Tensor, ...] = ()
    ):
        self.function, self.named = function, named
        self.error: Exception | None = error

    def __call__(self, x: Tensor) -> Tensor:
        error, self.error = self.error, None
        if error is not None:
            with torch.enable_grad():
                y = self.function(x.detach())
            if depends_on_others(y, self.named):
                raise error
            if not torch.is_grad_enabled():
                return y.detach()
        return self.function(x)


class _Pullback(torch.autograd.Function):
    """d<y, A x>/dp, differentiated by differentiating once more: no third order."""

    @staticmethod
    def forward(ctx, apply, y, x, *parameters):
        ctx.product, ctx.parameters = apply, parameters
        ctx.save_for_backward(y, x)
        with torch.enable_grad():
            # Detached: y and x may depend on the parameters.
            return partial_derivatives((y.detach() * apply(x.detach())).sum(), parameters, False)

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx, *h):
        y, x = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            first = partial_derivatives((y * ctx.product(x)).sum(), ctx.parameters, True)
            total = torch.stack([(a * b.conj()).sum().real for a, b in zip(first, h, strict=True)]).sum()
            return None, *partial_derivatives(total, (y, x, *ctx.parameters), False)


def _edge(t: Tensor) -> Edge:
    return get_gradient_edge(t)[:2]


def _reached(starts: Iterable[Edge], ends: Collection[Edge]) -> tuple[set[Edge], bool]:
    """The ends upstream of the starts (the search stops at them), and whether there is another leaf."""
    met, other = set(), False
    nodes, todo = set(), list(starts)
    while todo:
        edge = todo.pop()
        if edge in ends:
            met.add(edge)
        elif edge[0] is not None and edge[0] not in nodes:
            nodes.add(edge[0])
            other = other or not edge[0].next_functions
            todo += edge[0].next_functions
    return met, other


def depends_on_others(y: Tensor, named: Sequence[Tensor]) -> bool:
    """Whether y depends on a leaf that requires grad other than through a named tensor."""
    return y.requires_grad and _reached([_edge(y)], {_edge(t) for t in named if t.requires_grad})[1]


def partial_derivatives(y: Tensor, inputs: Sequence[Tensor], create_graph: bool) -> tuple[Tensor, ...]:
    """dy/dt for a scalar y and each t of the inputs, with the others held constant.

    `torch.autograd.grad` follows all paths from y to t. So the inputs on which no other input depends come
    first; the next ones subtract the paths through them: their derivatives are added to y's with a minus
    sign. An input that occurs twice has its derivative once.
    """
    left = {_edge(t): t for t in inputs} if y.requires_grad else {}
    upstream = {edge: _reached(edge[0].next_functions, left)[0] for edge in left}
    partials: dict[Edge, Tensor] = {}
    outputs, weights = [y], [torch.ones_like(y)]
    while left:
        needed = set().union(*(upstream[edge] for edge in left))
        now = {edge: left.pop(edge) for edge in [*left] if edge not in needed}
        grads = torch.autograd.grad(
            outputs, [*now.values()], weights, retain_graph=True, create_graph=create_graph, allow_unused=True
        )
        of = {edge: g for edge, g in zip(now, grads, strict=True) if g is not None}
        partials |= of
        outputs += [now[edge] for edge in of]
        weights += [-g for g in of.values()]
    return tuple(
        torch.zeros_like(t) if g is None else g
        for t, g in ((t, partials.pop(_edge(t), None)) for t in inputs)
    )


def on_columns(
    function: str, name: str, f: Callable[..., Any], vector: bool, square: bool
) -> Callable[[Tensor], Tensor]:
    """Callables receive what the user passed, a vector if b is one, and must return the same."""

    def apply(x: Tensor) -> Tensor:
        as_vector = vector and x.dim() == 2  # under vmap it has a batch axis
        v = x.squeeze(-1) if as_vector else x
        y = f(v)
        checks.tensor(function, f"the result of {name}", y)
        same = y.shape == v.shape
        if not square:
            same = y.dim() == v.dim() and (as_vector or y.shape[-1] == v.shape[-1])
        if not same:
            rule = f"shape {tuple(v.shape)}" if square else f"as many columns as its argument, {v.shape[-1]}"
            raise ValueError(f"{function}: the result of {name} must have {rule}, got shape {tuple(y.shape)}")
        if y.dtype != v.dtype or y.device != v.device:
            raise TypeError(
                f"{function}: the result of {name} must be {v.dtype} on {v.device}, as b is, got "
                f"{y.dtype} on {y.device}; convert what it computes with"
            )
        return y.unsqueeze(-1) if as_vector else y

    return apply


def on_host(
    function: str, name: str, A: scipy.sparse.linalg.LinearOperator, complex: bool = False
) -> Callable[..., Tensor]:
    """Products with a SciPy operator, or its transpose, as a function of blocks of columns."""

    if not complex:
        convert.check_real(function, f"the LinearOperator {name}", A.dtype)

    def product(X: np.ndarray, transpose: bool) -> np.ndarray:
        # `rmatmat` is by the conjugate transpose.
        Y = np.asarray(A.rmatmat(X.conj()) if transpose else A.matmat(X))
        # Its dtype need not be what the operator says.
        if not complex:
            convert.check_real(function, f"the result of the LinearOperator {name}", Y.dtype)
        return Y.conj() if transpose and complex else Y

    def apply(x: Tensor, transpose: bool = False) -> Tensor:
        if x.shape[:-2].numel() == 0:
            raise ValueError(
                f"{function}: a LinearOperator {name} cannot be applied to an empty batch, got shape "
                f"{tuple(x.shape)}; leave the solve out"
            )
        return _Host.apply(x, product, transpose)  # type: ignore[return-value]

    return apply


class _Host(Nestable):
    """product(X, transpose) of NumPy arrays (n, k) for tensors (..., n, k): linear, without parameters."""

    @staticmethod
    def forward(x, product, transpose):
        blocks = x.detach().resolve_conj().resolve_neg().cpu().reshape(x.shape[:-2].numel(), *x.shape[-2:])
        out = [torch.from_numpy(np.ascontiguousarray(product(block.numpy(), transpose))) for block in blocks]
        y = torch.stack(out)
        return y.reshape(*x.shape[:-2], *y.shape[1:]).to(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.product, ctx.transpose = inputs

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return conjugate(_Host.apply(conjugate(g), ctx.product, not ctx.transpose)), None, None

    @staticmethod
    def jvp(ctx, t, *_):  # type: ignore[override]
        return _Host.apply(t, ctx.product, ctx.transpose)
