"""Batched gradients (`is_grads_batched=True`) of operators that take lists of tensors: one call per member.

torch loops by itself for operators without lists. Tensors mapped by torch.func do not come here, because the
operations have vmap rules.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)

_torch: Any = torch  # its functions for batches are private
_functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
_rules = torch.library.Library("learnsolve", "IMPL")


class _Members:
    """A tensor with the batch axis first, of size 1 if it has none at this level."""

    def __init__(self, t: Tensor):
        self.t = t

    def __getitem__(self, i: int) -> Tensor:
        return self.t[min(i, len(self.t) - 1)]


def _batched(t: Any) -> bool:
    return isinstance(t, Tensor) and _functorch.is_legacy_batchedtensor(t)


def _level(args: Any) -> int:
    """The innermost batch level. The backward of CUDA tensors runs on a thread without this information, so
    it is read from the tensors: a tensor without an axis at a level gets one, here of size 0."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    if level > 0:
        return level
    given = [t for t in tree_leaves(args) if _batched(t)]
    return next(n for n in range(64, 0, -1) for t in given if len(_torch._remove_batch_dim(t, n, 0, 0)))


def _rule(operator: Any) -> Any:
    def loop(*args: Any) -> Any:
        level = _level(args)

        def members(t: Any) -> Any:
            return _Members(_torch._remove_batch_dim(t, level, 1, 0)) if _batched(t) else t

        def member(t: Any, i: int) -> Any:
            return t[i] if isinstance(t, _Members) else t

        args = tree_map(members, args)
        count = max(len(t.t) for t in tree_leaves(args) if isinstance(t, _Members))
        results = [operator(*tree_map(lambda t: member(t, i), args)) for i in range(count)]  # noqa: B023
        if isinstance(results[0], Tensor):
            return _torch._add_batch_dim(torch.stack(results), 0, level)
        return tuple(_torch._add_batch_dim(torch.stack(t), 0, level) for t in zip(*results, strict=True))

    return loop


for _name in torch._C._dispatch_get_all_op_names():
    if _name.startswith("learnsolve::"):
        _operator = getattr(torch.ops.learnsolve, _name.removeprefix("learnsolve::")).default
        if any("List[Tensor]" in str(a.type) for a in _operator._schema.arguments):
            _rules.impl(_operator, _rule(_operator), "Batched")
