"""Checks of the coefficients of problems."""

import math
from typing import Any

import torch
from torch import Tensor


def number(function: str, name: str, value: Any) -> float:
    """`value` as a float. A tensor raises an error, because it would lose its gradient."""
    if isinstance(value, Tensor) or not hasattr(value, "__float__"):
        raise TypeError(f"{function}: {name} must be a number, got {type(value).__name__}")
    return float(value)


def check_sign(function: str, name: str, value: Tensor, *, zero: bool, remedy: str) -> None:
    """Require that every entry is finite and positive, or zero if `zero`.

    Only plain CPU tensors are checked: checking a CUDA tensor would wait for the device, and the tensors of
    `torch.func` and `torch.compile` have no values to check.
    """
    if (
        value.device.type != "cpu"
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
    ):
        return
    value = value.detach()
    bad = ~((value >= 0 if zero else value > 0) & (value < math.inf))
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        rule = "finite and not negative" if zero else "positive and finite"
        raise ValueError(
            f"{function}: {name} must be {rule}, got {name}[{', '.join(map(str, at))}] = {value[at].item()}; "
            f"{remedy}"
        )
