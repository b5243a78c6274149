"""Batched gradients, `torch.autograd.grad(..., is_grads_batched=True)`, for operators that take lists of
tensors: one call for each member of the batch, as torch does for all operators but these.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)

_rules = torch.library.Library("learnsolve", "IMPL")


def _member_by_member(operator: Callable) -> Callable:
    def rule(*arguments: Any) -> Any:
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        # Tensors with the batch axis in front: of size 1 where they have none at this level.
        batched = [
            torch._remove_batch_dim(a, level, 1, 0)  # type: ignore[attr-defined]
            if isinstance(a, Tensor)
            else a
            for a in arguments
        ]
        size = max(len(a) for a in batched if isinstance(a, Tensor))

        def member(a: Any, i: int) -> Any:
            return a[min(i, len(a) - 1)] if isinstance(a, Tensor) else a

        results = [operator(*(member(a, i) for a in batched)) for i in range(size)]

        def joined(parts: Any) -> Tensor:
            return torch._add_batch_dim(torch.stack(parts), 0, level)  # type: ignore[attr-defined]

        if isinstance(results[0], Tensor):
            return joined(results)
        return tuple(joined(parts) for parts in zip(*results, strict=True))

    return rule


for _name in torch._C._dispatch_get_all_op_names():
    if _name.startswith("learnsolve::"):
        _operator = getattr(torch.ops.learnsolve, _name.removeprefix("learnsolve::")).default
        if any(str(a.type) == "List[Tensor]" for a in _operator._schema.arguments):
            _rules.impl(_operator, _member_by_member(_operator), "Batched")
