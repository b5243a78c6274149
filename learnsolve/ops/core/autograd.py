"""What the differentiable operations share.

Each operation is an `Operation` around one raw operator: its derivatives as static methods. Two
`torch.autograd.Function`s are made of it, because `torch.compile` rejects a `jvp`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import unwrap_if_dead
from torch.autograd import forward_ad


class Eager:
    """Mixed into a Function that `torch.compile` does not trace: a cheaper `apply`.

    `torch.autograd.Function.apply` binds the arguments to the signature of `forward` in every call, for
    defaults that no operation here has, which takes longer than the operator itself.
    """

    _apply: Callable[..., Any]  # `apply` of torch's own base, looked up once

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
    `vmap` (or `generate_vmap_rule`) and perhaps `setup_context` of a `torch.autograd.Function`.

    `forward` takes `operands` tensors, then constants. By default, several operands become
    `ctx.saved_tensors`; the constants become `ctx.constants`. What is saved for `backward` is available to
    `jvp` too.

    `eager` is the Function with all of them, `traced` the one without `jvp`, for `torch.compile`.
    """

    operands = 1
    generate_vmap_rule = False
    eager: Any
    traced: Any

    def __init_subclass__(cls) -> None:
        names = ("forward", "setup_context", "backward", "jvp", "vmap")
        members: dict[str, Any] = {n: staticmethod(getattr(cls, n)) for n in names if hasattr(cls, n)}
        members["generate_vmap_rule"] = cls.generate_vmap_rule
        own = members.get("setup_context")
        for_both = _keeps(cls.operands, True) if own is None else _keeps_for_both(own)
        both = {**members, "setup_context": staticmethod(for_both)}
        members.setdefault("setup_context", staticmethod(_keeps(cls.operands, False)))
        cls.eager = type(cls.__name__, (Eager, torch.autograd.Function), both)
        members.pop("jvp", None)
        cls.traced = type(cls.__name__, (torch.autograd.Function,), members)


def _keeps(operands: int, both: bool) -> Callable[[Any, tuple, Any], None]:
    """The default, `both`: as `_keeps_for_both` makes it, in one call."""

    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        if operands > 1:
            ctx.save_for_backward(*inputs[:operands])
            if both and forward_mode_may_come():
                ctx.save_for_forward(*inputs[:operands])
        ctx.constants = inputs[operands:]

    return setup_context


def _keeps_for_both(setup: Callable[[Any, tuple, Any], None]) -> Callable[[Any, tuple, Any], None]:
    """`setup`, which also saves its tensors for `jvp` where forward mode may follow."""

    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        setup(ctx, inputs, output)
        if forward_mode_may_come():
            ctx.save_for_forward(*(ctx.to_save or ()))

    return setup_context


class Multilinear(Operation):
    """Linear in each of its operands: the derivative along a tangent is the operation itself, with that in
    place of the operand."""

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> Tensor | None:
        kept: tuple = ctx.saved_tensors or (None,)
        along = (
            dispatch(cls, (*kept[:i], t, *kept[i + 1 :]), *ctx.constants)
            for i, t in enumerate(tangents[: cls.operands])
            if t is not None
        )
        return add(*along)


class LinearSolve(Operation):
    """x = M(p)^-1 b for a matrix M that is linear in p: forward(p, b, *constants). p and x are kept, and a
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
    """Does autograd or a functorch transform track this call? If not, the raw operator will do. Among
    `plain_tensors` no transform does."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t.requires_grad:
                return True
    return forward_mode_may_come() and not _excluded(_FRONT)


def dispatch(operation: Any, tensors: tuple[Tensor, ...], *constants: Any) -> Any:
    """One operation by the Function that this call needs: `traced` while `torch.compile` traces, `eager`
    where autograd or a transform of functorch tracks the call, and else its `forward` alone."""
    if torch.compiler.is_dynamo_compiling():
        return operation.traced.apply(*_distinct(*tensors), *constants)
    if tracked(*tensors):
        return operation.eager.apply(*tensors, *constants)
    return operation.forward(*tensors, *constants)


def _distinct(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same tensors, a view in place of one that comes again: Dynamo (torch 2.13) rejects a Function that
    is given one tensor twice."""
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
    """`save_for_forward`, if forward mode or a functorch transform is active, because it takes time."""
    if forward_mode_may_come():
        ctx.save_for_forward(*tensors)


def vmapped(function: Callable, in_dims: tuple, args: tuple) -> tuple[Any, Any]:
    """A vmap rule by composition: map `function`, made of public operations, over `args`."""
    out = torch.vmap(function, in_dims=in_dims, out_dims=0)(*args)
    return out, tuple(0 for _ in out) if isinstance(out, tuple) else 0


def pullback(function: Callable, *primals: Any) -> tuple[Any, Callable]:
    """`torch.func.vjp` without auxiliary output."""
    out, pull = torch.func.vjp(function, *primals)[:2]
    return out, pull


def pushforward(function: Callable, primals: tuple, tangents: tuple) -> tuple:
    """The tangents of function(*primals), a tuple; a tangent may be None. It is the transpose of the
    transpose, since torch does not nest forward modes."""
    tangents = tuple(torch.zeros_like(p) if t is None else t for p, t in zip(primals, tangents, strict=True))
    out, pull = pullback(function, *primals)
    _, push = pullback(pull, tuple(torch.zeros_like(o) for o in out))
    return push(tangents)[0]


def add(*terms: Tensor | None) -> Tensor | None:
    """The sum of the terms that are there."""
    total = None
    for t in terms:
        if t is not None:
            total = t if total is None else total + t
    return total
