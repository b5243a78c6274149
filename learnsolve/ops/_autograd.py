"""What the differentiable operations share.

Each operation is a `torch.autograd.Function` around one raw operator. It comes in two classes: the base,
without forward mode, for `torch.compile` (which refuses a Function with a `jvp` of its own), and a
subclass with `jvp` for everything else.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def quick(cls: type) -> type:
    """Keep the signature of `forward`: `apply` asks for it in every call (18 us a call become 12)."""
    cls.forward.__signature__ = inspect.signature(cls.forward)  # type: ignore[attr-defined]
    return cls


def tracked(*tensors: Tensor) -> bool:
    """Is anybody to differentiate or transform this call? If not, the raw operator will do."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t.requires_grad:
                return True
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def vmapped(function: Callable, in_dims: tuple, args: tuple) -> tuple[Any, Any]:
    """A vmap rule by composition: map `function`, made of public operations, over `args`."""
    out = torch.vmap(function, in_dims=in_dims, out_dims=0)(*args)
    return out, tuple(0 for _ in out) if isinstance(out, tuple) else 0


def add(*terms: Tensor | None) -> Tensor | None:
    """The sum of the terms that are there."""
    total = None
    for t in terms:
        if t is not None:
            total = t if total is None else total + t
    return total
