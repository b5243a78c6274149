"""Modules with a sparsity pattern and parameters on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix.pattern import SparsityPattern


def parameter(value: Tensor) -> torch.nn.Parameter:
    """A parameter with its own storage that starts at `value`."""
    return torch.nn.Parameter(value.detach().clone(memory_format=torch.contiguous_format))


class HoldsPattern(torch.nn.Module):
    """A module on a `pattern`, which moves with it and whose index arrays are in its state dict.

    The state dict has copies of the arrays, since safetensors rejects tensors that share memory, and patterns
    are shared. Weights of another pattern raise an error that names it, since they would be meaningless here.
    """

    pattern: SparsityPattern
    crow_indices: Tensor
    col_indices: Tensor

    def _hold(self, pattern: SparsityPattern, persistent: bool = True) -> None:
        self.pattern = pattern
        for name in ("crow_indices", "col_indices"):
            array = getattr(pattern, name)
            self.register_buffer(name, array.clone() if persistent else array, persistent=persistent)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        if self.pattern.device != self.crow_indices.device:
            self.pattern = self.pattern.to(self.crow_indices.device)
        return self

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        for name in ("crow_indices", "col_indices"):
            theirs, ours = state_dict.get(prefix + name), getattr(self, name)
            if theirs is None or name in self._non_persistent_buffers_set:
                continue
            if (fault := _difference(theirs, ours)) is not None:
                error_msgs.append(
                    f"{type(self).__name__}: the weights belong to another pattern, {prefix}{name} {fault}; "
                    "make the module on SparsityPattern(crow_indices, col_indices, shape) of the weights"
                )
                return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def _difference(theirs: Tensor, ours: Tensor) -> str | None:
    if theirs.shape != ours.shape:
        return f"has shape {tuple(theirs.shape)} there and {tuple(ours.shape)} here"
    theirs = theirs.to(ours.device, ours.dtype)
    if torch.equal(theirs, ours):
        return None
    at = int((theirs != ours).nonzero()[0])
    return f"at {at} is {int(theirs[at])} there and {int(ours[at])} here"
