"""Code shared by the differentiable operations.

Each operation is an `Operation` around one raw operator: with its derivatives as static methods. Two
`torch.autograd.Function`s are made from it, because `torch.compile` rejects a `jvp`.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import unwrap_if_dead
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map_only


class Nestable(torch.autograd.Function):
    """Base of all Functions with a `jvp`, which may itself be differentiated in forward mode.

    torch calls a `jvp` with forward mode turned off, because the saved tensors have the tangents of this
    level; under torch.func the tangents of outer levels are lost with them. So forward mode is turned on
    here, for saved tensors without the tangents of this level, as in torch's own rules.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "jvp" in vars(cls):
            cls.jvp = staticmethod(_differentiable(cls.jvp))  # type: ignore[method-assign]


def _differentiable(jvp: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(jvp)
    def with_outer_tangents(ctx: Any, *tangents: Any) -> Any:
        if not torch._C._are_functorch_transforms_active():  # one level
            return jvp(ctx, *tangents)
        with forward_ad._set_fwd_grad_enabled(True):
            return jvp(_OfPrimals(ctx), *tangents)

    return with_outer_tangents


class _OfPrimals:
    """A context whose saved tensors have no tangents of this level."""

    def __init__(self, ctx: Any):
        self.ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        saved = self.ctx.saved_tensors
        return tuple(None if t is None else forward_ad.unpack_dual(t, level=0).primal for t in saved)


class Eager(Nestable):
    """Base of a Function that `torch.compile` does not trace: a faster `apply`.

    `torch.autograd.Function.apply` binds the arguments to the signature of `forward` in every call, to fill
    in defaults that no operation here has. This takes longer than the operator itself.
    """

    _apply: Callable[..., Any]  # `apply` of torch's base class, looked up once

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._apply = super(torch.autograd.Function, cls).apply  # type: ignore[misc]

    @classmethod
    def apply(cls, *args: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)  # type: ignore[misc]
        plain = [unwrap_if_dead(arg) if isinstance(arg, Tensor) else arg for arg in args]
        return cls._apply(*plain)


class Operation:
    """A differentiable operation: base of classes with the static methods `forward`, `backward`, `jvp`,
    `vmap` and perhaps `setup_context` of a `torch.autograd.Function`.

    `forward` takes `operands` tensors, then constants. By default, several operands become
    `ctx.saved_tensors`; the constants become `ctx.constants`. Tensors saved for `backward` are available to
    `jvp` too.

    `eager` is the Function with all of them; `traced`, for `torch.compile`, is the Function without `jvp`.
    """

    operands = 1
    eager: Any
    traced: Any

    def __init_subclass__(cls) -> None:
        names = ("forward", "setup_context", "backward", "jvp", "vmap")
        members: dict[str, Any] = {n: staticmethod(getattr(cls, n)) for n in names if hasattr(cls, n)}
        own = members.get("setup_context")
        for_both = _keeps(cls.operands, True) if own is None else _keeps_for_both(own)
        both = {**members, "setup_context": staticmethod(for_both)}
        members.setdefault("setup_context", staticmethod(_keeps(cls.operands, False)))
        cls.eager = type(cls.__name__, (Eager,), both)
        members.pop("jvp", None)
        cls.traced = type(cls.__name__, (torch.autograd.Function,), members)


def _keeps(operands: int, both: bool) -> Callable[[Any, tuple, Any], None]:
    """The default setup; with `both` it does the same as `_keeps_for_both`, in one call."""

    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        if operands > 1:
            ctx.save_for_backward(*inputs[:operands])
            if both and forward_mode_may_come():
                ctx.save_for_forward(*inputs[:operands])
        ctx.constants = inputs[operands:]

    return setup_context


def _keeps_for_both(setup: Callable[[Any, tuple, Any], None]) -> Callable[[Any, tuple, Any], None]:
    """`setup` that also saves its tensors for `jvp` if forward mode may follow."""

    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        setup(ctx, inputs, output)
        if forward_mode_may_come():
            ctx.save_for_forward(*(ctx.to_save or ()))

    return setup_context


class Multilinear(Operation):
    """Linear in each of its operands: the derivative along a tangent is the operation itself, with the
    tangent in place of the operand."""

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> Tensor | None:
        kept: tuple = ctx.saved_tensors or (None,)
        along = (
            dispatch(cls, (*kept[:i], t, *kept[i + 1 :]), *ctx.constants)
            for i, t in enumerate(tangents[: cls.operands])
            if t is not None
        )
        return add(*along)


class OfLastAxes(Multilinear):
    """Linear in one tensor, along axes that are counted from the last one: a mapped axis goes first."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple, values: Tensor, *constants: Any) -> tuple[Tensor, int]:
        return dispatch(cls, (values.movedim(in_dims[0], 0),), *constants), 0


class LinearSolve(Operation):
    """x = M(p)^-1 b for a matrix M that is linear in p: forward(p, b, *constants). p and x are saved, and a
    subclass has times(p, x, *constants) = M(p) x, so that dx = M(p)^-1 (db - M(dp) x)."""

    operands = 2
    times: Callable[..., Tensor]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.constants = inputs[2:]

    @classmethod
    def jvp(cls, ctx: Any, tp: Tensor | None, tb: Tensor | None, *_: Any) -> Tensor:
        p, x = ctx.saved_tensors
        by_p = None if tp is None else -cls.times(tp, x, *ctx.constants)
        return dispatch(cls, (p, add(tb, by_p)), *ctx.constants)  # type: ignore[arg-type]


def tracked(*tensors: Tensor) -> bool:
    """Whether autograd or a functorch transform tracks this call. If not, the raw operator suffices. No
    transform tracks `plain_tensors`."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t.requires_grad:
                return True
    return forward_mode_may_come() and not _excluded(_FRONT)


def dispatch(operation: Any, tensors: tuple[Tensor, ...], *constants: Any) -> Any:
    """Run one operation through the Function that this call needs: `traced` while `torch.compile` traces,
    `eager` if autograd or a functorch transform tracks the call, and otherwise only its `forward`."""
    if torch.compiler.is_dynamo_compiling():
        return operation.traced.apply(*_distinct(*tensors), *constants)
    if tracked(*tensors):
        return operation.eager.apply(*tensors, *constants)
    return operation.forward(*tensors, *constants)


def _distinct(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same tensors, with a view in place of a repeated one: Dynamo (torch 2.13) rejects a Function that
    is called with the same tensor twice."""
    out: list[Tensor] = []
    for t in tensors:
        again = False
        for o in out:
            again = again or o is t
        out.append(t.view_as(t) if again else t)
    return tuple(out)


_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_FRONT = torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode


def forward_mode_may_come() -> bool:
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def keep_for_forward_mode(ctx: Any, *tensors: Tensor) -> None:
    """`save_for_forward`, which takes time, only if forward mode or a functorch transform is active."""
    if forward_mode_may_come():
        ctx.save_for_forward(*tensors)


def vmapped(function: Callable, in_dims: tuple, args: tuple) -> tuple[Any, Any]:
    """A vmap rule by composition: map `function`, made of public operations, over `args`."""
    out = torch.vmap(function, in_dims=in_dims, out_dims=0)(*args)
    return out, tuple(0 for _ in out) if isinstance(out, tuple) else 0


def pullback(function: Callable, *primals: Any) -> tuple[Any, Callable]:
    """`torch.func.vjp` without auxiliary output, also of what a backward saved at a level that has ended."""
    out, pull = torch.func.vjp(function, *tree_map_only(Tensor, unwrap_if_dead, primals))[:2]
    return out, pull


def pushforward(function: Callable, primals: tuple, tangents: tuple) -> tuple:
    """The tangents of function(*primals), a tuple; a tangent may be None. Computed as the transpose of the
    transpose, since torch does not nest the forward mode of `torch.autograd`, where a jvp may run."""
    tangents = tuple(torch.zeros_like(p) if t is None else t for p, t in zip(primals, tangents, strict=True))
    out, pull = pullback(function, *primals)
    _, push = pullback(pull, tuple(torch.zeros_like(o) for o in out))
    return push(tangents)[0]


def add(*terms: Tensor | None) -> Tensor | None:
    """The sum of the terms that are not None."""
    total = None
    for t in terms:
        if t is not None:
            total = t if total is None else total + t
    return total
