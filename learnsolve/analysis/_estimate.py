"""What an estimate comes with, and the value of one that has a first derivative and no more."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Estimate(NamedTuple):
    """A number that was estimated.

    Attributes
    ----------
    value : Tensor, differentiable
    error : Tensor of that shape, a constant: how far off it may be; the function that gave it says in what
        sense
    converged : bool, the error is within what was asked for; False is also told by a RuntimeWarning
    """

    value: Tensor
    error: Tensor
    converged: bool


def warn(function: str, message: str) -> None:
    warnings.warn(f"{function}: {message}", RuntimeWarning, stacklevel=3)


def with_derivative(function: str, value: Tensor, form: Tensor) -> Tensor:
    """`value`, with the first derivative of `form`, in which eigenvectors are constants. The first derivative
    of an eigenvalue does not need theirs; the second does, and raises."""
    return _FirstOrder.apply(function, value, form)  # type: ignore[return-value]


class _FirstOrder(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(function: str, value: Tensor, form: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.function, _, form = inputs
        ctx.save_for_backward(form)
        ctx.save_for_forward(form)

    @staticmethod
    def backward(ctx: Any, g: Tensor):  # type: ignore[override]
        return None, None, _Once.apply(ctx.function, g, ctx.saved_tensors[0])

    @staticmethod
    def jvp(ctx: Any, _function: None, _value: Tensor | None, t: Tensor):  # type: ignore[override]
        return _Once.apply(ctx.function, t, ctx.saved_tensors[0])


class _Once(torch.autograd.Function):
    """A derivative, which hangs on `form` so that whoever differentiates it again is told."""

    generate_vmap_rule = True

    @staticmethod
    def forward(function: str, g: Tensor, form: Tensor) -> Tensor:
        return g.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.function = inputs[0]

    @staticmethod
    def backward(ctx: Any, *_: Tensor):  # type: ignore[override]
        raise _no_second(ctx.function)

    @staticmethod
    def jvp(ctx: Any, *_: Any):  # type: ignore[override]
        raise _no_second(ctx.function)


def _no_second(function: str) -> NotImplementedError:
    return NotImplementedError(
        f"{function}: has first derivatives only; for second ones take torch.linalg.eigvalsh or eigvals of "
        "A.to_dense()"
    )
