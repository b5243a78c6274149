"""Immutable objects, and detection of in-place changes of tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor


class Immutable:
    """The constructor sets attributes by ``object.__setattr__``; afterwards they cannot be set or deleted."""

    __slots__ = ()

    _instead: str  # what to do instead

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse(name, "set")

    def __delattr__(self, name: str) -> None:
        self._refuse(name, "deleted")

    def _refuse(self, name: str, what: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be {what}; {self._instead}")


class Versions:
    """The versions of tensors, to detect later in-place changes. A copy starts anew.

    Uses torch's versions, which changes through ``.data`` and by fused optimizers do not increase. Parameters
    (leaves that require grad) are also compared by value, which detects those changes.
    """

    __slots__ = ("copies", "numbers")

    def __init__(self, tensors: Iterable[Tensor]):
        self.numbers, self.copies = (), ()
        for t in tensors:
            if (number := version(t)) >= 0:
                self.numbers += ((t, number),)
                if t.requires_grad and t.is_leaf:
                    self.copies += ((t, t.detach().clone()),)

    def unchanged(self) -> bool | Tensor:
        """A tensor if values on a CUDA device were compared, since reading it would synchronize."""
        if any(version(t) not in (number, -1) for t, number in self.numbers):
            return False
        on_device = []
        for t, copy in self.copies:
            if version(t) < 0:
                continue
            if t.is_cuda:
                on_device.append(torch.isclose(t.detach(), copy, rtol=0.0, atol=0.0, equal_nan=True).all())
            elif not _equal(t.detach(), copy):
                return False
        return torch.stack(on_device).all() if on_device else True

    def __reduce__(self):
        return Versions, ([t for t, _ in self.numbers],)


def version(t: Tensor) -> int:
    """-1 for tensors without a meaningful version."""
    if torch.compiler.is_dynamo_compiling() or t.is_inference() or is_functorch_wrapped_tensor(t):
        return -1
    return t._version


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())
