"""What the differentiable operations share.

Each operation is a `torch.autograd.Function` around one raw operator. It comes in two classes: the base,
without forward mode, for `torch.compile` (which refuses a Function with a `jvp` of its own), and a
subclass with `jvp` for everything else.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import forward_ad


class Eager:
    """Mixed into the subclass with `jvp`: a cheaper `apply`.

    That of `torch.autograd.Function` binds the arguments to the signature of `forward` in every call, for
    defaults that no operation here has: 22 us a call become 11 (raw operator: 4).
    """

    @classmethod
    def apply(cls, *args: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)  # type: ignore[misc]
        return super(torch.autograd.Function, cls).apply(*unwrap_dead_wrappers(args))  # type: ignore[misc]


def tracked(*tensors: Tensor) -> bool:
    """Is anybody to differentiate or transform this call? If not, the raw operator will do."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t.requires_grad:
                return True
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def dispatch(function: Any, forward_mode: Any, tensors: tuple[Tensor, ...], *constants: Any) -> Any:
    """One operation by the class that this call needs: the base while `torch.compile` traces, its subclass
    with `jvp` where somebody differentiates or transforms, and else its `forward` alone."""
    if torch.compiler.is_dynamo_compiling():
        return function.apply(*_distinct(*tensors), *constants)
    if tracked(*tensors):
        return forward_mode.apply(*tensors, *constants)
    return function.forward(*tensors, *constants)


def _distinct(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same tensors, a view in place of one that comes again: Dynamo (torch 2.13) refuses a Function that
    is given one tensor twice."""
    out: list[Tensor] = []
    for t in tensors:
        again = False
        for o in out:
            again = again or o is t
        out.append(t.view_as(t) if again else t)
    return tuple(out)


def keep_for_forward_mode(ctx: Any, *tensors: Tensor) -> None:
    """`save_for_forward`, if anybody differentiates forward: it costs 1 us in every call."""
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        ctx.save_for_forward(*tensors)


def vmapped(function: Callable, in_dims: tuple, args: tuple) -> tuple[Any, Any]:
    """A vmap rule by composition: map `function`, made of public operations, over `args`."""
    out = torch.vmap(function, in_dims=in_dims, out_dims=0)(*args)
    return out, tuple(0 for _ in out) if isinstance(out, tuple) else 0


def pullback(function: Callable, *primals: Any) -> tuple[Any, Callable]:
    """`torch.func.vjp` without auxiliary output."""
    out, pull = torch.func.vjp(function, *primals)[:2]
    return out, pull


def add(*terms: Tensor | None) -> Tensor | None:
    """The sum of the terms that are there."""
    total = None
    for t in terms:
        if t is not None:
            total = t if total is None else total + t
    return total
