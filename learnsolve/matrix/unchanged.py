"""Objects whose attributes stay as they were made, and tensors: have they been changed in place since they
were recorded?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor


class Immutable:
    """The constructor sets attributes by ``object.__setattr__``; afterwards none can be set or deleted."""

    __slots__ = ()

    _instead: str  # what to do instead

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse(name, "set")

    def __delattr__(self, name: str) -> None:
        self._refuse(name, "deleted")

    def _refuse(self, name: str, what: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be {what}; {self._instead}")


class Unchanged:
    """Tensors as they are now: calling it says whether they are unchanged. A copy starts from its own time.

    By torch's versions, which changes through ``.data`` and by fused optimizers do not raise. Parameters
    (leaves that require grad) are compared number by number as well, which finds those too.
    """

    def __init__(self, tensors: Iterable[Tensor]):
        self.kept = []
        for t in tensors:
            number = version(t)
            trainable = number >= 0 and t.requires_grad and t.is_leaf
            self.kept.append((t, number, t.detach().clone() if trainable else None))

    def __call__(self) -> bool:
        for t, number, copy in self.kept:
            now = version(t)
            if now < 0 or number < 0:
                continue
            if now != number or (copy is not None and not _equal(t.detach(), copy)):
                return False
        return True

    def __reduce__(self):
        return Unchanged, ([t for t, _, _ in self.kept],)


def version(t: Tensor) -> int:
    """-1 for tensors without a meaningful version."""
    if torch.compiler.is_dynamo_compiling() or t.is_inference() or is_functorch_wrapped_tensor(t):
        return -1
    return t._version


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())
