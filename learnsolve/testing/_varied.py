"""The function that `check_gradients` checks, as a function of the tensors that are varied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.solvers.solution import Solution


class Varied:
    """fn as a function of the tensors that are varied, to a list of tensors."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any]):
        self.fn, self.args = fn, args
        able = [i for i, a in enumerate(args) if _is_number(a.values if isinstance(a, CSR) else a)]
        self.positions = [i for i in able if args[i].requires_grad] or able
        if not self.positions:
            raise ValueError(
                "check_gradients: an argument must be a CSR or a tensor of float32 or float64, got "
                f"({', '.join(type(a).__name__ for a in args)}); other arguments are bound in fn"
            )
        self.names = [f"args[{i}]" + ".values" * isinstance(args[i], CSR) for i in self.positions]
        values = [args[i] for i in self.positions]
        self.inputs = [(a.values if isinstance(a, CSR) else a).detach().clone() for a in values]
        self.values = self(self.inputs)
        if not self.values:
            raise ValueError(
                "check_gradients: fn must return floating-point tensors, CSR matrices or Solutions, or lists "
                "of them; got none; convert what it returns"
            )

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        args = list(self.args)
        for i, t in zip(self.positions, inputs, strict=True):
            args[i] = args[i].with_values(t) if isinstance(args[i], CSR) else t
        return list(_tensors(self.fn(*args)))


def _is_number(t: Any) -> bool:
    return isinstance(t, Tensor) and t.layout == torch.strided and t.dtype in (torch.float32, torch.float64)


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, (list, tuple)):
        for part in result:
            yield from _tensors(part)
    elif isinstance(result, Solution):
        yield result.x
    elif isinstance(result, CSR):
        yield result.values
    elif isinstance(result, Tensor) and result.is_floating_point():
        yield result
