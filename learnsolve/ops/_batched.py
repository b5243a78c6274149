"""Batched gradients (``is_grads_batched=True``) of operators that take lists of tensors, by a loop.

torch makes such a loop itself for operators without lists. What torch.func maps does not come here: the
operations have rules of their own for it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)

_OPERATORS = (
    *("csr_richardson", "csr_richardson_backward", "csr_pcg", "csr_pcg_backward"),
    *("csr_sptrsv", "csr_sptrsv_backward"),
    *("csr_spgemm", "csr_spgemm_left", "csr_spgemm_right", "csr_spgemm_backward"),
    *("csr_incomplete_factor", "csr_incomplete_tangent", "csr_incomplete_adjoint"),
    *("csr_incomplete_product", "csr_incomplete_product_adjoint"),
)
_torch: Any = torch  # whose functions for batches are private
_functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
_library_of_rules = torch.library.Library("learnsolve", "IMPL")


def _batched(t: Any) -> bool:
    return isinstance(t, Tensor) and _functorch.is_legacy_batchedtensor(t)


def _rule(operator: Any) -> Any:
    def loop(*args: Any) -> Any:
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        unwrapped = tree_map(
            lambda t: _All(_torch._remove_batch_dim(t, level, 1, 0)) if _batched(t) else t, args
        )
        count = next(len(t.members) for t in tree_leaves(unwrapped) if isinstance(t, _All))
        found = [
            operator(*tree_map(lambda t: t.members[i] if isinstance(t, _All) else t, unwrapped))  # noqa: B023
            for i in range(count)
        ]
        if isinstance(found[0], Tensor):
            return _torch._add_batch_dim(torch.stack(found), 0, level)
        return tuple(_torch._add_batch_dim(torch.stack(t), 0, level) for t in zip(*found, strict=True))

    return loop


class _All:
    """A tensor with the axis of the batch in front."""

    def __init__(self, members: Tensor):
        self.members = members


for _name in _OPERATORS:
    _operator = getattr(torch.ops.learnsolve, _name).default
    if any("List" in str(a.type) for a in _operator._schema.arguments):
        _library_of_rules.impl(_name, _rule(_operator), "Batched")
