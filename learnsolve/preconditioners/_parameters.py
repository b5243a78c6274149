"""Numbers that a preconditioner takes beside its matrix, such as a relaxation or a bound of the spectrum."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.ops.structure import plain_values


def positive_number(
    function: str,
    key: str,
    value: Any,
    values: Tensor,
    batch: torch.Size,
    limit: float,
    wrong: Callable[[float, bool], str],
) -> float | Tensor:
    """`value` as a number, or as a tensor that is one number or one for each matrix of the batch, 0 < value <
    limit. wrong(value, in a tensor): what the error says about another one."""
    if not isinstance(value, Tensor):
        number = _check.number(function, key, value)
        if not 0 < number < limit:
            raise ValueError(f"{function}: {wrong(number, False)}")
        return number
    _check.same_kind(function, key, value, values)
    if value.dim() > len(batch) or any(
        s not in (1, b) for s, b in zip(reversed(value.shape), reversed(batch), strict=False)
    ):
        raise ValueError(
            f"{function}: {key} must be one number, or one for each matrix of the batch {tuple(batch)}, got "
            f"shape {tuple(value.shape)}"
        )
    if value.is_cpu and not torch.compiler.is_dynamo_compiling():
        plain = plain_values(value)
        if not (good := (plain > 0) & (plain < limit)).all():
            raise ValueError(f"{function}: {wrong(float(plain[~good][0]), True)}")
    return value
