"""The result of an estimate, and values that have a first derivative only."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from torch import Tensor

from learnsolve.ops.core.autograd import Nestable
from learnsolve.solvers.core.report import users_frame


class Estimate(NamedTuple):
    """An estimated value.

    Attributes
    ----------
    value : Tensor, differentiable
    error : Tensor of the same shape, a constant: the error of the value, as defined by the function that
        returned it
    converged : bool, whether the error is within the requested tolerance; if not, a RuntimeWarning is issued
        as well

    Examples
    --------
    >>> import learnsolve as ls
    >>> kappa = ls.analysis.condition_number(ls.problems.poisson((15,)))
    >>> kappa.converged, bool(kappa.error < 1e-3 * kappa.value)
    (True, True)
    """

    value: Tensor
    error: Tensor
    converged: bool


def warn(function: str, message: str) -> None:
    warnings.warn(f"{function}: {message}", RuntimeWarning, stacklevel=users_frame())


def with_derivative(function: str, value: Tensor, form: Tensor) -> Tensor:
    """`value`, with the first derivative of `form`, in which eigenvectors are constants. The first derivative
    of an eigenvalue does not need the derivatives of the eigenvectors; the second does, and raises."""
    return _FirstOrder.apply(function, value, form)  # type: ignore[return-value]


class _FirstOrder(Nestable):
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


class _Once(Nestable):
    """A derivative that depends on `form`, so that differentiating it again raises."""

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
        f"{function}: has first derivatives only; for second ones use ls.eigsh for a symmetric CSR, or "
        "torch.linalg.eigvalsh or eigvals on A.to_dense()"
    )
